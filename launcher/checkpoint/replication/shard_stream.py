"""Sends and receives a shard's bytes over a socket, directly from and to mapped memory. Chunks are hashed; all calls
block.
"""

from __future__ import annotations

import socket
import struct

import xxhash

from turnout.launcher.checkpoint.format.arena_layout import Record
from turnout.launcher.checkpoint.format.checksums import CHUNK_BYTES, sum_of
from turnout.launcher.checkpoint.storage.rate_limiter import RateLimiter
from turnout.launcher.errors import BadCheckpoint

QUIET_S = 30.0  # seconds without a byte after which the peer counts as gone
PIECE_BYTES = 1 << 20  # bytes per call when the rate is limited


def send(sock: socket.socket, sums: tuple[int, ...], shard: memoryview, paced: RateLimiter | None = None) -> None:
    """Send the checksums and then the shard, at most at the given pace. Raises OSError."""
    sock.settimeout(QUIET_S)
    sock.sendall(struct.pack(f"<{len(sums)}Q", *sums))
    at, piece = 0, PIECE_BYTES if paced is not None and paced.pace.bytes_s else CHUNK_BYTES
    while at < shard.nbytes:
        if paced is not None:
            paced.take(min(piece, shard.nbytes - at))
        with shard[at : at + piece] as rest:
            at += sock.send(rest)


def receive(sock: socket.socket, record: Record, sums_sum: int, region: memoryview) -> tuple[int, ...]:
    """Receive checksums and a shard into `region`; return the checksums. Raises OSError, and BadCheckpoint if a byte
    differs.
    """
    sock.settimeout(QUIET_S)
    data = bytearray(record.sums_bytes)
    with memoryview(data) as view:
        _fill(sock, view, None)
    if sum_of(data) != sums_sum:
        raise BadCheckpoint("the sums are not what was sent")
    sums = struct.unpack(f"<{len(data) // 8}Q", data)
    for number, expected in enumerate(sums):
        start = number * CHUNK_BYTES
        total = xxhash.xxh3_64()
        with region[start : min(start + CHUNK_BYTES, record.shard_bytes)] as chunk:
            _fill(sock, chunk, total)
        if total.intdigest() != expected:
            raise BadCheckpoint(f"chunk {number} is not what was sent")
    return sums


def _fill(sock: socket.socket, view: memoryview, total: xxhash.xxh3_64 | None) -> None:
    at = 0
    while at < view.nbytes:
        with view[at:] as rest:
            got = sock.recv_into(rest)
            if not got:
                raise ConnectionResetError("the connection was closed before all was there")
            if total is not None:
                total.update(rest[:got])
        at += got
