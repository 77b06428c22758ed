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


def below(root: int, spared: Collection[int] = ()) -> list[ProcessState]:
    """List the descendants of `root`, parents first. spared: pids left out with all their descendants."""
    children: defaultdict[int, list[ProcessState]] = defaultdict(list)
    for seen in processes():
        children[seen.parent].append(seen)
    found, waiting = list[ProcessState](), [root]
    while waiting:
        mine = [seen for seen in children[waiting.pop()] if seen.pid not in spared]
        found += mine
        waiting += [seen.pid for seen in mine]
    return found


def kill_below(root: int, spared: Collection[int] = ()) -> list[ProcessState]:
    """Kill the living descendants of `root`, except `spared` and theirs; return those killed. Zombies stay."""
    alive = [seen for seen in below(root, spared) if seen.state not in "ZX"]
    for seen in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(seen.pid, signal.SIGKILL)
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
        for seen in processes():
            if seen.parent != os.getpid() or not self._has(seen):
                continue
            self._pids.add(seen.pid)  # its environment is gone once it is dead
            if seen.state not in "ZX":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(seen.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(seen.pid, os.WNOHANG)
                if pid:
                    codes[pid] = code_of(status)
                else:
                    left.add(seen.pid)
        return left

    def _has(self, seen: ProcessState) -> bool:
        return seen.pid in self._pids or seen.session in self._pids or self._mark in _environment(seen.pid)


def _environment(pid: int) -> list[bytes]:
    """Return the variables with which a process began, none if they cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
