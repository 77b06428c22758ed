"""Reads committed steps from storage, and ranges of a shard into their targets; verifies every byte.

The newest step is found from manifests. A step that is broken, incomplete or unreadable is logged and skipped, and the
caller uses the next older one. Two threads read and hash several blocks at a time. A checksum covers a whole block, so
a block of which only a part is wanted is read into a buffer. Bytes are hashed after they are read, never in a mapping
of the file: a mapping could change after it was hashed, and a file that ends early would kill the process. If a call
raises, its targets may have unverified bytes and must not be used.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import xxhash

from turnout.launcher.checkpoint.format.manifest import (
    MAX_BYTES,
    BlockChecksums,
    Manifest,
    ShardNote,
    StoredShard,
    read,
    read_note,
)
from turnout.launcher.checkpoint.format.shard_file import CHUNK_BYTES, sum_of
from turnout.launcher.checkpoint.storage.shard_writer import RateLimiter
from turnout.launcher.checkpoint.storage.store import MANIFEST, OpenFile, Store, note_name
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed
from turnout.launcher.event_log import EventLog

MAX_THREADS = 2  # for each rank of a host, which all load at once

_SINGLE_THREAD_BYTES = 1 << 20  # read by one thread before another one starts

_NONE = memoryview(b"")


class ByteRange(NamedTuple):
    """A wanted range of bytes of a shard."""

    start: int  # offset in the shard
    into: memoryview  # the writable target, whose size is the range's length

    @property
    def end(self) -> int:
        """Return the offset in the shard after the range."""
        return self.start + self.into.nbytes


class _BlockRead(NamedTuple):
    """One job of a reading thread: whole blocks of a shard, read into their target, or one block for its parts."""

    number: int  # of the first block
    into: memoryview  # the target; empty if only parts of one block are wanted
    parts: Sequence[ByteRange]  # of that block


class VerifiedReader:
    """Reads a shard with verification. sums: of its blocks of `block_bytes` bytes. name: used in errors.

    Raises BadCheckpoint if the number of sums does not fit the file's size.
    """

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
        """Read the bytes from `start` to before `end` into new memory. Raises the errors of `fill`."""
        into = memoryview(bytearray(max(end - start, 0)))
        self.fill([ByteRange(start, into)])
        if (start, end) == (0, min(self.block_bytes, self.size_bytes)):
            self._first = into
        return into

    def fill(self, pieces: Iterable[ByteRange]) -> None:
        """Read each range into its target. Ranges may overlap in the shard, but not in their targets.

        Raises BadCheckpoint if bytes differ from their checksums or a range is not within the shard, and the errors of
        `OpenFile.fill`.
        """
        jobs = self._jobs(pieces)
        size_bytes = sum(job.into.nbytes or self.block_bytes for job in jobs)
        helpers = min(MAX_THREADS, len(jobs), len(os.sched_getaffinity(0))) - 1
        if helpers < 1 or size_bytes <= _SINGLE_THREAD_BYTES:
            self._work(jobs)
            return
        with ThreadPoolExecutor(helpers, "turnout-read") as pool:
            futures = [pool.submit(self._work, jobs) for _ in range(helpers)]
            self._work(jobs)
            for future in futures:
                future.result()

    def _jobs(self, pieces: Iterable[ByteRange]) -> deque[_BlockRead]:
        """List the reads in file order: whole blocks straight into their targets, as many at once as suit the file, and
        each block of which only parts are wanted.

        Raises BadCheckpoint for a range that is not within the shard.
        """
        block, size, jobs = self.block_bytes, self._file.size_bytes, list[_BlockRead]()
        stride = max(self._file.at_once_bytes // block, 1)
        parts: dict[int, list[ByteRange]] = {}
        for piece in pieces:
            start, end, target = piece.start, piece.end, piece.into
            if not 0 <= start <= end <= size:
                raise BadCheckpoint(f"{self._name} has {size} bytes: {start} to {end} are not in it")
            first, past = -(-start // block), len(self._sums) if end == size else end // block
            for number in range(first, past, stride):
                upto = min((number + stride) * block, past * block, end)
                jobs.append(_BlockRead(number, target[number * block - start : upto - start], ()))
            for number in {start // block, (end - 1) // block} if start < end else ():
                if not first <= number < past:
                    low, high = max(start, number * block), min(end, (number + 1) * block)
                    parts.setdefault(number, []).append(ByteRange(low, target[low - start : high - start]))
        jobs += [_BlockRead(number, _NONE, pieces_of_block) for number, pieces_of_block in parts.items()]
        return deque(sorted(jobs, key=lambda job: job.number))

    def _work(self, jobs: deque[_BlockRead]) -> None:
        """Do the remaining jobs one by one, as other threads do too. After an error, remove all jobs and raise it."""
        buffer = _NONE  # buffer for a block that is not read straight into its place
        try:
            while (job := _take_next(jobs)) is not None:
                if not job.parts:
                    self._read(job.number, job.into)
                elif job.number == 0 and self._first.nbytes:
                    _copy_parts(self._first, 0, job.parts)
                else:
                    buffer = buffer or memoryview(bytearray(self.block_bytes))
                    start = job.number * self.block_bytes
                    self._read(job.number, buffer[: self._file.size_bytes - start])
                    _copy_parts(buffer, start, job.parts)
        except BaseException:
            jobs.clear()
            raise

    def _read(self, number: int, into: memoryview) -> None:
        """Read and verify whole blocks into `into`. number: index of the first block.

        Raises BadCheckpoint if a block differs from its checksum, and the errors of `OpenFile.fill`.
        """
        block = self.block_bytes
        self._file.fill(into, number * block)
        for offset in range(0, into.nbytes, block):
            hashing = xxhash.xxh3_64()  # its update() releases the GIL; the one-shot function does not
            hashing.update(into[offset : offset + block])
            if hashing.intdigest() != self._sums[number]:
                raise BadCheckpoint(f"{self._name}: {self._block_name(number)} is not what was written")
            number += 1

    def _block_name(self, number: int) -> str:
        """Return the name of a block for errors. number: its index, from 0."""
        kind = "chunk" if self.block_bytes == CHUNK_BYTES else "block"
        return f"{kind} {number}, at byte {number * self.block_bytes},"


def _take_next(jobs: deque[_BlockRead]) -> _BlockRead | None:
    """Take the next block to read; None if no block is left. Safe for several threads."""
    try:
        return jobs.popleft()
    except IndexError:
        return None


def _copy_parts(block: memoryview, start: int, parts: Sequence[ByteRange]) -> None:
    """Copy the parts of a block, which begins at `start`, into their places."""
    for part in parts:
        _copy(part.into, block[part.start - start : part.end - start])


def _copy(to: memoryview, source: memoryview) -> None:
    """Copy bytes without holding the interpreter lock."""
    ctypes.memmove(_address(to), _address(source), source.nbytes)


def _address(view: memoryview) -> int:
    """Return the address of a writable view."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


