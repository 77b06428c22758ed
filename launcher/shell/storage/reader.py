"""What storage holds: the steps that are committed, each byte of which is seen to be what was written.

The newest step is derived from manifests. One that is broken, incomplete or not to be read is told and passed over;
the caller then takes the next older one. Nothing is given out that was not hashed.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import suppress

from turnout.launcher.checkpoint.manifest import MOST_BYTES, Blocks, Manifest, Note, Shard, read, read_note
from turnout.launcher.checkpoint.sums import CHUNK_BYTES, sum_of
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.storage.pace import Paced
from turnout.launcher.shell.storage.store import MANIFEST, Opened, Store, note_name
from turnout.launcher.shell.storage.verified import Piece, Verified

SEEN_S, _LOOK_S = 10.0, 0.1  # NFS may show a folder as it was some seconds ago


def committed(store: Store, say: Say, *, only: int | None = None, newer_too: bool = False) -> Iterator[Manifest]:
    """The manifests of all steps, newest first, whose shards are there in their full size.

    Raises StorageFailed where the store cannot be listed, and at the end where it could not give the only steps it
    has: that storage is gone is not that nothing was saved. Raises NewerFormat where it comes to such a step: an older
    one would not be the newest. only: of this step alone. newer_too: passes it over instead, for who does not load.
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
            say("checkpoint_passed_over", {"step": step, "store": store.name, "why": str(error)})
            continue
        given = True
        yield found
    if failure is not None and not given:
        raise failure


def newest(store: Store, say: Say) -> Manifest | None:
    """The newest step that is committed, None when none is. Raises NewerFormat and StorageFailed as `committed`."""
    return next(committed(store, say), None)


def steps(store: Store, say: Say) -> tuple[int, ...]:
    """All steps that are committed, oldest first. Raises NewerFormat and StorageFailed as `committed` does."""
    return tuple(sorted(manifest.step for manifest in committed(store, say)))


def manifest_of(store: Store, step: int) -> Manifest:
    """The manifest of a step whose shards are there in their full size.

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
    there = store.files(step)
    for shard in manifest.shards:
        about = there.get(shard.file)
        if about is None or about.size_bytes != shard.bytes:
            what = "is not there as a plain file" if about is None else f"has {about.size_bytes} bytes"
            raise BadCheckpoint(f"step {step}: {shard.file} {what}, and {shard.bytes} were written")
    return manifest


def seen(store: Store, step: int) -> Manifest:
    """The same of a step that somebody has seen here already. Storage that shows it later to others is waited for."""
    until_s = time.monotonic() + SEEN_S
    while True:
        try:
            return manifest_of(store, step)
        except BadCheckpoint as error:
            if isinstance(error, NewerFormat) or time.monotonic() > until_s:
                raise
        time.sleep(_LOOK_S)


def verify(store: Store, step: int, paced: Paced | None = None) -> Manifest:
    """Read every chunk of every shard of a step. Raises BadCheckpoint, StorageFailed."""
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
    """One rank's shard, head and data, each chunk verified as it comes.

    into: exactly as many bytes, which may have been written to in part when this raises; without it, memory of its own.
    Raises BadCheckpoint, StorageFailed.
    """
    shard = manifest.shards[rank]
    view = _memory(shard.bytes) if into is None else into.cast("B")
    if view.nbytes != shard.bytes:
        raise ValueError(f"{shard.bytes} bytes do not go into {view.nbytes}")
    with store.opened(manifest.step, shard.file) as file:
        _same_size(file, shard)
        Verified(file, shard.sums, shard.file).fill([Piece(0, view)])
    return view


def _memory(size_bytes: int) -> memoryview:
    """Of this process alone, in large pages where the kernel gives them: each page is a fault when it is written."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def note_of(store: Store, step: int, rank: int) -> Note | None:
    """What a rank has noted of its shard; None where that is not there, or not as it was written. StorageFailed."""
    try:
        text = store.read(step, note_name(rank), MOST_BYTES)
        return read_note(text) if text is not None else None
    except BadCheckpoint:
        return None


def blocks_of(store: Store, step: int, shard: Shard) -> Blocks | None:
    """The sums of parts of a committed shard; None where it has none. Another round may note another shard since.

    Raises StorageFailed.
    """
    note = note_of(store, step, shard.rank)
    return note.blocks if note is not None and note.shard == shard else None


def _chunks(shard: Shard) -> Iterator[tuple[int, int, int]]:
    """Number, start and size of each."""
    for number, start in enumerate(range(0, shard.bytes, CHUNK_BYTES)):
        yield number, start, min(CHUNK_BYTES, shard.bytes - start)


def _same_size(file: Opened, shard: Shard) -> None:
    if file.size_bytes != shard.bytes:
        raise BadCheckpoint(f"{shard.file} has {file.size_bytes} bytes, and {shard.bytes} were written")


def _fill(file: Opened, shard: Shard, number: int, start: int, view: memoryview) -> None:
    file.fill(view, start)
    if sum_of(view) != shard.sums[number]:
        raise BadCheckpoint(f"{shard.file}: chunk {number}, at byte {start}, is not what was written")
