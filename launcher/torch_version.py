"""Checks the version of the installed torch without importing it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from turnout.launcher.errors import LauncherError
from turnout.launcher.versions import too_old


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
