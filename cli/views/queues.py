"""Rows of `turnout queues`: what each queue has, uses, lends and borrows, and how many jobs wait in it.

Source: the autoscaler's observation, or the status that the autoscaler wrote into ConfigMaps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnout.autoscaler.model import Gpus, JobState, Observation, gpu_limit, remaining_gpus, total_gpus
from turnout.autoscaler.reporting.why import UnmanagedGang
from turnout.cli.views.listing import Column, Listing
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import NAMESPACE, QueueShare, bounds_several


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue, in GPUs. None: not configured, or unknown."""

    queue: str
    open: bool
    share_gpus: int | None  # its quota
    limit_gpus: int | None  # the most it may use
    used_gpus: int
    lent_gpus: int  # GPUs of its elastic workers, which leave if another job needs them
    borrowed_gpus: int  # what it uses beyond its quota
    free_gpus: int | None  # what it may use in addition, by its limit
    running: int  # jobs that do not wait, and gangs that no job of a known kind owns
    waiting: int  # jobs
    wanted_gpus: int | None  # GPUs that its waiting jobs still need for their min
    namespaces: tuple[str, ...] = ()  # of the jobs in it


def rows(observation: Observation, gangs: Mapping[JobKey, UnmanagedGang], gpus: Gpus) -> list[QueueRow]:
    """Return a row for every queue that is configured or has a job or a gang, sorted by name.

    A configured one that bounds several queues together is left out, unless it has jobs. gangs: those that no job of a
    known kind owns. gpus: names of GPU resources.
    """
    of: dict[str, list[JobState]] = {name: [] for name in observation.queues if not bounds_several(name)}
    for each in observation.jobs:
        of.setdefault(each.job.queue, []).append(each)
    observed_keys = {each.job.key for each in observation.jobs}
    bare: dict[str, list[UnmanagedGang]] = {}
    for gang in gangs.values():
        if gang.key not in observed_keys:
            bare.setdefault(gang.queue, []).append(gang)
            of.setdefault(gang.queue, [])
    return [
        _row(name, observation.queues.get(name), jobs, bare.get(name, []), gpus) for name, jobs in sorted(of.items())
    ]


def _row(name: str, queue: QueueShare | None, jobs: list[JobState], bare: list[UnmanagedGang], gpus: Gpus) -> QueueRow:
    """Return the row of a queue. queue: None if it is not configured. bare: its gangs that no job of a known kind owns.

    gpus: names of GPU resources.
    """
    spec = queue or QueueShare()
    used = total_gpus(queue.used, gpus) if queue is not None else _held_gpus(jobs, bare, gpus)
    share = gpu_limit(spec.deserved, gpus)
    waiting = [each for each in jobs if each.is_waiting]
    return QueueRow(
        name,
        spec.open,
        share,
        gpu_limit(spec.limit, gpus),
        used,
        sum(max(0, each.bound_workers - each.job.bounds.minimum) * each.job.shape.gpus(gpus) for each in jobs),
        0 if share is None else max(0, used - share),
        remaining_gpus(spec.limit, spec.used, gpus),
        len(jobs) - len(waiting) + len(bare),
        len(waiting),
        sum(_missing_gpus(each, gpus) for each in waiting),
        _namespaces(name, [*(each.job.key for each in jobs), *(gang.key for gang in bare)]),
    )


def _held_gpus(jobs: Sequence[JobState], gangs: Sequence[UnmanagedGang], gpus: Gpus) -> int:
    """Return the GPUs of the pods with a node, of jobs and of other gangs."""
    of_jobs = sum(each.bound_workers * each.job.shape.gpus(gpus) + _other_role_gpus(each, gpus) for each in jobs)
    return of_jobs + sum(shape.gpus(gpus) for gang in gangs for _, shape in gang.bound_pods)


def _missing_gpus(job_state: JobState, gpus: Gpus) -> int:
    """Return the GPUs that a waiting job needs for its min beyond what it holds."""
    workers = job_state.job.bounds.minimum - job_state.bound_workers - job_state.finished
    return max(0, workers) * job_state.job.shape.gpus(gpus)


def _other_role_gpus(job_state: JobState, gpus: Gpus) -> int:
    """Return the GPUs that pods of a job's other roles use. gpus: names of GPU resources."""
    return sum(
        pods * shape.gpus(gpus)
        for pods, (shape, _) in zip(job_state.other_pods, job_state.job.other_roles, strict=False)
    )


def _namespaces(queue: str, keys: Iterable[JobKey]) -> tuple[str, ...]:
    own = {queue.removeprefix(NAMESPACE)} if queue.startswith(NAMESPACE) else set()
    return tuple(sorted(own | {key.namespace for key in keys}))


def status_rows(pages: Iterable[Mapping[str, Any]]) -> list[QueueRow]:
    """Return the rows of the queues in the autoscaler's ConfigMaps, sorted by name.

    A ConfigMap whose status cannot be read is left out. pages: the ConfigMaps, one for each queue.
    """
    found = []
    for page in pages:
        data = page.get("data") or {}
        try:
            status = json.loads(data["status"])
            found.append(_status_row(str(data["queue"]), status))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return sorted(found, key=lambda row: row.queue)


def _status_row(name: str, status: Mapping[str, Any]) -> QueueRow:
    """Return the row of the queue `name` from its status in the autoscaler's ConfigMap.

    The status has neither missing GPUs nor namespaces: `wanted_gpus` is None, `namespaces` is (). Raises KeyError,
    TypeError or ValueError if it is malformed.
    """
    gpus, jobs = status.get("gpus") or {}, status["jobs"]
    used, share = int(gpus.get("used", 0)), gpus.get("deserved")
    return QueueRow(
        name,
        bool(status.get("open", True)),
        share,
        gpus.get("limit"),
        used,
        int(status["elasticGpus"]),
        0 if share is None else max(0, used - int(share)),
        gpus.get("free"),
        int(jobs["running"]),
        int(jobs["waiting"]),
        None,
    )


def listing(queue_rows: list[QueueRow], notes: tuple[str, ...] = ()) -> Listing[QueueRow]:
    """Return the queues as a listing for all output formats."""
    return Listing(
        (
            Column("QUEUE", lambda row: row.queue + ("" if row.open else " (closed)")),
            Column("SHARE", lambda row: _amount_text(row.share_gpus), number=True),
            Column("LIMIT", lambda row: _amount_text(row.limit_gpus), number=True),
            Column("USED", lambda row: str(row.used_gpus), number=True),
            Column("LENT", lambda row: str(row.lent_gpus), number=True),
            Column("BORROWED", lambda row: str(row.borrowed_gpus), number=True),
            Column("FREE", lambda row: _amount_text(row.free_gpus), number=True),
            Column("RUNNING", lambda row: str(row.running), number=True),
            Column("WAITING", lambda row: str(row.waiting), number=True),
            Column("WANTED", lambda row: _amount_text(row.wanted_gpus), wide=True, number=True),
            Column("NAMESPACES", lambda row: ",".join(row.namespaces), wide=True),
        ),
        queue_rows,
        lambda row: f"queue/{row.queue}",
        "no queue is described, and no job asks for GPUs",
        notes,
    )


def _amount_text(amount: int | None) -> str:
    return "-" if amount is None else str(amount)
