"""The keeper of one worker: a ward for each local rank, its guests, and what they agree on between two rounds.

It outlives training processes. How one connection is served is guest.py's, what becomes of one arena ward.py's, and
when a step is committed commits.py's.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnout.launcher.checkpoint.generations import Identity, Record
from turnout.launcher.checkpoint.wire import (
    MOST_BYTES,
    Hello,
    Refused,
    Sealed,
    Seat,
    Stored,
    ToClient,
    ToKeeper,
    encode,
    read_at_keeper,
)
from turnout.launcher.errors import BadFrame, LauncherError, NewerFormat, StorageFailed
from turnout.launcher.shell.buddies.copies import Copies
from turnout.launcher.shell.meeting.frames import next_frame
from turnout.launcher.shell.memory.arena import boot_id
from turnout.launcher.shell.memory.keeper.adopting import adopted, left_behind
from turnout.launcher.shell.memory.keeper.commits import Commits
from turnout.launcher.shell.memory.keeper.guest import Guest
from turnout.launcher.shell.memory.keeper.making import Making
from turnout.launcher.shell.memory.keeper.persisting import Persisting
from turnout.launcher.shell.memory.keeper.ward import Ward
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.storage.opening import open_store
from turnout.launcher.shell.storage.reader import newest
from turnout.launcher.wire import Held

LAST_WORDS_S = 5.0  # for processes that have ended to be seen as such
OTHERS_S = 60.0  # for the last shards of the other workers, when all end
STORED_S = 5.0  # for storage to have what is about to be read from it: it may never be whole
LOOK_S = 5.0  # for storage to tell what it has
_SOON_S = 0.05


class Keeper:
    """Of one worker of one run. folder: where its arenas lie.

    bytes_s, copied_s: bytes a second to storage and to other keepers, 0 for no limit.
    """

    def __init__(
        self, folder: Path, run: str, worker: str, say: Say, bytes_s: float = 0.0, copied_s: float = 0.0
    ) -> None:
        self.run, self.worker, self.folder = run, worker, folder
        self._boot, self._say = boot_id(), say
        self.persisting, self.commits = Persisting(run, bytes_s), Commits(run, say)
        self._wards: dict[int, Ward] = {}
        self._making = Making()
        self._tasks: set[asyncio.Task[None]] = set()
        self._committing = 0  # of these tasks, which need no memory any more
        self._serving: set[asyncio.Task[None]] = set()
        self._checks: set[asyncio.Task[None]] = set()
        self._agreed = -1  # the step that was gone on from last
        for path in left_behind(folder, run, worker):
            say("arena_removed", {"path": str(path)})
            path.unlink(missing_ok=True)
        for arena in adopted(folder, run, worker, say):
            self.ward(arena.identity.local_rank).adopt(arena)
        self.copies = Copies(self, say, copied_s)

    @property
    def wards(self) -> Mapping[int, Ward]:
        """By local rank."""
        return self._wards

    def ward(self, local_rank: int) -> Ward:
        """What is kept for this local rank."""
        if local_rank not in self._wards:
            identity = Identity(self.run, self.worker, local_rank, self._boot, 1)
            self._wards[local_rank] = Ward(self.folder, identity, self.persisting, self._say, self._making)
        return self._wards[local_rank]

    async def met(self, hello: Hello) -> Ward:
        """Its ward. Its folder a keeper that was started anew hears of here."""
        ward = self.ward(hello.local_rank)
        ward.copies(hello.replicas, self.copies.kept_bytes, self.copies.give_back)
        self.copies.met(hello)
        if ward.met(hello.target, hello.reads) and self._agreed >= 0:
            self.begin(self._persist(ward, self._agreed))
        return ward

    async def commit(self, record: Record, told: Sealed) -> bool:
        """Rank 0's part of a step."""
        self._committing += 1
        try:
            return await self.commits.commit(record, told)
        finally:
            self._committing -= 1

    async def held(self, ranks: int) -> tuple[Held, ...]:
        """The steps that all of so many local ranks hold, newest first; a state that is the same for all counts, too.

        What is not what was hashed is thrown away here, before anybody relies on it.
        """
        if self._checks:
            await asyncio.wait(list(self._checks))
        records = await asyncio.gather(*(self.ward(local_rank).settled() for local_rank in range(ranks)))
        held = [Held(each.step, 0, 0, each.round) for each, _ in (records[0] if records else ()) if each.world == 1]
        for first, parts in records[0] if records else ():
            place = (first.step, first.round, first.world)
            if all(
                any(
                    (each.step, each.round, each.world, each.rank) == (*place, first.rank + at)
                    for each, _ in records[at]
                )
                for at in range(1, ranks)
            ):
                held.append(Held(first.step, first.rank, first.world, first.round, parts=parts))
        return tuple(sorted(set(held), key=lambda each: -each.step))[:16]

    async def agreed(self, step: int, seat: Seat | None = None, carry: int = -1) -> None:
        """The world goes on from this step in memory: verify it, and have it in storage, too, while it trains.

        -1: it goes on from storage. So what all hold, the step to `carry`, is to be there before that is read, where it
        can be soon; where nobody knows that one, the newest that is held here. seat: what is not here is fetched first.
        Raises LauncherError where it cannot be, and nothing has changed.
        """
        if seat is not None:
            await self.copies.gathered(step, seat)
        self._agreed = step
        if step < 0:
            await self._to_storage(carry, seat)
        else:
            self.commits.give_up_after(step)
        for ward in self._wards.values():
            await ward.forget_after(step)
        await self.copies.forget_after(step)
        for ward in self._wards.values() if step >= 0 else ():
            self.begin(self._persist(ward, step))
            check = self.begin(ward.verify(step))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        if step >= 0 and seat is not None and seat.saved_by:
            self.begin(self._persist_kept(step, seat))

    async def _persist_kept(self, step: int, seat: Seat) -> None:
        """Whose shards are kept here has perhaps left before they were in storage."""
        usual = next((ward.usual for _, ward in sorted(self._wards.items()) if ward.usual), None)
        for arena, generation, record in self.copies.shelf.of(step, seat.origin, seat.saved_by):
            told = self.copies.shelf.goes(arena, record.epoch) or usual
            if told is None or told.kind != "shards" or arena.pin(generation, record.epoch) is None:
                continue
            try:
                if await asyncio.to_thread(self.persisting.once, arena, generation, record, told):
                    self._say("persisted", {"step": step, "rank": record.rank, "for": arena.identity.owner})
            except LauncherError as error:
                self._say("persist_failed", {"step": step, "rank": record.rank, "detail": str(error)})
                continue
            finally:
                with suppress(ValueError):  # it was given back meanwhile
                    arena.unpin(generation)
            if record.rank == 0:
                self.begin(self.commit(record, told))

    async def _to_storage(self, carry: int, seat: Seat | None) -> None:
        if held := await self.held(len(self._wards)):
            for ward in self._wards.values():
                self.begin(self._persist(ward, carry if carry >= 0 else held[0].step))
        until_s = time.monotonic() + STORED_S
        while self._tasks and (left_s := until_s - time.monotonic()) > 0:  # what is written is then to be committed
            await asyncio.wait(list(self._tasks), timeout=left_s)
        if self._tasks:
            self._say("storage_behind", {"waited_s": STORED_S, "in_flight": len(self._tasks)})
        last = max((ward.newest_round() for ward in self._wards.values()), default=-1)
        self.commits.give_up(min(last, seat.round - 1) if seat else last)  # rounds may be counted anew

    async def stored(self) -> Stored:
        """The newest step that is committed in the folder that is saved to; where none is known, or it is silent: none.

        What is committed later, by the keeper of a worker that is lost, is not read in the round that begins now.
        """
        target = next((ward.reads for _, ward in sorted(self._wards.items()) if ward.reads), "")
        if not target:
            return Stored()
        try:
            async with asyncio.timeout(LOOK_S):
                found = await asyncio.to_thread(lambda: newest(open_store(target), self._say))
        except (NewerFormat, StorageFailed, TimeoutError) as error:
            self._say("storage_behind", {"target": target, "why": str(error) or f"no answer within {LOOK_S:g} s"})
            return Stored()
        return Stored(target, found.step if found is not None else -1)

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
        guest = Guest(self, writer.write, self._say)
        goes_on = True
        with suppress(OSError, asyncio.IncompleteReadError):  # of the connection: it is gone
            try:
                while goes_on:
                    message = read_at_keeper(await next_frame(reader, MOST_BYTES))
                    answer, goes_on = await self._answer(guest, message)
                    if answer is not None:
                        writer.write(encode(answer))
                        await writer.drain()
            except BadFrame as error:
                self._say("frame_refused", {"why": str(error)})
        guest.gone()
        writer.close()

    async def _answer(self, guest: Guest, message: ToKeeper) -> tuple[ToClient | None, bool]:
        """Give the answer, and whether the connection goes on. A fault is told to both sides. Raises BadFrame."""
        try:
            return await guest.heard(message), True
        except BadFrame:
            raise
        except Exception as error:  # whatever it is: it ends this connection, and neither in silence nor the others
            why = "".join(traceback.format_exception_only(error)).strip()
            self._say("request_failed", {"why": why, "where": traceback.format_tb(error.__traceback__)[-1].strip()})
            return Refused("failed", why[:4_096]), False

    async def end(self, done: bool) -> None:
        """done: nobody needs the memory any more. Else the newest that all hold is written, and the rest finished."""
        if self._serving:  # what they have said last is still to be heard
            _, late = await asyncio.wait(list(self._serving), timeout=LAST_WORDS_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.copies.close(remove=done)
        if not done and self._wards and (held := await self.held(len(self._wards))):
            for ward in self._wards.values():
                self.begin(self._persist(ward, held[0].step))
        while len(self._tasks) > self._committing:
            await asyncio.wait(list(self._tasks), timeout=_SOON_S, return_when=asyncio.FIRST_COMPLETED)
        for ward in self._wards.values():  # whoever comes next may have it: a manifest needs no memory
            ward.close(remove=done)
        self.commits.end_within(OTHERS_S)
        while self._tasks:
            await asyncio.wait(list(self._tasks))
