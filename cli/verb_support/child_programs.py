"""Start our own programs as child processes, wait until they are ready, and end them with their caller."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.launcher.linux import die_with

if TYPE_CHECKING:
    import aiohttp  # a third of a second, and who only begins an extender has no use for it

_START_S = 30.0
_POLL_S = 0.02
_REPORTED_LINES = 12
_ERRORS = "turnout_extender_errors_total"
_MAP_RELOADED_AT = "turnout_topology_last_reload_timestamp_seconds"


class ChildFailed(Exception):
    """A program that was started did not come up. The message holds the last lines that it wrote."""


class ExtenderFailed(ChildFailed):
    """The extender did not come up. The message holds the last lines that it wrote."""


@dataclass(frozen=True, slots=True)
class RunningExtender:
    """A ready extender."""

    url: str  # of its verbs
    health: str  # of its probes and metrics
    session: aiohttp.ClientSession

    async def map_reloaded_at(self) -> str:
        """Return when the extender read the map that it uses: seconds since 1970 as text, as in its metrics.

        "" if the metrics do not contain it. Raises aiohttp.ClientError if the extender does not answer.
        """
        return next((line.split()[-1] for line in await self._metrics() if line.startswith(_MAP_RELOADED_AT)), "")

    async def neutral_answers(self) -> int:
        """Return how often it answered without advice because of a fault of its own, since its start.

        Raises aiohttp.ClientError if it does not answer.
        """
        return sum(int(float(line.split()[-1])) for line in await self._metrics() if line.startswith(_ERRORS))

    async def _metrics(self) -> list[str]:
        async with self.session.get(f"{self.health}/metrics") as response:
            return (await response.text()).splitlines()

    async def wait_for_another_map(self, before: str) -> None:
        """Wait until the extender uses another map. There is no time limit.

        before: the time of the last reading of the map, as `map_reloaded_at` returned it. Raises aiohttp.ClientError if
        the extender does not answer.
        """
        while True:
            if await self.map_reloaded_at() != before:
                return
            await asyncio.sleep(_POLL_S)


def extender_command() -> tuple[str, ...]:
    """Return the command that starts our extender."""
    return (sys.executable, "-m", "turnout.scheduler_ext")


@dataclass(frozen=True, slots=True)
class StartedExtender:
    """An extender that was started and may not be ready yet."""

    child: subprocess.Popen[bytes]
    port_file: Path  # to which the extender writes the port of its verbs
    log: Path  # of its output
    health: str  # URL of its probes and metrics


def start_extender(
    command: Sequence[str], kubeconfig: Path, configmap: str, folder: Path, port: int = 0
) -> StartedExtender:
    """Start an extender as a child process, without waiting for it.

    The caller passes the result to `wait_until_ready`, which ends the process. On Linux it also dies with this process.
    Raises OSError if the program cannot be started. command: the program and its first arguments. kubeconfig: of the
    cluster. configmap: NAMESPACE/NAME of the map. folder: for its log and its port file, which are replaced. port: of
    loopback, 0 for a free one.
    """
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
            env=child_environment(),
            start_new_session=True,  # a Ctrl-C in the terminal is for us; we end the child
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
    return StartedExtender(child, port_file, log_file, f"http://{health}")


@asynccontextmanager
async def wait_until_ready(begun: StartedExtender, session: aiohttp.ClientSession) -> AsyncIterator[RunningExtender]:
    """Wait until an extender is ready; yield it, and end it at the end of the block.

    Raises ExtenderFailed if it exits first, or is not ready within _START_S seconds.
    """
    try:
        try:
            async with asyncio.timeout(_START_S):
                up = await _wait_until_ready(begun, RunningExtender("", begun.health, session))
        except TimeoutError as error:
            raise ExtenderFailed(f"the extender was not ready within {_START_S:g} s\n{_tail(begun.log)}") from error
        except ChildProcessError as error:
            raise ExtenderFailed(f"the extender ended at once ({error})\n{_tail(begun.log)}") from error
        yield up
    finally:
        await asyncio.shield(asyncio.to_thread(_end_extender, begun.child))


@asynccontextmanager
async def running_extender(
    command: Sequence[str],
    kubeconfig: Path,
    configmap: str,
    folder: Path,
    session: aiohttp.ClientSession,
    port: int = 0,
) -> AsyncIterator[RunningExtender]:
    """Run an extender on a loopback port during the block; yields it once it is ready.

    For the arguments see `start_extender`. session: for requests to its health port. Raises ExtenderFailed as
    `wait_until_ready` does, and OSError if the program cannot be started.
    """
    async with wait_until_ready(start_extender(command, kubeconfig, configmap, folder, port), session) as up:
        yield up


async def _wait_until_ready(begun: StartedExtender, up: RunningExtender) -> RunningExtender:
    """Wait until the extender has written its port file and reports that it is ready, and return it with its URLs.

    up: the extender before its URLs are known. Raises ChildProcessError if the process exits.
    """
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
        await asyncio.sleep(_POLL_S)


def _end_extender(child: subprocess.Popen[bytes]) -> None:
    """Stop the extender with SIGTERM, and with SIGKILL after STOP_S seconds; wait until the process has ended."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that no process uses now. Another process may take it before the caller does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-_REPORTED_LINES:])


