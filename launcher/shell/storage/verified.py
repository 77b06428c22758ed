"""Bytes of one shard that is being read, none of which is given out that was not hashed: each straight to its place.

Two threads read and hash, some blocks at a time. Of a block all is read, whatever is wanted of it, since its sum is of
all of it: what is wanted in part is read aside and copied from there. What is hashed is what has come, never a mapping
of the file: that could change after it was hashed, and one that ends early or cannot be read would kill the process.
A place that was written to when this raises holds what was not verified, and is not to be used.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import xxhash

from turnout.launcher.checkpoint.sums import CHUNK_BYTES
from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.shell.storage.store import Opened

MOST_THREADS = 2  # of each of a host's ranks, which load together
_ALONE_BYTES = 1 << 20  # which one thread has read before another one is there
_NONE = memoryview(b"")


class Piece(NamedTuple):
    """Bytes that are wanted. start: in the shard. into: writable, of as many bytes."""

    start: int
    into: memoryview

    @property
    def end(self) -> int:
        return self.start + self.into.nbytes


class _Job(NamedTuple):
    """Whole blocks from one on, to be read. into: their place; none where parts are all that is wanted of one."""

    number: int
    into: memoryview
    parts: Sequence[Piece]


class Verified:
    """A shard that is being read. sums: of its blocks. name: in what is raised."""

    def __init__(self, file: Opened, sums: Sequence[int], name: str, block_bytes: int = CHUNK_BYTES) -> None:
        self._file, self._sums, self._name, self.block_bytes = file, sums, name, block_bytes
        if len(sums) != -(-file.size_bytes // block_bytes):
            raise BadCheckpoint(f"{name}: its {len(sums)} sums are not those of {file.size_bytes} bytes")
        self._first = _NONE  # the first block, once it was read: behind the head there is more in it

    @property
    def size_bytes(self) -> int:
        """Of all of it."""
        return self._file.size_bytes

    def read(self, start: int, end: int) -> memoryview:
        """These bytes, in memory of their own. Raises BadCheckpoint where they are not what was hashed."""
        into = memoryview(bytearray(max(end - start, 0)))
        self.fill([Piece(start, into)])
        if (start, end) == (0, min(self.block_bytes, self.size_bytes)):
            self._first = into
        return into

    def fill(self, pieces: Iterable[Piece]) -> None:
        """Have the bytes of each piece where it wants them. They may overlap in the shard, and not where they go.

        Raises BadCheckpoint where they are not what was hashed, StorageFailed.
        """
        jobs = self._jobs(pieces)
        size_bytes = sum(job.into.nbytes or self.block_bytes for job in jobs)
        helpers = min(MOST_THREADS, len(jobs), len(os.sched_getaffinity(0))) - 1
        if helpers < 1 or size_bytes <= _ALONE_BYTES:
            self._work(jobs)
            return
        with ThreadPoolExecutor(helpers, "turnout-read") as pool:
            others = [pool.submit(self._work, jobs) for _ in range(helpers)]
            self._work(jobs)
            for other in others:
                other.result()

    def _jobs(self, pieces: Iterable[Piece]) -> deque[_Job]:
        """What is to be read, in the order of the file: several blocks at once where all of them are wanted."""
        block, size, jobs = self.block_bytes, self._file.size_bytes, list[_Job]()
        stride = max(self._file.at_once_bytes // block, 1)
        parts: dict[int, list[Piece]] = {}
        for piece in pieces:
            start, end, into = piece.start, piece.end, piece.into
            if not 0 <= start <= end <= size:
                raise BadCheckpoint(f"{self._name} has {size} bytes: {start} to {end} are not in it")
            first, past = -(-start // block), len(self._sums) if end == size else end // block
            for number in range(first, past, stride):
                upto = min((number + stride) * block, past * block, end)
                jobs.append(_Job(number, into[number * block - start : upto - start], ()))
            for number in {start // block, (end - 1) // block} if start < end else ():
                if not first <= number < past:
                    low, high = max(start, number * block), min(end, (number + 1) * block)
                    parts.setdefault(number, []).append(Piece(low, into[low - start : high - start]))
        jobs += [_Job(number, _NONE, wanted) for number, wanted in parts.items()]
        return deque(sorted(jobs, key=lambda job: job.number))

    def _work(self, jobs: deque[_Job]) -> None:
        """Do one after the other, as all threads do, until there is none, or one of them fails."""
        room = _NONE  # of a block, for what is not read straight to its place
        try:
            while (job := _next(jobs)) is not None:
                if not job.parts:
                    self._read(job.number, job.into)
                elif job.number == 0 and self._first.nbytes:
                    _spread(self._first, 0, job.parts)
                else:
                    room = room or memoryview(bytearray(self.block_bytes))
                    start = job.number * self.block_bytes
                    self._read(job.number, room[: self._file.size_bytes - start])
                    _spread(room, start, job.parts)
        except BaseException:
            jobs.clear()
            raise

    def _read(self, number: int, into: memoryview) -> None:
        """Whole blocks, from this one on."""
        block = self.block_bytes
        self._file.fill(into, number * block)
        for at in range(0, into.nbytes, block):
            hashing = xxhash.xxh3_64()  # which lets other threads run, as a call for all of it does not
            hashing.update(into[at : at + block])
            if hashing.intdigest() != self._sums[number]:
                raise BadCheckpoint(f"{self._name}: {self._told(number)} is not what was written")
            number += 1

    def _told(self, number: int) -> str:
        kind = "chunk" if self.block_bytes == CHUNK_BYTES else "block"
        return f"{kind} {number}, at byte {number * self.block_bytes},"


def _next(jobs: deque[_Job]) -> _Job | None:
    try:
        return jobs.popleft()
    except IndexError:
        return None


def _spread(block: memoryview, start: int, parts: Sequence[Piece]) -> None:
    for part in parts:
        _copy(part.into, block[part.start - start : part.end - start])


def _copy(to: memoryview, source: memoryview) -> None:
    """As a slice does, but other threads run meanwhile."""
    ctypes.memmove(_address(to), _address(source), source.nbytes)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
