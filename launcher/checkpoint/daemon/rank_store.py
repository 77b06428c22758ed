"""Keeps one rank's arena: allocated ahead, hashed when sealed, persisted, freed.

Blocking work runs in threads. A generation is pinned when its Save message arrives. The pin ends when it is hashed and,
if meant for storage, stored or dropped.
Saves are persisted one at a time. If storage is slower than training saves, the oldest waiting save gives up its
memory, so training never waits long. The save being written and the newest sealed one are never dropped.
A kernel provides one or two gigabytes of memory per second, so nobody should wait for all of it: the first generation
is allocated before the process is answered, the others afterwards. Memory that is promised but not allocated yet counts
as taken.
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
    newest,
    slot_to_write,
)
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.memory_budget import Limits, need_bytes, refusal
from turnout.launcher.checkpoint.format.shard_file import is_reshardable, sums_of
from turnout.launcher.errors import BadCheckpoint, LauncherError, NoMemory
from turnout.launcher.event_log import EventLog


class DroppedSave(LauncherError):
    """Newer saves needed this save's memory before it was written. It is not in storage and will not be."""


class PersistQueue:
    """Queues saves by epoch. A writer joins, waits for its turn and leaves; two writers may carry the same epoch."""

    def __init__(self) -> None:
        self._writers: Counter[int] = Counter()
        self._dropped: set[int] = set()
        self._writing_epoch: int | None = None  # epoch being written
        self._changed = asyncio.Event()

    def join(self, epoch: int) -> None:
        """Count one more writer for the save of this epoch."""
        self._writers[epoch] += 1

    def leave(self, epoch: int) -> None:
        """Remove a writer of this save, which is written or given up."""
        self._writers[epoch] -= 1
        if self._writers[epoch] <= 0:
            del self._writers[epoch]
            self._dropped.discard(epoch)

    def try_begin(self, epoch: int) -> bool:
        """Claim the turn to write this save; return False while another save is written. Raises DroppedSave if it was
        dropped.
        """
        if epoch in self._dropped:
            raise DroppedSave("newer saves have overtaken it: storage takes them more slowly than they are made")
        if self._writing_epoch is not None:
            return False
        self._writing_epoch = epoch
        return True

    async def wait_turn(self, epoch: int) -> None:
        """Wait for the turn to write this save; call done() afterwards. Raises DroppedSave if it was dropped."""
        while not self.try_begin(epoch):
            await self._changed.wait()

    def done(self) -> None:
        """End the turn: the write succeeded or failed."""
        self._writing_epoch = None
        self._notify()

    def drop_oldest(self, newest_epoch: int) -> int | None:
        """Drop the oldest queued save except `newest_epoch`; return its epoch or None.

        newest_epoch: the epoch of the newest sealed save. A save that was dropped before and has not left yet is
        returned again, since its memory is about to be free.
        """
        if dropped := self._dropped & self._writers.keys():
            return min(dropped)
        epoch = min((each for each in self._writers if each not in (newest_epoch, self._writing_epoch)), default=None)
        if epoch is not None:
            self._dropped.add(epoch)
            self._notify()
        return epoch

    def _notify(self) -> None:
        moved, self._changed = self._changed, asyncio.Event()
        moved.set()


@dataclass(eq=False, slots=True)
class _Allocation:
    arena: Arena
    generations: int
    size: int

    @property
    def left_bytes(self) -> int:
        """Return how many bytes of this allocation are not in memory yet; 0 after the arena was closed."""
        with suppress(ValueError):  # the arena was closed
            slots = self.arena.slots()[: self.generations]
            return sum(max(self.size - slot.reserved_bytes, 0) for slot in slots)
        return 0


