"""Time as an argument: what shells ask a clock for, the real one, and a time of day that does not jump.

Durations and deadlines are always monotonic; the wall clock is only for what people read in an object.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)

JUMP_S = 2.0  # more than a clock is slewed between two looks
APART_S = 5.0  # the API server tells whole seconds, and its answers take a while
HOLD_LOOKS = 2


class Clock(Protocol):
    """All that a shell may know of time, so that a test can move it by hand."""

    def monotonic(self) -> float:
        """Seconds that only ever grow, whatever the wall clock does."""

    def wall(self) -> float:
        """Seconds since 1970, UTC. Never compared with another machine's."""

    async def sleep(self, seconds: float) -> None:
        """Return no sooner than `seconds` from now."""

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """End what is inside with TimeoutError once `seconds` have passed."""


class RealClock:
    """The machine's own time."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds)


class Moment(NamedTuple):
    """now_s: seconds since 1970, in steps of the monotonic clock. jumped_s: by how much clocks have jumped just now."""

    now_s: float
    jumped_s: float


class SteadyTime:
    """The time of day for decisions: it goes on as the monotonic clock does when the wall clock jumps.

    A jump is told, and shown by two looks: who looks changes nothing at these. The API server is right, whose clock
    stamps the objects; where it is not known, the wall clock. What it says by then counts from the third look on.
    """

    def __init__(self, clock: Clock, server_ahead_s: Callable[[], float | None] = lambda: None) -> None:
        """server_ahead_s: by how much the API server's time of day is ahead of the monotonic clock, None if unknown."""
        self._clock, self._server = clock, server_ahead_s
        self._ahead_s: float | None = None  # of the monotonic clock
        self._wall_ahead_s = 0.0
        self._jumped_s, self._holds, self._corrects = 0.0, 0, False

    def look(self) -> Moment:
        """The time now."""
        now_s = self._clock.monotonic()
        wall_s = self._clock.wall() - now_s
        server_s = self._server()
        right_s = wall_s if server_s is None or abs(server_s - wall_s) <= APART_S else server_s
        if self._ahead_s is None:
            self._ahead_s, self._wall_ahead_s = right_s, wall_s
            return Moment(now_s + right_s, 0.0)
        if abs(by_s := wall_s - self._wall_ahead_s) > JUMP_S:
            self._jump(by_s)
        elif server_s is None and not self._corrects:
            self._ahead_s += by_s  # it was slewed
        self._wall_ahead_s = wall_s
        apart_s = right_s - self._ahead_s
        if self._corrects and not self._holds:
            self._ahead_s, self._corrects = right_s, False
            log.warning("clock_corrected", extra={"by_s": round(apart_s, 1)})
        elif abs(apart_s) > APART_S and not self._corrects:
            self._jump(apart_s)
            self._corrects = True
        held, self._holds = self._holds > 0, max(0, self._holds - 1)
        return Moment(now_s + self._ahead_s, self._jumped_s if held else 0.0)

    def _jump(self, by_s: float) -> None:
        if not self._holds:
            log.warning("clock_jumped", extra={"by_s": round(by_s, 1), "nothing_changes_for_looks": HOLD_LOOKS})
        self._jumped_s, self._holds = by_s, HOLD_LOOKS
