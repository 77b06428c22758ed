"""The parent of training processes: a single-threaded process that imports their modules, forks them and reaps them.

It runs as `forkserver FD AGENT ROOT [MODULE ...] SPACE`. It reads orders from the socket FD, and ends when the process
AGENT ends, after everything below it has ended. `ps` shows the command lines of children in the place of SPACE.
Without modules it is the plain parent, which only executes programs. If the import of a module in LATE_IMPORTS makes
this process unusable for forks, the process executes itself again, with MODULE=REASON instead of that module.
Training processes are delayed until rank 0 listens on the store port, so that they connect at the first try. A refused
torch client tries again after 0.25 to 0.75 s (torch/csrc/distributed/c10d/Backoff.hpp), ten times the rest of a
restart. Ranks run the same program, so a short delay is usually enough, but it guarantees nothing.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import importlib.util
import os
import select
import signal
import socket
import struct
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import NoReturn

from turnout.launcher.framing import FrameSplitter
from turnout.launcher.linux import adopt_orphans, die_with, kill_below, set_process_name
from turnout.launcher.workers.forkserver.child_main import current_handlers, execute, leave_parent, run, why_no_script
from turnout.launcher.workers.forkserver.messages import (
    MAX_BYTES,
    READ_BYTES,
    Ended,
    ParentReady,
    ParentReport,
    Started,
    StartTasks,
    Stopped,
    StopTasks,
    Task,
    encode,
    read_order,
)

MAX_LISTEN_WAIT_S = (
    0.03  # seconds to wait until rank 0 listens: at most these on this host, all of them for another host
)
_POLL_S = 0.001  # seconds between two checks

_LISTEN_STATE = "0A"  # the kernel's code of a listening socket

_SOCK_DIAG, _BY_FAMILY, _DONE, _REQUEST, _DUMP = 4, 20, 3, 0x1, 0x300  # linux/netlink.h, linux/sock_diag.h

_ANSWER_BYTES = 1 << 13


def wait_before_first(env: Mapping[str, str], wait_s: float = MAX_LISTEN_WAIT_S) -> None:
    """Sleep `wait_s` seconds if rank 0 runs on another worker, so that its store probably listens before our processes
    connect.

    env: environment of the first process of this worker.
    """
    if env.get("RANK", "0") != "0":
        time.sleep(wait_s)


def wait_until_listening(env: Mapping[str, str], max_s: float = MAX_LISTEN_WAIT_S) -> None:
    """Wait until the rank 0 that was just started listens on MASTER_PORT, at most `max_s` seconds.

    env: environment of that process. Returns at once for other ranks, and without a port.
    """
    port = env.get("MASTER_PORT", "")
    if env.get("RANK") != "0" or not port.isdecimal():
        return
    until_s = time.monotonic() + max_s
    while time.monotonic() < until_s and not is_listening(int(port)):
        time.sleep(_POLL_S)


def is_listening(port: int) -> bool:
    """Return True if a socket of this host listens on this TCP port."""
    try:
        return any(_is_listening_by_netlink(family, port) for family in (socket.AF_INET, socket.AF_INET6))
    except OSError:  # a kernel without sock_diag, as in a sandbox
        return _is_listening_by_proc(port)


def _is_listening_by_netlink(family: int, port: int) -> bool:
    """Return True if a socket listens on this port, by sock_diag(7). Raises OSError if the kernel has no sock_diag.

    family: AF_INET or AF_INET6. The kernel checks listening sockets only; a busy host has tens of thousands of others.
    """
    body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << int(_LISTEN_STATE, 16))
    body += struct.pack("!HH", port, 0) + bytes(44)  # of idiag_sockid only the port is asked for
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(MAX_LISTEN_WAIT_S)
        kernel.send(struct.pack("=IHHII", 16 + len(body), _BY_FAMILY, _REQUEST | _DUMP, 1, 0) + body)
        answer = kernel.recv(_ANSWER_BYTES)
    kind: int = struct.unpack_from("=IH", answer)[1]
    if kind not in (_BY_FAMILY, _DONE):
        raise OSError(errno.ENOTSUP, "no sock_diag")
    return kind == _BY_FAMILY


def _is_listening_by_proc(port: int) -> bool:
    """Return True if a socket of this network namespace listens on the TCP port, by the tables of /proc."""
    local = f":{port:04X}"
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table) as lines:
                for line in lines:
                    fields = line.split(None, 4)
                    if fields[1].endswith(local) and fields[3] == _LISTEN_STATE:
                        return True
        except OSError:
            continue
    return False


TORCH = "torch"
# Modules that torch imports only in the first step of training, which takes seconds in every process, and ours that
# import torch.
LATE_IMPORTS = (
    "torch._dynamo",  # optimizers and DDP
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.optimizer",
    "torch.distributed.optim",
    "turnout.launcher.checkpoint.engine.checkpointer",
    "turnout.launcher.flash_checkpoint",
)

DEFAULT = (TORCH, *LATE_IMPORTS)  # modules that the warm parent imports besides the user's

REASON_SEPARATOR = "="  # in a parent's arguments: between a module and the reason why it must not be imported


TICK_S = 0.02  # seconds between two checks of killed processes: signals of their ends may be merged

_FIRST_MODULE = 4  # in sys.argv

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")


class Parent:
    """Starts, watches and stops training processes. endpoint: the socket to the agent. agent: its pid."""

    def __init__(self, endpoint: socket.socket, agent: int) -> None:
        self._endpoint, self._agent = endpoint, agent
        self._wake, self._wakeup_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._handlers = current_handlers()
        self._frames = FrameSplitter(MAX_BYTES)
        self._running: dict[int, int] = {}  # local ranks by pid
        self._kill_at_s: float | None = None  # set while a Stop is in progress
        self._orphans: set[str] = set()
        self._no_fork_reason = ""  # why this process must never fork

    def import_modules(self, modules: Sequence[str]) -> None:
        """Import the modules, and send ParentReady with the failed ones to the agent.

        modules: names, or MODULE=REASON for one that must not be imported. If torch is missing or cannot be imported,
        all modules of DEFAULT are skipped. If a module of LATE_IMPORTS makes forks impossible, this process executes
        itself again without it.
        """
        start_s, failed = time.monotonic(), dict[str, str]()
        sys.path.append(os.getcwd())  # last in the path: a user's module may be here. A child sets its own path
        for each in modules:
            module, _, why = each.partition(REASON_SEPARATOR)
            if why:
                failed[module] = why
                continue
            if module in DEFAULT and (TORCH in failed or not importlib.util.find_spec(TORCH)):
                continue
            if why := _import(module):
                failed[module] = why
            if module in LATE_IMPORTS and (why := _test_fork() or why_no_fork()):
                self._execute_again(
                    [f"{module}{REASON_SEPARATOR}{why}" if name == module else name for name in modules]
                )
        if modules:
            self._no_fork_reason = _test_fork()
            gc.collect()
            gc.freeze()  # children share these pages until a collector writes to them
        self._send_report(ParentReady(time.monotonic() - start_s, failed, self._no_fork_reason))

    def _execute_again(self, modules: Sequence[str]) -> NoReturn:
        """Replace this process by a fresh one of the same program, which closes devices and ends threads.

        modules: names of the modules that the fresh process imports ahead.
        """
        os.set_inheritable(self._endpoint.fileno(), True)
        before = len(sys.orig_argv) - len(sys.argv) + _FIRST_MODULE
        os.execv(sys.executable, [*sys.orig_argv[:before], *modules, sys.orig_argv[-1]])

    def serve(self) -> Task | None:
        """Serve until the agent ends; return None when all descendants have ended. In a forked child, return its
        task.
        """
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)  # sent when the agent has ended; the loop below checks for that
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakeup_fd, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._endpoint, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        try:
            while os.getppid() == self._agent:
                ready = [fd for fd, _ in poll.poll(self._poll_timeout_ms())]
                if self._wake in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, READ_BYTES)
                self._reap()
                if self._endpoint.fileno() in ready and (task := self._read_orders()) is not None:
                    return task
                self._continue_stop()
        except (ConnectionError, EOFError):
            pass
        _kill_all()
        return None

    def _poll_timeout_ms(self) -> float | None:
        """Return how long poll(2) may wait, in milliseconds; None without limit, if no stop is in progress."""
        if self._kill_at_s is None:
            return None
        left_s = self._kill_at_s - time.monotonic() if self._running else 0.0
        return 1e3 * max(left_s, TICK_S)

    def _send_report(self, message: ParentReport) -> None:
        """Send a report to the agent. Blocks."""
        self._endpoint.sendall(encode(message))

    def _reap(self) -> None:
        """Reap every child that has ended, orphans included, and report each ended training process to the agent."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (local_rank := self._running.pop(pid, None)) is not None:
                self._send_report(Ended(local_rank, pid, os.waitstatus_to_exitcode(status)))

    def _read_orders(self) -> Task | None:
        """Read the orders that have arrived and carry them out.

        Returns a task in the forked child, None in the parent. Raises EOFError when the agent has closed the
        connection.
        """
        data = self._endpoint.recv(READ_BYTES)
        if not data:
            raise EOFError
        for body in self._frames.split(data):
            match read_order(body):
                case StartTasks(tasks):
                    if (task := self._start(tasks)) is not None:
                        return task
                case StopTasks(sig, grace_s):
                    self._signal(sig)
                    at_s = time.monotonic() + grace_s
                    self._kill_at_s = at_s if self._kill_at_s is None else min(at_s, self._kill_at_s)
        return None

    def _start(self, tasks: Sequence[Task]) -> Task | None:
        """Fork a child for each task, and report the pids and the refused tasks, with reasons, to the agent.

        Returns None in the parent. In a forked child, returns its task, which the caller runs.
        """
        pids, refused = dict[int, int](), dict[int, str]()
        for index, task in enumerate(tasks):
            if index == 0:
                wait_before_first(task.env)
            if not task.spawn and (why := self._no_fork_reason or why_no_fork() or _why_script_cannot_fork(task)):
                refused[task.local_rank] = why
                continue
            parent = os.getpid()
            # A child has the parent's handlers until it sets its own.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                pid = os.fork()
            except OSError as error:
                signal.pthread_sigmask(signal.SIG_SETMASK, [])
                refused[task.local_rank] = f"cannot fork: {error}"
                continue
            if pid == 0:
                self._close_files()
                leave_parent(task, parent, self._agent, self._handlers)
                if task.spawn:
                    execute(task)
                return task
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            pids[task.local_rank] = pid
            self._running[pid] = task.local_rank
            if task is not tasks[-1]:
                wait_until_listening(task.env)
        self._send_report(Started(pids, refused))
        return None

    def _close_files(self) -> None:
        """Close the parent's files in a forked child."""
        self._endpoint.close()
        os.close(self._wake)
        os.close(self._wakeup_fd)

    def _signal(self, sig: int) -> None:
        """Send a signal to the process group of every running child."""
        for pid in self._running:  # none is reaped meanwhile, so the pids are still theirs
            try:
                os.killpg(pid, sig)
            except ProcessLookupError:  # it does not lead its process group yet
                os.kill(pid, sig)

    def _continue_stop(self) -> None:
        """Continue a stop that was ordered: kill the children after the grace time, then all their descendants.

        The end of the stop is reported.
        """
        if self._kill_at_s is None:
            return
        if self._running:
            if time.monotonic() >= self._kill_at_s:
                self._signal(signal.SIGKILL)
        elif killed := kill_below(os.getpid()):  # nothing waits for the rest
            self._orphans |= {process.name for process in killed}
        else:
            self._reap()
            self._send_report(Stopped(tuple(sorted(self._orphans))))
            self._kill_at_s, self._orphans = None, set()


