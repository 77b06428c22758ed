"""Connects two checkpoint daemons over TCP: messages, the handshake that proves their job, and shards.

A message is an array that begins with its number, in a frame of launcher/framing.py. Eight bytes of xxh3 over the body
stand between its length and its body. A wrong checksum, an unknown number or a value out of bounds raises BadFrame,
which ends the connection.
The listener sends PeerHello. The caller answers PeerChallenge, which proves that it knows the job's token, and the
listener proves the same with PeerProven. The caller then sends one of these:
Follow: the listener sends Copy for each step to copy, and the caller answers each with Copied.
Offer: answered by SendShard; then the caller sends the checksums, bytes and proof of a shard, answered by ShardKept or
PeerRefusal.
Fetch: answered by ShardGiven with checksums, bytes and proof, or by PeerRefusal.
A shard's bytes travel directly from and to mapped memory. The xxh3 sum of each chunk finds accidents, and also those in
the sender's memory. After the bytes comes a SHA-256 digest with the connection's authentication code, which somebody
between both ends cannot make.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Literal, TypeAlias

import msgspec
import xxhash

from turnout.launcher.checkpoint.format.arena_layout import (
    MAX_GENERATIONS,
    RECORD_BYTES,
    ShardRecord,
    read_record,
    record_bytes,
)
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.shard_file import CHUNK_BYTES, sum_of
from turnout.launcher.checkpoint.storage.shard_writer import RateLimiter
from turnout.launcher.coordinator_messages import NONCE_BYTES, DaemonEndpoint, ShortText, is_proof, proof
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError
from turnout.launcher.framing import MAC_BYTES, PREFIX_BYTES, FrameAuth, NotProven, body_bytes, decode, frame

VERSION = 4

_SUM_BYTES = 8  # of a frame's checksum
HEAD_BYTES = PREFIX_BYTES + _SUM_BYTES  # before a frame's body
MAX_BYTES = 64 << 10  # of a body

Text = Annotated[str, msgspec.Meta(max_length=4_096)]

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]

Newest = Annotated[int, msgspec.Meta(ge=-1, le=1 << 60)]

Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]

Proof = Annotated[bytes, msgspec.Meta(max_length=64)]

Packed = Annotated[bytes, msgspec.Meta(min_length=RECORD_BYTES, max_length=RECORD_BYTES)]

Generations = Annotated[int, msgspec.Meta(ge=1, le=MAX_GENERATIONS)]

Sum = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


class _PeerFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class PeerHello(_PeerFrame, tag=1, frozen=True):
    """Asks the caller for its identity, and for a proof over this nonce that it knows the token."""

    version: Count
    nonce: Proof


class PeerChallenge(_PeerFrame, tag=2, frozen=True):
    """Names the caller, a daemon of this worker, run and round. proof: over the listener's nonce. nonce: for the
    listener's proof.
    """

    run: ShortText
    worker: ShortText
    round: Count
    nonce: Proof
    proof: Proof


class PeerProven(_PeerFrame, tag=3, frozen=True):
    """Accepts the caller, and proves that the listener knows the token too."""

    proof: Proof


class PeerRefusal(_PeerFrame, tag=4, frozen=True):
    """Refuses a request. reason: token, older_round, no_memory, not_here, corrupt, or busy."""

    reason: ShortText
    detail: Text = ""


class Follow(_PeerFrame, tag=5, frozen=True):
    """Asks the leading daemon to name the steps to copy in this round."""


class Copy(_PeerFrame, tag=6, frozen=True):
    """Tells a daemon to send its shards of this step to its replica holders. Answered by Copied."""

    step: Count
    # the newest step of which all replicas are complete, -1: none; all memories keep it until Copy names a newer one
    complete_step: Newest


class Copied(_PeerFrame, tag=7, frozen=True):
    """Answers Copy: says if the daemon's shards of the step reached its replica holders."""

    step: Count
    outcome: Literal["kept", "without", "failed"]  # kept: by all holders; without: no holder takes it, now or later


class Offer(_PeerFrame, tag=8, frozen=True):
    """Offers a shard to a replica holder. Answered by SendShard or PeerRefusal."""

    local_rank: Rank
    generations: Generations  # of the owner's arena
    record: Packed  # of the shard
    sums_sum: Sum  # checksum of the checksums that follow
    complete_step: Newest  # as in Copy
    target: Save | None = None  # the owner's target in storage, None for none


class SendShard(_PeerFrame, tag=9, frozen=True):
    """Answers Offer: there is memory, so send the shard."""


class ShardKept(_PeerFrame, tag=10, frozen=True):
    """Announces that the whole shard has arrived and every chunk matches its checksum."""


