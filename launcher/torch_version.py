"""Knows which versions of torch and Megatron are new enough, and finds the installed torch without importing it."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from turnout.launcher.errors import LauncherError

OLDEST_TORCH = (2, 6)

OLDEST_MEGATRON, COUNTS_OPERATIONS = (0, 4), (0, 5)


def too_old(version: str) -> str | None:
    """Return the message for a torch version that is too old, None for one that is new enough.

    version: as torch writes it: "2.6.0+cu124", "2.7.0a0+git1234". A version that does not begin with two numbers is a
    custom build, and passes.
    Source: VE-22: torch 1.10 cannot shrink a world
    """
    found = _two(version)
    if found is None or found >= OLDEST_TORCH:
        return None
    needed = ".".join(map(str, OLDEST_TORCH))
    return (
        f"torch {version} is too old: {needed} or newer is needed (1.10, for one, cannot shrink a world). "
        f"Install torch>={needed} in the image of the workers."
    )


def too_old_megatron(version: str) -> str | None:
    """Return what is wrong with this version of Megatron-LM, None if it is new enough. Source: DL-61"""
    found = _two(version)
    if found is None or found >= OLDEST_MEGATRON:
        return None
    return f"{version} is too old: {'.'.join(map(str, OLDEST_MEGATRON))}.0 or newer is needed"


def counts_operations(version: str) -> bool:
    """Return True if this Megatron-LM counts floating-point operations and saves the count in its checkpoints.

    Source: DL-62
    """
    found = _two(version)
    return found is None or found >= COUNTS_OPERATIONS


def _two(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version, None for a custom build."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


class TorchTooOld(LauncherError):
    """The installed torch cannot resize worlds. Install a newer one."""


def check_torch(distribution: str = "torch") -> None:
    """Raise TorchTooOld if the installed torch is too old. A missing torch is not reported here."""
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        return
    if fault := too_old(installed):
        raise TorchTooOld(fault)
