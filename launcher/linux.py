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


def _call_prctl(option: int, value: int) -> None:
    """Set one option of this process by prctl(2). Raises OSError if the kernel refuses it."""
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def adopt_orphans() -> None:
    """Make this process the new parent of every descendant whose own parent ends, from now on."""
    _call_prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, sig: signal.Signals) -> bool:
    """Let the kernel send `sig` to this process when its parent ends.

    parent: pid of the expected parent. Returns False if that process has ended already: no signal will come.
    """
    _call_prctl(_PR_SET_PDEATHSIG, sig)
    return os.getppid() == parent


def be_traced_by(pid: int) -> None:
    """Let process `pid` and its descendants trace this process. Do nothing if the kernel has no such restriction."""
    with contextlib.suppress(OSError):
        _call_prctl(_PR_SET_PTRACER, pid)


def set_process_name(words: Sequence[str]) -> None:
    """Set the command line that `ps` shows for this process, cut to the length of the original one.

    words: program and arguments. sys.argv does not change.
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

_MAX_PAIRS = 1_024  # IOV_MAX

_CALL_BYTES = 4 << 20  # of one system call: an interrupted call starts over and blocks page faults, so it is short

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


def allocate(file: int, offset: int, size: int) -> None:
    """Allocate `size` bytes of a file of shared memory from `offset` on, so that writing to them cannot fail later.

    file: file descriptor, as in all functions below. Raises OSError with ENOSPC if memory is short.
    """
    for start in range(offset, offset + size, _CALL_BYTES):
        os.posix_fallocate(file, start, min(_CALL_BYTES, offset + size - start))


def punch_hole(file: int, offset: int, size: int) -> None:
    """Free the pages of `size` bytes from `offset` on; they read as zeros then. The file keeps its size.

    Does nothing for a size of 0 or less. Raises OSError if the file system cannot do it.
    """
    if size > 0 and _libc.fallocate(file, _KEEP_SIZE_PUNCH_HOLE, offset, size):
        raise _os_error()


def populate(address: int, size: int) -> bool:
    """Make the pages of a mapping writable without page faults.

    address: of the mapping in this process. size: in bytes. Returns False if the kernel is older than 5.14; then
    nothing is done. Raises OSError for other failures.
    """
    for start in range(0, size, _CALL_BYTES):
        while _libc.madvise(address + start, min(_CALL_BYTES, size - start), _POPULATE_WRITE):
            if ctypes.get_errno() == errno.EINVAL:
                return False
            if ctypes.get_errno() not in (errno.EINTR, errno.EAGAIN):
                raise _os_error()
    return True


def write_from(file: int, offset: int, sources: int, count: int) -> None:
    """Write memory pieces into the file, one after another, from `offset` on.

    sources: address of `count` iovec structs (address and length of a piece). The call may change the structs. Raises
    OSError if a write fails; a part may be written then.
    """
    pairs = (ctypes.c_uint64 * (2 * count)).from_address(sources)
    first = 0
    while first < count:
        batch = min(count - first, _MAX_PAIRS)
        written_bytes = _libc.pwritev(file, sources + 16 * first, batch, offset)
        if written_bytes < 0:
            if ctypes.get_errno() == errno.EINTR:
                continue
            raise _os_error()
        offset += written_bytes
        while first < count and written_bytes >= pairs[2 * first + 1]:
            written_bytes -= pairs[2 * first + 1]
            first += 1
        if written_bytes:  # the kernel stops at 2 GiB
            pairs[2 * first] += written_bytes
            pairs[2 * first + 1] -= written_bytes


def copy_pieces(targets: int, target_count: int, sources: int, count: int, size: int) -> bool:
    """Copy memory pieces to other places in this process in one system call.

    targets, sources: addresses of `target_count` and `count` iovec structs, 1,024 at most. size: bytes of all pieces.
    Returns False if the call is not allowed, as in some sandboxes, or copied fewer bytes.
    """
    return bool(_libc.process_vm_writev(os.getpid(), sources, count, targets, target_count, 0) == size)


def memory_barrier() -> None:
    """Complete all earlier stores of this thread, as other processes see them, before any later load or store.

    On x86 the atomic instruction of a lock is a full barrier. On other processors a lock orders less, so membarrier(2)
    is called too.
    """
    with threading.Lock():  # a new lock: a child forked during the call must not inherit it locked
        pass
    if _MEMBARRIER is not None:
        _libc.syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0)


def try_lock(file: int, offset: int, *, exclusive: bool) -> bool:
    """Lock the byte at `offset` until this open file is closed. Return False if another open file has the lock.

    exclusive: False for a shared lock, which several open files can have. Raises OSError if the file system has no
    locks.
    """
    try:
        fcntl.fcntl(
            file, fcntl.F_OFD_SETLK, _flock.pack(fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, 0, offset, 1, 0)
        )
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(file: int, offset: int) -> None:
    """Unlock one byte that this open file has locked."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock.pack(fcntl.F_UNLCK, 0, offset, 1, 0))


