"""Which step a world goes on from in memory, by what its members have told of theirs, and who fetches it from whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.keeping import ALL, BARRED, Door
from launcher.model import World
from launcher.rendezvous.held import restorable as choice_of
from launcher.wire import Held
from tests.launcher.rendezvous.story import NO_BASE, Budget, Formed, Joined, Ready, Said, Story, member

A, B, C = (0, 2), (1, 2), (0, 3)  # the first rank, and of how many


def world(names="ab", processes=1):
    """Each member has so many ranks, in this order."""
    return World.of(5, tuple(member(name, processes=processes) for name in names))


def held(*steps, place=A, round_=4, count=0):
    """count: of ranks, where they are kept for others."""
    return tuple(Held(step, *place, round_, count) for step in steps)


def restorable(there, memory, members=None):
    return choice_of(there, memory, members).step


@pytest.mark.parametrize(("memory", "step"), [
    pytest.param({"a": held(7, 6), "b": held(7, 6, place=B)}, 7, id="the newest that both have"),
    pytest.param({"a": held(7, 6), "b": held(6, 5, place=B)}, 6, id="one was a save ahead"),
    pytest.param({"a": held(7, 6), "b": held(5, 4, place=B)}, -1, id="nothing that both have"),
    pytest.param({"a": held(7), "b": ()}, -1, id="one has nothing"),
    pytest.param({"a": held(7)}, -1, id="one has told nothing"),
    pytest.param({}, -1, id="nobody has told anything"),
    pytest.param({"a": held(7, place=B), "b": held(7, place=A)}, -1, id="the ranks are the other's now"),
    pytest.param({"a": held(7, place=C), "b": held(7, place=(1, 3))}, -1, id="of a world of another size"),
    pytest.param({"a": held(7), "b": held(7, place=B, round_=3)}, -1, id="two rounds made two states of one step"),
    pytest.param({"a": held(7) + held(6, round_=3), "b": held(7, 6, place=B, round_=3)}, 6, id="of an older round"),
    pytest.param({"a": held(9, place=(0, ALL)), "b": held(9, place=(0, ALL))}, 9, id="the same state for all"),
    pytest.param({"a": held(9, place=(0, ALL)), "b": ()}, -1, id="which one of them does not have"),
    pytest.param({"a": held(7), "b": held(7, place=B), "c": held(1)}, 7, id="who is not in the world does not count"),
])  # fmt: skip
def test_what_is_restored(memory, step):
    """DL-108: what another rank has saved is no memory of ours."""
    assert restorable(world(), {f"{name}/0": each for name, each in memory.items()}) == step


def test_each_has_several_ranks():
    memory = {"a/0": held(3, place=(0, 4)), "b/0": held(3, place=(2, 4))}
    assert restorable(world(processes=2), memory) == 3
    assert restorable(world(processes=2), memory | {"b/0": held(3, place=(1, 4))}) == -1


def test_a_world_of_nobody_has_nothing():
    assert restorable(World(1), {}) == -1


def fetches(memory, names="ab", processes=1, more=""):
    """The step that is gone on from, and who fetches from whom. more: members that are not in this world."""
    there = {f"{name}/0": member(name, processes=processes, keeper=7) for name in names + more}
    found = choice_of(world(names, processes), {f"{name}/0": each for name, each in memory.items()}, there)
    return found.step, {id_[0]: [door.name for door in doors] for id_, doors in found.fetch.items()}


B_AT = {"place": B, "count": 1}


@pytest.mark.parametrize(("memory", "found"), [
    pytest.param({"a": held(7, 6), "b": held(7, 6, place=B)}, (7, {}), id="its own comes first"),
    pytest.param({"a": held(7) + held(7, **B_AT)}, (7, {"b": ["a"]}), id="b has lost its memory, a keeps a copy"),
    pytest.param({"a": held(9, 7) + held(7, **B_AT)}, (7, {"b": ["a"]}), id="the copy is older than what a has"),
    pytest.param({"a": held(9, 7) + held(8, **B_AT)}, (-1, {}), id="a has no step of which it keeps a copy"),
    pytest.param({"a": held(7) + held(7, round_=3, **B_AT)}, (-1, {}), id="a copy of another round's state"),
    pytest.param({"a": held(7) + held(7, place=C, count=1)}, (-1, {}), id="a copy of a world of another size"),
    pytest.param(
        {"a": held(7, 6) + held(6, **B_AT), "b": held(6, place=B)}, (6, {}), id="own memory is as new as the copy"
    ),
    pytest.param(
        {"a": held(7, 6) + held(7, **B_AT), "b": held(6, place=B)}, (7, {"b": ["a"]}), id="a newer copy than its own"
    ),
    pytest.param({"a": held(7, place=B), "b": held(7)}, (7, {"a": ["b"], "b": ["a"]}), id="the ranks are the other's"),
    pytest.param(
        {"a": held(7) + held(7, **B_AT), "b": (BARRED,)}, (-1, {}), id="who could not fetch does not try it again"
    ),
    pytest.param(
        {"a": held(7) + held(7, **B_AT), "b": (BARRED, *held(7, place=B))}, (7, {}), id="but has what is its own"
    ),
    pytest.param({"a": held(9, place=(0, ALL))}, (-1, {}), id="perhaps the same on all ranks: nobody says so"),
    pytest.param(
        {"a": held(9, place=(0, ALL)) + held(9, place=(0, ALL), count=1)}, (9, {"b": ["a"]}), id="the same on all ranks"
    ),
])  # fmt: skip
def test_what_a_member_lacks_it_fetches(memory, found):
    """DL-60: from the memory of who keeps a copy, or of who has those ranks as its own."""
    assert fetches(memory) == found


def test_a_spare_gives_what_it_keeps():
    assert fetches({"a": held(7), "s": held(7, **B_AT)}, more="s") == (7, {"b": ["s"]})


def test_a_seat_of_several_ranks_is_fetched_whole_or_not():
    theirs = {"place": (2, 4)}
    assert fetches({"a": held(3, place=(0, 4)) + held(3, **theirs, count=2)}, processes=2) == (3, {"b": ["a"]})
    assert fetches({"a": held(3, place=(0, 4)) + held(3, **theirs, count=1)}, processes=2) == (-1, {})


def test_several_that_lack_it_ask_several():
    memory = {name: held(5, place=(at, ALL)) + held(5, place=(0, ALL), count=1) for at, name in enumerate("ab")}
    step, whom = fetches(memory, names="abcd")
    assert step == 5
    assert [first for first, *_ in whom.values()] == ["a", "b"]
    assert all(sorted(doors) == ["a", "b"] for doors in whom.values())


def test_who_has_no_door_gives_nothing():
    memory = {"a/0": held(7) + held(7, **B_AT)}
    assert choice_of(world(), memory, {"a/0": member("a"), "b/0": member("b", keeper=7)}).step == -1


memories = st.lists(
    st.builds(Held, st.integers(0, 5), st.integers(0, 2), st.integers(0, 3), st.integers(1, 3)), max_size=5
)


@given(each=st.fixed_dictionaries({f"{name}/0": memories for name in "abc"}))
def test_whatever_is_restored_everybody_holds_as_its_own(each):
    """One state of that step, each for its own ranks or the same for all; and there is no newer one."""
    found = world("abc")

    def whole(step):
        return any(
            all(
                any(
                    (mine.step, mine.round, mine.ranks) == (step, round_, ranks)
                    and (ranks == ALL or mine.first_rank == found.seats[id_].first_rank)
                    for mine in each[id_]
                )
                for id_ in found.seats
            )
            for round_ in range(1, 4)
            for ranks in (ALL, 3)
        )

    assert restorable(found, each) == max(filter(whole, range(6)), default=-1)


def stopped(job):
    """A process of b fails; both have stopped theirs when they are told to."""
    job.fail("b")
    assert job.phase == "stopping"


def answers(job, memory):
    """Each says that it has stopped, and what it holds; then the next world is formed."""
    for name, holds in memory.items():
        job.happens(Said(job.ids[name], Ready(job.state.round, 1, (), holds)))
    return {name: job.last(name, Formed).restore for name in memory}


def test_all_members_are_told_one_step():
    """It travels with Ready, and comes back with Formed."""
    job = Story("2", only=True).join("a", "b")
    assert job.last("b", Formed).restore == -1, "nobody has trained yet"
    stopped(job)
    assert answers(job, {"a": held(8, 7), "b": held(7, 6, place=B)}) == {"a": 7, "b": 7}


def test_who_comes_back_brings_its_memory_along():
    """With its Join. The other has stopped by then, and has said what it holds."""
    job = Story("2", only=True).join("a", "b")
    job.lose("b")
    job.happens(Said(job.ids["a"], Ready(job.state.round, 1, (), held(8, 7))))
    came = member("b", 1)
    job.ids["b"] = came.id
    job.happens(Joined(came, job.terms, NO_BASE, Budget(), 0, held(8, place=B)))
    assert (job.last("a", Formed).restore, job.last("b", Formed).restore) == (8, 8)


@pytest.mark.parametrize(("kept", "restore"), [((), -1), (held(7, **B_AT), 7)])
def test_who_comes_back_without_it_has_a_copy_or_all_read_storage(kept, restore):
    job = Story("2", only=True).join("a", "b", keeper=9)
    job.lose("b")
    job.happens(Said(job.ids["a"], Ready(job.state.round, 1, (), held(8, 7) + kept)))
    came = member("b", 1, keeper=9)
    job.ids["b"] = came.id
    job.happens(Joined(came, job.terms, NO_BASE, Budget(), 0))
    told = job.last("a", Formed), job.last("b", Formed)
    assert [each.restore for each in told] == [restore, restore]
    assert [each.origin for each in told] == [4, 4] if kept else [0, 0]
    assert told[0].fetch == ()
    assert told[1].fetch == ((Door("a/0", "a", "127.0.0.1", 9),) if kept else ())


def test_what_was_told_of_one_round_is_not_believed_in_the_next():
    """Between two failures each says anew what it holds: the newest Ready counts."""
    job = Story("2", only=True).join("a", "b")
    stopped(job)
    answers(job, {"a": held(8), "b": held(8, place=B)})
    stopped(job)
    assert answers(job, {"a": held(9, 8), "b": ()}) == {"a": -1, "b": -1}
