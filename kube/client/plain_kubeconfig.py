"""Kubeconfigs with plain credentials, as most have: a token, a client certificate, or none.

The Kubernetes library reads all others: several files, an exec or auth provider, a proxy, a password. It also reads a
kubeconfig with a fault, because it reports the fault.
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
    """The address and credentials of an API server, which need nothing but files."""

    server: str  # URL without a slash at its end
    token: str = ""
    token_file: Path | None = None  # read again on each reload; None for a fixed token or none
    authority: str | Path | None = None  # PEM, or its file; None for those that the machine trusts
    certificate: bytes | Path | None = None  # PEM, or its file
    key: bytes | Path | None = None
    verify: bool = True  # check the server's certificate
    server_name: str = ""  # in the server's certificate, where that is another than its URL's

    def bearer(self) -> str:
        """Return the current token, "" for none. Raises OSError."""
        return self.token if self.token_file is None else self.token_file.read_text().strip()


def kubeconfig_path(kubeconfig: str | None) -> Path | None:
    """Return the path of the only kubeconfig in use; None in a pod, or if several are merged."""
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    path_list = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    return None if os.pathsep in path_list else Path(path_list).expanduser()


def read_kubeconfig(path: Path) -> Any:
    """Return the content of a kubeconfig; None if it cannot be read."""
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return None


def namespace_in(config: Any, context: str | None) -> str | None:
    """Return the namespace of a context, "default" if it names none; None if the context does not exist."""
    entry = _find_entry(config, "contexts", _current_context(config, context), "context")
    return None if entry is None else str(entry.get("namespace") or "default")


def access_in(config: Any, folder: Path, context: str | None) -> Access | None:
    """Return the access of a context; None if only the library can read it. folder: the folder of the kubeconfig."""
    context_entry = _find_entry(config, "contexts", _current_context(config, context), "context")
    if context_entry is None:
        return None
    cluster = _find_entry(config, "clusters", context_entry.get("cluster"), "cluster")
    user = _find_entry(config, "users", context_entry.get("user"), "user") if context_entry.get("user") else {}
    if cluster is None or user is None or not _has_only_plain_fields(cluster, user):
        return None
    try:
        return Access(
            _server_of(cluster),
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


def _server_of(cluster: Mapping[str, Any]) -> str:
    return str(cluster.get("server") or "").rstrip("/")


def _has_only_plain_fields(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> bool:
    """Return True if a server and its user have only fields that this module reads, with values of their types."""
    if not cluster.keys() <= _CLUSTER or not user.keys() <= _USER or ("token" in user and "tokenFile" in user):
        return False
    return _is_plain(_server_of(cluster)) and isinstance(cluster.get("insecure-skip-tls-verify", False), bool)


def _is_plain(server: str) -> bool:
    """Return True if a URL has a scheme, a host, and perhaps a port and a path, and no proxy may apply to it."""
    try:
        url = urlsplit(server)
        is_complete = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
    return is_complete and not set("@?#") & set(server) and not _has_proxy(url.hostname or "")


def _current_context(config: Any, context: str | None) -> Any:
    return context or (config.get("current-context") if isinstance(config, dict) else None)


def _find_entry(config: Any, section: str, name: Any, key: str) -> Mapping[str, Any] | None:
    """Return the entry of a section with this name; None unless there is exactly one."""
    entries = config.get(section) if isinstance(config, dict) else None
    if not isinstance(entries, list) or not name:
        return None
    matches = [each.get(key) for each in entries if isinstance(each, dict) and each.get("name") == name]
    return matches[0] if len(matches) == 1 and isinstance(matches[0], dict) else None


def _authority(cluster: Mapping[str, Any], folder: Path) -> str | Path | None:
    pem = _pem(cluster, "certificate-authority", folder)
    return pem.decode("ascii") if isinstance(pem, bytes) else pem


def _pem(entry: Mapping[str, Any], key: str, folder: Path) -> bytes | Path | None:
    """Return a PEM as bytes, or its file; None if the entry has none. Raises ValueError."""
    if f"{key}-data" in entry:
        return base64.b64decode(str(entry[f"{key}-data"]), validate=True)
    return folder / str(entry[key]) if key in entry else None


def _has_proxy(host: str) -> bool:
    """Return True if a proxy of the environment may apply to the host."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return not loopback and any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)
