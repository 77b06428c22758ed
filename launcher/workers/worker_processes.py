"""Starts, awaits and stops the training processes of one agent, round after round.

A process is forked from the warm parent if that equals a fresh start. Otherwise the plain parent executes it, and the
reason is logged. Reasons against a fork are in launcher/workers/worker_spec.py and
launcher/workers/forkserver/server.py.
"""

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
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

import turnout
from turnout.launcher.env import PARENT
from turnout.launcher.errors import BadFrame
from turnout.launcher.event_log import EventLog
from turnout.launcher.framing import FrameSplitter
from turnout.launcher.linux import Leftovers, adopt_orphans
from turnout.launcher.rendezvous.transport.frame_connection import open_local_stream
from turnout.launcher.workers.forkserver.child_main import CANNOT_RUN
from turnout.launcher.workers.forkserver.messages import (
    MAX_BYTES,
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
from turnout.launcher.workers.worker_output import Tails, read_error
from turnout.launcher.workers.worker_spec import Exited, SpawnSpec, StillRunning, command, error_text, why_not_forkable

# The folder that holds the package, for the parent. This module may lie in a link's target, and the package does not.
ROOT = str(Path(turnout.__file__).absolute().parents[1])

FAREWELL_S = 2.0  # seconds for a parent to end by itself

_SPACE = " " * 8_192  # room in the command line, which `ps` shows for the children

REAP_S = 0.005  # seconds between two attempts to reap killed processes

_T = TypeVar("_T")

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[3]); from turnout.launcher.workers.forkserver.server import main; main()"
)


class ForkserverClient:
    """Controls one forkserver, the parent of training processes, from its start to its end. Call `open` first.

    modules: that the forkserver imports. env: its environment. ended: called for every ended process, also if it died
    with the forkserver. lost: awaited if the forkserver ended unexpectedly. stuck_s: seconds after which a forkserver
    counts as unresponsive. `running`: local ranks by pid.
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
        self._reader, self._writer = await open_local_stream(endpoint)
        self._listening = asyncio.create_task(self._listen())

    def _spawn(self) -> socket.socket:
        """Start the parent's program. Call it in the main thread: the parent dies with the thread that started it."""
        own_end, parent_end = socket.socketpair()
        fd, agent = str(parent_end.fileno()), str(os.getpid())
        command = [sys.executable, "-u", "-c", _PROGRAM, fd, agent, ROOT, *self._modules, _SPACE]
        try:
            env = self.env | {PARENT: self._mark}
            self._process = subprocess.Popen(command, env=env, pass_fds=[parent_end.fileno()], start_new_session=True)
        except OSError:
            own_end.close()
            raise
        finally:
            parent_end.close()
        return own_end

    @property
    def pid(self) -> int:
        """Return the pid of the parent."""
        return self._process.pid

    async def start(self, tasks: Sequence[Task]) -> Started | None:
        """Start these processes; return their pids and refusals. None if the parent has died."""
        if self.ended.is_set():
            return None
        self._started = asyncio.get_running_loop().create_future()
        marked = (msgspec.structs.replace(task, env=task.env | {PARENT: self._mark}) for task in tasks)
        await _send(self._writer, StartTasks(tuple(marked)))
        return await asyncio.shield(self._started)

    async def stop(self, sig: int, grace_s: float) -> Stopped | None:
        """Stop all descendants of the parent: send `sig`, and kill those that remain after `grace_s` seconds.

        None if the parent has died, if it is not ready and has no processes, or if it does not answer within `grace_s`
        and `stuck_s` seconds; in the last case it is killed too.
        """
        if self.ended.is_set() or (self._started is None and not self.ready.done()):
            return None  # it may not have read a request to start them: those are stopped too
        if self._stopped is None or self._stopped.done():
            self._stopped = asyncio.get_running_loop().create_future()
        await _send(self._writer, StopTasks(int(sig), grace_s))
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._stopped), grace_s + self._stuck_s)
        await self._kill()
        return None

    async def close(self) -> None:
        """End the parent and all its descendants."""
        self._closing = True
        if self.ready.done():
            self._writer.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), FAREWELL_S)
        await self._kill()
        await self._listening

    async def _kill(self) -> None:
        """Kill the parent process and wait for its end, at most _stuck_s + FAREWELL_S seconds."""
        if not self.ended.is_set():
            self._process.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), self._stuck_s + FAREWELL_S)

    async def _listen(self) -> None:
        """Read the parent's messages until it ends, then end its remaining descendants."""
        frames = FrameSplitter(MAX_BYTES)
        with contextlib.suppress(ConnectionError, BadFrame):
            while data := await self._reader.read(READ_BYTES):
                for body in frames.split(data):
                    self._handle_report(read_report(body))
        self._writer.close()
        await asyncio.to_thread(_reap, self._process)
        await self._end_left_processes()
        for future in (self.ready, self._started, self._stopped):
            if future is not None and not future.done():
                future.set_result(None)
        self.ended.set()
        if not self._closing:
            await self._lost(self)

    def _handle_report(self, message: ParentReady | Started | Ended | Stopped) -> None:
        """Record a report of the parent process, and pass on the exit of a child."""
        match message:
            case ParentReady():
                self.ready.set_result(message)
            case Started(pids, _):
                self.running |= {pid: local_rank for local_rank, pid in pids.items()}
                self._started_pids |= self.running.keys()
                _resolve(self._started, message)
            case Ended(_, pid, _):
                self.running.pop(pid, None)
                self._ended(message)
            case Stopped():
                self._started_pids.clear()  # nothing is left of them
                _resolve(self._stopped, message)

    async def _end_left_processes(self) -> None:
        """Kill the processes of the dead parent, and report how each one ended; those that do not end as stuck."""
        until_s = time.monotonic() + self._stuck_s
        codes = dict[int, int]()
        leftovers = Leftovers(f"{PARENT}={self._mark}", {self.pid, *self._started_pids})
        alive = leftovers.kill_and_reap(codes)
        while alive and time.monotonic() < until_s:
            await asyncio.sleep(REAP_S)
            alive = leftovers.kill_and_reap(codes)
        for pid, local_rank in self.running.items():
            self._ended(Ended(local_rank, pid, codes.get(pid, -signal.SIGKILL), stuck=pid in alive))
        self.running.clear()

    @property
    def code(self) -> int | None:
        """Return the parent's exit code, None while it runs."""
        return self._process.returncode


