"""Finds the folder for arenas, and makes private folders for a process's sockets, removed even if it was killed."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from turnout.launcher.env import MEMORY

_SOCKET, _OWNER = "daemon", "owner.lock"
_NAME = re.compile(r"turnout-[a-z0-9_]{8}")
_MOST_PATH_BYTES = 107  # a socket's path: sockaddr_un has 108 bytes with the final NUL


class PrivateDir(tempfile.TemporaryDirectory[str]):
    """A private temporary folder.

    Its process holds a lock in it while it lives, which no child inherits through exec.
    """

    def __init__(self, parent: str | Path) -> None:
        super().__init__(prefix="turnout-", dir=parent)
        lock = Path(self.name) / _OWNER
        unlocked = lock.with_suffix(".new")  # the lock file appears locked: who sweeps never sees it free before
        self._owner = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(lock)

    def cleanup(self) -> None:
        """Remove the folder and release its lock."""
        super().cleanup()
        owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)


def memory_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for arenas and other memory files: TURNOUT_MEMORY_DIR, else /dev/shm, else the temporary
    folder.
    """
    return Path(environ.get(MEMORY) or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()))


def private_folder(*parents: str | Path) -> PrivateDir:
    """Make a private folder in the first parent that works and whose path is short enough for a socket.

    Tries `parents`, then the temporary folder, /dev/shm and /tmp. Folders of killed processes beside it are removed.
    Raises OSError if no parent works.
    """
    refused: OSError | None = None
    for parent in (*parents, tempfile.gettempdir(), "/dev/shm", "/tmp"):
        try:
            folder = PrivateDir(parent)
        except OSError as error:
            refused = error
            continue
        if len(os.fsencode(socket_in(folder.name))) <= _MOST_PATH_BYTES:
            _sweep(Path(parent))
            return folder
        folder.cleanup()
    raise refused or OSError(errno.ENAMETOOLONG, "no folder is short enough for a socket")


def socket_in(folder: str | Path) -> Path:
    """Return the path of the socket on which a daemon listens."""
    return Path(folder).absolute() / _SOCKET


def _sweep(parent: Path) -> None:
    """Remove this user's private folders whose process has ended, as their lock shows."""
    with suppress(OSError):
        for folder in [each for each in parent.iterdir() if _NAME.fullmatch(each.name)]:
            with suppress(OSError):
                if folder.lstat().st_uid == os.geteuid():
                    _remove(folder)


def _remove(folder: Path) -> None:
    owner = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(owner)
