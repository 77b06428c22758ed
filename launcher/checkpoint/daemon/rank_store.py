"""Keeps one rank's arena: allocates it before the first save, hashes sealed generations, writes them to storage.

Blocking work runs in threads. A generation is pinned, so that no save overwrites it, when its Save message arrives. It
is unpinned when it is hashed and, if it has a target in storage, written or dropped. Saves are written one at a time.
If training saves faster than storage writes, the oldest waiting save is dropped to free its memory, so training never
waits long. The save being written and the newest sealed one are never dropped. A kernel provides one or two gigabytes
of memory per second, so a process does not wait for all of it: the first generation is allocated before the process
gets its answer, the others afterwards. Promised memory that is not allocated yet counts as used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from turnout.launcher.checkpoint.arena.arena import Arena, lock_for_daemon
from turnout.launcher.checkpoint.arena.arena_files import limits, note_target, target_of
from turnout.launcher.checkpoint.format.arena_layout import (
    MAX_GENERATIONS,
    Identity,
    ShardRecord,
    SlotState,
    newest_generation,
    slot_to_write,
)
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.memory_budget import Limits, need_bytes, refusal
from turnout.launcher.checkpoint.format.shard_file import is_reshardable, sums_of
from turnout.launcher.errors import BadCheckpoint, LauncherError, NoMemory
from turnout.launcher.event_log import EventLog


class SupersededSave(LauncherError):
    """Newer saves needed this save's memory before it was written. It is not in storage and will not be."""


class PersistQueue:
    """Queues the saves of one rank that wait for storage, by epoch; one is written at a time.

    A writer joins, waits for its turn and leaves. Two writers may have the same epoch.
    """

    def __init__(self) -> None:
        self._writers: Counter[int] = Counter()
        self._dropped: set[int] = set()
        self._writing_epoch: int | None = None  # epoch being written
        self._changed = asyncio.Event()

    def join(self, epoch: int) -> None:
        """Count one more writer for the save of this epoch."""
        self._writers[epoch] += 1

    def leave(self, epoch: int) -> None:
        """Count one writer less for the save of this epoch. After the last one the epoch is forgotten."""
        self._writers[epoch] -= 1
        if self._writers[epoch] <= 0:
            del self._writers[epoch]
            self._dropped.discard(epoch)

    def try_begin(self, epoch: int) -> bool:
        """Take the turn to write the save of this epoch. Return False while another save is being written.

        Call done() after the write. Raises SupersededSave if the save was dropped from the queue.
        """
        if epoch in self._dropped:
            raise SupersededSave("newer saves superseded it: storage writes more slowly than saves are made")
        if self._writing_epoch is not None:
            return False
        self._writing_epoch = epoch
        return True

    async def wait_turn(self, epoch: int) -> None:
        """Wait for the turn to write this save; call end_turn() afterwards. Raises SupersededSave if it was dropped."""
        while not self.try_begin(epoch):
            await self._changed.wait()

    def end_turn(self) -> None:
        """End the turn: the write succeeded or failed."""
        self._writing_epoch = None
        self._notify()

    def drop_oldest(self, newest_epoch: int) -> int | None:
        """Drop the oldest queued save that is not being written; return its epoch, None if there is none.

        newest_epoch: of the newest sealed save, which is never dropped. If a dropped save has not left the queue yet,
        it is returned again, since its memory will be free soon.
        """
        if dropped := self._dropped & self._writers.keys():
            return min(dropped)
        epoch = min((each for each in self._writers if each not in (newest_epoch, self._writing_epoch)), default=None)
        if epoch is not None:
            self._dropped.add(epoch)
            self._notify()
        return epoch

    def _notify(self) -> None:
        """Wake all writers that wait for their turn."""
        former_event, self._changed = self._changed, asyncio.Event()
        former_event.set()


@dataclass(eq=False, slots=True)
class _Allocation:
    """Memory that is promised to an arena and being allocated."""

    arena: Arena
    generations: int  # the first ones of the arena
    size: int  # bytes of each

    @property
    def missing_bytes(self) -> int:
        """Return how many bytes are not allocated yet; 0 after the arena was closed."""
        with suppress(ValueError):  # the arena was closed
            slots = self.arena.slots()[: self.generations]
            return sum(max(self.size - slot.reserved_bytes, 0) for slot in slots)
        return 0


