"""An arena's memory, taken from its file system: by one at a time, whichever process that is, and all or nothing.

Two who gave back what they got when there is too little would leave holes in what the other has counted as his.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnout.launcher.checkpoint.need import Limits
from turnout.launcher.errors import NoMemory
from turnout.launcher.shell.memory import kernel
from turnout.launcher.shell.memory.files import Locks
from turnout.launcher.shell.memory.limits import limits

AT_ONCE_BYTES = 256 << 20  # before it is seen whether somebody closes
MADE_S, _LOOK_S = 120.0, 0.002  # for another process to have what it takes

Take = Callable[[str, int, int, int], None]


class Room:
    """Of one open arena. locks: its own. look: what limits a folder's memory."""

    def __init__(self, path: Path, file: int, locks: Locks, look: Callable[[Path], Limits] = limits) -> None:
        self._path, self._file, self._locks, self._look = path, file, locks, look
        self._guard, self._closing = threading.Lock(), False

    @contextmanager
    def taking(self) -> Iterator[Take]:
        """Be the one who takes memory. Gives how: for what, where in the file, bytes it has, bytes it is to have.

        Both raise NoMemory; nothing more than was there before is kept then.
        """
        with self._guard:
            until_s = time.monotonic() + MADE_S
            while not self._locks.make():
                if self._closing or time.monotonic() > until_s:
                    raise NoMemory(f"{self._path}: another process has not made its pages within {MADE_S:g} s")
                time.sleep(_LOOK_S)
            try:
                yield self._take
            finally:
                self._locks.made()

    def _take(self, what: str, at: int, have: int, size: int) -> None:
        available = self._look(self._path.parent).available_bytes
        if available is not None and size - have > available:
            raise NoMemory(
                f"{self._path.parent} has room for the {size} bytes of {what}, and the machine has not: {have} it has, "
                f"{available} bytes of memory are available; save less, keep fewer generations, or use a larger one"
            )
        try:
            free = os.fstatvfs(self._file)
            if size - have > free.f_bavail * free.f_frsize:  # so it is not taken bit by bit from all others first
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for start in range(have, size, AT_ONCE_BYTES):
                if self._closing:
                    raise NoMemory(f"{self._path} is closed")
                kernel.allocate(self._file, at + start, min(AT_ONCE_BYTES, size - start))
        except OSError as error:
            with suppress(OSError):
                kernel.punch(self._file, at + have, size - have)
            there = os.fstatvfs(self._file)
            raise NoMemory(
                f"{self._path.parent} does not give {what} its {size} bytes: {error.strerror}; "
                f"{there.f_bavail * there.f_frsize} bytes are free and {have} it has"
            ) from error

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Nothing is taken from now on; who is just at it ends soon."""
        self._closing = True
        with self._guard:
            yield
