"""Saves of one rank on their way to storage: one is written at a time, and one that still waits may be overtaken.

Storage that is slower than it is saved to never holds up training for long: when memory has no other room, the oldest
save that waits gives its own. The one that is being written stays, and so does the newest that is sealed.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from turnout.launcher.errors import LauncherError


class Overtaken(LauncherError):
    """Newer saves needed the memory of this one before it was written. It is not in storage, and will not be."""


class Line:
    """By epochs. Whoever carries a save joins, waits for its turn, and leaves; two may carry the same one."""

    def __init__(self) -> None:
        self._there: Counter[int] = Counter()
        self._overtaken: set[int] = set()
        self._written: int | None = None  # now
        self._moved = asyncio.Event()

    def join(self, epoch: int) -> None:
        """It is to be written."""
        self._there[epoch] += 1

    def leave(self, epoch: int) -> None:
        """It is, or will not be."""
        self._there[epoch] -= 1
        if self._there[epoch] <= 0:
            del self._there[epoch]
            self._overtaken.discard(epoch)

    def begins(self, epoch: int) -> bool:
        """Write it now? False while another one is being written. Raises Overtaken."""
        if epoch in self._overtaken:
            raise Overtaken("newer saves have overtaken it: storage takes them more slowly than they are made")
        if self._written is not None:
            return False
        self._written = epoch
        return True

    async def turn(self, epoch: int) -> None:
        """Wait until it may be written, then call done(). Raises Overtaken."""
        while not self.begins(epoch):
            await self._moved.wait()

    def done(self) -> None:
        """What was being written is, or has failed."""
        self._written = None
        self._move()

    def overtake(self, spared: int) -> int | None:
        """Let go of the oldest that waits, but of this one: the newest that is sealed. None where there is no other.

        One that was let go before, and is not gone yet, is given again: so much room is on its way.
        """
        if going := self._overtaken & self._there.keys():
            return min(going)
        epoch = min((each for each in self._there if each not in (spared, self._written)), default=None)
        if epoch is not None:
            self._overtaken.add(epoch)
            self._move()
        return epoch

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
