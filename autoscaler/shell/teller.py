"""Tells decisions: in the log, and as Events on the jobs that they are about."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from itertools import islice

from autoscaler.explain import as_record, sentence
from autoscaler.model import Reason, Step
from autoscaler.shell.metrics import Metrics
from jobs.model import JobKey
from kube.shell.events import EventRecorder, ObjectRef

log = logging.getLogger("turnout.autoscaler")

# What a job's owner wants to know of without asking; the rest stands in the log.
_TOLD = frozenset(
    [
        Reason.WAITS_FOR_ROOM,
        Reason.NEEDS_MORE,
        Reason.OVER_QUOTA,
        Reason.REFUSED,
        Reason.QUEUE_CLOSED,
    ]
)
_REMEMBERED = 20_000  # what became of jobs' last changes
_PODS_TOLD = 16  # of one shrink: a job has one Event for all
_WARNINGS = frozenset([Reason.OVER_QUOTA, Reason.REFUSED])


class Teller:
    """about: what an Event on a job is about, None for one that is gone. leaving: the pods that a step tells to go."""

    def __init__(
        self,
        recorder: EventRecorder,
        about: Callable[[JobKey], ObjectRef | None],
        leaving: Callable[[Step], Iterable[ObjectRef]],
        metrics: Metrics,
    ) -> None:
        self._recorder, self._about, self._leaving, self._metrics = recorder, about, leaving, metrics
        self._became: dict[JobKey, tuple[Step, str]] = {}

    def decided(self, step: Step) -> None:
        """A decision that is news."""
        log.info("decided", extra=as_record(step))
        if step.reason in _TOLD:
            self._emit(step, "Warning" if step.reason in _WARNINGS else "Normal")

    def became(self, step: Step, word: str) -> None:
        """What became of a change: Written, DryRun, NotLeading, Overtaken or Refused. The same is told once."""
        self._metrics.became(step, word)
        if self._became.get(step.key) == (step, word):
            return
        self._became[step.key] = step, word
        while len(self._became) > _REMEMBERED:
            del self._became[next(iter(self._became))]
        log.info("resized" if word == "Written" else "not_resized", extra={**as_record(step), "outcome": word})
        if word != "Written":
            return
        self._emit(step, "Normal")
        if step.workers < step.was:
            for pod in islice(self._leaving(step), _PODS_TOLD):
                self._recorder.emit(pod, "Normal", step.reason.value, f"leaves: {sentence(step)}", time.time())

    def _emit(self, step: Step, type_: str) -> None:
        if (ref := self._about(step.key)) is not None:
            self._recorder.emit(ref, type_, step.reason.value, sentence(step), time.time())
