"""Removes duplicate decisions: a decision is reported once for as long as it stays the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turnout.autoscaler.model import Step
from turnout.jobs.model import JobKey


class Decisions:
    """The last decision on each job."""

    def __init__(self) -> None:
        self._last: dict[JobKey, Step] = {}

    def new(self, steps: Iterable[Step]) -> list[Step]:
        """Return the steps that differ from the last ones in reason or size. Deleted jobs are forgotten."""
        before, self._last = self._last, {step.key: step for step in steps}
        return [step for key, step in self._last.items() if not _same(before.get(key), step)]


def _same(one: Step | None, other: Step) -> bool:
    return one is other or (one is not None and one.reason is other.reason and one.target == other.target)


def as_record(step: Step) -> dict[str, Any]:
    """Return a decision as a log line has it."""
    record: dict[str, Any] = {
        "job": str(step.key),
        "workers_before": step.current,
        "workers": step.target,
        "reason": step.reason.value,
    }
    if step.detail:
        record["detail"] = step.detail
    if step.beneficiary is not None:
        record["for_job"] = str(step.beneficiary)
    return record


def sentence(step: Step) -> str:
    """Return a decision as an Event has it."""
    reason = step.detail or step.reason.value
    if step.changes:
        return f"{step.current} to {step.target} workers: {reason}"
    return f"stays at {step.current} workers: {reason}" if step.current else f"is left as it is: {reason}"
