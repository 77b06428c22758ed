"""Bytes of one shard that is being read, none of which is given out that was not hashed: each straight to its place.

Several threads read and hash, a chunk at a time. Of a chunk all is read, whatever is wanted of it, since its sum is
of all of it. A place that was written to when this raises holds what was not verified, and is not to be used.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import xxhash

from launcher.checkpoint.sums import CHUNK_BYTES
from launcher.errors import BadCheckpoint
from launcher.shell.storage.store import Opened

MOST_THREADS = 2  # of each of a host's ranks, which load together
_NONE = memoryview(b"")


class Piece(NamedTuple):
    """Bytes that are wanted. start: in the shard. into: writable, of as many bytes."""

    start: int
    into: memoryview

    @property
    def end(self) -> int:
        return self.start + self.into.nbytes


class Verified:
    """A shard that is being read. sums: of its chunks. name: in what is raised."""

    def __init__(self, file: Opened, sums: Sequence[int], name: str) -> None:
        self._file, self._sums, self._name = file, sums, name
        if len(sums) != -(-file.size_bytes // CHUNK_BYTES):
            raise BadCheckpoint(f"{name}: its {len(sums)} sums are not those of {file.size_bytes} bytes")
        self._rooms: list[memoryview] = []  # of a chunk each, for what is not read straight to its place
        self._first = _NONE  # the first chunk, once it was read: behind the head there is more in it

    @property
    def size_bytes(self) -> int:
        """Of all of it."""
        return self._file.size_bytes

    def read(self, start: int, end: int) -> memoryview:
        """These bytes, in memory of their own. Raises BadCheckpoint where they are not what was hashed."""
        into = memoryview(bytearray(max(end - start, 0)))
        self.fill([Piece(start, into)])
        if (start, end) == (0, min(CHUNK_BYTES, self.size_bytes)):
            self._first = into
        return into

    def fill(self, pieces: Iterable[Piece]) -> None:
        """Have the bytes of each piece where it wants them. They may overlap in the shard, and not where they go.

        Raises BadCheckpoint where they are not what was hashed, StorageFailed.
        """
        by_chunk: dict[int, list[Piece]] = {}
        for piece in pieces:
            if not 0 <= piece.start <= piece.end <= self._file.size_bytes:
                raise BadCheckpoint(
                    f"{self._name} has {self._file.size_bytes} bytes: {piece.start} to {piece.end} are not in it"
                )
            for number in range(piece.start // CHUNK_BYTES, -(-piece.end // CHUNK_BYTES)):
                first, past = max(piece.start, number * CHUNK_BYTES), min(piece.end, (number + 1) * CHUNK_BYTES)
                if first < past:
                    part = Piece(first, piece.into[first - piece.start : past - piece.start])
                    by_chunk.setdefault(number, []).append(part)
        chunks = iter(sorted(by_chunk.items()))
        threads = min(MOST_THREADS, len(by_chunk), len(os.sched_getaffinity(0)))
        if threads < 2:
            self._work(chunks, threading.Lock())
            return
        with ThreadPoolExecutor(threads, "turnout-read") as pool:
            guard = threading.Lock()
            for working in [pool.submit(self._work, chunks, guard) for _ in range(threads)]:
                working.result()

    def _work(self, chunks: Iterable[tuple[int, list[Piece]]], guard: threading.Lock) -> None:
        """Take one after the other, as all threads do, until there is none."""
        while True:
            with guard:
                taken = list(islice(chunks, 1))
            if not taken:
                return
            self._have(*taken[0])

    def _have(self, number: int, pieces: Sequence[Piece]) -> None:
        start = number * CHUNK_BYTES
        size = min(CHUNK_BYTES, self._file.size_bytes - start)
        if number == 0 and self._first.nbytes:
            _spread(self._first, start, pieces)
        elif len(pieces) == 1 and pieces[0].into.nbytes == size:
            self._read(number, pieces[0].into)
        else:
            room = self._rooms.pop() if self._rooms else memoryview(bytearray(CHUNK_BYTES))
            self._read(number, room[:size])
            _spread(room, start, pieces)
            self._rooms.append(room)

    def _read(self, number: int, chunk: memoryview) -> None:
        self._file.fill(chunk, number * CHUNK_BYTES)
        hashing = xxhash.xxh3_64()  # which lets other threads run, as a call for all of it does not
        hashing.update(chunk)
        if hashing.intdigest() != self._sums[number]:
            raise BadCheckpoint(f"{self._name}: chunk {number} is not what was written")


def _spread(chunk: memoryview, start: int, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        _copy(piece.into, chunk[piece.start - start : piece.end - start])


def _copy(to: memoryview, source: memoryview) -> None:
    """As a slice does, but other threads run meanwhile."""
    ctypes.memmove(_address(to), _address(source), source.nbytes)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