async def _send(writer: asyncio.StreamWriter, message: StartTasks | StopTasks) -> None:
    """Send an order to the parent. Do nothing if the parent has died."""
    with contextlib.suppress(ConnectionError):  # its death is noticed by the reader
        writer.write(encode(message))
        await writer.drain()


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the parent to end after it closed its socket. Kill it after FAREWELL_S."""
    try:
        process.wait(FAREWELL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _resolve(future: asyncio.Future[_T | None] | None, message: _T) -> None:
    """Set the result of a future that waits for this answer, if there is one."""
    if future is not None and not future.done():
        future.set_result(message)


MAX_PARENTS = 3  # unexpected deaths of warm parents, after which processes are not forked any more

PATIENCE_S = 120.0  # seconds for imports: from a cold disk torch takes a minute

STUCK_S = 10.0  # seconds for a killed process to end, and for a parent to answer


class WarmParent:
    """The parent that has imported the modules of training scripts: started ahead, and replaced after its death.

    enabled: False to fork nothing; it becomes False if the parent cannot be used. modules: that it imports. patience_s:
    time for the imports. open_parent: starts a parent with these modules. `parent`: None while there is none.
    """

    def __init__(
        self,
        enabled: bool,
        modules: tuple[str, ...],
        patience_s: float,
        open_parent: Callable[[Sequence[str]], Awaitable[ForkserverClient]],
        log_event: EventLog,
    ) -> None:
        self.enabled, self._modules, self._patience_s = enabled, modules, patience_s
        self._open_parent, self._log_event = open_parent, log_event
        self.parent: ForkserverClient | None = None
        self._reported_parent: ForkserverClient | None = None  # the last parent that has been reported ready
        # One start at a time: after a lost parent and for a new round, both may want one.
        self._starting = asyncio.Lock()
        self._lost = 0

    async def start(self) -> None:
        """Start the parent without waiting for its imports. A failure is logged, and processes are not forked then."""
        async with self._starting:
            if self.enabled and self.parent is None:
                try:
                    self.parent = await self._open_parent(self._modules)
                except OSError as error:
                    self.enabled = False
                    self._log_event("parent_failed", {"why": str(error)})

    def importing_s(self) -> float:
        """Return an upper bound of the seconds that a start would wait for the warm parent's imports, 0 for none."""
        parent = self.parent
        return 0.0 if parent is None or not self._modules or parent.ready.done() else self._remaining_s(parent)

    def _remaining_s(self, parent: ForkserverClient) -> float:
        """Return the seconds that remain for a parent's imports, >= 0."""
        return max(parent.opened_s + self._patience_s - asyncio.get_running_loop().time(), 0.0)

    async def wait(self) -> ForkserverClient | None:
        """Wait for the warm forkserver's imports and return it; None if there is none or it has died.

        A forkserver that takes longer than `patience_s` is closed, and processes are not forked any more.
        """
        await self.start()
        parent = self.parent
        if parent is None:
            return None
        try:
            ready = await asyncio.wait_for(asyncio.shield(parent.ready), self._remaining_s(parent))
        except TimeoutError:
            self.enabled, self.parent = False, None
            self._log_event(
                "parent_failed", {"why": f"it has not imported {', '.join(self._modules)} in {self._patience_s} s"}
            )
            await parent.close()
            return None
        if ready is not None and self._reported_parent is not parent:
            self._reported_parent = parent
            self._log_event("parent_ready", {"pid": parent.pid, "took_s": ready.took_s})
            for module, why in ready.failed.items():
                self._log_event("preload_failed", {"module": module, "why": why})
        return None if ready is None else parent

    async def replace(self) -> None:
        """Start another parent after the unexpected death of this one, unless MAX_PARENTS have died."""
        self.parent, self._lost = None, self._lost + 1
        if self._lost >= MAX_PARENTS:
            self.enabled = False
        await self.start()

    async def close(self) -> None:
        """End the parent at once. No other one is started."""
        self.enabled = False
        async with self._starting:
            pass  # one that is being started takes its place, and is closed like the others
        if self.parent is not None:
            await self.parent.close()
        self.parent = None


