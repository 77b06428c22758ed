"""Daemons of one job in one process: real arenas in a folder each, real sockets between them, one local rank each."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from tests.kit.wait import until_async
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import boot_id
from turnout.launcher.checkpoint.daemon.rank_store import RankStore
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, Identity, ShardRecord, newest_generation
from turnout.launcher.checkpoint.format.daemon_messages import Hello, Save
from turnout.launcher.checkpoint.format.shard_file import sums_of
from turnout.launcher.checkpoint.replication.replicator import Replicator
from turnout.launcher.coordinator_messages import DaemonEndpoint, ReplicaGroup, RestorePlace
from turnout.launcher.model import SaveTier

TOKEN = b"0123456789abcdef"
BYTES = 9 * (1 << 20) + 77  # three chunks, the last of which is short


def record_of(step, rank, ranks, round_=1, size=BYTES):
    return ShardRecord(0, step, round_, rank, ranks, PAGE_BYTES, size)


def bytes_of(step, rank, size=BYTES):
    """Give the bytes of this rank at this step: no other step or rank has any 8 of them in the same place."""
    words = np.arange((PAGE_BYTES + size) // 8 + 1, dtype=np.uint64) + np.uint64((step << 40) + (rank << 32))
    return words.view(np.uint8)[: PAGE_BYTES + size]


class FakeRankStores:
    """The stores of the daemon's ranks, as its copies see them."""

    def __init__(self, folder, run, worker):
        self._folder, self._run, self._worker, self.by_rank = folder, run, worker, {}

    def of(self, local_rank):
        if local_rank not in self.by_rank:
            identity = Identity(self._run, self._worker, local_rank, boot_id(), 4)
            self.by_rank[local_rank] = RankStore(self._folder, identity, lambda *_: "", lambda *_: None)
        return self.by_rank[local_rank]


@dataclass
class FakePort:
    """The daemon, as its copies see it."""

    folder: Path
    worker: str
    run: str = "job"
    reports: list = field(default_factory=list)

    def __post_init__(self):
        self.rank_stores = FakeRankStores(self.folder, self.run, self.worker)

    def report_save(self, save):
        self.reports.append(save)


