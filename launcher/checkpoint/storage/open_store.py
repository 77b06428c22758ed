"""Opens the store that a target names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from turnout.launcher.checkpoint.storage.object_store import ObjectStore
from turnout.launcher.checkpoint.storage.posix_store import PosixStore
from turnout.launcher.checkpoint.storage.store import Store

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def open_store(target: str) -> Store:
    """Open the store of a path, a file:// URL or an fsspec URL. file:// counts as a path, since fsspec does not sync.

    Raises StorageFailed if the URL cannot be opened.
    """
    scheme, mark, rest = target.partition("://")
    if mark and scheme != "file":
        return ObjectStore(target)
    path = Path(unquote(rest) if mark else target)
    return PosixStore(path.absolute(), boot=_BOOT.read_text().strip() if _BOOT.exists() else "")
