"""Stores steps in a folder: of a local file system, of NFS, or of anything else that is mounted.

A file is written under a temporary name, synced and renamed in one call; then the folder is synced. A file that must
not replace another gets its name by a hard link, which fails if the name exists. Symbolic links and anything that is
not a regular file count as broken. The neighbouring modules know the content of the files. Written bytes are sent from
the page cache to the disk, one window after another. Otherwise Linux collects gigabytes, writes them together before
the reads of the training, and keeps them cached in place of training data. When a window is full, its writing starts,
the writing of the window before is waited for, and that window is dropped from the cache.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from turnout.launcher.checkpoint.storage.object_store import ObjectStore
from turnout.launcher.checkpoint.storage.store import FileInfo, Store, rank_of, step_name, step_of, storage_failure
from turnout.launcher.errors import BadCheckpoint

WINDOW_BYTES = 8 << 20

_SEND, _SEND_AND_WAIT = 2, 7  # SYNC_FILE_RANGE_WRITE, and with _WAIT_BEFORE and _WAIT_AFTER

_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP)


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the C function sync_file_range(2); None where the C library has none."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int
    call: Callable[[int, int, int, int], int] = function
    return call


_call = _sync_file_range()


class WritebackFile:
    """Sends a file that is written from beginning to end to the disk, window by window. file: its descriptor."""

    def __init__(self, file: int) -> None:
        self._file, self._at, self._sent = file, 0, 0  # writeback has been started for the bytes [0, sent)

    def note_written(self, size_bytes: int) -> None:
        """Count `size_bytes` more bytes as written. This may block.

        After each full window: start writing it to disk, wait until the window before is on disk, and drop that one
        from the page cache. Raises OSError if the disk reports an error for earlier bytes.
        """
        self._at += size_bytes
        if self._at - self._sent < WINDOW_BYTES:
            return
        before = max(0, self._sent - WINDOW_BYTES)
        if not _start_writeback(self._file, self._sent, self._at - self._sent, _SEND):
            os.fdatasync(self._file)
        if before < self._sent and _start_writeback(self._file, before, self._sent - before, _SEND_AND_WAIT):
            self._forget(before, self._sent - before)
        self._sent = self._at

    def close(self) -> None:
        """Sync the whole file to disk, and drop it from the page cache; its descriptor stays open.

        Raises OSError if the disk reports an error.
        """
        os.fsync(self._file)
        self._forget(0, 0)

    def _forget(self, start: int, size_bytes: int) -> None:
        """Drop a range of this file from the page cache."""
        forget(self._file, start, size_bytes)


def forget(file: int, start: int = 0, size_bytes: int = 0) -> None:
    """Drop a range of a file from the page cache, up to its end for size 0, if storage supports that.

    file: its file descriptor. start: offset of the first byte. Raises OSError for other failures.
    """
    try:
        os.posix_fadvise(file, start, size_bytes, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise


def _start_writeback(file: int, start: int, size_bytes: int, flags: int) -> bool:
    """Call sync_file_range(2) on a byte range.

    Returns False where the kernel or the file system does not support it. Raises OSError for another failure. start,
    size_bytes: the range. flags: SYNC_FILE_RANGE_... of the kernel.
    """
    if _call is None:
        return False
    if _call(file, start, size_bytes, flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    raise OSError(number, os.strerror(number))


MAX_NAMES = 1_000  # names for shards of one rank and step: one for each attempt

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)

_NO_SYNC = (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP)  # errors of fsync on folders that some storage returns

_NOT_OURS = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # errors of open() on a link, a socket or a folder

_PRIVATE = re.compile(r"\.(.+)\.(\d{1,19})\.([0-9a-f]{8})\.[0-9a-f]{16}\.tmp")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def no_failpoint(place: str) -> None:
    """Do nothing: the default failpoint never fails."""


class StepFolders:
    """The folders of one store, opened for one block each.

    path: of the store. failpoint: called between every two system calls that create a step's folder.
    """

    def __init__(self, path: Path, failpoint: Callable[[str], None]) -> None:
        self._path, self._failpoint = path, failpoint

    @contextmanager
    def root(self) -> Iterator[int]:
        """Open the store's folder, and close it when the block ends. Yields its file descriptor.

        Raises OSError if the folder is missing or cannot be opened.
        """
        root = os.open(self._path, _FOLDER)
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def step(self, step: int, make: bool = False) -> Iterator[int]:
        """Open the folder of a step, and close it when the block ends. Yields its file descriptor.

        make: create the step's folder if it is missing. Raises OSError if a folder is missing or cannot be opened, and
        StorageFailed for a step that has no name.
        """
        name = step_name(step)
        with self.root() as root:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=root)
                    self._failpoint("folder_made")
                    _sync_folder(root)
                    self._failpoint("root_synced")
            folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=root)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def file(self, step: int, name: str) -> Iterator[int]:
        """Open a plain file of a step, and close it when the block ends.

        Raises BadCheckpoint if it is a link, a folder or a device, and OSError if it is missing or cannot be opened.
        """
        with self.step(step) as folder:
            try:
                file = os.open(name, _PLAIN, dir_fd=folder)
            except OSError as error:
                if error.errno in _NOT_OURS:
                    raise BadCheckpoint(f"{name} of step {step} is no plain file") from error
                raise
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise BadCheckpoint(f"{name} of step {step} is no plain file")
            yield file
        finally:
            os.close(file)

    def check(self) -> None:
        """Raise FileNotFoundError if the store's folder itself is missing, which is an error of storage."""
        os.stat(self._path)