class Fetch(_PeerFrame, tag=11, frozen=True):
    """Asks for the shard of `rank` in a world of `ranks`, as it was saved in that round. Answered by ShardGiven or
    PeerRefusal.
    """

    step: Count
    round: Count
    rank: Rank
    ranks: Count


class ShardGiven(_PeerFrame, tag=12, frozen=True):
    """Answers Fetch with the fields of Offer. The checksums, the shard and its proof follow at once."""

    generations: Generations
    record: Packed
    sums_sum: Sum
    target: Save | None = None


Message: TypeAlias = (
    PeerHello
    | PeerChallenge
    | PeerProven
    | PeerRefusal
    | Follow
    | Copy
    | Copied
    | Offer
    | SendShard
    | ShardKept
    | Fetch
    | ShardGiven
)

_encoder = msgspec.msgpack.Encoder()

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message, auth: FrameAuth | None = None) -> bytes:
    """Encode a message as one frame; with `auth`, the frame ends with a code that proves its sender."""
    body = _encoder.encode(message)
    body = body if auth is None else auth.seal(body)
    return frame(body, sum_of(body).to_bytes(_SUM_BYTES, "little"))


def read(head: bytes | memoryview, body: bytes, auth: FrameAuth | None = None) -> Message:
    """Decode a peer's message. head: HEAD_BYTES before the body. auth: None if its sender is not proven yet.

    Raises BadFrame if the checksum is wrong or the message is invalid, and NotProven if its code is wrong.
    """
    if sum_of(body) != int.from_bytes(head[PREFIX_BYTES:HEAD_BYTES], "little"):
        raise BadFrame("a frame does not have its sum")
    return decode(_decoder, body if auth is None else auth.open(body))


def pack_record(record: ShardRecord) -> bytes:
    """Encode a record for a message."""
    return record_bytes(record)


def unpack_record(data: bytes) -> ShardRecord:
    """Decode a record from a message. Raises BadFrame if its length or checksum is wrong."""
    try:
        return read_record(data)
    except BadCheckpoint as error:
        raise BadFrame(str(error)) from error


QUIET_S = 30.0  # seconds without a byte after which the peer counts as gone

PIECE_BYTES = 1 << 20  # bytes per call if the rate is limited

DIGEST_THREADS = 4  # per shard; one hashes 1.8 GB/s on a CPU with SHA instructions

PROOF_TEXT = b"shard "  # no message begins with it, so a proof is never accepted as a message or the reverse

PROOF_BYTES = len(PROOF_TEXT) + hashlib.sha256().digest_size + MAC_BYTES


class ShardDigest:
    """Computes the SHA-256 digest over the digests of a shard's chunks, in threads, while the bytes are sent."""

    def __init__(self, shard: memoryview) -> None:
        self._shard, self._chunks = shard, list[Future[bytes]]()
        self._threads = ThreadPoolExecutor(DIGEST_THREADS, "turnout-digest")

    def __enter__(self) -> ShardDigest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)  # nobody may read the memory when others get it

    def add(self, start: int) -> None:
        """Begin to hash the chunk that starts at this byte. Chunks are added in order, once each."""
        self._chunks.append(self._threads.submit(self._digest, start))

    def digest(self) -> bytes:
        """Wait for all chunks, and return the digest."""
        return hashlib.sha256(b"".join(chunk.result() for chunk in self._chunks)).digest()

    def _digest(self, start: int) -> bytes:
        """Return the digest of the chunk that starts at this byte."""
        with self._shard[start : start + CHUNK_BYTES] as chunk:
            return hashlib.sha256(chunk).digest()


def send(
    sock: socket.socket,
    auth: FrameAuth,
    sums: tuple[int, ...],
    shard: memoryview,
    rate_limiter: RateLimiter | None = None,
) -> None:
    """Send the checksums, the shard and its proof. Blocks, and leaves `sock` with a time limit.

    sums: of the shard's chunks. rate_limiter: None for no limit. Raises OSError if the connection fails, or if the peer
    reads nothing for QUIET_S. auth: of the connection.
    """
    sock.settimeout(QUIET_S)
    sock.sendall(struct.pack(f"<{len(sums)}Q", *sums))
    sent_bytes, piece = 0, PIECE_BYTES if rate_limiter is not None and rate_limiter.rate_limit.bytes_s else CHUNK_BYTES
    with ShardDigest(shard) as shard_digest:
        hashed = 0
        while sent_bytes < shard.nbytes:
            if rate_limiter is not None:
                rate_limiter.take(min(piece, shard.nbytes - sent_bytes))
            while hashed < min(sent_bytes + piece, shard.nbytes):
                shard_digest.add(hashed)
                hashed += CHUNK_BYTES
            with shard[sent_bytes : sent_bytes + piece] as rest:
                sent_bytes += sock.send(rest)
        sock.sendall(auth.seal(PROOF_TEXT + shard_digest.digest()))


