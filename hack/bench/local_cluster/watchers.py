"""Watchers of pods, many in one process: `python -m hack.bench.local_cluster.watchers URL HOW_MANY PODS`.

Each has a connection of its own and reads every byte; it counts pods that have come to run rather than decoding them,
so that what is measured is the server. Prints `ready` once all watch, then one JSON line: when each had seen all pods
run (seconds by the machine's clock), and how many were cut off before.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

RUNS = b'"phase":"Running"'
_PATH = "/api/v1/pods?watch=1&resourceVersion=1&allowWatchBookmarks=true"


class Watcher(asyncio.Protocol):
    """One watch of all pods. done_s: when it had seen `pods` running pods, seconds since 1970; 0.0 before."""

    def __init__(self, path: str, pods: int) -> None:
        self.path = path
        self.pods, self.running_pods, self.bytes, self.done_s = pods, 0, 0, 0.0
        self.begun, self.done = asyncio.Event(), asyncio.Event()
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(f"GET {self.path}{_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        """Count the running pods in received bytes, also those that two blocks share. Called by asyncio."""
        self.begun.set()
        self.bytes += len(data)
        block = self._tail + data
        self.running_pods += block.count(RUNS)
        self._tail = block[-len(RUNS) + 1 :]
        if self.running_pods >= self.pods and not self.done_s:
            self.done_s = time.time()
            self.done.set()

    def connection_lost(self, error: Exception | None) -> None:
        """End the waits for this watch: the server or the network closed it."""
        self.begun.set()
        self.done.set()


async def watch(url: str, how_many: int, pods: int) -> None:
    """Run `how_many` watches until each has seen `pods` running pods or was closed; print the times as JSON.

    url: of the API server. Prints "ready" when all watches have begun.
    """
    loop = asyncio.get_running_loop()
    watchers, parts = [], urlsplit(url)
    address = parts.hostname or "", parts.port or 0
    for _ in range(how_many):
        _, watcher = await loop.create_connection(lambda: Watcher(parts.path, pods), *address)
        watchers.append(watcher)
    await asyncio.gather(*(each.begun.wait() for each in watchers))
    print("ready", flush=True)
    await asyncio.gather(*(each.done.wait() for each in watchers))
    end_times_s = [each.done_s for each in watchers if each.done_s]
    results = {"done_s": end_times_s, "cut_off": len(watchers) - len(end_times_s), "mib": watchers[0].bytes / 2**20}
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
