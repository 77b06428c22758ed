"""Which build is installed: the version of the package, and its commit if the installer noted one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Build:
    """A build of Turnout. commit: "" if it is not known."""

    version: str
    commit: str = ""

    def __str__(self) -> str:
        return f"{self.version} ({self.commit[:12]})" if self.commit else self.version


def build(package: str = "turnout") -> Build:
    """Tell which build is installed. Its version is "0+unknown" if none is, as with a checkout on PYTHONPATH."""
    from importlib.metadata import PackageNotFoundError, distribution  # as slow as a third of a command's start

    try:
        found = distribution(package)
    except PackageNotFoundError:
        return Build("0+unknown")
    return Build(found.version, commit_of(found.read_text("direct_url.json")))


def commit_of(direct_url: str | None) -> str:
    """Read the commit out of what an installer noted about the origin, "" if it noted none.

    direct_url: JSON as PEP 610 has it; None if the package comes from an index.
    """
    try:
        return str(json.loads(direct_url or "{}")["vcs_info"]["commit_id"])
    except (ValueError, KeyError, TypeError):
        return ""


class _PrintVersion(argparse.Action):
    """The action of --version, which looks the build up only when it is asked."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"{parser.prog} {build()}")
        parser.exit()


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add --version, which prints one line and ends with 0."""
    parser.add_argument("--version", action=_PrintVersion, help="print the version, and exit")
