"""Which step a world goes on from in memory, by what its members have told of theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.model import World
from launcher.rendezvous.held import ALL, restorable
from launcher.wire import Held
from tests.launcher.rendezvous.story import NO_BASE, Budget, Formed, Joined, Ready, Said, Story, member

A, B, C = (0, 2), (1, 2), (0, 3)  # the first rank, and of how many


def world(names="ab", processes=1):
    """Each member has so many ranks, in this order."""
    return World.of(5, tuple(member(name, processes=processes) for name in names))


def held(*steps, place=A, round_=4):
    return tuple(Held(step, *place, round_) for step in steps)


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


memories = st.lists(
    st.builds(Held, st.integers(0, 5), st.integers(0, 2), st.integers(0, 3), st.integers(1, 3)), max_size=5
)


@given(each=st.fixed_dictionaries({f"{name}/0": memories for name in "abc"}))
def test_whatever_is_restored_everybody_holds_as_its_own(each):
    """One round's state of that step, each for its own ranks; and there is no newer step of which this is true."""
    found = world("abc")

    def whole(step):
        return any(
            all(
                any(
                    (mine.step, mine.round) == (step, round_)
                    and (mine.ranks == ALL or (mine.first_rank, mine.ranks) == (found.seats[id_].first_rank, 3))
                    for mine in each[id_]
                )
                for id_ in found.seats
            )
            for round_ in range(1, 4)
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


def test_who_comes_back_without_it_has_all_read_storage():
    job = Story("2", only=True).join("a", "b")
    job.lose("b")
    job.happens(Said(job.ids["a"], Ready(job.state.round, 1, (), held(8, 7))))
    came = member("b", 1)
    job.ids["b"] = came.id
    job.happens(Joined(came, job.terms, NO_BASE, Budget(), 0))
    assert (job.last("a", Formed).restore, job.last("b", Formed).restore) == (-1, -1)


def test_what_was_told_of_one_round_is_not_believed_in_the_next():
    """Between two failures each says anew what it holds: the newest Ready counts."""
    job = Story("2", only=True).join("a", "b")
    stopped(job)
    answers(job, {"a": held(8), "b": held(8, place=B)})
    stopped(job)
    assert answers(job, {"a": held(9, 8), "b": ()}) == {"a": -1, "b": -1}
