"""The daemon and storage: which of its saves get there when it is slow, what is there, and what is swept from it."""

import os
import signal
import time

import pytest

from tests.kit.wait import until
from tests.launcher.checkpoint.daemon.test_daemon import daemon, hello  # noqa: F401 -- daemon is a fixture
from tests.launcher.checkpoint.storage import world
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import ArenaPath as ArenaAt
from turnout.launcher.checkpoint.format.daemon_messages import (
    Done,
    DropOldestSave,
    FindStored,
    GetHeldSteps,
    GetStats,
    Hashed,
    HeldSteps,
    Pinned,
    ReserveMemory,
    Restore,
    Save,
    SaveDropped,
    SaveFailed,
    Stats,
    StoredStep,
    Wait,
)
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.step_reader import committed_steps
from turnout.launcher.coordinator_messages import RestorePlace

BYTE_S = {"TURNOUT_PERSIST_BYTES_S": "1"}  # what has more than a mebibyte is written for as long as the test lasts
LARGE_BYTES = 2 << 20


def record(step, rank=0, size_bytes=world.SMALL_BYTES):
    total_bytes = len(world.region(step, rank, size_bytes=size_bytes))
    return ShardRecord(0, step, 1, rank, 2, total_bytes - size_bytes, size_bytes)


def opened(connection, local_rank=0):
    """The arena of this local rank, which the daemon has made for it."""
    connection.ask(hello(local_rank), ArenaAt)
    return Arena.open(connection.ask(ReserveMemory(record(0, size_bytes=LARGE_BYTES).region_bytes, 3), ArenaAt).path)


def opened_again(connection):
    """Open the arena again, as a process that has said who it is."""
    connection.hear(ArenaAt)
    return Arena.open(connection.ask(ReserveMemory(record(0, size_bytes=LARGE_BYTES).region_bytes, 3), ArenaAt).path)


def save(arena, step, rank=0, size_bytes=world.SMALL_BYTES):
    """Write a generation that can be stored, and seal it. Gives its number and its record."""
    save_record = record(step, rank, size_bytes)
    generation = arena.begin(save_record)
    arena.map(generation, save_record.shard_bytes)[:] = world.region(step, rank, size_bytes=size_bytes)
    return generation, arena.seal(generation, save_record)


def to_disk(connection, arena, step, target, rank=0, **more):
    generation, save_record = save(arena, step, rank, **more)
    connection.ask(Save(generation, save_record.epoch, step, str(target)), Pinned)


def in_line(one, connection, arena, target, *more):
    """Save these steps. Once this returns the first is being written, and the others, which are hashed, wait."""
    to_disk(connection, arena, more[0], target, size_bytes=LARGE_BYTES)
    until(lambda: list(target.glob("step-*/.*.tmp")), one.log.read_text)
    assert connection.hear(Hashed).step == more[0]
    for step in more[1:]:
        to_disk(connection, arena, step, target)
        assert connection.hear(Hashed).step == step


def test_a_save_without_room_overtakes_the_oldest_that_waits_for_storage(daemon, tmp_path):  # noqa: F811
    """The overtaking is told and counted; the save being written and the newest sealed one stay."""
    one, target = daemon(**BYTE_S), tmp_path / "stored"
    connection = one.meet()
    arena = opened(connection)
    in_line(one, connection, arena, target, 1, 2, 3)
    assert arena.begin(record(4)) is None
    assert connection.ask(DropOldestSave(), SaveDropped).step == 2
    lost = connection.hear(SaveFailed)
    assert (lost.step, lost.reason) == (2, "overtaken")
    until(lambda: "save_overtaken step=2" in one.log.read_text(), "it is logged")
    assert connection.ask(GetStats(), Stats).dropped == 1
    save(arena, 4)
    assert {slot.record.step for slot in arena.slots()} == {1, 3, 4}
    assert connection.ask(DropOldestSave(), SaveDropped).step == 3, "the newest is another one now"
    assert connection.ask(DropOldestSave(), SaveDropped).step == -1, "the one that is written stays"
    assert connection.ask(GetStats(), Stats).failures == 0


def test_the_newest_save_is_never_overtaken(daemon, tmp_path):  # noqa: F811
    one, target = daemon(**BYTE_S), tmp_path / "stored"
    connection = one.meet()
    arena = opened(connection)
    in_line(one, connection, arena, target, 1, 2)
    assert connection.ask(DropOldestSave(), SaveDropped).step == -1


def committed(daemon, target, step):  # noqa: F811
    """A daemon whose two local ranks have saved this step there, and the connection of its agent."""
    one = daemon()
    connections = [one.meet(), one.meet()]
    for local_rank, connection in enumerate(connections):
        to_disk(connection, opened(connection, local_rank), step, target, local_rank)
    until(lambda: step in committed_steps(open_store(str(target)), world.Said()), one.log.read_text)
    return one, one.meet()


def test_a_pending_wait_holds_no_later_save_back_and_awaits_none(daemon, tmp_path):  # noqa: F811
    """Rank 0 has finished a step once rank 1 has stored its shard, too: step 8 is never complete."""
    one, target = daemon(), tmp_path / "stored"
    first, second = one.meet(), one.meet()
    arenas = [opened(connection, local_rank) for local_rank, connection in enumerate((first, second))]
    to_disk(first, arenas[0], 7, target)
    first.say(Wait())
    to_disk(first, arenas[0], 8, target)
    to_disk(second, arenas[1], 7, target, 1)
    assert first.hear(Done)
    assert first.ask(GetStats(), Stats).in_flight == 1


