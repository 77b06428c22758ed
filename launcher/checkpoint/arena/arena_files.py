"""Finds, creates, locks and fills arena files, and finds the folders for them and for sockets.

A file is used only if its owner, mode, run and boot are right. Three bytes of the file have locks: all users of the
arena share the lock on byte USERS, the process that saves locks byte WRITER, and the process that allocates memory
locks byte ALLOCATOR. The kernel releases them when the process ends. Memory is allocated by one process at a time, and
completely or not at all: if two processes ran out of memory together and both freed pages, each would leave holes in
the other's range. checkpoint/format/memory_budget.py decides how much may be allocated.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import secrets
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from turnout.launcher import linux
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
from turnout.launcher.checkpoint.format.memory_budget import Limits
from turnout.launcher.env import MEMORY
from turnout.launcher.errors import BadCheckpoint, NewerFormat, NoMemory

_GROUPS = Path("/sys/fs/cgroup")

_OWN = Path("/proc/self")

_MACHINE = Path("/proc/meminfo")

_NO_LIMIT = 1 << 60  # cgroup v1 expresses "no limit" by numbers of this size

_MAY_LOCK_ALL = 1 << 14  # CAP_IPC_LOCK

_KIB = 1 << 10

_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs"}

# Files with limit and use, and the line of memory.stat with what the kernel can reclaim.
_V2 = ("memory.max", "memory.current", "inactive_file")

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def limits(folder: str | Path, groups: Path = _GROUPS, own: Path = _OWN, machine: Path = _MACHINE) -> Limits:
    """Read the limits of the folder's file system, of every cgroup of this process, and of locked memory.

    If no cgroup has a limit and the file system is in memory, the machine's available memory is a limit too, since the
    kernel kills processes above it. groups, own, machine: /sys/fs/cgroup, /proc/self and /proc/meminfo. Raises OSError
    if the folder is missing.
    """
    system = os.statvfs(folder)
    left_bytes, limit_bytes = min(_cgroup_limits(groups, own), default=(None, None))
    return Limits(
        free_bytes=system.f_bavail * system.f_frsize,
        cgroup_left_bytes=left_bytes,
        locked_bytes=_lockable_bytes(own),
        size_bytes=system.f_blocks * system.f_frsize,
        cgroup_bytes=limit_bytes,
        available_bytes=_available_bytes(machine) if left_bytes is None and _is_memory(folder, own) else None,
    )


def _available_bytes(machine: Path) -> int | None:
    """Return the memory that the kernel can give without swapping, in bytes. None if it does not say."""
    lines = dict(line.partition(":")[::2] for line in _read_text(machine).splitlines())
    number = lines.get("MemAvailable", "").removesuffix("kB").strip()
    return int(number) * _KIB if number.isdecimal() else None


def _is_memory(folder: str | Path, own: Path) -> bool:
    """Return True if files in this folder use memory instead of disk, or if the mounts are unknown. own: /proc/self."""
    device, mounts = os.stat(folder).st_dev, _read_text(own / "mountinfo").splitlines()
    name = f"{os.major(device)}:{os.minor(device)}"
    kinds = {fields[fields.index("-") + 1] for line in mounts if (fields := line.split())[2] == name}
    return not mounts or bool(kinds & _IN_MEMORY)


def _cgroup_limits(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Yield the free bytes and the limit of each cgroup of this process that has a limit, the innermost first.

    In a container the outermost is the pod's cgroup. root: /sys/fs/cgroup. own: /proc/self.
    """
    for line in _read_text(own / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (root / "memory", _V1) if controllers else (root, _V2)
        inner = top / path.lstrip("/")
        for group in (inner, *inner.parents):
            if group.is_relative_to(top) and (memory := _cgroup_limit(group, *names)) is not None:
                yield memory


def _cgroup_limit(group: Path, limit_name: str, use_name: str, cache_name: str) -> tuple[int, int] | None:
    """Return the free bytes and the memory limit of one cgroup.

    The page cache counts as free. None if the cgroup has no limit or its files cannot be read. limit_name, use_name:
    files of the cgroup. cache_name: the key of the page cache in memory.stat. group: folder of the cgroup.
    """
    limit, use, cache = _read_text(group / limit_name), _read_text(group / use_name), 0
    if not limit.isdecimal() or not use.isdecimal() or int(limit) >= _NO_LIMIT:
        return None
    for line in _read_text(group / "memory.stat").splitlines():
        name, _, number = line.partition(" ")
        if name == cache_name and number.isdecimal():
            cache = int(number)
    return max(int(limit) - max(int(use) - cache, 0), 0), int(limit)


def _lockable_bytes(own: Path) -> int | None:
    """Return how many more bytes this process may lock in memory.

    None if there is no limit, or if the process may exceed it. own: /proc/self.
    """
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = dict(line.partition(":\t")[::2] for line in _read_text(own / "status").splitlines())
    if limit_bytes == resource.RLIM_INFINITY or int(status.get("CapEff", "0"), 16) & _MAY_LOCK_ALL:
        return None
    locked = status.get("VmLck", "").split()
    return max(limit_bytes - (int(locked[0]) * _KIB if locked else 0), 0)


def _read_text(path: Path) -> str:
    """Return the text of a small file, "" if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text("ascii").strip()
    return ""


_SOCKET, _OWNER = "daemon", "owner.lock"

_PRIVATE_NAME = re.compile(r"turnout-[a-z0-9_]{8}")

_MAX_PATH_BYTES = 107  # a socket's path: sockaddr_un has 108 bytes with the final NUL


class PrivateDir(tempfile.TemporaryDirectory[str]):
    """A private temporary folder, with a lock that its process holds while it lives.

    No program that the process executes inherits the lock.
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
    """Create a private folder in the first parent that is writable and whose path is short enough for a socket.

    Tries `parents`, then the temporary folder, /dev/shm and /tmp. Private folders of killed processes in the same
    parent are removed. Raises OSError if no parent can be used.
    """
    refused: OSError | None = None
    for parent in (*parents, tempfile.gettempdir(), "/dev/shm", "/tmp"):
        try:
            folder = PrivateDir(parent)
        except OSError as error:
            refused = error
            continue
        if len(os.fsencode(socket_in(folder.name))) <= _MAX_PATH_BYTES:
            _sweep(Path(parent))
            return folder
        folder.cleanup()
    raise refused or OSError(errno.ENAMETOOLONG, "no folder is short enough for a socket")


def socket_in(folder: str | Path) -> Path:
    """Return the path of the socket on which a daemon listens. folder: the daemon's own."""
    return Path(folder).absolute() / _SOCKET


def _sweep(parent: Path) -> None:
    """Remove this user's private folders whose process has ended, as their lock shows."""
    with suppress(OSError):
        for folder in [each for each in parent.iterdir() if _PRIVATE_NAME.fullmatch(each.name)]:
            with suppress(OSError):
                if folder.lstat().st_uid == os.geteuid():
                    _remove(folder)


def _remove(folder: Path) -> None:
    """Delete a private folder whose process has ended. Raises OSError if a living process holds its lock, or if the
    folder has no lock file. Errors of the deletion are ignored.
    """
    owner = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(owner)


USERS, WRITER, ALLOCATOR = 0, 1, 2  # offsets of the bytes with locks
MODE = 0o600  # of an arena's file

_ARENA_NAME = re.compile(r"turnout-[0-9a-f]{32}\.arena")

_MAX_FILES = 10_000

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ArenaFile:
    """An arena file found in a folder, not opened."""

    path: Path
    identity: Identity
    used: bool  # by a living process


def _ignore(why: str) -> None:
    """Do nothing with the reason why a file was skipped."""


def boot_id() -> str:
    """Return the id of this machine's boot. Memory from another boot is invalid."""
    return _BOOT.read_text("ascii").strip()


def make(folder: Path, identity: Identity) -> tuple[Path, int]:
    """Create an empty arena file under a random name; return its path and file descriptor.

    The file appears in the folder when its first pages are written. Raises NoMemory if the folder lacks the space, or
    does not support that; tmpfs, ext4 and xfs do. identity: written to its first page.
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
    """Open an arena of this user; return its file descriptor and what its first page says.

    Raises BadCheckpoint if the file is missing, is no arena, or is of another user or mode, and NewerFormat for an
    arena of a newer format.
    """
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
    except NewerFormat as error:
        os.close(file)
        raise NewerFormat(f"{path}: {error.what}", error.format, error.known) from error
    except BadCheckpoint as error:
        os.close(file)
        raise error if str(path) in str(error) else BadCheckpoint(f"{path}: {error}") from error
    return file, identity


def target_of(file: int) -> str:
    """Return the checkpoint folder that the last daemon wrote into this arena, "" if it is unknown.

    file: descriptor of the arena.
    """
    return read_target(os.pread(file, TARGET_BYTES, TARGET_AT))


def note_target(file: int, target: str) -> None:
    """Write the checkpoint folder into the arena's file, for the next daemon. Only the arena's daemon calls it.

    Errors are ignored: the training process names the folder to the next daemon again. file: descriptor of the arena.
    target: path or URL, "" for unknown.
    """
    with suppress(OSError):
        os.pwrite(file, target_bytes(target), TARGET_AT)


class ArenaLocks:
    """Holds the locks of one user of an arena, through an open file of its own.

    A forked child closes that file at once, so a data loader that outlives its trainer does not hold the trainer's
    locks.
    """

    def __init__(self, file: int) -> None:
        self._file = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        self._writer = False
        linux.try_lock(self._file, USERS, exclusive=False)
        _open_locks.add(self)

    def claim(self) -> bool:
        """Become the writer of the arena. Return False if another living process is the writer, or if this process was
        forked from the one that opened the arena.
        """
        self._writer = self._writer or (self._file >= 0 and linux.try_lock(self._file, WRITER, exclusive=True))
        return self._writer

    def lock_allocation(self) -> bool:
        """Lock the allocation of the arena's memory until unlock_allocation(). Return False if another process holds
        the lock. True without a lock after close() and in a forked process.
        """
        return self._file < 0 or linux.try_lock(self._file, ALLOCATOR, exclusive=True)

    def unlock_allocation(self) -> None:
        """Release the lock of lock_allocation()."""
        if self._file >= 0:
            linux.unlock(self._file, ALLOCATOR)

    def close(self) -> None:
        """Release all locks."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._writer = -1, False


_open_locks: weakref.WeakSet[ArenaLocks] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close the files with locks that this process, a fork, has inherited."""
    for locks in tuple(_open_locks):
        locks.close()


os.register_at_fork(after_in_child=_close_in_child)


def find(
    folder: str | Path,
    run: str,
    worker: str,
    on_skipped: Callable[[str], object] = _ignore,
    *,
    replicas: bool | None = False,
) -> list[ArenaFile]:
    """List the arenas of this run, worker and boot, by local rank. Changes and locks nothing.

    folder: of the arenas; [] if it cannot be read. run: the job's id. on_skipped: called with the reason why a file
    with an arena's name is skipped. replicas: False for the worker's own arenas, True for those with replicas of other
    workers, None for both.
    """
    boot = boot_id()
    arenas = [
        each
        for each in _list_arenas(Path(folder), on_skipped)
        if (each.identity.run, each.identity.worker) == (run, worker) and replicas in (None, bool(each.identity.owner))
    ]
    for each in arenas:
        if each.identity.boot != boot:
            on_skipped(f"{each.path} was written before this machine was started")
    own_arenas = [each for each in arenas if each.identity.boot == boot]
    return sorted(own_arenas, key=lambda each: (each.identity.local_rank, each.path))


def leftovers(folder: str | Path, run: str, boot: str = "") -> list[Path]:
    """List arenas of this user that no process has open and that belong to another boot or run.

    The caller decides whether to remove them: if several jobs share the folder, another run may be between two
    processes. folder: of the arenas. run: the job's id. boot: "" for this machine's present boot.
    """
    boot = boot or boot_id()
    return [
        each.path
        for each in _list_arenas(Path(folder), _ignore)
        if not each.used and (each.identity.boot != boot or each.identity.run != run)
    ]


def _list_arenas(folder: Path, on_skipped: Callable[[str], object]) -> list[ArenaFile]:
    """Return the arena files in a folder by name, at most _MAX_FILES.

    on_skipped: called with the reason for each file or folder that cannot be read.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if _ARENA_NAME.fullmatch(name))
    except OSError as error:
        on_skipped(f"{folder} cannot be read: {error.strerror}")
        return []
    arenas = []
    for name in names[:_MAX_FILES]:
        try:
            file, identity = open_arena_file(folder / name)
        except BadCheckpoint as error:
            on_skipped(str(error))
            continue
        try:
            arenas.append(ArenaFile(folder / name, identity, linux.is_locked(file, USERS)))
        finally:
            os.close(file)
    return arenas


