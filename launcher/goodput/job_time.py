"""Defines the kinds of a job's wall time, and the record of its totals that moves from coordinator to coordinator.

`ledger.py` decides which kind an interval is. Definition: docs/goodput.md. Source: ml-goodput-measurement
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from turnout.launcher.errors import LauncherError

NS = 1_000_000_000  # nanoseconds of a second
_NS_OF_US = 1_000


class TimeKind(StrEnum):
    """The kind of an interval of a job's wall time: the same word in the log, the metric and the verb."""

    PRODUCTIVE = "productive"  # steps whose result was preserved
    STARTUP = "startup"  # from the first world to the first step
    RENDEZVOUS = "rendezvous"  # before the first world
    RESTORE = "restore"  # processes read a checkpoint
    SAVE = "save"  # processes wait for a save
    DATA_STALL = "data_stall"  # processes wait for data
    HANG = "hang"  # a process makes no progress, as the hang detector found
    WASTED = "wasted"  # steps whose result was lost, or that were repeated
    RECOVERY = "recovery"  # from a fault to the next world
    ELASTIC_SHRINK = "elastic_shrink"  # from the last step before a worker left to the next world
    ELASTIC_GROW = "elastic_grow"  # the same before workers joined
    REINIT = "reinit"  # from a later world to its first step
    OTHER = "other"  # evaluation, the time after the last step, or training that reports no steps


KINDS = tuple(TimeKind)
_PLACES = {kind: place for place, kind in enumerate(KINDS)}

Amount = Annotated[int, Meta(ge=0, le=1 << 62)]
Amounts = Annotated[tuple[Amount, ...], Meta(max_length=64)]
StepNumber = Annotated[int, Meta(ge=-1, le=1 << 60)]
NO_TIME = (0,) * len(KINDS)  # an amount of 0 for each kind


@dataclass(frozen=True, slots=True)
class JobTime:
    """The totals of a job at one moment. The sum of all kinds and of `undecided_ns` is the job's wall time."""

    issuer: Annotated[str, Meta(max_length=253)] = ""  # member id of the coordinator that measured
    origin_ns: Amount = 0  # start of the measurement, in nanoseconds since 1970
    until_ns: Amount = 0  # end of the measured time, in nanoseconds since 1970
    time_ns: Amounts = NO_TIME  # wall time by kind, in the order of KINDS
    gpu_us: Amounts = NO_TIME  # the same in GPU-microseconds: each interval times the GPUs of the world
    undecided_ns: Amount = 0  # steps that are not preserved, and a start whose first step is not done
    gpus: Amount = 0  # of the newest world: its training processes
    mark: StepNumber = -1  # the newest decided step: the time of later steps is in undecided_ns
    step: StepNumber = -1  # the newest step that was done
    # what goes on between two worlds: a later coordinator counts the time until its own begin as this
    pause: TimeKind = TimeKind.RECOVERY
    steps_reported: bool = False  # some process has reported a step

    @property
    def wall_ns(self) -> int:
        """Return the measured wall time in nanoseconds."""
        return sum(self.time_ns) + self.undecided_ns

    def seconds(self) -> dict[str, float]:
        """Return the wall time in seconds by kind."""
        return {kind.value: amount / NS for kind, amount in zip(KINDS, self.time_ns, strict=False)}

    def gpu_seconds(self) -> dict[str, float]:
        """Return the GPU-seconds by kind."""
        return {kind.value: amount / 1e6 for kind, amount in zip(KINDS, self.gpu_us, strict=False)}

    def log_fields(self) -> dict[str, object]:
        """Return the totals as fields of a line of the log.

        These are the seconds in all, those that are undecided, and seconds and GPU-seconds of each kind that occurred;
        the number of GPUs, whether steps are reported, and the time up to which all this counts, since 1970.
        """
        kinds_s = {f"{kind}_s": round(amount_s, 6) for kind, amount_s in self.seconds().items() if amount_s}
        gpus_s = {f"{kind}_gpu_s": round(amount_s, 6) for kind, amount_s in self.gpu_seconds().items() if amount_s}
        return {
            "wall_s": round(self.wall_ns / NS, 6),
            "undecided_s": round(self.undecided_ns / NS, 6),
            **kinds_s,
            **gpus_s,
            "gpus": self.gpus,
            "steps": "reported" if self.steps_reported else "no steps are reported",
            "until_s": round(self.until_ns / NS, 3),
        }


MAX_TOTALS = 2_048  # characters of totals as text
MAX_SKEW_NS = 86_400 * NS  # largest difference of two hosts' clocks


