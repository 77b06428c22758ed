"""Reads a training process's identity for checkpoints from its environment, and defines the statistics of its saves."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch
import torch.distributed as dist

from turnout.launcher.accelerator import collective_device
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import find, memory_folder
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord, SlotState
from turnout.launcher.env import DAEMON, PARTS, RESTORE, ROUND, RUN, STORED, STORED_IN, WORKER
from turnout.launcher.errors import BadCheckpoint

# Differs between launches: shards that two launches left in storage are never committed together.
_LAUNCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


Found = TypeVar("Found")
_NOTHING, _BROKEN = -1, -2  # what rank 0 broadcasts instead of the numbers of a checkpoint

ShardPosition: TypeAlias = tuple[Path, int, int]  # the arena's file, generation and epoch

_PARTS = re.compile(r"(\d+) of (\d+) in (\d+)")


@dataclass(frozen=True, slots=True)
class ReshardedStep:
    """A step in memory that a world of another size, or with other ranks here, saved in an earlier round."""

    step: int
    ranks: int  # size of the world that saved it
    round: int  # the round in which it was saved


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Identifies one training process, and says which step its agent told it to restore."""

    run: str
    worker: str
    rank: int
    local_rank: int
    world: int
    round: int
    restore_step: int | None  # the step that all ranks hold in memory, -1: none; None without an agent
    has_agent: bool  # an agent and its daemon are present
    memory: Path  # the folder of the arenas
    folder: str  # the folder of the checkpoints in storage
    # the step that all ranks read from this folder if memory has none, -1: none; None if nobody named one
    stored_step: int | None = None
    resharded_step: ReshardedStep | None = None  # the step in memory from which each rank reads parts, None: none

    @classmethod
    def of(cls, environ: Mapping[str, str], folder: str) -> ProcessInfo:
        """Read this process's identity from its environment.

        folder: where its checkpoints are stored. Without an agent, a restarted process finds its memory again by this
        folder.
        """

        def number(name: str, usual: int) -> int:
            text = environ.get(name, "")
            return int(text) if text.lstrip("-").isdecimal() else usual

        has_agent = DAEMON in environ
        launch = [environ.get(name, "") for name in _LAUNCH] if number("WORLD_SIZE", 1) > 1 else []
        own = hashlib.sha256("\0".join([folder, *launch]).encode()).hexdigest()[:32]
        hostname, parts = socket.gethostname(), _PARTS.fullmatch(environ.get(PARTS, "")) if has_agent else None
        return cls(
            environ.get(RUN, "") if has_agent else f"own-{own}",
            environ.get(WORKER, hostname) if has_agent else hostname,
            number("RANK", 0),
            number("LOCAL_RANK", 0),
            number("WORLD_SIZE", 1),
            number(ROUND, 0),
            number(RESTORE, -1) if has_agent else None,
            has_agent,
            memory_folder(environ),
            folder,
            number(STORED, -1) if has_agent and environ.get(STORED_IN) == folder else None,
            ReshardedStep(*map(int, parts.groups())) if parts else None,
        )

    def locate_step(self, step: int) -> dict[int, ShardPosition]:
        """Locate a step in this worker's memory: the arena's file, generation and epoch, by rank.

        Looks for the step as this world saved it, or for the one that is read in parts.
        """
        locations: dict[int, ShardPosition] = {}
        for found in find(self.memory, self.run, self.worker, replicas=None if self.resharded_step else False):
            arena = Arena.open(found.path)
            try:
                for generation, slot in enumerate(arena.slots()):
                    record = slot.record
                    if slot.state is not SlotState.HASHED or record is None or not self._matches(record, step):
                        continue
                    if slot.epoch >= locations.get(record.rank, (found.path, 0, -1))[2]:
                        locations[record.rank] = (found.path, generation, slot.epoch)
            finally:
                arena.close()
        return locations

    def _matches(self, record: ShardRecord, step: int) -> bool:
        if self.resharded_step is None:
            return (record.step, record.world) == (step, self.world)
        return ReshardedStep(record.step, record.world, record.round) == self.resharded_step


@dataclass(frozen=True, slots=True)
class SaveStats:
    """Counts what happened to the saves of one rank. Fields that name a step give the newest one, or -1 for none."""

    saves: int = 0  # into memory
    saved_bytes: int = 0  # in total
    sealed: int = -1
    hashed: int = -1
    persisted: int = -1
    committed: int = -1
    in_flight: int = 0
    failures: int = 0  # writes that storage refused
    why: str = ""  # the reason of the last failure
    source: str = ""  # of the last load: "memory", "storage" or "" for none
    dropped: int = 0  # saves dropped because a tensor changed
    copied_bytes: int = 0  # those of saved_bytes that were not in memory already
    overtaken: int = 0  # saves dropped before storage had them, since newer ones needed their memory
    waited_s: float = 0.0  # total time that saves waited for memory
    replicated: int = -1  # the newest step that all replica holders have
    uncopied: int = 0  # saves that were not replicated, since a newer one was


def choose_on_rank_0(
    world: int,
    find_newest: Callable[[], Found | None],
    numbers_of: Callable[[Found], tuple[int, int]],
    find_same: Callable[[int, int], Found | None],
) -> Found | None:
    """Let rank 0 choose the newest checkpoint, since another one may appear meanwhile. None if there is none.

    A collective of `world` ranks. If ranks are not connected, each one finds its own.
    find_newest: called on rank 0. numbers_of: two numbers from 0 up that name what it found. find_same: finds that on
    the other ranks.
    Raises what `find_newest` raises, and BadCheckpoint on the other ranks then; and what `find_same` raises.
    """
    if world == 1 or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() != world:
        return find_newest()
    if dist.get_rank():
        first, second = _broadcast_pair((_NOTHING, 0))
        if first == _BROKEN:
            raise BadCheckpoint("rank 0 could load none of the checkpoints that there are")
        return None if first == _NOTHING else find_same(first, second)
    choice = (_BROKEN, 0)
    try:
        found = find_newest()
        choice = (_NOTHING, 0) if found is None else numbers_of(found)
    finally:
        _broadcast_pair(choice)
    return found


def _broadcast_pair(numbers: tuple[int, int]) -> tuple[int, int]:
    """Broadcast two integers from rank 0; return rank 0's numbers on every rank. A collective: every rank has to call
    it.
    """
    values = torch.tensor(numbers, dtype=torch.int64, device=collective_device(dist.get_backend()))
    dist.broadcast(values, src=0)
    first, second = values.tolist()
    return int(first), int(second)
