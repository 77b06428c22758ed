"""What the copies need of the keeper whose they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from turnout.launcher.checkpoint.generations import Record
from turnout.launcher.checkpoint.wire import Sealed, Seat
from turnout.launcher.shell.buddies.talk import Self
from turnout.launcher.shell.memory.arena import Arena
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.storage.pace import Paced


class Ward(Protocol):
    """One local rank, in the care of the keeper."""

    arena: Arena | None

    def adopt(self, arena: Arena) -> None:
        """From now on it is this rank's."""

    def goes(self, generation: int, epoch: int) -> Sealed | None:
        """Where in storage it was to go."""

    def tell(self, told: Sealed) -> None:
        """Where one goes that was fetched."""

    async def hash(self, generation: int) -> bool:
        """Have the sums of a pinned generation. False where they are not what they were."""


class Home(Protocol):
    """The keeper."""

    run: str
    worker: str
    folder: Path

    @property
    def wards(self) -> Mapping[int, Ward]:
        """By local rank."""

    def ward(self, local_rank: int) -> Ward:
        """Of this local rank, new where there was none."""


@dataclass(slots=True)
class Here:
    """One keeper among those of its job. sends, receives: threads for bytes. round: the newest that is known.

    seat: in that round, None before the first. whole: the newest step of which all copies are there. replicas: how
    many the training processes want. sealed: notified whenever a local rank has sealed a step. steps: that the first
    one has sealed, and that were not copied yet; copied: that were named. alike: rounds in which what is saved is the
    same on all ranks. brings: one shard at a time for the own ranks. barred: one could not be had in this round.
    """

    home: Home
    say: Say
    sends: Executor
    receives: Executor
    paced: Paced
    token: bytes = b""
    round: int = 0
    seat: Seat | None = None
    whole: int = -1
    replicas: int = 0
    sealed: asyncio.Condition = field(default_factory=asyncio.Condition)
    steps: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    alike: set[int] = field(default_factory=set)
    brings: asyncio.Lock = field(default_factory=asyncio.Lock)
    barred: bool = False

    @property
    def me(self) -> Self:
        """To others."""
        return Self(self.home.run, self.home.worker, self.token)

    def has_sealed(self, local_rank: int, step: int) -> bool:
        """This step, or a later one, in this round."""
        return self.newest(local_rank) >= step

    def newest(self, local_rank: int) -> int:
        """The newest step that this local rank has sealed in this round, -1 for none."""
        ward = self.home.wards.get(local_rank)
        slots = ward.arena.slots() if ward is not None and ward.arena is not None else ()
        return max((slot.record.step for slot in slots if slot.record and slot.record.round == self.round), default=-1)


def found(arena: Arena, step: int, round_: int, rank: int, ranks: int) -> tuple[int, Record] | None:
    """Pin the generation with this shard. None where it is not there."""
    for generation, slot in enumerate(arena.slots()):
        record = slot.record
        if record is None or (record.step, record.round, record.rank, record.world) != (step, round_, rank, ranks):
            continue
        if arena.pin(generation, slot.epoch) is not None:
            return generation, record
    return None
