"""The checkpoint daemon of one worker: it serves connections, and has a rank store for each local rank, and replicas.

It outlives training processes. rank_store.py knows one rank's arena; persist.py knows how saves reach storage and when
a step is committed.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from turnout.launcher.checkpoint.arena.arena import abandoned_arenas, adopt_arenas
from turnout.launcher.checkpoint.arena.arena_files import boot_id
from turnout.launcher.checkpoint.daemon.persist import CommitCoordinator, Persister, SaveJob, SaveState, run
from turnout.launcher.checkpoint.daemon.rank_store import Persist, Preallocator, RankStore, newest_round, newest_step
from turnout.launcher.checkpoint.daemon.save_reports import SaveReports, ends_of
from turnout.launcher.checkpoint.format.arena_layout import Identity, ShardRecord, SlotState
from turnout.launcher.checkpoint.format.daemon_messages import (
    MAX_BYTES,
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
    Save,
    SaveDropped,
    SaveEnded,
    SaveFailed,
    Stats,
    StoredStep,
    ToClient,
    ToDaemon,
    Wait,
    encode,
    read_at_daemon,
)
from turnout.launcher.checkpoint.replication.replicator import Replicator
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.step_reader import newest_manifest
from turnout.launcher.coordinator_messages import HeldStep, RestorePlace
from turnout.launcher.errors import BadFrame, LauncherError, NewerFormat, NoMemory, StorageFailed
from turnout.launcher.event_log import EventLog
from turnout.launcher.model import SaveOutcome, SaveTier
from turnout.launcher.rendezvous.transport.frame_connection import next_frame


class Session:
    """Serves one connection of a training process or of the agent. send: writes bytes to the peer."""

    def __init__(self, daemon: CheckpointDaemon, send: Callable[[bytes], object], log_event: EventLog) -> None:
        self._daemon, self._send, self._log_event = daemon, send, log_event
        self._rank_store: RankStore | None = None
        self._saves: set[asyncio.Task[None]] = set()
        # For each Wait without an answer: the saves that it awaits.
        self._pending_waits: list[set[asyncio.Task[None]]] = []
        self._newest_epoch = 0  # epoch of the newest Save
        self._stats = Stats()
        self._connected = True
        self._rank = self._round = 0  # as Hello names them

    async def handle(self, message: ToDaemon) -> ToClient | None:
        """Carry out one message of a training process or of the agent, and return the answer; None if it gets none, or
        gets it later, as a Wait.

        Failures of a request are answers too (SaveFailed, RequestRefused). Raises BadFrame if the message is not
        allowed here, such as one of a training process before its Hello.
        """
        match message:
            case GetHeldSteps(ranks=ranks):
                steps = await self._daemon.rank_stores.held_steps(ranks)
                return HeldSteps(
                    steps if self._rank_store else (*steps, *await self._daemon.replicator.held_steps(steps))
                )
            case Restore():
                try:
                    await self._daemon.restore(message.step, message.restore_place, message.persist_step)
                except LauncherError as error:
                    return SaveFailed(max(message.step, 0), "not_fetched", str(error)[:4_096])
                return Done()
            case Adopt():
                await self._daemon.replicator.adopt_shards(message)
                return Done()
            case FetchShard():
                try:
                    return await self._daemon.replicator.fetch_shard(message)
                except LauncherError as error:
                    return SaveFailed(message.step, "not_fetched", str(error)[:4_096])
            case FindStored():
                folders = (rank_store.targets.read_folder for rank_store in self._daemon.rank_stores.in_order())
                return await stored_step(next(filter(None, folders), ""), self._log_event)
            case Hello(run=run, worker=worker):
                if (run, worker) != (self._daemon.run, self._daemon.worker):
                    return RequestRefused(
                        "refused", f"this is the daemon of {self._daemon.worker} in {self._daemon.run}"
                    )
                self._rank_store = await self._daemon.register(message)
                self._rank, self._round = message.rank, message.round
                return self._arena()
        if self._rank_store is None:
            raise BadFrame(f"{type(message).__name__} before Hello")
        return await self._handle_registered(self._rank_store, message)

    def _arena(self) -> ArenaPath:
        """Return the path and size of the rank's arena, as an answer; path "" if it has none yet."""
        arena = self._rank_store.arena if self._rank_store is not None else None
        return ArenaPath("", 1) if arena is None else ArenaPath(str(arena.path), arena.identity.count)

    async def _handle_registered(self, rank_store: RankStore, message: ToDaemon) -> ToClient | None:
        """Carry out one message of a registered rank, and return the answer.

        None if the message gets no answer, or gets it later. Raises BadFrame for a message that a trainer may not send.
        rank_store: of the rank that sent the message.
        """
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
                if not self._saves:
                    return Done()
                self._pending_waits.append(set(self._saves))  # later messages are not held back meanwhile
                return None
            case GetStats():
                replicated, uncopied = self._daemon.replicator.progress()
                return self._update_stats(
                    sealed=newest_step(rank_store.arena),
                    in_flight=len(self._saves),
                    replicated=replicated,
                    skipped_replicas=uncopied,
                )
            case Bye():
                return None
        raise BadFrame(f"{type(message).__name__} is not for a daemon")

    async def _accept_save(self, rank_store: RankStore, save: Save) -> None:
        """Pin the generation of an announced save, and start to hash it, replicate it and write it to its target.

        A save that was overwritten before this message arrived is only reported. rank_store: of the rank that sent the
        message.
        """
        self._newest_epoch = max(self._newest_epoch, save.epoch)
        pinned = await rank_store.pin_save(save)
        if pinned is None:
            self._send_message(
                SaveFailed(save.step, "overwritten", "a newer save overwrote it before this message arrived")
            )
            for tier in (SaveTier.MEMORY, *([SaveTier.STORAGE] if save.target and not save.later else [])):
                end = SaveEnded(save.step, self._round, self._rank, tier, SaveOutcome.SUPERSEDED)
                self._daemon.report_save(msgspec.structs.replace(end, announced_s=time.time()))
            return
        await self._daemon.replicator.announce_save(rank_store.local_rank, save)
        generation, record = pinned
        target = save if save.target and not save.later else None
        job = SaveJob(save.step, generation, record, target, announced_s=time.time())
        task = self._daemon.start_task(self._run_save(rank_store, save.epoch, job))
        self._saves.add(task)
        task.add_done_callback(self._end_save)

    def _end_save(self, task: asyncio.Task[None]) -> None:
        """Forget the finished task of a save, and answer each Wait that awaited only this one."""
        self._saves.discard(task)
        for saves in self._pending_waits:
            saves.discard(task)
        for _ in range(self._pending_waits.count(set())):
            self._send_message(Done())
        self._pending_waits = [saves for saves in self._pending_waits if saves]

    async def _run_save(self, rank_store: RankStore, epoch: int, job: SaveJob) -> None:
        """Run the pipeline of a save. A save without a target in storage is hashed only if it is still the newest."""
        hashes = job.target is not None or epoch == self._newest_epoch
        await run(job, rank_store, hashes=hashes, commit=self._daemon.commit, report=self._report)

    def _report(self, job: SaveJob) -> None:
        """Send the new state of a save to the training process and to the agent, and count it in the statistics."""
        self._daemon.report_job(job)
        match job.state:
            case SaveState.HASHED:
                self._update_stats(hashed=job.step)
                self._send_message(Hashed(job.step))
            case SaveState.PERSISTED:
                size = self._stats.persisted_bytes + job.record.shard_bytes
                self._update_stats(persisted=job.step, persists=self._stats.persists + 1, persisted_bytes=size)
                self._send_message(Persisted(job.step, job.detail))
            case SaveState.COMMITTED:
                self._update_stats(committed=job.step)
            case SaveState.CORRUPT:
                self._send_message(SaveFailed(job.step, "corrupt", job.detail))
            case SaveState.SUPERSEDED:
                self._log_event("save_overtaken", {"step": job.step, "rank": job.record.rank})
                self._update_stats(dropped=self._stats.dropped + 1)
                self._send_message(SaveFailed(job.step, "overtaken", job.detail))
            case SaveState.FAILED:
                self._update_stats(failures=self._stats.failures + 1)
                self._send_message(SaveFailed(job.step, "storage_failed", job.detail[:4_096]))

    def _update_stats(self, **counters: int) -> Stats:
        """Set the given fields of this session's statistics, and return all of them."""
        known = {name: getattr(self._stats, name) for name in Stats.__struct_fields__}
        self._stats = Stats(**(known | counters))
        return self._stats

    def _send_message(self, message: ToClient) -> None:
        """Send a message to the peer, unless the connection is closed."""
        if self._connected:
            self._send(encode(message))

    def disconnect(self) -> None:
        """Stop sending, since the connection is closed. Saves that have begun continue."""
        self._connected = False


