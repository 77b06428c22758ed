"""What an admin can set for the lender: defaults in sight, checked when built."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.model import Policy
from kube.flags import BadSetting, address, build, check_name


@dataclass(frozen=True, slots=True)
class Settings:
    """lease: namespace/name. act: jobs are resized; without it decisions are only told."""

    kubeconfig: str | None = None
    context: str | None = None
    lease: str = "turnout-system/turnout-autoscaler"
    metrics_bind: str = "127.0.0.1:9092"
    act: bool = False
    cooldown_s: float = 600.0
    least_gain: float = 0.05
    headroom_gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    log_level: str = "info"

    def __post_init__(self) -> None:
        check_name(self.lease, "--lease")
        address(self.metrics_bind, "--metrics-bind")
        if self.cooldown_s < 0:
            raise BadSetting(f"--cooldown-s is {self.cooldown_s}: it must not be negative")
        if not 0 <= self.least_gain < 1:
            raise BadSetting(f"--least-gain is {self.least_gain}: it must be from 0 to below 1")
        if self.headroom_gpus < 0:
            raise BadSetting(f"--headroom-gpus is {self.headroom_gpus}: it must not be negative")

    def policy(self) -> Policy:
        """What of it decides."""
        headroom = {self.gpu_resource: self.headroom_gpus} if self.headroom_gpus else {}
        return Policy(self.cooldown_s, least_gain=self.least_gain, headroom=headroom)


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
        "--metrics-bind", default=default.metrics_bind, help="where probes and metrics are served (%(default)s)"
    )
    parser.add_argument("--act", action="store_true", help="resize jobs; without it decisions are only told")
    parser.add_argument(
        "--cooldown-s", type=float, default=default.cooldown_s, help="between two growths of a job (%(default)g)"
    )
    parser.add_argument(
        "--least-gain", type=float, default=default.least_gain, help="of speed, by the next worker (%(default)g)"
    )
    parser.add_argument(
        "--headroom-gpus", type=int, default=default.headroom_gpus, help="kept free in each queue (%(default)s)"
    )
    parser.add_argument("--gpu-resource", default=default.gpu_resource, help="what a GPU is called (%(default)s)")
    parser.add_argument("--log-level", default=default.log_level, choices=("debug", "info", "warning", "error"))
    return build(parser, Settings, argv)
