"""Run one container as a child process: start it through container_init.py, signal it, wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from turnout.simulator.processes.pod_lifecycle import KILL
from turnout.simulator.processes.runtime import container_init

_LAST_WORD_S = 2.0  # for a first process that does not answer: it is killed, and its namespace with it


@dataclass(frozen=True, slots=True)
class ContainerOrder:
    """The instructions for container_init.py."""

    argv: Sequence[str]  # empty: stay until told to end
    env: Mapping[str, str]
    folder: str
    hostname: str
    root: str
    note: str  # where the reason goes when the container cannot start
    binds: Sequence[tuple[str, str, bool]] = ()  # (source, target, read only)
    links: Mapping[str, str] = field(default_factory=dict)  # paths of files that lead elsewhere in the container
    needs_walls: bool = False  # True: without namespaces it is not started at all
    walls: bool = True  # False: use no namespaces, even if they are possible


class Child:
    """A running container."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ended(self) -> int:
        """Wait for the end. Returns the exit code, or 128 + the signal that ended it."""
        code = await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return 128 - code if code < 0 else code

    def tell(self, command: str) -> None:
        """Send SIGTERM to its command, or SIGKILL to everything in it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1 if command == KILL else signal.SIGTERM)

    async def kill(self) -> None:
        """End the container, whatever it does."""
        self.tell(KILL)
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def start(order: ContainerOrder, log: Path) -> Child:
    """Start a container, whose output is appended to `log`. Raises OSError."""
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", container_init.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=out,
            stderr=out,
            env={},
            start_new_session=True,
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
    with contextlib.suppress(ConnectionError):  # it is gone already, and its exit code says why
        await process.stdin.drain()
    return Child(process)
