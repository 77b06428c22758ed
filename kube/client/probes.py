"""The pages that every service of ours has: alive, ready or why not, and metrics.

How they are served, and with which limits, is the caller's. Source: docs/contract.md CS-21
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge

from turnout.kube.version import build

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Page = Callable[[web.BaseRequest], web.Response]


def probe_pages(unready: Callable[[], str | None], metrics: Callable[[], bytes]) -> dict[str, Page]:
    """Make the pages, by path. unready: why the service is not ready, None if it is. metrics: Prometheus' text."""

    def readyz(_: web.BaseRequest) -> web.Response:
        why = unready()
        return text(200, "ok") if why is None else text(503, why)

    def scrape(_: web.BaseRequest) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": _METRICS_TYPE})

    return {"/healthz": lambda _: text(200, "ok"), "/readyz": readyz, "/metrics": scrape}


def build_info(registry: CollectorRegistry) -> None:
    """Add turnout_build_info, which is always 1: which version serves this page."""
    told = Gauge("turnout_build_info", "The build that runs.", ["version", "commit"], registry=registry)
    made = build()
    told.labels(made.version, made.commit).set(1)


def text(status: int, line: str) -> web.Response:
    """Answer with one line."""
    return web.Response(text=line + "\n", status=status)


@asynccontextmanager
async def served(host: str, port: int, pages: Mapping[str, Page]) -> AsyncIterator[int]:
    """Serve these pages until the block ends; the port that was taken. Raises OSError for one that somebody has."""

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
