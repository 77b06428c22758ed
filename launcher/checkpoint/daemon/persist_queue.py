"""Orders the saves of one rank on their way to storage: one is written at a time, and a waiting one may be dropped.

If storage is slower than training saves, the oldest waiting save gives up its memory, so training never waits long. The
save being written and the newest sealed one are never dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from turnout.launcher.errors import LauncherError


class DroppedSave(LauncherError):
    """Newer saves needed this save's memory before it was written. It is not in storage and will not be."""


class PersistQueue:
    """Queues saves by epoch. A writer joins, waits for its turn and leaves; two writers may carry the same epoch."""

    def __init__(self) -> None:
        self._writers: Counter[int] = Counter()
        self._dropped: set[int] = set()
        self._writing_epoch: int | None = None  # epoch being written
        self._changed = asyncio.Event()

    def join(self, epoch: int) -> None:
        """Count one more writer for the save of this epoch."""
        self._writers[epoch] += 1

    def leave(self, epoch: int) -> None:
        """Remove a writer of this save, which is written or given up."""
        self._writers[epoch] -= 1
        if self._writers[epoch] <= 0:
            del self._writers[epoch]
            self._dropped.discard(epoch)

    def try_begin(self, epoch: int) -> bool:
        """Claim the turn to write this save; return False while another save is written. Raises Superseded if it was
        dropped.
        """
        if epoch in self._dropped:
            raise DroppedSave("newer saves have overtaken it: storage takes them more slowly than they are made")
        if self._writing_epoch is not None:
            return False
        self._writing_epoch = epoch
        return True

    async def wait_turn(self, epoch: int) -> None:
        """Wait for the turn to write this save; call done() afterwards. Raises Superseded if it was dropped."""
        while not self.try_begin(epoch):
            await self._changed.wait()

    def done(self) -> None:
        """End the turn: the write succeeded or failed."""
        self._writing_epoch = None
        self._notify()

    def drop_oldest(self, newest_epoch: int) -> int | None:
        """Drop the oldest queued save except `newest_epoch`; return its epoch or None.

        newest_epoch: the epoch of the newest sealed save. A save that was dropped before and has not left yet is
        returned again, since its memory is about to be free.
        """
        if dropped := self._dropped & self._writers.keys():
            return min(dropped)
        epoch = min((each for each in self._writers if each not in (newest_epoch, self._writing_epoch)), default=None)
        if epoch is not None:
            self._dropped.add(epoch)
            self._notify()
        return epoch

    def _notify(self) -> None:
        moved, self._changed = self._changed, asyncio.Event()
        moved.set()
