"""Decisions as log lines and Events, each reported once for as long as it stays the same; and usage as log lines.

`controller/decision_log_writer.py` decides where the lines of the decision log are stored. `usage.py` works out what is
in the lines about usage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from turnout.autoscaler.model import Step
from turnout.autoscaler.reporting.usage import UsageSums
from turnout.jobs.model import JobKey
from turnout.kube.times import rfc3339, unix_s


class BadLine(Exception):
    """A line that cannot be read. Skip the line; the other lines are complete without it."""


class DecisionLine(msgspec.Struct, omit_defaults=True, frozen=True):
    """One decision on one job."""

    at: str  # time of the decision, RFC 3339
    job: str  # KIND/NAMESPACE/NAME
    reason: str  # word of docs/reference/reasons.md
    workers_before: int
    workers: int  # after the decision
    detail: str = ""  # the figures of the reason
    for_job: str = ""  # KIND/NAMESPACE/NAME of the job that gets the room


class JobUsage(msgspec.Struct, array_like=True, frozen=True):
    """The use of one job in one period, as an array: there may be thousands in a line."""

    job: str  # KIND/NAMESPACE/NAME; "" for pods that belong to no job
    owner: str  # the value of the configured label; "" without one
    gpu_s: float  # GPU-seconds of its pods, >= 0
    elastic_gpu_s: float = 0.0  # GPU-seconds of workers above its min, part of gpu_s


class UsageLine(msgspec.Struct, tag_field="line", tag="usage", omit_defaults=True, frozen=True):
    """The use of the GPUs of one queue in one period of at most an hour."""

    at: str  # end of the period, RFC 3339
    seconds: float  # measured time of the period, >= 0
    queue: str
    jobs: tuple[JobUsage, ...] = ()  # each job, or all pods without a job, that held its GPUs
    lent_gpu_s: dict[str, float] = {}  # GPU-seconds of its share that others used, by the queue that borrowed them
    returned_gpus: dict[str, float] = {}  # GPUs that it got back, by the queue that had borrowed them
    idle_gpu_s: dict[str, float] = {}  # GPU-seconds of its share that nobody used, by reason
    won_gpu_s: float = 0.0  # GPU-seconds at the min that its elastic workers were worth
    cost_gpu_s: float = 0.0  # GPU-seconds that resizes are assumed to have cost its jobs


_DECODER = msgspec.json.Decoder(DecisionLine)
_USAGE_DECODER = msgspec.json.Decoder(UsageLine)
_Line = TypeVar("_Line", DecisionLine, UsageLine)
_MAX_AMOUNT = 1e15  # of a number in a line
_USAGE = b'{"line":"usage"'  # how each line about usage begins


def encode_decisions(decisions: Iterable[Step], now_s: float) -> bytes:
    """Return the lines of decisions that were made at one time, each with a line end. now_s: that time, since 1970."""
    at = rfc3339(now_s)
    return msgspec.json.Encoder().encode_lines(_decision_line(step, at) for step in decisions)


def read_line(line: bytes) -> DecisionLine:
    """Return the decision of a line of the decision log. Raises BadLine if it cannot be read."""
    return _decode_line(_DECODER, line)


def is_usage(line: bytes) -> bool:
    """Return True if a line is about usage, not about a decision."""
    return line.startswith(_USAGE)


def read_usage_line(line: bytes) -> UsageLine:
    """Return the usage of a line of the decision log.

    Raises BadLine if it is no usage line, or if a number is below 0 or not below _MAX_AMOUNT.
    """
    usage = _decode_line(_USAGE_DECODER, line)
    amounts = [usage.seconds, usage.won_gpu_s, usage.cost_gpu_s]
    amounts += [number for each in usage.jobs for number in (each.gpu_s, each.elastic_gpu_s)]
    amounts += [
        number for each in (usage.lent_gpu_s, usage.returned_gpus, usage.idle_gpu_s) for number in each.values()
    ]
    if not all(0 <= number < _MAX_AMOUNT for number in amounts):
        raise BadLine("a number of the line is below 0 or too large")
    return usage


def _decode_line(decoder: msgspec.json.Decoder[_Line], line: bytes) -> _Line:
    """Return a decoded line. Raises BadLine if it cannot be decoded, or its time cannot be read."""
    try:
        decoded = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"the line cannot be read: {error}") from error
    if unix_s(decoded.at) is None:
        raise BadLine(f"{decoded.at!r:.40} is no time")
    return decoded


def usage_lines(sums: UsageSums, now_s: float) -> list[UsageLine]:
    """Return one line for each queue that used, lent, got back or left idle any GPUs, or had costs, sorted by queue.

    sums: of the period. now_s: end of the period, in seconds since 1970.
    """
    by_queue: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(dict))
    for holder, gpu_s in sums.held_gpu_s.items():
        use = JobUsage(
            holder.job, holder.owner_label, _round_amount(gpu_s), _round_amount(sums.elastic.get(holder, 0.0))
        )
        by_queue[holder.queue]["jobs"][holder] = use
    for name, pairs in (("lent_gpu_s", sums.lent), ("returned_gpus", sums.returned)):
        for (source, borrower), amount in pairs.items():
            if amount:
                by_queue[source][name][borrower] = _round_amount(amount)
    for (queue, reason), gpu_s in sums.idle.items():
        if gpu_s:
            by_queue[queue]["idle_gpu_s"][reason] = _round_amount(gpu_s)
    for name, amounts in (("won_gpu_s", sums.gained), ("cost_gpu_s", sums.cost)):
        for queue, amount in amounts.items():
            by_queue[queue][name] = _round_amount(amount)
    at = rfc3339(now_s)
    return [
        UsageLine(at, _round_amount(sums.seconds), queue, tuple(parts.pop("jobs", {}).values()), **parts)
        for queue, parts in sorted(by_queue.items())
    ]


def encode_usage(lines: Iterable[UsageLine]) -> bytes:
    """Return lines about usage as bytes, each with a line end."""
    return msgspec.json.Encoder().encode_lines(lines)


def _round_amount(amount: float) -> float:
    """Return an amount with three decimals, so that lines stay short."""
    return round(amount, 3)


def _decision_line(step: Step, at: str) -> DecisionLine:
    """Return the line of one decision. at: RFC 3339."""
    beneficiary = "" if step.beneficiary is None else str(step.beneficiary)
    return DecisionLine(at, str(step.key), step.reason.value, step.current, step.target, step.detail, beneficiary)


class LastDecisions:
    """The last decision on each job, to find the decisions that are new."""

    def __init__(self) -> None:
        self._last: dict[JobKey, Step] = {}

    def changed_steps(self, steps: Iterable[Step]) -> list[Step]:
        """Return the steps that differ from the last ones in reason or size, and remember all steps for the next call.

        steps: of all jobs; a job without a step is forgotten. A step that differs only in its detail is not returned.
        """
        before, self._last = self._last, {step.key: step for step in steps}
        return [step for key, step in self._last.items() if not _is_same(before.get(key), step)]


def _is_same(before: Step | None, step: Step) -> bool:
    """Return True if two steps have the same reason and size. before: None for a job without an earlier step."""
    return before is step or (before is not None and before.reason is step.reason and before.target == step.target)


def log_record(step: Step) -> dict[str, Any]:
    """Return the fields of a decision for the process log. `detail` and `for_job` are absent if they are empty."""
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


def event_text(step: Step) -> str:
    """Return a decision as the text of an Event: the change of size or the present size, and the reason."""
    reason = step.detail or step.reason.value
    if step.changes:
        return f"{step.current} to {step.target} workers: {reason}"
    return f"stays at {step.current} workers: {reason}" if step.current else f"is left as it is: {reason}"
