"""One connection of a keeper: what a training process or the agent says, and what is done about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from turnout.launcher.checkpoint.generations import Record
from turnout.launcher.checkpoint.wire import (
    Agreed,
    Arena,
    Ask,
    Bring,
    Bye,
    Done,
    Failed,
    Hashed,
    Hello,
    Holdings,
    Inherit,
    Look,
    MadeRoom,
    Need,
    Overtake,
    Persisted,
    Pinned,
    Refused,
    Sealed,
    Seat,
    Settle,
    Stats,
    Stored,
    ToClient,
    ToKeeper,
    Wait,
    encode,
)
from turnout.launcher.errors import BadFrame, LauncherError, NoMemory
from turnout.launcher.shell.buddies.copies import Copies
from turnout.launcher.shell.memory.keeper.line import Overtaken
from turnout.launcher.shell.memory.keeper.ward import Ward
from turnout.launcher.shell.say import Say
from turnout.launcher.wire import Held


class House(Protocol):
    """What a guest needs of its keeper."""

    run: str
    worker: str

    copies: Copies

    async def met(self, hello: Hello) -> Ward:
        """A training process has come: what looks after its memory."""

    async def commit(self, record: Record, told: Sealed) -> bool:
        """Wait for the other ranks; False where they do not come."""

    async def held(self, ranks: int) -> tuple[Held, ...]:
        """By all of them."""

    async def agreed(self, step: int, seat: Seat | None, carry: int) -> None:
        """Have it here, and in storage."""

    async def stored(self) -> Stored:
        """The newest that is committed."""

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do this beside everything else."""


class Guest:
    """send: bytes to the other side. say: for the log."""

    def __init__(self, house: House, send: Callable[[bytes], object], say: Say) -> None:
        self._house, self._send, self._log = house, send, say
        self._ward: Ward | None = None
        self._cares: set[asyncio.Task[None]] = set()
        self._newest = 0  # epoch of the newest Sealed
        self._stats = Stats()
        self._here = True

    async def heard(self, message: ToKeeper) -> ToClient | None:
        """One message, and the answer to it. Raises BadFrame for what cannot be said here."""
        match message:
            case Settle(ranks=ranks):
                held = await self._house.held(ranks)
                return Holdings(held if self._ward else (*held, *await self._house.copies.held(held)))
            case Agreed(step=step, seat=seat, carry=carry):
                try:
                    await self._house.agreed(step, seat, carry)
                except LauncherError as error:
                    return Failed(max(step, 0), "not_fetched", str(error)[:4_096])
                return Done()
            case Inherit():
                await self._house.copies.inherit(message)
                return Done()
            case Bring():
                try:
                    return await self._house.copies.bring(message)
                except LauncherError as error:
                    return Failed(message.step, "not_brought", str(error)[:4_096])
            case Look():
                return await self._house.stored()
            case Hello(run=run, worker=worker):
                if (run, worker) != (self._house.run, self._house.worker):
                    return Refused("refused", f"this is the keeper of {self._house.worker} in {self._house.run}")
                self._ward = await self._house.met(message)
                return self._arena()
        if self._ward is None:
            raise BadFrame(f"{type(message).__name__} before Hello")
        return await self._known(self._ward, message)

    def _arena(self) -> Arena:
        arena = self._ward.arena if self._ward is not None else None
        return Arena("", 1) if arena is None else Arena(str(arena.path), arena.identity.count)

    async def _known(self, ward: Ward, message: ToKeeper) -> ToClient | None:
        match message:
            case Need(bytes=size, generations=generations):
                try:
                    await ward.need(size, generations)
                except NoMemory as error:
                    return Refused("no_memory", str(error)[:4_096])
                return self._arena()
            case Sealed(step=step):
                await self._sealed(ward, message)
                return Pinned(step)
            case Overtake():
                if (let_go := ward.overtake()) < 0:
                    self._house.copies.give_way()
                return MadeRoom(let_go)
            case Wait():
                while self._cares:
                    await asyncio.wait(list(self._cares))
                return Done()
            case Ask():
                replicated, uncopied = self._house.copies.done()
                return self._told(
                    sealed=ward.newest(), in_flight=len(self._cares), replicated=replicated, uncopied=uncopied
                )
            case Bye():
                return None
        raise BadFrame(f"{type(message).__name__} is not for a keeper")

    async def _sealed(self, ward: Ward, told: Sealed) -> None:
        self._newest = max(self._newest, told.epoch)
        pinned = await ward.seal(told)
        if pinned is None:
            self._say(Failed(told.step, "overwritten", "a newer save was there before it was heard of"))
            return
        await self._house.copies.sealed(ward.local_rank, told.step)
        task = self._house.begin(self._care(ward, told, *pinned))
        self._cares.add(task)
        task.add_done_callback(self._cares.discard)

    async def _care(self, ward: Ward, told: Sealed, generation: int, record: Record) -> None:
        """Hash it, and carry it where it is to go. Of saves that stay in memory the newest is enough."""
        goes = bool(told.target) and not told.later
        try:
            if goes or told.epoch == self._newest:
                if not await ward.hash(generation):
                    self._say(Failed(told.step, "corrupt", "its memory is not what was hashed"))
                    return
                self._told(hashed=told.step)
                self._say(Hashed(told.step))
            if goes:
                where = await ward.write(generation, record, told)
                size = self._stats.persisted_bytes + record.shard_bytes
                self._told(persisted=told.step, persists=self._stats.persists + 1, persisted_bytes=size)
                self._say(Persisted(told.step, where))
        except Overtaken as error:
            self._log("save_overtaken", {"step": told.step, "rank": record.rank})
            self._told(overtaken=self._stats.overtaken + 1)
            self._say(Failed(told.step, "overtaken", str(error)))
            return
        except LauncherError as error:
            self._told(failures=self._stats.failures + 1)
            self._say(Failed(told.step, "storage_failed", str(error)[:4_096]))
            return
        finally:
            ward.unpin(generation)
        commits = goes and told.kind == "shards" and record.rank == 0
        if commits and await self._house.commit(record, told):
            self._told(committed=told.step)

    def _told(self, **news: int) -> Stats:
        known = {name: getattr(self._stats, name) for name in Stats.__struct_fields__}
        self._stats = Stats(**(known | news))
        return self._stats

    def _say(self, message: ToClient) -> None:
        if self._here:
            self._send(encode(message))

    def gone(self) -> None:
        """The connection is closed: what was begun goes on."""
        self._here = False
