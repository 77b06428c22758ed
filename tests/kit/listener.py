"""Serve streams in a test so that no caller's connection outlives it.

One that does is collected later, and its warning fails whatever test runs then.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress


class Listener:
    """Calls `serve` with each caller's streams."""

    def __init__(self, serve):
        self._serve, self._server = serve, None
        self._writers, self._tasks = [], []

    async def open(self, host="127.0.0.1", port=0):
        """Listen, and give the port."""
        self._server = await asyncio.start_server(self._accept, host, port)
        return self._server.sockets[0].getsockname()[1]

    async def close(self):
        """Cut off whoever is there. Raises what a call of `serve` raised, but for errors of its connection."""
        for each in self._server.sockets:  # no caller is accepted from now on
            asyncio.get_running_loop().remove_reader(each.fileno())
        for _ in range(3):  # turns from accepting a caller to `_accept`; a server that closes meanwhile loses it
            await asyncio.sleep(0)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # the turn in which what was aborted is closed
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def _accept(self, reader, writer):
        # No coroutine: a caller's task may be cancelled before its first line, and nobody would close the connection.
        self._writers.append(writer)
        self._tasks.append(asyncio.create_task(self._each(reader, writer)))

    async def _each(self, reader, writer):
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def serving(serve, host="127.0.0.1", port=0):
    """Listen until the block ends. Gives the port."""
    listener = Listener(serve)
    try:
        yield await listener.open(host, port)
    finally:
        await listener.close()
