"""The keeper: the process beside an agent that hashes what its processes seal, and carries it to storage.

`python -m launcher.shell.memory.keeper`. It listens on a socket that it is given, is niced, and outlives training
processes. What it reads from tells it when its agent ends: then it finishes what is in flight, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.checkpoint.generations import Identity
from launcher.checkpoint.wire import End, Message, encode, length, read_at_keeper
from launcher.errors import BadCheckpoint, BadFrame
from launcher.shell.memory.arena import Arena, boot_id, find
from launcher.shell.memory.guest import Guest
from launcher.shell.memory.persisting import Persisting
from launcher.shell.memory.ward import Ward
from launcher.wire import Held

LAST_WORDS_S = 5.0  # for processes that have ended to be seen as such
OTHERS_S = 60.0  # for the last shards of the other workers, when all end
log = logging.getLogger("turnout.keeper")
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_DEBUG = frozenset(["persisted", "checkpoint_committed"])


class Keeper:
    """Of one worker of one run. folder: where its arenas lie."""

    def __init__(self, folder: Path, run: str, worker: str, bytes_s: float = 0.0) -> None:
        self.run, self.worker = run, worker
        self._folder, self._boot = folder, boot_id()
        self.persisting = Persisting(run, say, bytes_s)
        self._wards: dict[int, Ward] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._ending, self._gives_up_s = threading.Event(), math.inf
        for found in find(folder, run, worker, lambda why: say("arena_passed_over", {"why": why})):
            with suppress(BadCheckpoint):
                self.ward(found.identity.local_rank).adopt(Arena.open(found.path))

    def ward(self, local_rank: int) -> Ward:
        """What is kept for this local rank."""
        if local_rank not in self._wards:
            identity = Identity(self.run, self.worker, local_rank, self._boot, 1)
            self._wards[local_rank] = Ward(self._folder, identity, self.persisting, say)
        return self._wards[local_rank]

    def stop(self, pause_s: float) -> bool:
        """Wait so long, in a thread; True when the keeper ends, and the other workers have had time to end, too."""
        if self._ending.wait(pause_s):
            time.sleep(min(pause_s, max(self._gives_up_s - time.monotonic(), 0.0)))
        return time.monotonic() > self._gives_up_s

    async def held(self, ranks: int) -> tuple[Held, ...]:
        """The steps that all of so many local ranks hold, newest first; a state that is the same for all counts, too.

        What is not what was hashed is thrown away here, before anybody relies on it.
        """
        records = await asyncio.gather(*(self.ward(local_rank).settled() for local_rank in range(ranks)))
        held = [Held(each.step, 0, 0) for each in (records[0] if records else ()) if each.world == 1]
        for first in records[0] if records else ():
            others = range(1, ranks)
            place = (first.step, first.round, first.world)
            if all(
                any((each.step, each.round, each.world, each.rank) == (*place, first.rank + at) for each in records[at])
                for at in others
            ):
                held.append(Held(first.step, first.rank, first.world))
        return tuple(sorted(set(held), key=lambda each: -each.step))[:16]

    async def agreed(self, step: int) -> None:
        """The world goes on from this step: have it in storage, too, while it trains."""
        for ward in self._wards.values():
            self.begin(ward.persist(step, self.persisting.commit, self.stop))

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do this beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One training process, or the agent."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:  # by end(): a server would log it
            return
        finally:
            self._serving.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guest = Guest(self, writer.write)
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                while True:
                    body = await reader.readexactly(length(await reader.readexactly(4)))
                    if (answer := await guest.heard(read_at_keeper(body))) is not None:
                        writer.write(encode(answer))
                        await writer.drain()
            except BadFrame as error:
                say("frame_refused", {"why": str(error)})
        guest.gone()
        writer.close()

    async def end(self, done: bool) -> None:
        """done: nobody needs the memory any more. Else the newest that all hold is written, and the rest finished."""
        if self._serving:  # what they have said last is still to be heard
            _, late = await asyncio.wait(list(self._serving), timeout=LAST_WORDS_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if not done:
            held = await self.held(len(self._wards)) if self._wards else ()
            for ward in self._wards.values():
                if held:
                    self.begin(ward.persist(held[0].step, self.persisting.commit, self.stop))
        self._gives_up_s = time.monotonic() + OTHERS_S
        self._ending.set()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        for ward in self._wards.values():
            ward.close(remove=done)


def say(what: str, fields: Mapping[str, object]) -> None:
    """One line of the log."""
    extra = {f"{name}_" if name in _ORDINARY else name: value for name, value in fields.items()}
    log.log(logging.DEBUG if what in _DEBUG else logging.INFO, what, extra=extra)


async def _told_to_end() -> bool:
    """What our agent says last: whether the job is done. An agent that is gone says nothing."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        message: Message = read_at_keeper(await reader.readexactly(length(await reader.readexactly(4))))
    except (OSError, asyncio.IncompleteReadError, BadFrame):
        return False
    return isinstance(message, End) and message.done


async def _run(listens: socket.socket, keeper: Keeper) -> None:
    server = await asyncio.start_unix_server(keeper.serve, sock=listens)
    done = await _told_to_end()
    server.close()
    await keeper.end(done)


def main(argv: Sequence[str] | None = None) -> int:
    """Keep until our agent ends."""
    parser = argparse.ArgumentParser(prog="turnout-keeper", description="Looks after the memory of one worker.")
    parser.add_argument("--listen", type=int, required=True, metavar="FD", help="a socket that listens")
    parser.add_argument("--folder", type=Path, required=True, help="where arenas lie")
    parser.add_argument("--run", required=True, help="the job's id")
    parser.add_argument("--worker", required=True, help="the worker's name")
    parser.add_argument("--nice", type=int, default=10, help="how much training goes first, 0 to 19")
    parser.add_argument("--bytes-s", type=float, default=0.0, help="to storage, 0 for no limit")
    chosen = parser.parse_args(argv)
    handler = logging.StreamHandler(sys.stderr)
    from kube.shell.logs import PlainFormatter

    handler.setFormatter(PlainFormatter())
    log.addHandler(handler)
    log.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
    log.propagate = False
    os.nice(max(0, min(chosen.nice, 19)))
    listens = socket.socket(fileno=chosen.listen)
    listens.setblocking(False)
    asyncio.run(_run(listens, Keeper(chosen.folder, chosen.run, chosen.worker, chosen.bytes_s)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
