"""Which store a target names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from turnout.launcher.shell.storage.folder import Folder
from turnout.launcher.shell.storage.objects import Objects
from turnout.launcher.shell.storage.store import Store

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def open_store(target: str) -> Store:
    """A path, or a URL of fsspec; file:// is a path too, which a folder syncs and fsspec does not.

    Raises StorageFailed for a URL that cannot be opened.
    """
    scheme, mark, rest = target.partition("://")
    if mark and scheme != "file":
        return Objects(target)
    path = Path(unquote(rest) if mark else target)
    return Folder(path.absolute(), boot=_BOOT.read_text().strip() if _BOOT.exists() else "")
