"""Who a training process is, as far as its checkpoints go, by its environment; and what has become of its saves."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from turnout.launcher.checkpoint.generations import Record, State
from turnout.launcher.process.environment import KEEPER, PARTS, RESTORE, ROUND, RUN, STORED, STORED_IN, WORKER
from turnout.launcher.shell.memory.arena import Arena, find
from turnout.launcher.shell.memory.private import memory_folder

# What differs between launches, so that what two of them have left in storage is never committed together.
_LAUNCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


Where: TypeAlias = tuple[Path, int, int]  # the arena's file, generation and epoch
_PARTS = re.compile(r"(\d+) of (\d+) in (\d+)")


@dataclass(frozen=True, slots=True)
class Parts:
    """A step in memory that so many ranks have saved in that round: not these, or not in these places."""

    step: int
    ranks: int
    round: int


@dataclass(frozen=True, slots=True)
class Rank:
    """One process. restore: the step that all ranks hold in memory, -1 for none; None where nobody has said.

    parts: the step in memory of which each rank takes parts instead, None for none.

    stored: the step that all ranks read of this folder where memory has none, -1 for none; None where nobody has said.
    beside: there is an agent, and its keeper. memory: where arenas lie.
    """

    run: str
    worker: str
    rank: int
    local_rank: int
    world: int
    local_world: int
    round: int
    restore: int | None
    beside: bool
    memory: Path
    folder: str
    stored: int | None = None
    parts: Parts | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], folder: str) -> Rank:
        """This process. folder: of its checkpoints: without an agent that is how it finds its memory again."""

        def number(name: str, usual: int) -> int:
            text = environ.get(name, "")
            return int(text) if text.lstrip("-").isdecimal() else usual

        beside = KEEPER in environ
        launch = [environ.get(name, "") for name in _LAUNCH] if number("WORLD_SIZE", 1) > 1 else []
        own = hashlib.sha256("\0".join([folder, *launch]).encode()).hexdigest()[:32]
        hostname, parts = socket.gethostname(), _PARTS.fullmatch(environ.get(PARTS, "")) if beside else None
        return cls(
            environ.get(RUN, "") if beside else f"own-{own}",
            environ.get(WORKER, hostname) if beside else hostname,
            number("RANK", 0), number("LOCAL_RANK", 0), number("WORLD_SIZE", 1), number("LOCAL_WORLD_SIZE", 1),
            number(ROUND, 0), number(RESTORE, -1) if beside else None, beside, memory_folder(environ), folder,
            number(STORED, -1) if beside and environ.get(STORED_IN) == folder else None,
            Parts(*map(int, parts.groups())) if parts else None,
        )  # fmt: skip

    def holds(self, step: int) -> dict[int, Where]:
        """By rank, where this worker's memory has that step: as this world saved it, or that whose parts are taken."""
        held: dict[int, Where] = {}
        for found in find(self.memory, self.run, self.worker, kept=None if self.parts else False):
            arena = Arena.open(found.path)
            try:
                for generation, slot in enumerate(arena.slots()):
                    record = slot.record
                    if slot.state is not State.HASHED or record is None or not self._means(record, step):
                        continue
                    if slot.epoch >= held.get(record.rank, (found.path, 0, -1))[2]:
                        held[record.rank] = (found.path, generation, slot.epoch)
            finally:
                arena.close()
        return held

    def _means(self, record: Record, step: int) -> bool:
        if self.parts is None:
            return (record.step, record.world) == (step, self.world)
        return Parts(record.step, record.world, record.round) == self.parts


@dataclass(frozen=True, slots=True)
class Stats:
    """What has become of its saves. Steps: the newest, -1 for none. failures: persists that storage did not take, and
    why the last one did not.

    saves: into memory; saved_bytes: in all of them, of which copied_bytes were not there already. dropped: how often
    some were found not to be what they should. source: of the last load, "memory" or "storage", "" for none.
    overtaken: saves that did not get to storage, since newer ones needed their memory while storage was behind;
    waited_s: for how long all saves together had to wait for memory.
    replicated: of which its buddies have a copy; uncopied: saves that were not copied, since a newer one was.
    """

    saves: int = 0
    saved_bytes: int = 0
    sealed: int = -1
    hashed: int = -1
    persisted: int = -1
    committed: int = -1
    in_flight: int = 0
    failures: int = 0
    why: str = ""
    source: str = ""
    dropped: int = 0
    copied_bytes: int = 0
    overtaken: int = 0
    waited_s: float = 0.0
    replicated: int = -1
    uncopied: int = 0
