"""A generation of an arena as a file is read: by verified.py, beside files of storage."""

from __future__ import annotations

import os

from turnout.launcher.checkpoint.generations import offset_of
from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.shell.memory.arena import Arena


class Region:
    """A generation's bytes, read through its file: a mapping made for one load would cost a fault for each page."""

    at_once_bytes = 1 << 20

    def __init__(self, arena: Arena, generation: int, size_bytes: int) -> None:
        self._file, self._start, self.size_bytes = arena.file, offset_of(generation), size_bytes

    def fill(self, view: memoryview, offset: int) -> None:
        """Raises BadCheckpoint where the file ends first."""
        while view.nbytes:
            got = os.preadv(self._file, [view], self._start + offset)
            if not got:
                raise BadCheckpoint("memory ends before its shard does")
            view, offset = view[got:], offset + got

    def forget(self, offset: int, size_bytes: int) -> None:
        """Memory is no cache of anything: nothing to do."""
