"""Sends written bytes from the page cache to the disk, a window at a time.

Without this, Linux collects gigabytes, writes them at once ahead of training's reads, and keeps them cached in place of
training data. Here a full window is sent to disk, waited for when the next one is full, and then dropped from the
cache.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

WINDOW_BYTES = 8 << 20
_SEND, _SEND_AND_WAIT = 2, 7  # SYNC_FILE_RANGE_WRITE, and with _WAIT_BEFORE and _WAIT_AFTER
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP)


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    found = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if found is None:
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    found.restype = ctypes.c_int
    call: Callable[[int, int, int, int], int] = found
    return call


_call = _sync_file_range()


class WritebackFile:
    """Writes back a file that is written from beginning to end."""

    def __init__(self, file: int) -> None:
        self._file, self._at, self._sent = file, 0, 0  # [0, sent) has been sent off

    def wrote(self, size_bytes: int) -> None:
        """Count `size_bytes` more as written. Raises OSError if the disk reports an error for earlier bytes."""
        self._at += size_bytes
        if self._at - self._sent < WINDOW_BYTES:
            return
        before = max(0, self._sent - WINDOW_BYTES)
        if not _range(self._file, self._sent, self._at - self._sent, _SEND):
            os.fdatasync(self._file)
        if before < self._sent and _range(self._file, before, self._sent - before, _SEND_AND_WAIT):
            self._forget(before, self._sent - before)
        self._sent = self._at

    def close(self) -> None:
        """Sync the whole file to disk. Raises OSError."""
        os.fsync(self._file)
        self._forget(0, 0)

    def _forget(self, start: int, size_bytes: int) -> None:
        forget(self._file, start, size_bytes)


def forget(file: int, start: int = 0, size_bytes: int = 0) -> None:
    """Drop a range from the page cache, up to the end for size 0. Storage that does not support this keeps it."""
    try:
        os.posix_fadvise(file, start, size_bytes, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise


def _range(file: int, start: int, size_bytes: int, flags: int) -> bool:
    if _call is None:
        return False
    if _call(file, start, size_bytes, flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    raise OSError(number, os.strerror(number))
