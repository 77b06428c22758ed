"""An embedded Kubernetes API on a loopback port, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from kube.times import rfc3339
from simulator.api.faults import Faults
from simulator.api.kubeconfig import kubeconfig as kubeconfig_of
from simulator.api.shell.logs import Logs
from simulator.api.shell.rim import application, first_namespaces
from simulator.api.shell.watch import Watches
from simulator.api.store import Store


@dataclass(frozen=True, slots=True)
class Served:
    """A running API. url: without a slash at its end. kubeconfig: the file that was asked for, if one was."""

    url: str
    store: Store
    kubeconfig: Path | None


@asynccontextmanager
async def serve(
    kubeconfig: Path | None = None,
    port: int = 0,
    bookmark_s: float = 60.0,
    kept_changes: int = 10_000,
    logs: Logs | None = None,
    listening: socket.socket | None = None,
) -> AsyncIterator[Served]:
    """Serve until the block ends; the port is closed and every watch ended then.

    kubeconfig: where to write one that points here. port: 0 for a free one. kept_changes: of each kind, for watches.
    logs: who keeps what pods wrote. listening: a socket to serve, in place of a port.
    """
    store = Store(_now, lambda: str(uuid.uuid4()), kept_changes)
    first_namespaces(store)
    watches = Watches(store, bookmark_s)
    runner = web.AppRunner(application(store, watches, Faults(), logs), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.SockSite(runner, listening) if listening else web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        if kubeconfig is not None:
            await asyncio.to_thread(_write, kubeconfig, kubeconfig_of(url))
        yield Served(url, store, kubeconfig)
    finally:
        await watches.stop()
        await runner.cleanup()


def _now(later_s: float = 0) -> str:
    return rfc3339(time.time() + later_s)


def _write(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)
