"""Serves one connection to the daemon: handles the messages of a training process or of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from turnout.launcher.checkpoint.daemon.rank_store import RankStore
from turnout.launcher.checkpoint.daemon.save_job import SaveJob, SaveState, run
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import (
    Adopt,
    ArenaPath,
    Bye,
    Done,
    DropOldestSave,
    FetchShard,
    FindStored,
    GetHeldSteps,
    GetStats,
    Hashed,
    HeldSteps,
    Hello,
    Persisted,
    Pinned,
    RequestRefused,
    ReserveMemory,
    Restore,
    RestorePlace,
    Save,
    SaveDropped,
    SaveFailed,
    Stats,
    StoredStep,
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

    replicator: Replicator

    async def register(self, hello: Hello) -> RankStore:
        """Register a training process and return its rank store."""

    async def commit(self, record: ShardRecord, save: Save) -> bool:
        """Commit a step when all ranks' shards are stored. False if they do not come."""

    async def held_steps(self, ranks: int) -> tuple[HeldStep, ...]:
        """List the steps that all local ranks below `ranks` hold, newest first."""

    async def restore(self, step: int, seat: RestorePlace | None, carry: int) -> None:
        """Continue from this step: hold it in memory here, and write it to storage."""

    async def stored_step(self) -> StoredStep:
        """Return the newest committed step."""

    def start_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background."""


class Session:
    """Serves one connection. send: writes bytes to the peer. say: writes to the log."""

    def __init__(self, daemon: SessionPort, send: Callable[[bytes], object], log_event: EventLog) -> None:
        self._daemon, self._send, self._log_event = daemon, send, log_event
        self._rank_store: RankStore | None = None
        self._saves: set[asyncio.Task[None]] = set()
        self._newest_epoch = 0  # epoch of the newest Sealed
        self._stats = Stats()
        self._connected = True

    async def handle(self, message: ToDaemon) -> ToClient | None:
        """Handle one message and return the answer, None for none.

        Raises BadFrame if the message is not allowed here.
        """
        match message:
            case GetHeldSteps(ranks=ranks):
                steps = await self._daemon.held_steps(ranks)
                return HeldSteps(
                    steps if self._rank_store else (*steps, *await self._daemon.replicator.held_steps(steps))
                )
            case Restore(step=step, restore_place=seat, persist_step=carry):
                try:
                    await self._daemon.restore(step, seat, carry)
                except LauncherError as error:
                    return SaveFailed(max(step, 0), "not_fetched", str(error)[:4_096])
                return Done()
            case Adopt():
                await self._daemon.replicator.adopt_shards(message)
                return Done()
            case FetchShard():
                try:
                    return await self._daemon.replicator.fetch_shard(message)
                except LauncherError as error:
                    return SaveFailed(message.step, "not_brought", str(error)[:4_096])
            case FindStored():
                return await self._daemon.stored_step()
            case Hello(run=run, worker=worker):
                if (run, worker) != (self._daemon.run, self._daemon.worker):
                    return RequestRefused(
                        "refused", f"this is the daemon of {self._daemon.worker} in {self._daemon.run}"
                    )
                self._rank_store = await self._daemon.register(message)
                return self._arena()
        if self._rank_store is None:
            raise BadFrame(f"{type(message).__name__} before Hello")
        return await self._handle_registered(self._rank_store, message)

    def _arena(self) -> ArenaPath:
        arena = self._rank_store.arena if self._rank_store is not None else None
        return ArenaPath("", 1) if arena is None else ArenaPath(str(arena.path), arena.identity.count)

    async def _handle_registered(self, rank_store: RankStore, message: ToDaemon) -> ToClient | None:
        match message:
            case ReserveMemory(bytes=size, generations=generations):
                try:
                    await rank_store.reserve(size, generations)
                except NoMemory as error:
                    return RequestRefused("no_memory", str(error)[:4_096])
                return self._arena()
            case Save(step=step):
                await self._accept_save(rank_store, message)
                return Pinned(step)
            case DropOldestSave():
                if (dropped_step := rank_store.drop_oldest()) < 0:
                    self._daemon.replicator.abandon_copy()
                return SaveDropped(dropped_step)
            case Wait():
                while self._saves:
                    await asyncio.wait(list(self._saves))
                return Done()
            case GetStats():
                replicated, uncopied = self._daemon.replicator.progress()
                return self._count(
                    sealed=rank_store.newest(), in_flight=len(self._saves), replicated=replicated, uncopied=uncopied
                )
            case Bye():
                return None
        raise BadFrame(f"{type(message).__name__} is not for a daemon")

    async def _accept_save(self, rank_store: RankStore, save: Save) -> None:
        self._newest_epoch = max(self._newest_epoch, save.epoch)
        pinned = await rank_store.pin_save(save)
        if pinned is None:
            self._send_message(SaveFailed(save.step, "overwritten", "a newer save was there before it was heard of"))
            return
        await self._daemon.replicator.announce_save(rank_store.local_rank, save)
        generation, record = pinned
        job = SaveJob(save.step, generation, record, save if save.target and not save.later else None)
        task = self._daemon.start_task(self._run_save(rank_store, save.epoch, job))
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    async def _run_save(self, rank_store: RankStore, epoch: int, job: SaveJob) -> None:
        """Run a save. Of saves that stay in memory only the newest is hashed."""
        hashes = job.target is not None or epoch == self._newest_epoch
        await run(job, rank_store, hashes=hashes, commit=self._daemon.commit, report=self._report)

    def _report(self, job: SaveJob) -> None:
        """Count a save's new state, and tell it to the training process."""
        match job.state:
            case SaveState.HASHED:
                self._count(hashed=job.step)
                self._send_message(Hashed(job.step))
            case SaveState.PERSISTED:
                size = self._stats.persisted_bytes + job.record.shard_bytes
                self._count(persisted=job.step, persists=self._stats.persists + 1, persisted_bytes=size)
                self._send_message(Persisted(job.step, job.detail))
            case SaveState.COMMITTED:
                self._count(committed=job.step)
            case SaveState.CORRUPT:
                self._send_message(SaveFailed(job.step, "corrupt", job.detail))
            case SaveState.DROPPED:
                self._log_event("save_overtaken", {"step": job.step, "rank": job.record.rank})
                self._count(overtaken=self._stats.dropped + 1)
                self._send_message(SaveFailed(job.step, "overtaken", job.detail))
            case SaveState.FAILED:
                self._count(failures=self._stats.failures + 1)
                self._send_message(SaveFailed(job.step, "storage_failed", job.detail[:4_096]))

    def _count(self, **counters: int) -> Stats:
        known = {name: getattr(self._stats, name) for name in Stats.__struct_fields__}
        self._stats = Stats(**(known | counters))
        return self._stats

    def _send_message(self, message: ToClient) -> None:
        if self._connected:
            self._send(encode(message))

    def disconnect(self) -> None:
        """Stop sending: the connection is closed. Work that has begun goes on."""
        self._connected = False
