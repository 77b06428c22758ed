"""Acts on a job that trains, one after the other, and how the job recovered, read from what its processes have written.

Each act begins with a whole world, in the middle of two checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from hack.chaos.history import Record, rounds_of
from hack.chaos.testbed.manifests import MAX_WORKERS, Plan
from hack.chaos.train_script import DISK_EVERY

FEWER = MAX_WORKERS - 1
QUIET = 5  # steps of a round: then it trains


class RecoveryEvent(Enum):
    """One event: its description, the size of the world before it, and the size that the next must have, 0 for any.

    A node is lost with its memory. The first node hosts the rendezvous.
    """

    KILLED = ("a process is killed", MAX_WORKERS, 0)
    LEAVES = ("a worker is asked to leave", MAX_WORKERS, FEWER)
    GROWS = ("a worker joins", FEWER, MAX_WORKERS)
    NODE_LOST = ("a node is lost", MAX_WORKERS, 0)
    FIRST_NODE_LOST = ("the first node is lost", MAX_WORKERS, 0)

    def __init__(self, what: str, before: int, after: int) -> None:
        self.what, self.before, self.after = what, before, after


@dataclass(frozen=True, slots=True)
class RecoveryMeasurement:
    """How a job recovered. A step is new if no round that began before the act had done it."""

    new_s: float  # seconds from the act to the first new step
    still_s: float  # seconds without a new step: from the last one before the act to the first one after it
    repeated_steps: int  # steps that were repeated until then
    sources: tuple[str, ...]  # of the state of the round with that step; "buddy" is the memory of another worker
    world: int  # ranks of that round


def measure_recovery(records: Sequence[Record], act: RecoveryEvent, at_s: float) -> RecoveryMeasurement | None:
    """Measure the recovery from an act at `at_s`; None until a world of the size that the act requires makes a new
    step.

    records: of all processes so far. at_s: monotonic seconds.
    """
    rounds = rounds_of(records)
    older = [record for each in rounds if each.begun_s <= at_s for record in each.records_of("stepped")]
    later = sorted(
        (record for each in rounds if each.begun_s > at_s for record in each.records_of("stepped")),
        key=lambda record: record.at_s,
    )
    reached = max((record.step for record in older), default=0)
    new = next((each for each in later if each.step > reached and act.after in (0, each.world)), None)
    if new is None:
        return None
    on_the_way = later[: later.index(new)]
    repeated = {(each.round, each.step) for each in on_the_way if each.step <= reached}
    last_s = _last_new_s(older, on_the_way, reached) or at_s
    return RecoveryMeasurement(
        new.at_s - at_s, new.at_s - last_s, len(repeated), _sources(records, new.round), new.world
    )


def _last_new_s(older: Sequence[Record], on_the_way: Sequence[Record], reached: int) -> float:
    """Return when a step was last done for the first time, monotonic seconds; 0.0 if there was none.

    reached: newest step before the act. older, on_the_way: records of steps of rounds that began before the act, and of
    later rounds until recovery.
    """
    first_s = min((record.at_s for record in older if record.step == reached), default=0.0)
    return max([first_s, *(record.at_s for record in on_the_way if record.step > reached)])


def _sources(records: Sequence[Record], number: int) -> tuple[str, ...]:
    """Return where the workers of round `number` got their state from, each place once: "storage", "memory" or "buddy",
    or "fresh" without a checkpoint.

    A worker that was in no earlier round has nothing in its own memory: its "memory" is another worker's ("buddy").
    """
    known = {record.home for record in records if record.event == "begun" and record.round < number}
    found = {
        "buddy" if record.source == "memory" and record.home not in known else record.source
        for record in records
        if record.event == "begun" and record.round == number
    }
    return tuple(sorted(found, reverse=True))


def may_begin(records: Sequence[Record], act: RecoveryEvent, every: int) -> bool:
    """Return True if a world of the act's size has trained for QUIET steps, and is in the middle of two checkpoints on
    disk.

    records: of the job so far. every: steps between two of them.
    """
    rounds = rounds_of(records)
    if not rounds:
        return False
    steps = {record.step for record in rounds[-1].records_of("stepped") if record.world == act.before}
    if len({record.rank for record in rounds[-1].records_of("begun")}) < act.before or len(steps) < QUIET:
        return False
    return max(steps) > every and max(steps) % every == every // 2


PLAN = Plan(epochs=100_000)  # never at its end, so that each step takes as long as the others
SETTLES_S = 180.0
_LOOK_S = 0.02


class TrainingJob(Protocol):
    """A training job with processes that write records."""

    @property
    def records(self) -> Sequence[Record]:
        """Read all records so far."""

    async def strike(self, act: RecoveryEvent) -> float:
        """Cause the event `act` in the job, and return when, in monotonic seconds."""


Begin = Callable[[int], AbstractAsyncContextManager[TrainingJob]]


@dataclass(frozen=True, slots=True)
class RecoveryTrial:
    """One act."""

    recovery: RecoveryMeasurement | None  # None if the job did not recover in time
    why: str = ""  # the reason if the act never began, else ""


async def run_acts(begin: Begin, acts: Sequence[RecoveryEvent], limit_s: float) -> dict[RecoveryEvent, RecoveryTrial]:
    """Carry out these acts on a job, one after the other. Return the trial of each.

    begin: starts a job of a given size. limit_s: timeout of each recovery. After an act without recovery, the next one
    gets a new job.
    """
    found, left = dict[RecoveryEvent, RecoveryTrial](), list(acts)
    while left:
        async with begin(left[0].before) as job:
            while left:
                act = left.pop(0)
                found[act] = await _run_act(job, act, limit_s)
                if found[act].recovery is None:
                    break
    return found


async def _run_act(job: TrainingJob, act: RecoveryEvent, limit_s: float) -> RecoveryTrial:
    """Wait until all workers train, carry out one act, and wait for the recovery. A timeout gives a trial without a
    recovery.

    limit_s: of the wait for the recovery; the wait before the act is limited by SETTLES_S.
    """
    if not await _wait_until(lambda: may_begin(job.records, act, DISK_EVERY), SETTLES_S):
        return RecoveryTrial(None, f"no world of {act.before} trained within {SETTLES_S:g} s")
    at_s = await job.strike(act)
    if not await _wait_until(lambda: measure_recovery(job.records, act, at_s) is not None, limit_s):
        return RecoveryTrial(None)
    return RecoveryTrial(measure_recovery(job.records, act, at_s))


async def _wait_until(so: Callable[[], bool], limit_s: float) -> bool:
    """Wait until `so()` is true. Return False if it is not within `limit_s` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            while True:
                if so():
                    return True
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        return False
