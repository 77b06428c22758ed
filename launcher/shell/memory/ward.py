"""One rank's arena in the care of its keeper: made ahead, hashed as soon as it is sealed, persisted, given back.

What blocks runs in threads. A generation is pinned from the moment its Sealed was heard until it is hashed and, where
it was to be persisted, is in storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher.checkpoint.generations import MOST_GENERATIONS, Identity, Record, State, newest
from launcher.checkpoint.sums import sums_of
from launcher.checkpoint.wire import Sealed
from launcher.errors import BadCheckpoint, LauncherError
from launcher.shell.memory.arena import Arena
from launcher.shell.say import Say

Commit = Callable[[Record, Sealed, Callable[[float], bool]], bool]  # blocks, as persisting.py has it
Persist = Callable[[Arena, int, Record, Sealed], str]  # blocks; gives where it is; raises as storage does


class Ward:
    """Of one local rank. persist: writes one generation to storage."""

    def __init__(self, folder: Path, identity: Identity, persist: Persist, say: Say) -> None:
        self._folder, self._identity, self._persist, self._say = folder, identity, persist, say
        self.arena: Arena | None = None
        self._told: dict[int, Sealed] = {}  # by generation: where it was told to go
        self._folder_told: Sealed | None = None  # the last folder of shards: for what was told nothing
        self.persisted = -1
        self._hashing = asyncio.Lock()
        self._writing = asyncio.Lock()

    def adopt(self, arena: Arena) -> None:
        """An arena that an earlier life of this worker has left. What its keeper had pinned is free."""
        arena.unpin_all()
        self.arena = arena

    async def need(self, size: int, generations: int) -> Arena:
        """The arena, its pages made in the background. Raises NoMemory, at once, where they will not be there."""
        if self.arena is None:
            count = min(max(generations, 2), MOST_GENERATIONS)
            self.arena = await asyncio.to_thread(Arena.make, self._folder, replace(self._identity, count=count))
        arena = self.arena
        for generation in range(min(generations, arena.identity.count)):
            await asyncio.to_thread(arena.reserve, generation, size)
        return arena

    async def seal(self, told: Sealed) -> tuple[int, Record] | None:
        """Keep this generation from now on. None where it is overwritten already, or was never there."""
        if self.arena is None:
            return None
        record = self.arena.pin(told.generation, told.epoch) if told.generation < self.arena.identity.count else None
        if record is None:
            return None
        if told.target:
            self._told[told.generation] = told
            self._folder_told = told if told.kind == "shards" else self._folder_told
        return told.generation, record

    async def hash(self, generation: int) -> bool:
        """Have the sums of a pinned generation. False where they are not what they were: it is thrown away."""
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

    async def write(self, generation: int, record: Record, to: Sealed) -> str:
        """Persist a pinned and hashed generation; one at a time. Raises StorageFailed and BadCheckpoint."""
        assert self.arena is not None
        async with self._writing:
            where = await asyncio.to_thread(self._persist, self.arena, generation, record, to)
        self.persisted = max(self.persisted, record.step)
        return where

    async def settled(self) -> list[Record]:
        """All that is held and hashed, newest first. Of the newest every byte is looked at now, of others at their load."""
        found: list[Record] = []
        if self.arena is None:
            return found
        slots = self.arena.slots()
        for generation in sorted(range(len(slots)), key=lambda at: -slots[at].epoch):
            if (record := self.arena.pin(generation)) is None:
                continue
            try:
                if (found and slots[generation].state is State.HASHED) or await self.hash(generation):
                    found.append(record)
            finally:
                self.arena.unpin(generation)
        return sorted(found, key=lambda record: -record.epoch)

    def unpin(self, generation: int) -> None:
        """It may be overwritten again."""
        if self.arena is not None:
            self.arena.unpin(generation)

    async def persist(self, step: int, commit: Commit, stop: Callable[[float], bool]) -> None:
        """Write the newest generation of this step to its target, else to the last folder, if it is not there yet."""
        if self.arena is None or step <= self.persisted:
            return
        slots = self.arena.slots()
        held = [(slot.epoch, at) for at, slot in enumerate(slots) if slot.record and slot.record.step == step]
        generation = max(held)[1] if held else 0
        if not held or (record := self.arena.pin(generation)) is None:
            return
        told = self._told.get(generation)
        target = told if told is not None and told.epoch == record.epoch else self._folder_told
        try:
            if target is not None and await self.hash(generation):
                where = await self.write(generation, record, target)
                self._say("persisted", {"step": step, "rank": record.rank, "path": where})
                if target.kind == "shards" and record.rank == 0:
                    await asyncio.to_thread(commit, record, target, stop)
        except LauncherError as error:
            self._say("persist_failed", {"step": step, "rank": record.rank, "detail": str(error)})
        finally:
            self.arena.unpin(generation)

    def newest(self) -> int:
        """The newest step that is sealed, -1 for none."""
        slots = self.arena.slots() if self.arena is not None else ()
        at = newest(slots)
        record = slots[at].record if at is not None else None
        return record.step if record is not None else -1

    def close(self, *, remove: bool) -> None:
        """Let go of the arena. remove: its memory is given back."""
        if self.arena is not None:
            self.arena.unpin_all()
            if remove:
                self.arena.remove()
            self.arena.close()
            self.arena = None
