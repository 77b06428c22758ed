"""The keeper and storage: which of its saves get there when it is slow, what is there, and what is swept from it."""

import os
import time

import pytest

from tests.launcher.agents.crew import until
from tests.launcher.memory.test_keeper import hello, keeper  # noqa: F401 -- keeper is a fixture
from tests.launcher.storage import world
from turnout.launcher.checkpoint.generations import Record
from turnout.launcher.checkpoint.wire import (
    Agreed,
    Ask,
    Done,
    Failed,
    Hashed,
    Holdings,
    Look,
    MadeRoom,
    Need,
    Overtake,
    Pinned,
    Sealed,
    Seat,
    Settle,
    Stats,
    Stored,
)
from turnout.launcher.checkpoint.wire import Arena as ArenaAt
from turnout.launcher.shell.memory.arena import Arena
from turnout.launcher.shell.storage.opening import open_store
from turnout.launcher.shell.storage.reader import steps

BYTE_S = {"TURNOUT_PERSIST_BYTES_S": "1"}  # what has more than a mebibyte is written for as long as the test lasts
LARGE_BYTES = 2 << 20


def record(step, rank=0, size_bytes=world.SMALL_BYTES):
    whole = len(world.region(step, rank, size_bytes=size_bytes))
    return Record(0, step, 1, rank, 2, whole - size_bytes, size_bytes)


def opened(talk, local_rank=0):
    """The arena of this local rank, which the keeper has made for it."""
    talk.ask(hello(local_rank), ArenaAt)
    return Arena.open(talk.ask(Need(record(0, size_bytes=LARGE_BYTES).region_bytes, 3), ArenaAt).path)


def opened_again(talk):
    """The same, of a process that has said who it is."""
    talk.hear(ArenaAt)
    return Arena.open(talk.ask(Need(record(0, size_bytes=LARGE_BYTES).region_bytes, 3), ArenaAt).path)


def save(arena, step, rank=0, size_bytes=world.SMALL_BYTES):
    """Write a generation that can be stored, and seal it. Gives its number and its record."""
    made = record(step, rank, size_bytes)
    generation = arena.begin(made)
    arena.map(generation, made.shard_bytes)[:] = world.region(step, rank, size_bytes=size_bytes)
    return generation, arena.seal(generation, made)


def to_disk(talk, arena, step, target, rank=0, **more):
    generation, made = save(arena, step, rank, **more)
    talk.ask(Sealed(generation, made.epoch, step, str(target)), Pinned)


def in_line(one, talk, arena, target, *more):
    """Save these steps. Once this returns the first is being written, and the others, which are hashed, wait."""
    to_disk(talk, arena, more[0], target, size_bytes=LARGE_BYTES)
    until(lambda: list(target.glob("step-*/.*.tmp")), one.log.read_text)
    assert talk.hear(Hashed).step == more[0]
    for step in more[1:]:
        to_disk(talk, arena, step, target)
        assert talk.hear(Hashed).step == step


def test_a_save_that_finds_no_room_overtakes_the_oldest_that_waits_for_storage(keeper, tmp_path):  # noqa: F811
    """It is told, and counted; the one that is being written stays, and so does the newest that is sealed."""
    one, target = keeper(**BYTE_S), tmp_path / "stored"
    talk = one.meet()
    arena = opened(talk)
    in_line(one, talk, arena, target, 1, 2, 3)
    assert arena.begin(record(4)) is None
    assert talk.ask(Overtake(), MadeRoom).step == 2
    lost = talk.hear(Failed)
    assert (lost.step, lost.reason) == (2, "overtaken")
    until(lambda: "save_overtaken step=2" in one.log.read_text(), "it is logged")
    assert talk.ask(Ask(), Stats).overtaken == 1
    save(arena, 4)
    assert {slot.record.step for slot in arena.slots()} == {1, 3, 4}
    assert talk.ask(Overtake(), MadeRoom).step == 3, "the newest is another one now"
    assert talk.ask(Overtake(), MadeRoom).step == -1, "the one that is written stays"
    assert talk.ask(Ask(), Stats).failures == 0


def test_the_newest_save_is_never_overtaken(keeper, tmp_path):  # noqa: F811
    one, target = keeper(**BYTE_S), tmp_path / "stored"
    talk = one.meet()
    arena = opened(talk)
    in_line(one, talk, arena, target, 1, 2)
    assert talk.ask(Overtake(), MadeRoom).step == -1


