"""The autoscaler's own flags as options of a verb that sees the cluster as it does."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from turnout.cli.commands.run_verb import BadWord

if TYPE_CHECKING:
    from turnout.autoscaler.settings import Settings

# Those that a decision hangs on, by what they are.
DECIDING: Mapping[str, type] = {
    "configmap": str,
    "orders": str,
    "headroom-gpus": int,
    "cooldown-s": float,
    "restart-s": float,
    "payback-s": float,
    "restart-budget": float,
    "least-gain": float,
}
SEEING: Mapping[str, type] = {"configmap": str, "orders": str}  # those by which it sees the cluster


def add_flags(parser: argparse.ArgumentParser, flags: Mapping[str, type]) -> None:
    """Add these flags, and --gpu-resource."""
    group = parser.add_argument_group("the autoscaler's own flags", "as it was started with; else its defaults")
    for flag, kind in flags.items():
        group.add_argument(f"--{flag}", type=kind, help=f"the --{flag} of turnout-autoscaler")
    group.add_argument("--gpu-resource", action="append", help="repeatable")


def settings_of(args: argparse.Namespace, flags: Mapping[str, type]) -> Settings:
    """Return the autoscaler's settings with the flags that are given. Raises BadWord."""
    from turnout.autoscaler.settings import Settings
    from turnout.kube.cli_flags import BadSetting

    given = {flag.replace("-", "_"): getattr(args, flag.replace("-", "_")) for flag in flags}
    given["gpu_resource"] = None if args.gpu_resource is None else tuple(args.gpu_resource)
    try:
        return Settings(args.kubeconfig, args.context, **{key: each for key, each in given.items() if each is not None})
    except BadSetting as error:
        raise BadWord(str(error)) from error