STOP_S = 0.5  # they have nothing to save, and a person waits for the prompt
# aiohttp reads the machine's certificate authorities when it is imported, which takes a twentieth of a second; our
# programs call nobody but an API server, whose authority stands in the kubeconfig.
_NO_AUTHORITIES = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}


def child_environment() -> dict[str, str]:
    """Return the environment for a child: that of this process, without certificate authorities, and with a PYTHONPATH
    on which the child finds the package `turnout` in any folder.
    """
    spec = importlib.util.find_spec("turnout")
    package_root = str(Path(spec.origin).parent.parent) if spec and spec.origin else ""
    path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, **_NO_AUTHORITIES, "PYTHONPATH": path}


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, since no other process would end it then.

    Call it in the child, before it runs its program.
    """
    die_with(os.getppid(), signal.SIGKILL)


class AutoscalerFailed(ChildFailed):
    """The autoscaler did not come up. The message holds the last lines that it wrote."""


class AutoscalerProcess:
    """A running autoscaler.

    last_lines: the newest lines of its log. leader_event: set when it leads, or when its log has ended. has_ended: its
    log has ended, so the process has ended or is about to.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self.last_lines: deque[str] = deque(maxlen=_REPORTED_LINES)
        self.leader_event, self.has_ended = asyncio.Event(), False

    async def listen(self, stream: asyncio.StreamReader) -> None:
        """Pass each line of the log to the callback until the stream ends; then pass one empty line."""
        async for raw in stream:
            line = raw.decode(errors="replace").rstrip("\n")
            self.last_lines.append(line)
            if _event(line) == "leading":
                self.leader_event.set()
            self._on_line(line)
        self.has_ended = True
        self.leader_event.set()
        self._on_line("")

    @property
    def last_words(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.last_lines)


def autoscaler_command() -> tuple[str, ...]:
    """Return the command of our own autoscaler."""
    return (sys.executable, "-m", "turnout.autoscaler")


@asynccontextmanager
async def running_autoscaler(
    command: Sequence[str], kubeconfig: Path, flags: Sequence[str], on_line: Callable[[str], None]
) -> AsyncIterator[AutoscalerProcess]:
    """Run an autoscaler during the block; yields it once it is the leader.

    It is ended at the end of the block. command: the program and its first arguments. kubeconfig: of the cluster.
    flags: further ones. on_line: called with each line of its log, and with "" after the last one. Raises
    AutoscalerFailed if it exits before it leads, or does not lead within _START_S seconds, and OSError if the program
    cannot be started.
    """
    child = await create_subprocess_exec(
        *command,
        *("--kubeconfig", str(kubeconfig), "--metrics-bind", "127.0.0.1:0"),
        *flags,
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        env=child_environment(),
        start_new_session=True,  # a Ctrl-C in the terminal is for us; we end the child
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )
    assert child.stderr is not None
    autoscaler = AutoscalerProcess(on_line)
    log_reader = asyncio.create_task(autoscaler.listen(child.stderr))
    try:
        await _wait_until_leading(autoscaler, child)
        yield autoscaler
    finally:
        await asyncio.shield(_end_autoscaler(child, log_reader))


async def _wait_until_leading(autoscaler: AutoscalerProcess, child: Process) -> None:
    """Wait until the autoscaler is the leader.

    Raises AutoscalerFailed if it exits before, or does not lead within _START_S seconds.
    """
    try:
        async with asyncio.timeout(_START_S):
            await autoscaler.leader_event.wait()
    except TimeoutError as error:
        raise AutoscalerFailed(f"the autoscaler did not lead within {_START_S:g} s\n{autoscaler.last_words}") from error
    if autoscaler.has_ended:
        raise AutoscalerFailed(
            f"the autoscaler ended at once (exit code {await child.wait()})\n{autoscaler.last_words}"
        )


async def _end_autoscaler(child: Process, log_reader: asyncio.Task[None]) -> None:
    """Stop the autoscaler: SIGTERM, and SIGKILL after STOP_S seconds. log_reader: reads its log to the end."""
    if child.returncode is None:
        child.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
    await log_reader


def _event(line: str) -> str:
    """Return the event name in a line of JSON log; "" if it has none."""
    try:
        return str(json.loads(line)["event"])
    except (ValueError, KeyError, TypeError):
        return ""
