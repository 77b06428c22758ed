"""Wraps Linux system calls that Python lacks, for processes, memory and files, and reads `/proc`.

Calls on memory and files release the interpreter lock, so other threads run meanwhile; mmap.madvise() does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import struct
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1

_PR_SET_CHILD_SUBREAPER = 36

_PR_SET_PTRACER = 0x59616D61

_libc = ctypes.CDLL(None, use_errno=True)

_prctl = _libc.prctl

_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


def _ask(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def adopt_orphans() -> None:
    """Become the parent of every descendant process whose parent ends, from now on."""
    _ask(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, sig: signal.Signals) -> bool:
    """Receive `sig` when the parent process ends. False if `parent` has ended already."""
    _ask(_PR_SET_PDEATHSIG, sig)
    return os.getppid() == parent


def be_traced_by(pid: int) -> None:
    """Let process `pid` and its descendants trace this one, if Linux restricts tracing to parents. Does nothing on
    other kernels.
    """
    with contextlib.suppress(OSError):
        _ask(_PR_SET_PTRACER, pid)


def set_process_name(words: Sequence[str]) -> None:
    """Set the command that `ps` shows, cut to the length of the original one.

    It overwrites the texts that the kernel shows. A started interpreter has its own copies.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start - 1  # keep the last byte NUL, else the kernel reads on into the environment
    if start and room > 0:
        text = b"\0".join(os.fsencode(word) for word in words)[:room]
        ctypes.memmove(start, text.ljust(room, b"\0"), room)


_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02

_POPULATE_WRITE = 23  # Linux 5.14

_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(os.uname().machine)

_GLOBAL_EXPEDITED = 2

_MOST_PAIRS = 1_024  # IOV_MAX

_STEP_BYTES = 4 << 20  # an interrupted call starts over and blocks page faults: keep each one short

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
    """Return True if another open file holds a lock on this byte."""
    answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _flock.pack(fcntl.F_WRLCK, 0, at, 1, 0))
    return bool(_flock.unpack(answer)[0] != fcntl.F_UNLCK)


def _failed() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process as /proc shows it: its pid, name, state, parent and session."""

    pid: int
    name: str
    state: str  # Z has ended and waits for its parent
    parent: int
    session: int


def processes() -> Iterator[ProcessState]:
    """Give every process of the machine. A process that ends meanwhile is left out."""
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
            before, _, after = text.rpartition(")")
            fields = after.split()
            yield ProcessState(int(entry), before.partition("(")[2], fields[0], int(fields[1]), int(fields[3]))


def processes_below(root: int, excluded: Collection[int] = ()) -> list[ProcessState]:
    """List the descendants of `root`, parents first. excluded: pids left out with all their descendants."""
    children: defaultdict[int, list[ProcessState]] = defaultdict(list)
    for process in processes():
        children[process.parent].append(process)
    found, waiting = list[ProcessState](), [root]
    while waiting:
        mine = [process for process in children[waiting.pop()] if process.pid not in excluded]
        found += mine
        waiting += [process.pid for process in mine]
    return found


def kill_below(root: int, excluded: Collection[int] = ()) -> list[ProcessState]:
    """Kill the living descendants of `root`, except `excluded` and theirs; return those killed. Zombies stay."""
    alive = [process for process in processes_below(root, excluded) if process.state not in "ZX"]
    for process in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
    return alive


class Leftovers:
    """The processes that one dead parent has left, which this process has adopted.

    A process belongs to the dead parent if the parent started it or a session leader of it, or if its environment has
    the parent's mark. Every other process is left alone: this process has started some itself.
    mark: the mark as `NAME=VALUE`. pids: of the parent, and of all that it has started.
    """

    def __init__(self, mark: str, pids: Collection[int]) -> None:
        self._mark, self._pids = os.fsencode(mark), set(pids)

    def kill_and_reap(self, codes: dict[int, int]) -> set[int]:
        """Kill and reap those that are adopted by now. Return the pids that are still alive.

        codes: receives the exit codes by pid.
        """
        left = set[int]()
        for process in processes():
            if process.parent != os.getpid() or not self._has(process):
                continue
            self._pids.add(process.pid)  # its environment is gone once it is dead
            if process.state not in "ZX":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(process.pid, os.WNOHANG)
                if pid:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                else:
                    left.add(process.pid)
        return left

    def _has(self, process: ProcessState) -> bool:
        return process.pid in self._pids or process.session in self._pids or self._mark in _environment(process.pid)


def _environment(pid: int) -> list[bytes]:
    """Return the variables with which a process began, none if they cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
