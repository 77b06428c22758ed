"""Accepts connections, and sends and receives frames over asyncio: by a protocol, or by reading a stream.

The format of a frame is in launcher/framing.py.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

from turnout.launcher.coordinator_messages import MAX_BYTES
from turnout.launcher.errors import BadFrame
from turnout.launcher.framing import PREFIX_BYTES, FrameAuth, FrameSplitter, body_bytes, frame

RESOURCE_PAUSE_S = 1.0  # seconds of pause after running out of file descriptors or memory

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_MAX_ACCEPTS = 128  # connections accepted in one turn of the event loop


class Acceptor:
    """Accepts the connections of a listening socket, and makes a protocol for each, until `close`.

    listening_socket: the caller closes it. protocol: makes one connection's protocol.
    """

    def __init__(self, listening_socket: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        listening_socket.setblocking(False)
        self._listening_socket, self._protocol = listening_socket, protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def _resume(self) -> None:
        """Start to accept connections, at first or after a pause."""
        self._pause = None
        self._loop.add_reader(self._listening_socket.fileno(), self._accept)

    def _accept(self) -> None:
        """Accept the waiting connections, at most _MAX_ACCEPTS, and start a task for each.

        Without free file descriptors, accepting pauses for RESOURCE_PAUSE_S seconds.
        """
        for _ in range(_MAX_ACCEPTS):
            try:
                sock, _ = self._listening_socket.accept()
            except OSError as error:  # nobody waits any more, a caller left before it was accepted, or files ran out
                if error.errno in _OUT_OF_RESOURCES:
                    self._loop.remove_reader(self._listening_socket.fileno())
                    self._pause = self._loop.call_later(RESOURCE_PAUSE_S, self._resume)
                return
            task = self._loop.create_task(self._begin(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _begin(self, sock: socket.socket) -> None:
        """Attach a protocol to an accepted socket. The socket is closed if its peer has left."""
        try:
            sock.setblocking(False)
            await self._loop.connect_accepted_socket(self._protocol, sock)
        except OSError:  # the caller is gone
            sock.close()

    def close(self) -> None:
        """Accept no more connections. Accepted ones stay."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening_socket.fileno())


_MAX_UNSENT = 16 << 20  # unsent bytes for one peer, after which it is cut off as not reading


class FrameConnection(asyncio.Protocol):
    """A connection that splits its input into frames. Invalid input aborts it.

    Once `auth` is set, every frame is signed and verified. Subclasses override `on_open`, `on_frame`, which gets each
    frame's body, `on_bad_frame`, and `on_close`, which is called once.
    """

    max_bytes = MAX_BYTES

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.splitter = FrameSplitter(self.max_bytes)
        self.auth: FrameAuth | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a new connection. Called by asyncio."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_MAX_UNSENT)
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peername = transport.get_extra_info("peername")
        self.peer = peername[0] if isinstance(peername, tuple) else ""
        self.on_open()

    def data_received(self, data: bytes) -> None:
        """Pass each complete frame in the received bytes to `on_frame`, until one closes the connection.

        Called by asyncio. A bad frame, or one for which `on_frame` raises BadFrame, aborts the connection. Its fault is
        passed to `on_bad_frame`.
        """
        try:
            for body in self.splitter.split(data):
                self.on_frame(body if self.auth is None else self.auth.open(body))
                if self.transport is None or self.transport.is_closing():
                    return
        except BadFrame as error:
            self.on_bad_frame(str(error))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection. Called by asyncio."""
        self.transport = None
        self.on_close(exc)

    def pause_writing(self) -> None:
        """Abort, since the peer does not read. Called by asyncio."""
        self.abort()

    def send(self, *bodies: bytes) -> None:
        """Send each body as a frame. Nothing is sent if the connection is closed."""
        if self.transport is not None and not self.transport.is_closing():
            sealed = bodies if self.auth is None else map(self.auth.seal, bodies)
            self.transport.write(b"".join(map(frame, sealed)))

    def close(self) -> None:
        """Close the connection after everything is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection now."""
        if self.transport is not None:
            self.transport.abort()

    def on_open(self) -> None:
        """Handle the new connection. Does nothing here."""

    def on_frame(self, body: bytes) -> None:
        """Handle the body of one frame. May raise BadFrame. Does nothing here."""

    def on_close(self, why: Exception | None) -> None:
        """Handle the end of the connection. why: the error, None for a normal end. Does nothing here."""

    def on_bad_frame(self, fault: str) -> None:
        """Handle invalid input from the peer, before the connection is aborted. Does nothing here."""


_READ_BYTES = 64 << 10


class ReadToEndProtocol(asyncio.StreamReaderProtocol):
    """The protocol of one connection of a Unix socket, whose stream gets every byte that the peer has sent.

    asyncio's own protocol drops what it has not read yet if the peer closes the connection without reading all that was
    sent to it. Here the stream always ends as after a normal end. serve: called with the stream and its writer; None
    for nothing, see `open_local_stream`.
    """

    def __init__(
        self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None
    ) -> None:
        self.stream, self._fd = asyncio.StreamReader(), -1
        super().__init__(self.stream, serve)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a new connection. Called by asyncio."""
        self._fd = transport.get_extra_info("socket").fileno()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream, after the bytes that the kernel still has for it. Called by asyncio before it closes the
        socket.
        """
        if exc is not None:
            with suppress(OSError):  # no more bytes
                while data := os.read(self._fd, _READ_BYTES):
                    self.stream.feed_data(data)
        super().connection_lost(None)


async def open_local_stream(sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a stream of all that the peer of a connected Unix socket sends, and the writer to the peer.

    The writer closes the socket. It raises ConnectionError at `drain` if the peer is gone; the stream ends then after
    all that the peer has sent.
    """
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(ReadToEndProtocol, sock=sock)
    return protocol.stream, asyncio.StreamWriter(transport, protocol, protocol.stream, loop)


async def next_frame(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """Read the body of the next frame.

    Raises BadFrame for a body of 0 or more than `max_bytes` bytes, IncompleteReadError if the stream ends before or in
    the frame, and OSError if the connection fails.
    """
    header = await reader.readexactly(PREFIX_BYTES)
    return await reader.readexactly(body_bytes(header, max_bytes))