def test_what_a_process_announced_before_it_ended_is_stored(daemon, tmp_path):  # noqa: F811
    """The daemon, which had no time meanwhile, cannot answer the process any more. What it has sent counts."""
    one, target = daemon(), tmp_path / "stored"
    for local_rank in (0, 1):
        connection = one.meet()
        generation, save_record = save(opened(connection, local_rank), 7, local_rank)
        os.kill(one.process.pid, signal.SIGSTOP)
        connection.say(GetStats())
        connection.say(Save(generation, save_record.epoch, 7, str(target)))
        connection.close()
        os.kill(one.process.pid, signal.SIGCONT)
    assert one.end(done=True) == 0
    assert committed_steps(open_store(str(target)), world.Said()) == (7,)


def test_what_is_in_storage_is_told(daemon, tmp_path):  # noqa: F811
    """Nothing is told of a folder that nobody has named."""
    agent = daemon(worker="w1").meet()
    assert agent.ask(FindStored(), StoredStep) == StoredStep()
    target = tmp_path / "stored"
    _, agent = committed(daemon, target, 7)
    world.save(open_store(str(target)), 9, 0)
    assert agent.ask(FindStored(), StoredStep) == StoredStep(str(target), 7), "what is not committed is not there"


@pytest.mark.parametrize("writes", [
    pytest.param(True, id="its process wrote there"),
    pytest.param(False, id="another rank wrote what is the same on all"),
])  # fmt: skip
def test_a_restarted_daemon_knows_the_folder_and_sees_commits_of_others(
    daemon,  # noqa: F811
    tmp_path,
    writes,
):
    """Before its process has come: hack.chaos, seed 6."""
    one, target = daemon(), tmp_path / "stored"
    store = open_store(str(target))
    store.prepare()
    connection = one.meet(hello(target=str(target) if writes else "", read_folder=str(target)))
    save(opened_again(connection), 7)
    world.save_all(store, 9)
    one.process.kill()
    agent = daemon().meet()
    assert [step.step for step in agent.ask(GetHeldSteps(1), HeldSteps).held_steps] == [7]
    assert agent.ask(FindStored(), StoredStep) == StoredStep(str(target), 9)


def test_held_steps_go_nowhere_when_the_world_goes_on_from_a_newer_one(daemon, tmp_path):  # noqa: F811
    """Later saves are committed though rounds may be counted anew: only this daemon remembers the older ones."""
    one, target = daemon(), tmp_path / "stored"
    store = open_store(str(target))
    store.prepare()
    arena = opened_again(one.meet(hello(target=str(target))))
    save(arena, 7)
    arena.close()
    world.save_all(store, 9)
    one.process.kill()
    one = daemon()
    agent = one.meet()
    assert agent.ask(GetHeldSteps(1), HeldSteps).held_steps[0].round == 1
    assert agent.ask(Restore(-1, RestorePlace(1, 0, 2, 2), persist_step=9), Done)
    assert agent.ask(GetHeldSteps(1), HeldSteps).held_steps == ()
    assert not (target / "step-0000000007").exists()
    for local_rank in (0, 1):
        connection = one.meet()
        to_disk(connection, opened(connection, local_rank), 10, target, local_rank)
    until(lambda: committed_steps(store, world.Said()) == (9, 10), one.log.read_text)


@pytest.mark.parametrize("folder_exists", [
    pytest.param(True, id="it is empty"),
    pytest.param(False, id="it is gone: somebody else may see it"),
])  # fmt: skip
def test_a_folder_that_a_process_has_named_and_nobody_has_saved_to(daemon, tmp_path, folder_exists):  # noqa: F811
    folder = tmp_path / "stored"
    if folder_exists:
        folder.mkdir()
    one = daemon()
    one.meet().ask(hello(target=str(folder)), ArenaAt)
    assert one.meet().ask(FindStored(), StoredStep) == (StoredStep(str(folder), -1) if folder_exists else StoredStep())


def test_when_storage_is_read_what_waits_for_a_lost_rank_is_given_up(daemon, tmp_path):  # noqa: F811
    one, target = daemon(), tmp_path / "stored"
    connection = one.meet()
    to_disk(connection, opened(connection), 7, target)
    agent = one.meet()
    assert agent.ask(Restore(-1), Done)
    assert agent.ask(FindStored(), StoredStep) == StoredStep(str(target), -1)
    world.save(open_store(str(target)), 7, 1, run="job")
    until(lambda: "checkpoint_incomplete step=7 missing=[1]" in one.log.read_text(), one.log.read_text)
    assert committed_steps(open_store(str(target)), world.Said()) == ()


@pytest.mark.parametrize(("age_s", "stays"), [
    pytest.param(7_200, False, id="old leftovers go with the next commit"),
    pytest.param(600, True, id="their writer may live"),
])  # fmt: skip
def test_what_killed_writers_have_left_is_swept(daemon, tmp_path, age_s, stays):  # noqa: F811
    target = tmp_path / "stored"
    store = open_store(str(target))
    store.prepare()
    world.save_all(store, 3)
    world.save(store, 5, 0)
    aside = target / "step-0000000003" / f".rank-00000.safetensors.1.0a1b2c3d.{'0' * 16}.tmp"
    aside.write_bytes(b"part")
    mine = target / "step-0000000005" / "notes.txt"
    mine.write_text("mine")
    for path in target.rglob("*"):
        os.utime(path, (time.time() - age_s,) * 2)
    one, _ = committed(daemon, target, 7)
    if not stays:
        until(lambda: one.log.read_text().count("leftover_removed") == 3, one.log.read_text)
    else:
        one.end(done=False)
    assert aside.exists() is stays
    assert (target / "step-0000000005" / "rank-00000.safetensors").exists() is stays
    assert mine.exists()
    assert committed_steps(store, world.Said()) == (3, 7)
