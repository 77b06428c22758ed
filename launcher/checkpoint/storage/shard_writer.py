"""Writes one rank's shard to storage at a limited rate: each chunk is copied to a buffer, hashed there, then written.

So exactly the bytes that were hashed are written. If the region changes meanwhile, BadCheckpoint is raised and no file
remains. The note is written after the shard. checkpoint/daemon/persist.py writes the manifest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from turnout.launcher.checkpoint.format.manifest import (
    MAX_BYTES,
    BlockChecksums,
    ShardNote,
    StoredShard,
    read_note,
    write_note,
)
from turnout.launcher.checkpoint.format.shard_file import CHUNK_BYTES, block_bytes_of, sum_of, sums_of
from turnout.launcher.checkpoint.storage.store import Store, note_name, shard_name
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed

PIECE_BYTES = 1 << 20  # of one write


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The limits of writing to storage: bytes per second, and the size of one write."""

    bytes_s: float = 0.0  # bytes per second, 0 for no limit
    piece_bytes: int = PIECE_BYTES  # of one write, 4096 or more

    def __post_init__(self) -> None:
        if not self.bytes_s >= 0 or self.piece_bytes < 4_096:
            raise ValueError(
                f"the rate limit must be 0 or more bytes/s, and a piece at least 4096 bytes; got {self.bytes_s} and "
                f"{self.piece_bytes}"
            )


class RateLimiter:
    """Limits the rate of one writer. Another thread may change `rate_limit`; a worker that leaves removes the limit."""

    def __init__(
        self,
        rate_limit: RateLimit | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rate_limit, self._monotonic, self._sleep = rate_limit or RateLimit(), monotonic, sleep
        self._free_s = monotonic()

    def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` may be written. Time without writes does not allow a higher rate later."""
        while self.rate_limit.bytes_s and (left_s := self._free_s - self._monotonic()) > 0:
            self._sleep(min(left_s, 0.25))  # notice a new rate soon
        spent_s = size_bytes / self.rate_limit.bytes_s if self.rate_limit.bytes_s else 0.0
        self._free_s = max(self._free_s, self._monotonic()) + spent_s


@dataclass(frozen=True, slots=True)
class ShardWrite:
    """The shard to write to storage."""

    run: str  # the launch's id; notes of two runs are never committed together
    step: int
    round: int
    rank: int
    world: int  # number of ranks
    head_bytes: int  # of its header


def persist(
    store: Store,
    shard_write: ShardWrite,
    region: memoryview,
    sums: Sequence[int],
    saved_s: float,
    rate_limiter: RateLimiter | None = None,
    about: str = "",
) -> ShardNote:
    """Write a shard and then its note; both are on disk when this returns.

    region: header and data in memory, a safetensors file. sums: expected checksum of each chunk. saved_s: now, in
    seconds since 1970. rate_limiter: None for no limit. about: JSON for the reader, "" for none, as in StoredShard.
    Raises BadCheckpoint if the region differs from its checksums or from `shard_write.head_bytes`. Raises StorageFailed
    if storage fails, or if a later round has saved this shard. Then there is either no shard or one that no note names;
    only if the note's folder could not be synced, both files may be there.
    """
    octets = region.cast("B")
    head_bytes = 8 + int.from_bytes(octets[:8], "little")
    if head_bytes != shard_write.head_bytes:
        raise BadCheckpoint(
            f"step {shard_write.step}: the region has a head of {head_bytes} bytes, not {shard_write.head_bytes}"
        )
    _check(store, shard_write)
    shard, blocks = _write_shard(store, shard_write, octets, sums, rate_limiter or RateLimiter(), about)
    note = ShardNote(shard_write.run, shard_write.step, shard_write.round, shard_write.world, shard, saved_s, blocks)
    _check(store, shard_write)
    text = memoryview(write_note(note))
    store.put(shard_write.step, note_name(shard_write.rank), [text], round_number=shard_write.round, replace=True)
    return note


def _write_shard(
    store: Store,
    shard_write: ShardWrite,
    octets: memoryview,
    sums: Sequence[int],
    rate_limiter: RateLimiter,
    about: str,
) -> tuple[StoredShard, BlockChecksums | None]:
    """Write the shard's file. Return its description, with the name that the store chose, and its blocks' checksums.

    The second is None if a block is a whole chunk. octets: header and data. sums: expected checksum of each chunk.
    about: as in StoredShard. Raises BadCheckpoint if a chunk differs from its checksum, and StorageFailed if storage
    fails.
    """
    shard = StoredShard.of("shard", shard_write.rank, octets.nbytes, shard_write.head_bytes, sums, about)
    block_bytes, blocks = block_bytes_of(octets.nbytes), list[int]()
    pieces = _pieces(octets, shard, rate_limiter, lambda chunk: blocks.extend(sums_of(chunk, block_bytes)))
    try:
        name = store.put(
            shard_write.step, shard_name(shard_write.rank), pieces, round_number=shard_write.round, replace=False
        )
    finally:
        pieces.close()
    shard = StoredShard.of(name, shard_write.rank, octets.nbytes, shard_write.head_bytes, sums, about)
    return shard, BlockChecksums.of(block_bytes, blocks) if block_bytes < CHUNK_BYTES else None


def _check(store: Store, shard_write: ShardWrite) -> None:
    """Raise StorageFailed if a later round of the run has saved this rank's shard of the step: its note must stay."""
    try:
        text = store.read(shard_write.step, note_name(shard_write.rank), MAX_BYTES)
        before = read_note(text) if text is not None else None
    except NewerFormat as error:
        raise StorageFailed(
            f"{store.name}: step {shard_write.step} of rank {shard_write.rank} is kept: {error}"
        ) from error
    except BadCheckpoint:  # replace a note that cannot be read
        return
    if (
        before
        and before.run == shard_write.run
        and before.step == shard_write.step
        and before.round > shard_write.round
    ):
        raise StorageFailed(
            f"{store.name}: step {shard_write.step} of rank {shard_write.rank} has been saved by round "
            f"{before.round} since round {shard_write.round}: that one is kept"
        )


def _pieces(
    octets: memoryview, shard: StoredShard, rate_limiter: RateLimiter, on_chunk: Callable[[memoryview], None]
) -> Generator[memoryview, None, None]:
    """Yield the region in verified pieces, at the limiter's rate. on_chunk: called with each verified chunk.

    A piece is valid until the next one. Raises BadCheckpoint if a chunk differs from its checksum. octets: the region.
    shard: has the expected checksums.
    """
    buffer = memoryview(bytearray(min(CHUNK_BYTES, octets.nbytes)))
    for number, expected in enumerate(shard.sums):
        start = number * CHUNK_BYTES
        chunk = buffer[: min(CHUNK_BYTES, octets.nbytes - start)]
        chunk[:] = octets[start : start + chunk.nbytes]
        if sum_of(chunk) != expected:
            raise BadCheckpoint(f"chunk {number} of rank {shard.rank} is not what was hashed: its memory has changed")
        on_chunk(chunk)
        offset = 0
        while offset < chunk.nbytes:
            piece = chunk[offset : offset + rate_limiter.rate_limit.piece_bytes]
            rate_limiter.take(piece.nbytes)
            yield piece
            offset += piece.nbytes
