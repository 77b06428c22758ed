"""One TCP connection between two checkpoint daemons: frames, and a handshake that proves that both belong to
one job.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass

from turnout.launcher.checkpoint.format.replication_messages import (
    HEAD_BYTES,
    MOST_BYTES,
    VERSION,
    Message,
    PeerChallenge,
    PeerHello,
    PeerProven,
    Refusal,
    encode,
    read,
)
from turnout.launcher.errors import BadFrame, LauncherError
from turnout.launcher.frame_auth import MAC_BYTES, FrameAuth, NotProven
from turnout.launcher.framing import body_bytes
from turnout.launcher.rendezvous.checkpoint_messages import DaemonEndpoint
from turnout.launcher.rendezvous.messages import NONCE_BYTES, is_proof, proof

CONNECT_S = 5.0  # seconds to connect and to complete the handshake, which needs no work of the other daemon
ANSWER_S = 60.0  # seconds; a daemon that hashes or allocates answers late
GREET_S = 10.0  # seconds for a new peer to prove its identity
BUFFER_BYTES = 4 << 20
_CALLER, _DAEMON = "replica caller", "replica daemon"  # roles in a proof, so that it cannot be sent back to its maker


class PeerUnavailable(LauncherError):
    """The other daemon is unreachable, does not answer, or refuses. Report it and do without it. reason: that of its
    Refusal, or "".
    """

    def __init__(self, why: str, reason: str = "") -> None:
        super().__init__(why)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """A daemon's identity for its peers. token: the job's secret."""

    run: str
    worker: str
    token: bytes


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
        """Send a message. Raises PeerUnavailable."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_sendall(self.sock, encode(message, self.auth))
        except (OSError, TimeoutError) as error:
            raise PeerUnavailable(str(error) or "it does not read") from error

    async def receive(self, within_s: float | None = ANSWER_S) -> Message:
        """Receive the next message. Raises PeerUnavailable and BadFrame."""
        try:
            async with asyncio.timeout(within_s):
                head = await self._exactly(HEAD_BYTES)
                return read(head, await self._exactly(body_bytes(head, MOST_BYTES + MAC_BYTES)), self.auth)
        except TimeoutError as error:
            raise PeerSilent(f"no word within {within_s:g} s") from error
        except OSError as error:
            raise PeerUnavailable(str(error)) from error

    async def _exactly(self, size: int) -> bytes:
        loop, data, at = asyncio.get_running_loop(), bytearray(size), 0
        with memoryview(data) as view:
            while at < size:
                received_bytes = await loop.sock_recv_into(self.sock, view[at:])
                if not received_bytes:
                    raise ConnectionResetError("the connection was closed")
                at += received_bytes
        return bytes(data)

    async def ask(self, message: Message, within_s: float | None = ANSWER_S) -> Message:
        """Send a message and return its answer. Raises PeerUnavailable, also for a Refusal, and BadFrame."""
        await self.send(message)
        return self.accepted_answer(await self.receive(within_s))

    @staticmethod
    def accepted_answer(answer: Message) -> Message:
        """Return the answer itself. Raises PeerUnavailable if it is a Refusal."""
        if isinstance(answer, Refusal):
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
    """Connect to another daemon and complete the handshake. Raises PeerUnavailable."""
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
        at = f"{endpoint.name} at {endpoint.address}:{endpoint.port}"
        raise PeerSilent(f"{at}: no connection within {CONNECT_S:g} s") from error
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
    """Accept a caller that proves that it knows the token. If it does not, refuse it and return False.

    Raises BadFrame.
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
        await connection.send(Refusal("token", "the job's token is another one here"))
        return False
    connection.peer, connection.round = greeting.worker, greeting.round
    await connection.send(PeerProven(proof(identity.token, _DAEMON, identity.run, greeting.nonce, nonce)))
    return True
