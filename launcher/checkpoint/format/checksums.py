"""Computes the checksums that tell whether bytes are those that were written: 64-bit xxh3 of each chunk.

They find accidents such as a flipped byte or a torn write, not forgery: a writer of checkpoints can also write
checksums.
"""

from __future__ import annotations

from typing import TypeAlias

import xxhash

CHUNK_BYTES = 4 << 20  # hashed in under 1 ms: a thread that waits for the GIL meanwhile waits no longer
BLOCK_BYTES = 256 << 10  # unit of a partial read: at most two blocks are read in excess
MOST_BLOCKS = 1 << 15  # per shard: 256 KiB of checksums

Buffer: TypeAlias = bytes | bytearray | memoryview  # contiguous


def sum_of(data: Buffer) -> int:
    """Return the 64-bit xxh3 of the data, 0 to 2**64 - 1."""
    return int(xxhash.xxh3_64_intdigest(data))


def sums_of(view: memoryview, chunk_bytes: int = CHUNK_BYTES) -> list[int]:
    """Return one checksum for each chunk, in order. The last chunk may be shorter. chunk_bytes: 1 or more."""
    if not view.nbytes:  # an empty array may have no shape to cast from
        return []
    octets = view.cast("B")
    return [sum_of(octets[at : at + chunk_bytes]) for at in range(0, octets.nbytes, chunk_bytes)]


def block_bytes_of(size_bytes: int) -> int:
    """Return the block size for the fine checksums of a shard: BLOCK_BYTES, doubled until at most MOST_BLOCKS are
    needed.

    At most CHUNK_BYTES, since chunks have checksums anyway.
    """
    block_bytes = BLOCK_BYTES
    while block_bytes < CHUNK_BYTES and size_bytes > MOST_BLOCKS * block_bytes:
        block_bytes *= 2
    return block_bytes
