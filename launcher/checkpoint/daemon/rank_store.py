"""Keeps one rank's arena: allocated ahead, hashed when sealed, persisted, freed.

Blocking work runs in threads. A generation is pinned when its Save message arrives. The pin ends when it is hashed and,
if meant for storage, stored or superseded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.files import note_target, target_of
from turnout.launcher.checkpoint.arena.memory_limits import limits
from turnout.launcher.checkpoint.arena.recovery import is_ours_alone
from turnout.launcher.checkpoint.daemon.persist_queue import PersistQueue
from turnout.launcher.checkpoint.daemon.preallocate import Preallocator
from turnout.launcher.checkpoint.format.arena_layout import MOST_GENERATIONS, Identity, Record, State, newest
from turnout.launcher.checkpoint.format.checksums import sums_of
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.memory_budget import need_bytes, refusal
from turnout.launcher.checkpoint.format.reshardable import in_parts
from turnout.launcher.errors import BadCheckpoint, NoMemory
from turnout.launcher.event_log import EventLog

Persist = Callable[[Arena, int, Record, Save], str]  # blocks; returns the path; raises StorageFailed


class RankStore:
    """Keeps the saves of one local rank. persist: writes a generation to storage. making: the daemon's preallocator."""

    def __init__(
        self, folder: Path, identity: Identity, persist: Persist, say: EventLog, making: Preallocator | None = None
    ) -> None:
        self._making = making or Preallocator()
        self._folder, self._identity, self._persist, self._say = folder, identity, persist, say
        self.arena: Arena | None = None
        self._told: dict[int, Save] = {}  # the requested target, by generation
        self._folder_told: Save | None = None  # the last folder of shards, for generations without a target
        self.reads = ""  # the folder of its checkpoints; "" if unknown
        self._persisted: dict[int, str] = {}  # paths by epoch, of saves that the arena still holds
        self._hashing = asyncio.Lock()
        self._line = PersistQueue()
        self._replicas = 0
        self._kept_bytes: Callable[[int], int] = lambda local_rank: 0
        self._give_back: Callable[[], bool] = lambda: False

    @property
    def local_rank(self) -> int:
        """Return the local rank whose saves are kept here."""
        return self._identity.local_rank

    def adopt(self, arena: Arena) -> None:
        """Take over an arena left by an earlier daemon of this worker. Its old pins are removed."""
        arena.unpin_all()
        self.arena = arena
        self.reads = target_of(arena.file)

    def met(self, target: str, reads: str = "") -> bool:
        """Record the target folder of a process that connected, "" for none. True if no target was known before.

        reads: the folder its checkpoints are read from, even if another process writes there.
        """
        self._note(reads or target)
        known = self._folder_told.target if self._folder_told is not None else ""
        if known != target:
            self._folder_told = _shards_in(target)
        return bool(target) and not known

    def _note(self, folder: str) -> None:
        """Write the folder into the arena's file, so that a restarted daemon knows it before the process connects."""
        if folder != self.reads and self.arena is not None:
            note_target(self.arena.file, folder)
        self.reads = folder

    def copies(self, replicas: int, kept_bytes: Callable[[int], int], give_back: Callable[[], bool]) -> None:
        """Set how many replicas are kept in other workers, and in exchange here for them.

        kept_bytes: returns the bytes already taken for those. give_back: frees replicas of earlier rounds, False if
        none.
        """
        self._replicas, self._kept_bytes, self._give_back = replicas, kept_bytes, give_back

    @property
    def usual(self) -> Save | None:
        """Return the default target for a save or replica that came without one."""
        return self._folder_told or _shards_in(self.reads)

    async def need(self, size: int, generations: int) -> Arena:
        """Return the arena with memory for one save of `size` bytes, and soon for all generations. Raises NoMemory
        before it takes any.
        """
        count = min(max(generations, 2), MOST_GENERATIONS)
        try:
            await asyncio.to_thread(self._refuse, size, min(generations, count))
        except NoMemory:
            if not self._give_back():
                raise
            await asyncio.to_thread(self._refuse, size, min(generations, count))
        if self.arena is None:
            self.arena = await asyncio.to_thread(Arena.make, self._folder, replace(self._identity, count=count))
            is_ours_alone(self.arena)
            note_target(self.arena.file, self.reads)
        await self._making.make(self.arena, min(generations, self.arena.identity.count), size)
        return self.arena

    def _refuse(self, size: int, generations: int) -> None:
        """Raise NoMemory, naming what to add, if the generations do not fit. Memory that the arena has already is not
        counted twice.
        """
        slots = self.arena.slots()[:generations] if self.arena is not None else ()
        need = need_bytes(size, generations, 1, self._replicas)
        need -= sum(min(slot.reserved_bytes, size) for slot in slots)
        need -= min(self._kept_bytes(self._identity.local_rank), need_bytes(size, 0, 1, self._replicas))
        refused = refusal(need, self._making.left(limits(self._folder)), folder=str(self._folder))
        if refused is not None:
            raise refused

    async def seal(self, told: Save) -> tuple[int, Record] | None:
        """Pin the generation that a Save message names; return it with its record. None if it was overwritten or never
        existed.
        """
        if self.arena is None:
            return None
        record = self.arena.pin(told.generation, told.epoch) if told.generation < self.arena.identity.count else None
        if record is None:
            return None
        if told.target:
            self._told[told.generation] = told
            if told.kind == "shards":
                self._folder_told = told
                self._note(told.target)
        return told.generation, record

    def goes(self, generation: int, epoch: int) -> Save | None:
        """Return the target in storage of this save, or None if it stays in memory or none was told."""
        told = self._told.get(generation)
        return told if told is not None and told.epoch == epoch else None

    def tell(self, told: Save) -> None:
        """Record the target of a save that was fetched from another worker."""
        self._told[told.generation] = told

    async def hash(self, generation: int) -> bool:
        """Hash a pinned generation.

        False if the bytes differ from earlier checksums: the generation is then discarded.
        """
        assert self.arena is not None
        async with self._hashing:
            return await asyncio.to_thread(self._hash, self.arena, generation)

    def _hash(self, arena: Arena, generation: int) -> bool:
        slot = arena.slots()[generation]
        if slot.record is None:
            return False
        shard_bytes = slot.record.shard_bytes
        sums = sums_of(arena.map(generation, slot.record.region_bytes)[:shard_bytes])
        if slot.state is State.SEALED:
            arena.hashed(generation, sums)
            return True
        with suppress(BadCheckpoint):
            if tuple(sums) == arena.sums(generation):
                return True
        arena.discard(generation)
        self._say("memory_corrupt", {"step": slot.record.step, "local_rank": self._identity.local_rank})
        return False

    async def write(self, generation: int, record: Record, to: Save) -> str:
        """Persist a pinned and hashed generation, one at a time; return its path. Raises Superseded, StorageFailed and
        BadCheckpoint.
        """
        assert self.arena is not None
        self._line.join(record.epoch)
        try:
            await self._line.turn(record.epoch)
            try:
                if record.epoch in self._persisted:  # the agent asked for it before the Sealed message was read
                    return self._persisted[record.epoch]
                where = await asyncio.to_thread(self._persist, self.arena, generation, record, to)
            finally:
                self._line.done()
        finally:
            self._line.leave(record.epoch)
        held = {slot.epoch for slot in self.arena.slots()}
        self._persisted = {epoch: path for epoch, path in self._persisted.items() if epoch in held}
        self._persisted[record.epoch] = where
        return where

    def overtake(self) -> int:
        """Drop the oldest save that waits to be persisted, to free memory. Return its step, or -1 if none can be
        dropped.
        """
        slots = self.arena.slots() if self.arena is not None else ()
        at = newest(slots)
        epoch = self._line.overtake(slots[at].epoch if at is not None else -1)
        return next((slot.record.step for slot in slots if slot.record and slot.epoch == epoch), -1)

    async def settled(self) -> list[tuple[Record, bool]]:
        """List all hashed saves, newest first, each with True if it can be read in parts.

        The newest is hashed again now, and saves not yet hashed are hashed. Older ones are verified when they are
        loaded.
        """
        found: list[tuple[Record, bool]] = []
        if self.arena is None:
            return found
        slots = self.arena.slots()
        for generation in sorted(range(len(slots)), key=lambda at: -slots[at].epoch):
            if (record := self.arena.pin(generation)) is None:
                continue
            try:
                if (found and slots[generation].state is State.HASHED) or await self.hash(generation):
                    head = self.arena.map(generation, record.head_bytes)
                    found.append((record, await asyncio.to_thread(in_parts, head)))
            finally:
                self.arena.unpin(generation)
        return sorted(found, key=lambda each: -each[0].epoch)

    def unpin(self, generation: int) -> None:
        """Remove one pin, so that the generation may be overwritten."""
        if self.arena is not None:
            self.arena.unpin(generation)

    def unwritten(self, step: int) -> tuple[int, Record, Save] | None:
        """Pin the newest generation of this step; return it, its record and where it goes.

        None, and nothing is pinned, if it is in storage already, or if nobody said where it goes.
        """
        if self.arena is None or (found := self._pinned(step)) is None:
            return None
        generation, record = found
        target = self.goes(generation, record.epoch) or self._folder_told
        if target is None or record.epoch in self._persisted:
            self.arena.unpin(generation)
            return None
        return generation, record, target

    def is_hashed(self, generation: int) -> bool:
        """True if the checksums of this generation are known."""
        return self.arena is not None and self.arena.slots()[generation].state is not State.SEALED

    async def verify(self, step: int) -> None:
        """Hash this step again. A broken generation is discarded and reported."""
        if self.arena is None or (found := self._pinned(step)) is None:
            return
        try:
            await self.hash(found[0])
        finally:
            self.arena.unpin(found[0])

    def _pinned(self, step: int) -> tuple[int, Record] | None:
        assert self.arena is not None
        slots = self.arena.slots()
        held = [(slot.epoch, at) for at, slot in enumerate(slots) if slot.record and slot.record.step == step]
        if not held or (record := self.arena.pin(max(held)[1])) is None:
            return None
        return max(held)[1], record

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


def _shards_in(target: str) -> Save | None:
    return Save(0, 0, 0, target) if target else None
