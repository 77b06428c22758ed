"""Provides a folder on shared storage that several hosts can trust: its files appear complete or not at all.

What the files mean is known in file_lock.py. It relies only on what NFS guarantees: a link to an existing name fails, a
rename replaces a file at once, and opening a name gives its newest file.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnout.launcher.rendezvous.round_lock import MOST_BYTES, BadRecord, LockRefused, LockUnreachable

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_REFUSALS = {
    errno.EROFS: "mount it writable",
    errno.EACCES: "give it to the user of the workers",
    errno.EPERM: "give it to the user of the workers",
    errno.ENOTDIR: "name a folder",
    errno.ELOOP: "name a folder",
    errno.ENAMETOOLONG: "name a shorter one",
}


class SharedDir:
    """A shared folder. All calls block, and raise LockRefused or LockUnreachable if storage fails."""

    def __init__(self, path: Path, link: Callable[..., None] = os.link) -> None:
        self.path, self.name, self._link = path, f"round folder {path}", link

    def prepare(self) -> None:
        """Create the folder if it is missing, make it private, and check that storage supports what a lock needs.

        The parent must exist: a missing mount must not become a folder of this host.
        """
        with self._lock_errors():
            try:
                os.mkdir(self.path, 0o700)
            except FileExistsError:
                pass
            except FileNotFoundError as error:
                step = "mount the shared storage, or name a folder on it"
                raise LockRefused(self.name, f"{self.path.parent} is not there", step) from error
        with self.opened() as at:
            self._check_storage(at)
            if stat.S_IMODE(os.fstat(at).st_mode) & 0o077:
                os.fchmod(at, 0o700)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the folder for the other calls. They keep using this folder even if the path changes."""
        with self._lock_errors():
            at = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                yield at
            finally:
                os.close(at)

    def read(self, at: int, name: str) -> bytes | None:
        """Read a file, None if it does not exist. Raises BadRecord for a file that no member wrote."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EACCES):  # a symbolic link, a socket, or no permission
                raise BadRecord(f"cannot be opened: {error.strerror}") from error
            raise
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.fstat(at).st_uid:
                raise BadRecord("no file, or not of the folder's owner")
            with open(file, "rb", closefd=False) as content:
                return content.read(MOST_BYTES + 1)
        finally:
            os.close(file)

    def make(self, at: int, name: str, content: bytes) -> None:
        """Write a new private file and sync it to disk."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=at), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def publish(self, at: int, private: str, name: str) -> bool:
        """Link the private file to a name; True if it got it. Of several at once only one succeeds, and none if the
        name exists.
        """
        try:
            self._link(private, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
        except FileExistsError:  # also when the server linked it and its answer was lost: then it is the same file
            if not self._same(at, private, name):
                return False
        except FileNotFoundError:  # a faster claimant has swept it away
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                why, step = f"its storage makes no hard links ({error.strerror})", "use a Lease, or other storage"
                raise LockRefused(self.name, why, step) from error
            raise
        self.sync(at)
        return True

    def sync(self, at: int) -> None:
        """Sync the folder, so that new names are on disk. Storage that cannot sync folders is left as it is."""
        try:
            os.fsync(at)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP):
                raise

    def replace(self, at: int, private: str, name: str) -> None:
        """Rename the private file over whatever has the name.

        Does nothing if the private file was removed meanwhile.
        """
        with suppress(FileNotFoundError):
            os.replace(private, name, src_dir_fd=at, dst_dir_fd=at)

    def sweep(self, at: int, names: Iterable[str]) -> None:
        """Remove files. A file that cannot be removed stays."""
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=at)

    def _same(self, at: int, one: str, other: str) -> bool:
        try:
            files = [os.stat(name, dir_fd=at, follow_symlinks=False) for name in (one, other)]
        except FileNotFoundError:
            return False
        return os.path.samestat(*files)

    def _check_storage(self, at: int) -> None:
        """Test storage by writing and linking a file as a claim does. Raises LockRefused if the folder's owner is
        another user.
        """
        trial = f".claim-{0:010}-{secrets.token_hex(8)}"  # round 0: any successful claim sweeps it away
        try:
            self.make(at, trial, b"")
            with suppress(FileNotFoundError):
                ours, theirs = os.stat(trial, dir_fd=at, follow_symlinks=False).st_uid, os.fstat(at).st_uid
                if ours != theirs:
                    why = f"it belongs to uid {theirs}, and we write as uid {ours}"
                    step = "run all workers as one user, or name another folder"
                    raise LockRefused(self.name, why, step)
            self.publish(at, trial, f"{trial}-linked")
        finally:
            self.sweep(at, [trial, f"{trial}-linked"])

    @contextmanager
    def _lock_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"{error.strerror or error} (as uid {os.geteuid()})"
            if step := _REFUSALS.get(error.errno or 0):
                raise LockRefused(self.name, why, step) from error
            raise LockUnreachable(self.name, why) from error
