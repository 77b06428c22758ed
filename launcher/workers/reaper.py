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


def bury_adopted(codes: dict[int, int], spared: Collection[int]) -> set[int]:
    """Kill and reap adopted children, which are in other sessions. Return the pids that are still alive.

    codes: receives the exit codes by pid. spared: pids of children that were started in their own session.
    """
    left = set[int]()
    for seen in processes():
        if seen.parent != os.getpid() or seen.session == os.getsid(0) or seen.pid in spared:
            continue
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
