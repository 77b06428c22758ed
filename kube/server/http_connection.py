"""Handle one connection to a server of ours, with the limits that aiohttp lacks.

A head must come in time, an answer must be taken in time, and the number of connections is limited. A line that could
not be parsed is repeated to no caller and in no log. What is answered is the caller's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from socket import socket
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

log = logging.getLogger("turnout.http")

_WAITING = 512  # connections that the kernel holds for us
_AT_ONCE = (
    16  # accepted before the first of them counts: asyncio accepts as many as its backlog, and so runs out of files
)
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server. Times are in seconds."""

    body_bytes: int = 32 << 20
    held_bytes: int = 128 << 20  # bodies being read, of all requests together
    head_s: float = 2.0
    body_s: float = 2.0
    taken_s: float = 5.0  # for a caller to take an answer that its socket did not hold at once
    handshake_s: float = 5.0
    keepalive_s: float = 120.0  # above Go's idle timeout of 90 s, so that Go closes first
    late_s: float = 1.0  # a request older than this before it is planned gets a neutral answer
    in_flight: int = 64
    waiting: int = 256  # for one of the in-flight places
    wait_s: float = 1.0
    connections: int = 1024  # beyond which the one that is idle for the longest ends, of whom has the most


class Connection(RequestHandler):
    """One connection of aiohttp's protocol, with time limits for the caller."""

    def __init__(self, server: Server, limits: Limits, **options: Any) -> None:
        super().__init__(server, **options)
        self._server, self._limits = server, limits
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._answering = False
        self.peer = ""
        self.idle_since = server.tick()

    @property
    def idle(self) -> bool:
        """True if no answer is owed to this connection."""
        return not self._answering

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = str((transport.get_extra_info("peername") or [""])[0])
        if len(self._server.connections) > self._limits.connections:
            self._server.make_room()

    def data_received(self, data: bytes) -> None:
        if data and not self._answering and "head" not in self._timers:
            self._after("head", self._limits.head_s)
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._after("taken", self._limits.taken_s)

    def resume_writing(self) -> None:
        self._cancel("taken")
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        for name in tuple(self._timers):
            self._cancel(name)
        super().connection_lost(exc)

    def head_came(self) -> None:
        """Note that the request is complete except for its body: other time limits count from here."""
        self._answering = True
        self._server.begin()
        self._cancel("head")

    def answered(self) -> None:
        """Note that the answer is ready to be written: the next bytes begin another request."""
        self._answering = False
        self.idle_since = self._server.tick()
        if self._server.end():
            self.close()  # once the answer is written

    def end_if_idle(self) -> None:
        """End the connection unless an answer is owed."""
        if not self._answering:
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are not HTTP. The parser's text is dropped: it quotes them, perhaps from inside a body."""
        self._cancel("head")
        log.debug("http_refused", extra={"status": status, "kind": type(exc).__name__})
        return refusal(status, "not HTTP" if status == 400 else "failed")

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log that something failed and its kind, never its text."""
        log.warning("http_failed", extra={"kind": type(kw.get("exc_info")).__name__})

    def _after(self, name: str, seconds: float) -> None:
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._abort)

    def _cancel(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Server(web.Server):
    """Makes our connections, and holds the sockets through which they come."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        super().__init__(handler)
        self._limits = limits
        self._listener: asyncio.Server | None = None
        self._owed = 0  # requests whose answer is not ready
        self._ticks = itertools.count()
        self._leaving = False
        self._all_answered = asyncio.Event()

    def __call__(self) -> Connection:
        return Connection(
            self,
            self._limits,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,  # a compressed body is refused unread
            keepalive_timeout=self._limits.keepalive_s,
            lingering_time=1.0,
            read_bufsize=1 << 18,
        )

    async def listen(self, where: socket, context: ssl.SSLContext | None = None) -> None:
        """Accept connections from a bound socket. Call again with another context for later connections.

        The socket stays the caller's. It is duplicated, so that a new context loses no connection that waits in the
        queue.
        """
        before, mine = self._listener, where.dup()
        self._listener = await asyncio.get_running_loop().create_server(
            self,
            sock=mine,
            backlog=_AT_ONCE,
            ssl=context,
            ssl_handshake_timeout=self._limits.handshake_s if context else None,
        )
        mine.listen(_WAITING)
        if before is not None:
            before.close()

    def tick(self) -> int:
        """Return the number of the next moment at which a connection became idle."""
        return next(self._ticks)

    def make_room(self) -> None:
        """End one connection: that of the address with the most connections that has been idle the longest.

        So a caller who opens many connections loses its own, and a rare probe still finds room. Where every connection
        is owed an answer, the newest one ends.
        """
        there = [each for each in self.connections if isinstance(each, Connection) and each.transport is not None]
        if len(there) <= self._limits.connections:
            return  # the others end already
        of_peer = Counter(each.peer for each in there)
        idle = [each for each in there if each.idle]
        gone = min(idle, key=lambda each: (-of_peer[each.peer], each.idle_since), default=there[-1])
        gone.force_close()

    def begin(self) -> None:
        """Count one more owed answer."""
        self._owed += 1

    def end(self) -> bool:
        """Count one owed answer less. True when its connection is to take no further request."""
        self._owed -= 1
        if self._leaving and not self._owed:
            self._all_answered.set()
        return self._leaving

    async def close(self, grace_s: float = 3.0) -> None:
        """Accept no more connections, let open requests be answered for at most `grace_s`, then end all."""
        self._leaving = True
        if self._listener is not None:
            self._listener.close()
        for connection in self.connections:
            connection.end_if_idle()  # type: ignore[attr-defined]
        if self._owed:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._all_answered.wait()
        await self.shutdown(grace_s)


def refusal(status: int, why: str) -> web.Response:
    """Build a short JSON error that ends the connection: the rest of the request is not read. why: a text of ours."""
    body = json.dumps({"Error": why}, separators=(",", ":")).encode()
    response = web.Response(body=body, status=status, content_type="application/json")
    response.force_close()
    return response
