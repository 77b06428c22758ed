"""Which build is installed: the version of the package, and its commit if the installer noted one."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution


@dataclass(frozen=True, slots=True)
class Build:
    """A build of Turnout. commit: "" if it is not known."""

    version: str
    commit: str = ""

    def __str__(self) -> str:
        return f"{self.version} ({self.commit[:12]})" if self.commit else self.version


def build(package: str = "turnout") -> Build:
    """Tell which build is installed. Its version is "0+unknown" if none is, as with a checkout on PYTHONPATH."""
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


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add --version, which prints one line and ends with 0."""
    text = f"{parser.prog} {build()}"
    parser.add_argument("--version", action="version", version=text, help="print the version, and exit")
