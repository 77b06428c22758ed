"""Where arenas lie; and folders of one process alone, for its sockets, given back also where it was killed."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from turnout.launcher.process.environment import MEMORY

YOUNG_S = 1.0  # one that is made just now may not be locked yet
_SOCKET, _OWNER = "keeper", "owner.lock"
_NAME = re.compile(r"turnout-[a-z0-9_]{8}")
_MOST_PATH_BYTES = 107  # of a socket's name: sockaddr_un has 108, and a zero at the end


class Private(tempfile.TemporaryDirectory[str]):
    """One of them. As long as its process lives it holds a lock in it, which no child inherits by exec."""

    def __init__(self, parent: str | Path) -> None:
        super().__init__(prefix="turnout-", dir=parent)
        self._owner = os.open(Path(self.name) / _OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def cleanup(self) -> None:
        """Remove it."""
        super().cleanup()
        owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)


def memory_folder(environ: Mapping[str, str]) -> Path:
    """Where arenas lie, and what else is memory: TURNOUT_MEMORY_DIR, else /dev/shm."""
    return Path(environ.get(MEMORY) or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()))


def private_folder(*wanted: str | Path) -> Private:
    """A folder of ours alone, in the first of these that takes one, whose name is short enough for a socket in it.

    Where none does: in /dev/shm, else in /tmp. What killed processes have left beside it is removed. Raises OSError
    where none of these takes one.
    """
    refused: OSError | None = None
    for parent in (*wanted, tempfile.gettempdir(), "/dev/shm", "/tmp"):
        try:
            made = Private(parent)
        except OSError as error:
            refused = error
            continue
        if len(os.fsencode(socket_in(made.name))) <= _MOST_PATH_BYTES:
            _sweep(Path(parent))
            return made
        made.cleanup()
    raise refused or OSError(errno.ENAMETOOLONG, "no folder is short enough for a socket")


def socket_in(folder: str | Path) -> Path:
    """Where a keeper listens."""
    return Path(folder).absolute() / _SOCKET


def _sweep(parent: Path) -> None:
    """Remove those of this user whose process is gone, as their lock tells."""
    with suppress(OSError):
        for folder in [each for each in parent.iterdir() if _NAME.fullmatch(each.name)]:
            with suppress(OSError):
                there = folder.lstat()
                if there.st_uid == os.geteuid() and time.time() - there.st_mtime > YOUNG_S:
                    _remove(folder)


def _remove(folder: Path) -> None:
    owner = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(owner)
