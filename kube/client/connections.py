"""The sockets of an HTTP client, so that none outlives its loop.

aiohttp takes leave on a TLS connection on which an answer was not read to its end, and does not wait for the other
side. A loop that ends before leaves the socket open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Any, Self

TURNS, TURN_S = 5_000, 0.001


class Connections:
    """Sockets made for a `TCPConnector`, as its `socket_factory`. With `async with` they are cut off at its end."""

    def __init__(self) -> None:
        self._made: list[socket.socket] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.cut()

    def __call__(self, address: tuple[Any, ...]) -> socket.socket:
        """Make a socket for an address, as `getaddrinfo` gives it."""
        family, kind, protocol, *_ = address
        self._made = [*self._open(), made := socket.socket(family, kind, protocol)]
        return made

    async def cut(self) -> None:
        """Cut off what is still there, after the session is closed, and wait until it is closed too.

        Raises TimeoutError where somebody keeps one open.
        """
        for each in self._open():
            with contextlib.suppress(OSError):  # it is closed at the other end, or was never connected
                each.shutdown(socket.SHUT_RDWR)
        for _ in range(TURNS):
            if not self._open():
                return
            await asyncio.sleep(TURN_S)
        raise TimeoutError(f"sockets that nobody closes: {self._open()}")

    def _open(self) -> list[socket.socket]:
        return [each for each in self._made if each.fileno() != -1]
