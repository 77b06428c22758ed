"""The settings of the autoscaler, with defaults, validated when constructed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnout.autoscaler.model import Policy
from turnout.autoscaler.node_faults.model import MAX_PROOFS, TaintRules
from turnout.autoscaler.observe.job_pods import SCHEDULERS
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

# The key of a label or taint, with or without a prefix.
_QUALIFIED_NAME = (
    r"([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
)
_MAX_TAINT_S = 365 * 86_400.0


class WatchedConfigMaps(NamedTuple):
    """The ConfigMaps that are watched, each as namespace/name."""

    topology: str  # the map of switches
    orders: str  # an admin's order for all jobs
    reservations: str = CONFIGMAP  # the nodes that the nominator reserves


_POLICY, _RULES = Policy(), TaintRules()  # the defaults of decisions


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one autoscaler. The defaults of decisions are those of Policy and TaintRules.

    Raises BadSetting for an invalid value, with the flag that sets it.
    """

    kubeconfig: str | None = None  # a file; None: in-cluster, else the user's own
    context: str | None = None  # of the kubeconfig, None for the current one
    lease: str = "turnout-system/turnout-autoscaler"  # namespace/name
    lease_seconds: int = 15  # 2 to 3600
    configmap: str = "turnout-system/node-topology-config"  # namespace/name of the map of switches
    confirm_large_changes: bool = False  # a map that moves many hosts needs an admin's confirmation
    orders: str = "turnout-system/turnout-autoscaler"  # namespace/name of the ConfigMap of an admin's order
    reservations: str = CONFIGMAP  # namespace/name of the ConfigMap of reserved nodes
    metrics_bind: str = "127.0.0.1:9092"  # address:port
    act: bool = False  # resize jobs; otherwise decisions are only reported
    mark_pods: bool = False  # annotate pods for Volcano and cluster-autoscaler
    cooldown_s: float = _POLICY.cooldown_s
    restart_s: float = _POLICY.restart_s
    payback_s: float = _POLICY.payback_s
    restart_budget: float = _POLICY.restart_budget_share
    least_gain: float = _POLICY.min_gain
    headroom_gpus: int = 0  # kept free in each queue and on the nodes, >= 0
    gpu_resource: tuple[str, ...] = GPU_RESOURCES  # names of the resources that count as a GPU
    schedulers: tuple[str, ...] = SCHEDULERS  # names of those that run in this cluster
    decision_log: str | None = None  # a file, None for no log
    owner_label: str = ""  # the label of a job that names its owner, for `turnout usage`; "" for none
    docs_base_url: str = ""  # of the docs site, "" where there is none
    log_level: str = "info"
    taint_nodes: bool = False  # taint nodes that pods have proven faulty
    taint_key: str = _RULES.key
    taint_share: float = _RULES.share
    taint_verdicts: int = _RULES.min_namespaces  # namespaces with reports, see TaintRules.min_namespaces
    taint_s: float = _RULES.taint_s  # duration of the first taint, in seconds
    taint_slow: bool = _RULES.slow  # taint slow nodes, too

    def __post_init__(self) -> None:
        for flag, name in (
            ("--lease", self.lease),
            ("--configmap", self.configmap),
            ("--orders", self.orders),
            ("--reservations", self.reservations),
        ):
            check_name(name, flag)
        self._check_resources_and_schedulers()
        parse_address(self.metrics_bind, "--metrics-bind")
        check_url(self.docs_base_url, "--docs-base-url")
        if self.owner_label and not _is_key(self.owner_label):
            raise BadSetting(f"--owner-label is {self.owner_label!r}: it must be the key of a label, such as a.b/owner")
        if not 2 <= self.lease_seconds <= 3600:
            raise BadSetting(f"--lease-seconds is {self.lease_seconds}: it must be from 2 to 3600")
        for flag, value in (
            ("--cooldown-s", self.cooldown_s),
            ("--restart-s", self.restart_s),
            ("--payback-s", self.payback_s),
            ("--headroom-gpus", self.headroom_gpus),
        ):
            if not 0 <= value < float("inf"):
                raise BadSetting(f"{flag} is {value}: it must be a finite number of at least 0")
        for flag, value in (("--least-gain", self.least_gain), ("--restart-budget", self.restart_budget)):
            if not 0 <= value < 1:
                raise BadSetting(f"{flag} is {value}: it must be from 0 to below 1")

        self._check_taints()

    def configmaps(self) -> WatchedConfigMaps:
        """Return the ConfigMaps that are watched."""
        return WatchedConfigMaps(self.configmap, self.orders, self.reservations)

    def _check_resources_and_schedulers(self) -> None:
        """Raise BadSetting for an empty or invalid name of a resource or a scheduler."""
        if not self.gpu_resource or not all(map(_is_key, self.gpu_resource)):
            raise BadSetting(f"--gpu-resource is {', '.join(self.gpu_resource)!r}: it must be a resource such as a.b/c")
        if not self.schedulers or not all(self.schedulers):
            raise BadSetting("--schedulers is empty: it must name at least one scheduler")

    def _check_taints(self) -> None:
        """Raise BadSetting for an invalid setting about taints."""
        if not _is_key(self.taint_key):
            raise BadSetting(f"--taint-key is {self.taint_key!r}: it must be the key of a taint, such as a.b/c")
        if not 0 < self.taint_share <= 1:
            raise BadSetting(f"--taint-share is {self.taint_share}: it must be above 0 and at most 1")
        if not 1 <= self.taint_verdicts <= MAX_PROOFS:
            raise BadSetting(f"--taint-verdicts is {self.taint_verdicts}: it must be from 1 to {MAX_PROOFS}")
        if not 0 < self.taint_s <= _MAX_TAINT_S:
            raise BadSetting(f"--taint-s is {self.taint_s}: it must be above 0 and at most {_MAX_TAINT_S:.0f}")

    def namespace(self) -> str:
        """Return the namespace of the Lease, in which the autoscaler writes its own objects."""
        return self.lease.partition("/")[0]

    def rules(self) -> TaintRules:
        """Return the rules by which nodes are tainted."""
        return TaintRules(self.taint_key, self.taint_share, self.taint_verdicts, self.taint_s, slow=self.taint_slow)

    def policy(self) -> Policy:
        """Return the settings that a decision depends on."""
        headroom = dict.fromkeys(self.gpu_resource, self.headroom_gpus) if self.headroom_gpus else {}
        return Policy(
            self.cooldown_s,
            min_gain=self.least_gain,
            headroom=headroom,
            restart_s=self.restart_s,
            payback_s=self.payback_s,
            restart_budget_share=self.restart_budget,
        )


