"""The pages of every service: `/healthz` (liveness), `/readyz` (readiness or the reason against it) and `/metrics`.

A service adds its other pages. Source: docs/contract.md CS-21
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, Gauge

from turnout.kube.server.http_connection import Connection, ConnectionLimits, Server, refusal
from turnout.kube.server.sockets import allow_files, bind
from turnout.kube.version import installed_build

LIMITS = ConnectionLimits(
    max_body_bytes=0, max_connections=64, max_in_flight=64
)  # few files: a service needs its own for its watches
LEAVE_S = 1.0  # for answers to open requests when the server ends

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Page = Callable[[web.BaseRequest], web.Response]  # returns the answer to a GET


def probe_pages(unready_reason: Callable[[], str | None], metrics: Callable[[], bytes]) -> dict[str, Page]:
    """Return the pages /healthz, /readyz and /metrics by path. /healthz always answers 200.

    unready_reason: returns why the service is not ready, None if it is ready. metrics: returns the series in the text
    format of Prometheus.
    """

    def readyz(_: web.BaseRequest) -> web.Response:
        """Answer 200 if the service is ready, else 503 with the reason."""
        why = unready_reason()
        return text(200, "ok") if why is None else text(503, why)

    def scrape(_: web.BaseRequest) -> web.Response:
        """Answer with the series."""
        return web.Response(body=metrics(), headers={"Content-Type": _METRICS_TYPE})

    return {"/healthz": lambda _: text(200, "ok"), "/readyz": readyz, "/metrics": scrape}


def register_build_info(registry: CollectorRegistry, component: str) -> None:
    """Register turnout_build_info, a gauge that is always 1 and names the component, the version and the commit.

    component: the name of the program, such as turnout-extender.
    """
    gauge = Gauge("turnout_build_info", "The build that runs.", ["component", "version", "commit"], registry=registry)
    build = installed_build()
    gauge.labels(component, build.version, build.commit).set(1)


def leading_gauge(registry: CollectorRegistry, component: str) -> Gauge:
    """Register turnout_leading, and return the series of this component, which is 0 until the caller sets it."""
    return Gauge("turnout_leading", "1 while this replica leads.", ["component"], registry=registry).labels(component)


def text(status: int, line: str) -> web.Response:
    """Return an answer of one line of plain text."""
    return web.Response(text=line + "\n", status=status)


def pages_server(pages: Mapping[str, Page], limits: ConnectionLimits = LIMITS) -> Server:
    """Return a server of these pages that does not listen yet. pages: by path. Bodies of requests are not read.

    It answers 404 for another path, and 405 for a method other than GET and HEAD.
    """

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        """Answer a GET of one page; 404 for another path, 405 for another method."""
        connection = request.protocol
        if isinstance(connection, Connection):
            connection.head_received()
            connection.response_ready()
        page = pages.get(request.path)
        if page is None:
            return refusal(404, "no such page")
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            return refusal(405, "only GET")
        return page(request)

    return Server(handle, limits)


@asynccontextmanager
async def serve_pages(
    host: str, port: int, pages: Mapping[str, Page], limits: ConnectionLimits = LIMITS
) -> AsyncIterator[int]:
    """Serve these pages until the block ends, and yield the port. Raises OSError if the port is in use.

    host: an IP address. port: 0 for any free port. pages: by path. The limit of open files of this process is
    increased, too.
    """
    allow_files()
    server = pages_server(pages, limits)
    with bind(host, port) as listening:
        await server.listen(listening)
        try:
            yield int(listening.getsockname()[1])
        finally:
            await server.close(LEAVE_S)
