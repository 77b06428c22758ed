"""Shards of others that this worker keeps from now on: of workers that leave, and those that its ranks take parts of.

Each byte is looked at as it comes. What cannot be had is told, and nothing else depends on it: storage has it, or none.
"""

from __future__ import annotations

import asyncio

from turnout.launcher.checkpoint.generations import State
from turnout.launcher.checkpoint.peers import Fetch
from turnout.launcher.checkpoint.wire import Bring, Brought, Inherit
from turnout.launcher.errors import BadCheckpoint, LauncherError
from turnout.launcher.keeping import Door, Take
from turnout.launcher.shell.buddies.giving import arenas_of, asked
from turnout.launcher.shell.buddies.home import Here
from turnout.launcher.shell.buddies.shelf import Place, Shelf
from turnout.launcher.shell.buddies.talk import call


async def inherited(here: Here, shelf: Shelf, order: Inherit) -> None:
    """Keep what is to be had in time, of several leavers at once."""

    async def taken(take: Take) -> None:
        try:
            for at in range(take.count):
                wanted = Fetch(order.step, order.origin, take.first_rank + at, order.ranks)
                await _had(here, shelf, wanted, (take.owner, at), take.doors, order.round)
        except LauncherError as error:
            here.say("shard_not_taken", {"owner": take.owner, "step": order.step, "detail": str(error)[:1_000]})
        else:
            here.say("shard_taken", {"owner": take.owner, "step": order.step})

    if not order.take:
        return
    here.round = max(here.round, order.round)
    _, late = await asyncio.wait([asyncio.ensure_future(taken(take)) for take in order.take], timeout=order.within_s)
    for work in late:
        work.cancel()
    if late:
        await asyncio.wait(late)
        here.say(
            "shard_not_taken", {"step": order.step, "detail": f"{len(late)} did not come within {order.within_s:.1f} s"}
        )


async def brought(here: Here, shelf: Shelf, wanted: Bring) -> Brought:
    """Have this shard here, for a rank that takes parts of it. Raises LauncherError where it is nowhere."""
    asks = Fetch(wanted.step, wanted.round, wanted.rank, wanted.ranks)
    seat = here.seat
    if seat is None or (seat.saved_by, seat.origin) != (wanted.ranks, wanted.round):
        raise BadCheckpoint(f"nobody has agreed to go on from step {wanted.step} of {wanted.ranks} ranks")
    lies = [each for each in seat.lies if each.first_rank <= wanted.rank < each.first_rank + each.count]
    async with here.brings:
        try:
            place = (f"rank {wanted.rank} of {wanted.ranks}", 0)
            return await _had(here, shelf, asks, place, tuple(each.door for each in lies), seat.round)
        except LauncherError:
            here.barred = True
            raise


async def _had(here: Here, shelf: Shelf, wanted: Fetch, place: Place, doors: tuple[Door, ...], round_: int) -> Brought:
    """Where this shard lies here. It is fetched where it does not yet. Raises LauncherError, with all reasons."""
    faults: list[str] = []
    for door in (None, *doors):
        if door is not None:
            try:
                await _from(here, shelf, wanted, place, door, round_)
            except (LauncherError, OSError) as error:
                faults.append(f"{door.name}: {error}")
                continue
            here.say("step_fetched", {"step": wanted.step, "from": door.name, "rank": wanted.rank})
        if (there := _there(here, shelf, wanted)) is not None:
            return there
    why = "; ".join(faults) or "nobody is told to have it"
    raise BadCheckpoint(f"rank {wanted.rank} of {wanted.ranks} at step {wanted.step} cannot be had: {why}")


async def _from(here: Here, shelf: Shelf, wanted: Fetch, place: Place, door: Door, round_: int) -> None:
    talk = await call(door, here.me, round_)
    try:
        given, record = await asked(talk, wanted)
        await shelf.fetch(talk, place, record, given)
    finally:
        talk.close()


def _there(here: Here, shelf: Shelf, wanted: Fetch) -> Brought | None:
    for arena, _ in arenas_of(here, shelf):
        for generation, slot in enumerate(arena.slots()):
            record = slot.record
            if slot.state is not State.HASHED or record is None:
                continue
            if Fetch(record.step, record.round, record.rank, record.world) == wanted:
                return Brought(str(arena.path), generation, slot.epoch)
    return None