CALL_BYTES = 256 << 20  # allocated in one call, before checking whether the arena is closing

ALLOCATE_S, _POLL_S = 120.0, 0.002  # seconds to wait for another process's allocation, and between two checks

Take = Callable[[str, int, int, int], None]  # as ShmAllocation._allocate


class ShmAllocation:
    """Allocates memory for one open arena.

    path, file: of the arena. locks: the arena's locks. look: reads the memory limits of a folder.
    """

    def __init__(self, path: Path, file: int, locks: ArenaLocks, look: Callable[[Path], Limits] = limits) -> None:
        self._path, self._file, self._locks, self._look = path, file, locks, look
        self._guard, self._closing = threading.Lock(), False

    @contextmanager
    def allocator(self) -> Iterator[Take]:
        """Lock the allocation within a block, and yield the function that allocates a byte range (`_allocate`).

        Raises NoMemory if another process holds the lock for ALLOCATE_S seconds, or while the arena is closed. If the
        function raises NoMemory, no more memory is allocated than before, unless the arena was closed meanwhile.
        """
        with self._guard:
            until_s = time.monotonic() + ALLOCATE_S
            while not self._locks.lock_allocation():
                if self._closing or time.monotonic() > until_s:
                    raise NoMemory(f"{self._path}: another process has not made its pages within {ALLOCATE_S:g} s")
                time.sleep(_POLL_S)
            try:
                yield self._allocate
            finally:
                self._locks.unlock_allocation()

    def _allocate(self, purpose: str, offset: int, reserved_bytes: int, size: int) -> None:
        """Allocate the rest of a byte range of the file.

        Raises NoMemory, and frees the new part, if the machine or the file system lacks the space. Also raises it if
        the arena is closed; then the new part stays. purpose: the use of the range, for the message. offset: its first
        byte. reserved_bytes: allocated already, from `offset` on. size: of the whole range, in bytes.
        """
        available = self._look(self._path.parent).available_bytes
        if available is not None and size - reserved_bytes > available:
            raise NoMemory(
                f"{purpose} needs {size} bytes: {self._path.parent} has the space, but the machine has only "
                f"{available} bytes of memory available ({reserved_bytes} are allocated already); "
                "save less, keep fewer generations, or use a larger one"
            )
        try:
            free = os.fstatvfs(self._file)
            # Refuse at once, instead of taking the memory of others bit by bit first.
            if size - reserved_bytes > free.f_bavail * free.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for start in range(reserved_bytes, size, CALL_BYTES):
                if self._closing:
                    raise NoMemory(f"{self._path} is closed")
                linux.allocate(self._file, offset + start, min(CALL_BYTES, size - start))
        except OSError as error:
            with suppress(OSError):
                linux.punch_hole(self._file, offset + reserved_bytes, size - reserved_bytes)
            file_system = os.fstatvfs(self._file)
            raise NoMemory(
                f"{self._path.parent} cannot allocate {size} bytes for {purpose}: {error.strerror}; "
                f"{file_system.f_bavail * file_system.f_frsize} bytes are free, {reserved_bytes} are allocated already"
            ) from error

    @contextmanager
    def stop(self) -> Iterator[None]:
        """Stop allocations, and wait until one in progress has ended, before the block runs."""
        self._closing = True
        with self._guard:
            yield
