"""Defines what replication needs of its daemon, and the context that its parts share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.replication.peer_connection import PeerIdentity
from turnout.launcher.checkpoint.storage.shard_writer import RateLimiter
from turnout.launcher.coordinator_messages import RestorePlace
from turnout.launcher.event_log import EventLog


class RankPort(Protocol):
    """The part of one local rank's store that replication uses."""

    arena: Arena | None

    def adopt(self, arena: Arena) -> None:
        """Make this arena the local rank's own."""

    def saved_target(self, generation: int, epoch: int) -> Save | None:
        """Return the target in storage of a save, or None."""

    def set_target(self, save: Save) -> None:
        """Record the target of a save that was fetched."""

    async def hash(self, generation: int) -> bool:
        """Hash a pinned generation. False if the bytes differ from earlier checksums."""


class DaemonPort(Protocol):
    """The part of the daemon that replication uses."""

    run: str
    worker: str
    folder: Path

    @property
    def rank_stores(self) -> Mapping[int, RankPort]:
        """Return the rank stores by local rank."""

    def rank_store(self, local_rank: int) -> RankPort:
        """Return the rank store of this local rank, made if there is none."""


@dataclass(slots=True)
class ReplicationContext:
    """The state that one daemon's replication shares between its parts."""

    daemon: DaemonPort
    log_event: EventLog
    send_threads: Executor  # threads that send shards
    receive_threads: Executor  # threads that receive shards
    rate_limiter: RateLimiter  # limits the bytes sent per second
    token: bytes = b""
    round: int = 0  # the newest known round
    restore_place: RestorePlace | None = None  # this worker's place in that round, None before the first
    complete_step: int = -1  # the newest step of which all replicas are complete
    replicas: int = 0  # how many the training processes want
    sealed: asyncio.Condition = field(default_factory=asyncio.Condition)  # notified when a local rank tells of a save
    saves: dict[int, Save] = field(default_factory=dict)  # the newest save told of in this round, by local rank
    unreplicated_steps: set[int] = field(default_factory=set)  # sealed by the first local rank and not replicated yet
    ordered_steps: set[int] = field(default_factory=set)  # steps that the leader named
    replicated_rounds: set[int] = field(default_factory=set)  # rounds whose state is the same on all ranks
    fetch_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a shard is fetched for own ranks
    fetch_failed: bool = False  # a shard could not be fetched in this round

    @property
    def identity(self) -> PeerIdentity:
        """Return this daemon's identity for its peers."""
        return PeerIdentity(self.daemon.run, self.daemon.worker, self.token)

    def has_sealed(self, local_rank: int, step: int) -> bool:
        """True if this local rank has told of this step, or of a later one, in this round.

        What is sealed in memory alone does not count: only its Save says where in storage it goes, and a replica goes
        there too.
        """
        return self.newest(local_rank) >= step

    def newest(self, local_rank: int) -> int:
        """Return the newest step that this local rank told of in this round, or -1 for none."""
        save = self.saves.get(local_rank)
        return save.step if save is not None else -1


def pin_shard(arena: Arena, step: int, round_: int, rank: int, ranks: int) -> tuple[int, ShardRecord] | None:
    """Find and pin the generation that holds this shard. None if it is not here."""
    for generation, slot in enumerate(arena.slots()):
        record = slot.record
        if record is None or (record.step, record.round, record.rank, record.world) != (step, round_, rank, ranks):
            continue
        if arena.pin(generation, slot.epoch) is not None:
            return generation, record
    return None