def _is_key(key: str) -> bool:
    """Return True if a text can be the key of a label or taint, or the name of a resource.

    Its name has at most 63 characters, and the domain before it at most 253.
    """
    domain, _, name = key.rpartition("/")
    return re.fullmatch(_QUALIFIED_NAME, key) is not None and len(name) <= 63 and len(domain) <= 253


def read_settings(argv: Sequence[str] | None) -> Settings:
    """Return the settings of a command line. A bad one ends the program with code 2.

    argv: None for the process's own arguments.
    """
    return parse_settings(parser(), Settings, argv)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="turnout-autoscaler", description="Lend a queue's idle GPUs to elastic jobs, and take them back first."
    )
    add_version(parser)
    parser.add_argument("--kubeconfig", help="kubeconfig file (default: the pod's ServiceAccount, else your own)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--lease", default=default.lease, help="namespace/name of the Lease (%(default)s)")
    parser.add_argument(
        "--lease-seconds",
        type=int,
        default=default.lease_seconds,
        help="seconds after which another replica may take a Lease that is not renewed (%(default)s)",
    )
    parser.add_argument(
        "--metrics-bind", default=default.metrics_bind, help="where probes and metrics are served (%(default)s)"
    )
    _add_configmaps(parser, default)
    parser.add_argument("--act", action="store_true", help="resize jobs; without it decisions are only reported")
    parser.add_argument(
        "--mark-pods", action="store_true", help="tell Volcano and cluster-autoscaler by annotations which pods may go"
    )
    _add_policy(parser, default)
    _add_taints(parser, default)
    _add_accounting(parser, default)
    add_log_and_docs_flags(parser)
    return parser


