"""One rank's shard on its way into storage: each chunk is copied aside, hashed there, and only then written.

So the bytes that were hashed are the bytes that are written: a region that changes meanwhile is a BadCheckpoint, and
there is no file. The note comes after the shard. That all notes are there is seen in commit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from turnout.launcher.checkpoint.manifest import MOST_BYTES, Blocks, Note, Shard, read_note, write_note
from turnout.launcher.checkpoint.sums import CHUNK_BYTES, block_bytes_of, sum_of, sums_of
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed
from turnout.launcher.shell.storage.pace import Paced
from turnout.launcher.shell.storage.store import Store, note_name, shard_name


@dataclass(frozen=True, slots=True)
class Saving:
    """What is to be persisted. run: of the launch: notes of two runs are never committed together."""

    run: str
    step: int
    round: int
    rank: int
    world: int
    head_bytes: int


def persist(
    store: Store,
    saving: Saving,
    region: memoryview,
    sums: Sequence[int],
    saved_s: float,
    paced: Paced | None = None,
    about: str = "",
) -> Note:
    """Write a shard and then its note; both are on disk when this returns.

    region: head and data, a safetensors file as it lies in memory. sums: of its chunks, as they were when it was
    hashed. saved_s: the time now, since the epoch. Raises BadCheckpoint when the region is not what the sums say, and
    StorageFailed; then neither is there, or a shard that no note tells.
    """
    octets = region.cast("B")
    head_bytes = 8 + int.from_bytes(octets[:8], "little")
    if head_bytes != saving.head_bytes:
        raise BadCheckpoint(f"step {saving.step}: the region has a head of {head_bytes} bytes, not {saving.head_bytes}")
    _check(store, saving)
    shard = Shard.of("shard", saving.rank, octets.nbytes, saving.head_bytes, sums, about)
    block_bytes, blocks = block_bytes_of(octets.nbytes), list[int]()
    pieces = _pieces(octets, shard, paced or Paced(), lambda chunk: blocks.extend(sums_of(chunk, block_bytes)))
    try:
        name = store.put(saving.step, shard_name(saving.rank), pieces, round_number=saving.round, replace=False)
    finally:
        pieces.close()
    shard = Shard.of(name, saving.rank, octets.nbytes, saving.head_bytes, sums, about)
    finer = Blocks.of(block_bytes, blocks) if block_bytes < CHUNK_BYTES else None
    note = Note(saving.run, saving.step, saving.round, saving.world, shard, saved_s, finer)
    _check(store, saving)
    text = memoryview(write_note(note))
    store.put(saving.step, note_name(saving.rank), [text], round_number=saving.round, replace=True)
    return note


def _check(store: Store, saving: Saving) -> None:
    """A later round of the run may have saved this step since: its note is not to be undone."""
    try:
        text = store.read(saving.step, note_name(saving.rank), MOST_BYTES)
        before = read_note(text) if text is not None else None
    except NewerFormat as error:
        raise StorageFailed(f"{store.name}: step {saving.step} of rank {saving.rank} is kept: {error}") from error
    except BadCheckpoint:  # a note that cannot be read is there to be replaced
        return
    if before and before.run == saving.run and before.step == saving.step and before.round > saving.round:
        raise StorageFailed(
            f"{store.name}: step {saving.step} of rank {saving.rank} has been saved by round {before.round} since "
            f"round {saving.round}: that one is kept"
        )


def _pieces(
    octets: memoryview, shard: Shard, paced: Paced, see: Callable[[memoryview], None]
) -> Generator[memoryview, None, None]:
    """The region in pieces that are verified, each when there is time for it. see: takes each chunk, verified."""
    aside = memoryview(bytearray(min(CHUNK_BYTES, octets.nbytes)))
    for number, expected in enumerate(shard.sums):
        start = number * CHUNK_BYTES
        chunk = aside[: min(CHUNK_BYTES, octets.nbytes - start)]
        chunk[:] = octets[start : start + chunk.nbytes]
        if sum_of(chunk) != expected:
            raise BadCheckpoint(f"chunk {number} of rank {shard.rank} is not what was hashed: its memory has changed")
        see(chunk)
        at = 0
        while at < chunk.nbytes:
            piece = chunk[at : at + paced.pace.piece_bytes]
            paced.take(piece.nbytes)
            yield piece
            at += piece.nbytes
