"""Shards for who has lost them: given from own memory or from what is kept, and fetched into an arena before training.

Who fetches looks at every byte. Where a shard cannot be had nothing is started from it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from turnout.launcher.checkpoint.generations import Identity, Record, State
from turnout.launcher.checkpoint.need import need_bytes, refusal
from turnout.launcher.checkpoint.peers import Fetch, Given, No, packed, unpacked
from turnout.launcher.checkpoint.wire import Seat
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError
from turnout.launcher.keeping import Door
from turnout.launcher.shell.buddies import bulk
from turnout.launcher.shell.buddies.home import Here, Ward, found
from turnout.launcher.shell.buddies.shelf import Shelf
from turnout.launcher.shell.buddies.talk import Talk, Unheard, call
from turnout.launcher.shell.memory.arena import Arena, boot_id
from turnout.launcher.shell.memory.keeper.adopting import is_ours_alone
from turnout.launcher.shell.memory.limits import limits


async def give(here: Here, shelf: Shelf, talk: Talk, wanted: Fetch) -> None:
    """Send it, or No."""
    for arena, ward in arenas_of(here, shelf):
        if (pin := found(arena, wanted.step, wanted.round, wanted.rank, wanted.ranks)) is None:
            continue
        generation, record = pin
        try:
            slot = arena.slots()[generation]
            if slot.state is State.HASHED and slot.sums_sum is not None:
                count = arena.identity.count if ward is not None else arena.identity.owner_count
                goes = ward.goes(generation, slot.epoch) if ward is not None else shelf.goes(arena, slot.epoch)
                total = slot.sums_sum.to_bytes(8, "little")
                await _sent(here, talk, arena, generation, record, Given(count, packed(record), total, goes))
                return
        finally:
            with suppress(ValueError):  # it was retired meanwhile
                arena.unpin(generation)
    await talk.say(No("not_here", f"rank {wanted.rank} of {wanted.ranks} at step {wanted.step} is not here"))


def arenas_of(here: Here, shelf: Shelf) -> list[tuple[Arena, Ward | None]]:
    """All that this keeper has: of its own ranks, and what it keeps for others."""
    own = [(ward.arena, ward) for ward in here.home.wards.values() if ward.arena is not None]
    return [*own, *((arena, None) for arena in shelf.arenas())]


async def _sent(here: Here, talk: Talk, arena: Arena, generation: int, record: Record, given: Given) -> None:
    sums, shard = arena.sums(generation), arena.map(generation, record.shard_bytes)
    await talk.say(given)
    try:
        await asyncio.get_running_loop().run_in_executor(here.receives, bulk.send, talk.sock, sums, shard)
    finally:
        with suppress(OSError):
            talk.sock.setblocking(False)


async def fetched(here: Here, step: int, seat: Seat) -> None:
    """Have this step of all own ranks in own memory. Raises LauncherError where that cannot be, with all reasons."""
    wanted = [(0, 0, 1)] if seat.alike else [(at, seat.first_rank + at, seat.ranks) for at in range(seat.processes)]
    faults: list[str] = []
    for door in seat.fetch:
        try:
            await _from(here, door, step, seat, wanted)
        except (LauncherError, OSError) as error:
            faults.append(f"{door.name}: {error}")
            continue
        here.say("step_fetched", {"step": step, "from": door.name})
        return
    raise BadCheckpoint(f"step {step} cannot be had from {'; '.join(faults)}")


async def asked(talk: Talk, wanted: Fetch) -> tuple[Given, Record]:
    """Have a shard given: its bytes come next. Raises LauncherError where it is not."""
    given = await talk.ask(wanted)
    if not isinstance(given, Given):
        raise BadFrame(f"{type(given).__name__} after Fetch")
    record = unpacked(given.record)
    if Fetch(record.step, record.round, record.rank, record.world) != wanted:
        raise Unheard("it gives another shard than was asked for")
    return given, record


async def _from(here: Here, door: Door, step: int, seat: Seat, wanted: list[tuple[int, int, int]]) -> None:
    talk = await call(door, here.me, seat.round)
    try:
        for local_rank, rank, ranks in wanted:
            given, record = await asked(talk, Fetch(step, seat.origin, rank, ranks))
            ward = here.home.ward(local_rank)
            await asyncio.to_thread(_have_room, here, ward, local_rank, record, given.generations)
            assert ward.arena is not None
            total = int.from_bytes(given.sums_sum, "little")
            generation, epoch = await asyncio.get_running_loop().run_in_executor(
                here.receives, _received, talk, Arena.open(ward.arena.path), record, total
            )
            talk.sock.setblocking(False)
            if given.goes is not None:
                ward.tell(msgspec.structs.replace(given.goes, generation=generation, epoch=epoch))
    finally:
        talk.close()


def _have_room(here: Here, ward: Ward, local_rank: int, record: Record, count: int) -> None:
    have = sum(slot.reserved_bytes for slot in ward.arena.slots()) if ward.arena is not None else 0
    need = need_bytes(record.region_bytes, 1, 1) - have
    if (refused := refusal(need, limits(here.home.folder), folder=str(here.home.folder))) is not None:
        raise refused
    if ward.arena is None:
        arena = Arena.make(here.home.folder, Identity(here.home.run, here.home.worker, local_rank, boot_id(), count))
        is_ours_alone(arena)
        ward.adopt(arena)


def _received(talk: Talk, arena: Arena, record: Record, sums_sum: int) -> tuple[int, int]:
    """Through an open file of its own: the process that trains next is to be the writer. Gives generation and epoch."""
    try:
        generation = arena.begin(record)
        if generation is None:
            raise BadCheckpoint("no generation is free")
        try:
            sums = bulk.receive(talk.sock, record, sums_sum, arena.map(generation, record.region_bytes))
        except BaseException:
            arena.discard(generation)
            raise
        epoch = arena.seal(generation, record).epoch
        arena.hashed(generation, sums)
        return generation, epoch
    finally:
        arena.close()
