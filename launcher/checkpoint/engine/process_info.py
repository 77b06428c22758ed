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

# Environment variables that differ between launches, so that shards of two launches are never committed together.
_LAUNCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


Choice = TypeVar("Choice")  # a checkpoint
_NO_CHECKPOINT, _ALL_BROKEN = -1, -2  # broadcast by rank 0 instead of the numbers of a checkpoint

ShardPosition: TypeAlias = tuple[Path, int, int]  # the arena's file, generation and epoch

_PARTS = re.compile(r"(\d+) of (\d+) in (\d+)")  # step, ranks, round


@dataclass(frozen=True, slots=True)
class ReshardedStep:
    """A step in memory that an earlier round saved with other ranks on these workers; ranks read it in parts."""

    step: int
    ranks: int  # size of the world that saved it
    round: int  # the round in which it was saved


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The identity of one training process, and the step that its agent ordered it to restore."""

    run: str  # the job's id; without an agent, a hash of the folder and the launch
    worker: str  # the worker's name; without an agent, the host's
    rank: int
    local_rank: int
    world: int  # number of ranks
    round: int
    restore_step: int | None  # the step that all ranks hold in memory, -1: none; None without an agent
    has_agent: bool  # an agent and its daemon are present
    memory: Path  # the folder of the arenas
    folder: str  # the folder of the checkpoints in storage
    # the step that all ranks read from this folder if memory has none, -1: none; None if the agents named no step
    stored_step: int | None = None
    resharded_step: ReshardedStep | None = None  # the step in memory from which each rank reads parts, None: none

    @classmethod
    def of(cls, environ: Mapping[str, str], folder: str) -> ProcessInfo:
        """Read a process's identity from its environment. A variable that is missing or no integer counts as its
        default: rank 0 of 1.

        folder: where its checkpoints are stored, an absolute path or URL; another spelling is another folder. Without
        an agent, a restarted process finds its memory by this folder.
        """

        def number(name: str, default: int) -> int:
            """Return an integer variable, `default` if it is missing or no integer."""
            text = environ.get(name, "")
            return int(text) if re.fullmatch(r"-?[0-9]+", text) else default

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
        """Return the position of each hashed shard of a step in this worker's memory, by rank; {} if there is none.

        With `resharded_step` set, the result is of that step whatever `step` is, replicas included; else of the shards
        of `step` that a world of this size saved. Of several saves of a rank the newest counts. Raises BadCheckpoint if
        an arena is broken.
        """
        locations: dict[int, ShardPosition] = {}
        for arena_file in find(self.memory, self.run, self.worker, replicas=None if self.resharded_step else False):
            arena = Arena.open(arena_file.path)
            try:
                for generation, slot in enumerate(arena.slots()):
                    record = slot.record
                    if slot.state is not SlotState.HASHED or record is None or not self._matches(record, step):
                        continue
                    if slot.epoch >= locations.get(record.rank, (arena_file.path, 0, -1))[2]:
                        locations[record.rank] = (arena_file.path, generation, slot.epoch)
            finally:
                arena.close()
        return locations

    def _matches(self, record: ShardRecord, step: int) -> bool:
        """Return True if a record is of the step that `locate_step` looks for."""
        if self.resharded_step is None:
            return (record.step, record.world) == (step, self.world)
        return ReshardedStep(record.step, record.world, record.round) == self.resharded_step


@dataclass(frozen=True, slots=True)
class SaveStats:
    """Counts of the saves of one rank.

    sealed, hashed, persisted, committed, replicated: the newest step that has reached this state, -1 for none;
    `committed` only on rank 0, whose daemon commits.
    """

    saves: int = 0  # into memory
    saved_bytes: int = 0  # in total
    sealed: int = -1
    hashed: int = -1
    persisted: int = -1
    committed: int = -1
    in_flight: int = 0  # saves that the daemon has not finished
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
    find_newest: Callable[[], Choice | None],
    numbers_of: Callable[[Choice], tuple[int, int]],
    find_same: Callable[[int, int], Choice | None],
) -> Choice | None:
    """Return the newest checkpoint, chosen by rank 0 for all ranks, since a newer one may appear meanwhile.

    A collective of `world` ranks; if torch.distributed does not connect them, each rank finds its own. Returns None on
    all ranks if there is no checkpoint. find_newest: finds the newest, called on rank 0; None for none. numbers_of:
    returns two integers >= 0 that identify a checkpoint. find_same: finds the checkpoint with these numbers on the
    other ranks. Raises the errors of `find_newest` on rank 0, and then BadCheckpoint on the other ranks; and those of
    `find_same`.
    """
    if world == 1 or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() != world:
        return find_newest()
    if dist.get_rank():
        first, second = _broadcast_pair((_NO_CHECKPOINT, 0))
        if first == _ALL_BROKEN:
            raise BadCheckpoint("rank 0 could load none of the checkpoints that there are")
        return None if first == _NO_CHECKPOINT else find_same(first, second)
    numbers = (_ALL_BROKEN, 0)
    try:
        newest = find_newest()
        numbers = (_NO_CHECKPOINT, 0) if newest is None else numbers_of(newest)
    finally:
        _broadcast_pair(numbers)
    return newest


def _broadcast_pair(numbers: tuple[int, int]) -> tuple[int, int]:
    """Broadcast two integers from rank 0; return rank 0's numbers on every rank. A collective: every rank has to call
    it.
    """
    values = torch.tensor(numbers, dtype=torch.int64, device=collective_device(dist.get_backend()))
    dist.broadcast(values, src=0)
    first, second = values.tolist()
    return int(first), int(second)
