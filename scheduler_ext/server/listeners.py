"""Open and close the two ports of an extender together: the verbs, with TLS if asked for, and the plain pages.

http_handlers.py and health.py decide what is answered.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from types import TracebackType

from turnout.kube.client.clock import Clock
from turnout.kube.server.http_connection import Limits, Server
from turnout.kube.server.sockets import allow_files, bind, limit_connections
from turnout.scheduler_ext.server.dispatcher import ExtenderVerbs
from turnout.scheduler_ext.server.health import HealthPages
from turnout.scheduler_ext.server.http_handlers import WEBHOOK, VerbHandler
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.tls import Certificates, TlsFiles

CERTIFICATE_CHECK_S = 5.0  # between looks at the certificate's files


@dataclass(frozen=True, slots=True)
class Listen:
    """The addresses to listen on. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 8888
    health_host: str = "127.0.0.1"
    health_port: int = 8889
    tls: TlsFiles | None = None


class Listeners:
    """The open ports, within `async with`. Raises OSError or BadCertificate when they cannot be opened."""

    def __init__(self, extender: ExtenderVerbs, metrics: Metrics, listen: Listen, limits: Limits | None = None) -> None:
        self._verbs = VerbHandler(extender, metrics, limit_connections(limits or Limits(), allow_files()))
        self._health = HealthPages(extender, metrics)
        self._metrics, self._listen = metrics, listen
        self._certificates: Certificates | None = None
        self._sockets: list[socket.socket] = []
        self._servers: list[Server] = []

    @property
    def port(self) -> int:
        """The port of the verbs."""
        return int(self._sockets[0].getsockname()[1])

    @property
    def health_port(self) -> int:
        """The port of probes and metrics."""
        return int(self._sockets[1].getsockname()[1])

    async def __aenter__(self) -> Listeners:
        listen = self._listen
        if listen.tls is not None:
            self._certificates = Certificates(listen.tls, self._metrics)
        try:
            for host, port in ((listen.host, listen.port), (listen.health_host, listen.health_port)):
                self._sockets.append(bind(host, port))
            self._servers = [self._verbs.server(), self._health.server()]
            context = self._certificates.context if self._certificates else None
            await self._servers[0].listen(self._sockets[0], context)
            await self._servers[1].listen(self._sockets[1])
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def follow(self, clock: Clock) -> None:
        """Check the certificate's files every few seconds until cancelled. Open connections keep their certificate."""
        while self._certificates is not None:
            await clock.sleep(CERTIFICATE_CHECK_S)
            if self._certificates.refresh(clock.wall()):
                await self._servers[0].listen(self._sockets[0], self._certificates.context)

    def leave(self) -> None:
        """Report "not ready" but still answer, in the time between SIGTERM and the end of new calls."""
        self._health.leave()

    async def _close(self) -> None:
        for server in self._servers:
            await server.close()
        for bound in self._sockets:
            bound.close()
        self._sockets, self._servers = [], []


class WebhookPort:
    """The open port of the webhook alone, within `async with`. Raises OSError or BadCertificate."""

    def __init__(self, extender: ExtenderVerbs, metrics: Metrics, host: str, port: int, tls: TlsFiles) -> None:
        limits = limit_connections(Limits(), allow_files())
        self._server = VerbHandler(extender, metrics, limits, paths=WEBHOOK).server()
        self._metrics, self._at, self._tls = metrics, (host, port), tls
        self._certificates: Certificates | None = None
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port that is listened at."""
        assert self._socket is not None
        return int(self._socket.getsockname()[1])

    async def __aenter__(self) -> WebhookPort:
        self._certificates = Certificates(self._tls, self._metrics)
        self._socket = bind(*self._at)
        await self._server.listen(self._socket, self._certificates.context)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()
        if self._socket is not None:
            self._socket.close()

    async def follow(self, clock: Clock) -> None:
        """Check the certificate's files every few seconds until cancelled."""
        while self._certificates is not None and self._socket is not None:
            await clock.sleep(CERTIFICATE_CHECK_S)
            if self._certificates.refresh(clock.wall()):
                await self._server.listen(self._socket, self._certificates.context)
