"""Load the server's certificate and the CA of its callers, and load them again when the files change.

A context is made anew each time and never altered, so a CA that was removed is no longer trusted. listeners.py applies
a new context to connections. A pair that cannot be used never replaces one that can. Source: docs/facts/reliability.md
2 and fault 22
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from turnout.scheduler_ext.model import BadCertificate
from turnout.scheduler_ext.server.metrics import Metrics

log = logging.getLogger("turnout.extender")

_SEQUENCE, _EXPLICIT_0, _UTC_TIME = 0x30, 0xA0, 0x17


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    cert: Path
    key: Path
    client_ca: Path | None = None  # callers must show a certificate that it signed; None asks for none

    def paths(self) -> tuple[Path, ...]:
        """Return the paths of every file that is read."""
        return (self.cert, self.key) + ((self.client_ca,) if self.client_ca else ())


class Certificates:
    """The context in use, which follows the files. Raises BadCertificate if the first pair is bad."""

    def __init__(self, files: TlsFiles, metrics: Metrics) -> None:
        self._files, self._metrics = files, metrics
        self._files_digest = _digest(files)
        self.context = make_context(files)
        self._expiry_s = self._take_expiry()
        self._last_fault = ""

    def refresh(self, now_s: float) -> bool:
        """Read the files again. True when `context` is a new one.

        now_s: wall clock, seconds.
        """
        try:
            digest = _digest(self._files)
            if digest == self._files_digest:  # as in use; or put back to it after a bad one
                self._last_fault = ""
                return False
            context = make_context(self._files)
            expiry_s = expiry(self._files.cert)
            if _digest(self._files) != digest:  # changed under our hands: the next look will see all of it
                return False
            if expiry_s <= now_s < self._expiry_s:
                raise BadCertificate("the new certificate has expired")
        except BadCertificate as error:
            return self._refuse(error)
        self._files_digest, self.context, self._last_fault = digest, context, ""
        self._expiry_s = self._take_expiry()
        self._metrics.tls_reloads.labels("taken").inc()
        log.info("certificate_taken", extra={"expires_s": int(self._expiry_s)})
        return True

    def _refuse(self, error: BadCertificate) -> bool:
        if error.fault != self._last_fault:  # once, not at every look
            self._last_fault = error.fault
            self._metrics.tls_reloads.labels("refused").inc()
            log.error("certificate_refused", extra={"why": error.fault})
        return False

    def _take_expiry(self) -> float:
        expiry_s = expiry(self._files.cert)
        self._metrics.certificate_ends(expiry_s)
        return expiry_s


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Build a context for TLS 1.2 or newer. Raises BadCertificate.

    With a client CA, callers without its certificate are refused.
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
    """Return when the first certificate of a PEM file ends, in seconds since 1970. Raises BadCertificate."""
    try:
        text = cert.read_text("ascii")
        end = "-----END CERTIFICATE-----"
        body = text[text.index("-----BEGIN CERTIFICATE-----") + 27 : text.index(end)]
        return _not_after(base64.b64decode(body))
    except (OSError, ValueError, IndexError, binascii.Error) as error:
        raise BadCertificate(f"{cert.name} does not tell when it ends: {error}") from error


def _digest(files: TlsFiles) -> bytes:
    """Hash the contents of the files. A Secret's mount changes by a link, so times of files say little."""
    try:
        return b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files.paths())
    except OSError as error:
        raise BadCertificate(f"{error.filename} cannot be read: {error.strerror}") from error


def _not_after(der: bytes) -> float:
    """Return tbsCertificate.validity.notAfter, in seconds since 1970. Source: RFC 5280, 4.1"""
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
    """Return one DER element: its tag, its contents, and where the next one begins."""
    tag, length, start = der[position], der[position + 1], position + 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[position + 2 : start], "big")
    if start + length > len(der):
        raise ValueError("cut off")
    return tag, der[start : start + length], start + length
