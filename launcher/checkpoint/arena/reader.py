"""Reads a generation of an arena as if it were a file; verified_read.py uses it like files of storage."""

from __future__ import annotations

import os

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import offset_of
from turnout.launcher.errors import BadCheckpoint


class ArenaReader:
    """Reads a generation's bytes through its file. A mapping for one load would cost a page fault for each page."""

    at_once_bytes = 1 << 20

    def __init__(self, arena: Arena, generation: int, size_bytes: int) -> None:
        self._file, self._start, self.size_bytes = arena.file, offset_of(generation), size_bytes

    def fill(self, view: memoryview, offset: int) -> None:
        """Read bytes into `view`. Raises BadCheckpoint if the file ends first."""
        while view.nbytes:
            read_bytes = os.preadv(self._file, [view], self._start + offset)
            if not read_bytes:
                raise BadCheckpoint("memory ends before its shard does")
            view, offset = view[read_bytes:], offset + read_bytes

    def forget(self, offset: int, size_bytes: int) -> None:
        """Do nothing: memory is not cached anywhere."""