class PosixStore:
    """A store at a path. boot: the machine's boot id. failpoint: called between every two system calls of a write."""

    def __init__(self, path: Path, *, boot: str = "", failpoint: Callable[[str], None] = no_failpoint) -> None:
        self.path, self.name, self._failpoint = path, str(path), failpoint
        self._folders = StepFolders(path, failpoint)
        self._boot = boot.replace("-", "")[:8].rjust(8, "0")
        self._writing = set[str]()  # unfinished files of this process

    def prepare(self) -> None:
        """Create the store's folder and its parents. A write never creates them, so that a lost mount is an error.

        Raises StorageFailed if a folder cannot be created or synced.
        """
        with self._storage_errors("making the folder"):
            if not self.path.is_dir():
                self.path.mkdir(0o700, parents=True, exist_ok=True)
                parent = os.open(self.path.parent, _FOLDER)
                try:
                    _sync_folder(parent)
                finally:
                    os.close(parent)

    def steps(self) -> tuple[int, ...]:
        """List the steps that have a folder, oldest first. Raises StorageFailed if the store cannot be listed."""
        with self._storage_errors("listing the steps"), self._folders.root() as root:
            return tuple(sorted(step for name in os.listdir(root) if (step := step_of(name)) is not None))

    def files(self, step: int) -> Mapping[str, FileInfo]:
        """Return name -> size and time of the finished plain files of a step; empty if the step has no folder.

        Raises StorageFailed if the store's folder is missing or the step cannot be listed.
        """
        with self._storage_errors(f"listing step {step}"):
            try:
                with self._folders.step(step) as folder:
                    return {
                        name: FileInfo(*attributes)
                        for name in os.listdir(folder)
                        if (attributes := _regular_file(folder, name, private=False))
                    }
            except FileNotFoundError:
                self._folders.check()
                return {}

    def put(self, step: int, name: str, pieces: Iterable[memoryview], *, round_number: int, replace: bool) -> str:
        """Write a file of a step so that it survives a crash, and return the name that it has.

        The content is written to a private name first, so readers see a whole file or none. round_number: part of the
        private name, for sweeps. replace: overwrite an existing file; otherwise a free name is chosen. Raises
        StorageFailed if the store's folder is missing, if storage fails, or if MAX_NAMES names are taken. There is no
        new file then, except one whose folder could not be synced. pieces: the content, in order; a piece is written
        before the next one is taken.
        """
        private = f".{name}.{round_number}.{self._boot}.{secrets.token_hex(8)}.tmp"
        with self._storage_errors(f"writing {name} of step {step}"), self._folders.step(step, make=True) as folder:
            self._writing.add(private)
            try:
                self._fill(folder, private, pieces)
                name = self._publish(folder, private, name, replace)
            finally:
                with suppress(OSError):  # gone already, or storage failed: a sweep finds it
                    os.unlink(private, dir_fd=folder)
                self._writing.discard(private)
            self._failpoint("unlinked")
            _sync_folder(folder)
            self._failpoint("folder_synced")
            return name

    def read(self, step: int, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a small file of a step; None if it does not exist.

        Raises BadCheckpoint if it is no plain file or has more than `max_bytes`, and StorageFailed if the store's
        folder is missing or storage fails.
        """
        with self._storage_errors(f"reading {name} of step {step}"):
            try:
                with self._folders.file(step, name) as file, open(file, "rb", closefd=False) as content:
                    data = content.read(max_bytes + 1)
            except FileNotFoundError:
                self._folders.check()
                return None
        if len(data) > max_bytes:
            raise BadCheckpoint(f"{name} of step {step} has more than {max_bytes} bytes")
        return data

    @contextmanager
    def open_file(self, step: int, name: str) -> Iterator[_StoredFile]:
        """Open a file of a step for reads of ranges, and close it when the block ends.

        Raises BadCheckpoint if it does not exist or is no plain file, and StorageFailed if the store's folder is
        missing or storage fails. An OSError in the block becomes StorageFailed, too.
        """
        with self._storage_errors(f"reading {name} of step {step}"):
            try:
                with self._folders.file(step, name) as file:
                    yield _StoredFile(file, f"{name} of step {step}")
            except FileNotFoundError as error:
                self._folders.check()
                raise BadCheckpoint(f"{name} of step {step} is gone") from error

    def remove(self, step: int, names: Iterable[str]) -> None:
        """Remove files of a step in this order, and the step's folder if it is empty then.

        Missing files and a missing folder of the step are ignored. Raises StorageFailed if the store's folder is
        missing or storage fails; then some files may be removed.
        """
        with self._storage_errors(f"removing step {step}"):
            with suppress(FileNotFoundError), self._folders.step(step) as folder:
                for number, name in enumerate(names):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)
                    self._failpoint("removed")
                    if number == 0:
                        _sync_folder(folder)
                        self._failpoint("folder_synced")
                _sync_folder(folder)
            with self._folders.root() as root, suppress(FileNotFoundError):
                try:
                    os.rmdir(step_name(step), dir_fd=root)
                except OSError as error:  # other files are left in it, of a writer or a person
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                _sync_folder(root)

    def sweep(self, step: int, now_s: float, older_than_s: float, ranks: Mapping[int, int]) -> tuple[str, ...]:
        """Delete the private files of a step that dead writers left, and return their names, sorted.

        A file counts as left if it is older than `older_than_s` seconds, or if a rank in `ranks` wrote it in another
        boot or round. Files that this object writes now stay. ranks: rank -> its current round. Returns () if the step
        or the store's folder is missing. Raises StorageFailed if storage fails.
        """
        swept = []
        with (
            self._storage_errors(f"sweeping step {step}"),
            suppress(FileNotFoundError),
            self._folders.step(step) as folder,
        ):
            for name in sorted({*os.listdir(folder)} - self._writing):
                attributes = _regular_file(folder, name, private=True)
                if attributes and (now_s - attributes[1] > older_than_s or _is_abandoned(name, self._boot, ranks)):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)
                        swept.append(name)
        return tuple(swept)

    def _fill(self, folder: int, private: str, pieces: Iterable[memoryview]) -> None:
        """Write the pieces to a new private file in a folder, and sync it to disk.

        folder: its file descriptor. private: name of the file. Raises OSError if the file exists or storage fails, and
        the errors of `pieces`; then a part of the file may be there.
        """
        file = os.open(private, _NEW, 0o600, dir_fd=folder)
        try:
            self._failpoint("opened")
            flushed = WritebackFile(file)
            for piece in pieces:
                rest = piece
                while rest.nbytes:
                    rest = rest[os.write(file, rest) :]
                    self._failpoint("wrote")
                flushed.note_written(piece.nbytes)
                self._failpoint("flushed")
            flushed.close()
            self._failpoint("synced")
        finally:
            os.close(file)
        self._failpoint("closed")

    def _publish(self, folder: int, private: str, name: str, replace: bool) -> str:
        """Rename the private file to its final name, and return that name.

        folder: descriptor of the folder of both. If `name` exists and `replace` is False, a number is added to the
        name. Raises OSError, also if MAX_NAMES names exist.
        """
        if replace:
            os.replace(private, name, src_dir_fd=folder, dst_dir_fd=folder)
            self._failpoint("placed")
            return name
        stem, dot, kind = name.rpartition(".")
        for mark in range(1, MAX_NAMES):
            free = f"{stem}{f'.{mark:x}' if mark > 1 else ''}{dot}{kind}"
            if _link(folder, private, free):
                self._failpoint("placed")
                return free
        raise OSError(errno.EEXIST, f"{MAX_NAMES} files of this name are there: remove those that no manifest names")

    @contextmanager
    def _storage_errors(self, doing: str) -> Iterator[None]:
        """Convert OSError within the block to StorageFailed. doing: the action, for the message."""
        try:
            yield
        except OSError as error:
            raise storage_failure(self.name, doing, error) from error


def _is_abandoned(name: str, boot: str, ranks: Mapping[int, int]) -> bool:
    """Return True if an earlier writer of these ranks, in another boot or round, left this unfinished file.

    boot: the part of a private name that stands for this boot. ranks: rank -> its current round.
    """
    match = _PRIVATE.fullmatch(name)
    rank = rank_of(match[1]) if match else None
    if match is None or rank is None or rank not in ranks:
        return False
    return match[3] != boot or int(match[2]) != ranks[rank]


class _StoredFile:
    """Reads a stored shard from a file."""

    at_once_bytes = 1 << 20  # fits a core's own cache until it is hashed

    def __init__(self, file: int, name: str) -> None:
        self._file, self._name, self.size_bytes = file, name, os.fstat(file).st_size

    def fill(self, view: memoryview, offset: int) -> None:
        """Fill the view with the file's bytes from `offset` on. Raises BadCheckpoint if the file is too short, and
        OSError if storage fails.
        """
        while view.nbytes:
            read_bytes = os.preadv(self._file, [view], offset)
            if not read_bytes:
                raise BadCheckpoint(f"{self._name} ends at byte {offset}")
            view, offset = view[read_bytes:], offset + read_bytes

    def forget(self, offset: int, size_bytes: int) -> None:
        """Drop a range from the page cache."""
        forget(self._file, offset, size_bytes)


def _regular_file(folder: int, name: str, *, private: bool) -> tuple[int, float] | None:
    """Return (size in bytes, time of its last change) of a regular file in a folder, None for anything else.

    folder: its file descriptor. private: True for only unfinished files, False for only finished ones.
    """
    if bool(_PRIVATE.fullmatch(name)) != private:
        return None
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return (about.st_size, about.st_mtime) if stat.S_ISREG(about.st_mode) else None


def _link(folder: int, private: str, name: str) -> bool:
    """Link the private file to a new name. Return False if another file has the name.

    Where the file system has no hard links, rename the private file instead. folder: file descriptor of the folder of
    both names. Raises OSError if storage fails.
    """
    try:
        os.link(private, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:  # also when the server linked it and its answer was lost: then it is the same file
        own, existing = (os.stat(each, dir_fd=folder, follow_symlinks=False) for each in (private, name))
        return os.path.samestat(own, existing)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        # No hard links here: two concurrent writers could both take the name, and checksums would tell.
        except FileNotFoundError:
            os.rename(private, name, src_dir_fd=folder, dst_dir_fd=folder)
            return True
        return False
    return True


def _sync_folder(folder: int) -> None:
    """Sync a folder, so that new names in it survive a crash. Do nothing on storage that cannot sync folders.

    folder: an open descriptor. Raises OSError if the disk reports an error.
    """
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


_BOOT = Path("/proc/sys/kernel/random/boot_id")


def open_store(target: str) -> Store:
    """Return the store of a path, a file:// URL or an fsspec URL. file:// counts as a path, since fsspec does not sync.

    A path is not opened here. Raises StorageFailed if the URL cannot be opened, also without fsspec.
    """
    scheme, mark, rest = target.partition("://")
    if mark and scheme != "file":
        return ObjectStore(target)
    path = Path(unquote(rest) if mark else target)
    return PosixStore(path.absolute(), boot=_BOOT.read_text().strip() if _BOOT.exists() else "")
