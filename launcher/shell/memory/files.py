"""Which arenas lie in a folder, and whose they are: nothing is trusted that another user, run or machine may have put.

Two bytes of an arena's file carry locks: byte USERS is shared by all that use the arena, byte WRITER belongs to the one
that saves. The kernel lets go of them when the process ends, however it ends.
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

from turnout.launcher.checkpoint.generations import (
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
from turnout.launcher.shell.memory import kernel

USERS, WRITER, MAKER = 0, 1, 2
MODE = 0o600
_NAME = re.compile(r"turnout-[0-9a-f]{32}\.arena")
_MOST_FILES = 10_000
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Found:
    """An arena that lies in a folder, not opened yet."""

    path: Path
    identity: Identity
    used: bool  # by a living process


def _nobody(why: str) -> None:
    pass


def boot_id() -> str:
    """Of this machine since it was started: memory of another boot is no memory."""
    return _BOOT.read_text("ascii").strip()


def make(folder: Path, identity: Identity) -> tuple[Path, int]:
    """An empty arena under a random name, and its open file. It has no name before its first pages are whole.

    Raises NoMemory where the folder does not take it: tmpfs, ext4 and xfs do.
    """
    path = folder / f"turnout-{secrets.token_hex(16)}.arena"
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, MODE)
        try:
            os.fchmod(file, MODE)
            kernel.allocate(file, 0, table_at(identity.count))
            os.pwrite(file, identity_page(identity), 0)
            # With a folder, which an absolute path does not need, this is linkat(2), which follows.
            os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file, follow_symlinks=True)
        except OSError:
            os.close(file)
            raise
    except OSError as error:
        raise NoMemory(f"{folder} takes no memory for checkpoints: {error.strerror}") from error
    return path, file


def look(path: Path) -> tuple[int, Identity]:
    """Open an arena of ours. Raises BadCheckpoint where it is none."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        fault = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise BadCheckpoint(f"{path} cannot be opened: {fault}") from error
    try:
        seen = os.fstat(file)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or stat.S_IMODE(seen.st_mode) != MODE:
            raise BadCheckpoint(f"{path} is no file of this user and of mode {MODE:04o}")
        identity = read_identity(os.pread(file, PAGE_BYTES, 0))
        if seen.st_size < table_at(identity.count):
            raise BadCheckpoint(f"{path} is too short for {identity.count} generations")
    except BadCheckpoint as error:
        os.close(file)
        raise error if str(path) in str(error) else BadCheckpoint(f"{path}: {error}") from error
    return file, identity


def target_of(file: int) -> str:
    """Where its worker's checkpoints go, as its last keeper has noted it; "" where that is not known."""
    return read_target(os.pread(file, TARGET_BYTES, TARGET_AT))


def note_target(file: int, target: str) -> None:
    """For its keeper alone. What is not noted, the next keeper hears of its process."""
    with suppress(OSError):
        os.pwrite(file, target_bytes(target), TARGET_AT)


class Locks:
    """What one user of an arena holds of it, through an open file of its own.

    Forked children close that file at once: a loader process that outlives its trainer must not hold the trainer's.
    """

    def __init__(self, file: int) -> None:
        self._file = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        self._writer = False
        kernel.try_lock(self._file, USERS, alone=False)
        _held.add(self)

    def claim(self) -> bool:
        """Become the writer. False where another living process is, or where this one is a fork of the user."""
        self._writer = self._writer or (self._file >= 0 and kernel.try_lock(self._file, WRITER, alone=True))
        return self._writer

    def make(self) -> bool:
        """Become who gives the arena its memory, until made(). False where another process is."""
        return self._file < 0 or kernel.try_lock(self._file, MAKER, alone=True)

    def made(self) -> None:
        """The other half of make()."""
        if self._file >= 0:
            kernel.unlock(self._file, MAKER)

    def close(self) -> None:
        """Let go of all."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._writer = -1, False


_held: weakref.WeakSet[Locks] = weakref.WeakSet()


def _in_child() -> None:
    for locks in tuple(_held):
        locks.close()


os.register_at_fork(after_in_child=_in_child)


def find(
    folder: str | Path, run: str, worker: str, tell: Callable[[str], object] = _nobody, *, kept: bool | None = False
) -> list[Found]:
    """The arenas of this run, worker and boot, by local rank. Opens them to look, removes and locks nothing.

    tell: why a file that is named like an arena of ours is passed over. kept: those that are kept for other workers
    instead; None: all of them.
    """
    boot = boot_id()
    found = [
        each
        for each in _all(Path(folder), tell)
        if (each.identity.run, each.identity.worker) == (run, worker) and kept in (None, bool(each.identity.owner))
    ]
    for each in found:
        if each.identity.boot != boot:
            tell(f"{each.path} was written before this machine was started")
    ours = [each for each in found if each.identity.boot == boot]
    return sorted(ours, key=lambda each: (each.identity.local_rank, each.path))


def leftovers(folder: str | Path, run: str, boot: str = "") -> list[Path]:
    """The arenas of this user that no process has open, of another boot or of another run: for the caller to remove.

    Where several jobs share the folder, another run may just be between two processes: only the caller knows.
    """
    boot = boot or boot_id()
    return [
        each.path
        for each in _all(Path(folder), _nobody)
        if not each.used and (each.identity.boot != boot or each.identity.run != run)
    ]


def _all(folder: Path, tell: Callable[[str], object]) -> list[Found]:
    try:
        names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
    except OSError as error:
        tell(f"{folder} cannot be read: {error.strerror}")
        return []
    found = []
    for name in names[:_MOST_FILES]:
        try:
            file, identity = look(folder / name)
        except BadCheckpoint as error:
            tell(str(error))
            continue
        try:
            found.append(Found(folder / name, identity, kernel.is_locked(file, USERS)))
        finally:
            os.close(file)
    return found
