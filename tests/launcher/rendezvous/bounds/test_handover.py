"""Bounds of drain and handover: who leaves, when the others stop, what is handed over and restored from memory."""

import pytest

from tests.launcher.rendezvous.story import Story, member, running
from turnout.launcher.coordinator_messages import (
    ALL,
    FETCH_DISABLED,
    MAX_LOCATIONS,
    Handover,
    HeldStep,
    Reached,
    Stop,
    StopAt,
    Succeeded,
)
from turnout.launcher.model import World
from turnout.launcher.rendezvous.restore.restore_plan import choose_restore


def test_the_time_of_a_leaver_begins_when_it_is_asked_to_go():
    story = running("ab").wait(100.0).leave("b", 25.0)
    assert story.state.members["b/0"].leave_s == 125.0


def test_a_leaver_in_more_of_a_hurry_brings_the_stop_step_forward():
    story = running("abc").reach("abc", 5).wait(10.0).leave("c", 25.0)
    assert story.state.ending.until_s == 30.0
    assert story.leave("b", 10.0).state.ending.until_s == 18.0
    assert running("abc").reach("abc", 5).leave("c", 10.0).wait(1.0).leave("b", 90.0).state.ending.until_s == 8.0


def test_a_leaver_out_of_time_is_ended_at_once():
    story = running("ab").leave("b", 0.0)
    assert story.last("a", Stop) == Stop(1, "member_left", 0.0)


def test_the_first_step_of_a_job_is_one_to_stop_after():
    assert running("ab").reach("a", 0).leave("b", 25.0).last("a", Stop, StopAt) == StopAt(1, 2, False)


def held_step(step_, rank, of=4, parts=True, count=0):
    return HeldStep(step_, rank, of, 1, count, parts)


def drained(memory, leavers="bcd", nnodes="1:4", grace_s=10.0):
    """They are to go. All have stopped after the same step, and say what they hold."""
    job = (
        Story(nnodes, last_call_s=0.0, only=True).join(*"abcd", daemon_port=7).reach("abcd", 5).leave(leavers, grace_s)
    )
    job.say("abcd", Reached(1, 5))
    for name, holds in memory.items():
        job.say(name, Succeeded(1, holds))
    return job


OWN = {name: (held_step(9, at),) for at, name in enumerate("abcd")}


def test_of_several_steps_the_newest_that_is_whole_is_handed_over():
    """Step 9 lacks a shard, and 8 does not."""
    memory = {name: (held_step(8, at), held_step(9, at)) for at, name in enumerate("abcd")} | {"c": (held_step(8, 2),)}
    assert drained(memory).last("a", Handover).step == 8
    first = {name: (held_step(0, at),) for at, name in enumerate("abcd")}
    assert drained(first).last("a", Handover).step == 0


def test_what_each_has_all_of_is_looked_past_where_only_leavers_have_it():
    memory = OWN | {"d": (held_step(9, 3), HeldStep(9, 0, ALL, 1))}
    assert drained(memory).last("a", Handover).step == 9


def test_who_may_fetch_nothing_holds_nothing_by_saying_so():
    assert drained(dict.fromkeys("abcd", (FETCH_DISABLED,))).last("a", Handover) is None


def test_where_enough_stay_nobody_else_is_waited_for():
    story = running(granted=1).fail("a").ready("abc")
    assert (story.phase, story.state.gathering.expected, story.state.gathering.last_call_s) == ("claiming", 0, 0.0)
    story = running("ab", "2", granted=1).lose("b").ready("a")
    assert (story.phase, story.state.gathering.expected, story.state.gathering.last_call_s) == ("gathering", 2, 1.0)


def test_shards_are_handed_over_within_the_most_of_the_time_that_is_left():
    job = drained(OWN, grace_s=10.0)
    assert job.last("a", Handover).within_s == 8.0
    job.wait(7.999)
    assert job.phase == "handing"
    assert job.wait(0.001).phase == "training"


def test_without_time_nothing_is_handed_over():
    job = drained(OWN, grace_s=0.0)
    job.ready("abcd")
    assert job.last("a", Handover) is None


def test_what_somebody_who_stays_holds_is_taken_from_nobody():
    memory = OWN | {"a": (held_step(9, 0), held_step(9, 1, count=2))}
    job = drained(memory)
    assert [(each.owner, each.first_rank) for each in job.last("a", Handover).shards] == [("d", 3)]


def test_of_a_copy_it_is_told_whose_ranks_it_has():
    memory = {"a": (held_step(9, 0),), "b": (held_step(9, 1), held_step(9, 2, count=2)), "c": (), "d": ()}
    job = drained(memory)
    assert [(each.owner, each.first_rank, each.count) for each in job.last("a", Handover).shards] == [
        ("b", 1, 1), ("ranks 2 and 1 more", 2, 2),
    ]  # fmt: skip


# What a world takes from memory.


def world(names="ab", **more):
    return World.of(5, tuple(member(name, daemon_port=7, **more) for name in names))


def members(member_names):
    return {each.id: each for each in member_names.members}


def test_who_is_named_first_for_a_shard_is_who_has_saved_it():
    members_of_world = world("abc")
    held_by = {"a/0": (held_step(9, 0, 2, count=1),), "b/0": (held_step(9, 0, 2), held_step(9, 1, 2)), "c/0": ()}
    found = choose_restore(members_of_world, held_by, members(members_of_world))
    assert [(each.first_rank, each.endpoint.name) for each in found.locations["c/0"]] == [(0, "b"), (0, "a"), (1, "b")]


def test_each_second_member_asks_for_parts_from_the_other_end():
    members_of_world = world("abcd")
    held_by = {"a/0": (held_step(9, 0, 2),), "b/0": (held_step(9, 1, 2),), "c/0": (), "d/0": ()}
    locations = choose_restore(members_of_world, held_by, members(members_of_world)).locations
    assert [each.first_rank for each in locations["c/0"]] == [0, 1]
    assert [each.first_rank for each in locations["d/0"]] == [1, 0]


@pytest.mark.parametrize(("more", "found"), [(0, True), (1, False)])
def test_no_more_places_are_told_than_a_frame_has_room_for(more, found):
    ranks = MAX_LOCATIONS + more
    members_of_world = world("ab")
    held_by = {"a/0": tuple(held_step(9, rank, ranks, count=1) for rank in range(ranks)), "b/0": ()}
    assert (choose_restore(members_of_world, held_by, members(members_of_world)).step == 9) is found


@pytest.mark.parametrize(
    ("step_", "round_", "last_round", "older"),
    [
        pytest.param(-1, 3, 4, False, id="there is none"),
        pytest.param(0, 3, 4, True, id="the first step, of an older round"),
        pytest.param(5, 4, 4, False, id="of the last round"),
        pytest.param(5, 4, 0, True, id="nobody knows the last round"),
        pytest.param(5, 0, 1, True, id="of the round before the first"),
    ],
)
def test_whether_others_may_have_trained_on_since(step_, round_, last_round, older):
    found = choose_restore(world("a"), {"a/0": (HeldStep(step_, 0, 1, round_),)} if step_ >= 0 else {})
    assert (found.step, found.is_older(last_round)) == (step_, older)
