"""Talks to the checkpoint daemon for an agent: starts it at the first connection, and sends it requests.

A job that saves nothing in memory has no daemon. The daemon starts at once if arenas from before the agent's restart
exist, and after the death of a daemon. It ends with its agent, which alone has the other end of its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from pathlib import Path

import msgspec

from turnout.launcher.checkpoint.arena.arena_files import find, socket_in
from turnout.launcher.checkpoint.daemon.save_reports import SaveReportReader
from turnout.launcher.checkpoint.daemon.trainer_client import daemon_command
from turnout.launcher.checkpoint.format.daemon_messages import (
    MAX_BYTES,
    Adopt,
    Done,
    End,
    FindStored,
    GetHeldSteps,
    HeldSteps,
    RequestRefused,
    Restore,
    SaveFailed,
    StoredStep,
    ToClient,
    Trust,
    encode,
    read_at_client,
)
from turnout.launcher.coordinator_messages import Handover, HeldStep, RestorePlace
from turnout.launcher.env import DAEMON, MEMORY, RUN, WORKER
from turnout.launcher.errors import BadFrame, LauncherError
from turnout.launcher.event_log import EventLog
from turnout.launcher.rendezvous.transport.frame_connection import next_frame

ANSWER_S = 60.0  # seconds to hash what is sealed: hundreds of GB at 16 GB/s a core
FETCH_S = 3_600.0  # seconds to fetch another worker's memory
MAX_DAEMONS_ASKED = 3  # daemons that get one request, each after the death of the one before
LOG_PERIOD_S = 10.0  # seconds between two log lines about an answer that is awaited
MIN_PAUSE_S = 0.5  # seconds before a daemon that could not be started is tried again
MAX_PAUSE_S = 10.0  # seconds before the next daemon starts, if several have died soon after their start
STABLE_S = 30.0  # seconds after which a daemon's death says nothing about the next one
END_S = 600.0  # seconds to finish writing
LAST_REPORTS_S = 5.0  # seconds to read what a daemon that has ended reported last
_BACKLOG = 128  # connections that the kernel queues


class FetchFailed(LauncherError):
    """A shard that this member must fetch from another worker's memory could not be fetched. Start no process; wait for
    a new round.
    """


class ChildDaemon:
    """The checkpoint daemon that one agent starts, starts again after its death, and stops.

    folder: private, for the socket. memory: the folder of the arenas. run, worker: the job's id and the worker's name.
    endpoint: listens for other workers' daemons; None for no replicas. token: the job's secret. `path`: of the socket.
    `trust`: the first message to each daemon, if there is an endpoint.
    """

    def __init__(
        self,
        folder: Path,
        memory: Path,
        run: str,
        worker: str,
        log_event: EventLog,
        endpoint: socket.socket | None = None,
        token: bytes = b"",
    ) -> None:
        self.path, self._memory, self._run, self._worker = socket_in(folder), memory, run, worker
        self._log_event = log_event
        self._endpoint, self.trust = endpoint, Trust(token)
        self._listener: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._restart_task: asyncio.Task[None] | None = None
        self._reports: SaveReportReader | None = None  # of the newest daemon
        self._starting = asyncio.Lock()
        self._pause_s = 0.0  # before the next daemon starts

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables by which training processes find the daemon and its arenas."""
        return {DAEMON: str(self.path), RUN: self._run, WORKER: self._worker, MEMORY: str(self._memory)}

    @property
    def pid(self) -> int | None:
        """Return the pid of the daemon, None while there is none."""
        return None if self._process is None else self._process.pid

    async def listen(self) -> None:
        """Create the socket. Start the daemon at once if this worker already has arenas.

        Raises OSError if the socket cannot be created or the daemon cannot be started. A second call does nothing.
        """
        if self._listener is not None:
            return
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        os.chmod(self.path, 0o600)
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._watch_listener()
        await self.start_if_any()

    def _watch_listener(self) -> None:
        """Start the daemon at the next connection, which it accepts."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()

        def start() -> None:
            """Start the daemon as a task."""
            self._unwatch_listener()
            self._restart_task = loop.create_task(self._start_after(0.0))

        loop.add_reader(self._listener.fileno(), start)

    def _unwatch_listener(self) -> None:
        """Do not react to connections, since the daemon accepts them."""
        assert self._listener is not None
        asyncio.get_running_loop().remove_reader(self._listener.fileno())

    async def start_if_any(self) -> None:
        """Start the daemon if it does not run and this worker has arenas, of an earlier agent or of a dead daemon."""
        if self._listener is None or self._process is not None:
            return
        if await asyncio.to_thread(find, self._memory, self._run, self._worker, replicas=None):
            await self.start()

    async def start(self) -> None:
        """Start the checkpoint daemon as a child process, unless it runs already or this client is closed.

        The child inherits the listening sockets. A task that restarts a dead daemon is started too. Raises OSError if
        the process cannot be started; this is logged, and a task tries again after a growing pause.
        """
        async with self._starting:
            if self._listener is None or self._process is not None:
                return
            self._unwatch_listener()
            try:
                self._process = await self._spawn(self._listener)
            except OSError as error:
                pause_s = max(self._pause_s, MIN_PAUSE_S)
                self._pause_s = min(2 * pause_s, MAX_PAUSE_S)
                self._log_event("daemon_not_started", {"why": str(error), "next_in_s": pause_s})
                self._restart_task = asyncio.get_running_loop().create_task(self._start_after(pause_s))
                raise
            if self._endpoint is not None and self._process.stdin is not None:
                self._process.stdin.write(encode(self.trust))
            self._restart_task = asyncio.get_running_loop().create_task(self._restart_when_dead(self._process))

    async def _start_after(self, pause_s: float) -> None:
        """Start the daemon after `pause_s` seconds. If it fails, `start` has begun another task that tries again."""
        await asyncio.sleep(pause_s)
        with contextlib.suppress(OSError):
            await self.start()

    async def _spawn(self, listener: socket.socket) -> asyncio.subprocess.Process:
        """Start a daemon that inherits the listening sockets, and begin to read its reports."""
        fds = [each.fileno() for each in (listener, self._endpoint) if each is not None]
        endpoint = ("--peer-listen", str(fds[1])) if self._endpoint is not None else ()
        reports = SaveReportReader(self._log_event)
        with contextlib.ExitStack() as files:
            read_end, write_end = (os.fdopen(end, mode, 0) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
            files.enter_context(read_end)
            files.enter_context(write_end)
            await asyncio.get_running_loop().connect_read_pipe(lambda: reports, read_end)
            files.callback(reports.close)
            process = await asyncio.create_subprocess_exec(
                *daemon_command(fds[0], self._memory, self._run, self._worker),
                *endpoint,
                "--reports",
                str(write_end.fileno()),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[*fds, write_end.fileno()],
                start_new_session=True,
            )
            files.pop_all()
            write_end.close()  # so that the pipe ends with the daemon
        self._reports = reports
        return process

    async def _restart_when_dead(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the daemon to die, log it and start a new one, which adopts the arenas.

        After a daemon that ran for STABLE_S it starts at once, else after a growing pause or at the next connection.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        code = await process.wait()
        if self._process is process:
            self._process = None
            self._watch_listener()
            pause_s = 0.0 if loop.time() > began_s + STABLE_S else self._pause_s
            self._pause_s = min(max(2 * pause_s, MIN_PAUSE_S), MAX_PAUSE_S)
            self._log_event("daemon_lost", {"exit": code, "next_in_s": pause_s})
            await self._start_after(pause_s)

    async def close(self, *, done: bool, by_s: float | None = None) -> None:
        """Stop the daemon, since its agent ends.

        done: the job has ended too, and the arenas are removed; else they stay. by_s: the deadline on the event loop's
        clock, after which a daemon that still writes is logged and continues alone; None: it is killed after END_S.
        """
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            await self._stop_process(process, process.stdin, done, by_s)
        if self._reports is not None:
            if process is not None and process.returncode is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._reports.ended.wait(), LAST_REPORTS_S)
            self._reports.close()
        if self._restart_task is not None:
            self._restart_task.cancel()
        if self._listener is not None:
            self._unwatch_listener()
            self._listener.close()
            self._listener = None
            self.path.unlink(missing_ok=True)
        if self._endpoint is not None:
            self._endpoint.close()
        if done:  # the daemon has died
            for arena_file in await asyncio.to_thread(find, self._memory, self._run, self._worker, replicas=None):
                arena_file.path.unlink(missing_ok=True)

    async def _stop_process(
        self, process: asyncio.subprocess.Process, stdin: asyncio.StreamWriter, done: bool, by_s: float | None
    ) -> None:
        """Tell the daemon to end, and wait for it until `by_s`, for END_S at most. done, by_s: as for close().

        A daemon that is late is logged, and killed if `by_s` is None. stdin: of the process.
        """
        with contextlib.suppress(OSError):
            stdin.write(encode(End(done)))
            stdin.close()
        now_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(by_s or math.inf, now_s + END_S)):
                await process.wait()
        except TimeoutError:
            self._log_event("daemon_late", {"pid": process.pid})
            if by_s is None:
                process.kill()
                await process.wait()


class AgentClient:
    """Sends the requests of one agent to its checkpoint daemon, and starts the daemon for them if necessary."""

    def __init__(self, daemon: ChildDaemon, log_event: EventLog) -> None:
        self._daemon, self._log_event = daemon, log_event

    async def held_steps(self, ranks: int) -> tuple[HeldStep, ...]:
        """Return the hashed steps in memory that all `ranks` processes of this worker hold, newest first; () for none.

        Includes shards that the daemon keeps for other workers. Waits for hashes, not for storage. () also if the
        daemon does not answer.
        """
        answer = await self._ask(GetHeldSteps(ranks))
        return answer.held_steps if isinstance(answer, HeldSteps) else ()

    async def restore(self, step: int, restore_place: RestorePlace, persist_step: int = -1) -> None:
        """Tell the daemon which step all members restore from memory, and let it fetch missing shards.

        The daemon also writes that step to storage. step: -1 if members load from storage instead. Then persist_step is
        the newest step that all members held, which the daemon writes to storage before the load, -1 for none.
        restore_place: this member's place in the round, and where to fetch. Raises FetchFailed if a shard cannot be
        fetched, or if a daemon that has to fetch does not answer; a retry in this round cannot succeed. Raises OSError
        if that daemon cannot be started. If nothing is to be fetched, a missing or silent daemon raises nothing.
        """
        self._daemon.trust = Trust(
            self._daemon.trust.token, step, msgspec.structs.replace(restore_place, fetch_from=())
        )
        if restore_place.fetch_from:
            await self._daemon.start()
        answer = await self._ask(
            Restore(step, restore_place, persist_step), FETCH_S if restore_place.fetch_from else ANSWER_S
        )
        if restore_place.fetch_from and not isinstance(answer, Done):
            raise FetchFailed(
                answer.detail if isinstance(answer, SaveFailed | RequestRefused) else "the daemon does not answer"
            )

    async def adopt_shards(self, order: Handover) -> None:
        """Let the daemon adopt the shards of leaving workers that the order names, as far as it can within the order's
        time. A daemon that cannot be started or does not answer is logged.
        """
        with contextlib.suppress(OSError):  # logged by start()
            await self._daemon.start()
        request = Adopt(order.round, order.step, order.saved_round, order.ranks, order.within_s, order.shards)
        await self._ask(request, order.within_s + ANSWER_S)

    async def persist(self, step: int) -> None:
        """Let the daemon write this step, which all members hold, to storage at the end of the job, and discard newer
        saves. Does nothing without a daemon; a daemon that does not answer is logged.
        """
        await self._ask(Restore(step))

    async def stored_step(self) -> StoredStep:
        """Return the newest step in storage as this worker sees it; an empty StoredStep if unknown.

        Ask after restore(-1), which writes steps in flight to storage. If the step in memory is of an older round, ask
        before restore().
        """
        answer = await self._ask(FindStored())
        return answer if isinstance(answer, StoredStep) else StoredStep()

    async def _ask(
        self, message: GetHeldSteps | Restore | FindStored | Adopt, within_s: float = ANSWER_S
    ) -> ToClient | None:
        """Send one request to the daemon and return its answer.

        None if there is no daemon, if it cannot be started, if the connection fails, or if no answer comes in time; all
        but the first are logged. within_s: longest wait, seconds.
        """
        with contextlib.suppress(OSError):  # logged by start()
            await self._daemon.start_if_any()
        if self._daemon.pid is None:
            return None
        request = asyncio.create_task(self._request_answer(message))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        try:
            while not request.done() and (left_s := until_s - loop.time()) > 0:
                await asyncio.wait([request], timeout=min(LOG_PERIOD_S, left_s))
                if not request.done():
                    fields = {
                        "answer_to": type(message).__name__,
                        "gives_up_in_s": max(round(until_s - loop.time()), 0),
                    }
                    self._log_event("daemon_awaited", fields)
            if request.done():
                return request.result()
            why = f"no answer within {within_s:g} s"
        except (OSError, BadFrame) as error:
            why = str(error) or type(error).__name__
        finally:
            request.cancel()
        self._log_event("daemon_silent", {"detail": why})
        return None

    async def _request_answer(self, message: GetHeldSteps | Restore | FindStored | Adopt) -> ToClient:
        """Send a request and return the answer. If the daemon dies meanwhile, repeat it to the next one.

        Raises OSError if it cannot connect or MAX_DAEMONS_ASKED daemons have died, and BadFrame for an invalid answer.
        """
        for tries_left in reversed(range(MAX_DAEMONS_ASKED)):
            reader, writer = await asyncio.open_unix_connection(str(self._daemon.path))
            try:
                writer.write(encode(message))
                return read_at_client(await next_frame(reader, MAX_BYTES))
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                if not tries_left:
                    raise ConnectionResetError("the daemon has died") from error
            finally:
                writer.close()
        raise AssertionError("unreachable")