class ReplicaDaemon:
    """A daemon's copies, and one rank that saves."""

    def __init__(self, folder, worker, rank, token=TOKEN, bytes_s=0.0):
        folder.mkdir(exist_ok=True)
        self.daemon, self.rank, self.messages = FakePort(folder, worker), rank, []
        self.replicator = Replicator(
            self.daemon, lambda what, fields: self.messages.append((what, dict(fields))), bytes_s
        )
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.endpoint = DaemonEndpoint(f"{worker}/0", worker, *self._listens.getsockname())
        self.replicator.peers.listen(self._listens, token)
        self.size = BYTES

    def words(self):
        return [what for what, _ in self.messages]

    def ends(self):
        """Step, rank and outcome of each copy that was reported to the agent, and whether it is complete."""
        assert {each.tier for each in self.daemon.reports} <= {SaveTier.REPLICA}
        return [(each.step, each.rank, each.outcome.value, each.complete) for each in self.daemon.reports]

    async def round(self, seat, step=-1, replicas=1, meets=True):
        self.seat = seat
        await self.replicator.begin_round(step, seat)
        if meets:
            self.replicator.register(self.hello(replicas))

    def hello(self, replicas=1, **more):
        ranks, round_ = self.seat.ranks, self.seat.round
        return Hello("job", self.daemon.worker, self.rank, 0, ranks, round_, replicas=replicas, **more)

    @property
    def arena(self):
        rank_store = self.daemon.rank_stores.of(0)
        if rank_store.arena is None:
            identity = Identity("job", self.daemon.worker, 0, boot_id(), 4)
            rank_store.adopt(Arena.make(self.daemon.folder, identity))
        return rank_store.arena

    async def save(self, step):
        """Save as a training process does, and tell the daemon."""
        await self.tell(await self.seal(step))

    async def seal(self, step, target=""):
        """Save as a training process does, whose word of it is still on its way to the daemon. Give that word."""
        record = record_of(step, self.rank, self.seat.ranks, self.seat.round, self.size)
        generation = await until_async(
            lambda: [
                generation_begun for generation_begun in [self.arena.begin(record)] if generation_begun is not None
            ]
        )
        (generation,) = generation
        self.arena.map(generation, record.shard_bytes)[:] = bytes_of(step, self.rank, self.size)
        sealed = self.arena.seal(generation, record)
        return Save(generation, sealed.epoch, step, target, later=bool(target))

    async def tell(self, message):
        """Take in the word of a save, as a session does."""
        rank_store = self.daemon.rank_stores.of(0)
        generation, _ = await rank_store.pin_save(message)
        await rank_store.hash(generation)
        await self.replicator.announce_save(0, message)
        self.arena.unpin(generation)

    def goes(self, owner):
        """Give where in storage the replicas go that it keeps for that worker, by step."""
        store = self.replicator.replica_store
        arena = next(each for each in store.arenas.all() if each.identity.owner == owner.daemon.worker)
        slots = [slot for slot in arena.slots() if slot.record is not None]
        return {
            slot.record.step: (saved_target := store.saved_target(arena, slot.epoch)) and saved_target.target
            for slot in slots
        }

    def kept(self, owner):
        """Steps that it has whole for that worker, each byte looked at, the newest first."""
        arena = next(
            (each for each in self.replicator.replica_store.arenas.all() if each.identity.owner == owner.daemon.worker),
            None,
        )
        if arena is None:
            return []
        slots = [(slot, at) for at, slot in enumerate(arena.slots()) if slot.record is not None]
        for slot, at in slots:
            view = arena.map(at, slot.record.shard_bytes)
            assert np.array_equal(np.frombuffer(view, np.uint8), bytes_of(slot.record.step, owner.rank, owner.size))
            assert arena.sums(at) == tuple(sums_of(view))
        return sorted((slot.record.step for slot, _ in slots), reverse=True)

    def own(self):
        """The newest step in its own arena, each byte of it looked at."""
        slots = self.arena.slots()
        at = newest_generation(slots)
        record = slots[at].record
        view = self.arena.map(at, record.shard_bytes)
        assert np.array_equal(np.frombuffer(view, np.uint8), bytes_of(record.step, self.rank, self.size))
        return record.step

    async def close(self, remove=True):
        if self._listens.fileno() < 0:
            return
        await self.replicator.close(remove=remove)
        self._listens.close()
        for rank_store in self.daemon.rank_stores.by_rank.values():
            rank_store.close(remove=remove)


class Job:
    """A job with one daemon a rank, w0 the first; each keeps the replicas of the one before it."""

    def __init__(self, folder, size, **more):
        self.folder, self.more = folder, more
        self.daemons = [ReplicaDaemon(folder / f"w{at}", f"w{at}", at, **more) for at in range(size)]

    def __getitem__(self, at):
        return self.daemons[at]

    def seat(self, at, round_=1, wires=None, **more):
        """wires: ports by which others are reached instead, by their place."""
        endpoints, size = [each.endpoint for each in self.daemons], len(self.daemons)
        for other, port in (wires or {}).items():
            endpoints[other] = msgspec.structs.replace(endpoints[other], port=port)
        replica_holders = tuple((*endpoints[at + 1 :], *endpoints[:at])[:copies] for copies in range(1, size))
        replica_group = ReplicaGroup(endpoints[0], size, replica_holders) if size > 1 else None
        return RestorePlace(round_, at, 1, size, replica_group=replica_group, **more)

    async def form(self, round_=1, step=-1, replicas=1, wires=None):
        for at, each in enumerate(self.daemons):
            await each.round(self.seat(at, round_, wires), step, replicas)

    async def save(self, step):
        for each in self.daemons:
            await each.save(step)

    async def copied(self, step):
        """Wait until each has this step at its replica holders."""

        def has_copies():
            return all(each.replicator.progress()[0] == step for each in self.daemons)

        await until_async(has_copies, lambda: self.messages)

    @property
    def messages(self):
        return [(each.daemon.worker, each.messages, each.replicator.progress()) for each in self.daemons]

    async def replaced(self, at, name=""):
        """Another daemon sits there now, with an empty memory."""
        await self.daemons[at].close()
        worker = name or f"w{at}"
        self.daemons[at] = ReplicaDaemon(self.folder / f"{worker}-again", worker, at, **self.more)

    async def close(self):
        for each in self.daemons:
            await each.close()
