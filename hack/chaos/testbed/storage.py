"""The storage of checkpoints: a small file system of its own, which can be cut off, filled, and mended."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

_NEWNS, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x00020000, 16384, 1 << 18, 2
_BYTES = 4 * 2**20  # some forty checkpoints
_libc = ctypes.CDLL(None, use_errno=True)


class Storage:
    """A folder for storage, and in it the folder `run` for one job's checkpoints.

    small: the folder is a file system of its own, so it can be filled.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        self._away, self._ballast = folder / "away", folder / "ballast"
        folder.mkdir(parents=True, exist_ok=True)
        self.small = _private_mounts() and _is_mounted(folder)
        self.run.mkdir()

    def cut(self) -> None:
        """Replace the folder of checkpoints by an empty file, so that every access to it fails."""
        self.run.rename(self._away)
        self.run.touch()

    def fill(self) -> None:
        """Write a file until the storage has no free byte."""
        chunk = bytes(1 << 16)
        with self._ballast.open("ab", buffering=0) as ballast:
            while chunk:
                try:
                    ballast.write(chunk)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    chunk = chunk[: len(chunk) // 2]

    def mend(self) -> None:
        """Undo `cut` and `fill`; do nothing if neither is active."""
        self._ballast.unlink(missing_ok=True)
        if self._away.exists():
            self.run.unlink()
            self._away.rename(self.run)

    def close(self) -> None:
        """Unmount the private file system, which deletes all that is in it; do nothing without one."""
        if self.small:
            _libc.umount2(os.fsencode(self.folder), _MNT_DETACH)

    def committed_steps(self) -> set[int]:
        """Return the steps that have a manifest in the storage.

        If reading fails, return the steps found before the failure, most often none.
        """
        found = set[int]()
        with suppress(OSError):
            for entry in os.scandir(self.run):
                if entry.name.startswith("step-") and Path(entry.path, "manifest.json").exists():
                    found.add(int(entry.name.removeprefix("step-")))
        return found


def _private_mounts() -> bool:
    """Give this process its own mounts, which end with it. Return False if the kernel does not allow that."""
    return bool(_libc.unshare(_NEWNS) == 0 and _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0)


def _is_mounted(folder: Path) -> bool:
    return bool(_libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={_BYTES}".encode()) == 0)
