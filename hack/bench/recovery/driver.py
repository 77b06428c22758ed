"""Acts, one after the other, on a job that trains: each begins with a whole world, in the middle of two checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from hack.bench.recovery.recovery import Act, Recovery, may_begin, went_on
from hack.chaos.history import Record
from hack.chaos.testbed.manifests import Plan
from hack.chaos.train_script import DISK_EVERY

PLAN = Plan(epochs=100_000)  # never at its end, so that each step takes as long as the others
SETTLES_S = 180.0
_LOOK_S = 0.02


class Job(Protocol):
    """A training job. records: what its processes have written so far."""

    @property
    def records(self) -> Sequence[Record]:
        """Read all records so far."""

    async def strike(self, act: Act) -> float:
        """Carry the act out; give its time by the monotonic clock."""


Begin = Callable[[int], AbstractAsyncContextManager[Job]]


@dataclass(frozen=True, slots=True)
class Trial:
    """One act. back: None if the job did not recover in time. why: the reason if the act never began, else ""."""

    back: Recovery | None
    why: str = ""


async def told(begin: Begin, acts: Sequence[Act], limit_s: float) -> dict[Act, Trial]:
    """Play these acts. begin: starts a job of so many workers. limit_s: for what comes of each.

    After an act of which nothing came, the next one has a job of its own.
    """
    found, left = dict[Act, Trial](), list(acts)
    while left:
        async with begin(left[0].before) as job:
            while left:
                act = left.pop(0)
                found[act] = await _tried(job, act, limit_s)
                if found[act].back is None:
                    break
    return found


async def _tried(job: Job, act: Act, limit_s: float) -> Trial:
    if not await _comes(lambda: may_begin(job.records, act, DISK_EVERY), SETTLES_S):
        return Trial(None, f"no world of {act.before} trained within {SETTLES_S:g} s")
    at_s = await job.strike(act)
    if not await _comes(lambda: went_on(job.records, act, at_s) is not None, limit_s):
        return Trial(None)
    return Trial(went_on(job.records, act, at_s))


async def _comes(so: Callable[[], bool], limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            while True:
                if so():
                    return True
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        return False
