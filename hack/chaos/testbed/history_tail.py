"""A folder of histories that grows: its new lines."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from hack.chaos.history import Record, read


class HistoryTail:
    """The files of a folder, each line of which is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: defaultdict[str, int] = defaultdict(int)

    def look(self) -> Iterator[Record]:
        """Yield the complete lines that are new since the last call.

        An incomplete last line is left for the next call.
        """
        for entry in os.scandir(self._folder):
            known = self._read[entry.name]
            if entry.stat().st_size > known:
                with open(entry.path, "rb") as file:
                    file.seek(known)
                    lines, _, _ = file.read().rpartition(b"\n")
                self._read[entry.name] = known + len(lines) + bool(lines)
                yield from read(lines.decode())
