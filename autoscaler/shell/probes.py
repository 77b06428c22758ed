"""Probes and metrics over plain HTTP: alive, ready once every list has been seen, and the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from turnout.autoscaler.shell.metrics import Metrics

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def probes(host: str, port: int, metrics: Metrics, ready: Callable[[], bool]) -> AsyncIterator[int]:
    """Serve until the block ends; the port that was taken. Raises OSError for one that somebody has."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"Content-Type": _TEXT})

    async def alive(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def is_ready(request: web.Request) -> web.Response:
        return web.Response(text="ok") if ready() else web.Response(status=503, text="no whole list yet")

    app = web.Application(client_max_size=1024)
    app.add_routes([web.get("/metrics", page), web.get("/healthz", alive), web.get("/readyz", is_ready)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
