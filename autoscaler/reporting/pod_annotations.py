"""Works out annotations that tell other programs which of a job's pods may be evicted. They are optional.

Volcano evicts pods of the lowest task priority first, and only preemptable pods. cluster-autoscaler drains no node with
pods that are not safe to evict. Source: VE-32, VE-33; docs/facts/schedulers.md 3, docs/facts/autoscaling.md 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from turnout.autoscaler.model import JobState
from turnout.jobs.model import JobKey
from turnout.kube import labels

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