class Preallocator:
    """Allocates the memory of the arenas of all ranks of one daemon."""

    def __init__(self) -> None:
        self._allocations: dict[_Allocation, asyncio.Task[None] | None] = {}

    def remaining_limits(self, limits: Limits) -> Limits:
        """Return the limits minus all promised memory that is not allocated yet. Safe in any thread."""
        promised_bytes = sum(promise.missing_bytes for promise in tuple(self._allocations))  # the loop changes these
        cgroup, available = limits.cgroup_left_bytes, limits.available_bytes
        return replace(
            limits,
            free_bytes=max(limits.free_bytes - promised_bytes, 0),
            cgroup_left_bytes=None if cgroup is None else max(cgroup - promised_bytes, 0),
            available_bytes=None if available is None else max(available - promised_bytes, 0),
        )

    async def allocate(self, arena: Arena, generations: int, size: int) -> None:
        """Allocate the generation that is written first, and the others in the background.

        size: bytes of each generation. Raises NoMemory for the first. If memory is short for another one, the save into
        it reports that. generations: the first ones of the arena.
        """
        soonest = slot_to_write(arena.slots()[:generations]) or 0
        promise = _Allocation(arena, generations, size)
        self._allocations[promise] = None
        try:
            await asyncio.to_thread(arena.reserve, soonest, size)
        except BaseException:
            del self._allocations[promise]
            raise
        others = [generation for generation in range(generations) if generation != soonest]
        self._allocations[promise] = asyncio.get_running_loop().create_task(self._allocate_rest(promise, others))

    async def _allocate_rest(self, promise: _Allocation, generations: list[int]) -> None:
        """Allocate further generations in threads, then remove the promise. Generations without memory are skipped."""
        try:
            for generation in generations:
                with suppress(NoMemory, ValueError):
                    await asyncio.to_thread(promise.arena.reserve, generation, promise.size)
        finally:
            del self._allocations[promise]


Persist = Callable[[Arena, int, ShardRecord, Save], str]  # blocks; returns the path; raises StorageFailed


class SaveTargets:
    """Where the saves of one rank are written in storage, and the folder that its checkpoints are read from.

    `read_folder`: that folder; "" if unknown. `shards`: the last folder of shards, as a Save message, for generations
    without a target; None if unknown.
    """

    def __init__(self) -> None:
        self._by_generation: dict[int, Save] = {}  # the Save message with the requested target
        self.shards: Save | None = None
        self.read_folder = ""
        self._file: int | None = None  # descriptor of the arena's file, in which the folder is noted; None for none

    def adopt(self, file: int) -> None:
        """Read the folder that an earlier daemon has noted in an arena's file. file: its descriptor."""
        self._file, self.read_folder = file, target_of(file)

    def begin(self, file: int) -> None:
        """Note the folder in the file of a new arena. file: its descriptor."""
        self._file = file
        note_target(file, self.read_folder)

    def close(self) -> None:
        """Note no more folder, since the arena is closed."""
        self._file = None

    def register(self, target: str, read_folder: str = "") -> bool:
        """Record the folders of a process that connected. Return True if it names the first target known here.

        target: the folder that this process writes shards to, "" for none. read_folder: the folder its checkpoints are
        read from, even if another process writes there; "" for `target`.
        """
        self._set_read_folder(read_folder or target)
        former_target = self.shards.target if self.shards is not None else ""
        if former_target != target:
            self.shards = _shard_target(target)
        return bool(target) and not former_target

    def _set_read_folder(self, folder: str) -> None:
        """Write the folder into the arena's file, so that a restarted daemon knows it before the process connects."""
        if folder != self.read_folder and self._file is not None:
            note_target(self._file, folder)
        self.read_folder = folder

    def record(self, save: Save) -> None:
        """Record the target of an announced save, if it has one."""
        if save.target:
            self._by_generation[save.generation] = save
            if save.kind == "shards":
                self.shards = save
                self._set_read_folder(save.target)

    def set(self, save: Save) -> None:
        """Record the target of a save that was fetched from another worker."""
        self._by_generation[save.generation] = save

    def of(self, generation: int, epoch: int) -> Save | None:
        """Return the requested target of a save, as its Save message; None if it has none or it is unknown."""
        save = self._by_generation.get(generation)
        return save if save is not None and save.epoch == epoch else None

    @property
    def default(self) -> Save | None:
        """Return the target of a save or replica without one of its own, as a Save message; None if unknown."""
        return self.shards or _shard_target(self.read_folder)


