"""The extender as a child process, just as it runs in a cluster: started, waited for, and never left behind."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.cli.commands.child_env import STOP_S, ChildFailed, die_with_parent, environment

if TYPE_CHECKING:
    import aiohttp  # a third of a second, and who only begins an extender has no use for it

_START_S = 30.0
_LOOK_S = 0.02
_TOLD_LINES = 12
_ERRORS = "turnout_extender_errors_total"
_MAP_TAKEN = "turnout_topology_last_reload_timestamp_seconds"


class ExtenderFailed(ChildFailed):
    """The extender did not come up. The message holds the last lines that it wrote."""


@dataclass(frozen=True, slots=True)
class Up:
    """A ready extender. url: of its verbs; health: of its probes and metrics."""

    url: str
    health: str
    session: aiohttp.ClientSession

    async def map_taken_at(self) -> str:
        """When it took the map that it uses, as its metrics write it; empty when they do not."""
        return next((line.split()[-1] for line in await self._metrics() if line.startswith(_MAP_TAKEN)), "")

    async def neutral_answers(self) -> int:
        """How often it answered without advice because of a fault of its own."""
        return sum(int(float(line.split()[-1])) for line in await self._metrics() if line.startswith(_ERRORS))

    async def _metrics(self) -> list[str]:
        async with self.session.get(f"{self.health}/metrics") as response:
            return (await response.text()).splitlines()

    async def took_another_map(self, before: str) -> None:
        """Wait until it uses another map than the one taken at `before`."""
        while True:
            if await self.map_taken_at() != before:
                return
            await asyncio.sleep(0.02)


def own_extender() -> tuple[str, ...]:
    """The command of our own extender."""
    return (sys.executable, "-m", "turnout.scheduler_ext")


@dataclass(frozen=True, slots=True)
class Begun:
    """An extender that was started and may not be ready yet."""

    child: subprocess.Popen[bytes]
    port_file: Path
    log: Path
    health: str


def begin(command: Sequence[str], kubeconfig: Path, configmap: str, folder: Path, port: int = 0) -> Begun:
    """Start an extender and do not wait for it. Who begins one has to hand it to `ready`, which ends it."""
    port_file, log_file = folder / "extender.port", folder / "extender.log"
    port_file.unlink(missing_ok=True)
    health = f"127.0.0.1:{free_port()}"
    flags = ("--kubeconfig", str(kubeconfig), "--bind", f"127.0.0.1:{port}", "--metrics-bind", health)
    with log_file.open("wb") as log:
        child = subprocess.Popen(
            [*command, *flags, "--port-file", str(port_file), "--configmap", configmap],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(),
            start_new_session=True,  # a Ctrl-C in the terminal is for us; we end the child
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
    return Begun(child, port_file, log_file, f"http://{health}")


@asynccontextmanager
async def ready(begun: Begun, session: aiohttp.ClientSession) -> AsyncIterator[Up]:
    """Wait until an extender is ready, and end it with the block. Raises ExtenderFailed."""
    try:
        async with asyncio.timeout(_START_S):
            up = await _ready(begun, Up("", begun.health, session))
        yield up
    except TimeoutError as error:
        raise ExtenderFailed(f"the extender was not ready within {_START_S:g} s\n{_tail(begun.log)}") from error
    except ChildProcessError as error:
        raise ExtenderFailed(f"the extender ended at once ({error})\n{_tail(begun.log)}") from error
    finally:
        await asyncio.shield(asyncio.to_thread(_end, begun.child))


@asynccontextmanager
async def running(
    command: Sequence[str],
    kubeconfig: Path,
    configmap: str,
    folder: Path,
    session: aiohttp.ClientSession,
    port: int = 0,
) -> AsyncIterator[Up]:
    """Run an extender on a loopback port until the block ends. Gives it once it is ready.

    configmap: namespace/name of the map. port: 0 for a free one. Raises ExtenderFailed.
    """
    async with ready(begin(command, kubeconfig, configmap, folder, port), session) as up:
        yield up


async def _ready(begun: Begun, up: Up) -> Up:
    import aiohttp

    while True:
        if (code := begun.child.poll()) is not None:
            raise ChildProcessError(f"exit code {code}")
        text = await asyncio.to_thread(lambda: begun.port_file.read_text() if begun.port_file.exists() else "")
        if text.strip().isdigit():
            try:
                async with up.session.get(f"{up.health}/readyz") as response:
                    if response.status == 200:
                        return replace(up, url=f"http://127.0.0.1:{text.strip()}")
            except aiohttp.ClientError:
                pass  # it has named its port and does not answer yet
        await asyncio.sleep(_LOOK_S)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-_TOLD_LINES:])