def _why_script_cannot_fork(task: Task) -> str:
    """Return why a task's script cannot be run in a fork, "" if it can or the task is a module."""
    return "" if task.module else why_no_script(os.path.join(task.cwd, task.argv[0]))


def _kill_all() -> None:
    """Kill all descendants of this process, since the agent has ended."""
    while kill_below(os.getpid()):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(TICK_S / 4)


def _import(module: str) -> str:
    """Import a module; return why it failed, or ""."""
    try:
        importlib.import_module(module)
    except BaseException as error:  # a user's module may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def why_no_fork() -> str:
    """Return the reason why this process must not be forked now; "" if it may, since it has one thread and no open
    device.
    """
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        names = (_read_proc(f"/proc/self/task/{thread}/comm") for thread in threads if int(thread) != os.getpid())
        return f"{len(threads)} threads in the parent: {', '.join(sorted(names))}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised in the parent"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if (file := os.readlink(f"/proc/self/fd/{fd}")).startswith(_DEVICES):
                return f"a device is open in the parent: {file}"
    return ""


def _read_proc(path: str) -> str:
    """Return the text of a file of /proc; "gone" if the file is missing."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return "gone"


def _test_fork() -> str:
    """Fork once as a test; return the reason why a child would be unusable, "" if it is usable.

    This also ends the idle threads of OpenBLAS, which numpy starts at import: OpenBLAS ends them before a fork.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns about those threads
        pid = os.fork()
    if pid == 0:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        os._exit(1 if cuda is not None and cuda._is_in_bad_fork() else 0)
    return "CUDA was used in the parent: a fork of it could not" if os.waitpid(pid, 0)[1] else ""


def main() -> None:
    """Serve, and in a child run the user's program. worker_processes.py starts this and defines the arguments."""
    _, fd, agent, root, *modules, _ = sys.argv
    if not die_with(int(agent), signal.SIGTERM):
        return
    adopt_orphans()
    set_process_name(["turnout-run: parent of training processes", *(each for each in modules if each not in DEFAULT)])
    sys.path.remove(root)
    if not sys.flags.safe_path:
        del sys.path[0]  # added by `python -c`
    path = list(sys.path)
    parent = Parent(socket.socket(fileno=int(fd)), int(agent))
    parent.import_modules(modules)
    task = parent.serve()
    del parent
    if task is None:
        os._exit(0)
    run(task, path)
