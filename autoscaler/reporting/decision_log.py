"""Lines of the decision log: one line of JSON for each changed decision, with its reason.

`controller/decision_log_writer.py` decides where the lines are stored.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from turnout.autoscaler.model import Step
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
