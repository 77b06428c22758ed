"""A proxy before the API server for one program alone.

When shut, it cuts every connection and accepts no other. It may pass on late what the API server says.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.kit.listener import Listener


class Proxy:
    """Passes bytes on to the API server while it is open. To be used with `async with`."""

    def __init__(self, url):
        self._behind = urlsplit(url)
        self._open, self.late_s = True, 0.0
        self._passing: set[asyncio.Task] = set()
        self._listener = Listener(self._pass)

    async def __aenter__(self):
        self.port = await self._listener.open()
        return self

    async def __aexit__(self, *_):
        self._open = False
        await self._listener.close()

    def open(self):
        """Let connections pass from now on."""
        self._open = True

    def shut(self):
        """Cut every connection."""
        self._open = False
        for task in self._passing:
            task.cancel()

    def kubeconfig(self, direct, folder):
        """Write a kubeconfig that leads through the proxy. Returns its path."""
        config = yaml.safe_load(Path(direct).read_text())
        for each in config["clusters"]:
            each["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        path = folder / "through-the-proxy"
        path.write_text(yaml.safe_dump(config))
        return path

    async def _pass(self, reader, writer):
        if not self._open:
            return
        their_reader, back = await asyncio.open_connection(self._behind.hostname, self._behind.port)
        async with closed(back):
            if not self._open:
                return
            task = asyncio.gather(copy(reader, back), copy(their_reader, writer, lambda: self.late_s))
            self._passing.add(task)
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await task
            self._passing.discard(task)


@contextlib.asynccontextmanager
async def closed(writer):
    """Close a writer after the block, and wait until it is closed."""
    try:
        yield
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def copy(source, sink, late_s=lambda: 0.0):
    """Pass on what comes until it ends, each chunk so many seconds late."""
    while chunk := await source.read(1 << 16):
        await asyncio.sleep(late_s())
        sink.write(chunk)
        await sink.drain()
    sink.close()
