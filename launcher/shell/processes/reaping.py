"""Who is below whom, found in /proc, and the end of those that nobody waits for any more."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """One process as /proc shows it. state: Z is one that has ended and waits for its parent."""

    pid: int
    name: str
    state: str
    parent: int
    session: int


def processes() -> Iterator[Seen]:
    """Every process there is. One that ends meanwhile is left out."""
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
            before, _, after = text.rpartition(")")
            fields = after.split()
            yield Seen(int(entry), before.partition("(")[2], fields[0], int(fields[1]), int(fields[3]))


def below(root: int, spared: Collection[int] = ()) -> list[Seen]:
    """Every process below `root`, parents first. spared: those that are left out with all below them."""
    children: defaultdict[int, list[Seen]] = defaultdict(list)
    for seen in processes():
        children[seen.parent].append(seen)
    found, waiting = list[Seen](), [root]
    while waiting:
        mine = [seen for seen in children[waiting.pop()] if seen.pid not in spared]
        found += mine
        waiting += [seen.pid for seen in mine]
    return found


def kill_below(root: int, spared: Collection[int] = ()) -> list[Seen]:
    """Kill every process below `root`, but the spared and theirs; those that were alive. Their zombies stay."""
    alive = [seen for seen in below(root, spared) if seen.state not in "ZX"]
    for seen in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(seen.pid, signal.SIGKILL)
    return alive


def code_of(status: int) -> int:
    """The exit code of a wait status, or minus the signal."""
    return os.waitstatus_to_exitcode(status)


def bury_adopted(codes: dict[int, int], spared: Collection[int]) -> set[int]:
    """Kill and reap every child of ours whose session is not ours: what its parent left to us. Those that are left.

    codes: gets the exit codes of those that have ended, by pid. spared: pids of children that we made so.
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
