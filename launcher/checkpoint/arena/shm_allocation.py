"""Allocates an arena's memory from its file system: one process at a time, and all of it or nothing.

If two processes ran out of memory at once and both gave pages back, each would leave holes in what the other had
counted.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnout.launcher.checkpoint.arena import linux
from turnout.launcher.checkpoint.arena.files import ArenaLocks
from turnout.launcher.checkpoint.arena.memory_limits import limits
from turnout.launcher.checkpoint.format.memory_budget import Limits
from turnout.launcher.errors import NoMemory

AT_ONCE_BYTES = 256 << 20  # allocated in one call, before checking whether the arena is closing
ALLOCATE_S, _LOOK_S = 120.0, 0.002  # seconds to wait for another process's allocation, and between two checks

Take = Callable[[str, int, int, int], None]


class ShmAllocation:
    """Allocates memory for one open arena. locks: the arena's locks. look: reads the memory limits of a folder."""

    def __init__(self, path: Path, file: int, locks: ArenaLocks, look: Callable[[Path], Limits] = limits) -> None:
        self._path, self._file, self._locks, self._look = path, file, locks, look
        self._guard, self._closing = threading.Lock(), False

    @contextmanager
    def allocator(self) -> Iterator[Take]:
        """Hold the right to allocate, and give a function that does it. Both raise NoMemory, and then keep no more than
        before.

        The function takes a name for errors, an offset in the file, the bytes already there, and the bytes wanted.
        """
        with self._guard:
            until_s = time.monotonic() + ALLOCATE_S
            while not self._locks.lock_allocation():
                if self._closing or time.monotonic() > until_s:
                    raise NoMemory(f"{self._path}: another process has not made its pages within {ALLOCATE_S:g} s")
                time.sleep(_LOOK_S)
            try:
                yield self._allocate
            finally:
                self._locks.unlock_allocation()

    def _allocate(self, what: str, at: int, reserved_bytes: int, size: int) -> None:
        available = self._look(self._path.parent).available_bytes
        if available is not None and size - reserved_bytes > available:
            raise NoMemory(
                f"{self._path.parent} has room for the {size} bytes of {what}, and the machine has not: "
                f"{reserved_bytes} it has, {available} bytes of memory are available; save less, keep fewer generations, or use a larger one"
            )
        try:
            free = os.fstatvfs(self._file)
            # Refuse at once, instead of taking the memory of others bit by bit first.
            if size - reserved_bytes > free.f_bavail * free.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for start in range(reserved_bytes, size, AT_ONCE_BYTES):
                if self._closing:
                    raise NoMemory(f"{self._path} is closed")
                linux.allocate(self._file, at + start, min(AT_ONCE_BYTES, size - start))
        except OSError as error:
            with suppress(OSError):
                linux.punch(self._file, at + reserved_bytes, size - reserved_bytes)
            file_system = os.fstatvfs(self._file)
            raise NoMemory(
                f"{self._path.parent} does not give {what} its {size} bytes: {error.strerror}; "
                f"{file_system.f_bavail * file_system.f_frsize} bytes are free and {reserved_bytes} it has"
            ) from error

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Stop allocating, and wait for an allocation in progress to end."""
        self._closing = True
        with self._guard:
            yield
