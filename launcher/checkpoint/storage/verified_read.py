"""Reads bytes of one shard directly to their targets and verifies them before they are used.

Two threads read and hash several blocks at a time. A checksum covers a whole block, so a block that is wanted in part
is read aside and copied.
Bytes are hashed after they are read, never in a mapping of the file. A mapping could change after it was hashed, and a
file that ends early would kill the process.
If a call raises, its targets hold unverified bytes and must not be used.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import xxhash

from turnout.launcher.checkpoint.format.checksums import CHUNK_BYTES
from turnout.launcher.checkpoint.storage.store import OpenFile
from turnout.launcher.errors import BadCheckpoint

MOST_THREADS = 2  # for each rank of a host, which all load at once
_ALONE_BYTES = 1 << 20  # read by one thread before another one starts
_NONE = memoryview(b"")


class ByteRange(NamedTuple):
    """A wanted range of bytes. start: offset in the shard. into: the writable target, whose size is the
    range's length.
    """

    start: int
    into: memoryview

    @property
    def end(self) -> int:
        return self.start + self.into.nbytes


class _BlockRead(NamedTuple):
    """One job of a reading thread: whole blocks of a shard, read directly to their target or aside."""

    number: int  # of the first block
    into: memoryview  # the target; empty if only parts of one block are wanted
    parts: Sequence[ByteRange]  # of that block


class VerifiedReader:
    """Reads a shard with verification. sums: of its blocks. name: used in errors."""

    def __init__(self, file: OpenFile, sums: Sequence[int], name: str, block_bytes: int = CHUNK_BYTES) -> None:
        self._file, self._sums, self._name, self.block_bytes = file, sums, name, block_bytes
        if len(sums) != -(-file.size_bytes // block_bytes):
            raise BadCheckpoint(f"{name}: its {len(sums)} sums are not those of {file.size_bytes} bytes")
        self._first = _NONE  # the first block, kept since more than the head may be wanted of it

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole shard."""
        return self._file.size_bytes

    def read(self, start: int, end: int) -> memoryview:
        """Read a range into new memory. Raises BadCheckpoint if its bytes are not what was hashed."""
        into = memoryview(bytearray(max(end - start, 0)))
        self.fill([ByteRange(start, into)])
        if (start, end) == (0, min(self.block_bytes, self.size_bytes)):
            self._first = into
        return into

    def fill(self, pieces: Iterable[ByteRange]) -> None:
        """Read each piece to its target. Pieces may overlap in the shard, but not in their targets.

        Raises BadCheckpoint if bytes are not what was hashed, and StorageFailed.
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

    def _jobs(self, pieces: Iterable[ByteRange]) -> deque[_BlockRead]:
        """List the reads in file order, joining adjacent whole blocks."""
        block, size, jobs = self.block_bytes, self._file.size_bytes, list[_BlockRead]()
        stride = max(self._file.at_once_bytes // block, 1)
        parts: dict[int, list[ByteRange]] = {}
        for piece in pieces:
            start, end, into = piece.start, piece.end, piece.into
            if not 0 <= start <= end <= size:
                raise BadCheckpoint(f"{self._name} has {size} bytes: {start} to {end} are not in it")
            first, past = -(-start // block), len(self._sums) if end == size else end // block
            for number in range(first, past, stride):
                upto = min((number + stride) * block, past * block, end)
                jobs.append(_BlockRead(number, into[number * block - start : upto - start], ()))
            for number in {start // block, (end - 1) // block} if start < end else ():
                if not first <= number < past:
                    low, high = max(start, number * block), min(end, (number + 1) * block)
                    parts.setdefault(number, []).append(ByteRange(low, into[low - start : high - start]))
        jobs += [_BlockRead(number, _NONE, pieces_of_block) for number, pieces_of_block in parts.items()]
        return deque(sorted(jobs, key=lambda job: job.number))

    def _work(self, jobs: deque[_BlockRead]) -> None:
        """Do reads one by one, as the other threads do, until none is left or one fails."""
        room = _NONE  # buffer for a block that is not read straight into its place
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
        """Read and verify whole blocks, starting with this one."""
        block = self.block_bytes
        self._file.fill(into, number * block)
        for at in range(0, into.nbytes, block):
            hashing = xxhash.xxh3_64()  # its update() releases the GIL; the one-shot function does not
            hashing.update(into[at : at + block])
            if hashing.intdigest() != self._sums[number]:
                raise BadCheckpoint(f"{self._name}: {self._block_name(number)} is not what was written")
            number += 1

    def _block_name(self, number: int) -> str:
        kind = "chunk" if self.block_bytes == CHUNK_BYTES else "block"
        return f"{kind} {number}, at byte {number * self.block_bytes},"


def _next(jobs: deque[_BlockRead]) -> _BlockRead | None:
    try:
        return jobs.popleft()
    except IndexError:
        return None


def _spread(block: memoryview, start: int, parts: Sequence[ByteRange]) -> None:
    for part in parts:
        _copy(part.into, block[part.start - start : part.end - start])


def _copy(to: memoryview, source: memoryview) -> None:
    """Copy bytes without holding the interpreter lock."""
    ctypes.memmove(_address(to), _address(source), source.nbytes)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
