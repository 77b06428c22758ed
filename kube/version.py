"""The installed build: the version of the package, and its commit if the installer recorded it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Build:
    """A build of Turnout."""

    version: str  # as in the package metadata
    commit: str = ""  # the full hash, "" if unknown

    def __str__(self) -> str:
        return f"{self.version} ({self.commit[:12]})" if self.commit else self.version


def installed_build(package: str = "turnout") -> Build:
    """Return the installed build of a package; "0+unknown" if it is not installed, as in a checkout on PYTHONPATH."""
    from importlib.metadata import PackageNotFoundError, distribution  # imported late: it is slow

    try:
        installed = distribution(package)
    except PackageNotFoundError:
        return Build("0+unknown")
    return Build(installed.version, commit_of(installed.read_text("direct_url.json")))


def commit_of(direct_url: str | None) -> str:
    """Return the commit that an installer recorded about the origin of a package, "" if it recorded none.

    direct_url: the content of direct_url.json, JSON of PEP 610; None if the package comes from an index.
    """
    try:
        return str(json.loads(direct_url or "{}")["vcs_info"]["commit_id"])
    except (ValueError, KeyError, TypeError):
        return ""


class _PrintVersion(argparse.Action):
    """The action of --version, which reads the build only when it is requested."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        """Make an action without arguments. options: further options of argparse."""
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"{parser.prog} {installed_build()}")
        parser.exit()


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add the flag --version, which prints one line and exits with 0."""
    parser.add_argument("--version", action=_PrintVersion, help="print the version, and exit")
