"""Open and close the ports of an extender, and reload the certificate when its files change. `http.py` answers.

Each change of the files builds a new TLS context, so a removed CA is no longer trusted. A certificate that cannot be
used never replaces a usable one. Source: docs/facts/reliability.md 2 and fault 22
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from turnout.kube.client.clock import Clock
from turnout.kube.server.http_connection import ConnectionLimits, Server
from turnout.kube.server.sockets import allow_files, bind, limit_connections
from turnout.scheduler_ext.model import BadCertificate
from turnout.scheduler_ext.server.http import WEBHOOK, HealthPages, VerbHandler
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.requests import ExtenderVerbs

log = logging.getLogger("turnout.extender")

_SEQUENCE, _EXPLICIT_0, _UTC_TIME = 0x30, 0xA0, 0x17


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    cert: Path
    key: Path
    client_ca: Path | None = None  # the CA of the certificates that callers must show; None for no client certificates

    def paths(self) -> tuple[Path, ...]:
        """Return the paths of every file that is read."""
        return (self.cert, self.key) + ((self.client_ca,) if self.client_ca else ())


class Certificates:
    """The context in use, which follows the files. Raises BadCertificate if the first pair is bad."""

    def __init__(self, files: TlsFiles, metrics: Metrics) -> None:
        """Load the certificate, and show when it ends as a metric.

        Raises BadCertificate if a file cannot be read or used. An expired certificate is accepted here.
        """
        self._files, self._metrics = files, metrics
        self._files_hash = _content_hash(files)
        self.context = make_context(files)
        self._expiry_s = self._take_expiry()
        self._last_fault = ""

    def refresh(self, now_s: float) -> bool:
        """Load the certificate files again if they have changed.

        Returns True if `context` is a new one. Returns False if nothing has changed, the files changed while they were
        read, or the new certificate was refused. A refusal is logged and counted, unless the last check found the same
        fault.

        now_s: wall clock, seconds: an expired certificate does not replace a valid one.
        """
        try:
            content_hash = _content_hash(self._files)
            if content_hash == self._files_hash:  # unchanged, or restored after a bad change
                self._last_fault = ""
                return False
            context = make_context(self._files)
            expiry_s = expiry(self._files.cert)
            if _content_hash(self._files) != content_hash:  # changed during the read: the next check reads all of it
                return False
            if expiry_s <= now_s < self._expiry_s:
                raise BadCertificate("the new certificate has expired")
        except BadCertificate as error:
            return self._refuse(error)
        self._files_hash, self.context, self._last_fault = content_hash, context, ""
        self._expiry_s = self._take_expiry()
        self._metrics.tls_reloads.labels("taken").inc()
        log.info("certificate_taken", extra={"expires_s": int(self._expiry_s)})
        return True

    def _refuse(self, error: BadCertificate) -> bool:
        """Count and log a fault of the files, unless the last check found the same fault. Returns False."""
        if error.fault != self._last_fault:  # once, not at every check
            self._last_fault = error.fault
            self._metrics.tls_reloads.labels("refused").inc()
            log.error("certificate_refused", extra={"why": error.fault})
        return False

    def _take_expiry(self) -> float:
        expiry_s = expiry(self._files.cert)
        self._metrics.set_certificate_expiry(expiry_s)
        return expiry_s


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Build a context for TLS 1.2 or newer. Raises BadCertificate if a file cannot be loaded.

    With a client CA, callers without a certificate of this CA are refused.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A key behind a passphrase must not ask for it on a terminal.
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadCertificate(f"{files.cert.name}, {files.key.name} or the client CA does not load: {error}") from error
    return context


def expiry(cert: Path) -> float:
    """Return when the first certificate of a PEM file ends, in seconds since 1970.

    Raises BadCertificate if the file cannot be read or holds no certificate.
    """
    try:
        text = cert.read_text("ascii")
        end = "-----END CERTIFICATE-----"
        body = text[text.index("-----BEGIN CERTIFICATE-----") + 27 : text.index(end)]
        return _not_after(base64.b64decode(body))
    except (OSError, ValueError, IndexError, binascii.Error) as error:
        raise BadCertificate(f"{cert.name} does not tell when it ends: {error}") from error


def _content_hash(files: TlsFiles) -> bytes:
    """Return a hash of the contents of the files. Raises BadCertificate if one cannot be read.

    Kubernetes replaces a mounted Secret by switching a symbolic link, so a file's modification time does not show a
    change.
    """
    try:
        return b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files.paths())
    except OSError as error:
        raise BadCertificate(f"{error.filename} cannot be read: {error.strerror}") from error


def _not_after(der: bytes) -> float:
    """Return tbsCertificate.validity.notAfter, in seconds since 1970. Raises ValueError or IndexError for other bytes.

    der: an X.509 certificate. Source: RFC 5280, 4.1
    """
    _, certificate, _ = _element(der, 0)
    _, tbs, _ = _element(certificate, 0)
    position = 0
    tag, _, after = _element(tbs, position)
    if tag == _EXPLICIT_0:  # the version, absent in v1
        position = after
    for _ in range(3):  # serial number, signature algorithm, issuer
        _, _, position = _element(tbs, position)
    tag, validity, _ = _element(tbs, position)
    if tag != _SEQUENCE:
        raise ValueError("no validity")
    _, _, position = _element(validity, 0)
    tag, text, _ = _element(validity, position)
    date_text = text.decode("ascii")
    if tag == _UTC_TIME:  # two digits of a year: 50 and above are of the last century
        date_text = ("19" if date_text[:2] >= "50" else "20") + date_text
    return datetime.strptime(date_text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, position: int) -> tuple[int, bytes, int]:
    """Return one DER element: its tag, its contents, and the position after it.

    Raises ValueError if the element is cut off, IndexError if its head is.
    """
    tag, length, start = der[position], der[position + 1], position + 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[position + 2 : start], "big")
    if start + length > len(der):
        raise ValueError("cut off")
    return tag, der[start : start + length], start + length


CERTIFICATE_CHECK_S = 5.0  # between two checks of the certificate's files


@dataclass(frozen=True, slots=True)
class Listen:
    """The addresses to listen on. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 8888
    health_host: str = "127.0.0.1"
    health_port: int = 8889
    tls: TlsFiles | None = None


