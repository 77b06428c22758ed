"""Read the server and the credentials from a kubeconfig that a local cluster or control plane of ours wrote."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import msgspec


class NoAccess(Exception):
    """A kubeconfig that cannot be read, or lacks the server or the user."""


@dataclass(frozen=True, slots=True)
class LocalClusterAccess:
    """The server of a local cluster, and the credentials for it."""

    url: str  # without a slash at its end
    token: str = ""  # "" for no credentials
    ca_pem: str = ""  # PEM of the CA that signs the server; "" for none


def read_kubeconfig(text: bytes) -> LocalClusterAccess:
    """Return the access in a kubeconfig in JSON: of its first cluster the server and the CA, of its first user the
    token.

    Raises NoAccess if it is no such JSON, or lacks the server or the user.
    """
    try:
        config = msgspec.json.decode(text)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        ca_pem = base64.b64decode(cluster.get("certificate-authority-data") or "").decode()
        return LocalClusterAccess(str(cluster["server"]).rstrip("/"), str(user.get("token") or ""), ca_pem)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoAccess(f"it is no kubeconfig of a local cluster: {error}") from error