def _add_configmaps(parser: argparse.ArgumentParser, default: Settings) -> None:
    """Add the flags of the ConfigMaps that are watched."""
    parser.add_argument("--configmap", default=default.configmap, help="the topology map, namespace/name (%(default)s)")
    parser.add_argument(
        "--confirm-large-changes",
        action="store_true",
        help="hold a map that moves over 30%% of the hosts until confirmed, as the extender does by the same flag; "
        "not the first map after a start",
    )
    parser.add_argument(
        "--orders", default=default.orders, help="ConfigMap of `turnout pause --all`, namespace/name (%(default)s)"
    )
    parser.add_argument(
        "--reservations",
        default=default.reservations,
        help="ConfigMap in which the nominator reserves nodes, namespace/name (%(default)s)",
    )


def _names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list. Empty names are left out."""
    return tuple(name for each in text.split(",") if (name := each.strip()))


def _add_accounting(parser: argparse.ArgumentParser, default: Settings) -> None:
    """Add the flags of the decision log."""
    parser.add_argument(
        "--decision-log",
        metavar="FILE",
        help="changed decisions and the use of GPUs go here, for `turnout history` and `turnout usage`",
    )
    parser.add_argument(
        "--owner-label",
        default=default.owner_label,
        metavar="LABEL",
        help="the label of a job that names its owner in `turnout usage --by user` (none)",
    )


def _add_policy(parser: argparse.ArgumentParser, default: Settings) -> None:
    """Add the flags on which decisions depend."""
    parser.add_argument(
        "--cooldown-s", type=float, default=default.cooldown_s, help="from a resize to the next growth (%(default)g)"
    )
    _add_restart_costs(parser, default)
    parser.add_argument(
        "--least-gain",
        type=float,
        default=default.least_gain,
        help="least speed that an added worker must bring, as a share of that of a worker of the min (%(default)g)",
    )
    parser.add_argument(
        "--headroom-gpus",
        type=int,
        default=default.headroom_gpus,
        help="kept free in each queue and on the nodes (%(default)s)",
    )
    parser.add_argument(
        "--gpu-resource",
        action="append",
        help=f"resource that counts as a GPU; repeatable ({', '.join(default.gpu_resource)})",
    )
    parser.add_argument(
        "--schedulers",
        type=_names,
        default=default.schedulers,
        metavar="NAME,…",
        help=f"schedulers that run here: room is made for their pods ({','.join(default.schedulers)})",
    )


def _add_restart_costs(parser: argparse.ArgumentParser, default: Settings) -> None:
    """Add the flags of what restarts may cost a job."""
    parser.add_argument(
        "--restart-s",
        type=float,
        default=default.restart_s,
        help="seconds that one change of size costs a job (%(default)g)",
    )
    parser.add_argument(
        "--payback-s",
        type=float,
        default=default.payback_s,
        help="seconds in which a growth must win back the cost of its restarts (%(default)g)",
    )
    parser.add_argument(
        "--restart-budget",
        type=float,
        default=default.restart_budget,
        help="share of its time that restarts may cost a job whatever they win (%(default)g)",
    )


def _add_taints(parser: argparse.ArgumentParser, default: Settings) -> None:
    """Add the flags of nodes that pods have proven faulty."""
    parser.add_argument(
        "--taint-nodes",
        action="store_true",
        help="taint nodes that a launcher's check in a pod there has proven faulty",
    )
    parser.add_argument("--taint-key", default=default.taint_key, help="key of that taint (%(default)s)")
    parser.add_argument(
        "--taint-share",
        type=float,
        default=default.taint_share,
        help="largest share of the GPU nodes that may be tainted at the same time; one is always allowed (%(default)g)",
    )
    parser.add_argument(
        "--taint-verdicts",
        type=int,
        default=default.taint_verdicts,
        help="namespaces whose pods must report a fault before a first taint (%(default)s)",
    )
    parser.add_argument(
        "--taint-s",
        type=float,
        default=default.taint_s,
        help="how long a first taint stays; the next one twice as long (%(default)g)",
    )
    parser.add_argument("--taint-slow", action="store_true", help="taint slow nodes, too")
