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

    kubeconfig: str | None = None  # path of a file; None for the pod's ServiceAccount, else the user's own
    context: str | None = None  # of the kubeconfig; None for its current context
    lease: str = "turnout-system/turnout-controller"  # namespace/name
    lease_seconds: int = 15  # seconds after which another replica may take the Lease, 4 to 3600
    metrics_bind: str = "127.0.0.1:9094"  # address:port
    kinds: tuple[str, ...] = ()  # to control; none by default, because another controller may control them
    namespace: str = ""  # the only namespace that is watched, "" for all
    gang: str = GangDialect.NONE.value  # the dialect of PodGroups
    scheduler: str = ""  # name of the scheduler of pods of a gang, "" for that of the dialect
    gate_pods: bool = False  # pods of a gang wait behind our scheduling gate
    qps: float = 0.0  # API calls a second, 0 for no limit
    master_image: str = ""  # image of an ElasticJob's master if the job names none, "" for the workers' image
    docs_base_url: str = ""  # of the docs site, "" without one
    log_level: str = "info"

    def __post_init__(self) -> None:
        check_name(self.lease, "--lease")
        parse_address(self.metrics_bind, "--metrics-bind")
        check_url(self.docs_base_url, "--docs-base-url")
        if unknown := sorted(set(self.kinds) - KINDS.keys()):
            raise BadSetting(f"--kinds {','.join(unknown)}: one of {', '.join(sorted(KINDS))} is needed")
        if not self.kinds:
            known = ", ".join(sorted(KINDS))
            raise BadSetting(f"--kinds is missing: name one or more of {known} that no other controller controls")
        if self.gang not in {each.value for each in GangDialect}:
            raise BadSetting(f"--gang {self.gang}: one of {', '.join(each.value for each in GangDialect)} is needed")
        if not 4 <= self.lease_seconds <= 3600:
            raise BadSetting(f"--lease-seconds {self.lease_seconds}: 4 to 3600 are needed")
        if self.qps < 0:
            raise BadSetting(f"--qps {self.qps:g}: must be 0 (no limit) or more")

    def gang_settings(self) -> GangSettings:
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
    parser.add_argument("--kubeconfig", help="kubeconfig file (default: the pod's ServiceAccount, else your own)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument(
        "--kinds",
        type=_names,
        default=(),
        metavar="KIND,…",
        help=f"kinds of jobs to control, separated by commas: {', '.join(sorted(KINDS))}",
    )
    parser.add_argument("--namespace", default=default.namespace, help="watch only this namespace (default: all)")
    _add_pod_arguments(parser, default)
    parser.add_argument(
        "--lease", default=default.lease, metavar="NAMESPACE/NAME", help="namespace/name of the Lease (%(default)s)"
    )
    parser.add_argument(
        "--lease-seconds",
        type=int,
        default=default.lease_seconds,
        help="seconds after which another replica may take a Lease that is not renewed, at least 4 (%(default)s)",
    )
    parser.add_argument(
        "--metrics-bind",
        default=default.metrics_bind,
        metavar="HOST:PORT",
        help="where probes and metrics are served (%(default)s)",
    )
    parser.add_argument("--qps", type=float, default=default.qps, help="limit of API calls per second; 0: no limit")
    add_log_and_docs_flags(parser)
    return parser


def _add_pod_arguments(parser: argparse.ArgumentParser, default: Settings) -> None:
    """Add the options that decide how pods and PodGroups are created. default: the settings without options."""
    parser.add_argument(
        "--gang",
        default=default.gang,
        help="create PodGroups for this scheduler: none, volcano, scheduler-plugins (%(default)s)",
    )
    parser.add_argument(
        "--scheduler", default=default.scheduler, help="scheduler of the pods of a gang (default: that of --gang)"
    )
    parser.add_argument(
        "--gate-pods",
        action="store_true",
        help="add our scheduling gate to pods of gangs with accelerators; needs turnout-nominator with --gates",
    )
    parser.add_argument(
        "--master-image",
        default="",
        metavar="IMAGE",
        help="image of an ElasticJob's master if the job names none (default: the workers' image)",
    )


def _names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list. Empty names are left out."""
    return tuple(name for name in text.split(",") if name)