def receive(
    sock: socket.socket,
    auth: FrameAuth,
    record: ShardRecord,
    sums_sum: int,
    region: memoryview,
    quiet_s: float = QUIET_S,
) -> tuple[int, ...]:
    """Receive checksums and a shard into `region`; return the checksums. Blocks.

    sums_sum: checksum of the checksums. quiet_s: the longest pause of the peer, in seconds. Raises TimeoutError after
    it, another OSError if the connection fails, and BadCheckpoint if a byte differs or the peer has not proven that it
    sent the bytes. Then discard the bytes in `region`. Leaves `sock` with a time limit. auth: of the connection.
    record: of the announced shard.
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
    """Receive the proof that follows a shard, and check it against the digest of the received bytes.

    Raises BadCheckpoint if the proof is of another sender or other bytes. Raises OSError if the connection is lost
    or the time limit of `sock` has passed. auth: of the connection.
    """
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
    """Receive bytes until the view is full, and add them to the checksum.

    checksum: changed in place; None for no checksum. Raises ConnectionResetError if the peer closes before,
    TimeoutError by the time limit of `sock`, and other OSErrors.
    """
    filled_bytes = 0
    while filled_bytes < view.nbytes:
        with view[filled_bytes:] as rest:
            received_bytes = sock.recv_into(rest)
            if not received_bytes:
                raise ConnectionResetError("the connection was closed before all was there")
            if checksum is not None:
                checksum.update(rest[:received_bytes])
        filled_bytes += received_bytes


CONNECT_S = 5.0  # seconds to connect and to complete the handshake, which needs no work of the other daemon

ANSWER_S = 60.0  # seconds for an answer: a daemon that hashes or allocates needs some time

GREET_S = 10.0  # seconds for a new peer to prove its identity

BUFFER_BYTES = 4 << 20  # of a socket

_CALLER, _DAEMON = "replica caller", "replica daemon"  # roles in a proof, so that it cannot be sent back to its maker


class PeerUnavailable(LauncherError):
    """The other daemon is unreachable, does not answer, or refuses. Log it and continue without it.

    reason: of its PeerRefusal, "" for none.
    """

    def __init__(self, why: str, reason: str = "") -> None:
        super().__init__(why)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """A daemon's identity for its peers. token: the job's secret."""

    run: str  # the job's id
    worker: str  # the worker's name
    token: bytes  # the job's secret


class PeerSilent(PeerUnavailable):
    """The other daemon has not answered in time. It may be dead, or only slow."""


class PeerConnection:
    """A connection to a peer. sock: connected, and not blocking. peer: the peer's worker, known after the handshake."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.peer, self.round = sock, "", 0
        self.auth: FrameAuth | None = None  # set once both nonces are known
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)

    async def send(self, message: Message) -> None:
        """Send a message. Raises PeerUnavailable if the connection fails or the peer does not read within ANSWER_S."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_sendall(self.sock, encode(message, self.auth))
        except (OSError, TimeoutError) as error:
            raise PeerUnavailable(str(error) or "it does not read") from error

    async def receive(self, within_s: float | None = ANSWER_S) -> Message:
        """Receive the next message. within_s: seconds, None for no limit.

        Raises PeerSilent after that time, PeerUnavailable if the connection fails, and BadFrame for an invalid message.
        """
        try:
            async with asyncio.timeout(within_s):
                head = await self._receive_exactly(HEAD_BYTES)
                return read(head, await self._receive_exactly(body_bytes(head, MAX_BYTES + MAC_BYTES)), self.auth)
        except TimeoutError as error:
            raise PeerSilent(f"no word within {within_s:g} s") from error
        except OSError as error:
            raise PeerUnavailable(str(error)) from error

    async def _receive_exactly(self, size: int) -> bytes:
        """Receive exactly `size` bytes. Raises ConnectionResetError if the peer closes before."""
        loop, data, filled_bytes = asyncio.get_running_loop(), bytearray(size), 0
        with memoryview(data) as view:
            while filled_bytes < size:
                received_bytes = await loop.sock_recv_into(self.sock, view[filled_bytes:])
                if not received_bytes:
                    raise ConnectionResetError("the connection was closed")
                filled_bytes += received_bytes
        return bytes(data)

    async def ask(self, message: Message, within_s: float | None = ANSWER_S) -> Message:
        """Send a message and return its answer. Raises the errors of `send` and `receive`, and PeerUnavailable for a
        PeerRefusal.

        within_s: seconds for the answer, None for no limit.
        """
        await self.send(message)
        return self.accepted_answer(await self.receive(within_s))

    @staticmethod
    def accepted_answer(answer: Message) -> Message:
        """Return the answer itself. Raises PeerUnavailable if it is a PeerRefusal."""
        if isinstance(answer, PeerRefusal):
            raise PeerUnavailable(f"{answer.reason}: {answer.detail}", answer.reason)
        return answer

    def proven_auth(self) -> FrameAuth:
        """Return the authentication of this connection's frames. Raises BadFrame before the handshake."""
        if self.auth is None:
            raise BadFrame("nothing is proven yet")
        return self.auth

    def close(self) -> None:
        """Close the connection; the peer notices."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def _caller_role(worker: str, round_: int) -> str:
    """Return the caller's role, so that its proof covers its worker name and its round."""
    return f"{_CALLER} {round_} {worker}"


