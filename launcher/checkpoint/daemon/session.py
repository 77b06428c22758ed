"""Serves one connection to the daemon: handles the messages of a training process or of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from turnout.launcher.checkpoint.daemon.rank_store import RankStore
from turnout.launcher.checkpoint.daemon.save_job import SaveJob, SaveState, run
from turnout.launcher.checkpoint.format.arena_layout import Record
from turnout.launcher.checkpoint.format.daemon_messages import (
    Adopt,
    Agreed,
    Arena,
    Ask,
    Bye,
    Done,
    DropOldestSave,
    Failed,
    FetchShard,
    FindStored,
    Hashed,
    Hello,
    Holdings,
    Need,
    Persisted,
    Pinned,
    Refused,
    RestorePlace,
    Save,
    SaveDropped,
    Settle,
    Stats,
    Stored,
    ToClient,
    ToDaemon,
    Wait,
    encode,
)
from turnout.launcher.checkpoint.replication.replicator import Replicator
from turnout.launcher.errors import BadFrame, LauncherError, NoMemory
from turnout.launcher.event_log import EventLog
from turnout.launcher.rendezvous.messages import HeldStep


class SessionPort(Protocol):
    """The part of the daemon that a session uses."""

    run: str
    worker: str

    copies: Replicator

    async def met(self, hello: Hello) -> RankStore:
        """Register a training process and return its rank store."""

    async def commit(self, record: Record, told: Save) -> bool:
        """Commit a step when all ranks' shards are stored. False if they do not come."""

    async def held(self, ranks: int) -> tuple[HeldStep, ...]:
        """List the steps that all local ranks below `ranks` hold, newest first."""

    async def agreed(self, step: int, seat: RestorePlace | None, carry: int) -> None:
        """Continue from this step: hold it in memory here, and write it to storage."""

    async def stored(self) -> Stored:
        """Return the newest committed step."""

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background."""


class Session:
    """Serves one connection. send: writes bytes to the peer. say: writes to the log."""

    def __init__(self, daemon: SessionPort, send: Callable[[bytes], object], say: EventLog) -> None:
        self._daemon, self._send, self._log = daemon, send, say
        self._rank_store: RankStore | None = None
        self._cares: set[asyncio.Task[None]] = set()
        self._newest = 0  # epoch of the newest Sealed
        self._stats = Stats()
        self._here = True

    async def heard(self, message: ToDaemon) -> ToClient | None:
        """Handle one message and return the answer, None for none.

        Raises BadFrame if the message is not allowed here.
        """
        match message:
            case Settle(ranks=ranks):
                held = await self._daemon.held(ranks)
                return Holdings(held if self._rank_store else (*held, *await self._daemon.copies.held(held)))
            case Agreed(step=step, seat=seat, carry=carry):
                try:
                    await self._daemon.agreed(step, seat, carry)
                except LauncherError as error:
                    return Failed(max(step, 0), "not_fetched", str(error)[:4_096])
                return Done()
            case Adopt():
                await self._daemon.copies.inherit(message)
                return Done()
            case FetchShard():
                try:
                    return await self._daemon.copies.bring(message)
                except LauncherError as error:
                    return Failed(message.step, "not_brought", str(error)[:4_096])
            case FindStored():
                return await self._daemon.stored()
            case Hello(run=run, worker=worker):
                if (run, worker) != (self._daemon.run, self._daemon.worker):
                    return Refused("refused", f"this is the daemon of {self._daemon.worker} in {self._daemon.run}")
                self._rank_store = await self._daemon.met(message)
                return self._arena()
        if self._rank_store is None:
            raise BadFrame(f"{type(message).__name__} before Hello")
        return await self._known(self._rank_store, message)

    def _arena(self) -> Arena:
        arena = self._rank_store.arena if self._rank_store is not None else None
        return Arena("", 1) if arena is None else Arena(str(arena.path), arena.identity.count)

    async def _known(self, rank_store: RankStore, message: ToDaemon) -> ToClient | None:
        match message:
            case Need(bytes=size, generations=generations):
                try:
                    await rank_store.need(size, generations)
                except NoMemory as error:
                    return Refused("no_memory", str(error)[:4_096])
                return self._arena()
            case Save(step=step):
                await self._sealed(rank_store, message)
                return Pinned(step)
            case DropOldestSave():
                if (let_go := rank_store.overtake()) < 0:
                    self._daemon.copies.give_way()
                return SaveDropped(let_go)
            case Wait():
                while self._cares:
                    await asyncio.wait(list(self._cares))
                return Done()
            case Ask():
                replicated, uncopied = self._daemon.copies.done()
                return self._told(
                    sealed=rank_store.newest(), in_flight=len(self._cares), replicated=replicated, uncopied=uncopied
                )
            case Bye():
                return None
        raise BadFrame(f"{type(message).__name__} is not for a daemon")

    async def _sealed(self, rank_store: RankStore, told: Save) -> None:
        self._newest = max(self._newest, told.epoch)
        pinned = await rank_store.seal(told)
        if pinned is None:
            self._say(Failed(told.step, "overwritten", "a newer save was there before it was heard of"))
            return
        await self._daemon.copies.sealed(rank_store.local_rank, told)
        generation, record = pinned
        job = SaveJob(told.step, generation, record, told if told.target and not told.later else None)
        task = self._daemon.begin(self._carry(rank_store, told.epoch, job))
        self._cares.add(task)
        task.add_done_callback(self._cares.discard)

    async def _carry(self, rank_store: RankStore, epoch: int, job: SaveJob) -> None:
        """Run a save. Of saves that stay in memory only the newest is hashed."""
        hashes = job.target is not None or epoch == self._newest
        await run(job, rank_store, hashes=hashes, commit=self._daemon.commit, reached=self._reached)

    def _reached(self, job: SaveJob) -> None:
        """Count a save's new state, and tell it to the training process."""
        match job.state:
            case SaveState.HASHED:
                self._told(hashed=job.step)
                self._say(Hashed(job.step))
            case SaveState.PERSISTED:
                size = self._stats.persisted_bytes + job.record.shard_bytes
                self._told(persisted=job.step, persists=self._stats.persists + 1, persisted_bytes=size)
                self._say(Persisted(job.step, job.detail))
            case SaveState.COMMITTED:
                self._told(committed=job.step)
            case SaveState.CORRUPT:
                self._say(Failed(job.step, "corrupt", job.detail))
            case SaveState.SUPERSEDED:
                self._log("save_overtaken", {"step": job.step, "rank": job.record.rank})
                self._told(overtaken=self._stats.overtaken + 1)
                self._say(Failed(job.step, "overtaken", job.detail))
            case SaveState.FAILED:
                self._told(failures=self._stats.failures + 1)
                self._say(Failed(job.step, "storage_failed", job.detail[:4_096]))

    def _told(self, **news: int) -> Stats:
        known = {name: getattr(self._stats, name) for name in Stats.__struct_fields__}
        self._stats = Stats(**(known | news))
        return self._stats

    def _say(self, message: ToClient) -> None:
        if self._here:
            self._send(encode(message))

    def gone(self) -> None:
        """Stop sending: the connection is closed. Work that has begun goes on."""
        self._here = False
