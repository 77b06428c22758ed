"""The shipped KubeSchedulerConfiguration with the API server, extender and TLS files of one run.

Tests start kube-scheduler with it, which also tests the file in deploy/scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hack.controlplane.certs import Pair

FOLDER = Path(__file__).parents[2] / "deploy" / "scheduler"
SHIPPED = FOLDER / "kube-scheduler-config.yaml"
SHIPPED_KOORDINATOR = FOLDER / "koord-scheduler-config.yaml"
# Names for the serving certificate of a test's extender; the shipped file names the Service.
EXTENDER_HOSTS = ("127.0.0.1", "localhost", "turnout-extender.turnout-system.svc")
FAST_CLIENT = {
    "qps": 5000,
    "burst": 5000,
}  # with the default, a benchmark would measure the limit of 50 binds per second


def with_connection(config: Path | Mapping[str, Any] | None, kubeconfig: Path) -> dict[str, Any]:
    """Return a scheduler configuration with this kubeconfig, a fast client and no leader election; all else is
    unchanged.

    config: a file, its content, or None for the defaults.
    """
    content = yaml.safe_load(config.read_text()) if isinstance(config, Path) else dict(config or {})
    content.setdefault("apiVersion", "kubescheduler.config.k8s.io/v1")
    content.setdefault("kind", "KubeSchedulerConfiguration")
    content["clientConnection"] = {**content.get("clientConnection", {}), **FAST_CLIENT, "kubeconfig": str(kubeconfig)}
    content["leaderElection"] = {"leaderElect": False}
    return content


def with_extender_url(
    url: str, ca: Path | None = None, client: Pair | None = None, file: Path = SHIPPED
) -> dict[str, Any]:
    """Return the shipped configuration with its one extender at this URL (http:// or https://, without a verb).

    ca: CA of an https extender. client: the certificate that the scheduler shows, None for none. Raises ValueError for
    https without a CA. file: the shipped one.
    """
    config: dict[str, Any] = yaml.safe_load(file.read_text())
    (extender,) = config["extenders"]
    extender["urlPrefix"] = url
    extender["enableHTTPS"] = url.startswith("https://")
    tls = extender.pop("tlsConfig")
    if extender["enableHTTPS"]:
        if ca is None:
            raise ValueError("an https extender needs the CA: without one kube-scheduler does not verify at all")
        files = {"certFile": str(client.cert), "keyFile": str(client.key)} if client else {}
        unread = {"caFile", "certFile", "keyFile"}
        extender["tlsConfig"] = {**{k: v for k, v in tls.items() if k not in unread}, "caFile": str(ca), **files}
    return config
