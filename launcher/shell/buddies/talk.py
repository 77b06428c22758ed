"""One TCP connection between two keepers: frames, and the handshake by which both know that they are of one job."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass

from turnout.launcher.checkpoint.peers import (
    HEAD_BYTES,
    MOST_BYTES,
    VERSION,
    Greet,
    Knock,
    Known,
    Message,
    No,
    encode,
    read,
)
from turnout.launcher.errors import BadFrame, LauncherError
from turnout.launcher.framing import body_bytes
from turnout.launcher.keeping import Door
from turnout.launcher.wire import NONCE_BYTES, proof, proves

CONNECT_S = 5.0
ANSWER_S = 60.0  # a keeper that hashes, or makes pages, answers late
GREET_S = 10.0  # for a stranger to prove himself
BUFFER_BYTES = 4 << 20
_CALLER, _KEEPER = "replica caller", "replica keeper"  # roles, so that no proof can be sent back to its maker


class Unheard(LauncherError):
    """The other keeper is not there, does not answer, or says no. Do without it, and tell. reason: a word of No."""

    def __init__(self, why: str, reason: str = "") -> None:
        super().__init__(why)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Self:
    """Who this keeper is to others."""

    run: str
    worker: str
    token: bytes


class Talk:
    """sock: connected, and not blocking. peer: the worker at the other end, known once both have greeted."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.peer, self.round = sock, "", 0
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)

    async def say(self, message: Message) -> None:
        """Raises Unheard."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_sendall(self.sock, encode(message))
        except (OSError, TimeoutError) as error:
            raise Unheard(str(error) or "it does not read") from error

    async def hear(self, within_s: float | None = ANSWER_S) -> Message:
        """The next message. Raises Unheard, and BadFrame."""
        try:
            async with asyncio.timeout(within_s):
                head = await self._exactly(HEAD_BYTES)
                return read(head, await self._exactly(body_bytes(head, MOST_BYTES)))
        except (OSError, TimeoutError) as error:
            raise Unheard(str(error) or f"no word within {within_s:g} s") from error

    async def _exactly(self, size: int) -> bytes:
        loop, data, at = asyncio.get_running_loop(), bytearray(size), 0
        with memoryview(data) as view:
            while at < size:
                got = await loop.sock_recv_into(self.sock, view[at:])
                if not got:
                    raise ConnectionResetError("the connection was closed")
                at += got
        return bytes(data)

    async def ask(self, message: Message, within_s: float | None = ANSWER_S) -> Message:
        """Its answer. Raises Unheard where that is No, and BadFrame."""
        await self.say(message)
        answer = await self.hear(within_s)
        if isinstance(answer, No):
            raise Unheard(f"{answer.reason}: {answer.detail}", answer.reason)
        return answer

    def close(self) -> None:
        """The other side notices."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


async def call(door: Door, me: Self, round_: int) -> Talk:
    """Go there, and be known. Raises Unheard."""
    sock = socket.socket(socket.AF_INET6 if ":" in door.address else socket.AF_INET, socket.SOCK_STREAM)
    talk = Talk(sock)
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, (door.address, door.port))
        knock = await talk.hear()
        if not isinstance(knock, Knock) or knock.version != VERSION:
            raise Unheard(f"{door.name} does not speak version {VERSION}")
        ours = os.urandom(NONCE_BYTES)
        shown = proof(me.token, _CALLER, me.run, knock.nonce, ours)
        known = await talk.ask(Greet(me.run, me.worker, round_, ours, shown))
        if not isinstance(known, Known) or not proves(known.proof, me.token, _KEEPER, me.run, ours, knock.nonce):
            raise Unheard(f"{door.name} does not know the job's token", "token")
    except (OSError, TimeoutError, BadFrame) as error:
        talk.close()
        raise Unheard(f"{door.name} at {door.address}:{door.port}: {error or 'no connection'}") from error
    except BaseException:
        talk.close()
        raise
    talk.peer = door.name
    return talk


async def greeted(talk: Talk, me: Self) -> bool:
    """Let somebody in who proves that he knows the token. False: he is told no."""
    nonce = os.urandom(NONCE_BYTES)
    await talk.say(Knock(VERSION, nonce))
    greet = await talk.hear(GREET_S)
    if not isinstance(greet, Greet):
        raise BadFrame(f"{type(greet).__name__} before Greet")
    if greet.run != me.run or not proves(greet.proof, me.token, _CALLER, greet.run, nonce, greet.nonce):
        await talk.say(No("token", "the job's token is another one here"))
        return False
    talk.peer, talk.round = greet.worker, greet.round
    await talk.say(Known(proof(me.token, _KEEPER, me.run, greet.nonce, nonce)))
    return True