def is_locked(file: int, offset: int) -> bool:
    """Return True if another open file holds a lock on this byte."""
    answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _flock.pack(fcntl.F_WRLCK, 0, offset, 1, 0))
    return bool(_flock.unpack(answer)[0] != fcntl.F_UNLCK)


def _os_error() -> OSError:
    """Return the error of this thread's last C call."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process as /proc shows it."""

    pid: int
    name: str  # of its program, cut by the kernel
    state: str  # a letter as in ps(1); Z has ended and waits for its parent
    parent: int  # pid
    session: int  # pid of the session's leader


def processes() -> Iterator[ProcessState]:
    """Yield every process that this process can see. A process that ends meanwhile is omitted."""
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
            before, _, after = text.rpartition(")")
            fields = after.split()
            yield ProcessState(int(entry), before.partition("(")[2], fields[0], int(fields[1]), int(fields[3]))


def processes_below(root: int, excluded: Collection[int] = ()) -> list[ProcessState]:
    """List the descendants of process `root`, without itself. A parent comes before its children.

    excluded: pids that are omitted with all their descendants.
    """
    children: defaultdict[int, list[ProcessState]] = defaultdict(list)
    for process in processes():
        children[process.parent].append(process)
    descendants, parents = list[ProcessState](), [root]
    while parents:
        child_processes = [process for process in children[parents.pop()] if process.pid not in excluded]
        descendants += child_processes
        parents += [process.pid for process in child_processes]
    return descendants


def kill_below(root: int, excluded: Collection[int] = ()) -> list[ProcessState]:
    """Send SIGKILL to the living descendants of process `root`; return them. Zombies are not returned.

    excluded: pids that are spared with all their descendants.
    """
    alive = [process for process in processes_below(root, excluded) if process.state not in "ZX"]
    for process in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
    return alive


class Leftovers:
    """The descendants of one dead forkserver parent, which are now children of this process.

    A process belongs to the dead parent if its pid or its session leader's pid is in `pids`, or if its environment has
    the parent's mark. All other children are spared: this process has started some itself. mark: an environment
    variable as `NAME=VALUE`. pids: of the parent, and of all processes that it has started.
    """

    def __init__(self, mark: str, pids: Collection[int]) -> None:
        self._mark, self._pids = os.fsencode(mark), set(pids)

    def kill_and_reap(self, codes: dict[int, int]) -> set[int]:
        """Kill and reap the processes that have become children of this one. Return the pids that still live.

        codes: this call adds the exit code of each process that it reaps, by pid.
        """
        alive = set[int]()
        for process in processes():
            if process.parent != os.getpid() or not self._belongs(process):
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
                    alive.add(process.pid)
        return alive

    def _belongs(self, process: ProcessState) -> bool:
        """Return True if a process descends from the dead parent."""
        return process.pid in self._pids or process.session in self._pids or self._mark in _environment(process.pid)


def _environment(pid: int) -> list[bytes]:
    """Return the environment variables with which a process began, each as NAME=VALUE; [] if they cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