class RoundExits:
    """How the processes of one round have ended. specs: of these processes."""

    def __init__(self, specs: Sequence[SpawnSpec] = ()) -> None:
        self._specs = {spec.local_rank: spec for spec in specs}
        self._exits: dict[int, Exited] = {}  # in the order of their ends
        self._changed = asyncio.Event()

    def record(self, exited: Exited) -> None:
        """Record how a process ended; a second report of the same process changes nothing."""
        self._exits.setdefault(exited.local_rank, exited)
        self._changed.set()

    async def wait(self) -> None:
        """Wait until a process has failed or all have ended."""
        while not any(each.has_failed for each in self._exits.values()) and len(self._exits) < len(self._specs):
            self._changed.clear()
            await self._changed.wait()

    async def report(self) -> tuple[Exited, ...]:
        """Return the exits of all processes that have ended, the first one first.

        A failed process gets the error text that it wrote to its file, if it wrote one.
        """
        for rank, exited in list(self._exits.items()):
            file = self._specs[rank].error_file
            if (
                exited.has_failed
                and file
                and not exited.error_file
                and (raw := await asyncio.to_thread(read_error, file))
            ):
                self._exits[rank] = replace(exited, error=error_text(raw), error_file=file)
        return tuple(self._exits.values())


class WorkerProcesses:
    """Runs the processes of one agent. Each round calls start, ended and stop.

    fork: use a warm forkserver, which has imported the modules in `preload`. shutdown_timeout_s: default time between
    SIGTERM and SIGKILL. env: what the processes' environments share (`worker_spec.common_environment`); also the
    forkservers' environment, None for the agent's own. stuck_s: time for a killed process to end and for a forkserver
    to answer. patience_s: time for the imports.
    """

    def __init__(
        self,
        *,
        fork: bool,
        preload: Sequence[str],
        shutdown_timeout_s: float,
        log_event: EventLog,
        env: Mapping[str, str] | None = None,
        stuck_s: float = STUCK_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._timeout_s, self._stuck_s, self._log_event = shutdown_timeout_s, stuck_s, log_event
        self._env = dict(os.environ if env is None else env)
        self.warm_parent = WarmParent(fork, tuple(preload), patience_s, self._open, log_event)
        self._plain: ForkserverClient | None = None
        self._exits = RoundExits()
        self._tails: Tails | None = None
        adopt_orphans()

    async def _open(self, modules: Sequence[str]) -> ForkserverClient:
        """Start a parent process that imports these modules, and return without waiting for the imports.

        If this task is cancelled meanwhile, the parent is closed first.
        """
        parent = ForkserverClient(modules, self._env, self._record_exit, self._on_lost, self._stuck_s)
        opening = asyncio.create_task(parent.open())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await opening  # its process exists by now, and must be reaped
            await parent.close()
            raise
        return parent

    async def start(self, specs: Sequence[SpawnSpec]) -> None:
        """Start all processes of a round. Raises StillRunning while one of the last round is alive.

        specs: one for each local rank. A process that cannot be started raises nothing: `ended` returns it with an exit
        code. Raises OSError if not even the forkserver that starts fresh interpreters can be started.
        """
        if alive := self.pids():
            raise StillRunning(f"{len(alive)} processes of the last round are alive")
        await self._close_tails()
        self._exits, self._tails = RoundExits(specs), Tails(specs, sys.stdout, sys.stderr, self._log_event)
        refused = await self._start_forks(specs)
        for why in sorted(set(refused.values())):
            ranks = sorted(rank for rank, reason in refused.items() if reason == why)
            self._log_event("processes_spawned", {"local_ranks": ranks, "why": why})
        by_rank = {spec.local_rank: spec for spec in specs}
        await self._spawn([by_rank[rank] for rank in sorted(refused)])

    async def _start_forks(self, specs: Sequence[SpawnSpec]) -> dict[int, str]:
        """Fork the processes that can be forked. Return, by local rank, why the others could not be forked."""
        if not self.warm_parent.enabled:
            return {spec.local_rank: "forking is off" for spec in specs}
        refused = {spec.local_rank: why for spec in specs if (why := why_not_forkable(spec, self._env, sys.executable))}
        forks = [_task(spec, ()) for spec in specs if spec.local_rank not in refused]
        if not forks:
            return refused
        parent = await self.warm_parent.wait()
        answer = None if parent is None else await parent.start(forks)
        if answer is not None:
            return refused | answer.refused
        why = "the forkserver is not ready" if parent is None else "the forkserver died"
        return refused | {task.local_rank: why for task in forks}

    async def _spawn(self, specs: Sequence[SpawnSpec]) -> None:
        """Start worker processes with a fresh interpreter each.

        A process that cannot be started is recorded as exited with CANNOT_RUN. Raises OSError if the plain forkserver
        cannot be started.
        """
        if not specs:
            return
        if self._plain is None:
            self._plain = await self._open(())
        answer = await self._plain.start([_task(spec, command(spec, sys.executable)) for spec in specs])
        for spec in specs:
            if answer is None or spec.local_rank in answer.refused:
                why = "the forkserver died" if answer is None else answer.refused[spec.local_rank]
                self._exits.record(Exited(spec.local_rank, 0, CANNOT_RUN, error=why))

    def _record_exit(self, message: Ended) -> None:
        """Record the end of a process that a parent reports."""
        sig = signal.Signals(-message.code).name if message.code < 0 else ""
        self._exits.record(Exited(message.local_rank, message.pid, message.code, sig, stuck=message.stuck))

    async def _on_lost(self, parent: ForkserverClient) -> None:
        """Handle the unexpected death of a forkserver. A warm one is replaced."""
        self._log_event("parent_lost", {"pid": parent.pid, "code": parent.code})
        if parent is self._plain:
            self._plain = None
        if parent is self.warm_parent.parent:
            await self.warm_parent.replace()

    async def wait_ended(self) -> tuple[Exited, ...]:
        """Wait until a process has failed or all have succeeded. Return the ended processes, the first one first."""
        await self._exits.wait()
        if self._tails is not None:
            await self._tails.catch_up()
        return await self._exits.report()

    async def stop(self, sig: int = signal.SIGTERM, grace_s: float | None = None) -> tuple[Exited, ...]:
        """Signal every process group, and kill all processes that remain after `grace_s`, with all their descendants.

        grace_s: None for the default. Returns all ended processes, the first one first; those that the kernel does not
        let end are marked stuck.
        """
        grace_s = self._timeout_s if grace_s is None else grace_s
        parents = [parent for parent in (self.warm_parent.parent, self._plain) if parent is not None]
        for answer in await asyncio.gather(*(parent.stop(sig, grace_s) for parent in parents)):
            if answer is not None and answer.orphans:
                self._log_event("orphans_killed", {"names": list(answer.orphans)})
        for parent in parents:
            for pid, rank in parent.running.items():  # only if even the parent's death has not ended them
                self._exits.record(Exited(rank, pid, -signal.SIGKILL, stuck=True))
        await self._close_tails()
        return await self._exits.report()

    def pids(self) -> dict[int, int]:
        """Return the pids of running processes by local rank."""
        parents = [parent for parent in (self.warm_parent.parent, self._plain) if parent is not None]
        return {local_rank: pid for parent in parents for pid, local_rank in parent.running.items()}

    async def close(self) -> None:
        """End everything at once, including the parents."""
        self.warm_parent.enabled = False  # its death is not followed by another parent
        await self.stop(signal.SIGKILL, 0.0)
        await self.warm_parent.close()
        if self._plain is not None:
            await self._plain.close()
        self._plain = None

    async def _close_tails(self) -> None:
        """Show the rest of the output of the last round, and close its files."""
        if self._tails is not None:
            tails, self._tails = self._tails, None
            await tails.close()


def _task(spec: SpawnSpec, spawn: tuple[str, ...]) -> Task:
    """Convert the description of a process to a task for a forkserver.

    spawn: the command line of a fresh interpreter; () to fork instead.
    """
    return Task(
        local_rank=spec.local_rank,
        argv=spec.argv,
        env=dict(spec.env),
        spawn=spawn,
        module=spec.how == "module",
        cwd=spec.cwd,
        stdout=spec.stdout.file,
        stderr=spec.stderr.file,
        cpus=spec.cpus,
    )
