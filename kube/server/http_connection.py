"""The connections of our HTTP servers, with the limits that aiohttp lacks.

The head of a request must arrive in time, the client must read an answer in time, and the number of connections is
limited. The bytes of an invalid request are never shown, neither to the client nor in a log. The handler that the
server is given makes the answers.
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

_KERNEL_BACKLOG = 512  # connections that wait in the kernel's queue
# asyncio accepts as many connections at once, before they count towards the limit; more could use up all files.
_ACCEPT_BACKLOG = 16
_LAST_WAIT_S = 0.05  # aiohttp waits so long, twice, for handlers that are still open at the end
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one server. Times are in seconds. A slow client is cut off by `head_s`, `body_s` and `write_s`."""

    max_body_bytes: int = 32 << 20  # of the body of one request
    max_all_bodies_bytes: int = 128 << 20  # of the bodies that are being read, of all requests together
    head_s: float = 2.0  # from the first byte of a request to the end of its head
    body_s: float = 2.0  # from the end of its head to the end of its body
    write_s: float = 5.0  # until the client has read enough of an answer that did not fit in the socket's buffer
    handshake_s: float = 5.0  # of a TLS handshake
    keepalive_s: float = 120.0  # without a request; above Go's idle timeout of 90 s, so that Go closes first
    max_age_s: float = 1.0  # a request that waited longer is answered without work
    max_in_flight: int = 64  # requests that are answered at once
    max_waiting: int = 256  # requests that wait until one of the `max_in_flight` is answered
    wait_s: float = 1.0  # the longest wait of such a request
    max_connections: int = 1024  # max open connections; a new one above it closes the longest idle one


class Timers:
    """The time limits of a connection, by name. expire: called when one of them ends."""

    __slots__ = ("_expire", "_handles")

    def __init__(self, expire: Callable[[], None]) -> None:
        """Start without a timer. The class docstring explains the argument."""
        self._expire = expire
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def start(self, name: str, seconds: float) -> None:
        """Call `expire` after some seconds, unless the timer is stopped before.

        name: of the timer, which must not be running.
        """
        self._handles[name] = asyncio.get_running_loop().call_later(seconds, self._expire)

    def is_running(self, name: str) -> bool:
        """Return True if a timer was started, and not stopped since."""
        return name in self._handles

    def stop(self, name: str) -> None:
        """Stop a timer; do nothing if it does not run."""
        if (timer := self._handles.pop(name, None)) is not None:
            timer.cancel()

    def stop_all(self) -> None:
        """Stop every timer."""
        for timer in self._handles.values():
            timer.cancel()
        self._handles.clear()


