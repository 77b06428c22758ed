"""A connection to one of our HTTP servers, with the limits that aiohttp lacks.

A request head must arrive in time, the client must read an answer in time, and the number of connections is limited. An
invalid request line is never quoted, neither to the client nor in a log. The caller makes the answers.
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

_KERNEL_BACKLOG = 512  # connections in the kernel's queue
# asyncio accepts up to its backlog before any of these connections counts; a large backlog could use up all files.
_ACCEPT_BACKLOG = 16
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one server. Times are in seconds."""

    body_bytes: int = 32 << 20  # of one request
    all_bodies_bytes: int = 128 << 20  # bodies that are being read, of all requests together
    head_s: float = 2.0  # until the head of a request is complete
    body_s: float = 2.0  # until its body is complete
    write_s: float = 5.0  # until the client has read an answer that did not fit its socket at once
    handshake_s: float = 5.0
    keepalive_s: float = 120.0  # above Go's idle timeout of 90 s, so that Go closes first
    max_age_s: float = 1.0  # an older request gets a neutral answer instead of a plan
    in_flight: int = 64
    waiting: int = 256  # requests that wait for one of the in-flight places
    wait_s: float = 1.0  # the longest such wait
    connections: int = 1024  # open connections; a further one closes an idle one


class Connection(RequestHandler):
    """A connection of aiohttp's protocol with time limits for the client."""

    def __init__(self, server: Server, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(server, **options)
        self._server, self._limits = server, limits
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._answering = False
        self.peer = ""
        self.idle_since = server.next_idle_number()

    @property
    def is_idle(self) -> bool:
        """True if this connection has no open request."""
        return not self._answering

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the peer's address. Another connection is closed if there are too many."""
        super().connection_made(transport)
        self.peer = str((transport.get_extra_info("peername") or [""])[0])
        if len(self._server.connections) > self._limits.connections:
            self._server.make_room()

    def data_received(self, data: bytes) -> None:
        if data and not self._answering and "head" not in self._timers:
            self._start_timer("head", self._limits.head_s)
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer("taken", self._limits.write_s)

    def resume_writing(self) -> None:
        self._stop_timer("taken")
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        for name in tuple(self._timers):
            self._stop_timer(name)
        super().connection_lost(exc)

    def head_received(self) -> None:
        """Note that the head of a request has arrived. Other time limits apply from here."""
        self._answering = True
        self._server.begin_request()
        self._stop_timer("head")

    def answer_ready(self) -> None:
        """Note that the answer can be written. The next bytes begin another request."""
        self._answering = False
        self.idle_since = self._server.next_idle_number()
        if self._server.end_request():
            self.close()  # once the answer is written

    def end_if_idle(self) -> None:
        """End the connection if it has no open request."""
        if not self._answering:
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are not HTTP. The parser's text is dropped, because it quotes the client's bytes."""
        self._stop_timer("head")
        log.debug("http_refused", extra={"status": status, "kind": type(exc).__name__})
        return refusal(status, "not HTTP" if status == 400 else "failed")

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log the kind of a failure, never its text."""
        log.warning("http_failed", extra={"kind": type(kw.get("exc_info")).__name__})

    def _start_timer(self, name: str, seconds: float) -> None:
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._abort)

    def _stop_timer(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Server(web.Server):
    """A server that makes our connections and holds its listening sockets."""

    def __init__(self, handler: Handler, limits: ConnectionLimits) -> None:
        super().__init__(handler)
        self._limits = limits
        self._listener: asyncio.Server | None = None
        self._open_requests = 0  # requests whose answer is not ready
        self._ticks = itertools.count()
        self._stopping = False
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

    async def listen(self, bound_socket: socket, context: ssl.SSLContext | None = None) -> None:
        """Accept connections from a bound socket. Call it again with another TLS context for later connections.

        The caller keeps its socket. It is duplicated, so that a new context loses no connection from the queue.
        """
        previous_listener, listening_socket = self._listener, bound_socket.dup()
        self._listener = await asyncio.get_running_loop().create_server(
            self,
            sock=listening_socket,
            backlog=_ACCEPT_BACKLOG,
            ssl=context,
            ssl_handshake_timeout=self._limits.handshake_s if context else None,
        )
        listening_socket.listen(_KERNEL_BACKLOG)
        if previous_listener is not None:
            previous_listener.close()

    def next_idle_number(self) -> int:
        """Return a number that orders the moments at which connections became idle."""
        return next(self._ticks)

    def make_room(self) -> None:
        """Close the connection that has been idle the longest, from the address with the most connections.

        A client that opens many connections loses its own, and a rare probe still finds room. If every connection has
        an open request, the newest connection is closed.
        """
        open_connections = [
            each for each in self.connections if isinstance(each, Connection) and each.transport is not None
        ]
        if len(open_connections) <= self._limits.connections:
            return  # the others end already
        connections_per_peer = Counter(each.peer for each in open_connections)
        idle = [each for each in open_connections if each.is_idle]
        closing_connection = min(
            idle, key=lambda each: (-connections_per_peer[each.peer], each.idle_since), default=open_connections[-1]
        )
        closing_connection.force_close()

    def begin_request(self) -> None:
        """Count one more open request."""
        self._open_requests += 1

    def end_request(self) -> bool:
        """Count one open request less. Return True if its connection must not accept another request."""
        self._open_requests -= 1
        if self._stopping and not self._open_requests:
            self._all_answered.set()
        return self._stopping

    async def close(self, grace_s: float = 3.0) -> None:
        """Stop listening, answer open requests for at most `grace_s` seconds, then close all connections."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        for connection in self.connections:
            connection.end_if_idle()  # type: ignore[attr-defined]
        if self._open_requests:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._all_answered.wait()
        await self.shutdown(grace_s)


def refusal(status: int, why: str) -> web.Response:
    """Return a short JSON error that closes the connection; the rest of the request is not read. why: our own text."""
    body = json.dumps({"Error": why}, separators=(",", ":")).encode()
    response = web.Response(body=body, status=status, content_type="application/json")
    response.force_close()
    return response
