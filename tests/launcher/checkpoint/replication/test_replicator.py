"""Copies from daemon to daemon, over sockets: every byte as it was saved, one step for all, and always one whole."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest

from tests.kit.wait import until_async
from tests.launcher.checkpoint.replication.world import ReplicaDaemon
from turnout.launcher.checkpoint.format.arena_layout import offset_of
from turnout.launcher.coordinator_messages import ALL, HeldStep
from turnout.launcher.errors import BadCheckpoint

pytestmark = pytest.mark.asyncio


async def test_each_keeps_the_two_newest_steps_of_another(job):
    job = job(3)
    await job.form()
    for step in (4, 5, 6):
        await job.save(step)
        await job.copied(step)
    assert [job[(at + 1) % 3].kept(job[at]) for at in range(3)] == [[6, 5]] * 3
    assert await job[0].replicator.held_steps(()) == (HeldStep(6, 2, 3, 1, 1), HeldStep(5, 2, 3, 1, 1))
    assert job.messages[0][1] == [], "nothing is to be told"
    assert [each.ends() for each in job.daemons] == [
        [(step, at, "done", True) for step in (4, 5, 6)] for at in range(3)
    ]


async def test_a_copy_goes_with_the_word_of_where_in_storage_it_belongs(job):
    """A save is seen in shared memory before its word is read: a copy without it would go to another folder."""
    job = job(2)
    await job.form()
    word = await job[1].seal(5, "checkpoints/5")
    await job[0].save(5)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await until_async(lambda: job[0].kept(job[1]))
    await job[1].tell(word)
    await job.copied(5)
    assert job[0].goes(job[1]) == {5: "checkpoints/5"}


async def test_a_word_of_an_older_save_of_that_step_is_not_the_newer_ones(job):
    job = job(2)
    await job.form()
    older = await job[1].seal(5, "older")
    newer = await job[1].seal(5, "newer")
    await job[0].save(5)
    await job[1].tell(older)
    await job.copied(5)
    assert job[0].goes(job[1]) == {5: "older"}
    assert newer.epoch > older.epoch


async def test_two_copies_of_each(job):
    job = job(3)
    await job.form(replicas=2)
    await job.save(4)
    await job.copied(4)
    assert [job[other].kept(job[at]) for at in range(3) for other in range(3) if other != at] == [[4]] * 6


def common(job):
    """A step that every daemon holds of its own and of whom it keeps for: whoever is lost, all go on from it."""
    shared = None
    for at, each in enumerate(job.daemons):
        own = {slot.record.step for slot in each.arena.slots() if slot.record}
        steps = set(job[(at + 1) % len(job.daemons)].kept(each))
        shared = own & steps if shared is None else shared & own & steps
    return max(shared, default=-1)


async def test_saves_that_come_faster_are_overtaken_and_one_step_is_always_whole(job):
    """4 MiB a second, and a save whenever there is room: training never waits, the newest is copied, all hold one."""
    job = job(3, bytes_s=4 << 20)
    for each in job.daemons:
        each.size = 1 << 20
    await job.form()
    await job.save(0)
    await job.copied(0)
    wholes, step = [0], 0
    while len(wholes) < 4:
        step += 1
        await job.save(step)
        assert common(job) >= wholes[-1], job.messages
        wholes += [found] if (found := common(job)) > wholes[-1] else []
    await job.copied(step)
    assert all(uncopied for _, uncopied in (each.replicator.progress() for each in job.daemons))
    for each in job.daemons:
        outcomes = [outcome for _, _, outcome, _ in each.ends()]
        assert outcomes.count("superseded") == each.replicator.progress()[1]


@pytest.mark.contract("DL-60")
async def test_a_replacement_takes_its_shard_from_a_buddy(job):
    """DL-60: equal, bit by bit, and over a socket: its folder is new and empty."""
    job = job(3)
    await job.form()
    await job.save(4)
    await job.copied(4)
    await job.replaced(1)
    await job[1].round(job.seat(1, 2, saved_round=1, fetch_from=(job[2].endpoint,)), 4)
    assert job[1].own() == 4
    assert job[1].words() == ["step_fetched"]
    for at in (0, 2):
        await job[at].round(job.seat(at, 2), 4)
    await job.save(5)
    await job.copied(5)
    assert [job[(at + 1) % 3].kept(job[at]) for at in range(3)] == [[5], [5, 4], [5, 4]]


async def test_a_new_name_has_its_own_place_and_the_old_one_is_given_back(job):
    job = job(3)
    await job.form()
    await job.save(4)
    await job.copied(4)
    await job.replaced(1, "w9")
    await job[1].round(job.seat(1, 2, saved_round=1, fetch_from=(job[2].endpoint,)), 4)
    for at in (0, 2):
        await job[at].round(job.seat(at, 2), 4)
    for step in (5, 6):
        await job.save(step)
        await job.copied(step)
    assert job[2].kept(job[1]) == [6, 5]
    assert {each.identity.owner for each in job[2].replicator.replica_store.arenas.all()} == {"w9"}
    assert "replica_removed" in job[2].words()


def flip(arena, step):
    """One bit of what this arena has of this step. Not through its own mapping."""
    at = next(at for at, slot in enumerate(arena.slots()) if slot.record and slot.record.step == step)
    with open(arena.path, "r+b", buffering=0) as file:
        file.seek(offset_of(at) + 5_000_000)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


async def test_a_copy_that_has_changed_is_not_restored(job):
    """The reader finds the change, and then has nothing; the holder finds it before it offers the copy again."""
    job = job(2)
    await job.form()
    await job.save(4)
    await job.copied(4)
    flip(job[0].replicator.replica_store.arenas.all()[0], 4)
    await job.replaced(1)
    with pytest.raises(BadCheckpoint, match="w0: chunk 1 is not what was sent"):
        await job[1].round(job.seat(1, 2, saved_round=1, fetch_from=(job[0].endpoint,)), 4)
    assert [slot.record for slot in job[1].arena.slots()] == [None] * 4
    assert await job[0].replicator.held_steps(()) == ()
    assert job[0].words() == ["memory_corrupt"]


async def test_of_several_who_have_it_the_next_is_asked(job):
    job = job(3)
    await job.form(replicas=2)
    await job.save(4)
    await job.copied(4)
    flip(job[0].replicator.replica_store.arenas.all()[0], 4)
    flip(job[0].replicator.replica_store.arenas.all()[1], 4)
    await job.replaced(1)
    await job[1].round(job.seat(1, 2, saved_round=1, fetch_from=(job[0].endpoint, job[2].endpoint)), 4)
    assert job[1].own() == 4
    assert job[1].messages == [("step_fetched", {"step": 4, "from": "w2"})]


async def test_what_nobody_has_is_not_had(job):
    job = job(2)
    await job.form()
    await job.save(4)
    await job.copied(4)
    await job.replaced(1)
    with pytest.raises(BadCheckpoint, match="not_here"):
        await job[1].round(job.seat(1, 2, saved_round=7, fetch_from=(job[0].endpoint,)), 4)
    await job[0].close()
    with pytest.raises(BadCheckpoint, match="w0"):
        await job[1].round(job.seat(1, 3, saved_round=1, fetch_from=(job[0].endpoint,)), 4)


async def test_a_restarted_daemon_finds_its_replicas(job):
    job = job(2)
    await job.form()
    await job.save(4)
    await job.copied(4)
    await job[0].close(remove=False)
    job.daemons[0] = ReplicaDaemon(job[0].daemon.folder, "w0", 0)
    assert await job[0].replicator.held_steps(()) == (HeldStep(4, 1, 2, 1, 1),)
    assert job[0].kept(job[1]) == [4]


async def test_what_is_kept_goes_with_the_job(job):
    job = job(2)
    await job.form()
    await job.save(4)
    await job.copied(4)
    folders = [each.daemon.folder for each in job.daemons]
    assert [len(list(folder.glob("turnout-*.arena"))) for folder in folders] == [2, 2]
    await job.close()
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


async def test_what_is_newer_than_what_all_go_on_from_is_thrown_away(job):
    job = job(2)
    await job.form()
    for step in (4, 5):
        await job.save(step)
        await job.copied(step)
    await job[0].replicator.replica_store.forget_after(4)
    assert job[0].kept(job[1]) == [4]


@pytest.mark.parametrize("ranks", [
    pytest.param(2, id="each has one"),
    pytest.param(1, id="it was alone when it saved it, and those that come now have none"),
])  # fmt: skip
async def test_a_state_that_is_the_same_on_all_ranks_is_given_by_whoever_has_it(job, ranks):
    """Nobody keeps a copy of it for another. Of a rank alone that has not said so it is no state of others."""
    job = job(ranks)
    for at, each in enumerate(job.daemons):
        await each.round(job.seat(at), meets=False)
    own = (HeldStep(4, 0, ALL, 1), HeldStep(4, 0, 1, 1))
    assert await job[0].replicator.held_steps(own) == ()
    job[0].replicator.register(job[0].hello(0))
    assert await job[0].replicator.held_steps(own) == ()
    job[0].replicator.register(job[0].hello(0, replicated=True))
    assert await job[0].replicator.held_steps(own) == (HeldStep(4, 0, ALL, 1, 1),)


async def test_who_trained_alone_gives_what_its_process_calls_replicated(job):
    """hack.chaos, seed 5: a world of one grew, and all read storage."""
    job = job(1)
    await job[0].round(job.seat(0), meets=False)
    own = (HeldStep(4, 0, ALL, 1),)
    job[0].replicator.register(job[0].hello(0))
    assert await job[0].replicator.held_steps(own) == (), "it may be the shard of a rank that was alone"
    job[0].replicator.register(msgspec.structs.replace(job[0].hello(0), replicated=True))
    assert await job[0].replicator.held_steps(own) == (HeldStep(4, 0, ALL, 1, 1),)


async def test_a_member_that_comes_late_is_waited_for(job):
    """Copies begin when all have come, since only then a step is worth anything."""
    job = job(3)
    for at in (0, 1):
        await job[at].round(job.seat(at))
        await job[at].save(4)
    assert job[1].kept(job[0]) == []
    await job[2].round(job.seat(2))
    await job[2].save(4)
    await job.copied(4)
    assert job[1].kept(job[0]) == [4]


async def test_a_save_that_finds_no_room_ends_the_copy_that_is_under_way(job):
    job = job(2, bytes_s=1 << 20)
    await job.form()
    await job.save(4)
    await until_async(lambda: any(slot.pinned for slot in job[0].arena.slots()))
    assert job[0].replicator.abandon_copy()
    assert not any(slot.pinned for slot in job[0].arena.slots())


async def test_a_source_whose_daemon_is_dead_is_given_up_within_seconds(job):
    """Its agent still holds the socket, so that a connection is accepted by nobody and yet stands."""
    job = job(3)
    await job.form()
    await job.save(4)
    await job.copied(4)
    await job.replaced(1)
    with socket.create_server(("127.0.0.1", 0)) as dead:
        dead_endpoint = msgspec.structs.replace(job[0].endpoint, port=dead.getsockname()[1])
        began_s = asyncio.get_running_loop().time()
        await job[1].round(job.seat(1, 2, saved_round=1, fetch_from=(dead_endpoint, job[2].endpoint)), 4)
    assert asyncio.get_running_loop().time() - began_s < 8.0
    assert job[1].own() == 4
    (passed,) = [fields for what, fields in job[1].messages if what == "source_silent"]
    assert passed["from"] == dead_endpoint.name
