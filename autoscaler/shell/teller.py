"""Tells decisions: in the log, and as Events on the jobs that they are about."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from autoscaler.explain import as_record, sentence
from autoscaler.model import Reason, Step
from autoscaler.shell.metrics import Metrics
from jobs.model import JobKey, JobKind
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
_WARNINGS = frozenset([Reason.OVER_QUOTA, Reason.REFUSED])


class Teller:
    """raw: the objects, by job, for whom an Event is about. kinds: by name, for their API versions."""

    def __init__(
        self,
        recorder: EventRecorder,
        raw: Mapping[JobKey, Mapping[str, Any]],
        kinds: Mapping[str, JobKind],
        metrics: Metrics,
    ) -> None:
        self._recorder, self._raw, self._kinds, self._metrics = recorder, raw, kinds, metrics

    def decided(self, step: Step) -> None:
        """A decision that is news."""
        log.info("decided", extra=as_record(step))
        if step.reason in _TOLD:
            self._emit(step, "Warning" if step.reason in _WARNINGS else "Normal")

    def became(self, step: Step, word: str) -> None:
        """What became of a change: Written, DryRun, NotLeading, Overtaken or Refused."""
        self._metrics.became(step, word)
        log.info("resized" if word == "Written" else "not_resized", extra={**as_record(step), "outcome": word})
        if word == "Written":
            self._emit(step, "Normal")

    def _emit(self, step: Step, type_: str) -> None:
        raw = self._raw.get(step.key)
        if raw is None:
            return
        version = self._kinds[step.key.kind].path.removeprefix("/apis/").rpartition("/")[0]
        kind = "Job" if step.key.kind == "VolcanoJob" else step.key.kind
        ref = ObjectRef(kind, version, step.key.namespace, step.key.name, raw["metadata"].get("uid", ""))
        self._recorder.emit(ref, type_, step.reason.value, sentence(step), time.time())
