"""Give a pod what programs in a cluster expect of one: the API server's address and the service account's files.

Source: Kubernetes' document on accessing the API from a pod.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Object = Mapping[str, Any]
FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, slots=True)
class InCluster:
    """The part of a container that is its account's: variables, and files in FOLDER."""

    env: Mapping[str, str]
    files: Mapping[str, bytes]


def in_cluster(config: Object, read: Callable[[Path], bytes] = Path.read_bytes) -> InCluster | None:
    """Work it out from a kubeconfig. None if that has no token, or leads to a server without TLS.

    read: reads the CA's file, where it is not in the kubeconfig itself.
    """
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    where = urlsplit(cluster["server"])
    if where.scheme != "https" or not user.get("token"):
        return None
    coded, path = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
    ca = base64.b64decode(coded) if coded else read(Path(path)) if path else b""
    env = {"KUBERNETES_SERVICE_HOST": where.hostname or "", "KUBERNETES_SERVICE_PORT": str(where.port or 443)}
    namespace = str(config["contexts"][0]["context"].get("namespace") or "default")
    return InCluster(env, {"token": user["token"].encode(), "ca.crt": ca, "namespace": namespace.encode()})