VISIBLE_S, _POLL_S = 10.0, 0.1  # seconds; NFS may show a folder as it was some seconds ago


def committed_manifests(
    store: Store, log_event: EventLog, *, only_step: int | None = None, skip_newer_formats: bool = False
) -> Iterator[Manifest]:
    """Yield the manifests of all committed steps, newest first, whose shards have their full size. Log other steps.

    only_step: yield at most this step; None for all. skip_newer_formats: skip steps of a newer format instead of
    raising NewerFormat, for callers that do not load. Raises StorageFailed if the store cannot be listed, or if nothing
    was yielded and a step could not be read: failed storage must not look empty.
    """
    failure: StorageFailed | None = None
    has_yielded = False
    for step in reversed(store.steps()):
        if only_step not in (None, step):
            continue
        try:
            manifest = manifest_of(store, step)
        except (BadCheckpoint, StorageFailed) as error:
            if isinstance(error, NewerFormat) and not skip_newer_formats:
                raise
            failure = failure or (error if isinstance(error, StorageFailed) else None)
            log_event("checkpoint_passed_over", {"step": step, "store": store.name, "why": str(error)})
            continue
        has_yielded = True
        yield manifest
    if failure is not None and not has_yielded:
        raise failure


def newest_manifest(store: Store, log_event: EventLog) -> Manifest | None:
    """Return the manifest of the newest committed step, None if there is none; broken steps are logged and skipped.

    Raises NewerFormat and StorageFailed as `committed_manifests` does.
    """
    return next(committed_manifests(store, log_event), None)


def committed_steps(store: Store, log_event: EventLog) -> tuple[int, ...]:
    """List all committed steps, oldest first. Raises NewerFormat and StorageFailed as `committed_manifests` does."""
    return tuple(sorted(manifest.step for manifest in committed_manifests(store, log_event)))


def manifest_of(store: Store, step: int) -> Manifest:
    """Return the manifest of a step, after a check that each shard is in storage with the size that the manifest
    states. The contents of shards are not read.

    Raises BadCheckpoint if the step is not committed, if its manifest is invalid or of another step, or if a shard is
    missing, no plain file or of another size. Raises NewerFormat for a newer format (the data is good: do not use an
    older step instead), and StorageFailed if storage fails.
    """
    text = store.read(step, MANIFEST, MAX_BYTES)
    if text is None:
        raise BadCheckpoint(f"step {step} is not committed")
    try:
        manifest = read(text)
    except NewerFormat as error:
        raise NewerFormat(f"step {step} in {store.name}: {error.what}", error.format, error.known) from error
    except BadCheckpoint as error:
        raise BadCheckpoint(f"step {step}: {error}") from error
    if manifest.step != step:
        raise BadCheckpoint(f"step {step} has the manifest of step {manifest.step}")
    files = store.files(step)
    for shard in manifest.shards:
        about = files.get(shard.file)
        if about is None or about.size_bytes != shard.bytes:
            problem = "is missing or no plain file" if about is None else f"has {about.size_bytes} bytes"
            raise BadCheckpoint(f"step {step}: {shard.file} {problem}; the manifest states {shard.bytes} bytes")
    return manifest


