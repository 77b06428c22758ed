"""Decisions as log lines and Events, each reported once for as long as it stays the same.

`controller/decision_log_writer.py` decides where the lines of the decision log are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from turnout.autoscaler.model import Step
from turnout.jobs.model import JobKey
from turnout.kube.times import rfc3339, unix_s


class BadLine(Exception):
    """A line that is no decision. Skip the line; the other lines are complete without it."""


class DecisionLine(msgspec.Struct, omit_defaults=True, frozen=True):
    """One decision on one job."""

    at: str  # time of the decision, RFC 3339
    job: str  # KIND/NAMESPACE/NAME
    reason: str  # word of docs/reference/reasons.md
    workers_before: int
    workers: int  # that the job is to have
    detail: str = ""  # the figures of the reason
    for_job: str = ""  # KIND/NAMESPACE/NAME of the job that gets the room


_DECODER = msgspec.json.Decoder(DecisionLine)


def encode(decisions: Iterable[Step], now_s: float) -> bytes:
    """Return the lines of decisions that were made at one time. now_s: seconds since 1970."""
    at = rfc3339(now_s)
    return msgspec.json.Encoder().encode_lines(_line(step, at) for step in decisions)


def read_line(line: bytes) -> DecisionLine:
    """Read one line. Raises BadLine."""
    try:
        decision = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"the line cannot be read: {error}") from error
    if unix_s(decision.at) is None:
        raise BadLine(f"{decision.at!r:.40} is no time")
    return decision


def _line(step: Step, at: str) -> DecisionLine:
    beneficiary = "" if step.beneficiary is None else str(step.beneficiary)
    return DecisionLine(at, str(step.key), step.reason.value, step.current, step.target, step.detail, beneficiary)


class Decisions:
    """The last decision on each job."""

    def __init__(self) -> None:
        self._last: dict[JobKey, Step] = {}

    def new(self, steps: Iterable[Step]) -> list[Step]:
        """Return the steps that differ from the last ones in reason or size. Deleted jobs are forgotten."""
        before, self._last = self._last, {step.key: step for step in steps}
        return [step for key, step in self._last.items() if not _is_same(before.get(key), step)]


def _is_same(one: Step | None, other: Step) -> bool:
    return one is other or (one is not None and one.reason is other.reason and one.target == other.target)


def log_record(step: Step) -> dict[str, Any]:
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