class Connection(RequestHandler):
    """A connection of aiohttp's protocol with time limits for the client.

    When a time limit is exceeded, it is aborted.
    """

    def __init__(self, server: Server, limits: ConnectionLimits, **options: Any) -> None:
        """Make an idle connection of a server. options: those of aiohttp's RequestHandler."""
        super().__init__(server, **options)
        self._server, self._limits = server, limits
        self._timers = Timers(self._abort)
        self.is_idle = True  # False from the end of a request's head until its answer is ready
        self.peer = ""  # the IP address of the client
        self.idle_since = server.next_idle_number()  # orders connections by the time at which they became idle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the client's address. If there are now too many connections, let the server close one."""
        super().connection_made(transport)
        self.peer = str((transport.get_extra_info("peername") or [""])[0])
        if len(self._server.connections) > self._limits.max_connections:
            self._server.make_room()

    def data_received(self, data: bytes) -> None:
        """Pass bytes of the client to aiohttp. The first bytes of a request start the time limit of its head."""
        if data and self.is_idle and not self._timers.is_running("head"):
            self._timers.start("head", self._limits.head_s)
        super().data_received(data)

    def pause_writing(self) -> None:
        """Stop writing until the client has read more, within a time limit."""
        super().pause_writing()
        self._timers.start("write", self._limits.write_s)

    def resume_writing(self) -> None:
        """Continue writing, because the client has read enough."""
        self._timers.stop("write")
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop all timers of the closed connection."""
        self._timers.stop_all()
        super().connection_lost(exc)

    def head_received(self) -> None:
        """Mark the connection as busy. The handler of the server calls this when it gets a request."""
        self.is_idle = False
        self._server.begin_request()
        self._timers.stop("head")

    def response_ready(self) -> None:
        """End the request: the response is ready, and the connection is idle. The next bytes begin another request.

        If the server is stopping, close the connection after the response is written.
        """
        self.is_idle = True
        self.idle_since = self._server.next_idle_number()
        if self._server.end_request():
            self.close()  # aiohttp writes the answer first

    def end_if_idle(self) -> None:
        """End the connection if it has no open request."""
        if self.is_idle:
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to bytes that are not HTTP, or to a failed handler. It closes the connection.

        status, exc: those of aiohttp. The text of the error is not used, because it may contain bytes of the client;
        its class is logged.
        """
        self._timers.stop("head")
        log.debug("http_refused", extra={"status": status, "kind": type(exc).__name__})
        return refusal(status, "not HTTP" if status == 400 else "failed")

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log the class of an exception, never its text."""
        log.warning("http_failed", extra={"kind": type(kw.get("exc_info")).__name__})

    def _abort(self) -> None:
        """Close the connection at once, without writing the rest of an answer."""
        if self.transport is not None:
            self.transport.abort()


class Server(web.Server):
    """An HTTP server that applies ConnectionLimits to its connections."""

    def __init__(self, handler: Handler, limits: ConnectionLimits) -> None:
        """Make a server that does not listen yet. handler: returns the answer to a request."""
        super().__init__(handler)
        self._limits = limits
        self._listener: asyncio.Server | None = None
        self._open_requests = 0  # requests whose answer is not ready
        self._idle_numbers = itertools.count()
        self._stopping = False
        self._is_drained = asyncio.Event()

    def __call__(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(
            self,
            self._limits,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,  # a compressed body is refused without reading it
            keepalive_timeout=self._limits.keepalive_s,
            lingering_time=1.0,
            read_bufsize=1 << 18,
        )

    async def listen(self, bound_socket: socket, context: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket. Call it again to use another TLS context for later connections.

        context: of TLS, None for plain HTTP. The socket is duplicated: the caller still has to close its own. A call
        with a new context loses no connection that waits in the kernel's queue.
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
        """Return a number that is higher than all earlier ones, to order the times at which connections became idle."""
        return next(self._idle_numbers)

    def make_room(self) -> None:
        """Close one connection if more than the limit are open: the one that has been idle the longest.

        It is chosen from the address with the most connections, so a client that opens many connections loses its own,
        and a rare probe still finds room. If every connection has an open request, the newest connection is closed.
        """
        open_connections = [
            each for each in self.connections if isinstance(each, Connection) and each.transport is not None
        ]
        if len(open_connections) <= self._limits.max_connections:
            return  # enough connections are being closed already
        connections_per_peer = Counter(each.peer for each in open_connections)
        idle = [each for each in open_connections if each.is_idle]
        closing_connection = min(
            idle, key=lambda each: (-connections_per_peer[each.peer], each.idle_since), default=open_connections[-1]
        )
        closing_connection.force_close()

    def begin_request(self) -> None:
        """Count one more request whose answer is not ready."""
        self._open_requests += 1

    def end_request(self) -> bool:
        """Subtract one open request.

        Return True if the server is stopping; the caller must then close the connection.
        """
        self._open_requests -= 1
        if self._stopping and not self._open_requests:
            self._is_drained.set()
        return self._stopping

    async def close(self, grace_s: float = 3.0) -> None:
        """Stop listening, close idle connections, wait for the answers to open requests, then close all connections.

        grace_s: the longest wait in seconds, until the answers are written. A handler that has not ended by then is
        cancelled and not waited for; the call takes at most grace_s + 2 * _LAST_WAIT_S.
        """
        deadline_s = asyncio.get_running_loop().time() + grace_s
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        for connection in self.connections:
            connection.end_if_idle()  # type: ignore[attr-defined]
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                if self._open_requests:
                    await self._is_drained.wait()
                await self.shutdown(grace_s)
        await self.shutdown(_LAST_WAIT_S)


def refusal(status: int, why: str) -> web.Response:
    """Return a short JSON error that closes the connection, so that the rest of the request is not read.

    status: of HTTP. why: the message, which must not contain text of the client.
    """
    body = json.dumps({"Error": why}, separators=(",", ":")).encode()
    response = web.Response(body=body, status=status, content_type="application/json")
    response.force_close()
    return response
