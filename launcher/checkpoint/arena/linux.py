"""Wraps Linux system calls for memory and files that Python lacks: holes, page population, gathered copies, a fence,
locks.

All of them release the interpreter lock, so other threads run meanwhile; mmap.madvise() does not.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import threading

_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
_POPULATE_WRITE = 23  # Linux 5.14
_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(os.uname().machine)
_GLOBAL_EXPEDITED = 2
_MOST_PAIRS = 1_024  # IOV_MAX
_STEP_BYTES = 4 << 20  # an interrupted call starts over and blocks page faults: keep each one short

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.pwritev.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
_libc.pwritev.restype = ctypes.c_ssize_t
_libc.process_vm_writev.argtypes = [
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
]
_libc.process_vm_writev.restype = ctypes.c_ssize_t
_libc.syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_uint, ctypes.c_int]
_libc.syscall.restype = ctypes.c_long
_flock = struct.Struct("hhqqi4x")  # struct flock where off_t has 64 bits


def allocate(file: int, at: int, size: int) -> None:
    """Allocate the file's pages now, so that writing to them cannot fail.

    Raises OSError with ENOSPC if there are none.
    """
    for start in range(at, at + size, _STEP_BYTES):
        os.posix_fallocate(file, start, min(_STEP_BYTES, at + size - start))


def punch(file: int, at: int, size: int) -> None:
    """Free pages of the file. The file keeps its size."""
    if size > 0 and _libc.fallocate(file, _KEEP_SIZE_PUNCH_HOLE, at, size):
        raise _failed()


def populate(address: int, size: int) -> bool:
    """Make the pages of a mapping writable without page faults. False if the kernel is too old for it."""
    for start in range(0, size, _STEP_BYTES):
        while _libc.madvise(address + start, min(_STEP_BYTES, size - start), _POPULATE_WRITE):
            if ctypes.get_errno() == errno.EINVAL:
                return False
            if ctypes.get_errno() not in (errno.EINTR, errno.EAGAIN):
                raise _failed()
    return True


def write_from(file: int, at: int, sources: int, count: int) -> None:
    """Write memory pieces into the file, one after another from offset `at`.

    sources: the address of `count` iovec structs (address and length), which may be changed by the call.
    """
    pairs = (ctypes.c_uint64 * (2 * count)).from_address(sources)
    first = 0
    while first < count:
        some = min(count - first, _MOST_PAIRS)
        done = _libc.pwritev(file, sources + 16 * first, some, at)
        if done < 0:
            if ctypes.get_errno() == errno.EINTR:
                continue
            raise _failed()
        at += done
        while first < count and done >= pairs[2 * first + 1]:
            done -= pairs[2 * first + 1]
            first += 1
        if done:  # the kernel stops at 2 GiB
            pairs[2 * first] += done
            pairs[2 * first + 1] -= done


def gather(targets: int, target_count: int, sources: int, count: int, size: int) -> bool:
    """Copy memory pieces to other places in this process in one system call. `size` is the bytes in all.

    targets, sources: addresses of iovec structs, at most 1,024 each. False if the call is not allowed (some sandboxes)
    or copied less.
    """
    return bool(_libc.process_vm_writev(os.getpid(), sources, count, targets, target_count, 0) == size)


def fence() -> None:
    """Order all stores before this call before all loads and stores after it, as other processes see them.

    x86 keeps stores in order by itself, and the lock's atomic instruction keeps a later load behind them. Elsewhere a
    lock orders less, so membarrier(2) is called, which gives its caller a full barrier.
    """
    with threading.Lock():  # a new lock: a child forked during the call must not inherit it locked
        pass
    if _MEMBARRIER is not None:
        _libc.syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0)


def try_lock(file: int, at: int, *, exclusive: bool) -> bool:
    """Lock one byte of the file until this open file is closed. False if another open file holds the lock."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock.pack(fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, 0, at, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(file: int, at: int) -> None:
    """Unlock one byte that this open file has locked."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock.pack(fcntl.F_UNLCK, 0, at, 1, 0))


def is_locked(file: int, at: int) -> bool:
    """True if another open file holds a lock on this byte."""
    answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _flock.pack(fcntl.F_WRLCK, 0, at, 1, 0))
    return bool(_flock.unpack(answer)[0] != fcntl.F_UNLCK)


def _failed() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
