"""The autoscaler as a child process, just as it runs in a cluster: heard line by line, and never left behind."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from turnout.cli.commands.child_env import STOP_S, ChildFailed, die_with_parent, environment

_START_S = 30.0
_TOLD_LINES = 12


class AutoscalerFailed(ChildFailed):
    """The autoscaler did not come up. The message holds the last lines that it wrote."""


class AutoscalerProcess:
    """An autoscaler at work. said: the last lines that it wrote; over: it has ended, by itself or not."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self.last_lines: deque[str] = deque(maxlen=_TOLD_LINES)
        self.leads, self.over = asyncio.Event(), False

    async def listen(self, stream: asyncio.StreamReader) -> None:
        """Hand on every line until there are no more; the last one handed on is empty."""
        async for raw in stream:
            line = raw.decode(errors="replace").rstrip("\n")
            self.last_lines.append(line)
            if _event(line) == "leading":
                self.leads.set()
            self._on_line(line)
        self.over = True
        self.leads.set()
        self._on_line("")

    @property
    def last_words(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.last_lines)


def own_autoscaler() -> tuple[str, ...]:
    """The command of our own autoscaler."""
    return (sys.executable, "-m", "turnout.autoscaler")


@asynccontextmanager
async def lending(
    command: Sequence[str], kubeconfig: Path, flags: Sequence[str], on_line: Callable[[str], None]
) -> AsyncIterator[AutoscalerProcess]:
    """Run an autoscaler until the block ends. Gives it once it leads. heard: called with each line of its log.

    Raises AutoscalerFailed.
    """
    child = await create_subprocess_exec(
        *command,
        *("--kubeconfig", str(kubeconfig), "--metrics-bind", "127.0.0.1:0"),
        *flags,
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        env=environment(),
        start_new_session=True,  # a Ctrl-C in the terminal is for us; we end the child
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )
    assert child.stderr is not None
    autoscaler = AutoscalerProcess(on_line)
    ears = asyncio.create_task(autoscaler.listen(child.stderr))
    try:
        await _leading(autoscaler, child)
        yield autoscaler
    finally:
        await asyncio.shield(_end(child, ears))


async def _leading(autoscaler: AutoscalerProcess, child: Process) -> None:
    try:
        async with asyncio.timeout(_START_S):
            await autoscaler.leads.wait()
    except TimeoutError as error:
        raise AutoscalerFailed(f"the autoscaler did not lead within {_START_S:g} s\n{autoscaler.last_words}") from error
    if autoscaler.over:
        raise AutoscalerFailed(
            f"the autoscaler ended at once (exit code {await child.wait()})\n{autoscaler.last_words}"
        )


async def _end(child: Process, ears: asyncio.Task[None]) -> None:
    if child.returncode is None:
        child.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
    await ears


def _event(line: str) -> str:
    try:
        return str(json.loads(line)["event"])
    except (ValueError, KeyError, TypeError):
        return ""
