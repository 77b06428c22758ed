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
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.checkpoint.generations import Identity, Record
from launcher.checkpoint.wire import End, Message, Sealed, encode, length, read_at_keeper
from launcher.errors import BadFrame
from launcher.shell.memory.arena import boot_id
from launcher.shell.memory.guest import Guest
from launcher.shell.memory.persisting import Persisting
from launcher.shell.memory.ward import Ward, adopted, left_behind
from launcher.shell.say import into
from launcher.wire import Held

LAST_WORDS_S = 5.0  # for processes that have ended to be seen as such
OTHERS_S = 60.0  # for the last shards of the other workers, when all end
STORED_S = 5.0  # for storage to have what is about to be read from it: it may never be whole
SETTLE_S, COMMIT_S = 2.0, 0.2  # for what is in flight when a round ends to be written, and then committed
LOOK_S = 0.05
MOST_KNOWN = 16  # commits that are over: each save is heard of twice at most, by its process and by the agent
BYTES_S = "TURNOUT_PERSIST_BYTES_S"  # of its environment, which is that of the agent
log = logging.getLogger("turnout.keeper")
say = into(log, quiet=["persisted", "checkpoint_committed"])


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
        self._commits: dict[tuple[str, int, int], asyncio.Task[bool]] = {}
        self._committing: dict[threading.Event, int] = {}  # that it is given up, and its step
        self._checks: set[asyncio.Task[None]] = set()
        self._looking: set[threading.Event] = set()  # those that may write a manifest now
        self._parked = threading.Event()  # nobody may
        self._agreed = self._over = -1  # the step that was gone on from last; the last round that commits no more
        for path in left_behind(folder, run, worker):
            say("arena_removed", {"path": str(path)})
            path.unlink(missing_ok=True)
        for arena in adopted(folder, run, worker, say):
            self.ward(arena.identity.local_rank).adopt(arena)

    def ward(self, local_rank: int) -> Ward:
        """What is kept for this local rank."""
        if local_rank not in self._wards:
            identity = Identity(self.run, self.worker, local_rank, self._boot, 1)
            self._wards[local_rank] = Ward(self._folder, identity, self.persisting, say)
        return self._wards[local_rank]

    async def met(self, local_rank: int, target: str) -> Ward:
        """Its ward. target: its folder, which a keeper that was started anew hears of here."""
        ward = self.ward(local_rank)
        if ward.met(target) and self._agreed >= 0:
            self.begin(self._persist(ward, self._agreed))
        return ward

    async def commit(self, record: Record, told: Sealed) -> bool:
        """Rank 0's part of a step: wait for the shards of the others, and write the manifest. Once for each save."""
        key = (told.target, record.step, record.round)
        if key not in self._commits:
            for known in [known for known, task in self._commits.items() if task.done()][:-MOST_KNOWN]:
                del self._commits[known]
            self._commits[key] = asyncio.get_running_loop().create_task(self._commit(record, told))
        return await asyncio.shield(self._commits[key])

    async def _commit(self, record: Record, told: Sealed) -> bool:
        given_up = threading.Event()
        self._committing[given_up] = record.step
        try:
            while self._parked.is_set() and not given_up.is_set():  # noqa: ASYNC110 -- set from threads, too
                await asyncio.sleep(LOOK_S)
            if given_up.is_set() or record.round <= self._over:
                return False
            self._looking.add(given_up)
            return await asyncio.to_thread(
                self.persisting.commit, record, told, lambda pause_s: self._stop(pause_s, given_up)
            )
        finally:
            self._looking.discard(given_up)
            del self._committing[given_up]

    def _stop(self, pause_s: float, given_up: threading.Event) -> bool:
        """Wait so long, in a thread, and while nobody may commit.

        True when it is given up, or the keeper ends and the other workers have had time to end, too.
        """
        self._looking.discard(given_up)
        if self._ending.wait(pause_s):
            time.sleep(min(pause_s, max(self._gives_up_s - time.monotonic(), 0.0)))
        while not given_up.is_set() and time.monotonic() <= self._gives_up_s:
            self._looking.add(given_up)
            if not self._parked.is_set():
                return False
            self._looking.discard(given_up)
            time.sleep(LOOK_S)
        return True

    async def held(self, ranks: int) -> tuple[Held, ...]:
        """The steps that all of so many local ranks hold, newest first; a state that is the same for all counts, too.

        What is not what was hashed is thrown away here, before anybody relies on it.
        """
        if self._checks:
            await asyncio.wait(list(self._checks))
        records = await asyncio.gather(*(self.ward(local_rank).settled() for local_rank in range(ranks)))
        held = [Held(each.step, 0, 0, each.round) for each in (records[0] if records else ()) if each.world == 1]
        for first in records[0] if records else ():
            others = range(1, ranks)
            place = (first.step, first.round, first.world)
            if all(
                any((each.step, each.round, each.world, each.rank) == (*place, first.rank + at) for each in records[at])
                for at in others
            ):
                held.append(Held(first.step, first.rank, first.world, first.round))
        return tuple(sorted(set(held), key=lambda each: -each.step))[:16]

    async def settle(self, ranks: int) -> tuple[Held, ...]:
        """The same, between two rounds: until the next one begins nothing is committed any more.

        Its ranks may read storage, each when it is there; they must all find the same step. Those that are about to be
        committed have a moment for it.
        """
        written_s = time.monotonic() + SETTLE_S
        committed_s = written_s
        while self._tasks and time.monotonic() < min(written_s, committed_s):
            if len(self._tasks) <= len(self._committing):  # all is written here: others have as long as this, and more
                committed_s = min(committed_s, time.monotonic() + COMMIT_S)
            await asyncio.wait(list(self._tasks), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        self._parked.set()
        while self._looking:  # noqa: ASYNC110 -- threads set no asyncio.Event
            await asyncio.sleep(LOOK_S / 10)
        return await self.held(ranks)

    async def agreed(self, step: int) -> None:
        """The world goes on from this step in memory: verify it, and have it in storage, too, while it trains.

        -1: it goes on from storage. So what this worker holds is to be there before that is read, where it can be soon.
        """
        self._agreed = step
        for given_up, waiting in self._committing.items():
            if waiting > step:  # of it some rank has sealed nothing, or its memory is lost
                given_up.set()
        self._parked.clear()
        if step < 0:
            await self._to_storage()
        for ward in self._wards.values():
            await ward.forget_after(step)
        for ward in self._wards.values() if step >= 0 else ():
            self.begin(self._persist(ward, step))
            check = self.begin(ward.verify(step))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _to_storage(self) -> None:
        if held := await self.held(len(self._wards)):
            for ward in self._wards.values():
                self.begin(self._persist(ward, held[0].step))
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=STORED_S)
            if late:
                say("storage_behind", {"waited_s": STORED_S, "in_flight": len(late)})
        self._over = max(ward.newest_round() for ward in self._wards.values()) if self._wards else 0
        for given_up in self._committing:  # from now on storage is read: a step that another rank missed comes too late
            given_up.set()

    async def _persist(self, ward: Ward, step: int) -> None:
        if (committing := await ward.persist(step)) is not None:
            self.begin(self.commit(*committing))

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
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
        if not done and self._wards and (held := await self.held(len(self._wards))):
            for ward in self._wards.values():
                self.begin(self._persist(ward, held[0].step))
        self._gives_up_s = time.monotonic() + OTHERS_S
        self._ending.set()
        self._parked.clear()
        while len(self._tasks) > len(self._committing):
            await asyncio.wait(list(self._tasks), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        for ward in self._wards.values():  # whoever comes next may have it: a manifest needs no memory
            ward.close(remove=done)
        while self._tasks:
            await asyncio.wait(list(self._tasks))


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
    rate = os.environ.get(BYTES_S) or "0"
    parser.add_argument("--bytes-s", type=float, default=rate, help=f"to storage, 0 for no limit; else {BYTES_S}")
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
