"""The sending half: this worker's shards of one step, pinned, hashed, sent to its buddies, one after another.

Nothing here is waited for by a training process. What is newer than the step under way waits for the next word of the
keeper that leads the copies; only the newest is then copied, and the others are counted as uncopied.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Literal

from turnout.launcher.checkpoint.generations import Record, State
from turnout.launcher.checkpoint.peers import Go, Kept, Offer, packed
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError
from turnout.launcher.keeping import Door
from turnout.launcher.shell.buddies import bulk
from turnout.launcher.shell.buddies.home import Here
from turnout.launcher.shell.buddies.talk import Talk, Unheard, call
from turnout.launcher.shell.memory.arena import Arena

SEAL_S = 60.0  # for the slowest local rank to come to a step that the first has sealed
TRIES = 3  # in a row, until a buddy counts as one that takes nothing
_NO_ROOM = ("no_memory", "older_round", "token")
How = Literal["kept", "without", "failed"]
Pin = tuple[int, Arena, int, Record]  # local rank, arena, generation


class Copying:
    """Of one keeper in one round."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._pins: dict[int, list[Pin]] = {}  # by step
        self._talks: dict[str, Talk] = {}
        self._missed = Counter[str]()  # failures in a row, by buddy
        self.replicated = -1
        self.uncopied = 0

    async def copy(self, step: int, whole: int) -> How:
        """Have all shards of this step at all buddies. Keeps `whole` and `step` in memory until the next."""
        self.release({step, whole})
        try:
            pins = await self._pinned(step)
        except (LauncherError, TimeoutError) as error:
            self._here.say("replica_failed", {"step": step, "detail": str(error) or "it was not sealed in time"})
            return "failed"
        self.uncopied += sum(each < step for each in self._here.steps)
        self._here.steps = {each for each in self._here.steps if each > step}
        hows = [await self._to(door, pins, whole) for door in self._doors()]
        if "kept" in hows and "failed" not in hows:
            self.replicated = step
            return "kept"
        return "failed" if "failed" in hows else "without"

    def _doors(self) -> tuple[Door, ...]:
        circle = self._here.seat.circle if self._here.seat is not None else None
        if circle is None or not circle.buddies or not self._here.replicas:
            return ()
        return circle.buddies[min(self._here.replicas, len(circle.buddies)) - 1]

    def hold(self, step: int) -> None:
        """Keep this step, which all have, until a newer one is copied."""
        for local_rank, ward in self._here.home.wards.items():
            if ward.arena is not None and (pin := _pin(ward.arena, step, None)) is not None:
                self._pins.setdefault(step, []).append((local_rank, ward.arena, *pin))

    async def _pinned(self, step: int) -> list[Pin]:
        """All local ranks' generations of this step, pinned and hashed. Raises LauncherError where one is not there."""
        here = self._here
        assert here.seat is not None
        ranks = range(here.seat.processes)
        pins = self._pins.setdefault(step, [])
        async with here.sealed:
            for local_rank in ranks:
                async with asyncio.timeout(SEAL_S):
                    await here.sealed.wait_for(partial(here.has_sealed, local_rank, step))
                arena = here.home.ward(local_rank).arena
                pin = _pin(arena, step, here.round) if arena is not None else None
                if arena is None or pin is None:
                    raise BadCheckpoint(f"step {step} of local rank {local_rank} was overwritten before it was copied")
                pins.append((local_rank, arena, *pin))
        for local_rank, arena, generation, _ in pins:
            if arena.slots()[generation].state is State.SEALED and not await here.home.ward(local_rank).hash(
                generation
            ):
                raise BadCheckpoint(f"step {step} of local rank {local_rank} is not what was hashed")
        return pins

    async def _to(self, door: Door, pins: list[Pin], whole: int) -> How:
        try:
            talk = self._talks.get(door.id)
            if talk is None:
                talk = self._talks[door.id] = await call(door, self._here.me, self._here.round)
            for pin in pins:
                await self._send(talk, pin, whole)
        except (LauncherError, OSError) as error:
            if (talk := self._talks.pop(door.id, None)) is not None:
                talk.close()
            self._missed[door.id] += 1
            never = isinstance(error, Unheard) and error.reason in _NO_ROOM
            if self._missed[door.id] in (1, TRIES):
                fields = {"to": door.name, "step": pins[0][3].step, "detail": str(error)[:1_000]}
                self._here.say("replica_refused" if never else "replica_failed", fields)
            return "without" if never or self._missed[door.id] >= TRIES else "failed"
        del self._missed[door.id]
        return "kept"

    async def _send(self, talk: Talk, pin: Pin, whole: int) -> None:
        local_rank, arena, generation, record = pin
        sums, paced = arena.sums(generation), self._here.paced
        total = arena.slots()[generation].sums_sum or 0
        goes = self._here.home.ward(local_rank).goes(generation, record.epoch)
        offer = Offer(local_rank, arena.identity.count, packed(record), total.to_bytes(8, "little"), whole, goes)
        if not isinstance(await talk.ask(offer), Go):
            raise BadFrame("no Go after Offer")
        shard = arena.map(generation, record.shard_bytes)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._here.sends, lambda: bulk.send(talk.sock, sums, shard, paced)
            )
        finally:
            with suppress(OSError):
                talk.sock.setblocking(False)
        if not isinstance(await talk.hear(), Kept):
            raise BadFrame("no Kept after a shard")

    def give_way(self) -> bool:
        """Let go of the step under way: whoever receives it finds that it has changed. False where there is none."""
        for step in self._pins.keys() - {self._here.whole}:
            self._drop_talks()
            self.release(self._pins.keys() - {step})
            return True
        return False

    def release(self, but: AbstractSet[int]) -> None:
        """Let go of all other steps."""
        for step in [step for step in self._pins if step not in but]:
            for _, arena, generation, _ in self._pins.pop(step):
                with suppress(ValueError):  # the arena is closed
                    arena.unpin(generation)

    def close(self) -> None:
        """The round is over."""
        self._drop_talks()
        self.release(set())

    def _drop_talks(self) -> None:
        for talk in self._talks.values():
            talk.close()
        self._talks.clear()


def _pin(arena: Arena, step: int, round_: int | None) -> tuple[int, Record] | None:
    """The newest generation of this step, trained in that round, None: in any."""
    slots = arena.slots()
    held = [
        (slot.epoch, at)
        for at, slot in enumerate(slots)
        if slot.record is not None and slot.record.step == step and round_ in (None, slot.record.round)
    ]
    if not held:
        return None
    epoch, generation = max(held)
    record = arena.pin(generation, epoch)
    return (generation, record) if record is not None else None
