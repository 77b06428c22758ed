"""The torch that is installed here, looked up without importing it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from turnout.launcher.api.versions import too_old
from turnout.launcher.errors import LauncherError


class TorchTooOld(LauncherError):
    """A torch with which worlds cannot be resized. Install a newer one."""


def check_torch(distribution: str = "torch") -> None:
    """Raise TorchTooOld where the torch of this Python is older than we can serve. No torch at all is not told here."""
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        return
    if told := too_old(installed):
        raise TorchTooOld(told)