class BadTotals(LauncherError):
    """Stored totals that cannot be those of a job. Ignore them: the totals start from 0."""


_totals = msgspec.json.Decoder(JobTime)


def write_totals(record: JobTime) -> str:
    """Return totals as text, at most MAX_TOTALS characters, for `read_totals`."""
    return msgspec.json.encode(record).decode()


def read_totals(text: str, now_ns: int) -> JobTime | None:
    """Decode what `write_totals` has written, None for "". now_ns: since 1970.

    Raises BadTotals for any other text, and for impossible times, since whoever may write the arbiter's record can
    write any text. Totals of a version that knows fewer kinds of time are accepted.
    """
    if not text:
        return None
    if len(text) > MAX_TOTALS:
        raise BadTotals(f"{len(text)} characters: at most {MAX_TOTALS} are totals")
    try:
        record = _totals.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadTotals(f"not totals: {error}") from error
    if not record.origin_ns <= record.until_ns <= now_ns + MAX_SKEW_NS:
        raise BadTotals("the measured time begins after its end, or ends in the future")
    if record.wall_ns > record.until_ns - record.origin_ns + MAX_SKEW_NS:
        raise BadTotals("the kinds are longer than the measured time")
    if not len(record.time_ns) == len(record.gpu_us) <= len(KINDS):
        raise BadTotals(f"{len(record.time_ns)} kinds of time: {len(KINDS)} are known")
    return record


@dataclass(frozen=True, slots=True)
class Totals:
    """Time by kind. Amounts are only added, so no total decreases."""

    time_ns: tuple[int, ...] = NO_TIME  # in the order of KINDS
    gpu_us: tuple[int, ...] = NO_TIME  # GPU-microseconds in the order of KINDS

    def add(self, kind: TimeKind, amount_ns: int, gpus: int) -> Totals:
        """Return the totals with `amount_ns` nanoseconds of this kind added, and their GPU time for `gpus` GPUs.

        Returns the same totals for 0 ns or less.
        """
        if amount_ns <= 0:
            return self
        place, gpu_us = _PLACES[kind], amount_ns * gpus // _NS_OF_US
        return Totals(_plus(self.time_ns, place, amount_ns), _plus(self.gpu_us, place, gpu_us))

    def plus(self, time_ns: Sequence[int], gpu_us: Sequence[int]) -> Totals:
        """Add other totals, kind by kind."""
        return Totals(_sum(self.time_ns, time_ns), _sum(self.gpu_us, gpu_us))


def _plus(amounts: tuple[int, ...], place: int, amount: int) -> tuple[int, ...]:
    """Return the amounts with `amount` added at one place."""
    return (*amounts[:place], amounts[place] + amount, *amounts[place + 1 :])


def _sum(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Add amounts by kind. other: of a version that may know fewer kinds; those count as 0."""
    missing = len(KINDS) - len(other)
    return tuple(map(sum, zip(one, (*other, *(0,) * missing), strict=False)))


@dataclass(frozen=True, slots=True)
class RankZero:
    """The progress of the process of rank 0 since it began, as its agent reads it."""

    round: Amount = 0  # the round of that process
    step: StepNumber = -1  # the newest step that it has done, -1 for none
    restore_ns: Amount = 0  # reading a checkpoint
    save_ns: Amount = 0  # waiting for a save
    data_ns: Amount = 0  # waiting for data
    other_ns: Amount = 0  # in any other phase, as an evaluation
    since_step_ns: Amount = 0  # since the newest step was done
    first: StepNumber = -1  # the first step that it has done, -1 for none
    since_first_ns: Amount = 0  # since the first step was done

    def age_by(self, passed_s: float) -> RankZero:
        """Return this report with the time since it was read (`passed_s` seconds) added to the times since the first
        and the newest step. Unchanged if no step was done yet.
        """
        if self.first < 0:
            return self
        passed_ns = max(round(passed_s * NS), 0)
        since_step_ns, since_first_ns = self.since_step_ns + passed_ns, self.since_first_ns + passed_ns
        return replace(self, since_step_ns=since_step_ns, since_first_ns=since_first_ns)

    def by_kind(self) -> Mapping[TimeKind, int]:
        """Return the time that rank 0 has spent in phases of this round, by kind, in nanoseconds."""
        return {
            TimeKind.RESTORE: self.restore_ns,
            TimeKind.SAVE: self.save_ns,
            TimeKind.DATA_STALL: self.data_ns,
            TimeKind.OTHER: self.other_ns,
        }
