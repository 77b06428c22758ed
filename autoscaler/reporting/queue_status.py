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

from turnout.autoscaler.model import (
    Gpus,
    JobState,
    Observation,
    Step,
    gpu_limit,
    largest_gpu_amount,
    remaining_gpus,
    total_gpus,
)
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import QueueShare, bounds_several
from turnout.kube import labels

PREFIX = "turnout-queue-"  # of the names of the ConfigMaps
LABEL = "turnout.dev/queue-status"  # of the ConfigMaps
MAX_JOBS = 100  # entries of each list of jobs in a ConfigMap; the rest is counted


def configmap_name(queue: str) -> str:
    """Return the name of a queue's ConfigMap.

    It is PREFIX and the queue's name. If characters had to be changed or cut off, a digest of the name follows.
    """
    plain = re.sub(r"[^a-z0-9-]+", "-", queue.lower()).strip("-")[:180]
    if plain == queue:
        return PREFIX + plain
    digest = hashlib.sha256(queue.encode()).hexdigest()[:8]
    return f"{PREFIX}{plain}-{digest}" if plain else PREFIX + digest


def queue_configmaps(
    observation: Observation, steps: Iterable[Step], gpus: Gpus, dry_run: bool
) -> dict[str, dict[str, str]]:
    """Return queue -> data of its ConfigMap, for each queue that an object describes or a job names.

    Equal input gives equal data. Quotas that bound several queues are left out. steps: the last decision. gpus: the
    resources that count as a GPU. dry_run: True if sizes are only reported.
    """
    of: dict[str, list[JobState]] = {name: [] for name in observation.queues if not bounds_several(name)}
    for each in observation.jobs:
        of.setdefault(each.job.queue, []).append(each)
    decided = {step.key: step for step in steps}
    return {
        name: {
            "queue": name,
            "status": json.dumps(_queue_entry(observation.queues.get(name), jobs, decided, gpus, dry_run), indent=1),
        }
        for name, jobs in of.items()
    }


def _queue_entry(
    queue: QueueShare | None, jobs: list[JobState], decided: Mapping[JobKey, Step], gpus: Gpus, dry_run: bool
) -> dict[str, Any]:
    """Return the status of one queue for its ConfigMap; at most MAX_JOBS jobs in each list, the rest is counted.

    queue: None if no object describes it. jobs: of the queue. decided: job -> its last step. dry_run: True if nothing
    is written.
    """
    waiting = [each for each in jobs if each.is_waiting]
    lent = sorted(
        (each for each in jobs if _elastic_workers(each)), key=lambda each: (-_elastic_workers(each), each.job.key)
    )
    entry: dict[str, Any] = {"mode": "observe" if dry_run else "act"}
    if queue is not None:
        entry |= {"open": queue.open, "gpus": _gpus(queue, gpus)}
    entry["jobs"] = {"running": len(jobs) - len(waiting), "waiting": len(waiting)}
    entry["elasticWorkers"] = sum(_elastic_workers(each) for each in lent)
    entry["elasticGpus"] = sum(_elastic_workers(each) * each.job.shape.gpus(gpus) for each in lent)
    for title, listed_jobs in (("waiting", waiting), ("lent", lent)):
        entry[title] = [_job_entry(each, decided) for each in listed_jobs[:MAX_JOBS]]
        if len(listed_jobs) > MAX_JOBS:
            entry[f"{title}LeftOut"] = len(listed_jobs) - MAX_JOBS
    return entry


def _gpus(queue: QueueShare, gpus: Gpus) -> dict[str, int]:
    """Return type of amount (used, limit, deserved, headroom, free) -> GPUs of a queue.

    A limit, deserved share or headroom that the queue does not state is left out, and so is `free` without a limit.
    """
    amounts = {
        "used": total_gpus(queue.used, gpus),
        "limit": gpu_limit(queue.limit, gpus),
        "deserved": gpu_limit(queue.deserved, gpus),
        "headroom": largest_gpu_amount(queue.headroom, gpus) if any(each in queue.headroom for each in gpus) else None,
        "free": remaining_gpus(queue.limit, queue.used, gpus),
    }
    return {type_: amount for type_, amount in amounts.items() if amount is not None}


def _job_entry(state: JobState, decided: Mapping[JobKey, Step]) -> dict[str, Any]:
    """Return the entry of a job in the status of its queue: its workers with a node, its bounds and its last reason.

    A job whose size changes has its new size, too; a job without a step in `decided` has no reason.
    """
    job, step = state.job, decided.get(state.job.key)
    entry: dict[str, Any] = {
        "job": str(job.key),
        "has": state.bound_workers,
        "min": job.bounds.minimum,
        "max": job.maximum,
    }
    if step is not None:
        entry["reason"] = step.reason.value
        if step.changes:
            entry["becomes"] = step.target
    return entry


def _elastic_workers(state: JobState) -> int:
    """Return how many workers of a job have a node beyond its min."""
    return max(0, state.bound_workers - state.job.bounds.minimum)


# Volcano task priorities of the worker with index 0, of the other workers of the min, and of elastic workers.
FIRST, MIN, ELASTIC = "100", "50", "0"


@dataclass(frozen=True, slots=True)
class PodAnnotations:
    """Annotations that one pod lacks, or has with another value."""

    namespace: str  # of the pod
    name: str  # of the pod
    annotations: tuple[tuple[str, str], ...]  # (annotation, value), by annotation


def worker_annotations(index: int, minimum: int) -> dict[str, str]:
    """Return annotation -> value for a worker: its eviction order, and whether it may be evicted (above the min).

    index: of the worker, from 0. minimum: the min of its job, in workers.
    """
    elastic = "true" if index >= minimum else "false"
    order = FIRST if index == 0 else MIN if index < minimum else ELASTIC
    return {
        labels.VOLCANO_TASK_PRIORITY: order,
        labels.VOLCANO_PREEMPTABLE: elastic,
        labels.SAFE_TO_EVICT: elastic,
    }


class AnnotatedJobs:
    """The jobs whose pods all have their annotations. They are not checked again until they change."""

    def __init__(self) -> None:
        self._done: dict[JobKey, JobState] = {}

    def missing_annotations(
        self, jobs: Iterable[JobState], annotations: Callable[[JobKey], Mapping[str, Mapping[str, str]]]
    ) -> Iterator[PodAnnotations]:
        """Yield the annotations that pods of these jobs lack, or have with another value.

        A job whose state is the same object as in the last call, and that lacked nothing, is skipped. A caller that
        stops early only causes the remaining jobs to be checked again at the next call. annotations: returns pod name
        -> annotations of a job's pods.
        """
        before, self._done = self._done, {}
        for each in jobs:
            key = each.job.key
            lacking = [] if before.get(key) is each else list(missing_annotations_of(each, annotations(key)))
            if not lacking:
                self._done[key] = each
            yield from lacking


def missing_annotations_of(state: JobState, annotations: Mapping[str, Mapping[str, str]]) -> Iterator[PodAnnotations]:
    """Yield, for each living worker of an elastic job, those of its `worker_annotations` that are missing or have
    another value.

    Nothing for a worker that lacks none, and for a job that is not elastic. annotations: pod name -> annotations of the
    job's pods. A pod that is missing there is skipped.
    """
    if not state.job.elastic:
        return
    for index, worker in enumerate(state.living):
        present = annotations.get(worker.name)
        if present is None:
            continue
        missing = {
            key: value
            for key, value in worker_annotations(index, state.job.bounds.minimum).items()
            if present.get(key) != value
        }
        if missing:
            yield PodAnnotations(state.job.key.namespace, worker.name, tuple(sorted(missing.items())))
