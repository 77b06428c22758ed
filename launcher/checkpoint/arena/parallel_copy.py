"""Copies bytes into an arena at memory speed, with a few threads that do not need the interpreter.

If the mapping's pages exist (Arena.is_mapped()), several threads copy through the mapping. Otherwise one thread writes
through the file, which causes no page faults; the kernel admits one writer at a time. Source: docs/facts/launcher.md 0,
§4; torch's own threads fall to a quarter of this where the cores are busy
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.launcher import linux

Rows: TypeAlias = npt.NDArray[np.int64]  # shape (n,), or (n, 3) for pieces
# Pieces to copy, each (target, source, bytes): addresses or file offsets. An array costs less than a long list.
Pieces: TypeAlias = Sequence[tuple[int, int, int]] | Rows

MAX_THREADS = 8
_TINY_BYTES = 16 << 10  # below this, a call costs more than its copy
_MIN_RUN = 4  # consecutive tiny pieces from which one call is faster than copying each in Python, which blocks training
_MAX_PIECES = 1_024  # pieces per call
_PART_BYTES = 8 << 20  # least bytes of a part, which one thread copies at a time
_MAX_PARTS = 64  # of one copy; several per thread, so that a slow thread delays the others less


class Copier:
    """Copies one set of pieces at a time: copy() or write(), then wait(). threads: 1 to 8, including the one that
    waits.
    """

    def __init__(self, threads: int = 2) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"{threads} threads: 1 to {MAX_THREADS} are taken")
        self._threads, self._pool = threads, ThreadPoolExecutor(threads, "turnout-copy")
        self._running: list[Future[None]] = []
        self._waiting_parts: deque[Callable[[], None]] = deque()  # parts that no thread has taken yet
        self._cuts: _Cuts | None = None

    def copy(self, pieces: Pieces, *, background: bool = False) -> None:
        """Start to copy pieces of memory, given as (target address, source address, bytes). Call wait() afterwards.

        Both ends of each piece must stay valid until then. background: one thread copies until wait() is called, which
        helps if `threads` is more than 1. Otherwise all threads copy, including the one that calls wait(). Raises
        ValueError for a negative address or size.
        """
        self._waiting_parts.extend(self._parts(_rows(pieces), 1 if background else _MIN_RUN))
        for _ in range(1 if background else min(self._threads, len(self._waiting_parts)) - 1):
            self._running.append(self._pool.submit(self._copy_parts))

    def _parts(self, rows: Rows, min_run: int) -> list[Callable[[], None]]:
        """Split the copies into calls that the threads can run in parallel.

        rows: (target, source, bytes). Large copies are cut into parts of about equal size; tiny ones are grouped.
        min_run: as in `_are_tiny`.
        """
        in_calls = _are_tiny(rows, min_run)
        tiny, large = rows[in_calls], rows[~in_calls]
        parts: list[Callable[[], None]] = []
        if len(large):
            sizes = large[:, 2]
            if self._cuts is None or not np.array_equal(sizes, self._cuts.sizes):
                count = min(max(int(sizes.sum()) // _PART_BYTES, self._threads), _MAX_PARTS)
                self._cuts = _Cuts.of(sizes, count)
            cut = self._cuts.cut(large).tolist()
            parts += [partial(_copy_each, cut[start:end]) for start, end in pairwise(self._cuts.borders)]
        parts += [partial(_copy_tiny, tiny[index : index + _MAX_PIECES]) for index in range(0, len(tiny), _MAX_PIECES)]
        return parts

    def _copy_parts(self) -> None:
        """Copy the remaining parts one by one, as the other threads do."""
        while True:
            try:
                part = self._waiting_parts.popleft()
            except IndexError:
                return
            part()

    def write(self, file: int, pieces: Pieces) -> None:
        """Start writing pieces, given as (offset in the file, source address, bytes). Call wait() afterwards.

        file: its descriptor. One thread writes. The sources must stay valid until wait() returns, which raises an error
        of the write.
        """
        self._running.append(self._pool.submit(_write, file, _rows(pieces)))

    def wait(self) -> None:
        """Wait until all pieces are copied or written. Copy parts in this thread too, if fewer than `threads` threads
        run.

        If a thread failed, raise the first error after all threads have stopped.
        """
        running, self._running = self._running, []
        errors: list[BaseException | None] = []
        if len(running) < self._threads:
            try:
                self._copy_parts()
            except BaseException as error:
                errors.append(error)
        errors += [future.exception() for future in running]
        self._waiting_parts.clear()
        for each in errors:
            if each is not None:
                raise each

    def close(self) -> None:
        """Wait for the current work, and stop the threads."""
        self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class _Cuts:
    """The division of pieces of certain sizes into shares of equal size. A piece on a border is cut into parts."""

    sizes: npt.NDArray[np.int64]  # of the pieces
    piece: npt.NDArray[np.intp]  # by part: the piece that it is cut from
    into: npt.NDArray[np.int64]  # by part: its offset in that piece
    lengths: npt.NDArray[np.int64]  # by part, in bytes
    borders: tuple[int, ...]  # the first part of each share, and the end

    @classmethod
    def of(cls, sizes: npt.NDArray[np.int64], count: int) -> _Cuts:
        """Compute where pieces of these sizes (bytes) are cut, so that `count` parts have equal bytes, plus or minus
        one.
        """
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        shares = np.array([total * number // count for number in range(1, count)], np.int64)
        points = np.unique(np.concatenate([np.zeros(1, np.int64), ends, shares]))
        starts = points[:-1]
        piece = np.searchsorted(ends, starts, side="right")
        borders = [0, *np.searchsorted(starts, shares).tolist(), len(starts)]
        return cls(sizes.copy(), piece, starts - (ends - sizes)[piece], np.diff(points), tuple(borders))

    def cut(self, rows: Rows) -> Rows:
        """Cut rows of these sizes into the parts."""
        return np.stack([rows[self.piece, 0] + self.into, rows[self.piece, 1] + self.into, self.lengths], axis=1)


def divide_evenly(rows: Rows, count: int) -> list[Rows]:
    """Divide the pieces into `count` parts of equal size, +-1 byte, in the same order. A piece on a border is cut.

    Parts without bytes are omitted.
    """
    cuts = _Cuts.of(rows[:, 2], count)
    cut = cuts.cut(rows)
    return [cut[start:end] for start, end in pairwise(cuts.borders) if start < end]


def _rows(pieces: Pieces) -> Rows:
    """Convert pieces to an array of (target, source, bytes). Raises ValueError for a negative number."""
    rows = np.asarray(pieces, np.int64).reshape(-1, 3)
    if (rows < 0).any():
        raise ValueError("a piece has an address or a size below 0")
    return rows


def _copy_each(pieces: Sequence[tuple[int, int, int]]) -> None:
    """Copy pieces one by one in this thread."""
    for to, source, size in pieces:
        ctypes.memmove(to, source, size)


def _copy_tiny(rows: Rows) -> None:
    """Copy small pieces in one system call, or one by one if the kernel refuses it. rows: (target, source, bytes)."""
    starts, _ = _runs(rows)
    sources = np.ascontiguousarray(rows[:, 1:])
    targets = np.stack([rows[starts, 0], np.add.reduceat(rows[:, 2], starts)], axis=1)
    if not linux.copy_pieces(targets.ctypes.data, len(targets), sources.ctypes.data, len(rows), int(rows[:, 2].sum())):
        _copy_each(rows.tolist())


def _are_tiny(rows: Rows, min_run: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the pieces that are copied together in one call: tiny ones, in runs of consecutive targets.

    min_run: shorter runs are copied piece by piece, which is faster for them.
    """
    tiny = rows[:, 2] < _TINY_BYTES
    places = np.flatnonzero(tiny)
    _, lengths = _runs(rows[places])
    tiny[places[np.repeat(lengths < min_run, lengths)]] = False
    return tiny


def _runs(rows: Rows) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Find runs of pieces whose targets follow each other without a gap. Return the index of the first piece, and the
    number of pieces, of each run.
    """
    breaks = np.flatnonzero(rows[1:, 0] != rows[:-1, 0] + rows[:-1, 2]) + 1
    starts = np.concatenate([np.zeros(min(len(rows), 1), np.intp), breaks])
    return starts, np.diff(starts, append=len(rows))


def _write(file: int, rows: Rows) -> None:
    """Write pieces of memory to a file, with one call for each run of pieces that follow each other in the file.

    file: its descriptor. rows: (offset in the file, source address, bytes). Raises OSError if a write fails; then some
    pieces may be written.
    """
    starts, lengths = _runs(rows)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        sources = rows[start : start + length, 1:].copy()  # a copy: it is changed where the kernel stops midway
        linux.write_from(file, int(rows[start, 0]), sources.ctypes.data, length)