def await_manifest(store: Store, step: int) -> Manifest:
    """Return the manifest of a step that another worker has seen committed.

    Waits up to VISIBLE_S, since storage may show it later on this host. Raises the errors of `manifest_of`:
    BadCheckpoint after that time, NewerFormat and StorageFailed at once.
    """
    until_s = time.monotonic() + VISIBLE_S
    while True:
        try:
            return manifest_of(store, step)
        except BadCheckpoint as error:
            if isinstance(error, NewerFormat) or time.monotonic() > until_s:
                raise
        time.sleep(_POLL_S)


def verify(store: Store, step: int, rate_limiter: RateLimiter | None = None) -> Manifest:
    """Read and verify every chunk of every shard of a step; return its manifest.

    For checks of a stored step: `load` verifies what it reads by itself. rate_limiter: limits the rate of reading; None
    for no limit. Raises BadCheckpoint if a chunk differs from its checksum, and the errors of `manifest_of`.
    """
    manifest = manifest_of(store, step)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for shard in manifest.shards:
        with store.open_file(step, shard.file) as file:
            _check_size(file, shard)
            for number, start, size in _chunks(shard):
                if rate_limiter is not None:
                    rate_limiter.take(size)
                _fill(file, shard, number, start, buffer[:size])
                file.forget(start, size)
    return manifest


def load(store: Store, manifest: Manifest, rank: int, into: memoryview | None = None) -> memoryview:
    """Load one rank's shard, header and data, and verify each chunk as it arrives.

    into: memory of exactly the shard's size, which may have unverified bytes if this raises; None for new memory.
    Returns `into` or the new memory. Raises BadCheckpoint if the shard is missing or differs from its checksums,
    StorageFailed if storage fails, and ValueError if `into` has another size.
    """
    shard = manifest.shards[rank]
    view = _memory(shard.bytes) if into is None else into.cast("B")
    if view.nbytes != shard.bytes:
        raise ValueError(f"{shard.bytes} bytes do not go into {view.nbytes}")
    with store.open_file(manifest.step, shard.file) as file:
        _check_size(file, shard)
        VerifiedReader(file, shard.sums, shard.file).fill([ByteRange(0, view)])
    return view


def _memory(size_bytes: int) -> memoryview:
    """Allocate private memory, in huge pages if the kernel has them, which saves page faults."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def note_of(store: Store, step: int, rank: int) -> ShardNote | None:
    """Return the note about a rank's shard, None if it is missing or broken.

    Raises NewerFormat if the note is of a newer format, and StorageFailed if it cannot be read.
    """
    try:
        text = store.read(step, note_name(rank), MAX_BYTES)
        return read_note(text) if text is not None else None
    except NewerFormat:
        raise
    except BadCheckpoint:
        return None


def block_checksums_of(store: Store, step: int, shard: StoredShard) -> BlockChecksums | None:
    """Return the block checksums of a committed shard, from its note. Raises StorageFailed if storage fails.

    None if the note is missing or broken, if it is of a newer format or has no block checksums, or if it is about
    another shard of this rank, such as one that a later round has written.
    """
    try:
        note = note_of(store, step, shard.rank)
    except NewerFormat:
        return None
    return note.blocks if note is not None and note.shard == shard else None


def _chunks(shard: StoredShard) -> Iterator[tuple[int, int, int]]:
    """Yield the number, offset and size of each chunk of a shard."""
    for number, start in enumerate(range(0, shard.bytes, CHUNK_BYTES)):
        yield number, start, min(CHUNK_BYTES, shard.bytes - start)


def _check_size(file: OpenFile, shard: StoredShard) -> None:
    """Raise BadCheckpoint if a shard's file has another size than its manifest says."""
    if file.size_bytes != shard.bytes:
        raise BadCheckpoint(f"{shard.file} has {file.size_bytes} bytes; the manifest states {shard.bytes} bytes")


def _fill(file: OpenFile, shard: StoredShard, number: int, start: int, view: memoryview) -> None:
    """Read one chunk of a shard into `view`, and verify it.

    number: index of the chunk in `shard.sums`. start: its offset in the file. view: as large as the chunk. Raises
    BadCheckpoint if the chunk differs from its checksum, and the errors of `OpenFile.fill`.
    """
    file.fill(view, start)
    if sum_of(view) != shard.sums[number]:
        raise BadCheckpoint(f"{shard.file}: chunk {number}, at byte {start}, is not what was written")
