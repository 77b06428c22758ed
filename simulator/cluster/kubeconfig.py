"""Where an API server is and who calls it, read from a kubeconfig as our own yards and control planes write them."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import msgspec


class NoAccess(Exception):
    """The kubeconfig cannot be read, or says too little."""


@dataclass(frozen=True, slots=True)
class Access:
    """url: without a slash at its end. token: "" for nobody. authority: PEM of who signs the server, "" for none."""

    url: str
    token: str = ""
    authority: str = ""


def read(text: bytes) -> Access:
    """The access that a kubeconfig of ours gives: JSON, one cluster, one user with a token. Raises NoAccess."""
    try:
        config = msgspec.json.decode(text)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster.get("certificate-authority-data") or "").decode()
        return Access(str(cluster["server"]).rstrip("/"), str(user.get("token") or ""), authority)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoAccess(f"it is no kubeconfig of a yard: {error}") from error
