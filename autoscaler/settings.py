"""What an admin can set for the lender: defaults in sight, checked when built."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.model import Policy
from kube.flags import BadSetting, address, build, check_name


@dataclass(frozen=True, slots=True)
class Settings:
    """lease, configmap, orders: namespace/name. act: jobs are resized; without it decisions are only told.

    mark_pods: pods are annotated for Volcano and cluster-autoscaler. decision_log: a file, None for no log.
    """

    kubeconfig: str | None = None
    context: str | None = None
    lease: str = "turnout-system/turnout-autoscaler"
    lease_seconds: int = 15
    configmap: str = "turnout-system/node-topology-config"
    orders: str = "turnout-system/turnout-autoscaler"
    metrics_bind: str = "127.0.0.1:9092"
    act: bool = False
    mark_pods: bool = False
    cooldown_s: float = 600.0
    restart_s: float = 60.0
    payback_s: float = 3600.0
    restart_budget: float = 0.01
    least_gain: float = 0.05
    headroom_gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    decision_log: str | None = None
    log_level: str = "info"

    def __post_init__(self) -> None:
        for flag, name in (("--lease", self.lease), ("--configmap", self.configmap), ("--orders", self.orders)):
            check_name(name, flag)
        address(self.metrics_bind, "--metrics-bind")
        if not 2 <= self.lease_seconds <= 3600:
            raise BadSetting(f"--lease-seconds is {self.lease_seconds}: it must be from 2 to 3600")
        for flag, value in (
            ("--cooldown-s", self.cooldown_s),
            ("--restart-s", self.restart_s),
            ("--payback-s", self.payback_s),
            ("--headroom-gpus", self.headroom_gpus),
        ):
            if not 0 <= value < float("inf"):
                raise BadSetting(f"{flag} is {value}: it must not be negative")
        for flag, value in (("--least-gain", self.least_gain), ("--restart-budget", self.restart_budget)):
            if not 0 <= value < 1:
                raise BadSetting(f"{flag} is {value}: it must be from 0 to below 1")

    def policy(self) -> Policy:
        """What of it decides."""
        headroom = {self.gpu_resource: self.headroom_gpus} if self.headroom_gpus else {}
        return Policy(
            self.cooldown_s,
            least_gain=self.least_gain,
            headroom=headroom,
            restart_s=self.restart_s,
            payback_s=self.payback_s,
            budget=self.restart_budget,
        )


def settings(argv: Sequence[str] | None) -> Settings:
    """Read the command line. Ends the program with code 2 on a bad one."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="turnout-autoscaler", description="Lend a queue's idle GPUs to elastic jobs, and take them back first."
    )
    parser.add_argument("--kubeconfig", help="path; else in-cluster, else the user's own")
    parser.add_argument("--context", help="of the kubeconfig")
    parser.add_argument("--lease", default=default.lease, help="namespace/name of the Lease (%(default)s)")
    parser.add_argument(
        "--lease-seconds",
        type=int,
        default=default.lease_seconds,
        help="how long a leader that fell silent is waited for (%(default)s)",
    )
    parser.add_argument(
        "--metrics-bind", default=default.metrics_bind, help="where probes and metrics are served (%(default)s)"
    )
    parser.add_argument("--configmap", default=default.configmap, help="the topology map, namespace/name (%(default)s)")
    parser.add_argument(
        "--orders",
        default=default.orders,
        help="ConfigMap of `turnout pause --all`, namespace/name (%(default)s)",
    )
    parser.add_argument("--act", action="store_true", help="resize jobs; without it decisions are only told")
    parser.add_argument(
        "--mark-pods", action="store_true", help="tell Volcano and cluster-autoscaler by annotations which pods may go"
    )
    _add_policy(parser, default)
    parser.add_argument(
        "--decision-log", metavar="FILE", help="where looks are noted so that `turnout replay-decisions` can check them"
    )
    parser.add_argument("--log-level", default=default.log_level, choices=("debug", "info", "warning", "error"))
    return build(parser, Settings, argv)


def _add_policy(parser: argparse.ArgumentParser, default: Settings) -> None:
    """The flags that decisions hang on."""
    parser.add_argument(
        "--cooldown-s", type=float, default=default.cooldown_s, help="between two growths of a job (%(default)g)"
    )
    parser.add_argument(
        "--restart-s", type=float, default=default.restart_s, help="what a change of size costs a job (%(default)g)"
    )
    parser.add_argument(
        "--payback-s", type=float, default=default.payback_s, help="by when growing has to win that back (%(default)g)"
    )
    parser.add_argument(
        "--restart-budget",
        type=float,
        default=default.restart_budget,
        help="share of its time that restarts may cost a job whatever they win (%(default)g)",
    )
    parser.add_argument(
        "--least-gain",
        type=float,
        default=default.least_gain,
        help="what an added worker has to add, beside what one of the least does (%(default)g)",
    )
    parser.add_argument(
        "--headroom-gpus", type=int, default=default.headroom_gpus, help="kept free in each queue (%(default)s)"
    )
    parser.add_argument("--gpu-resource", default=default.gpu_resource, help="what a GPU is called (%(default)s)")
