"""Orders the saves of one rank on their way to storage: one is written at a time, and a waiting one may be dropped.

If storage is slower than training saves, the oldest waiting save gives up its memory, so training never waits long. The
save being written and the newest sealed one are never dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from turnout.launcher.errors import LauncherError


class Superseded(LauncherError):
    """Newer saves needed this save's memory before it was written. It is not in storage and will not be."""


class PersistQueue:
    """Queues saves by epoch. A writer joins, waits for its turn and leaves; two writers may carry the same epoch."""

    def __init__(self) -> None:
        self._there: Counter[int] = Counter()
        self._overtaken: set[int] = set()
        self._written: int | None = None  # epoch being written
        self._moved = asyncio.Event()

    def join(self, epoch: int) -> None:
        """Count one more writer for the save of this epoch."""
        self._there[epoch] += 1

    def leave(self, epoch: int) -> None:
        """Remove a writer of this save, which is written or given up."""
        self._there[epoch] -= 1
        if self._there[epoch] <= 0:
            del self._there[epoch]
            self._overtaken.discard(epoch)

    def begins(self, epoch: int) -> bool:
        """Claim the turn to write this save; return False while another save is written. Raises Superseded if it was
        dropped.
        """
        if epoch in self._overtaken:
            raise Superseded("newer saves have overtaken it: storage takes them more slowly than they are made")
        if self._written is not None:
            return False
        self._written = epoch
        return True

    async def turn(self, epoch: int) -> None:
        """Wait for the turn to write this save; call done() afterwards. Raises Superseded if it was dropped."""
        while not self.begins(epoch):
            await self._moved.wait()

    def done(self) -> None:
        """End the turn: the write succeeded or failed."""
        self._written = None
        self._move()

    def overtake(self, spared: int) -> int | None:
        """Drop the oldest queued save except `spared`; return its epoch or None.

        spared: the epoch of the newest sealed save. A save that was dropped before and has not left yet is returned
        again, since its memory is about to be free.
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
