"""The agent's side of its keeper: a socket that starts it when the first training process knocks, and what it holds.

A job that saves nothing in memory has no keeper. One that has left arenas behind, before its agent was started again,
has one at once. The keeper ends with its agent: what it reads from is a pipe that nobody else holds.
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

from turnout.launcher.checkpoint.wire import (
    MOST_BYTES,
    Agreed,
    Done,
    End,
    Failed,
    Holdings,
    Inherit,
    Look,
    Refused,
    Seat,
    Settle,
    Stored,
    ToClient,
    Trust,
    encode,
    read_at_client,
)
from turnout.launcher.errors import BadFrame, LauncherError
from turnout.launcher.process.environment import KEEPER, MEMORY, RUN, WORKER
from turnout.launcher.shell.meeting.frames import next_frame
from turnout.launcher.shell.memory.arena import find
from turnout.launcher.shell.memory.private import socket_in
from turnout.launcher.shell.say import Say
from turnout.launcher.wire import Handover, Held

ANSWER_S = 60.0  # to hash what is sealed: 16 GB/s a core, and hundreds of gigabytes
FETCH_S = 3_600.0  # to have the memory of another worker here
END_S = 600.0  # to write what is in flight
_BACKLOG = 128


class Unfetched(LauncherError):
    """The step that this member was to fetch from another's memory is not here. Start nothing: a new round decides."""


class KeeperBeside:
    """Of one agent. folder: private, for the socket; memory: where arenas lie.

    door: listens for the keepers of other workers, None where they are not to come; token: of the job.
    """

    def __init__(
        self,
        folder: Path,
        memory: Path,
        run: str,
        worker: str,
        say: Say,
        door: socket.socket | None = None,
        token: bytes = b"",
    ) -> None:
        self._path, self._memory, self._run, self._worker, self._say = socket_in(folder), memory, run, worker, say
        self._door, self._trust = door, Trust(token)
        self._listens: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    @property
    def env(self) -> dict[str, str]:
        """What a training process has to know."""
        return {KEEPER: str(self._path), RUN: self._run, WORKER: self._worker, MEMORY: str(self._memory)}

    async def listen(self) -> None:
        """Have the socket there; start the keeper if there is something to keep."""
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
        """Where there is something to keep: left by an earlier life of ours, or by a keeper that has died."""
        if self._listens is None or self._process is not None:
            return
        if await asyncio.to_thread(find, self._memory, self._run, self._worker, kept=None):
            await self._start()

    async def _start(self) -> None:
        async with self._starting:
            if self._listens is None or self._process is not None:
                return
            self._disarm()
            fds = [each.fileno() for each in (self._listens, self._door) if each is not None]
            door = ("--door", str(fds[1])) if self._door is not None else ()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "turnout.launcher.shell.memory.keeper", "--listen", str(fds[0]), *door,
                "--folder", str(self._memory), "--run", self._run, "--worker", self._worker,
                stdin=asyncio.subprocess.PIPE, pass_fds=fds, start_new_session=True,
            )  # fmt: skip
            if self._door is not None and self._process.stdin is not None:
                self._process.stdin.write(encode(self._trust))
            self._watch = asyncio.get_running_loop().create_task(self._watches(self._process))

    async def _watches(self, process: asyncio.subprocess.Process) -> None:
        """One that dies is started again by the next knock: arenas outlive it."""
        code = await process.wait()
        if self._process is process:
            self._process = None
            self._say("keeper_lost", {"exit": code})
            self._arm()

    async def held(self, ranks: int) -> tuple[Held, ...]:
        """What all `ranks` processes of this worker hold, hashed, newest first. Waits for hashes, not for storage."""
        answer = await self._ask(Settle(ranks))
        return answer.held if isinstance(answer, Holdings) else ()

    async def agreed(self, step: int, seat: Seat, carry: int = -1) -> None:
        """All members hold this step, and go on from it: it is written to storage, too. -1: storage has the newest.

        What is to be fetched is here then. Raises Unfetched where it is not, and is then not to be had at once again.
        carry: where storage is read, the newest step that all held, which is to be there soon, -1 for none.
        """
        self._trust = Trust(self._trust.token, step, msgspec.structs.replace(seat, fetch=()))
        if seat.fetch:
            await self._start()
        answer = await self._ask(Agreed(step, seat, carry), FETCH_S if seat.fetch else ANSWER_S)
        if seat.fetch and not isinstance(answer, Done):
            raise Unfetched(answer.detail if isinstance(answer, Failed | Refused) else "the keeper does not answer")

    async def inherit(self, order: Handover) -> None:
        """Keep what it names of workers that leave, as far as it is to be had in time."""
        await self._start()
        wanted = Inherit(order.round, order.step, order.origin, order.ranks, order.within_s, order.take)
        await self._ask(wanted, order.within_s + ANSWER_S)

    async def carry(self, step: int) -> None:
        """The job ends, and all members hold this step: it is written to storage, and what is newer is of no use."""
        await self._ask(Agreed(step))

    async def stored(self) -> Stored:
        """What its processes would find in storage. Asked after agreed(-1), by when it has what could be there soon;
        before it where memory is of an older round.
        """
        answer = await self._ask(Look())
        return answer if isinstance(answer, Stored) else Stored()

    async def _ask(self, message: Settle | Agreed | Look | Inherit, within_s: float = ANSWER_S) -> ToClient | None:
        await self._start_if_any()
        if self._process is None:
            return None
        try:
            async with asyncio.timeout(within_s):
                reader, writer = await asyncio.open_unix_connection(str(self._path))
                try:
                    writer.write(encode(message))
                    return read_at_client(await next_frame(reader, MOST_BYTES))
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, BadFrame) as error:
            self._say("keeper_silent", {"detail": str(error) or type(error).__name__})
            return None

    async def close(self, *, done: bool, by_s: float | None = None) -> None:
        """The agent ends. done: the job is, too, and its memory is given back; else it is left for who comes next.

        by_s: when to be gone, by the loop's clock. A keeper that still writes then is told, and goes on while it may.
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
                self._say("keeper_late", {"pid": process.pid})
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
        if self._door is not None:
            self._door.close()
        if done:  # of a keeper that has died
            for found in await asyncio.to_thread(find, self._memory, self._run, self._worker, kept=None):
                found.path.unlink(missing_ok=True)
