"""Knows which versions of torch and Megatron are new enough, and finds the installed torch without importing it."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from turnout.launcher.errors import LauncherError

OLDEST_TORCH = (2, 6)  # the oldest version that is supported

# The oldest Megatron-LM that is supported, and the oldest that counts floating-point operations.
OLDEST_MEGATRON, OLDEST_COUNTING_MEGATRON = (0, 4), (0, 5)


def too_old_message(version: str) -> str | None:
    """Return an error message for a torch version that is too old, None for one that is new enough.

    version: as torch writes it: "2.6.0+cu124", "2.7.0a0+git1234". Returns None too for a version that does not begin
    with two numbers, which is a custom build. Source: VE-22: torch 1.10 cannot shrink a world
    """
    numbers = _major_minor(version)
    if numbers is None or numbers >= OLDEST_TORCH:
        return None
    needed = ".".join(map(str, OLDEST_TORCH))
    return (
        f"torch {version} is too old: {needed} or newer is needed (1.10, for one, cannot shrink a world). "
        f"Install torch>={needed} in the image of the workers."
    )


def too_old_megatron_message(version: str) -> str | None:
    """Return an error message for a Megatron-LM version that is too old, None for one that is new enough or a custom
    build. Source: DL-61
    """
    numbers = _major_minor(version)
    if numbers is None or numbers >= OLDEST_MEGATRON:
        return None
    return f"{version} is too old: {'.'.join(map(str, OLDEST_MEGATRON))}.0 or newer is needed"


def counts_operations(version: str) -> bool:
    """Return True if this version of Megatron-LM counts floating-point operations and saves the count in checkpoints.

    Also True for a custom build, whose version does not begin with two numbers. Source: DL-62
    """
    numbers = _major_minor(version)
    return numbers is None or numbers >= OLDEST_COUNTING_MEGATRON


def _major_minor(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version, None for a custom build."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


class TorchTooOld(LauncherError):
    """The installed torch cannot resize worlds. Install a newer one."""


def check_torch(distribution: str = "torch") -> None:
    """Raise TorchTooOld if the installed torch is too old. Do nothing if it is missing. distribution: a name on
    PyPI.
    """
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        return
    if fault := too_old_message(installed):
        raise TorchTooOld(fault)
