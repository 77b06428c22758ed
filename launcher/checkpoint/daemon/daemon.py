"""The checkpoint daemon of one worker: a rank store for each local rank, replicas, and agreement between rounds.

It outlives training processes. How one connection is served is known in session.py, one arena in rank_store.py, and
when a step is committed in commit_coordinator.py.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnout.launcher.checkpoint.arena.arena import boot_id
from turnout.launcher.checkpoint.arena.recovery import abandoned_arenas, adopt_arenas
from turnout.launcher.checkpoint.daemon.commit_coordinator import CommitCoordinator
from turnout.launcher.checkpoint.daemon.persist import Persister
from turnout.launcher.checkpoint.daemon.preallocate import Preallocator
from turnout.launcher.checkpoint.daemon.rank_store import RankStore
from turnout.launcher.checkpoint.daemon.save_job import SaveJob, SaveState, run
from turnout.launcher.checkpoint.daemon.session import Session
from turnout.launcher.checkpoint.format.arena_layout import Identity, ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import (
    MOST_BYTES,
    Hello,
    RequestRefused,
    RestorePlace,
    Save,
    StoredStep,
    ToClient,
    ToDaemon,
    encode,
    read_at_daemon,
)
from turnout.launcher.checkpoint.replication.replicator import Replicator
from turnout.launcher.checkpoint.storage.open_store import open_store
from turnout.launcher.checkpoint.storage.reader import newest
from turnout.launcher.errors import BadFrame, LauncherError, NewerFormat, StorageFailed
from turnout.launcher.event_log import EventLog
from turnout.launcher.rendezvous.messages import HeldStep
from turnout.launcher.rendezvous.transport.frame_connection import next_frame

LAST_MESSAGES_S = 5.0  # seconds until processes that have ended are noticed
OTHER_SHARDS_S = 60.0  # seconds for other workers' last shards when all end
STORED_S = 5.0  # seconds for a step to be committed before it is read; it may never be whole
LIST_STORAGE_S = 5.0  # seconds for storage to list its steps
_SOON_S = 0.05


class CheckpointDaemon:
    """Keeps the checkpoints of one worker of one run.

    folder: holds its arenas. bytes_s, copied_s: limits in bytes per second to storage and to other daemons, 0 for none.
    """

    def __init__(
        self, folder: Path, run: str, worker: str, log_event: EventLog, bytes_s: float = 0.0, copied_s: float = 0.0
    ) -> None:
        self.run, self.worker, self.folder = run, worker, folder
        self._boot, self._log_event = boot_id(), log_event
        self.persister, self.commits = Persister(run, bytes_s), CommitCoordinator(run, log_event)
        self._rank_stores: dict[int, RankStore] = {}
        self._preallocator = Preallocator()
        self._tasks: set[asyncio.Task[None]] = set()
        self._commit_count = 0  # how many of these tasks need no memory any more
        self._connections: set[asyncio.Task[None]] = set()
        self._checks: set[asyncio.Task[None]] = set()
        self._restored_step = -1  # the step that training last continued from
        for path in abandoned_arenas(folder, run, worker):
            log_event("arena_removed", {"path": str(path)})
            path.unlink(missing_ok=True)
        for arena in adopt_arenas(folder, run, worker, log_event):
            self.rank_store(arena.identity.local_rank).adopt(arena)
        self.replicator = Replicator(self, log_event, copied_s)

    @property
    def rank_stores(self) -> Mapping[int, RankStore]:
        """Return the rank stores by local rank."""
        return self._rank_stores

    def rank_store(self, local_rank: int) -> RankStore:
        """Return the rank store of this local rank, made at the first call."""
        if local_rank not in self._rank_stores:
            identity = Identity(self.run, self.worker, local_rank, self._boot, 1)
            self._rank_stores[local_rank] = RankStore(
                self.folder, identity, self.persister, self._log_event, self._preallocator
            )
        return self._rank_stores[local_rank]

    async def register(self, hello: Hello) -> RankStore:
        """Register a training process that connected, and return its rank store.

        A restarted daemon learns the checkpoint folder here; it then persists the step agreed on before.
        """
        rank_store = self.rank_store(hello.local_rank)
        rank_store.set_replicas(hello.replicas, self.replicator.replica_bytes, self.replicator.free_earlier_rounds)
        self.replicator.register(hello)
        if rank_store.register(hello.target, hello.read_folder) and self._restored_step >= 0:
            self.start_task(self._persist(rank_store, self._restored_step))
        return rank_store

    async def commit(self, record: ShardRecord, save: Save) -> bool:
        """Commit a step as the daemon of rank 0. True if the manifest was written."""
        self._commit_count += 1
        try:
            return await self.commits.commit(record, save)
        finally:
            self._commit_count -= 1

    async def held_steps(self, ranks: int) -> tuple[HeldStep, ...]:
        """List the steps that all local ranks below `ranks` hold, newest first; a replicated state on local rank 0 is
        enough.

        Generations whose bytes do not match their checksums are discarded first.
        """
        if self._checks:
            await asyncio.wait(list(self._checks))
        records = await asyncio.gather(*(self.rank_store(local_rank).hashed_saves() for local_rank in range(ranks)))
        steps = [
            HeldStep(each.step, 0, 0, each.round) for each, _ in (records[0] if records else ()) if each.world == 1
        ]
        for first, parts in records[0] if records else ():
            place = (first.step, first.round, first.world)
            if all(
                any(
                    (each.step, each.round, each.world, each.rank) == (*place, first.rank + at)
                    for each, _ in records[at]
                )
                for at in range(1, ranks)
            ):
                steps.append(HeldStep(first.step, first.rank, first.world, first.round, reshardable=parts))
        return tuple(sorted(set(steps), key=lambda each: -each.step))[:16]

    async def restore(self, step: int, restore_place: RestorePlace | None = None, persist_step: int = -1) -> None:
        """Continue from this step in memory: fetch missing shards, then verify it and write it to storage in the
        background.

        -1 means that all ranks load from storage. First the step `persist_step`, or the newest held here, is written
        there, within STORED_S. `restore_place` says what to fetch.
        Raises LauncherError if a shard cannot be fetched; nothing has changed then.
        """
        if restore_place is not None:
            await self.replicator.begin_round(step, restore_place)
        self._restored_step = step
        if step < 0:
            await self._persist_before_loading(persist_step, restore_place)
        else:
            self.commits.give_up_after(step)
        for rank_store in self._rank_stores.values():
            await rank_store.forget_after(step)
        await self.replicator.forget_after(step)
        for rank_store in self._rank_stores.values() if step >= 0 else ():
            self.start_task(self._persist(rank_store, step))
            check = self.start_task(rank_store.verify(step))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        if step >= 0 and restore_place is not None and restore_place.saved_by:
            self.start_task(self._persist_replicas(step, restore_place))

    async def _persist_replicas(self, step: int, restore_place: RestorePlace) -> None:
        """Persist replicas stored here too: their owners may have left before they wrote them."""
        default_target = next(
            (
                rank_store.default_target
                for _, rank_store in sorted(self._rank_stores.items())
                if rank_store.default_target
            ),
            None,
        )
        for arena, generation, record in self.replicator.replica_store.replicas_of(
            step, restore_place.saved_round, restore_place.saved_by
        ):
            target = self.replicator.replica_store.saved_target(arena, record.epoch) or default_target
            if target is None or target.kind != "shards" or arena.pin(generation, record.epoch) is None:
                continue
            try:
                if await asyncio.to_thread(self.persister.persist_if_missing, arena, generation, record, target):
                    self._log_event("persisted", {"step": step, "rank": record.rank, "for": arena.identity.owner})
            except LauncherError as error:
                self._log_event("persist_failed", {"step": step, "rank": record.rank, "detail": str(error)})
                continue
            finally:
                with suppress(ValueError):  # the pin was released meanwhile
                    arena.unpin(generation)
            if record.rank == 0:
                self.start_task(self.commit(record, target))

    async def _persist_before_loading(self, persist_step: int, restore_place: RestorePlace | None) -> None:
        if steps := await self.held_steps(len(self._rank_stores)):
            for rank_store in self._rank_stores.values():
                self.start_task(self._persist(rank_store, persist_step if persist_step >= 0 else steps[0].step))
        until_s = time.monotonic() + STORED_S
        while self._tasks and (left_s := until_s - time.monotonic()) > 0:  # a finished write starts a commit
            await asyncio.wait(list(self._tasks), timeout=left_s)
        if self._tasks:
            self._log_event("storage_behind", {"waited_s": STORED_S, "in_flight": len(self._tasks)})
        last = max((rank_store.newest_round() for rank_store in self._rank_stores.values()), default=-1)
        self.commits.give_up(
            min(last, restore_place.round - 1) if restore_place else last
        )  # a new job may count rounds from 1 again

    async def stored_step(self) -> StoredStep:
        """Return the newest step committed in the checkpoint folder. Empty if no folder is known or storage does not
        answer in LOOK_S.

        A step that a lost worker's daemon commits later is not read in the round that begins now.
        """
        target = next(
            (rank_store.read_folder for _, rank_store in sorted(self._rank_stores.items()) if rank_store.read_folder),
            "",
        )
        if not target:
            return StoredStep()
        try:
            async with asyncio.timeout(LIST_STORAGE_S):
                found = await asyncio.to_thread(lambda: newest(open_store(target), self._log_event))
        except (NewerFormat, StorageFailed, TimeoutError) as error:
            self._log_event(
                "storage_behind", {"target": target, "why": str(error) or f"no answer within {LIST_STORAGE_S:g} s"}
            )
            return StoredStep()
        return StoredStep(target, found.step if found is not None else -1)

    async def _persist(self, rank_store: RankStore, step: int) -> None:
        if (found := rank_store.pin_unwritten(step)) is not None:
            job = SaveJob(step, *found)
            hashes = not rank_store.is_hashed(job.slot)
            await run(job, rank_store, hashes=hashes, commit=self.commit, report=self._log_save_state)

    def _log_save_state(self, job: SaveJob) -> None:
        """Log what became of a save that no training process waits for."""
        fields: dict[str, object] = {"step": job.step, "rank": job.record.rank}
        match job.state:
            case SaveState.PERSISTED:
                self._log_event("persisted", {**fields, "path": job.detail})
            case SaveState.DROPPED:
                self._log_event("save_overtaken", fields)
            case SaveState.FAILED:
                self._log_event("persist_failed", {**fields, "detail": job.detail})

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the background, and wait for it before the daemon ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, of a training process or of the agent."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:  # by end(): a server would log it
            return
        finally:
            self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(self, writer.write, self._log_event)
        stays_open = True
        with suppress(OSError, asyncio.IncompleteReadError):  # the connection is gone
            try:
                while stays_open:
                    message = read_at_daemon(await next_frame(reader, MOST_BYTES))
                    answer, stays_open = await self._answer(session, message)
                    if answer is not None:
                        writer.write(encode(answer))
                        await writer.drain()
            except BadFrame as error:
                self._log_event("frame_refused", {"why": str(error)})
        session.disconnect()
        writer.close()

    async def _answer(self, session: Session, message: ToDaemon) -> tuple[ToClient | None, bool]:
        """Return the answer to a message, and whether the connection stays open. An error is logged and sent back.
        Raises BadFrame.
        """
        try:
            return await session.handle(message), True
        except BadFrame:
            raise
        except Exception as error:  # end this connection alone, and log why
            why = "".join(traceback.format_exception_only(error)).strip()
            self._log_event(
                "request_failed", {"why": why, "where": traceback.format_tb(error.__traceback__)[-1].strip()}
            )
            return RequestRefused("failed", why[:4_096]), False

    async def end(self, done: bool) -> None:
        """End the daemon after all work in flight.

        With `done` the memory is freed. Otherwise the newest step that all local ranks hold is persisted first, and
        memory stays.
        """
        if self._connections:  # their last messages are still unread
            _, late = await asyncio.wait(list(self._connections), timeout=LAST_MESSAGES_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.replicator.close(remove=done)
        if not done and self._rank_stores and (steps := await self.held_steps(len(self._rank_stores))):
            for rank_store in self._rank_stores.values():
                self.start_task(self._persist(rank_store, steps[0].step))
        while len(self._tasks) > self._commit_count:
            await asyncio.wait(list(self._tasks), timeout=_SOON_S, return_when=asyncio.FIRST_COMPLETED)
        for rank_store in self._rank_stores.values():  # release the memory for the next daemon: a manifest needs none
            rank_store.close(remove=done)
        self.commits.end_within(OTHER_SHARDS_S)
        while self._tasks:
            await asyncio.wait(list(self._tasks))
