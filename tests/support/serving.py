"""Serve streams in a test so that no caller's connection outlives it.

One that does is collected later, and its warning fails whatever test runs then.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def serving(serve, host="127.0.0.1", port=0):
    """Call `serve` with each caller's streams, and give the port. Whoever is there at the end is cut off."""
    callers = set()

    async def each(reader, writer):
        callers.add(asyncio.current_task())
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(each, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(3):  # whoever was accepted just now gets to the first line of `each`
            await asyncio.sleep(0)
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
