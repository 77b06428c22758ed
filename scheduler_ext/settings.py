"""The settings of the extender and the nominator, with their defaults, checked when they are built."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnout.jobs.reservation import CONFIGMAP
from turnout.kube.cli_flags import (
    BadSetting,
    add_log_and_docs_flags,
    check_name,
    check_url,
    parse_address,
    parse_settings,
)
from turnout.kube.labels import GPU_RESOURCES
from turnout.kube.version import add_version
from turnout.scheduler_ext.model import Rules


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """The settings that the extender and the nominator share."""

    kubeconfig: str | None = None  # its path; None for the pod's ServiceAccount, else the user's own
    context: str | None = None  # of the kubeconfig; None for the current one
    configmap: str = "turnout-system/node-topology-config"  # namespace/name
    reservations: str = CONFIGMAP  # namespace/name of the ConfigMap of reserved nodes
    metrics_bind: str = "127.0.0.1:9090"  # host:port; port 0 takes a free one
    tls_cert: Path | None = None  # PEM certificate chain; None for plain HTTP
    tls_key: Path | None = None  # PEM key of tls_cert
    client_ca: Path | None = None  # PEM of the CA that signs the certificates of callers; None for any caller
    hold_incomplete_gangs: bool = False  # refuse a gang's pods until as many exist as must start together
    confirm_large_changes: bool = False  # hold a map that moves many hosts until an admin confirms it
    asw_only: bool = False  # only membership of the leaf switch counts as nearness
    gpu_resource: tuple[str, ...] = GPU_RESOURCES  # names of the resources that count as GPUs
    strict_queue: tuple[str, ...] = ()  # QUEUE or NAMESPACE/QUEUE whose gangs start in order
    read_queues: bool = False  # also take the order of queues from their objects in the cluster
    docs_base_url: str = ""  # of the docs site, "" for none
    log_level: str = "info"

    def check(self) -> None:
        """Raise BadSetting for an invalid shared setting."""
        check_name(self.configmap, "--configmap")
        check_name(self.reservations, "--reservations")
        parse_address(self.metrics_bind, "--metrics-bind")
        check_url(self.docs_base_url, "--docs-base-url")

    def rules(self) -> Rules:
        """Return the settings that decide on placements."""
        return Rules(self.hold_incomplete_gangs, self.asw_only, self.gpu_resource, frozenset(self.strict_queue))


@dataclass(frozen=True, slots=True)
class Settings(SharedSettings):
    """The settings of the extender."""

    bind: str = "127.0.0.1:9443"  # host:port; port 0 takes a free one
    port_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise BadSetting("--tls-cert and --tls-key go together")
        if self.client_ca is not None and self.tls_cert is None:
            raise BadSetting("--client-ca needs --tls-cert and --tls-key")
        parse_address(self.bind, "--bind")
        self.check()


def extender_settings(argv: Sequence[str] | None) -> Settings:
    """Read the command line of the extender. A bad command line ends the program with code 2."""
    return parse_settings(parser(), Settings, argv)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the extender's command line."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="turnout-extender", description="Tell kube-scheduler which nodes keep a gang under the fewest switches."
    )
    add_version(parser)
    add_common(parser, default.configmap, default.metrics_bind)
    parser.add_argument("--bind", default=default.bind, help="where the verbs are served (%(default)s)")
    parser.add_argument("--tls-cert", type=Path, help="PEM certificate chain; read again when it changes")
    parser.add_argument("--tls-key", type=Path, help="PEM key of --tls-cert")
    parser.add_argument("--client-ca", type=Path, help="callers must show a certificate signed by this CA (mTLS)")
    parser.add_argument("--port-file", type=Path, help="write the verbs' port here once listening")
    return parser


def add_common(parser: argparse.ArgumentParser, configmap: str, metrics_bind: str) -> None:
    """Add the flags that the extender and the nominator share. configmap, metrics_bind: defaults of these flags."""
    parser.add_argument("--kubeconfig", help="kubeconfig file (default: the pod's ServiceAccount, else your own)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--configmap", default=configmap, help="namespace/name of the topology (%(default)s)")
    parser.add_argument(
        "--reservations",
        default=CONFIGMAP,
        help="namespace/name of the ConfigMap in which the nominator reserves nodes (%(default)s)",
    )
    parser.add_argument(
        "--metrics-bind", default=metrics_bind, help="where probes and metrics are served (%(default)s)"
    )
    parser.add_argument(
        "--hold-incomplete-gangs",
        action="store_true",
        help="refuse a gang's pods until as many exist as must start together; leave off beside a gang scheduler",
    )
    parser.add_argument(
        "--confirm-large-changes",
        action="store_true",
        help="hold a map that moves over 30%% of the hosts until confirmed; not the first map after a start",
    )
    parser.add_argument("--asw-only", action="store_true", help="only membership of the leaf switch counts")
    parser.add_argument(
        "--gpu-resource",
        action="append",
        help=f"resource that counts as a GPU; repeatable ({', '.join(GPU_RESOURCES)})",
    )
    parser.add_argument(
        "--strict-queue",
        action="append",
        help="queue, or namespace/queue, in which a domain is kept for the oldest waiting gang; repeatable",
    )
    parser.add_argument(
        "--read-queues",
        action="store_true",
        help="take the order of queues from the cluster: Kueue's StrictFIFO, turnout.dev/strict-order on others",
    )
    add_log_and_docs_flags(parser)
