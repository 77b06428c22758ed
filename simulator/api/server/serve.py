"""Run an embedded Kubernetes API on a loopback port for as long as a block lasts."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from turnout.kube.times import rfc3339
from turnout.simulator.api.fault_injection import FaultRules
from turnout.simulator.api.kubeconfig import kubeconfig as kubeconfig_of
from turnout.simulator.api.kubeconfig import prefix
from turnout.simulator.api.server.handlers import application, first_namespaces, new_token
from turnout.simulator.api.server.logs import Logs
from turnout.simulator.api.server.watch import WatchServer
from turnout.simulator.api.store import Store


class Served:
    """A running API."""

    def __init__(
        self, store: Store, kubeconfig: Path | None, bookmark_s: float, pod_logs: Logs | None, token: str
    ) -> None:
        """Make a server that does not listen yet: then `address` (the URL) and `url` (with the token in its path, a
        secret) are "".

        kubeconfig: the file that was written for it, None for none. bookmark_s: seconds between bookmarks. pod_logs:
        the output of pods; None for none. token: which callers must send.
        """
        self.address, self.url, self.store, self.kubeconfig, self.token = "", "", store, kubeconfig, token
        self._bookmark_s, self._logs = bookmark_s, pod_logs
        self._port = 0
        self._watches: WatchServer | None = None
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0, listening: socket.socket | None = None) -> None:
        """Listen and answer requests in the background, and set `address` and `url`.

        port: on loopback, 0 for any free port. listening: a bound socket to use instead of a port. Raises OSError if
        the port is in use.
        """
        self._watches = WatchServer(self.store, self._bookmark_s)
        app = application(self.store, self._watches, FaultRules(), self.token, self._logs)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.SockSite(self._runner, listening) if listening else web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{self._port}"
        self.url = self.address + prefix(self.token)

    async def stop(self) -> None:
        """End every watch and close the port. Do nothing if it was not started."""
        if self._watches is not None and self._runner is not None:
            await self._watches.stop()
            await self._runner.cleanup()

    async def restart(self, after_s: float) -> None:
        """Stop for `after_s` seconds, then start on the same port with all objects. Connections and watches end.

        Injected faults are lost. Raises OSError if another program has taken the port; then nothing listens.
        """
        await self.stop()
        await asyncio.sleep(after_s)
        await self.start(self._port)


@asynccontextmanager
async def serve(
    kubeconfig: Path | None = None,
    port: int = 0,
    bookmark_s: float = 60.0,
    kept_changes: int = 10_000,
    logs: Logs | None = None,
    listening: socket.socket | None = None,
    token: str = "",
) -> AsyncIterator[Served]:
    """Serve a new, empty API until the block ends. Then the port is closed and every watch ends.

    kubeconfig: a file to write that points here, None for none. port: on loopback, 0 for any free one. bookmark_s:
    seconds between bookmarks. kept_changes: changes of each kind that the store keeps for watches. logs: the output of
    pods; None for none. listening: a bound socket to use instead of a port. token: which callers must send, "" for a
    new one. Raises OSError if the port is in use, or the kubeconfig cannot be written.
    """
    store = Store(_now, lambda: str(uuid.uuid4()), kept_changes)
    first_namespaces(store)
    served = Served(store, kubeconfig, bookmark_s, logs, token or new_token())
    try:
        await served.start(port, listening)
        if kubeconfig is not None:
            await asyncio.to_thread(_write, kubeconfig, kubeconfig_of(served.address, served.token))
        yield served
    finally:
        await served.stop()


def _now(later_s: float = 0) -> str:
    """Return the time in `later_s` seconds, as RFC 3339."""
    return rfc3339(time.time() + later_s)


def _write(file: Path, text: str) -> None:
    """Write a new file that only its owner can read. An existing file is replaced. Raises OSError."""
    file.unlink(missing_ok=True)  # it may be an older one that others can read
    file.touch(mode=0o600, exist_ok=False)
    file.write_text(text)