LAST_MESSAGES_S = 5.0  # seconds for the last messages of processes that have ended
OTHER_SHARDS_S = 60.0  # seconds for other workers' last shards when all end
STORED_S = 5.0  # seconds for a step to be committed before storage is read; it may never be complete

LIST_STORAGE_S = 5.0  # seconds for storage to list its steps

_CHECK_S = 0.05  # seconds between two checks of the tasks at the end


class RankStores:
    """The rank stores of one daemon, by local rank.

    folder: of the arenas. run, worker: this daemon's. persist: writes a generation to storage. `checks`: running
    verifications, after which it is known what is held.
    """

    def __init__(self, folder: Path, run: str, worker: str, persist: Persist, log_event: EventLog) -> None:
        self._folder, self._run, self._worker, self._persist, self._log_event = folder, run, worker, persist, log_event
        self._boot, self._preallocator = boot_id(), Preallocator()
        self._stores: dict[int, RankStore] = {}
        self.checks: set[asyncio.Task[None]] = set()

    @property
    def by_rank(self) -> Mapping[int, RankStore]:
        """Return the rank stores by local rank."""
        return self._stores

    def of(self, local_rank: int) -> RankStore:
        """Return the rank store of this local rank; create it at the first call."""
        if local_rank not in self._stores:
            identity = Identity(self._run, self._worker, local_rank, self._boot, 1)
            self._stores[local_rank] = RankStore(
                self._folder, identity, self._persist, self._log_event, self._preallocator
            )
        return self._stores[local_rank]

    def in_order(self) -> list[RankStore]:
        """Return the rank stores in the order of their local ranks."""
        return [rank_store for _, rank_store in sorted(self._stores.items())]

    async def held_steps(self, ranks: int) -> tuple[HeldStep, ...]:
        """List the hashed steps of which all local ranks below `ranks` hold their shard, newest first, 16 at most.

        ranks: number of local ranks. If the shard of local rank 0 was saved as the only one of its world, as a state
        that is the same on every rank is, it is enough; rank and ranks of its HeldStep are 0. First waits for running
        checks and hashes sealed saves; generations whose bytes do not match their checksums are discarded.
        """
        if self.checks:
            await asyncio.wait(list(self.checks))
        saves = await asyncio.gather(*(self.of(local_rank).hashed_saves() for local_rank in range(ranks)))
        return _common_steps(saves)