class MemoryCheck:
    """Checks whether the saves of one rank and their replicas in other workers fit into memory.

    folder: of the arenas. preallocator: of the daemon.
    """

    def __init__(self, folder: Path, local_rank: int, preallocator: Preallocator) -> None:
        self._folder, self._local_rank, self._preallocator = folder, local_rank, preallocator
        self._replicas = 0
        self._replica_bytes: Callable[[int], int] = lambda local_rank: 0
        self._free_earlier_rounds: Callable[[], bool] = lambda: False

    def set_replicas(
        self, replicas: int, replica_bytes: Callable[[int], int], free_earlier_rounds: Callable[[], bool]
    ) -> None:
        """Set how many other workers keep this rank's shards, and how to count and free replicas of others when memory
        is short.

        replica_bytes: returns the bytes that replicas here use already, by local rank. free_earlier_rounds: frees
        replicas of earlier rounds, and returns True if it removed any arena.
        """
        self._replicas, self._replica_bytes, self._free_earlier_rounds = replicas, replica_bytes, free_earlier_rounds

    async def check(self, arena: Arena | None, size: int, generations: int) -> None:
        """Raise NoMemory if `generations` of `size` bytes do not fit. Replicas of earlier rounds are freed before.

        arena: of the rank, None before the first save.
        """
        try:
            await asyncio.to_thread(self._check_once, arena, size, generations)
        except NoMemory:
            if not self._free_earlier_rounds():
                raise
            await asyncio.to_thread(self._check_once, arena, size, generations)

    def _check_once(self, arena: Arena | None, size: int, generations: int) -> None:
        """Raise NoMemory, with advice what to add, if `generations` of `size` bytes and the replicas do not fit.

        Memory that the arena and the replicas have already is not counted twice.
        """
        slots = arena.slots()[:generations] if arena is not None else ()
        need = need_bytes(size, generations, 1, self._replicas)
        need -= sum(min(slot.reserved_bytes, size) for slot in slots)
        need -= min(self._replica_bytes(self._local_rank), need_bytes(size, 0, 1, self._replicas))
        refused = refusal(need, self._preallocator.remaining_limits(limits(self._folder)), folder=str(self._folder))
        if refused is not None:
            raise refused


class RankStore:
    """Keeps the saves of one local rank.

    folder: of the arenas. identity: of the arena to create. persist: writes a generation to storage. preallocator: of
    the daemon; None for one of its own.
    """

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        persist: Persist,
        log_event: EventLog,
        preallocator: Preallocator | None = None,
    ) -> None:
        self._preallocator, self.local_rank = preallocator or Preallocator(), identity.local_rank
        self._folder, self._identity, self._persist, self._log_event = folder, identity, persist, log_event
        self.arena: Arena | None = None
        self.targets, self.memory = SaveTargets(), MemoryCheck(folder, identity.local_rank, self._preallocator)
        self._persisted: dict[int, str] = {}  # paths by epoch, of saves that the arena still holds
        self._hashing = asyncio.Lock()
        self._queue = PersistQueue()

    def adopt(self, arena: Arena) -> None:
        """Use an arena of an earlier daemon of this worker as this rank's own, and remove the earlier daemon's pins."""
        arena.unpin_all()
        self.arena = arena
        self.targets.adopt(arena.file)

    async def reserve(self, size: int, generations: int) -> Arena:
        """Return the arena, with memory for one save of `size` bytes now, and soon for all generations.

        Creates the arena at the first call, with MAX_GENERATIONS generations at most; a later call cannot add any.
        Raises NoMemory if the memory for all generations does not fit, before any is allocated. Replicas of earlier
        rounds are freed before it is raised.
        """
        count = min(max(generations, 2), MAX_GENERATIONS)
        await self.memory.check(self.arena, size, min(generations, count))
        if self.arena is None:
            self.arena = await asyncio.to_thread(Arena.make, self._folder, replace(self._identity, count=count))
            lock_for_daemon(self.arena)
            self.targets.begin(self.arena.file)
        await self._preallocator.allocate(self.arena, min(generations, self.arena.identity.count), size)
        return self.arena

    async def pin_save(self, save: Save) -> tuple[int, ShardRecord] | None:
        """Pin the generation that a Save message names, and remember the save's target; return (generation, record).

        None, without a pin, if the generation was overwritten or never existed.
        """
        if self.arena is None:
            return None
        record = self.arena.pin(save.generation, save.epoch) if save.generation < self.arena.identity.count else None
        if record is None:
            return None
        self.targets.record(save)
        return save.generation, record

    async def hash(self, generation: int) -> bool:
        """Hash a pinned generation, and store its checksums in the arena.

        Returns False if the generation has no save, or if its bytes differ from earlier checksums; in the second case
        it is discarded.
        """
        assert self.arena is not None
        async with self._hashing:
            return await asyncio.to_thread(_hash, self.arena, generation, self._log_event)

    async def write(self, generation: int, record: ShardRecord, target: Save) -> str:
        """Wait for the turn, and write a pinned and hashed generation to storage; return its path there.

        If it was written before, return that path. Raises SupersededSave if newer saves needed its memory first,
        StorageFailed if storage fails, and BadCheckpoint if its bytes do not match their checksums. record: of the
        generation. target: the message that names the folder or file.
        """
        assert self.arena is not None
        self._queue.join(record.epoch)
        try:
            await self._queue.wait_turn(record.epoch)
            try:
                if record.epoch in self._persisted:  # the agent asked for it before the Save message was read
                    return self._persisted[record.epoch]
                stored_path = await asyncio.to_thread(self._persist, self.arena, generation, record, target)
            finally:
                self._queue.end_turn()
        finally:
            self._queue.leave(record.epoch)
        epochs = {slot.epoch for slot in self.arena.slots()}
        self._persisted = {epoch: path for epoch, path in self._persisted.items() if epoch in epochs}
        self._persisted[record.epoch] = stored_path
        return stored_path

    def drop_oldest(self) -> int:
        """Drop the oldest save that waits for storage, to free memory. Return its step, -1 if none can be dropped."""
        slots = self.arena.slots() if self.arena is not None else ()
        index = newest_generation(slots)
        epoch = self._queue.drop_oldest(slots[index].epoch if index is not None else -1)
        return next((slot.record.step for slot in slots if slot.record and slot.epoch == epoch), -1)

    async def hashed_saves(self) -> list[tuple[ShardRecord, bool]]:
        """List all valid saves, newest first, each with True if it can be read in parts.

        Saves without checksums are hashed now, and the newest is verified. Older ones are verified when they are
        loaded.
        """
        saves: list[tuple[ShardRecord, bool]] = []
        if self.arena is None:
            return saves
        slots = self.arena.slots()
        for generation in sorted(range(len(slots)), key=lambda index: -slots[index].epoch):
            if (record := self.arena.pin(generation)) is None:
                continue
            try:
                if (saves and slots[generation].state is SlotState.HASHED) or await self.hash(generation):
                    head = self.arena.map(generation, record.head_bytes)
                    saves.append((record, await asyncio.to_thread(is_reshardable, head)))
            finally:
                self.arena.unpin(generation)
        return sorted(saves, key=lambda each: -each[0].epoch)

    def pin_unwritten(self, step: int) -> tuple[int, ShardRecord, Save] | None:
        """Pin the newest generation of a step; return the generation, its record and its target in storage.

        None, and nothing is pinned, if the step is not held, is in storage already, or has no known target.
        """
        if self.arena is None or (pinned := self.arena.pin_newest(lambda record: record.step == step)) is None:
            return None
        generation, record = pinned
        target = self.targets.of(generation, record.epoch) or self.targets.shards
        if target is None or record.epoch in self._persisted:
            self.arena.unpin(generation)
            return None
        return generation, record, target

    async def verify(self, step: int) -> None:
        """Hash the newest generation of this step again. A corrupt one is discarded and logged.

        Does nothing if the step is not held.
        """
        if self.arena is None or (pinned := self.arena.pin_newest(lambda record: record.step == step)) is None:
            return
        try:
            await self.hash(pinned[0])
        finally:
            self.arena.unpin(pinned[0])

    async def forget_after(self, step: int) -> None:
        """Discard all saves newer than this step, since the world continues from it."""
        if self.arena is None:
            return
        async with self._hashing:
            for generation, slot in enumerate(self.arena.slots()):
                if slot.record is not None and slot.record.step > step:
                    self.arena.discard(generation)

    def close(self, *, remove: bool) -> None:
        """Close the arena. remove: also free its memory."""
        if self.arena is not None:
            if remove:
                self.arena.remove()
            self.arena.close()
            self.arena = None
            self.targets.close()


