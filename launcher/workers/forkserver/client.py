"""The agent's end of one parent of training processes: starts the parent, sends orders and notices its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

import turnout
from turnout.launcher.env import PARENT
from turnout.launcher.errors import BadFrame
from turnout.launcher.framing import FrameSplitter
from turnout.launcher.workers.forkserver.messages import (
    MOST_BYTES,
    READ_BYTES,
    Ended,
    ParentReady,
    Started,
    StartTasks,
    Stopped,
    StopTasks,
    Task,
    encode,
    read_report,
)
from turnout.launcher.workers.reaper import Leftovers

# The folder that holds the package, for the parent. This module may lie in a link's target, and the package does not.
ROOT = str(Path(turnout.__file__).absolute().parents[1])
FAREWELL_S = 2.0
_SPACE = " " * 8_192  # room in the command line, which `ps` shows for the children
BURIAL_S = 0.005
_T = TypeVar("_T")
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[3]); from turnout.launcher.workers.forkserver.server import main; main()"
)


class ForkserverClient:
    """Controls one parent of training processes, from its start to its end. Call `open` first.

    modules: imported ahead. env: the parent's environment. ended: called for every ended process, also if it died with
    the parent.
    lost: awaited if the parent ended unasked. stuck_s: limit for an unresponsive parent. `running` maps pids to local
    ranks.
    """

    def __init__(
        self,
        modules: Sequence[str],
        env: Mapping[str, str],
        ended: Callable[[Ended], None],
        lost: Callable[[ForkserverClient], Awaitable[None]],
        stuck_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.env, self._modules, self._ended, self._lost, self._stuck_s = (
            dict(env),
            tuple(modules),
            ended,
            lost,
            stuck_s,
        )
        self._mark = secrets.token_hex(16)
        self._started_pids = set[int]()  # since the last round ended
        self.running: dict[int, int] = {}
        self.ready: asyncio.Future[ParentReady | None] = loop.create_future()  # None if it died before it was ready
        self.opened_s = loop.time()
        self.ended = asyncio.Event()
        self._started: asyncio.Future[Started | None] | None = None
        self._stopped: asyncio.Future[Stopped | None] | None = None
        self._closing = False

    async def open(self) -> None:
        """Start the parent, which becomes ready later. Raises OSError if it cannot be started."""
        endpoint = self._spawn()
        self._reader, self._writer = await asyncio.open_connection(sock=endpoint)
        self._listening = asyncio.create_task(self._listen())

    def _spawn(self) -> socket.socket:
        """Start the parent's program. Call it in the main thread: the parent dies with the thread that started it."""
        ours, theirs = socket.socketpair()
        fd, agent = str(theirs.fileno()), str(os.getpid())
        command = [sys.executable, "-u", "-c", _PROGRAM, fd, agent, ROOT, *self._modules, _SPACE]
        try:
            env = self.env | {PARENT: self._mark}
            self._process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], start_new_session=True)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    @property
    def pid(self) -> int:
        """Return the pid of the parent."""
        return self._process.pid

    async def start(self, tasks: Sequence[Task]) -> Started | None:
        """Start these processes. None if the parent has died."""
        if self.ended.is_set():
            return None
        self._started = asyncio.get_running_loop().create_future()
        marked = (msgspec.structs.replace(task, env=task.env | {PARENT: self._mark}) for task in tasks)
        await self._tell(StartTasks(tuple(marked)))
        return await asyncio.shield(self._started)

    async def stop(self, sig: int, grace_s: float) -> Stopped | None:
        """Stop everything below the parent. None if the parent does not answer in time or has died; then it is gone
        too.
        """
        if self.ended.is_set() or (self._started is None and not self.ready.done()):
            return None  # it may not have read a request to start them: those are stopped too
        if self._stopped is None or self._stopped.done():
            self._stopped = asyncio.get_running_loop().create_future()
        await self._tell(StopTasks(int(sig), grace_s))
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._stopped), grace_s + self._stuck_s)
        await self._kill()
        return None

    async def close(self) -> None:
        """End the parent and everything below it."""
        self._closing = True
        if self.ready.done():
            self._writer.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), FAREWELL_S)
        await self._kill()
        await self._listening

    async def _kill(self) -> None:
        if not self.ended.is_set():
            self._process.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), self._stuck_s + FAREWELL_S)

    async def _tell(self, message: StartTasks | StopTasks) -> None:
        with contextlib.suppress(ConnectionError):  # its death is noticed by the reader
            self._writer.write(encode(message))
            await self._writer.drain()

    async def _listen(self) -> None:
        """Read the parent's messages until it ends, then clean up what it leaves."""
        frames = FrameSplitter(MOST_BYTES)
        with contextlib.suppress(ConnectionError, BadFrame):
            while more := await self._reader.read(READ_BYTES):
                for body in frames.split(more):
                    self._hear(read_report(body))
        self._writer.close()
        await asyncio.to_thread(self._reap)
        await self._bury()
        for waiting in (self.ready, self._started, self._stopped):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        self.ended.set()
        if not self._closing:
            await self._lost(self)

    def _reap(self) -> None:
        """Wait for the parent to end after it closed its socket. Kill it after FAREWELL_S."""
        try:
            self._process.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _hear(self, message: ParentReady | Started | Ended | Stopped) -> None:
        match message:
            case ParentReady():
                self.ready.set_result(message)
            case Started(pids, _):
                self.running |= {pid: local_rank for local_rank, pid in pids.items()}
                self._started_pids |= self.running.keys()
                _answer(self._started, message)
            case Ended(_, pid, _):
                self.running.pop(pid, None)
                self._ended(message)
            case Stopped():
                self._started_pids.clear()  # nothing is left of them
                _answer(self._stopped, message)

    async def _bury(self) -> None:
        """End the processes that the dead parent left, and report how each process ended."""
        until_s = time.monotonic() + self._stuck_s
        codes = dict[int, int]()
        leftovers = Leftovers(f"{PARENT}={self._mark}", {self.pid, *self._started_pids})
        left = leftovers.bury(codes)
        while left and time.monotonic() < until_s:
            await asyncio.sleep(BURIAL_S)
            left = leftovers.bury(codes)
        for pid, local_rank in self.running.items():
            self._ended(Ended(local_rank, pid, codes.get(pid, -signal.SIGKILL), stuck=pid in left))
        self.running.clear()

    @property
    def code(self) -> int | None:
        """Return the parent's exit code, None while it runs."""
        return self._process.returncode


def _answer(waiting: asyncio.Future[_T | None] | None, message: _T) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(message)
