"""Reads committed steps from storage and verifies every byte.

The newest step is found from manifests. A step that is broken, incomplete or unreadable is reported and skipped, and
the caller takes the next older one. Only hashed bytes are returned.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import suppress

from turnout.launcher.checkpoint.format.checksums import CHUNK_BYTES, sum_of
from turnout.launcher.checkpoint.format.manifest import (
    MOST_BYTES,
    Blocks,
    Manifest,
    ShardNote,
    StoredShard,
    read,
    read_note,
)
from turnout.launcher.checkpoint.storage.rate_limiter import RateLimiter
from turnout.launcher.checkpoint.storage.store import MANIFEST, OpenFile, Store, note_name
from turnout.launcher.checkpoint.storage.verified_read import ByteRange, VerifiedReader
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed
from turnout.launcher.event_log import EventLog

VISIBLE_S, _LOOK_S = 10.0, 0.1  # seconds; NFS may show a folder as it was some seconds ago


def committed(
    store: Store, log_event: EventLog, *, only: int | None = None, newer_too: bool = False
) -> Iterator[Manifest]:
    """Give the manifests of all committed steps, newest first, whose shards have their full size.

    only: of this step alone. newer_too: skip steps of a newer format instead of raising NewerFormat, for callers that
    do not load.
    Raises StorageFailed if the store cannot be listed, or if no step was given and one of them could not be read.
    Failed storage must not look like an empty one.
    """
    failure: StorageFailed | None = None
    given = False
    for step in reversed(store.steps()):
        if only not in (None, step):
            continue
        try:
            found = manifest_of(store, step)
        except (BadCheckpoint, StorageFailed) as error:
            if isinstance(error, NewerFormat) and not newer_too:
                raise
            failure = failure or (error if isinstance(error, StorageFailed) else None)
            log_event("checkpoint_passed_over", {"step": step, "store": store.name, "why": str(error)})
            continue
        given = True
        yield found
    if failure is not None and not given:
        raise failure


def newest(store: Store, log_event: EventLog) -> Manifest | None:
    """Return the newest committed step, None if there is none. Raises NewerFormat and StorageFailed as `committed`
    does.
    """
    return next(committed(store, log_event), None)


def steps(store: Store, log_event: EventLog) -> tuple[int, ...]:
    """List all committed steps, oldest first. Raises NewerFormat and StorageFailed as `committed` does."""
    return tuple(sorted(manifest.step for manifest in committed(store, log_event)))


def manifest_of(store: Store, step: int) -> Manifest:
    """Return the manifest of a step, and check that its shards have their full size.

    Raises BadCheckpoint, NewerFormat, StorageFailed.
    """
    text = store.read(step, MANIFEST, MOST_BYTES)
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
            what = "is not there as a plain file" if about is None else f"has {about.size_bytes} bytes"
            raise BadCheckpoint(f"step {step}: {shard.file} {what}, and {shard.bytes} were written")
    return manifest


def await_manifest(store: Store, step: int) -> Manifest:
    """Return the manifest of a step that another worker has seen committed. Waits SEEN_S for storage that shows it
    late.

    Raises as `manifest_of` does.
    """
    until_s = time.monotonic() + VISIBLE_S
    while True:
        try:
            return manifest_of(store, step)
        except BadCheckpoint as error:
            if isinstance(error, NewerFormat) or time.monotonic() > until_s:
                raise
        time.sleep(_LOOK_S)


def verify(store: Store, step: int, paced: RateLimiter | None = None) -> Manifest:
    """Read and verify every chunk of every shard of a step. Raises BadCheckpoint, StorageFailed."""
    manifest = manifest_of(store, step)
    aside = memoryview(bytearray(CHUNK_BYTES))
    for shard in manifest.shards:
        with store.opened(step, shard.file) as file:
            _same_size(file, shard)
            for number, start, size in _chunks(shard):
                if paced is not None:
                    paced.take(size)
                _fill(file, shard, number, start, aside[:size])
                file.forget(start, size)
    return manifest


def load(store: Store, manifest: Manifest, rank: int, into: memoryview | None = None) -> memoryview:
    """Load one rank's shard, header and data, and verify each chunk as it arrives.

    into: memory of exactly the shard's size, partly written if this raises; new memory by default.
    Raises BadCheckpoint, StorageFailed.
    """
    shard = manifest.shards[rank]
    view = _memory(shard.bytes) if into is None else into.cast("B")
    if view.nbytes != shard.bytes:
        raise ValueError(f"{shard.bytes} bytes do not go into {view.nbytes}")
    with store.opened(manifest.step, shard.file) as file:
        _same_size(file, shard)
        VerifiedReader(file, shard.sums, shard.file).fill([ByteRange(0, view)])
    return view


def _memory(size_bytes: int) -> memoryview:
    """Allocate private memory, in huge pages if the kernel has them, which saves page faults."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def note_of(store: Store, step: int, rank: int) -> ShardNote | None:
    """Return a rank's note of its shard, or None if it is missing or broken. Raises StorageFailed."""
    try:
        text = store.read(step, note_name(rank), MOST_BYTES)
        return read_note(text) if text is not None else None
    except BadCheckpoint:
        return None


def blocks_of(store: Store, step: int, shard: StoredShard) -> Blocks | None:
    """Return the block checksums of a committed shard, or None if it has none.

    None too if another round has since noted another shard. Raises StorageFailed.
    """
    note = note_of(store, step, shard.rank)
    return note.blocks if note is not None and note.shard == shard else None


def _chunks(shard: StoredShard) -> Iterator[tuple[int, int, int]]:
    """Give the number, offset and size of each chunk."""
    for number, start in enumerate(range(0, shard.bytes, CHUNK_BYTES)):
        yield number, start, min(CHUNK_BYTES, shard.bytes - start)


def _same_size(file: OpenFile, shard: StoredShard) -> None:
    if file.size_bytes != shard.bytes:
        raise BadCheckpoint(f"{shard.file} has {file.size_bytes} bytes, and {shard.bytes} were written")


def _fill(file: OpenFile, shard: StoredShard, number: int, start: int, view: memoryview) -> None:
    file.fill(view, start)
    if sum_of(view) != shard.sums[number]:
        raise BadCheckpoint(f"{shard.file}: chunk {number}, at byte {start}, is not what was written")
