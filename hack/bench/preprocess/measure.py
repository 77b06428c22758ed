"""Run a command in a process group of its own, and measure its time and the memory of all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_EACH_S = 0.1
_LAST_LINES = 12  # of a command that failed


@dataclass(frozen=True, slots=True)
class Usage:
    """Time and memory of one run of a command."""

    wall_s: float  # from its start to its exit
    cpu_s: float  # user and system time of the process and of all children that it waited for
    peak_mib: float  # largest sum of proportional set sizes over the process tree; 0 where nobody looked


class CommandFailed(Exception):
    """A command ended with another status than 0. output: its last lines."""

    def __init__(self, command: Sequence[str], status: int, output: str) -> None:
        super().__init__(f"{Path(command[0]).name} ended with status {status}: {output}")
        self.command, self.status, self.output = command, status, output


def run(command: Sequence[str], environment: Mapping[str, str], log: Path, *, memory: bool = False) -> Usage:
    """Run a command to its end and return what it used. Its output goes to the file `log`.

    environment: added to this process's environment. memory: also sample the memory of its processes ten times a
    second. Raises CommandFailed with the last lines of the log if the command fails, and FileNotFoundError if there is
    no such program.
    """
    with log.open("wb") as output:
        began_s = time.monotonic()
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            with _Watch(process.pid, memory) as watch:
                _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.monotonic() - began_s
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        raise CommandFailed(command, process.returncode, " | ".join(line.strip() for line in lines if line.strip()))
    return Usage(wall_s, usage.ru_utime + usage.ru_stime, watch.peak_mib)


class _Watch:
    """A thread that looks at the memory of a process and of its descendants until it is closed."""

    def __init__(self, pid: int, is_active: bool) -> None:
        self.peak_mib = 0.0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True) if is_active else None

    def __enter__(self) -> _Watch:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_EACH_S):
            self.peak_mib = max(self.peak_mib, sum(map(proportional_mib, process_tree(self._pid))))


def process_tree(pid: int) -> Iterator[int]:
    """Yield the ID of a process and those of all its descendants. Processes that end meanwhile are left out."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task").glob("*/children")
        found = [int(child) for listing in children for child in listing.read_text().split()]
    except OSError:
        return
    for child in found:
        yield from process_tree(child)


def proportional_mib(pid: int) -> float:
    """Return a process's proportional set size in MiB: memory that n processes share counts as 1/n. 0.0 for a
    process that has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
