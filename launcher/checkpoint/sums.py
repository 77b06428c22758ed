"""The sum over bytes that tells whether they are those that were written: xxh3 of 64 bits, for each chunk.

It finds accidents (a flipped byte, a torn write), not forgery: who may write a checkpoint may write its sums.
"""

from __future__ import annotations

from typing import TypeAlias

import xxhash

CHUNK_BYTES = 4 << 20  # hashed in under a millisecond: who waits for the interpreter lock meanwhile waits no longer
BLOCK_BYTES = 256 << 10  # of which a part of a shard is read: at its two ends that is all that is read in vain
MOST_BLOCKS = 1 << 15  # of one shard: their sums are 256 KiB

Buffer: TypeAlias = bytes | bytearray | memoryview  # contiguous


def sum_of(data: Buffer) -> int:
    """xxh3 of all of it, 0 to 2**64 - 1."""
    return int(xxhash.xxh3_64_intdigest(data))


def sums_of(view: memoryview, chunk_bytes: int = CHUNK_BYTES) -> list[int]:
    """One sum for each chunk, in order; the last chunk may be shorter. No bytes, no sums. chunk_bytes: 1 or more."""
    if not view.nbytes:  # it may have no shape to cast from
        return []
    octets = view.cast("B")
    return [sum_of(octets[at : at + chunk_bytes]) for at in range(0, octets.nbytes, chunk_bytes)]


def block_bytes_of(size_bytes: int) -> int:
    """How large the blocks of a shard are: BLOCK_BYTES, twice as large until MOST_BLOCKS are all of it.

    CHUNK_BYTES at the most, which have sums anyway.
    """
    block_bytes = BLOCK_BYTES
    while block_bytes < CHUNK_BYTES and size_bytes > MOST_BLOCKS * block_bytes:
        block_bytes *= 2
    return block_bytes