async def connect_peer(endpoint: DaemonEndpoint, identity: PeerIdentity, round_: int) -> PeerConnection:
    """Connect to another daemon and complete the handshake. round_: this daemon's round, which its proof covers.

    Raises PeerSilent after CONNECT_S, and PeerUnavailable if the daemon cannot be reached, refuses, or speaks another
    version; with the reason "token" if either side does not know the other's token. endpoint: name and address of the
    daemon. identity: this daemon's.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET, socket.SOCK_STREAM)
    connection = PeerConnection(sock)
    try:
        async with asyncio.timeout(CONNECT_S):  # the socket of a dead daemon still accepts: its agent holds it
            await asyncio.get_running_loop().sock_connect(sock, (endpoint.address, endpoint.port))
            hello = await connection.receive()
            if not isinstance(hello, PeerHello) or hello.version != VERSION:
                raise PeerUnavailable(f"{endpoint.name} does not speak version {VERSION}")
            own_nonce = os.urandom(NONCE_BYTES)
            own_proof = proof(
                identity.token, _caller_role(identity.worker, round_), identity.run, hello.nonce, own_nonce
            )
            await connection.send(PeerChallenge(identity.run, identity.worker, round_, own_nonce, own_proof))
            connection.auth = FrameAuth(identity.token, identity.run, own_nonce, hello.nonce, listens=False)
            answer = connection.accepted_answer(await connection.receive())
        if not isinstance(answer, PeerProven) or not is_proof(
            answer.proof, identity.token, _DAEMON, identity.run, own_nonce, hello.nonce
        ):
            raise NotProven("it has not proved that it knows the job's token")
    except NotProven as error:
        connection.close()
        raise PeerUnavailable(f"{endpoint.name}: {error}", "token") from error
    except TimeoutError as error:
        connection.close()
        peer = f"{endpoint.name} at {endpoint.address}:{endpoint.port}"
        raise PeerSilent(f"{peer}: no connection within {CONNECT_S:g} s") from error
    except (OSError, BadFrame) as error:
        connection.close()
        raise PeerUnavailable(
            f"{endpoint.name} at {endpoint.address}:{endpoint.port}: {error or 'no connection'}"
        ) from error
    except BaseException:
        connection.close()
        raise
    connection.peer = endpoint.name
    return connection


async def accept_peer(connection: PeerConnection, identity: PeerIdentity) -> bool:
    """Return True for a caller that proves that it knows the token. Send any other caller a PeerRefusal; return False.

    Sets the peer, the round and the authentication of `connection`, and leaves it open. Raises BadFrame for another
    first message, and PeerUnavailable (PeerSilent after GREET_S). identity: this daemon's.
    """
    nonce = os.urandom(NONCE_BYTES)
    await connection.send(PeerHello(VERSION, nonce))
    greeting = await connection.receive(GREET_S)
    if not isinstance(greeting, PeerChallenge):
        raise BadFrame(f"{type(greeting).__name__} before PeerChallenge")
    connection.auth = FrameAuth(identity.token, greeting.run, greeting.nonce, nonce, listens=True)
    role = _caller_role(greeting.worker, greeting.round)
    if greeting.run != identity.run or not is_proof(
        greeting.proof, identity.token, role, greeting.run, nonce, greeting.nonce
    ):
        await connection.send(PeerRefusal("token", "the job's token is another one here"))
        return False
    connection.peer, connection.round = greeting.worker, greeting.round
    await connection.send(PeerProven(proof(identity.token, _DAEMON, identity.run, greeting.nonce, nonce)))
    return True
