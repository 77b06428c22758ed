"""Defines the shared memory file between a training process and its agent: the place of each word, which has one
writer.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from turnout.launcher.health.step_histogram import BUCKETS

PROGRESS = "TURNOUT_PROGRESS_FILE"
DONE, SAVED, WAITS, STOP, SURE = range(5)  # STOP: the step at which all stop
BEATS, BEAT_NS, TURNS, TURN_NS, MARKED = range(5, 10)  # written by the heartbeat
FILE_BYTES = 4_096
NAME_BYTES = 64
_FIRST = (-1, -1, 0, -1)  # DONE, SAVED, WAITS, STOP; all others begin at 0
_NAME_AT, _COUNTS_AT = 512, 1_024
_WORD, _COUNTS = struct.Struct("<q"), struct.Struct(f"<{BUCKETS}q")
assert _COUNTS_AT + _COUNTS.size <= FILE_BYTES


class SharedCounters:
    """64-bit words in a shared file. Each has one writer, and is written in one store."""

    def __init__(self, path: str | Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size < FILE_BYTES:
                raise ValueError(f"{path} is no file of progress: it is too short")
            self._map = mmap.mmap(file, FILE_BYTES)
        finally:
            os.close(file)

    def read(self, at: int) -> int:
        return int(_WORD.unpack_from(self._map, at * _WORD.size)[0])

    def write(self, at: int, value: int) -> None:
        _WORD.pack_into(self._map, at * _WORD.size, value)

    def name(self) -> str:
        """Return the name of the phase. If it is read during a write, it may mix two names."""
        raw = self._map[_NAME_AT : _NAME_AT + NAME_BYTES].rstrip(b"\0").decode(errors="replace")
        return "".join(letter if letter.isprintable() else "?" for letter in raw)

    def write_name(self, name: str) -> None:
        self._map[_NAME_AT : _NAME_AT + NAME_BYTES] = name.encode(errors="replace")[:NAME_BYTES].ljust(
            NAME_BYTES, b"\0"
        )

    def counts(self) -> tuple[int, ...]:
        """Return the number of steps in each bucket of step times."""
        return tuple(max(0, count) for count in _COUNTS.unpack_from(self._map, _COUNTS_AT))

    def write_count(self, bucket: int, count: int) -> None:
        _WORD.pack_into(self._map, _COUNTS_AT + bucket * _WORD.size, count)

    def write_counts(self, counts: Sequence[int]) -> None:
        _COUNTS.pack_into(self._map, _COUNTS_AT, *counts)

    def close(self) -> None:
        self._map.close()


def make(path: Path) -> SharedCounters:
    """Create the file for a process of a new round."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(b"".join(map(_WORD.pack, _FIRST)).ljust(FILE_BYTES, b"\0"))
    return SharedCounters(path)