class Listeners:
    """The open ports, within `async with`.

    `async with` raises OSError if a port cannot be opened, and BadCertificate if a file of the certificate cannot be
    used.
    """

    def __init__(
        self, extender: ExtenderVerbs, metrics: Metrics, listen: Listen, limits: ConnectionLimits | None = None
    ) -> None:
        """Prepare the ports; `async with` opens them. limits: of connections and bodies; None for the defaults."""
        self._verbs = VerbHandler(extender, metrics, limit_connections(limits or ConnectionLimits(), allow_files()))
        self._health = HealthPages(extender, metrics)
        self._metrics, self._listen = metrics, listen
        self._certificates: Certificates | None = None
        self._sockets: list[socket.socket] = []
        self._servers: list[Server] = []

    @property
    def port(self) -> int:
        """The port of the verbs. Only within `async with`: else it raises IndexError."""
        return int(self._sockets[0].getsockname()[1])

    @property
    def health_port(self) -> int:
        """The port of probes and metrics. Only within `async with`: else it raises IndexError."""
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
        """Check the certificate's files every few seconds until cancelled. Returns at once without TLS.

        New connections get the new certificate; open connections keep theirs.
        """
        while self._certificates is not None:
            await clock.sleep(CERTIFICATE_CHECK_S)
            if self._certificates.refresh(clock.wall()):
                await self._servers[0].listen(self._sockets[0], self._certificates.context)

    def leave(self) -> None:
        """Report "not ready" but still answer, in the time between SIGTERM and the end of new calls."""
        self._health.leave()

    async def _close(self) -> None:
        """Close all servers and sockets."""
        for server in self._servers:
            await server.close()
        for bound in self._sockets:
            bound.close()
        self._sockets, self._servers = [], []


class WebhookPort:
    """The open port of the webhook alone, within `async with`.

    `async with` raises OSError if the port cannot be opened, and BadCertificate if a file of the certificate cannot be
    used.
    """

    def __init__(self, extender: ExtenderVerbs, metrics: Metrics, host: str, port: int, tls: TlsFiles) -> None:
        """Prepare the port; `async with` opens it. host, port: to listen on; port 0 takes a free one."""
        limits = limit_connections(ConnectionLimits(), allow_files())
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
        """Check the certificate's files every few seconds until cancelled. New connections get the new certificate."""
        while self._certificates is not None and self._socket is not None:
            await clock.sleep(CERTIFICATE_CHECK_S)
            if self._certificates.refresh(clock.wall()):
                await self._server.listen(self._socket, self._certificates.context)
