"""One rank's arena in the care of its keeper: made ahead, hashed as soon as it is sealed, persisted, given back.

What blocks runs in threads. A generation is pinned from the moment its Sealed was heard until it is hashed and, where
it was to be persisted, is in storage, or newer saves have overtaken it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from turnout.launcher.checkpoint.generations import MOST_GENERATIONS, Identity, Record, State, newest
from turnout.launcher.checkpoint.need import need_bytes, refusal
from turnout.launcher.checkpoint.parts import in_parts
from turnout.launcher.checkpoint.sums import sums_of
from turnout.launcher.checkpoint.wire import Sealed
from turnout.launcher.errors import BadCheckpoint, LauncherError, NoMemory
from turnout.launcher.shell.memory.arena import Arena
from turnout.launcher.shell.memory.files import note_target, target_of
from turnout.launcher.shell.memory.keeper.adopting import is_ours_alone
from turnout.launcher.shell.memory.keeper.line import Line, Overtaken
from turnout.launcher.shell.memory.keeper.making import Making
from turnout.launcher.shell.memory.limits import limits
from turnout.launcher.shell.say import Say

Persist = Callable[[Arena, int, Record, Sealed], str]  # blocks; gives where it is; raises as storage does


class Ward:
    """Of one local rank. persist: writes one generation to storage. making: of its keeper."""

    def __init__(
        self, folder: Path, identity: Identity, persist: Persist, say: Say, making: Making | None = None
    ) -> None:
        self._making = making or Making()
        self._folder, self._identity, self._persist, self._say = folder, identity, persist, say
        self.arena: Arena | None = None
        self._told: dict[int, Sealed] = {}  # by generation: where it was told to go
        self._folder_told: Sealed | None = None  # the last folder of shards: for what was told nothing
        self.reads = ""  # the folder of its checkpoints, whoever writes there; "" where it is not known
        self._persisted: dict[int, str] = {}  # where, by epoch, of saves that the arena still holds
        self._hashing = asyncio.Lock()
        self._line = Line()
        self._replicas = 0
        self._kept_bytes: Callable[[int], int] = lambda local_rank: 0
        self._give_back: Callable[[], bool] = lambda: False

    @property
    def local_rank(self) -> int:
        """Whose it is."""
        return self._identity.local_rank

    def adopt(self, arena: Arena) -> None:
        """An arena that an earlier life of this worker has left. What its keeper had pinned is free."""
        arena.unpin_all()
        self.arena = arena
        self.reads = target_of(arena.file)

    def met(self, target: str, reads: str = "") -> bool:
        """Its process has come, and writes to this folder, "" for none. True where it was not known.

        reads: the folder of its checkpoints, also where others write them.
        """
        self._note(reads or target)
        known = self._folder_told.target if self._folder_told is not None else ""
        if known != target:
            self._folder_told = _shards_in(target)
        return bool(target) and not known

    def _note(self, folder: str) -> None:
        """The keeper after us is to know it before its process has come."""
        if folder != self.reads and self.arena is not None:
            note_target(self.arena.file, folder)
        self.reads = folder

    def copies(self, replicas: int, kept_bytes: Callable[[int], int], give_back: Callable[[], bool]) -> None:
        """So many other workers keep copies of it, and it as many of theirs. kept_bytes: taken for these already.

        give_back: gives back what is kept of earlier rounds, False where there is nothing.
        """
        self._replicas, self._kept_bytes, self._give_back = replicas, kept_bytes, give_back

    @property
    def usual(self) -> Sealed | None:
        """Where a save of somebody else goes of which nobody has told where."""
        return self._folder_told or _shards_in(self.reads)

    async def need(self, size: int, generations: int) -> Arena:
        """The arena, with memory for a save, and soon for all. Raises NoMemory, before any is taken, for too little."""
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
        """Tell what is missing, and what to add. What the arena has already is not asked for again."""
        slots = self.arena.slots()[:generations] if self.arena is not None else ()
        need = need_bytes(size, generations, 1, self._replicas)
        need -= sum(min(slot.reserved_bytes, size) for slot in slots)
        need -= min(self._kept_bytes(self._identity.local_rank), need_bytes(size, 0, 1, self._replicas))
        refused = refusal(need, self._making.left(limits(self._folder)), folder=str(self._folder))
        if refused is not None:
            raise refused

    async def seal(self, told: Sealed) -> tuple[int, Record] | None:
        """Keep this generation from now on. None where it is overwritten already, or was never there."""
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

    def goes(self, generation: int, epoch: int) -> Sealed | None:
        """Where in storage this save was to go; None where nowhere, or nobody has told."""
        told = self._told.get(generation)
        return told if told is not None and told.epoch == epoch else None

    def tell(self, told: Sealed) -> None:
        """The same, of one that has come from another's memory."""
        self._told[told.generation] = told

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
        """Persist a pinned and hashed generation; one at a time. Raises Overtaken, StorageFailed and BadCheckpoint."""
        assert self.arena is not None
        self._line.join(record.epoch)
        try:
            await self._line.turn(record.epoch)
            try:
                if record.epoch in self._persisted:  # on behalf of the agent, before its Sealed was heard
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
        """A save finds no room: let go of the oldest that waits to be persisted. Its step, -1 where none can go."""
        slots = self.arena.slots() if self.arena is not None else ()
        at = newest(slots)
        epoch = self._line.overtake(slots[at].epoch if at is not None else -1)
        return next((slot.record.step for slot in slots if slot.record and slot.epoch == epoch), -1)

    async def settled(self) -> list[tuple[Record, bool]]:
        """All that is held and hashed, newest first. The newest is looked at byte by byte now, others when loaded.

        With each whether it can be read in parts.
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
        """It may be overwritten again."""
        if self.arena is not None:
            self.arena.unpin(generation)

    async def persist(self, step: int) -> tuple[Record, Sealed] | None:
        """Write the newest generation of this step to its target, else to the last folder.

        Not where it is there already. Gives what is to be committed now, by rank 0.
        """
        if self.arena is None or (found := self._pinned(step)) is None:
            return None
        generation, record = found
        target = self.goes(generation, record.epoch) or self._folder_told
        try:
            if target is None or record.epoch in self._persisted:
                return None
            if self.arena.slots()[generation].state is State.SEALED and not await self.hash(generation):
                return None
            where = await self.write(generation, record, target)
        except Overtaken:
            self._say("save_overtaken", {"step": step, "rank": record.rank})
            return None
        except LauncherError as error:
            self._say("persist_failed", {"step": step, "rank": record.rank, "detail": str(error)})
            return None
        finally:
            self.arena.unpin(generation)
        self._say("persisted", {"step": step, "rank": record.rank, "path": where})
        return (record, target) if target.kind == "shards" and record.rank == 0 else None

    async def verify(self, step: int) -> None:
        """Look at every byte of this step once more. What is broken is thrown away, and told."""
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
        """Of all that is held, -1 for nothing."""
        slots = self.arena.slots() if self.arena is not None else ()
        return max((slot.record.round for slot in slots if slot.record), default=-1)

    async def forget_after(self, step: int) -> None:
        """Throw away what is newer: the world goes on from this step, and will come to those that follow it anew."""
        if self.arena is None:
            return
        async with self._hashing:
            for generation, slot in enumerate(self.arena.slots()):
                if slot.record is not None and slot.record.step > step:
                    self.arena.discard(generation)

    def newest(self) -> int:
        """The newest step that is sealed, -1 for none."""
        slots = self.arena.slots() if self.arena is not None else ()
        at = newest(slots)
        record = slots[at].record if at is not None else None
        return record.step if record is not None else -1

    def close(self, *, remove: bool) -> None:
        """Let go of the arena. remove: its memory is given back."""
        if self.arena is not None:
            if remove:
                self.arena.remove()
            self.arena.close()
            self.arena = None


def _shards_in(target: str) -> Sealed | None:
    return Sealed(0, 0, 0, target) if target else None
