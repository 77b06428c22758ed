"""The lock on one output.

On a disk it is a lock of the kernel (flock), which one run holds at a time and which ends with the process. Object
storage has no such lock: there the run writes its name into a file and renews it. A lock that was not renewed for
LOCK_LIFE_S is free. Two runs that start at the same moment may both take it; the first renewal or the merge of one of
them finds the name of the other, and that run ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from turnout.preprocess import storage
from turnout.preprocess.errors import RunInProgress
from turnout.preprocess.model import UNREADABLE

log = logging.getLogger("turnout.preprocess")

LOCK_LIFE_S = 60.0  # seconds after which a lock in object storage is free without a renewal
RENEWAL_S = 15.0  # seconds between two renewals


class LockHolder(msgspec.Struct, frozen=True):
    """The process that holds a lock."""

    host: str  # its host name
    process: int  # its process id on that host
    started: float  # Unix time in seconds
    renewed: float  # Unix time in seconds

    def description(self) -> str:
        """Return a phrase about the process, for a message."""
        began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started))
        return f"process {self.process} on {self.host}, started {began}"


_holder_decoder = msgspec.json.Decoder(LockHolder)


class RunLock:
    """A lock that this run holds. Another run may take it on object storage if this one is suspended."""

    def __init__(self, path: str, holder: LockHolder) -> None:
        """Take the path of a lock file and its holder, this run. Nothing is read or written."""
        self._path, self._holder = path, holder
        self._is_lost = False  # True after a renewal has read another holder
        self._access = threading.Lock()  # so that this process does not read its own incomplete write

    def check(self) -> None:
        """Raise RunInProgress if a renewal has found that another run took the lock. Nothing is read."""
        if self._is_lost:
            raise RunInProgress(f"{self._path}: another run took the lock while this one was suspended")

    def verify(self) -> None:
        """Raise RunInProgress if another run took the lock, or removed it.

        On object storage the lock file is read, and any error of the storage is raised. On a disk nothing is read.
        """
        if storage.is_remote(self._path):
            with self._access:
                self._is_lost = self._is_lost or not _is_held(self._path, self._holder)
        self.check()

    def renew(self) -> None:
        """Write the time into the lock file, unless another run took the lock. Raises nothing.

        A lost lock is logged, and check() raises for it. A failure of the storage is only logged, because the next
        renewal may still be in time.
        """
        try:
            self.verify()
            with self._access:
                _write_holder(self._path, msgspec.structs.replace(self._holder, renewed=time.time()))
        except RunInProgress:
            log.warning("lock_lost", extra={"lock": self._path})
        except Exception as error:  # each kind of storage has errors of its own
            log.warning("lock_not_renewed", extra={"lock": self._path, "error": repr(error)[:200]})

    def keep(self, end_event: threading.Event) -> None:
        """Renew the lock every RENEWAL_S seconds until `end_event` is set or another run takes the lock."""
        while not self._is_lost and not end_event.wait(RENEWAL_S):
            self.renew()

    def release(self) -> None:
        """Remove the lock file in object storage, unless another run took the lock. Raises any error of the storage."""
        if _is_held(self._path, self._holder):
            storage.remove(self._path)


@contextmanager
def run_lock(path: str) -> Iterator[RunLock]:
    """Hold the lock in this file while the block runs.

    Raises RunInProgress if another process holds it, and any error of the storage, such as OSError on a disk.
    path: of the lock file, a path or a URL. The file is created and gets the name of the holder; on a disk it stays
    afterwards, in object storage it is removed. Yields the lock, by which a run on object storage notices that another
    run took it.
    """
    now = time.time()
    holder = LockHolder(socket.gethostname(), os.getpid(), now, now)
    lock = RunLock(path, holder)
    if storage.is_remote(path):
        with _renewed_lock(path, holder, lock):
            yield lock
        return
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunInProgress(f"{path}: held by {_holder_name(os.pread(number, 4096, 0))}") from None
        os.ftruncate(number, 0)
        os.pwrite(number, msgspec.json.encode(holder), 0)
        yield lock
    finally:
        os.close(number)


@contextmanager
def _renewed_lock(path: str, holder: LockHolder, lock: RunLock) -> Iterator[None]:
    """Hold a lock file in object storage during the block, renew it in a thread, and remove it at the end.

    lock: of the same file and holder. Raises RunInProgress if another run renewed it within LOCK_LIFE_S seconds.
    """
    if storage.exists(path):
        content = storage.read_bytes(path)
        if holder.started - _renewal_time(content) < LOCK_LIFE_S:
            raise RunInProgress(
                f"{path}: held by {_holder_name(content)}; if that run is dead, start again in {LOCK_LIFE_S:.0f} s"
            )
    _write_holder(path, holder)
    end_event = threading.Event()
    thread = threading.Thread(target=lock.keep, args=(end_event,), name="preprocess-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end_event.set()
        thread.join()
        lock.release()


def _is_held(path: str, holder: LockHolder) -> bool:
    """Return True if the lock file names this holder, whatever the time of its renewal.

    Raises any error of the storage, except for a missing file.
    """
    try:
        current = _holder_decoder.decode(storage.read_bytes(path))
    except (FileNotFoundError, *UNREADABLE):
        return False
    return msgspec.structs.replace(current, renewed=holder.renewed) == holder


def _write_holder(path: str, holder: LockHolder) -> None:
    """Write the holder into the lock file, which is replaced. Raises any error of the storage."""
    with storage.atomic_file(path) as file:
        storage.write_all(file, msgspec.json.encode(holder))


def _holder_name(content: bytes) -> str:
    """Return a phrase that names the holder of a lock, for an error message; a general phrase if it is unreadable.

    content: of the lock file.
    """
    try:
        return _holder_decoder.decode(content).description()
    except UNREADABLE:
        return "a run that has not written its name yet"


def _renewal_time(content: bytes) -> float:
    """Return the time of the last renewal in the content of a lock file, in seconds since 1970; 0 if unreadable."""
    try:
        return _holder_decoder.decode(content).renewed
    except UNREADABLE:
        return 0.0
