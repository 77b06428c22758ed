"""Kubeconfigs with plain credentials: a token, a client certificate, or none. Most kubeconfigs have these.

The Kubernetes library reads all other kubeconfigs: several files, an exec or auth provider, a proxy, a password. It
also reads a kubeconfig with a mistake, and reports the mistake.
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

# The fields of clusters and users that this module reads.
_CLUSTER_FIELDS = {"server", "certificate-authority", "certificate-authority-data", "tls-server-name", "extensions"}
_CLUSTER_FIELDS |= {"insecure-skip-tls-verify"}
_USER_FIELDS = {"token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data"}
_PROXY_VARIABLES = ("https_proxy", "http_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The address of an API server, and credentials that can be read without the Kubernetes library."""

    server: str  # its URL, without a slash at the end
    token: str = ""  # a fixed bearer token, "" for none
    token_file: Path | None = None  # the file of a token, read again on each reload; None for a fixed token or none
    authority: str | Path | None = None  # the CA certificates: PEM, or its file; None for those of the machine
    certificate: bytes | Path | None = None  # the client certificate: PEM, or its file; None for none
    key: bytes | Path | None = None  # the private key of the client certificate: PEM, or its file; None for none
    verify: bool = True  # True if the server's certificate is checked
    server_name: str = ""  # the name in the server's certificate; "" for the host of the URL

    def bearer_token(self) -> str:
        """Return the current bearer token, "" for none.

        Raises OSError if its file cannot be read, and ValueError if it is no UTF-8.
        """
        return self.token if self.token_file is None else self.token_file.read_text().strip()


def kubeconfig_path(kubeconfig: str | None) -> Path | None:
    """Return the path of the kubeconfig in use. The file may not exist.

    kubeconfig: the value of --kubeconfig, None if it is not given. Then in a pod the result is None, because the
    service account is used, even if $KUBECONFIG is set; elsewhere it is $KUBECONFIG, else ~/.kube/config. None also for
    a list of several paths.
    """
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    path_list = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    return None if os.pathsep in path_list else Path(path_list).expanduser()


def read_kubeconfig(path: Path) -> Any:
    """Return the content of a kubeconfig as YAML values, of any type.

    None if it is absent, unreadable, no YAML or nested too deep.
    """
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except Exception:  # for the text of an explicit tag, such as `!!int ''`, yaml raises errors of many types
        return None


def read_namespace(config: Any, context: str | None) -> str | None:
    """Return the namespace of a context, "default" if it names none; None if the context does not exist.

    config: the content of the kubeconfig, of any type. context: its name, None for the current context.
    """
    entry = _find_entry(config, "contexts", _current_context(config, context), "context")
    return None if entry is None else str(entry.get("namespace") or "default")


def read_cluster_access(config: Any, folder: Path, context: str | None) -> ClusterAccess | None:
    """Return the address and credentials of a context; None if only the Kubernetes library can read them.

    That is also the case for a malformed kubeconfig. config: its content, of any type. folder: its folder, from which
    relative paths start. context: its name, None for the current context. The files that it names are not read.
    """
    context_entry = _find_entry(config, "contexts", _current_context(config, context), "context")
    if context_entry is None:
        return None
    cluster = _find_entry(config, "clusters", context_entry.get("cluster"), "cluster")
    user = _find_entry(config, "users", context_entry.get("user"), "user") if context_entry.get("user") else {}
    if cluster is None or user is None or not _has_only_plain_fields(cluster, user):
        return None
    try:
        return ClusterAccess(
            _server_of(cluster),
            str(user.get("token") or ""),
            folder / str(user["tokenFile"]) if user.get("tokenFile") else None,
            _authority(cluster, folder),
            _pem(user, "client-certificate", folder),
            _pem(user, "client-key", folder),
            not cluster.get("insecure-skip-tls-verify"),
            str(cluster.get("tls-server-name") or ""),
        )
    except ValueError:
        return None


def _server_of(cluster: Mapping[str, Any]) -> str:
    """Return the URL of a cluster's server without a slash at the end, "" if it has none."""
    return str(cluster.get("server") or "").rstrip("/")


def _has_only_plain_fields(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> bool:
    """Return True if this module can read a cluster and a user of a kubeconfig.

    That is the case if this module knows all their fields. The user does not have both a token and a tokenFile.
    _is_plain_url() returns True for the server. insecure-skip-tls-verify is a boolean or absent.
    """
    if (
        not cluster.keys() <= _CLUSTER_FIELDS
        or not user.keys() <= _USER_FIELDS
        or (user.get("token") and user.get("tokenFile"))
    ):
        return False
    return _is_plain_url(_server_of(cluster)) and isinstance(cluster.get("insecure-skip-tls-verify", False), bool)


def _is_plain_url(server: str) -> bool:
    """Return True if a URL has only a scheme, a host and perhaps a port and a path, and no proxy may apply to it.

    False also for a scheme other than http and https, and for a URL that cannot be parsed.
    """
    try:
        url = urlsplit(server)
        is_complete = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
    return is_complete and not set("@?#") & set(server) and not _has_proxy(url.hostname or "")


def _current_context(config: Any, context: str | None) -> Any:
    """Return `context`, or the name of the current context if it is None; None if there is none."""
    return context or (config.get("current-context") if isinstance(config, dict) else None)


def _find_entry(config: Any, section: str, name: Any, key: str) -> Mapping[str, Any] | None:
    """Return the content of the entry with this name in a section of a kubeconfig; None unless there is exactly one.

    config: the content of the kubeconfig, of any type. key: the field of an entry that has its content, such as
    "cluster" in the section "clusters". None also for a content that is no object.
    """
    entries = config.get(section) if isinstance(config, dict) else None
    if not isinstance(entries, list) or not name:
        return None
    matches = [each.get(key) for each in entries if isinstance(each, dict) and each.get("name") == name]
    return matches[0] if len(matches) == 1 and isinstance(matches[0], dict) else None


def _authority(cluster: Mapping[str, Any], folder: Path) -> str | Path | None:
    """Return the CA certificates of a cluster as PEM, or their file; None if it has none. Raises ValueError."""
    pem = _pem(cluster, "certificate-authority", folder)
    return pem.decode("ascii") if isinstance(pem, bytes) else pem


def _pem(entry: Mapping[str, Any], key: str, folder: Path) -> bytes | Path | None:
    """Return the decoded PEM in the field `key`-data, else the path in the field `key`; None without both.

    A null or empty field counts as absent. entry: of a cluster or user. folder: from which a relative path starts.
    Raises ValueError if `key`-data is no base64.
    """
    if encoded := entry.get(f"{key}-data"):
        return base64.b64decode(str(encoded), validate=True)
    return folder / str(entry[key]) if entry.get(key) else None


def _has_proxy(host: str) -> bool:
    """Return True if a proxy of the environment may apply to the host: a variable is set, and the host is not this
    machine.
    """
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return not loopback and any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXY_VARIABLES)
