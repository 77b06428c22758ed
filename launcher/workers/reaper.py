"""Finds descendants of a process in /proc, and kills those that nobody waits for."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass


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


def below(root: int, excluded: Collection[int] = ()) -> list[ProcessState]:
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
    alive = [process for process in below(root, excluded) if process.state not in "ZX"]
    for process in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
    return alive


def code_of(status: int) -> int:
    """Convert a wait status to an exit code, or to minus the signal."""
    return os.waitstatus_to_exitcode(status)


class Leftovers:
    """The processes that one dead parent has left, which this process has adopted.

    A process belongs to the dead parent if the parent started it or a session leader of it, or if its environment has
    the parent's mark. Every other process is left alone: this process has started some itself.
    mark: the mark as `NAME=VALUE`. pids: of the parent, and of all that it has started.
    """

    def __init__(self, mark: str, pids: Collection[int]) -> None:
        self._mark, self._pids = os.fsencode(mark), set(pids)

    def bury(self, codes: dict[int, int]) -> set[int]:
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
                    codes[pid] = code_of(status)
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