def _common_steps(saves: Sequence[Sequence[tuple[ShardRecord, bool]]]) -> tuple[HeldStep, ...]:
    """List the steps of which all local ranks have a save, newest first, 16 at most.

    saves: for each local rank, each with True if it can be read in parts. If that of local rank 0 is the only one of
    its world, it is enough. With one local rank such a step is listed twice: as a state that is the same on all ranks,
    and as the only shard of its world.
    """
    steps = [HeldStep(each.step, 0, 0, each.round) for each, _ in (saves[0] if saves else ()) if each.world == 1]
    for first, parts in saves[0] if saves else ():
        place = (first.step, first.round, first.world)
        if all(
            any((each.step, each.round, each.world, each.rank) == (*place, first.rank + offset) for each, _ in others)
            for offset, others in enumerate(saves)
        ):
            steps.append(HeldStep(first.step, first.rank, first.world, first.round, reshardable=parts))
    return tuple(sorted(set(steps), key=lambda each: -each.step))[:16]


class CheckpointDaemon:
    """Keeps the checkpoints of one worker of one run, and adopts the arenas of its last daemon.

    folder: of the arenas. storage_bytes_per_s, replication_bytes_per_s: limits of writing to storage and of sending to
    other daemons, 0 for none. reports: the pipe on which the agent reads the ends of saves, None for no agent.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        worker: str,
        log_event: EventLog,
        storage_bytes_per_s: float = 0.0,
        replication_bytes_per_s: float = 0.0,
        reports: int | None = None,
    ) -> None:
        self.run, self.worker, self.folder = run, worker, folder
        self._log_event = log_event
        self._reports = SaveReports(reports, log_event)
        self.persister, self.commits = Persister(run, storage_bytes_per_s), CommitCoordinator(run, log_event)
        self.rank_stores = RankStores(folder, run, worker, self.persister, log_event)
        self.connections = LocalConnections(self, log_event)
        self._tasks: set[asyncio.Task[None]] = set()
        self._commit_count = 0  # commits in flight among these tasks, which need no memory
        self._restored_step = -1  # the step that training last continued from
        for path in abandoned_arenas(folder, run, worker):
            log_event("arena_removed", {"path": str(path)})
            path.unlink(missing_ok=True)
        for arena in adopt_arenas(folder, run, worker, log_event):
            self.rank_stores.of(arena.identity.local_rank).adopt(arena)
        self.replicator = Replicator(self, log_event, replication_bytes_per_s)

    async def register(self, hello: Hello) -> RankStore:
        """Register a training process that connected, and return its rank store.

        hello: its identity, checkpoint folder and number of replicas. A restarted daemon may learn the checkpoint
        folder only here. If all members have restored a step by then (`restore`), it now writes that step to storage.
        """
        rank_store = self.rank_stores.of(hello.local_rank)
        reserved_bytes = self.replicator.replica_store.arenas.reserved_bytes
        rank_store.memory.set_replicas(hello.replicas, reserved_bytes, self.replicator.free_earlier_rounds)
        self.replicator.register(hello)
        if rank_store.targets.register(hello.target, hello.read_folder) and self._restored_step >= 0:
            self.start_task(self._persist(rank_store, self._restored_step))
        return rank_store

    async def commit(self, job: SaveJob) -> bool:
        """Wait for all shards of a step, write its manifest, and report the result to the agent. Return True if it was
        written.

        job: the save of rank 0, which has a target. False if the step was superseded or failed.
        """
        assert job.target is not None
        self._commit_count += 1
        try:
            outcome = await self.commits.commit(job.record, job.target)
        finally:
            self._commit_count -= 1
        is_done, (round_, rank) = outcome is SaveOutcome.DONE, (job.record.round, job.record.rank)
        self.report_save(SaveEnded(job.step, round_, rank, SaveTier.STORAGE, outcome, is_done, job.announced_s))
        return is_done

    def report_save(self, save: SaveEnded) -> None:
        """Report to the agent that a save has ended now in one tier."""
        self._reports.write(msgspec.structs.replace(save, ended_s=time.time()))

    def report_job(self, job: SaveJob) -> None:
        """Report to the agent the tiers in which a save has ended with its new state, if any."""
        for end in ends_of(job):
            self.report_save(end)

    async def restore(self, step: int, restore_place: RestorePlace | None = None, persist_step: int = -1) -> None:
        """Prepare for a round that restores `step` from memory: fetch missing shards, and discard newer saves.

        In the background the step is verified and written to storage. step: -1 if all ranks load from storage; then all
        saves in memory are discarded, but first `persist_step`, or the newest step held here, is written to storage,
        within STORED_S. restore_place: which shards to fetch from where; None at the end of the job. Raises
        LauncherError if a shard cannot be fetched. Then no save is discarded, but the replication of the last round has
        ended.
        """
        if restore_place is not None:
            await self.replicator.begin_round(step, restore_place)
        self._restored_step = step
        if step < 0:
            await self._persist_before_loading(persist_step, restore_place)
        else:
            self.commits.give_up_after(step)
        for rank_store in self.rank_stores.by_rank.values():
            await rank_store.forget_after(step)
        await self.replicator.replica_store.forget_after(step)
        for rank_store in self.rank_stores.by_rank.values() if step >= 0 else ():
            self.start_task(self._persist(rank_store, step))
            check = self.start_task(rank_store.verify(step))
            self.rank_stores.checks.add(check)
            check.add_done_callback(self.rank_stores.checks.discard)
        if step >= 0 and restore_place is not None and restore_place.saved_by:
            self.start_task(self._persist_replicas(step, restore_place))

    async def _persist_replicas(self, step: int, restore_place: RestorePlace) -> None:
        """Write the replicas of this step that are kept here to storage, if they are missing there: their owners may
        have left before they wrote them.

        restore_place: says in which round, and by how many ranks, the step was saved.
        """
        targets = (rank_store.targets.default for rank_store in self.rank_stores.in_order())
        default_target = next((target for target in targets if target), None)
        for arena, generation, record in self.replicator.replica_store.replicas_of(
            step, restore_place.saved_round, restore_place.saved_by
        ):
            target = self.replicator.replica_store.saved_target(arena, record.epoch) or default_target
            if target is None or target.kind != "shards" or arena.pin(generation, record.epoch) is None:
                continue
            job = SaveJob(step, generation, record, target)
            try:
                if await asyncio.to_thread(self.persister.persist_if_missing, arena, generation, record, target):
                    self._log_event("persisted", {"step": step, "rank": record.rank, "for": arena.identity.owner})
                    self.report_job(job.in_state(SaveState.PERSISTED))
            except LauncherError as error:
                self._log_event("persist_failed", {"step": step, "rank": record.rank, "detail": str(error)})
                self.report_job(job.in_state(SaveState.FAILED))
                continue
            finally:
                with suppress(ValueError):  # the pin was released meanwhile
                    arena.unpin(generation)
            if record.rank == 0:
                self.start_task(self.commit(job))

    async def _persist_before_loading(self, persist_step: int, restore_place: RestorePlace | None) -> None:
        """Write `persist_step`, or the newest held step if it is below 0, to storage before training loads from there.

        Wait for this and for all other background work, at most STORED_S; what is not done by then is logged. Then give
        up the commits of the rounds before the one in `restore_place`; without that, those of all rounds in memory.
        """
        if steps := await self.rank_stores.held_steps(len(self.rank_stores.by_rank)):
            for rank_store in self.rank_stores.by_rank.values():
                self.start_task(self._persist(rank_store, persist_step if persist_step >= 0 else steps[0].step))
        until_s = time.monotonic() + STORED_S
        while self._tasks and (left_s := until_s - time.monotonic()) > 0:  # a finished write starts a commit
            await asyncio.wait(list(self._tasks), timeout=left_s)
        if self._tasks:
            self._log_event("storage_behind", {"waited_s": STORED_S, "in_flight": len(self._tasks)})
        last = max((newest_round(rank_store.arena) for rank_store in self.rank_stores.by_rank.values()), default=-1)
        self.commits.give_up(
            min(last, restore_place.round - 1) if restore_place else last
        )  # a new job may count rounds from 1 again

    async def _persist(self, rank_store: RankStore, step: int) -> None:
        """Write a step that a rank holds in memory to storage. Do nothing if it was written or is no longer held."""
        if (pinned := rank_store.pin_unwritten(step)) is not None:
            job = SaveJob(step, *pinned)
            hashes = rank_store.arena is not None and rank_store.arena.slots()[job.slot].state is SlotState.SEALED
            await run(job, rank_store, hashes=hashes, commit=self.commit, report=self._log_save_state)

    def _log_save_state(self, job: SaveJob) -> None:
        """Log the new state of a save that no training process waits for, and report it to the agent."""
        self.report_job(job)
        fields: dict[str, object] = {"step": job.step, "rank": job.record.rank}
        match job.state:
            case SaveState.PERSISTED:
                self._log_event("persisted", {**fields, "path": job.detail})
            case SaveState.SUPERSEDED:
                self._log_event("save_overtaken", fields)
            case SaveState.FAILED:
                self._log_event("persist_failed", {**fields, "detail": job.detail})

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task, which the daemon awaits before it ends; return the task. The daemon does not
        look at its result or error.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self, done: bool) -> None:
        """Stop the daemon once its saves are finished. Connections get LAST_MESSAGES_S, then they are cancelled.

        Commits that wait for shards of other workers are given up after OTHER_SHARDS_S. done: the job is over, so
        arenas and replicas are removed. If False, the newest step that all local ranks hold is written to storage
        first, and the arenas stay for the next daemon.
        """
        await self.connections.end()
        await self.replicator.close(remove=done)
        if (
            not done
            and self.rank_stores.by_rank
            and (steps := await self.rank_stores.held_steps(len(self.rank_stores.by_rank)))
        ):
            for rank_store in self.rank_stores.by_rank.values():
                self.start_task(self._persist(rank_store, steps[0].step))
        while len(self._tasks) > self._commit_count:
            await asyncio.wait(list(self._tasks), timeout=_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
        # Release the memory for the next daemon: a manifest needs none.
        for rank_store in self.rank_stores.by_rank.values():
            rank_store.close(remove=done)
        self.commits.end_within(OTHER_SHARDS_S)
        while self._tasks:
            await asyncio.wait(list(self._tasks))


async def stored_step(target: str, log_event: EventLog) -> StoredStep:
    """Return the checkpoint folder `target` and the newest step committed in it, -1 for none.

    An empty StoredStep if the folder is "". The same if storage fails, does not answer within LIST_STORAGE_S, or
    has a step of a newer format, which is logged.
    """
    if not target:
        return StoredStep()
    try:
        async with asyncio.timeout(LIST_STORAGE_S):
            manifest = await asyncio.to_thread(lambda: newest_manifest(open_store(target), log_event))
    except (NewerFormat, StorageFailed, TimeoutError) as error:
        log_event("storage_behind", {"target": target, "why": str(error) or f"no answer within {LIST_STORAGE_S:g} s"})
        return StoredStep()
    return StoredStep(target, manifest.step if manifest is not None else -1)


class LocalConnections:
    """The connections of training processes and of the agent to one daemon."""

    def __init__(self, daemon: CheckpointDaemon, log_event: EventLog) -> None:
        self._daemon, self._log_event = daemon, log_event
        self._connections: set[asyncio.Task[None]] = set()

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
        """Answer the messages of one local connection until it ends, a request fails or it sends an invalid frame.

        What a process has sent before it ended is carried out, although no answer reaches it any more.
        """

        def send(frame: bytes) -> None:
            """Send a frame, unless the peer is gone."""
            if not writer.is_closing():
                writer.write(frame)

        session = Session(self._daemon, send, self._log_event)
        stays_open = True
        with suppress(asyncio.IncompleteReadError):  # its end
            try:
                while stays_open:
                    message = read_at_daemon(await next_frame(reader, MAX_BYTES))
                    answer, stays_open = await self._answer(session, message)
                    if answer is not None:
                        send(encode(answer))
                        with suppress(OSError):  # the peer is gone, but it may have sent more
                            await writer.drain()
            except BadFrame as error:
                self._log_event("frame_refused", {"why": str(error)})
        session.disconnect()
        writer.close()

    async def _answer(self, session: Session, message: ToDaemon) -> tuple[ToClient | None, bool]:
        """Return the answer to a message, None for none, and True if the connection stays open.

        An unexpected error is logged and sent back as RequestRefused, and the connection is to be closed. Raises
        BadFrame for a message that is not allowed here.
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

    async def end(self) -> None:
        """Wait for the connections to end. After LAST_MESSAGES_S cancel those that are still open."""
        if self._connections:  # their last messages are still unread
            _, open_connections = await asyncio.wait(list(self._connections), timeout=LAST_MESSAGES_S)
            for task in open_connections:
                task.cancel()
            await asyncio.gather(*open_connections, return_exceptions=True)
