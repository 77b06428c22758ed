"""An agent's hands for tests: Processes with a folder for scripts and files, and everything that they said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from itertools import count
from pathlib import Path
from textwrap import dedent

from tests.kit.wait import until_async
from turnout.launcher.workers.worker_processes import WorkerProcesses
from turnout.launcher.workers.worker_spec import CommandKind, SpawnSpec, Stream

SECONDS = 30.0  # no wait of a test is longer


class WorkerTestbed:
    """root: a folder of its own."""

    def __init__(self, root: Path, *, fork=True, preload=("json",), env=None, shutdown_timeout_s=5.0, **more) -> None:
        self.root, self.said, self.forks, self._numbers = root, [], fork, count()
        self.hear = lambda event, fields: None  # called with each event as it is said
        self.env = dict(os.environ if env is None else env)
        self.processes = WorkerProcesses(
            fork=fork, preload=preload, shutdown_timeout_s=shutdown_timeout_s, log_event=self._say, env=self.env, **more
        )

    def _say(self, event: str, fields) -> None:
        self.said.append((event, dict(fields)))
        self.hear(event, fields)

    def file(self, name: str, text: str = "") -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return str(path)

    def script(self, text: str) -> str:
        return self.file(f"script{next(self._numbers)}.py", text)

    def order(self, *argv: str, local_rank: int = 0, env=None, **more) -> SpawnSpec:
        """An order whose outputs go to files: see `out` and `err`."""
        more = {"how": CommandKind.SCRIPT, "stdout": Stream(self._path(local_rank, "out"))} | more
        more = {"stderr": Stream(self._path(local_rank, "err"))} | more
        return SpawnSpec(local_rank, tuple(argv), self.env | (env or {}), **more)

    def program(self, text: str, *argv: str, **more) -> SpawnSpec:
        return self.order(self.script(text), *argv, **more)

    def _path(self, local_rank: int, name: str) -> str:
        return str(self.root / f"{name}{local_rank}")

    def out(self, local_rank: int = 0) -> str:
        return Path(self._path(local_rank, "out")).read_text()

    def err(self, local_rank: int = 0) -> str:
        return Path(self._path(local_rank, "err")).read_text()

    def entries(self, event: str) -> list[dict]:
        return [fields for event_name, fields in self.said if event_name == event]

    @property
    def why(self) -> list[str]:
        """Why processes were spawned."""
        return [fields["why"] for fields in self.entries("processes_spawned")]

    async def start(self, *orders: SpawnSpec) -> None:
        self.said.clear()
        self._forget(orders)
        await asyncio.wait_for(self.processes.start(orders), SECONDS)

    def _forget(self, orders) -> None:
        """Nobody shall read what a round before has written."""
        for order in orders:
            for name in ("out", "err"):
                Path(self._path(order.local_rank, name)).unlink(missing_ok=True)

    async def ended(self):
        return await asyncio.wait_for(self.processes.wait_ended(), SECONDS)

    async def stop(self, *args, **more):
        return await asyncio.wait_for(self.processes.stop(*args, **more), SECONDS)

    async def run(self, *orders: SpawnSpec):
        """A whole round."""
        await self.start(*orders)
        try:
            await self.ended()
        finally:
            ended = await self.stop()
        return ended

    async def line(self, local_rank: int = 0, seconds: float = SECONDS) -> str:
        """The first line that a process writes, once it is there."""
        path = Path(self._path(local_rank, "out"))

        def first_line():
            return path.exists() and path.read_text().partition("\n")[1] and path.read_text()

        return await until_async(first_line, "a first line", seconds)


def running(pid: int) -> bool:
    """True if there is such a process and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def zombies() -> list[int]:
    """Our own children that have ended and that nobody has reaped."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdecimal() else ["", ""]
            if fields[0] == "Z" and fields[1] == str(os.getpid()):
                found.append(int(entry.name))
    return found


PYTHON = sys.executable
