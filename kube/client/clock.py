"""Time as an argument: what shells ask a clock for, and the real one.

Durations and deadlines are always monotonic; the wall clock is only for what people read in an object.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Protocol


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
