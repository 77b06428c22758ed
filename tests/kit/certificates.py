"""Certificates for tests of TLS: an authority of its own, what it signs as bytes, and a caller that trusts it."""

import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hack.controlplane import certs

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM. ends_s: when it expires, in seconds since 1970."""

    cert: bytes
    key: bytes
    ends_s: float


class Authority:
    """A CA whose pairs are for 127.0.0.1."""

    def __init__(self, name="ca"):
        with tempfile.TemporaryDirectory() as folder:
            self._signs = certs.Authority(Path(folder), name)
            self.pem = self._signs.ca.read_bytes()

    def sign(self, name, ends=NOW + 30 * DAY):
        """Sign a pair for a server."""
        return self._pair(lambda: self._signs.server(name, ("127.0.0.1",), ends), ends)

    def client(self, name="scheduler", ends=NOW + 30 * DAY):
        """Sign a pair for a caller."""
        return self._pair(lambda: self._signs.user(name, (), ends), ends)

    def _pair(self, sign, ends):
        with tempfile.TemporaryDirectory() as folder:
            self._signs.folder = Path(folder)
            pair = sign()
            return Pair(pair.cert.read_bytes(), pair.key.read_bytes(), ends.timestamp())


def caller(authority, folder, pair=None):
    """Make a client's context that trusts an authority and shows a pair."""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if pair is not None:
        (folder / "caller.pem").write_bytes(pair.key + pair.cert)
        context.load_cert_chain(folder / "caller.pem")
    return context
