"""The settings of the job controllers, with defaults, validated when constructed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from turnout.controllers.kinds.registry import KINDS
from turnout.controllers.model import GangDialect, GangSettings
from turnout.kube.cli_flags import (
    BadSetting,
    add_log_and_docs_flags,
    check_name,
    check_url,
    parse_address,
    parse_settings,
)
from turnout.kube.version import add_version


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the job controllers."""

    kubeconfig: str | None = None
    context: str | None = None
    lease: str = "turnout-system/turnout-controller"  # namespace/name
    lease_seconds: int = 15  # 4 to 3600
    metrics_bind: str = "127.0.0.1:9094"  # address:port
    kinds: tuple[str, ...] = ()  # that are controlled; none by default, since another controller may control them
    namespace: str = ""  # the only one that is watched, "" for all
    gang: str = GangDialect.NONE.value  # the dialect of PodGroups
    scheduler: str = ""  # of pods of a gang
    gate_pods: bool = False  # pods of a gang wait behind our scheduling gate
    qps: float = 0.0  # calls a second, 0 for no bound
    master_image: str = ""  # of an ElasticJob's master
    docs_base_url: str = ""  # of the docs site, "" without one
    log_level: str = "info"

    def __post_init__(self) -> None:
        check_name(self.lease, "--lease")
        parse_address(self.metrics_bind, "--metrics-bind")
        check_url(self.docs_base_url, "--docs-base-url")
        if unknown := sorted(set(self.kinds) - KINDS.keys()):
            raise BadSetting(f"--kinds {','.join(unknown)}: one of {', '.join(sorted(KINDS))} is needed")
        if not self.kinds:
            raise BadSetting(f"--kinds is missing: of {', '.join(sorted(KINDS))}, those that no other controller has")
        if self.gang not in {each.value for each in GangDialect}:
            raise BadSetting(f"--gang {self.gang}: one of {', '.join(each.value for each in GangDialect)} is needed")
        if not 4 <= self.lease_seconds <= 3600:
            raise BadSetting(f"--lease-seconds {self.lease_seconds}: 4 to 3600 are needed")
        if self.qps < 0:
            raise BadSetting(f"--qps {self.qps:g}: 0 for no bound, or more")

    def setup(self) -> GangSettings:
        """Return the settings on which decisions depend."""
        return GangSettings(GangDialect(self.gang), self.scheduler, self.gate_pods)


def read_settings(argv: Sequence[str] | None = None) -> Settings:
    """Return the settings of a command line. An invalid value ends the program with code 2.

    argv: None for the process's own arguments.
    """
    return parse_settings(parser(), Settings, argv)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    default = Settings(kinds=tuple(KINDS))
    parser = argparse.ArgumentParser(prog="turnout-controller", description="Run jobs of the kinds that are named.")
    add_version(parser)
    parser.add_argument("--kubeconfig", help="its file; the pod's own account without it")
    parser.add_argument("--context", help="of the kubeconfig")
    parser.add_argument("--kinds", type=_names, default=(), metavar="KIND,…", help=f"of {', '.join(sorted(KINDS))}")
    parser.add_argument("--namespace", default=default.namespace, help="watch this one only (all)")
    parser.add_argument("--gang", default=default.gang, help="whose PodGroups: none, volcano, scheduler-plugins")
    parser.add_argument("--scheduler", default=default.scheduler, help="of the pods of a gang (its dialect's own)")
    parser.add_argument(
        "--gate-pods",
        action="store_true",
        help="pods of gangs with accelerators wait behind our gate: only where turnout-nominator runs with --gates",
    )
    parser.add_argument("--lease", default=default.lease, metavar="NAMESPACE/NAME", help="(%(default)s)")
    parser.add_argument("--lease-seconds", type=int, default=default.lease_seconds, help="(%(default)s)")
    parser.add_argument("--metrics-bind", default=default.metrics_bind, metavar="HOST:PORT", help="(%(default)s)")
    parser.add_argument("--qps", type=float, default=default.qps, help="calls a second, 0 for as many as it bears")
    parser.add_argument(
        "--master-image",
        default="",
        metavar="IMAGE",
        help="of an ElasticJob's master, where the job names none (its workers')",
    )
    add_log_and_docs_flags(parser)
    return parser


def _names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list. Empty names are left out."""
    return tuple(name for name in text.split(",") if name)
