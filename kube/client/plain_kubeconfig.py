"""Kubeconfigs that hold their credentials themselves, as most do: a token, a certificate, or neither.

Whatever else there may be (several files, a program or a provider to ask, a proxy, a password) is left to the library,
which reads it all. So is a file with a fault: the library reports it.
"""

from __future__ import annotations

import base64
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_CLUSTER = {"server", "certificate-authority", "certificate-authority-data", "tls-server-name", "extensions"}
_CLUSTER |= {"insecure-skip-tls-verify"}
_USER = {"token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data"}
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class Access:
    """A way to an API server that needs nothing but files."""

    server: str  # URL without a slash at its end
    token: str = ""
    token_file: Path | None = None
    authority: str | Path | None = None  # PEM, or its file; None for those that the machine trusts
    certificate: bytes | Path | None = None  # PEM, or its file
    key: bytes | Path | None = None
    verify: bool = True
    server_name: str = ""  # in the server's certificate, where that is another than its URL's

    def bearer(self) -> str:
        """Return the token as it is now, "" for none. Raises OSError."""
        return self.token if self.token_file is None else self.token_file.read_text().strip()


def path_of(named: str | None) -> Path | None:
    """Return the one kubeconfig that is in use; None in a pod, or where several are merged."""
    if named is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    text = named or os.environ.get("KUBECONFIG") or "~/.kube/config"
    return None if os.pathsep in text else Path(text).expanduser()


def read(path: Path) -> Any:
    """Return what a kubeconfig holds; None if it cannot be read."""
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return None


def namespace_in(config: Any, context: str | None) -> str | None:
    """Return the namespace of a context, "default" if it names none; None if there is no such context."""
    found = _named(config, "contexts", _current(config, context), "context")
    return None if found is None else str(found.get("namespace") or "default")


def access_in(config: Any, folder: Path, context: str | None) -> Access | None:
    """Return the way to the server of a context; None if the library has to find it. folder: of the kubeconfig."""
    chosen = _named(config, "contexts", _current(config, context), "context")
    if chosen is None:
        return None
    cluster = _named(config, "clusters", chosen.get("cluster"), "cluster")
    user = _named(config, "users", chosen.get("user"), "user") if chosen.get("user") else {}
    if cluster is None or user is None or not cluster.keys() <= _CLUSTER or not user.keys() <= _USER:
        return None
    server = str(cluster.get("server") or "").rstrip("/")
    if not _is_plain(server) or ("token" in user and "tokenFile" in user):
        return None
    if not isinstance(cluster.get("insecure-skip-tls-verify", False), bool):
        return None
    try:
        return Access(
            server,
            str(user.get("token") or ""),
            folder / str(user["tokenFile"]) if "tokenFile" in user else None,
            _authority(cluster, folder),
            _pem(user, "client-certificate", folder),
            _pem(user, "client-key", folder),
            not cluster.get("insecure-skip-tls-verify"),
            str(cluster.get("tls-server-name") or ""),
        )
    except ValueError:
        return None


def _is_plain(server: str) -> bool:
    """True if a URL has a scheme, a host and perhaps a port and a path, and no proxy may be meant for it."""
    try:
        url = urlsplit(server)
        fine = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
    return fine and not set("@?#") & set(server) and not _proxied(url.hostname or "")


def _current(config: Any, context: str | None) -> Any:
    return context or (config.get("current-context") if isinstance(config, dict) else None)


def _named(config: Any, section: str, name: Any, key: str) -> Mapping[str, Any] | None:
    """Return the one entry of a section that has the name."""
    entries = config.get(section) if isinstance(config, dict) else None
    if not isinstance(entries, list) or not name:
        return None
    found = [each.get(key) for each in entries if isinstance(each, dict) and each.get("name") == name]
    return found[0] if len(found) == 1 and isinstance(found[0], dict) else None


def _authority(cluster: Mapping[str, Any], folder: Path) -> str | Path | None:
    pem = _pem(cluster, "certificate-authority", folder)
    return pem.decode("ascii") if isinstance(pem, bytes) else pem


def _pem(holder: Mapping[str, Any], key: str, folder: Path) -> bytes | Path | None:
    """Return PEM, or its file. Raises ValueError."""
    if f"{key}-data" in holder:
        return base64.b64decode(str(holder[f"{key}-data"]), validate=True)
    return folder / str(holder[key]) if key in holder else None


def _proxied(host: str) -> bool:
    """True if a proxy of the environment may be meant for the host."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return not loopback and any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)
