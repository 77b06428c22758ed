"""The data of decisions for other programs: one ConfigMap for each queue, and annotations of pods.

The ConfigMap has the last reasons, for kubectl. The annotations tell which of a job's pods may be evicted; they are
optional. Volcano evicts pods of the lowest task priority first, and only preemptable pods. cluster-autoscaler drains no
node with pods that are not safe to evict. Source: VE-32, VE-33; docs/facts/schedulers.md 3, docs/facts/autoscaling.md
4.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from turnout.autoscaler.model import Gpus, JobState, Observation, Step, bound, free, largest, total
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import Queue, bounds_several
from turnout.kube import labels

PREFIX = "turnout-queue-"
LABEL = "turnout.dev/queue-status"
MOST_JOBS = 100  # told of each sort; the rest is counted


def name_of(queue: str) -> str:
    """Return the ConfigMap's name: the queue's, as far as names allow, with a digest if it was changed."""
    plain = re.sub(r"[^a-z0-9-]+", "-", queue.lower()).strip("-")[:180]
    if plain == queue:
        return PREFIX + plain
    digest = hashlib.sha256(queue.encode()).hexdigest()[:8]
    return f"{PREFIX}{plain}-{digest}" if plain else PREFIX + digest


def pages(observation: Observation, steps: Iterable[Step], gpus: Gpus, dry_run: bool) -> dict[str, dict[str, str]]:
    """Return the data of each queue's ConfigMap, by queue. Equal input gives equal data."""
    of: dict[str, list[JobState]] = {name: [] for name in observation.queues if not bounds_several(name)}
    for each in observation.jobs:
        of.setdefault(each.job.queue, []).append(each)
    decided = {step.key: step for step in steps}
    return {
        name: {
            "queue": name,
            "status": json.dumps(_page(observation.queues.get(name), jobs, decided, gpus, dry_run), indent=1),
        }
        for name, jobs in of.items()
    }


def _page(
    queue: Queue | None, jobs: list[JobState], decided: Mapping[JobKey, Step], gpus: Gpus, dry_run: bool
) -> dict[str, Any]:
    """Return the status of one queue as it stands in its ConfigMap. decided: the newest step of each job."""
    waiting = [each for each in jobs if each.is_waiting]
    lent = sorted((each for each in jobs if _elastic(each)), key=lambda each: (-_elastic(each), each.job.key))
    page: dict[str, Any] = {"mode": "observe" if dry_run else "act"}
    if queue is not None:
        page |= {"open": queue.open, "gpus": _gpus(queue, gpus)}
    page["jobs"] = {"running": len(jobs) - len(waiting), "waiting": len(waiting)}
    page["elasticWorkers"] = sum(_elastic(each) for each in lent)
    page["elasticGpus"] = sum(_elastic(each) * each.job.shape.gpus(gpus) for each in lent)
    for title, some in (("waiting", waiting), ("lent", lent)):
        page[title] = [_line(each, decided) for each in some[:MOST_JOBS]]
        if len(some) > MOST_JOBS:
            page[f"{title}LeftOut"] = len(some) - MOST_JOBS
    return page


def _gpus(queue: Queue, gpus: Gpus) -> dict[str, int]:
    """Return the GPUs of a queue. Unspecified amounts are left out."""
    amounts = {
        "used": total(queue.used, gpus),
        "limit": bound(queue.limit, gpus),
        "deserved": bound(queue.deserved, gpus),
        "headroom": largest(queue.headroom, gpus) if any(each in queue.headroom for each in gpus) else None,
        "free": free(queue.limit, queue.used, gpus),
    }
    return {what: amount for what, amount in amounts.items() if amount is not None}


def _line(state: JobState, decided: Mapping[JobKey, Step]) -> dict[str, Any]:
    """Return the status entry of a job: size, bounds, and what was decided."""
    job, step = state.job, decided.get(state.job.key)
    line: dict[str, Any] = {"job": str(job.key), "has": state.bound_workers, "min": job.bounds.least, "max": job.most}
    if step is not None:
        line["reason"] = step.reason.value
        if step.changes:
            line["becomes"] = step.target
    return line


def _elastic(state: JobState) -> int:
    return max(0, state.bound_workers - state.job.bounds.least)


FIRST, MIN, ELASTIC = "100", "50", "0"  # priorities of rank 0 and other roles, of the rest of the min, of the elastic


@dataclass(frozen=True, slots=True)
class Mark:
    """Annotations that one pod lacks."""

    namespace: str
    name: str
    notes: tuple[tuple[str, str], ...]


def worker_annotations(index: int, least: int) -> dict[str, str]:
    """Return the annotations of a worker. least: the min of its job."""
    elastic = "true" if index >= least else "false"
    order = FIRST if index == 0 else MIN if index < least else ELASTIC
    return {
        labels.VOLCANO_TASK_PRIORITY: order,
        labels.VOLCANO_PREEMPTABLE: elastic,
        labels.SAFE_TO_EVICT: elastic,
    }


class PodMarks:
    """The jobs whose pods have their annotations, so that each round checks changed jobs only."""

    def __init__(self) -> None:
        self._done: dict[JobKey, JobState] = {}

    def missing(
        self, jobs: Iterable[JobState], notes: Callable[[JobKey], Mapping[str, Mapping[str, str]]]
    ) -> Iterator[Mark]:
        """Yield the annotations that pods lack. notes: returns the annotations of a job's pods, by name."""
        before, self._done = self._done, {}
        for each in jobs:
            key = each.job.key
            lacking = [] if before.get(key) is each else list(marks_of(each, notes(key)))
            if not lacking:
                self._done[key] = each
            yield from lacking


def marks_of(state: JobState, notes: Mapping[str, Mapping[str, str]]) -> Iterator[Mark]:
    """Yield the annotations that an elastic job's pods lack. notes: of the pods, by name."""
    if not state.job.elastic:
        return
    for at, worker in enumerate(state.living):
        has = notes.get(worker.name)
        if has is None:
            continue
        lacks = {
            key: value for key, value in worker_annotations(at, state.job.bounds.least).items() if has.get(key) != value
        }
        if lacks:
            yield Mark(state.job.key.namespace, worker.name, tuple(sorted(lacks.items())))
