"""Sends and receives a shard's bytes over a socket, directly from and to mapped memory. All calls block.

The xxh3 sum of each chunk finds accidents, and also those in the sender's memory. After the bytes comes a SHA-256
digest with the connection's authentication code, which somebody between both ends cannot make.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import xxhash

from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.checksums import CHUNK_BYTES, sum_of
from turnout.launcher.checkpoint.storage.rate_limiter import RateLimiter
from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.frame_auth import MAC_BYTES, FrameAuth, NotProven

QUIET_S = 30.0  # seconds without a byte after which the peer counts as gone
PIECE_BYTES = 1 << 20  # bytes per call when the rate is limited
DIGEST_THREADS = 4  # per shard; one hashes 1.8 GB/s on a CPU with SHA instructions
PROOF_TEXT = b"shard "  # no message begins so: neither can be taken for the other
PROOF_BYTES = len(PROOF_TEXT) + hashlib.sha256().digest_size + MAC_BYTES


class ShardDigest:
    """Computes the SHA-256 digest over the digests of a shard's chunks, in threads, while the bytes travel."""

    def __init__(self, shard: memoryview) -> None:
        self._shard, self._chunks = shard, list[Future[bytes]]()
        self._threads = ThreadPoolExecutor(DIGEST_THREADS, "turnout-digest")

    def __enter__(self) -> ShardDigest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._threads.shutdown(cancel_futures=True)  # nobody may read the memory when others get it

    def add(self, start: int) -> None:
        """Begin to hash the chunk that starts at this byte. Chunks are added in order, once each."""
        self._chunks.append(self._threads.submit(self._digest, start))

    def digest(self) -> bytes:
        """Wait for all chunks, and return the digest."""
        return hashlib.sha256(b"".join(chunk.result() for chunk in self._chunks)).digest()

    def _digest(self, start: int) -> bytes:
        with self._shard[start : start + CHUNK_BYTES] as chunk:
            return hashlib.sha256(chunk).digest()


def send(
    sock: socket.socket,
    auth: FrameAuth,
    sums: tuple[int, ...],
    shard: memoryview,
    rate_limiter: RateLimiter | None = None,
) -> None:
    """Send the checksums, the shard and its proof, at most at the given pace. Raises OSError."""
    sock.settimeout(QUIET_S)
    sock.sendall(struct.pack(f"<{len(sums)}Q", *sums))
    at, piece = 0, PIECE_BYTES if rate_limiter is not None and rate_limiter.pace.bytes_s else CHUNK_BYTES
    with ShardDigest(shard) as shard_digest:
        hashed = 0
        while at < shard.nbytes:
            if rate_limiter is not None:
                rate_limiter.take(min(piece, shard.nbytes - at))
            while hashed < min(at + piece, shard.nbytes):
                shard_digest.add(hashed)
                hashed += CHUNK_BYTES
            with shard[at : at + piece] as rest:
                at += sock.send(rest)
        sock.sendall(auth.seal(PROOF_TEXT + shard_digest.digest()))


def receive(
    sock: socket.socket,
    auth: FrameAuth,
    record: ShardRecord,
    sums_sum: int,
    region: memoryview,
    quiet_s: float = QUIET_S,
) -> tuple[int, ...]:
    """Receive checksums and a shard into `region`; return the checksums. quiet_s: the longest pause of the peer.

    Raises OSError, and BadCheckpoint if a byte differs or if the peer has not proven that it sent them. The bytes in
    `region` are then nobody's: discard them.
    """
    sock.settimeout(quiet_s)
    data = bytearray(record.sums_bytes)
    with memoryview(data) as view:
        _fill(sock, view, None)
    if sum_of(data) != sums_sum:
        raise BadCheckpoint("the sums are not what was sent")
    sums = struct.unpack(f"<{len(data) // 8}Q", data)
    with ShardDigest(region[: record.shard_bytes]) as shard_digest:
        for number, expected in enumerate(sums):
            start = number * CHUNK_BYTES
            total = xxhash.xxh3_64()
            with region[start : min(start + CHUNK_BYTES, record.shard_bytes)] as chunk:
                _fill(sock, chunk, total)
            if total.intdigest() != expected:
                raise BadCheckpoint(f"chunk {number} is not what was sent")
            shard_digest.add(start)
        _check_proof(sock, auth, shard_digest.digest())
    return sums


def _check_proof(sock: socket.socket, auth: FrameAuth, digest: bytes) -> None:
    proof = bytearray(PROOF_BYTES)
    with memoryview(proof) as view:
        _fill(sock, view, None)
    try:
        proven = auth.open(bytes(proof))
    except NotProven as error:
        raise BadCheckpoint("nobody proves that it is what was sent") from error
    if not hmac.compare_digest(proven, PROOF_TEXT + digest):
        raise BadCheckpoint("nobody proves that it is what was sent")


def _fill(sock: socket.socket, view: memoryview, checksum: xxhash.xxh3_64 | None) -> None:
    at = 0
    while at < view.nbytes:
        with view[at:] as rest:
            received_bytes = sock.recv_into(rest)
            if not received_bytes:
                raise ConnectionResetError("the connection was closed before all was there")
            if checksum is not None:
                checksum.update(rest[:received_bytes])
        at += received_bytes
