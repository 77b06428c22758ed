"""Stores replicas for other workers: an arena of two generations for each of their local ranks.

A new replica overwrites the older one, but never the pinned step, which is complete in all memories. So one complete
replica always exists.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import boot_id, find, limits
from turnout.launcher.checkpoint.format.arena_layout import Identity, ShardRecord, SlotState
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.memory_budget import REPLICA_GENERATIONS, need_bytes, refusal
from turnout.launcher.checkpoint.format.shard_file import is_reshardable, sums_of
from turnout.launcher.checkpoint.replication import peer_connection
from turnout.launcher.checkpoint.replication.peer_connection import Offer, PeerConnection, ShardGiven
from turnout.launcher.coordinator_messages import HeldStep
from turnout.launcher.errors import BadCheckpoint, NoMemory
from turnout.launcher.event_log import EventLog

Place = tuple[str, int]  # name of the owning worker, and its local rank


class ReplicaArenas:
    """The arenas with replicas, one for each place. At most one generation of each is pinned.

    folder: of the arenas. run, worker: this daemon's. Those of an earlier daemon of this worker are adopted.
    """

    def __init__(self, folder: Path, run: str, worker: str, log_event: EventLog) -> None:
        self._folder, self._run, self._worker, self._log_event = folder, run, worker, log_event
        self._arenas: dict[Place, Arena] = {}
        self._busy: dict[Place, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._memory_check = asyncio.Lock()  # one check of the memory limits at a time
        self._pinned_generations: dict[Path, int] = {}  # the generation to keep, by arena
        for arena_file in find(folder, run, worker, replicas=True):
            with suppress(BadCheckpoint):
                arena = Arena.open(arena_file.path)
                if (place := (arena.identity.owner, arena.identity.local_rank)) in self._arenas:
                    arena.remove()
                    arena.close()
                    continue
                arena.unpin_all()
                self._arenas[place] = arena

    def all(self) -> tuple[Arena, ...]:
        """Return all arenas."""
        return tuple(self._arenas.values())

    def count_of(self, owner: str) -> int:
        """Return the number of arenas with replicas of this worker."""
        return sum(place[0] == owner for place in self._arenas)

    def lock_of(self, place: Place) -> asyncio.Lock:
        """Return the lock that is held while a replica of this place is received. Its arena is not removed then."""
        return self._busy[place]

    def reserved_bytes(self, local_rank: int) -> int:
        """Return the bytes reserved for replicas of that local rank, of all owners. Safe in any thread."""
        reserved = 0
        for (_, rank), arena in tuple(self._arenas.items()):  # the loop makes more of them, and closes some
            if rank == local_rank:
                with suppress(ValueError):  # it was closed
                    reserved += sum(slot.reserved_bytes for slot in arena.slots())
        return reserved

    async def reserve(
        self, place: Place, record: ShardRecord, owner_count: int, times: int = REPLICA_GENERATIONS
    ) -> Arena:
        """Return the arena for replicas of one place (owner, local rank), with memory for this shard in `times`
        generations.

        owner_count: generations of the owner's own arena. Raises NoMemory, which says what to add. record: of the
        shard.
        """
        async with self._memory_check:
            arena = self._arenas.get(place)
            have = sum(min(slot.reserved_bytes, record.region_bytes) for slot in arena.slots()) if arena else 0
            need = need_bytes(record.region_bytes, times, 1) - have
            if (refused := refusal(need, limits(self._folder), folder=str(self._folder))) is not None:
                raise refused
            if arena is None:
                owner, local_rank = place
                identity = Identity(
                    self._run, self._worker, local_rank, boot_id(), REPLICA_GENERATIONS, owner, owner_count
                )
                arena = self._arenas[place] = await asyncio.to_thread(Arena.make, self._folder, identity)
            for generation in range(times):
                await asyncio.to_thread(arena.reserve, generation, record.region_bytes)
            return arena

    def pin_step(self, arena: Arena, complete_step: int) -> int | None:
        """Pin the generation of `complete_step` in place of the one pinned before, so that no replica overwrites it.

        complete_step: -1 to pin none. Returns the pinned generation, None if the arena does not have that step.
        """
        if (before := self._pinned_generations.pop(arena.path, None)) is not None:
            arena.unpin(before)
        if (pin := arena.pin_newest(lambda record: record.step == complete_step)) is None:
            return None
        self._pinned_generations[arena.path] = pin[0]
        return pin[0]

    def free_outdated(self, complete_step: int, round_: int) -> None:
        """Remove arenas without `complete_step` of round `round_`. All replicas of that step are complete, so no
        restore needs older ones. An arena that is in use stays.
        """
        for place, arena in list(self._arenas.items()):
            stored_steps = {(slot.record.step, slot.record.round) for slot in arena.slots() if slot.record is not None}
            if (complete_step, round_) not in stored_steps and not self._busy[place].locked():
                self._log_event("replica_removed", {"owner": place[0], "local_rank": place[1]})
                self._drop(place)

    def free_earlier_rounds(self, round_: int) -> bool:
        """Remove the arenas whose newest replica is of a round before `round_`, and those without any complete replica.

        An arena that is in use stays. Returns True if an arena was removed.
        """
        removed = False
        for place, arena in list(self._arenas.items()):
            rounds = [slot.record.round for slot in arena.slots() if slot.record is not None]
            if max(rounds, default=-1) < round_ and not self._busy[place].locked():
                self._log_event("replica_removed", {"owner": place[0], "local_rank": place[1]})
                self._drop(place)
                removed = True
        return removed

    def _drop(self, place: Place) -> None:
        """Delete the arena with the replicas of one place."""
        arena = self._arenas.pop(place)
        self._pinned_generations.pop(arena.path, None)
        arena.remove()
        arena.close()

    def close(self, *, remove: bool) -> None:
        """Close all arenas. remove: the job is done, so free their memory."""
        for place, arena in list(self._arenas.items()):
            if remove:
                self._drop(place)
            else:
                arena.unpin_all()
                arena.close()
        self._arenas.clear()


class ReplicaStore:
    """Receives replicas into the arenas of one daemon, and lists those that others may fetch.

    folder: of the arenas. run, worker: this daemon's. threads: receive bytes.
    """

    def __init__(self, folder: Path, run: str, worker: str, log_event: EventLog, threads: Executor) -> None:
        self.arenas = ReplicaArenas(folder, run, worker, log_event)
        self._log_event, self._threads = log_event, threads
        self._targets: dict[tuple[Path, int], Save] = {}  # the owner's target, by arena and epoch

    async def receive(
        self, connection: PeerConnection, place: Place, record: ShardRecord, offer: Offer, arena: Arena
    ) -> None:
        """Receive a replica that its owner sends into `arena`, and seal it.

        offer: announces the replica. The generation of its complete_step is pinned first, and then all others are
        discarded; without such a generation none is. Raises BadCheckpoint if bytes differ from their checksums or are
        not proven to be the owner's, OSError if the connection fails, NoMemory if no generation is free or memory is
        too small, and ArenaBusy if another process writes the arena. place: owner and local rank of the replica.
        record: of the replica, as the offer has it.
        """
        sums_sum = int.from_bytes(offer.sums_sum, "little")
        async with self.arenas.lock_of(place):
            pinned_generation = self.arenas.pin_step(arena, offer.complete_step)
            if pinned_generation is not None:  # newer generations do not belong to a complete step
                for other in range(arena.identity.count):
                    if other != pinned_generation:
                        arena.discard(other)
            await self._receive(connection, record, sums_sum, arena, offer.target)

    async def fetch(self, connection: PeerConnection, place: Place, record: ShardRecord, header: ShardGiven) -> None:
        """Receive a shard that this daemon asked for, after reserving memory for it. header: the peer's answer.

        place: owner and local rank under which it is stored. Raises the errors of `receive`; no generation is discarded
        besides the one that it was received into. record: of the shard, as the header has it.
        """
        async with self.arenas.lock_of(place):
            arena = await self.arenas.reserve(place, record, header.generations, 1)
            await self._receive(connection, record, int.from_bytes(header.sums_sum, "little"), arena, header.target)

    async def _receive(
        self, connection: PeerConnection, record: ShardRecord, sums_sum: int, arena: Arena, target: Save | None
    ) -> None:
        """Receive a shard into a free generation, seal it, and remember the owner's target in storage, None for none.

        The generation is discarded on any error. record, sums_sum: as the peer announced them. Raises the errors of
        `receive`.
        """
        auth = connection.proven_auth()
        generation = arena.begin(record)
        if generation is None:
            raise NoMemory("no generation of its arena is free")
        region = arena.map(generation, record.region_bytes)
        work = asyncio.get_running_loop().run_in_executor(
            self._threads, peer_connection.receive, connection.sock, auth, record, sums_sum, region
        )
        try:
            await asyncio.wait([work])
            sums = work.result()
        except BaseException:
            if not work.done():  # stop the copy: others get this memory next
                connection.close()
                await asyncio.wait([work])
            arena.discard(generation)
            raise
        finally:
            with suppress(OSError):
                connection.sock.setblocking(False)
        sealed = arena.seal(generation, record)
        arena.set_hashed(generation, sums)
        epochs = {slot.epoch for slot in arena.slots()}
        for key in [key for key in self._targets if key[0] == arena.path and key[1] not in epochs]:
            del self._targets[key]
        if target is not None:
            self._targets[arena.path, sealed.epoch] = target

    async def held_steps(self) -> tuple[HeldStep, ...]:
        """List the steps of which other workers may fetch replicas here, the newest first.

        An owner's step counts only if the replicas of all its local ranks are here. The newest replica of each arena is
        verified first.
        """
        ranks_of: dict[tuple[str, int, int, int, bool], list[int]] = defaultdict(list)
        for arena in self.arenas.all():
            owner = arena.identity.owner
            for record, parts in await asyncio.to_thread(self._valid_saves, arena):
                ranks_of[owner, record.step, record.round, record.world, parts].append(record.rank)
        runs = set[HeldStep]()
        for (owner, step, round_, world, parts), ranks in ranks_of.items():
            present, arena_count = sorted(ranks), self.arenas.count_of(owner)
            if len(present) == arena_count and present == list(range(present[0], present[0] + arena_count)):
                runs.add(HeldStep(step, present[0], world, round_, arena_count, parts))
        return tuple(sorted(runs, key=lambda each: (-each.step, each.first_rank)))

    def _valid_saves(self, arena: Arena) -> list[tuple[ShardRecord, bool]]:
        """List the saves of an arena that have checksums, by generation, each with True if it can be read in parts.

        Only the newest one is verified; a corrupt one is discarded and logged.
        """
        slots, saves = arena.slots(), list[tuple[ShardRecord, bool]]()
        newest = max((slot.epoch for slot in slots if slot.record is not None), default=0)
        for generation, slot in enumerate(slots):
            if slot.record is None:
                continue
            if slot.epoch == newest and not _is_valid(arena, generation, slot.record):
                self._log_event("memory_corrupt", {"step": slot.record.step, "owner": arena.identity.owner})
                arena.discard(generation)
            elif slot.state is SlotState.HASHED or slot.epoch == newest:
                saves.append((slot.record, is_reshardable(arena.map(generation, slot.record.head_bytes))))
        return saves

    def replicas_of(self, step: int, round_: int, ranks: int) -> list[tuple[Arena, int, ShardRecord]]:
        """List the replicas of this step that a world of `ranks` ranks saved in that round: arena, generation and
        record.
        """
        return [
            (arena, generation, slot.record)
            for arena in self.arenas.all()
            for generation, slot in enumerate(arena.slots())
            if slot.state is SlotState.HASHED and slot.record is not None
            if (slot.record.step, slot.record.round, slot.record.world) == (step, round_, ranks)
        ]

    def saved_target(self, arena: Arena, epoch: int) -> Save | None:
        """Return where in storage the owner of a replica writes it, None if nowhere or unknown."""
        return self._targets.get((arena.path, epoch))

    async def forget_after(self, step: int) -> None:
        """Discard replicas newer than this step, since the world continues from it, and pin those of the step."""
        for arena in self.arenas.all():
            self.arenas.pin_step(arena, step)
            for generation, slot in enumerate(arena.slots()):
                if slot.record is not None and slot.record.step > step:
                    arena.discard(generation)


def _is_valid(arena: Arena, generation: int, record: ShardRecord) -> bool:
    """Hash a replica, and return True if its bytes have the checksums that were sent with it.

    A replica whose checksums were not stored yet gets them now, and is valid. record: of this generation of the
    arena.
    """
    sums = sums_of(arena.map(generation, record.region_bytes)[: record.shard_bytes])
    with suppress(BadCheckpoint):
        # Killed between sealing and hashing: its chunks were verified on arrival.
        if arena.slots()[generation].state is not SlotState.HASHED:
            arena.set_hashed(generation, sums)
        return arena.sums(generation) == tuple(sums)
    return False
