"""Certificates for tests and chaos: an authority, what it signs, and the files that a server reads."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM. ends_s: when it expires, in seconds since 1970."""

    cert: bytes
    key: bytes
    ends_s: float


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """A CA of its own."""

    def __init__(self, name: str = "ca") -> None:
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _name(name)
        identity = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = (
            self._build(self._name, self._key, NOW - DAY, NOW + 90 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)  # without it Python 3.13 trusts no authority
            .add_extension(identity, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def _build(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )

    def sign(
        self,
        name: str,
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH,
        ends: datetime = NOW + 30 * DAY,
    ) -> Pair:
        """Sign a pair for 127.0.0.1, for one use."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert = (
            self._build(_name(name), key, min(NOW, ends) - DAY, ends)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Pair(cert.public_bytes(serialization.Encoding.PEM), _pem(key), ends.timestamp())

    def client(self, name: str = "scheduler", ends: datetime = NOW + 30 * DAY) -> Pair:
        """Sign a pair for a caller."""
        return self.sign(name, ExtendedKeyUsageOID.CLIENT_AUTH, ends)


def caller(authority: Authority, folder: Path, pair: Pair | None = None) -> ssl.SSLContext:
    """Make a client's context that trusts an authority and shows a pair."""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if pair is not None:
        (folder / "caller.pem").write_bytes(pair.key + pair.cert)
        context.load_cert_chain(folder / "caller.pem")
    return context