def committed(keeper, target, step):  # noqa: F811
    """A keeper whose two local ranks have saved this step there, and the connection of its agent."""
    one = keeper()
    talks = [one.meet(), one.meet()]
    for local_rank, talk in enumerate(talks):
        to_disk(talk, opened(talk, local_rank), step, target, local_rank)
    until(lambda: step in steps(open_store(str(target)), world.Said()), one.log.read_text)
    return one, one.meet()


def test_what_is_in_storage_is_told(keeper, tmp_path):  # noqa: F811
    """Nothing is told of a folder that nobody has named."""
    agent = keeper(worker="w1").meet()
    assert agent.ask(Look(), Stored) == Stored()
    target = tmp_path / "stored"
    _, agent = committed(keeper, target, 7)
    world.save(open_store(str(target)), 9, 0)
    assert agent.ask(Look(), Stored) == Stored(str(target), 7), "what is not committed is not there"


@pytest.mark.parametrize("writes", [
    pytest.param(True, id="its process wrote there"),
    pytest.param(False, id="another rank wrote what is the same on all"),
])  # fmt: skip
def test_a_keeper_that_is_started_anew_knows_the_folder_and_sees_what_others_have_committed(
    keeper,  # noqa: F811
    tmp_path,
    writes,
):
    """Before its process has come: hack.chaos, seed 6."""
    one, target = keeper(), tmp_path / "stored"
    store = open_store(str(target))
    store.prepare()
    talk = one.meet(hello(target=str(target) if writes else "", reads=str(target)))
    save(opened_again(talk), 7)
    world.save_all(store, 9)
    one.process.kill()
    agent = keeper().meet()
    assert [held.step for held in agent.ask(Settle(1), Holdings).held] == [7]
    assert agent.ask(Look(), Stored) == Stored(str(target), 9)


def test_what_it_held_goes_nowhere_when_the_world_goes_on_from_the_newer_step(keeper, tmp_path):  # noqa: F811
    """What is saved then is committed, though rounds may be counted anew: nobody but us remembers the older ones."""
    one, target = keeper(), tmp_path / "stored"
    store = open_store(str(target))
    store.prepare()
    arena = opened_again(one.meet(hello(target=str(target))))
    save(arena, 7)
    arena.close()
    world.save_all(store, 9)
    one.process.kill()
    one = keeper()
    agent = one.meet()
    assert agent.ask(Settle(1), Holdings).held[0].round == 1
    assert agent.ask(Agreed(-1, Seat(1, 0, 2, 2), carry=9), Done)
    assert agent.ask(Settle(1), Holdings).held == ()
    assert not (target / "step-0000000007").exists()
    for local_rank in (0, 1):
        talk = one.meet()
        to_disk(talk, opened(talk, local_rank), 10, target, local_rank)
    until(lambda: steps(store, world.Said()) == (9, 10), one.log.read_text)


@pytest.mark.parametrize("there", [
    pytest.param(True, id="it is empty"),
    pytest.param(False, id="it is gone: somebody else may see it"),
])  # fmt: skip
def test_a_folder_that_a_process_has_named_and_nobody_has_saved_to(keeper, tmp_path, there):  # noqa: F811
    folder = tmp_path / "stored"
    if there:
        folder.mkdir()
    one = keeper()
    one.meet().ask(hello(target=str(folder)), ArenaAt)
    assert one.meet().ask(Look(), Stored) == (Stored(str(folder), -1) if there else Stored())


def test_when_the_world_reads_storage_what_waits_for_a_rank_that_is_lost_is_given_up(keeper, tmp_path):  # noqa: F811
    one, target = keeper(), tmp_path / "stored"
    talk = one.meet()
    to_disk(talk, opened(talk), 7, target)
    agent = one.meet()
    assert agent.ask(Agreed(-1), Done)
    assert agent.ask(Look(), Stored) == Stored(str(target), -1)
    world.save(open_store(str(target)), 7, 1, run="job")
    until(lambda: "checkpoint_incomplete step=7 missing=[1]" in one.log.read_text(), one.log.read_text)
    assert steps(open_store(str(target)), world.Said()) == ()


@pytest.mark.parametrize(("age_s", "stays"), [
    pytest.param(7_200, False, id="old leftovers go with the next commit"),
    pytest.param(600, True, id="their writer may live"),
])  # fmt: skip
def test_what_killed_writers_have_left_is_swept(keeper, tmp_path, age_s, stays):  # noqa: F811
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
    one, _ = committed(keeper, target, 7)
    if not stays:
        until(lambda: one.log.read_text().count("leftover_removed") == 3, one.log.read_text)
    else:
        one.end(done=False)
    assert aside.exists() is stays
    assert (target / "step-0000000005" / "rank-00000.safetensors").exists() is stays
    assert mine.exists()
    assert steps(store, world.Said()) == (3, 7)
