"""Probes and metrics over plain HTTP: alive, ready once every list has been seen, and the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from turnout.autoscaler.controller.metrics import Metrics
from turnout.kube.client.probes import probe_pages


@asynccontextmanager
async def probes(host: str, port: int, metrics: Metrics, ready: Callable[[], bool]) -> AsyncIterator[int]:
    """Serve until the block ends; the port that was taken. Raises OSError for one that somebody has."""
    pages = probe_pages(lambda: None if ready() else "no whole list yet", metrics.page)

    async def answer(request: web.Request) -> web.Response:
        return pages[request.path](request)

    app = web.Application(client_max_size=1024)
    app.add_routes([web.get(path, answer) for path in pages])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
