"""Makes the SSH keys of a job, its user's and that of its hosts. They live in a Secret that nobody here reads."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

_CONFIG = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"


def new_keys(name: str) -> dict[str, str]:
    """Return the files of a ~/.ssh: a user's key pair that opens every host with it, and the hosts' own key.

    name: of the private key's file, id_ecdsa or id_rsa.
    """
    (private, public), (host, _) = _pair(rsa_=name == "id_rsa"), _pair()
    return {
        name: private,
        f"{name}.pub": public,
        "authorized_keys": public,
        "ssh_host_ecdsa_key": host,
        "config": _CONFIG,
    }


def _pair(*, rsa_: bool = False) -> tuple[str, str]:
    key = rsa.generate_private_key(65_537, 2_048) if rsa_ else ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()} turnout\n"