def _hash(arena: Arena, generation: int, log_event: EventLog) -> bool:
    """Compute the checksums of one generation, and store or compare them.

    Returns False if the generation has no save. Also returns False, and discards the generation, if it already has
    other checksums, since its memory is corrupt.
    """
    slot = arena.slots()[generation]
    if slot.record is None:
        return False
    shard_bytes = slot.record.shard_bytes
    sums = sums_of(arena.map(generation, slot.record.region_bytes)[:shard_bytes])
    if slot.state is SlotState.SEALED:
        arena.set_hashed(generation, sums)
        return True
    with suppress(BadCheckpoint):
        if tuple(sums) == arena.sums(generation):
            return True
    arena.discard(generation)
    log_event("memory_corrupt", {"step": slot.record.step, "local_rank": arena.identity.local_rank})
    return False


def newest_round(arena: Arena | None) -> int:
    """Return the newest round of all saves in an arena, -1 for none and without an arena."""
    slots = arena.slots() if arena is not None else ()
    return max((slot.record.round for slot in slots if slot.record), default=-1)


def newest_step(arena: Arena | None) -> int:
    """Return the step of the newest readable save in an arena, -1 for none and without an arena."""
    slots = arena.slots() if arena is not None else ()
    index = newest_generation(slots)
    record = slots[index].record if index is not None else None
    return record.step if record is not None else -1


def _shard_target(target: str) -> Save | None:
    """Return a Save message with a folder of shards as its target, None for ""."""
    return Save(0, 0, 0, target) if target else None
