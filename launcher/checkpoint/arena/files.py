"""Finds, creates and locks arena files. A file is used only if its owner, mode, run and boot are right.

Single bytes of the file carry locks. All users of the arena share the lock on byte USERS; the process that saves holds
byte WRITER; the one that allocates memory holds byte MAKER. The kernel releases them when the process ends.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from turnout.launcher.checkpoint.arena import linux
from turnout.launcher.checkpoint.format.arena_layout import (
    PAGE_BYTES,
    TARGET_AT,
    TARGET_BYTES,
    Identity,
    identity_page,
    read_identity,
    read_target,
    table_at,
    target_bytes,
)
from turnout.launcher.errors import BadCheckpoint, NoMemory

USERS, WRITER, ALLOCATOR = 0, 1, 2
MODE = 0o600
_NAME = re.compile(r"turnout-[0-9a-f]{32}\.arena")
_MOST_FILES = 10_000
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ArenaFile:
    """An arena file found in a folder, not opened."""

    path: Path
    identity: Identity
    used: bool  # by a living process


def _ignore(why: str) -> None:
    pass


def boot_id() -> str:
    """Return the id of this machine's boot. Memory from another boot is invalid."""
    return _BOOT.read_text("ascii").strip()


def make(folder: Path, identity: Identity) -> tuple[Path, int]:
    """Create an empty arena under a random name; return its path and open file. It has no name until its first pages
    are written.

    Raises NoMemory if the folder does not support it; tmpfs, ext4 and xfs do.
    """
    path = folder / f"turnout-{secrets.token_hex(16)}.arena"
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, MODE)
        try:
            os.fchmod(file, MODE)
            linux.allocate(file, 0, table_at(identity.count))
            os.pwrite(file, identity_page(identity), 0)
            # With a folder, which an absolute path does not need, this is linkat(2), which follows.
            os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file, follow_symlinks=True)
        except OSError:
            os.close(file)
            raise
    except OSError as error:
        raise NoMemory(f"{folder} takes no memory for checkpoints: {error.strerror}") from error
    return path, file


def open_arena_file(path: Path) -> tuple[int, Identity]:
    """Open an arena of this user. Raises BadCheckpoint if it is not one."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        fault = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise BadCheckpoint(f"{path} cannot be opened: {fault}") from error
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) != MODE:
            raise BadCheckpoint(f"{path} is no file of this user and of mode {MODE:04o}")
        identity = read_identity(os.pread(file, PAGE_BYTES, 0))
        if about.st_size < table_at(identity.count):
            raise BadCheckpoint(f"{path} is too short for {identity.count} generations")
    except BadCheckpoint as error:
        os.close(file)
        raise error if str(path) in str(error) else BadCheckpoint(f"{path}: {error}") from error
    return file, identity


def target_of(file: int) -> str:
    """Read the checkpoint folder that the last daemon noted in this arena, or "" if it is not known."""
    return read_target(os.pread(file, TARGET_BYTES, TARGET_AT))


def note_target(file: int, target: str) -> None:
    """Note the checkpoint folder in the arena's file. Only its daemon calls this. If it fails, the training process
    tells the next daemon.
    """
    with suppress(OSError):
        os.pwrite(file, target_bytes(target), TARGET_AT)


class ArenaLocks:
    """Holds the locks of one user of an arena, through an open file of its own.

    A forked child closes that file at once, so a data loader that outlives its trainer does not keep the trainer's
    locks.
    """

    def __init__(self, file: int) -> None:
        self._file = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        self._writer = False
        linux.try_lock(self._file, USERS, exclusive=False)
        _open_locks.add(self)

    def claim(self) -> bool:
        """Become the writer. False if another living process is the writer, or if this process was forked from the
        user.
        """
        self._writer = self._writer or (self._file >= 0 and linux.try_lock(self._file, WRITER, exclusive=True))
        return self._writer

    def lock_allocation(self) -> bool:
        """Lock the right to allocate the arena's memory until made(). False if another process holds it."""
        return self._file < 0 or linux.try_lock(self._file, ALLOCATOR, exclusive=True)

    def unlock_allocation(self) -> None:
        """Release the lock of make()."""
        if self._file >= 0:
            linux.unlock(self._file, ALLOCATOR)

    def close(self) -> None:
        """Release all locks."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._writer = -1, False


_open_locks: weakref.WeakSet[ArenaLocks] = weakref.WeakSet()


def _in_child() -> None:
    for locks in tuple(_open_locks):
        locks.close()


os.register_at_fork(after_in_child=_in_child)


def find(
    folder: str | Path,
    run: str,
    worker: str,
    on_skipped: Callable[[str], object] = _ignore,
    *,
    replicas: bool | None = False,
) -> list[ArenaFile]:
    """List the arenas of this run, worker and boot, by local rank. Opens them to read; removes and locks nothing.

    on_skipped: called with the reason why a file with an arena's name is skipped. replicas: True for replicas of other
    workers, None for all.
    """
    boot = boot_id()
    found = [
        each
        for each in _all(Path(folder), on_skipped)
        if (each.identity.run, each.identity.worker) == (run, worker) and replicas in (None, bool(each.identity.owner))
    ]
    for each in found:
        if each.identity.boot != boot:
            on_skipped(f"{each.path} was written before this machine was started")
    ours = [each for each in found if each.identity.boot == boot]
    return sorted(ours, key=lambda each: (each.identity.local_rank, each.path))


def leftovers(folder: str | Path, run: str, boot: str = "") -> list[Path]:
    """List arenas of this user that no process has open and that belong to another boot or run. The caller may remove
    them.

    If several jobs share the folder, another run may be between two processes; only the caller can know.
    """
    boot = boot or boot_id()
    return [
        each.path
        for each in _all(Path(folder), _ignore)
        if not each.used and (each.identity.boot != boot or each.identity.run != run)
    ]


def _all(folder: Path, on_skipped: Callable[[str], object]) -> list[ArenaFile]:
    try:
        names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
    except OSError as error:
        on_skipped(f"{folder} cannot be read: {error.strerror}")
        return []
    found = []
    for name in names[:_MOST_FILES]:
        try:
            file, identity = open_arena_file(folder / name)
        except BadCheckpoint as error:
            on_skipped(str(error))
            continue
        try:
            found.append(ArenaFile(folder / name, identity, linux.is_locked(file, USERS)))
        finally:
            os.close(file)
    return found
