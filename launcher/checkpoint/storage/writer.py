"""Writes one rank's shard to storage: each chunk is copied aside, hashed there, and only then written.

So exactly the bytes that were hashed are written. A region that changes meanwhile raises BadCheckpoint and leaves no
file. The note is written after the shard. The manifest is written in commit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from turnout.launcher.checkpoint.format.checksums import CHUNK_BYTES, block_bytes_of, sum_of, sums_of
from turnout.launcher.checkpoint.format.manifest import MOST_BYTES, Blocks, Note, Shard, read_note, write_note
from turnout.launcher.checkpoint.storage.rate_limiter import RateLimiter
from turnout.launcher.checkpoint.storage.store import Store, note_name, shard_name
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed


@dataclass(frozen=True, slots=True)
class ShardWrite:
    """Names the shard to persist. run: the launch's id; notes of two runs are never committed together."""

    run: str
    step: int
    round: int
    rank: int
    world: int
    head_bytes: int


def persist(
    store: Store,
    saving: ShardWrite,
    region: memoryview,
    sums: Sequence[int],
    saved_s: float,
    paced: RateLimiter | None = None,
    about: str = "",
) -> Note:
    """Write a shard and then its note; both are on disk when this returns.

    region: header and data in memory, a safetensors file. sums: of its chunks, as hashed before. saved_s: now, in
    seconds since 1970.
    Raises BadCheckpoint if the region differs from its checksums, and StorageFailed. Then there is no note, and either
    no shard or one that no note names.
    """
    octets = region.cast("B")
    head_bytes = 8 + int.from_bytes(octets[:8], "little")
    if head_bytes != saving.head_bytes:
        raise BadCheckpoint(f"step {saving.step}: the region has a head of {head_bytes} bytes, not {saving.head_bytes}")
    _check(store, saving)
    shard = Shard.of("shard", saving.rank, octets.nbytes, saving.head_bytes, sums, about)
    block_bytes, blocks = block_bytes_of(octets.nbytes), list[int]()
    pieces = _pieces(octets, shard, paced or RateLimiter(), lambda chunk: blocks.extend(sums_of(chunk, block_bytes)))
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


def _check(store: Store, saving: ShardWrite) -> None:
    """Check that no later round of the run has saved this step; its note must not be replaced. Raises StorageFailed if
    one has.
    """
    try:
        text = store.read(saving.step, note_name(saving.rank), MOST_BYTES)
        before = read_note(text) if text is not None else None
    except NewerFormat as error:
        raise StorageFailed(f"{store.name}: step {saving.step} of rank {saving.rank} is kept: {error}") from error
    except BadCheckpoint:  # replace a note that cannot be read
        return
    if before and before.run == saving.run and before.step == saving.step and before.round > saving.round:
        raise StorageFailed(
            f"{store.name}: step {saving.step} of rank {saving.rank} has been saved by round {before.round} since "
            f"round {saving.round}: that one is kept"
        )


def _pieces(
    octets: memoryview, shard: Shard, paced: RateLimiter, see: Callable[[memoryview], None]
) -> Generator[memoryview, None, None]:
    """Give the region in verified pieces, at the limiter's speed. see: called with each verified chunk."""
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
