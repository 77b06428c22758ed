"""The one way in which the lender changes anything: a patch of a job's size, valid for one version of it.

Dry run gates it: then a plan is only told. Who leads is asked before each write, so that a leader that was paused
and wakes writes nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from autoscaler.model import Step
from jobs.model import Change, JobKey, JobKind
from kube import labels
from kube.errors import CallError, Conflict, NotFound
from kube.times import rfc3339

log = logging.getLogger("turnout.autoscaler")

FIELD_MANAGER = "turnout-autoscaler"
Object = Mapping[str, Any]


class Jobs(Protocol):
    """What is asked of a Client."""

    async def patch(self, path: str, body: Any, content_type: str, field_manager: str) -> bytes:
        """The object as patched. Raises Conflict when its version is not the body's."""


class Hands:
    """Carries out plans. told: called with every step that changes a job, and the word for what became of it."""

    def __init__(
        self,
        jobs: Jobs,
        kinds: Mapping[str, JobKind],
        may_write: Callable[[], bool],
        told: Callable[[Step, str], None],
        dry_run: bool = True,
    ) -> None:
        self._jobs, self._kinds, self._may_write, self._told, self.dry_run = jobs, kinds, may_write, told, dry_run
        self._sent: dict[JobKey, str] = {}  # the versions that were written over and may still be shown

    async def carry_out(self, steps: Iterable[Step], raw: Mapping[JobKey, Object], now_s: float) -> int:
        """Write what changes, shrinking first; how many jobs were written."""
        written = 0
        for step in sorted((step for step in steps if step.changes), key=lambda step: step.workers > step.was):
            if self.dry_run:
                self._told(step, "DryRun")
            elif not self._may_write():
                self._told(step, "NotLeading")
            elif step.key in raw and self._sent.get(step.key) != raw[step.key]["metadata"]["resourceVersion"]:
                written += await self._write(step, raw[step.key], now_s)
        return written

    async def _write(self, step: Step, raw: Object, now_s: float) -> bool:
        change = stamped(self._kinds[step.key.kind].resize(raw, step.workers), now_s)
        try:
            await self._jobs.patch(change.path, change.body, change.form, FIELD_MANAGER)
        except (Conflict, NotFound):
            self._told(step, "Overtaken")  # somebody changed it under our hands: the next look sees how
            return False
        except CallError as error:
            log.warning("resize_failed", extra={"job": str(step.key), "why": str(error)})
            self._told(step, "Refused")
            return False
        self._sent[step.key] = raw["metadata"]["resourceVersion"]
        self._told(step, "Written")
        return True


def stamped(change: Change, now_s: float) -> Change:
    """A change that says when it was made, by which a cooldown is known after a restart of ours."""
    body = json.loads(json.dumps(change.body))
    body["metadata"].setdefault("annotations", {})[labels.RESIZED_AT] = rfc3339(now_s)
    return Change(change.method, change.path, body, change.form)
