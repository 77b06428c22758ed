"""The sockets of an HTTP client, closed before its event loop ends.

If an answer was not read to its end, aiohttp begins to close the TLS connection and does not wait for the other side. A
loop that ends earlier would leave the socket open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Any, Self

CLOSE_CHECKS, CLOSE_CHECK_S = 5_000, 0.001  # checks of whether all sockets are closed, seconds between two checks


class Connections:
    """A `socket_factory` for aiohttp's `TCPConnector`. As an async context it closes all its sockets at its end."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close_all()

    def __call__(self, address: tuple[Any, ...]) -> socket.socket:
        """Make a socket and remember it, so that close_all() closes it. address: as an item of the result of
        `getaddrinfo`.
        """
        family, kind, protocol, *_ = address
        self._sockets = [*self._open_sockets(), new_socket := socket.socket(family, kind, protocol)]
        return new_socket

    async def close_all(self) -> None:
        """Shut down the sockets that are still open, and wait until all are closed. Call it after the session was
        closed.

        Raises TimeoutError if a socket is still open after CLOSE_CHECKS checks.
        """
        for each in self._open_sockets():
            with contextlib.suppress(OSError):  # the other end closed it, or it was never connected
                each.shutdown(socket.SHUT_RDWR)
        for _ in range(CLOSE_CHECKS):
            if not self._open_sockets():
                return
            await asyncio.sleep(CLOSE_CHECK_S)
        raise TimeoutError(f"sockets that nobody closes: {self._open_sockets()}")

    def _open_sockets(self) -> list[socket.socket]:
        """Return the sockets that are not closed."""
        return [each for each in self._sockets if each.fileno() != -1]
