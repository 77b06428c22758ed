"""Bytes into an arena as fast as the machine's memory takes them: a few plain threads, none of which needs Python.

Two ways, with the same result. Through the mapping with several threads, where its pages are there (arena.ready());
else through the file, whose writes make no page fault: one thread, since the kernel lets one at a time.
Source: facts/launcher.md §0, §4; torch's own threads fall to a quarter of this where the cores are busy
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from launcher.shell.memory import kernel

Rows: TypeAlias = npt.NDArray[np.int64]
Pieces: TypeAlias = Sequence[tuple[int, int, int]] | Rows  # to, from, bytes: an array costs less than a list of many

MOST_THREADS = 8
_TINY_BYTES = 16 << 10  # a call of its own for each such piece would cost more than its copy
_FEW = 4
_MOST_AT_ONCE = 1_024
_RANGE_BYTES = 32 << 20  # a thread takes at least this at a time, in several turns,
_MOST_TURNS = 4  # so that one that is held up holds up the others less


class Copier:
    """Copies in the background, one order at a time: copy() or write(), then wait(). threads: 1 to 8."""

    def __init__(self, threads: int = 2) -> None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"{threads} threads: 1 to {MOST_THREADS} are taken")
        self._threads, self._pool = threads, ThreadPoolExecutor(threads, "turnout-copy")
        self._running: list[Future[None]] = []

    def copy(self, pieces: Pieces) -> None:
        """Begin to copy each piece from address to address; the caller keeps both alive until wait() is over."""
        rows = _rows(pieces)
        turns = min(max(int(rows[:, 2].sum()) // (self._threads * _RANGE_BYTES), 1), _MOST_TURNS)
        for part in even(rows, self._threads * turns):
            self._running.append(self._pool.submit(_copy, part))

    def write(self, file: int, pieces: Pieces) -> None:
        """Begin to write each piece from its address to its place in the file."""
        self._running.append(self._pool.submit(_write, file, _rows(pieces)))

    def wait(self) -> None:
        """All is copied. Raises the first error there was, once nothing is running any more."""
        running, self._running = self._running, []
        errors = [each.exception() for each in running]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """End the threads, after what they are at."""
        self._pool.shutdown()


def even(rows: Rows, count: int) -> list[Rows]:
    """The same bytes in the same order as `count` parts of equal size, +-1 byte; a piece on a border is cut."""
    sizes = rows[:, 2]
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    borders = np.array([total * at // count for at in range(1, count)], np.int64)
    points = np.unique(np.concatenate([np.zeros(1, np.int64), ends, borders]))
    starts = points[:-1]
    piece = np.searchsorted(ends, starts, side="right")
    into = starts - (ends - sizes)[piece]
    cut = np.stack([rows[piece, 0] + into, rows[piece, 1] + into, np.diff(points)], axis=1)
    return [part for part in np.split(cut, np.searchsorted(starts, borders)) if len(part)]


def _rows(pieces: Pieces) -> Rows:
    rows = np.asarray(pieces, np.int64).reshape(-1, 3)
    if (rows < 0).any():
        raise ValueError("a piece has an address or a size below 0")
    return rows


def _copy(rows: Rows) -> None:
    tiny = rows[rows[:, 2] < _TINY_BYTES]
    starts, lengths = _runs(tiny)
    alone = np.repeat(lengths < _FEW, lengths)
    for to, source, size in (*rows[rows[:, 2] >= _TINY_BYTES].tolist(), *tiny[alone].tolist()):
        ctypes.memmove(to, source, size)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if length >= _FEW:
            for first in range(start, start + length, _MOST_AT_ONCE):
                _gather(tiny[first : min(first + _MOST_AT_ONCE, start + length)])


def _runs(rows: Rows) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Pieces whose targets follow one another: where each such run begins, and how many it has."""
    breaks = np.flatnonzero(rows[1:, 0] != rows[:-1, 0] + rows[:-1, 2]) + 1
    starts = np.concatenate([np.zeros(min(len(rows), 1), np.intp), breaks])
    return starts, np.diff(starts, append=len(rows))


def _gather(run: Rows) -> None:
    sources = np.ascontiguousarray(run[:, 1:])
    if not kernel.gather(int(run[0, 0]), int(run[:, 2].sum()), sources.ctypes.data, len(run)):
        for to, source, size in run.tolist():
            ctypes.memmove(to, source, size)


def _write(file: int, rows: Rows) -> None:
    starts, lengths = _runs(rows)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        sources = rows[start : start + length, 1:].copy()  # changed where the kernel stops in the middle
        kernel.write_from(file, int(rows[start, 0]), sources.ctypes.data, length)