class Preallocator:
    """Allocates arenas for all ranks of one daemon."""

    def __init__(self) -> None:
        self._allocations: dict[_Allocation, asyncio.Task[None] | None] = {}

    def remaining_limits(self, limits: Limits) -> Limits:
        """Return the limits that remain after all promised memory is allocated. Safe in any thread."""
        promised_bytes = sum(promise.left_bytes for promise in tuple(self._allocations))  # the loop changes these
        cgroup, available = limits.cgroup_left_bytes, limits.available_bytes
        return replace(
            limits,
            free_bytes=max(limits.free_bytes - promised_bytes, 0),
            cgroup_left_bytes=None if cgroup is None else max(cgroup - promised_bytes, 0),
            available_bytes=None if available is None else max(available - promised_bytes, 0),
        )

    async def allocate(self, arena: Arena, generations: int, size: int) -> None:
        """Allocate the generation that is written first, and the others in the background. `size` is in bytes.

        Raises NoMemory for the first. For the others, the save that finds no memory reports it.
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
        """Allocate memory for further generations in a thread, then end the promise of it.

        A generation that finds no memory is skipped; its save reports that.
        """
        try:
            for generation in generations:
                with suppress(NoMemory, ValueError):
                    await asyncio.to_thread(promise.arena.reserve, generation, promise.size)
        finally:
            del self._allocations[promise]


Persist = Callable[[Arena, int, ShardRecord, Save], str]  # blocks; returns the path; raises StorageFailed


class RankStore:
    """Keeps the saves of one local rank. persist: writes a generation to storage. preallocator: the daemon's."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        persist: Persist,
        log_event: EventLog,
        preallocator: Preallocator | None = None,
    ) -> None:
        self._preallocator = preallocator or Preallocator()
        self._folder, self._identity, self._persist, self._log_event = folder, identity, persist, log_event
        self.arena: Arena | None = None
        self._targets: dict[int, Save] = {}  # the requested target, by generation
        self._default_target: Save | None = None  # the last folder of shards, for generations without a target
        self.read_folder = ""  # the folder of its checkpoints; "" if unknown
        self._persisted: dict[int, str] = {}  # paths by epoch, of saves that the arena still holds
        self._hashing = asyncio.Lock()
        self._queue = PersistQueue()
        self._replicas = 0
        self._replica_bytes: Callable[[int], int] = lambda local_rank: 0
        self._free_earlier_rounds: Callable[[], bool] = lambda: False

    @property
    def local_rank(self) -> int:
        """Return the local rank whose saves are kept here."""
        return self._identity.local_rank

    def adopt(self, arena: Arena) -> None:
        """Take over an arena left by an earlier daemon of this worker. Its old pins are removed."""
        arena.unpin_all()
        self.arena = arena
        self.read_folder = target_of(arena.file)

    def register(self, target: str, reads: str = "") -> bool:
        """Record the target folder of a process that connected, "" for none. True if no target was known before.

        reads: the folder its checkpoints are read from, even if another process writes there.
        """
        self._set_read_folder(reads or target)
        known = self._default_target.target if self._default_target is not None else ""
        if known != target:
            self._default_target = _shard_target(target)
        return bool(target) and not known

    def _set_read_folder(self, folder: str) -> None:
        """Write the folder into the arena's file, so that a restarted daemon knows it before the process connects."""
        if folder != self.read_folder and self.arena is not None:
            note_target(self.arena.file, folder)
        self.read_folder = folder

    def set_replicas(
        self, replicas: int, replica_bytes: Callable[[int], int], free_earlier_rounds: Callable[[], bool]
    ) -> None:
        """Set how many replicas are kept in other workers, and in exchange here for them.

        replica_bytes: returns the bytes already taken for those. free_earlier_rounds: frees replicas of earlier
        rounds, False if none.
        """
        self._replicas, self._replica_bytes, self._free_earlier_rounds = replicas, replica_bytes, free_earlier_rounds

    @property
    def default_target(self) -> Save | None:
        """Return the default target for a save or replica that came without one."""
        return self._default_target or _shard_target(self.read_folder)

    async def reserve(self, size: int, generations: int) -> Arena:
        """Return the arena with memory for one save of `size` bytes, and soon for all generations. Raises NoMemory
        before it takes any.
        """
        count = min(max(generations, 2), MAX_GENERATIONS)
        try:
            await asyncio.to_thread(self._check_memory, size, min(generations, count))
        except NoMemory:
            if not self._free_earlier_rounds():
                raise
            await asyncio.to_thread(self._check_memory, size, min(generations, count))
        if self.arena is None:
            self.arena = await asyncio.to_thread(Arena.make, self._folder, replace(self._identity, count=count))
            lock_for_daemon(self.arena)
            note_target(self.arena.file, self.read_folder)
        await self._preallocator.allocate(self.arena, min(generations, self.arena.identity.count), size)
        return self.arena

    def _check_memory(self, size: int, generations: int) -> None:
        """Raise NoMemory, naming what to add, if the generations do not fit. Memory that the arena has already is not
        counted twice.
        """
        slots = self.arena.slots()[:generations] if self.arena is not None else ()
        need = need_bytes(size, generations, 1, self._replicas)
        need -= sum(min(slot.reserved_bytes, size) for slot in slots)
        need -= min(self._replica_bytes(self._identity.local_rank), need_bytes(size, 0, 1, self._replicas))
        refused = refusal(need, self._preallocator.remaining_limits(limits(self._folder)), folder=str(self._folder))
        if refused is not None:
            raise refused

    async def pin_save(self, save: Save) -> tuple[int, ShardRecord] | None:
        """Pin the generation that a Save message names; return it with its record. None if it was overwritten or never
        existed.
        """
        if self.arena is None:
            return None
        record = self.arena.pin(save.generation, save.epoch) if save.generation < self.arena.identity.count else None
        if record is None:
            return None
        if save.target:
            self._targets[save.generation] = save
            if save.kind == "shards":
                self._default_target = save
                self._set_read_folder(save.target)
        return save.generation, record

    def saved_target(self, generation: int, epoch: int) -> Save | None:
        """Return the target in storage of this save, or None if it stays in memory or none was told."""
        save = self._targets.get(generation)
        return save if save is not None and save.epoch == epoch else None

    def set_target(self, save: Save) -> None:
        """Record the target of a save that was fetched from another worker."""
        self._targets[save.generation] = save

    async def hash(self, generation: int) -> bool:
        """Hash a pinned generation.

        False if the bytes differ from earlier checksums: the generation is then discarded.
        """
        assert self.arena is not None
        async with self._hashing:
            return await asyncio.to_thread(self._hash, self.arena, generation)

    def _hash(self, arena: Arena, generation: int) -> bool:
        """Compute the checksums of one generation, and store or compare them.

        Returns False, and discards a generation that already has other checksums, since its memory is corrupt.
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
        self._log_event("memory_corrupt", {"step": slot.record.step, "local_rank": self._identity.local_rank})
        return False

    async def write(self, generation: int, record: ShardRecord, target: Save) -> str:
        """Persist a pinned and hashed generation, one at a time; return its path. Raises DroppedSave, StorageFailed and
        BadCheckpoint.
        """
        assert self.arena is not None
        self._queue.join(record.epoch)
        try:
            await self._queue.wait_turn(record.epoch)
            try:
                if record.epoch in self._persisted:  # the agent asked for it before the Save message was read
                    return self._persisted[record.epoch]
                where = await asyncio.to_thread(self._persist, self.arena, generation, record, target)
            finally:
                self._queue.done()
        finally:
            self._queue.leave(record.epoch)
        epochs = {slot.epoch for slot in self.arena.slots()}
        self._persisted = {epoch: path for epoch, path in self._persisted.items() if epoch in epochs}
        self._persisted[record.epoch] = where
        return where

    def drop_oldest(self) -> int:
        """Drop the oldest save that waits to be persisted, to free memory. Return its step, or -1 if none can be
        dropped.
        """
        slots = self.arena.slots() if self.arena is not None else ()
        at = newest(slots)
        epoch = self._queue.drop_oldest(slots[at].epoch if at is not None else -1)
        return next((slot.record.step for slot in slots if slot.record and slot.epoch == epoch), -1)

    async def hashed_saves(self) -> list[tuple[ShardRecord, bool]]:
        """List all hashed saves, newest first, each with True if it can be read in parts.

        The newest is hashed again now, and saves not yet hashed are hashed. Older ones are verified when they are
        loaded.
        """
        found: list[tuple[ShardRecord, bool]] = []
        if self.arena is None:
            return found
        slots = self.arena.slots()
        for generation in sorted(range(len(slots)), key=lambda at: -slots[at].epoch):
            if (record := self.arena.pin(generation)) is None:
                continue
            try:
                if (found and slots[generation].state is SlotState.HASHED) or await self.hash(generation):
                    head = self.arena.map(generation, record.head_bytes)
                    found.append((record, await asyncio.to_thread(is_reshardable, head)))
            finally:
                self.arena.unpin(generation)
        return sorted(found, key=lambda each: -each[0].epoch)

    def unpin(self, generation: int) -> None:
        """Remove one pin, so that the generation may be overwritten."""
        if self.arena is not None:
            self.arena.unpin(generation)

    def pin_unwritten(self, step: int) -> tuple[int, ShardRecord, Save] | None:
        """Pin the newest generation of this step; return it, its record and where it goes.

        None, and nothing is pinned, if it is in storage already, or if nobody said where it goes.
        """
        if self.arena is None or (found := self.arena.pin_newest(lambda record: record.step == step)) is None:
            return None
        generation, record = found
        target = self.saved_target(generation, record.epoch) or self._default_target
        if target is None or record.epoch in self._persisted:
            self.arena.unpin(generation)
            return None
        return generation, record, target

    def is_hashed(self, generation: int) -> bool:
        """Return True if the checksums of this generation are known."""
        return self.arena is not None and self.arena.slots()[generation].state is not SlotState.SEALED

    async def verify(self, step: int) -> None:
        """Hash this step again. A broken generation is discarded and reported."""
        if self.arena is None or (found := self.arena.pin_newest(lambda record: record.step == step)) is None:
            return
        try:
            await self.hash(found[0])
        finally:
            self.arena.unpin(found[0])

    def newest_round(self) -> int:
        """Return the newest round of all saves held, or -1 for none."""
        slots = self.arena.slots() if self.arena is not None else ()
        return max((slot.record.round for slot in slots if slot.record), default=-1)

    async def forget_after(self, step: int) -> None:
        """Discard all saves newer than this step, since the world continues from it."""
        if self.arena is None:
            return
        async with self._hashing:
            for generation, slot in enumerate(self.arena.slots()):
                if slot.record is not None and slot.record.step > step:
                    self.arena.discard(generation)

    def newest(self) -> int:
        """Return the newest sealed step, or -1 for none."""
        slots = self.arena.slots() if self.arena is not None else ()
        at = newest(slots)
        record = slots[at].record if at is not None else None
        return record.step if record is not None else -1

    def close(self, *, remove: bool) -> None:
        """Close the arena. remove: also free its memory."""
        if self.arena is not None:
            if remove:
                self.arena.remove()
            self.arena.close()
            self.arena = None


def _shard_target(target: str) -> Save | None:
    return Save(0, 0, 0, target) if target else None
