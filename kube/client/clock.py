"""Clocks: the interface that I/O modules use, the real clock, and a time of day that does not jump.

Durations and deadlines always use the monotonic clock. The wall clock is only for times that people read in an object.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)

MIN_JUMP_S = 2.0  # a larger change of the wall clock between two readings is a jump; NTP changes it less
MAX_DIFFERENCE_S = 5.0  # a larger difference from the API server's clock, whose Date has whole seconds, is corrected
HOLD_READINGS = 2  # readings that report a jump


class Clock(Protocol):
    """The clock of an I/O module. Tests replace it by one that they move by hand."""

    def monotonic(self) -> float:
        """Return seconds that never decrease, also if the wall clock is set back."""

    def wall(self) -> float:
        """Return seconds since 1970. Never compare them with the time of another machine."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """Return a context that ends its block with TimeoutError after `seconds`."""


class RealClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """Return a context that ends its block with TimeoutError after `seconds`."""
        return asyncio.timeout(seconds)


class Moment(NamedTuple):
    """One reading of a SteadyTime."""

    now_s: float  # seconds since 1970
    jumped_s: float  # seconds by which a clock jumped, negative for backwards; 0.0 for no jump to report


class SteadyTime:
    """The time of day for decisions. If the wall clock jumps, this time continues with the monotonic clock at first.

    A jump is logged, and reported by the next HOLD_READINGS readings, during which the caller changes nothing. After
    that the time is corrected if it is wrong by more than MAX_DIFFERENCE_S. The correct time is the API server's if it
    is known and differs by more than MAX_DIFFERENCE_S from the wall clock's, because the server writes the times of
    objects. Else it is the wall clock's.
    """

    def __init__(self, clock: Clock, server_ahead_s: Callable[[], float | None] = lambda: None) -> None:
        """Make a time that has not been read yet.

        server_ahead_s: returns how far the API server's time of day is ahead of the monotonic clock, None if unknown.
        """
        self._clock, self._server_ahead_s = clock, server_ahead_s
        self._ahead_s: float | None = None  # the returned time less the monotonic clock; None before the first reading
        self._wall_ahead_s = 0.0
        self._jumped_s, self._readings_on_hold, self._correction_pending = 0.0, 0, False

    def now(self) -> Moment:
        """Read the clocks and return the current time, and the jump that has to be reported.

        This reading and the next ones, HOLD_READINGS in all, return a jump in `jumped_s`, with a time that continues by
        the monotonic clock. After them `jumped_s` is 0.0, and the time is corrected if the difference was more than
        MAX_DIFFERENCE_S. Another jump begins the readings again. Only the first of such jumps is logged.
        """
        now_s = self._clock.monotonic()
        wall_s = self._clock.wall() - now_s
        server_s = self._server_ahead_s()
        correct_ahead_s = wall_s if server_s is None or abs(server_s - wall_s) <= MAX_DIFFERENCE_S else server_s
        if self._ahead_s is None:
            self._ahead_s, self._wall_ahead_s = correct_ahead_s, wall_s
            return Moment(now_s + correct_ahead_s, 0.0)
        if abs(by_s := wall_s - self._wall_ahead_s) > MIN_JUMP_S:
            self._jump(by_s)
        elif server_s is None and not self._correction_pending:
            self._ahead_s += by_s  # NTP slews the wall clock
        self._wall_ahead_s = wall_s
        error_s = correct_ahead_s - self._ahead_s
        if self._correction_pending and not self._readings_on_hold:
            self._ahead_s, self._correction_pending = correct_ahead_s, False
            log.warning("clock_corrected", extra={"by_s": round(error_s, 1)})
        elif abs(error_s) > MAX_DIFFERENCE_S and not self._correction_pending:
            self._jump(error_s)
            self._correction_pending = True
        on_hold, self._readings_on_hold = self._readings_on_hold > 0, max(0, self._readings_on_hold - 1)
        return Moment(now_s + self._ahead_s, self._jumped_s if on_hold else 0.0)

    def _jump(self, by_s: float) -> None:
        """Log a jump of a clock, and report it in the next HOLD_READINGS readings.

        by_s: seconds, negative for backwards. Only the first of jumps that follow each other closely is logged.
        """
        if not self._readings_on_hold:
            log.warning("clock_jumped", extra={"by_s": round(by_s, 1), "nothing_changes_for_looks": HOLD_READINGS})
        self._jumped_s, self._readings_on_hold = by_s, HOLD_READINGS
