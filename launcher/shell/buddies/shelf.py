"""What a keeper keeps for other workers: an arena for each of their local ranks, with two generations.

A copy that comes overwrites the older one, and never the step that is to be kept: so one whole copy is always there.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from turnout.launcher.checkpoint.generations import Identity, Record, State
from turnout.launcher.checkpoint.need import REPLICA_GENERATIONS, need_bytes, refusal
from turnout.launcher.checkpoint.parts import in_parts
from turnout.launcher.checkpoint.peers import Given, Offer
from turnout.launcher.checkpoint.sums import sums_of
from turnout.launcher.checkpoint.wire import Sealed
from turnout.launcher.errors import BadCheckpoint, NoMemory
from turnout.launcher.keeping import Held
from turnout.launcher.shell.buddies import bulk
from turnout.launcher.shell.buddies.talk import Talk
from turnout.launcher.shell.memory.arena import Arena, boot_id, find
from turnout.launcher.shell.memory.limits import limits
from turnout.launcher.shell.say import Say

Place = tuple[str, int]  # the owner, and its local rank
_T = TypeVar("_T")


class Shelf:
    """Of one keeper. threads: where bytes are received. found: again, after an earlier life of this worker."""

    def __init__(self, folder: Path, run: str, worker: str, say: Say, threads: Executor) -> None:
        self._folder, self._run, self._worker, self._say, self._threads = folder, run, worker, say, threads
        self._arenas: dict[Place, Arena] = {}
        self._busy: dict[Place, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._makes = asyncio.Lock()  # what is looked at for one is not given to another
        self._kept: dict[Path, int] = {}  # the generation that holds what is to be kept
        self._goes: dict[tuple[Path, int], Sealed] = {}  # where it was to go, by arena and epoch
        for found in find(folder, run, worker, kept=True):
            with suppress(BadCheckpoint):
                arena = Arena.open(found.path)
                if (place := (arena.identity.owner, arena.identity.local_rank)) in self._arenas:
                    arena.remove()
                    arena.close()
                    continue
                arena.unpin_all()
                self._arenas[place] = arena

    def reserved_bytes(self, local_rank: int) -> int:
        """Of what is kept for others of that local rank."""
        kept = [arena for (_, rank), arena in self._arenas.items() if rank == local_rank]
        return sum(slot.reserved_bytes for arena in kept for slot in arena.slots())

    async def room(self, place: Place, record: Record, owner_count: int, times: int = REPLICA_GENERATIONS) -> Arena:
        """An arena with the memory for such a shard, so many times. Raises NoMemory, with what is to be added."""
        async with self._makes:
            return await self._room(place, record, owner_count, times)

    async def _room(self, place: Place, record: Record, owner_count: int, times: int) -> Arena:
        arena = self._arenas.get(place)
        have = sum(min(slot.reserved_bytes, record.region_bytes) for slot in arena.slots()) if arena else 0
        need = need_bytes(record.region_bytes, times, 1) - have
        if (refused := refusal(need, limits(self._folder), folder=str(self._folder))) is not None:
            raise refused
        if arena is None:
            owner, local_rank = place
            identity = Identity(
                self._run, self._worker, local_rank, boot_id(), REPLICA_GENERATIONS, owner, owner_count
            )  # fmt: skip
            arena = self._arenas[place] = await asyncio.to_thread(Arena.make, self._folder, identity)
        for generation in range(times):
            await asyncio.to_thread(arena.reserve, generation, record.region_bytes)
        return arena

    async def take(self, talk: Talk, place: Place, record: Record, offer: Offer, arena: Arena) -> None:
        """Receive this shard. Raises BadCheckpoint where it is not what was sent, OSError, and NoMemory."""
        sums_sum = int.from_bytes(offer.sums_sum, "little")
        async with self._busy[place]:
            self._keep(arena, offer.whole)
            if (kept := self._kept.get(arena.path)) is not None:  # what is newer has no place in a step that is whole
                for other in range(arena.identity.count):
                    if other != kept:
                        arena.discard(other)
            await self._receive(talk, record, sums_sum, arena, offer.goes)

    async def fetch(self, talk: Talk, place: Place, record: Record, given: Given) -> None:
        """The same, of one that was asked for. Room for it is looked at first."""
        async with self._busy[place]:
            arena = await self.room(place, record, given.generations, 1)
            await self._receive(talk, record, int.from_bytes(given.sums_sum, "little"), arena, given.goes)

    async def _receive(self, talk: Talk, record: Record, sums_sum: int, arena: Arena, goes: Sealed | None) -> None:
        generation = arena.begin(record)
        if generation is None:
            raise NoMemory("no generation of its arena is free")
        region = arena.map(generation, record.region_bytes)
        work = asyncio.ensure_future(self._blocking(lambda: bulk.receive(talk.sock, record, sums_sum, region)))
        try:
            await asyncio.wait([work])
            sums = work.result()
        except BaseException:
            if not work.done():  # nobody waits for it any more: it must write no byte into what others get
                talk.close()
                await asyncio.wait([work])
            arena.discard(generation)
            raise
        finally:
            with suppress(OSError):
                talk.sock.setblocking(False)
        sealed = arena.seal(generation, record)
        arena.hashed(generation, sums)
        there = {slot.epoch for slot in arena.slots()}
        for known in [known for known in self._goes if known[0] == arena.path and known[1] not in there]:
            del self._goes[known]
        if goes is not None:
            self._goes[arena.path, sealed.epoch] = goes

    def _keep(self, arena: Arena, whole: int) -> None:
        """No copy that comes overwrites this step. -1: whichever is older."""
        if (before := self._kept.pop(arena.path, None)) is not None:
            arena.unpin(before)
        for generation, slot in enumerate(arena.slots()):
            if slot.record is not None and slot.record.step == whole and arena.pin(generation, slot.epoch) is not None:
                self._kept[arena.path] = generation
                return

    def retire(self, whole: int, round_: int) -> None:
        """All copies of this step of this round are where they belong: an arena without it keeps what nobody needs."""
        for place, arena in list(self._arenas.items()):
            kept = {(slot.record.step, slot.record.round) for slot in arena.slots() if slot.record is not None}
            if (whole, round_) not in kept and not self._busy[place].locked():
                self._say("replica_removed", {"owner": place[0], "local_rank": place[1]})
                self._drop(place)

    def give_back(self, round_: int) -> bool:
        """What was kept of rounds before this one is of no use any more. False where there is nothing of it."""
        given = False
        for place, arena in list(self._arenas.items()):
            rounds = [slot.record.round for slot in arena.slots() if slot.record is not None]
            if max(rounds, default=-1) < round_ and not self._busy[place].locked():
                self._say("replica_removed", {"owner": place[0], "local_rank": place[1]})
                self._drop(place)
                given = True
        return given

    async def held(self) -> tuple[Held, ...]:
        """What others may fetch here: all local ranks of an owner or none. The newest is looked at byte by byte."""
        found: dict[tuple[str, int, int, int, bool], list[int]] = defaultdict(list)
        for (owner, _), arena in list(self._arenas.items()):
            for record, parts in await asyncio.to_thread(self._whole, arena):
                found[owner, record.step, record.round, record.world, parts].append(record.rank)
        runs = set[Held]()
        for (owner, step, round_, world, parts), ranks in found.items():
            there, wanted = sorted(ranks), sum(place[0] == owner for place in self._arenas)
            if len(there) == wanted and there == list(range(there[0], there[0] + wanted)):
                runs.add(Held(step, there[0], world, round_, wanted, parts))
        return tuple(sorted(runs, key=lambda each: (-each.step, each.first_rank)))

    def _whole(self, arena: Arena) -> list[tuple[Record, bool]]:
        """What it holds, and whether that can be read in parts."""
        slots, whole = arena.slots(), list[tuple[Record, bool]]()
        newest = max((slot.epoch for slot in slots if slot.record is not None), default=0)
        for generation, slot in enumerate(slots):
            if slot.record is None:
                continue
            if slot.epoch == newest and not self._is_whole(arena, generation, slot.record):
                self._say("memory_corrupt", {"step": slot.record.step, "owner": arena.identity.owner})
                arena.discard(generation)
            elif slot.state is State.HASHED or slot.epoch == newest:
                whole.append((slot.record, in_parts(arena.map(generation, slot.record.head_bytes))))
        return whole

    def _is_whole(self, arena: Arena, generation: int, record: Record) -> bool:
        sums = sums_of(arena.map(generation, record.region_bytes)[: record.shard_bytes])
        with suppress(BadCheckpoint):
            if arena.slots()[generation].state is not State.HASHED:  # killed between both: its chunks had their sums
                arena.hashed(generation, sums)
            return arena.sums(generation) == tuple(sums)
        return False

    def of(self, step: int, round_: int, ranks: int) -> list[tuple[Arena, int, Record]]:
        """What is kept of this step that so many ranks have saved in that round: arena, generation and record."""
        return [
            (arena, generation, slot.record)
            for arena in self._arenas.values()
            for generation, slot in enumerate(arena.slots())
            if slot.state is State.HASHED and slot.record is not None
            if (slot.record.step, slot.record.round, slot.record.world) == (step, round_, ranks)
        ]

    def goes(self, arena: Arena, epoch: int) -> Sealed | None:
        """Where in storage this copy's owner would have written it."""
        return self._goes.get((arena.path, epoch))

    def arenas(self) -> tuple[Arena, ...]:
        """All of them."""
        return tuple(self._arenas.values())

    async def forget_after(self, step: int) -> None:
        """Throw away what is newer: of a past that was given up."""
        for arena in self._arenas.values():
            self._keep(arena, step)
            for generation, slot in enumerate(arena.slots()):
                if slot.record is not None and slot.record.step > step:
                    arena.discard(generation)

    def _drop(self, place: Place) -> None:
        arena = self._arenas.pop(place)
        self._kept.pop(arena.path, None)
        arena.remove()
        arena.close()

    def close(self, *, remove: bool) -> None:
        """Let go. remove: the job is done, and the memory is given back."""
        for place, arena in list(self._arenas.items()):
            if remove:
                self._drop(place)
            else:
                arena.unpin_all()
                arena.close()
        self._arenas.clear()

    async def _blocking(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
