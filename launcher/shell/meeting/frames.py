"""Frames over asyncio: a connection that is told of each, and the next one of a stream. How they look: framing.py."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from turnout.launcher.errors import BadFrame
from turnout.launcher.framing import PREFIX_BYTES, FrameSplitter, body_bytes
from turnout.launcher.wire import MOST_BYTES

_MOST_UNSENT = 16 << 20  # bytes waiting for one peer: past that it does not read, and is cut off


class Frames(asyncio.Protocol):
    """Cuts what comes into frames. A peer that sends anything else is cut off.

    Overridden: `opened`, `took` for each frame's body, `closed` once.
    """

    most_bytes = MOST_BYTES

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.splitter = FrameSplitter(self.most_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_MOST_UNSENT)
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peername = transport.get_extra_info("peername")
        self.peer = peername[0] if isinstance(peername, tuple) else ""
        self.opened()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        try:
            for body in self.splitter.split(data):
                self.took(body)
                if self.transport is None or self.transport.is_closing():
                    return
        except BadFrame as error:
            self.bad(str(error))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is no more."""
        self.transport = None
        self.closed(exc)

    def pause_writing(self) -> None:
        """asyncio: the peer does not read."""
        self.abort()

    def send(self, data: bytes) -> None:
        """Send ready-made bytes; nothing when the connection is gone."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Close once all is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close now."""
        if self.transport is not None:
            self.transport.abort()

    def opened(self) -> None:
        """The connection stands."""

    def took(self, body: bytes) -> None:
        """One frame came. May raise BadFrame."""

    def closed(self, why: Exception | None) -> None:
        """The connection is gone."""

    def bad(self, fault: str) -> None:
        """The peer sent what is no frame."""


async def next_frame(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """Read one body. Raises BadFrame, OSError, and IncompleteReadError where the stream ends before it is whole."""
    header = await reader.readexactly(PREFIX_BYTES)
    return await reader.readexactly(body_bytes(header, max_bytes))
