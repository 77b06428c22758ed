"""Accepts connections on a listening socket, and pauses while the process can open no more files.

asyncio's own servers try again as often as their backlog is long, log each try, and so keep a CPU busy meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

FULL_S = 1.0  # pause after running out of file descriptors or memory
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_AT_ONCE = 128  # connections accepted before others of the event loop have their turn


class Acceptor:
    """Makes a protocol for each connection, until closed. listens: listens already; it is the caller's to close."""

    def __init__(self, listens: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        listens.setblocking(False)
        self._listens, self._protocol = listens, protocol
        self._loop = asyncio.get_running_loop()
        self._begins: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listens.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._listens.accept()
            except OSError as error:  # nobody waits any more, a caller left before it was accepted, or files ran out
                if error.errno in _FULL:
                    self._loop.remove_reader(self._listens.fileno())
                    self._pause = self._loop.call_later(FULL_S, self._resume)
                return
            task = self._loop.create_task(self._begin(sock))
            self._begins.add(task)
            task.add_done_callback(self._begins.discard)

    async def _begin(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            await self._loop.connect_accepted_socket(self._protocol, sock)
        except OSError:  # the caller is gone
            sock.close()

    def close(self) -> None:
        """Accept no more connections. Accepted ones stay."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listens.fileno())
