"""Shards that come to another worker's memory: of those that leave, and for ranks that read parts of others' saves."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.launcher.checkpoint.replication.world import ReplicaDaemon, bytes_of
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import offset_of
from turnout.launcher.checkpoint.format.daemon_messages import Adopt, FetchShard
from turnout.launcher.coordinator_messages import (
    FETCH_DISABLED,
    AdoptShards,
    DaemonEndpoint,
    HeldStep,
    RestorePlace,
    ShardLocation,
)
from turnout.launcher.errors import BadCheckpoint

pytestmark = pytest.mark.asyncio
NOBODY = DaemonEndpoint("gone/0", "gone", "127.0.0.1", 1)


def order(step, *takes, within_s=20.0, ranks=3):
    return Adopt(1, step, 1, ranks, within_s, takes)


def broken(daemon):
    """A bit of all that it has, behind its back."""
    with daemon.arena.path.open("r+b") as file:
        for generation in range(daemon.arena.identity.count):
            file.seek(offset_of(generation) + 5_000_000)
            file.write(b"\xff")


def of(job, at):
    """Ask for what that worker has, to be taken over."""
    return AdoptShards(f"w{at}", at, 1, (job[at].endpoint,))


async def saved(job, size=3, step=7):
    """Each has saved this step; nobody keeps copies."""
    job = job(size)
    await job.form(replicas=0)
    await job.save(step)
    return job


async def test_what_two_that_leave_hold_is_kept_by_the_third(job):
    job = await saved(job)
    await job[0].replicator.adopt_shards(order(7, of(job, 1), of(job, 2)))
    assert await job[0].replicator.held_steps(()) == (HeldStep(7, 1, 3, 1, 1), HeldStep(7, 2, 3, 1, 1))
    assert [job[0].kept(job[at]) for at in (1, 2)] == [[7], [7]], "each byte of it"
    assert job[0].words().count("shard_taken") == 2


async def test_what_is_here_already_does_not_come_twice(job):
    job = await saved(job)
    for _ in range(2):
        await job[0].replicator.adopt_shards(order(7, of(job, 1)))
    assert job[0].words().count("step_fetched") == 1


async def test_who_is_gone_or_broken_is_told_and_others_are_taken(job):
    job = await saved(job, 4)
    broken(job[1])
    from_missing = AdoptShards("gone", 3, 1, (NOBODY,))
    await job[0].replicator.adopt_shards(order(7, of(job, 1), of(job, 2), from_missing, ranks=4))
    assert [each.first_rank for each in await job[0].replicator.held_steps(())] == [2]
    owners = sorted(fields["owner"] for what, fields in job[0].messages if what == "shard_not_taken")
    assert owners == ["gone", "w1"]


async def test_the_next_one_who_has_it_is_asked(job):
    job = await saved(job)
    await job[2].replicator.adopt_shards(order(7, of(job, 1)))
    await job[0].replicator.adopt_shards(order(7, AdoptShards("w1", 1, 1, (NOBODY, job[2].endpoint))))
    assert job[0].kept(job[1]) == [7]


async def test_what_does_not_come_in_time_is_let_go_and_nothing_of_it_is_kept(job):
    """The holder takes the connection and says nothing."""
    job = await saved(job)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = DaemonEndpoint("w1/0", "w1", *silent.getsockname())
        await job[0].replicator.adopt_shards(order(7, AdoptShards("w1", 1, 1, (endpoint,)), of(job, 2), within_s=2.0))
    assert [each.first_rank for each in await job[0].replicator.held_steps(())] == [2]
    assert "did not come within 2.0 s" in str(job[0].messages)


def parts_seat(job, holders, saved_by=3):
    """Build the place of a member in a world of one, for a step that `saved_by` ranks have saved."""
    return RestorePlace(
        2,
        0,
        1,
        1,
        saved_round=1,
        saved_by=saved_by,
        locations=tuple(ShardLocation(at, 1, job[at].endpoint) for at in holders),
    )


async def test_a_worker_has_just_those_shards_brought_that_its_ranks_ask_for(job):
    job = await saved(job)
    joins = ReplicaDaemon(job.folder / "joins", "joins", 0)
    await joins.round(parts_seat(job, (0, 1, 2)), 7, replicas=0)
    first, second = await asyncio.gather(*(joins.replicator.fetch_shard(FetchShard(7, 1, 1, 3)) for _ in range(2)))
    assert first == second
    assert joins.words() == ["step_fetched"]
    arena = Arena.open(first.path)
    assert bytes(arena.map(first.generation, job[1].size + 4096)) == bytes_of(7, 1).tobytes()
    arena.close()
    assert [each.first_rank for each in await joins.replicator.held_steps(())] == [1]
    await joins.close()


async def test_what_can_not_be_brought_is_not_tried_again_in_the_next_round(job):
    job = await saved(job)
    joins = ReplicaDaemon(job.folder / "joins", "joins", 0)
    await joins.round(parts_seat(job, (0, 2)), 7, replicas=0)
    with pytest.raises(BadCheckpoint, match="no worker is known to hold it"):
        await joins.replicator.fetch_shard(FetchShard(7, 1, 1, 3))
    assert await joins.replicator.held_steps(()) == (FETCH_DISABLED,)
    await joins.round(parts_seat(job, (0, 1, 2)), 7, replicas=0)
    assert await joins.replicator.held_steps(()) == ()
    await joins.close()


@pytest.mark.parametrize("fetch", [
    pytest.param(FetchShard(7, 1, 1, 4), id="of another number of ranks"),
    pytest.param(FetchShard(7, 2, 1, 3), id="of another round"),
    pytest.param(FetchShard(6, 1, 1, 3), id="of a step that nobody has"),
])  # fmt: skip
async def test_only_what_was_agreed_on_is_brought(job, fetch):
    job = await saved(job)
    joins = ReplicaDaemon(job.folder / "joins", "joins", 0)
    await joins.round(parts_seat(job, (0, 1, 2)), 7, replicas=0)
    with pytest.raises(BadCheckpoint):
        await joins.replicator.fetch_shard(fetch)
    await joins.close()


async def test_it_is_given_back_after_two_saves_of_the_new_round(job):
    """When the second is made the first is whole everywhere: nobody goes on from what is older."""
    job = await saved(job)
    await job[0].replicator.adopt_shards(order(7, of(job, 1), of(job, 2)))
    await job[0].round(parts_seat(job, ()), 7, replicas=0)
    await job[0].save(8)
    assert len(await job[0].replicator.held_steps(())) == 2
    await job[0].save(9)
    assert await job[0].replicator.held_steps(()) == ()
    assert job[0].words().count("replica_removed") == 2


async def test_it_is_given_back_where_a_save_finds_no_other_memory(job):
    job = await saved(job)
    await job[0].replicator.adopt_shards(order(7, of(job, 1)))
    assert not job[0].replicator.free_earlier_rounds(), "not in the round in which it was saved"
    await job[0].round(parts_seat(job, ()), 7, replicas=0)
    assert job[0].replicator.free_earlier_rounds()
    assert not job[0].replicator.free_earlier_rounds()
