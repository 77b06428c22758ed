"""Keys and certificates of one control plane: short-lived files in its folder, signed by its own authority."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs servers and users. Kubernetes reads a user's name from CN and its groups from O."""

    def __init__(self, folder: Path, name: str = "turnout-test-ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        builder = builder.add_extension(_KEY_USAGE_CA, critical=True)
        self.pair = self._write("ca", builder.sign(self._key, hashes.SHA256()), self._key)

    @property
    def ca(self) -> Path:
        """Return the file of the authority's own certificate, which clients and servers trust."""
        return self.pair.cert

    def server(
        self, name: str, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), ends: datetime.datetime | None = None
    ) -> Pair:
        """Create a key and a serving certificate for DNS names and IP addresses; return their files.

        ends: when it expires, None for VALID from now on. hosts: the names and addresses. name: of the files and the
        subject.
        """
        return self._issue(name, name, (), ExtendedKeyUsageOID.SERVER_AUTH, hosts, ends)

    def user(self, name: str, groups: tuple[str, ...] = (), ends: datetime.datetime | None = None) -> Pair:
        """Create a key and a client certificate; return their files. groups: the user's. ends: as in `server`."""
        return self._issue(f"user-{name.replace(':', '-').replace('/', '-')}", name, groups, _CLIENT, (), ends)

    def _issue(
        self,
        file: str,
        name: str,
        groups: tuple[str, ...],
        use: x509.ObjectIdentifier,
        hosts: tuple[str, ...],
        ends: datetime.datetime | None,
    ) -> Pair:
        """Create a key and sign a certificate for it; return their files.

        file: name without its ending. name, groups: of the subject. use: the extended key usage. hosts: names and
        addresses. ends: as in `server`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
            + [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        )
        builder = self._builder(subject, key.public_key(), ends)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
        return self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime.datetime | None = None
    ) -> x509.CertificateBuilder:
        """Return a certificate builder with subject, issuer, key and validity. ends: None for VALID from now on."""
        now = datetime.datetime.now(datetime.UTC)
        ends = ends or now + VALID
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, ends) - datetime.timedelta(hours=1))
            .not_valid_after(ends)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    def _write(self, file: str, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
        """Write a certificate and its key into the folder; return their files. file: name without its ending."""
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        pair.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        write_key(pair.key, key)
        return pair


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key as PEM, without a password, into the file `path`. Only the owner can read a new file."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def signing_key(path: Path) -> Path:
    """Create the private key that signs the tokens of service accounts, write it to `path`, and return the path."""
    write_key(path, ec.generate_private_key(ec.SECP256R1()))
    return path


def _host(host: str) -> x509.GeneralName:
    """Return a host as an IP address, or as a DNS name if it is no IP address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


_CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
_KEY_USAGE_CA = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
