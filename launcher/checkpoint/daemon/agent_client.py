"""Talks to the checkpoint daemon for an agent: starts it at the first connection, and sends it requests.

A job that saves nothing in memory has no daemon. If arenas from before the agent's restart exist, the daemon starts at
once; so does the next one when a daemon has died. It ends with its agent, which alone holds the other end of its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import sys
from pathlib import Path

import msgspec

from turnout.launcher.checkpoint.arena.arena import find
from turnout.launcher.checkpoint.arena.socket_dir import socket_in
from turnout.launcher.checkpoint.format.daemon_messages import (
    MOST_BYTES,
    Adopt,
    Agreed,
    Done,
    End,
    Failed,
    FindStored,
    Holdings,
    Refused,
    RestorePlace,
    Settle,
    Stored,
    ToClient,
    Trust,
    encode,
    read_at_client,
)
from turnout.launcher.env import DAEMON, MEMORY, RUN, WORKER
from turnout.launcher.errors import BadFrame, LauncherError
from turnout.launcher.event_log import EventLog
from turnout.launcher.rendezvous.messages import Handover, HeldStep
from turnout.launcher.rendezvous.transport.frame_connection import next_frame

ANSWER_S = 60.0  # seconds to hash what is sealed: hundreds of GB at 16 GB/s a core
FETCH_S = 3_600.0  # seconds to fetch another worker's memory
MOST_ASKED = 3  # daemons that are asked the same, one after the other has died
TELL_S = 10.0  # seconds between two log lines about an answer that is awaited
MOST_PAUSE_S = 10.0  # seconds before the next daemon starts, when one after the other has died
LIVED_S = 30.0  # seconds after which a daemon's death says nothing about the next one
END_S = 600.0  # seconds to finish writing
_BACKLOG = 128


class FetchFailed(LauncherError):
    """The step that this member was told to fetch from another worker's memory is missing. Start no process; wait for a
    new round.
    """


class AgentClient:
    """Starts, asks and stops the checkpoint daemon of one agent.

    folder: private, for the socket. memory: holds the arenas.
    endpoint: listens for other workers' daemons, None to refuse them. token: the job's secret.
    """

    def __init__(
        self,
        folder: Path,
        memory: Path,
        run: str,
        worker: str,
        say: EventLog,
        endpoint: socket.socket | None = None,
        token: bytes = b"",
    ) -> None:
        self._path, self._memory, self._run, self._worker, self._say = socket_in(folder), memory, run, worker, say
        self._endpoint, self._trust = endpoint, Trust(token)
        self._listens: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._pause_s = 0.0  # before the next daemon starts

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables that tell training processes of the daemon."""
        return {DAEMON: str(self._path), RUN: self._run, WORKER: self._worker, MEMORY: str(self._memory)}

    @property
    def pid(self) -> int | None:
        """Return the pid of the daemon, None while there is none."""
        return None if self._process is None else self._process.pid

    async def listen(self) -> None:
        """Create the socket. Start the daemon at once if this worker already has arenas."""
        if self._listens is not None:
            return
        self._listens = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listens.bind(str(self._path))
        os.chmod(self._path, 0o600)
        self._listens.listen(_BACKLOG)
        self._listens.setblocking(False)
        self._arm()
        await self._start_if_any()

    def _arm(self) -> None:
        assert self._listens is not None
        asyncio.get_running_loop().add_reader(self._listens.fileno(), self._knocked)

    def _disarm(self) -> None:
        assert self._listens is not None
        asyncio.get_running_loop().remove_reader(self._listens.fileno())

    def _knocked(self) -> None:
        self._disarm()
        self._watch = asyncio.get_running_loop().create_task(self._start())

    async def _start_if_any(self) -> None:
        """Start the daemon if arenas were left by an earlier agent or by a daemon that died."""
        if self._listens is None or self._process is not None:
            return
        if await asyncio.to_thread(find, self._memory, self._run, self._worker, kept=None):
            await self._start()

    async def _start(self) -> None:
        async with self._starting:
            if self._listens is None or self._process is not None:
                return
            self._disarm()
            fds = [each.fileno() for each in (self._listens, self._endpoint) if each is not None]
            endpoint = ("--peer-listen", str(fds[1])) if self._endpoint is not None else ()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "turnout.launcher.checkpoint.daemon",
                "--listen",
                str(fds[0]),
                *endpoint,
                "--folder",
                str(self._memory),
                "--run",
                self._run,
                "--worker",
                self._worker,
                stdin=asyncio.subprocess.PIPE,
                pass_fds=fds,
                start_new_session=True,
            )
            if self._endpoint is not None and self._process.stdin is not None:
                self._process.stdin.write(encode(self._trust))
            self._watch = asyncio.get_running_loop().create_task(self._watches(self._process))

    async def _watches(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the daemon to die, report it and start a new one, which takes over the memory.

        The first one starts at once. Later ones start after a pause, or at the next connection.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        code = await process.wait()
        if self._process is process:
            self._process = None
            self._arm()
            pause_s = 0.0 if loop.time() > began_s + LIVED_S else self._pause_s
            self._pause_s = min(max(2 * pause_s, 0.5), MOST_PAUSE_S)
            self._say("daemon_lost", {"exit": code, "next_in_s": pause_s})
            await asyncio.sleep(pause_s)
            await self._start()

    async def held(self, ranks: int) -> tuple[HeldStep, ...]:
        """Ask what all `ranks` processes of this worker hold, hashed, newest first.

        Waits for hashes, not for storage.
        """
        answer = await self._ask(Settle(ranks))
        return answer.held if isinstance(answer, Holdings) else ()

    async def agreed(self, step: int, seat: RestorePlace, carry: int = -1) -> None:
        """Tell the daemon that all members restore this step from memory, and fetch shards that are missing here.

        The step is also written to storage. -1 means that members load from storage instead; `carry` is then the newest
        step all held, which is stored soon, or -1.
        Raises FetchFailed if a shard cannot be fetched; retrying at once is of no use.
        """
        self._trust = Trust(self._trust.token, step, msgspec.structs.replace(seat, fetch=()))
        if seat.fetch:
            await self._start()
        answer = await self._ask(Agreed(step, seat, carry), FETCH_S if seat.fetch else ANSWER_S)
        if seat.fetch and not isinstance(answer, Done):
            raise FetchFailed(answer.detail if isinstance(answer, Failed | Refused) else "the daemon does not answer")

    async def inherit(self, order: Handover) -> None:
        """Adopt shards of workers that leave, as named by `order`, as far as they arrive within its time."""
        await self._start()
        wanted = Adopt(order.round, order.step, order.origin, order.ranks, order.within_s, order.take)
        await self._ask(wanted, order.within_s + ANSWER_S)

    async def carry(self, step: int) -> None:
        """Write this step, which all members hold, to storage at the end of the job. Newer saves are discarded."""
        await self._ask(Agreed(step))

    async def stored(self) -> Stored:
        """Ask for the newest step that this worker's processes would find in storage.

        Ask after agreed(-1), when steps soon to be stored are included. If memory is of an older round, ask before it.
        """
        answer = await self._ask(FindStored())
        return answer if isinstance(answer, Stored) else Stored()

    async def _ask(self, message: Settle | Agreed | FindStored | Adopt, within_s: float = ANSWER_S) -> ToClient | None:
        await self._start_if_any()
        if self._process is None:
            return None
        asking = asyncio.create_task(self._answer(message))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        try:
            while not asking.done() and (left_s := until_s - loop.time()) > 0:
                await asyncio.wait([asking], timeout=min(TELL_S, left_s))
                if not asking.done():
                    fields = {
                        "answer_to": type(message).__name__,
                        "gives_up_in_s": max(round(until_s - loop.time()), 0),
                    }
                    self._say("daemon_awaited", fields)
            if asking.done():
                return asking.result()
            why = f"no answer within {within_s:g} s"
        except (OSError, BadFrame) as error:
            why = str(error) or type(error).__name__
        finally:
            asking.cancel()
        self._say("daemon_silent", {"detail": why})
        return None

    async def _answer(self, message: Settle | Agreed | FindStored | Adopt) -> ToClient:
        """Ask the daemon, and the next one again if it dies meanwhile. Raises OSError and BadFrame."""
        for left in reversed(range(MOST_ASKED)):
            reader, writer = await asyncio.open_unix_connection(str(self._path))
            try:
                writer.write(encode(message))
                return read_at_client(await next_frame(reader, MOST_BYTES))
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                if not left:
                    raise ConnectionResetError("the daemon has died") from error
            finally:
                writer.close()
        raise AssertionError("unreachable")

    async def close(self, *, done: bool, by_s: float | None = None) -> None:
        """Stop the daemon as its agent ends. With `done` the job has ended too, and its memory is freed; else memory
        stays.

        by_s: the deadline on the event loop's clock. A daemon that still writes then is reported and goes on by itself.
        """
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.write(encode(End(done)))
                process.stdin.close()
            now_s = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout_at(min(by_s or math.inf, now_s + END_S)):
                    await process.wait()
            except TimeoutError:
                self._say("daemon_late", {"pid": process.pid})
                if by_s is None:
                    process.kill()
                    await process.wait()
        if self._watch is not None:
            self._watch.cancel()
        if self._listens is not None:
            self._disarm()
            self._listens.close()
            self._listens = None
            self._path.unlink(missing_ok=True)
        if self._endpoint is not None:
            self._endpoint.close()
        if done:  # the daemon has died
            for found in await asyncio.to_thread(find, self._memory, self._run, self._worker, kept=None):
                found.path.unlink(missing_ok=True)
