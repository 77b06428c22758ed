"""The lock on one output, which one run holds at a time.

On a disk it is a lock of the kernel (flock), which ends with the process. Object storage has no such lock: there the
run writes its name into a file and renews it. A lock that was not renewed for LOCK_LIFE_S is free.
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


@contextmanager
def run_lock(path: str) -> Iterator[None]:
    """Hold the lock in this file while the block runs. Raises RunInProgress if another process holds it.

    path: of the lock file, a path or a URL. The file is created and gets the name of the holder; on a disk it stays
    afterwards, in object storage it is removed.
    """
    now = time.time()
    holder = LockHolder(socket.gethostname(), os.getpid(), now, now)
    if storage.is_remote(path):
        with _renewed_lock(path, holder):
            yield
        return
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunInProgress(f"{path}: held by {_holder_name(os.pread(number, 4096, 0))}") from None
        os.ftruncate(number, 0)
        os.pwrite(number, msgspec.json.encode(holder), 0)
        yield
    finally:
        os.close(number)


@contextmanager
def _renewed_lock(path: str, holder: LockHolder) -> Iterator[None]:
    """Hold a lock file in object storage during the block, renew it in a thread, and remove it at the end.

    Raises RunInProgress if another run renewed it within LOCK_LIFE_S seconds.
    """
    if storage.exists(path):
        content = storage.read_bytes(path)
        if holder.started - _renewal_time(content) < LOCK_LIFE_S:
            raise RunInProgress(
                f"{path}: held by {_holder_name(content)}; if that run is dead, start again in {LOCK_LIFE_S:.0f} s"
            )
    _write_holder(path, holder)
    ended = threading.Event()

    def keep() -> None:
        """Renew the lock until the block ends."""
        while not ended.wait(RENEWAL_S):
            renew(path, msgspec.structs.replace(holder, renewed=time.time()))

    thread = threading.Thread(target=keep, name="preprocess-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        storage.remove(path)


def renew(path: str, holder: LockHolder) -> None:
    """Write the holder into the lock file again. A failure is logged, because the next renewal may still be in time."""
    try:
        _write_holder(path, holder)
    except Exception as error:  # each kind of storage has errors of its own
        log.warning("lock_not_renewed", extra={"lock": path, "error": repr(error)[:200]})


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
    except msgspec.MsgspecError:
        return "a run that has not written its name yet"


def _renewal_time(content: bytes) -> float:
    """Return the time of the last renewal in the content of a lock file, in seconds since 1970; 0 if unreadable."""
    try:
        return _holder_decoder.decode(content).renewed
    except msgspec.MsgspecError:
        return 0.0
