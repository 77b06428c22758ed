"""Makes the SSH keys of a job, its user's and that of its hosts. They live in a Secret that nobody here reads."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

_CONFIG = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"


def new_keys() -> dict[str, str]:
    """Return the files of a ~/.ssh: a user's key pair that opens every host with it, and the hosts' own key."""
    (private, public), (host, _) = _pair(), _pair()
    return {
        "id_ecdsa": private,
        "id_ecdsa.pub": public,
        "authorized_keys": public,
        "ssh_host_ecdsa_key": host,
        "config": _CONFIG,
    }


def _pair() -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()} turnout\n"
