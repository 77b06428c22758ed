"""A clock that runs faster than the machine's, so that minutes of a program's waiting pass in seconds of a test."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager


class SpedClock:
    """The machine's monotonic clock, so many times as fast. Implements Clock of kube/client/clock.py."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def monotonic(self) -> float:
        return time.monotonic() * self._speed

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds / self._speed)
