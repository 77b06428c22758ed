"""A drain: a stop step that nobody has passed, a save, and DRAINED; and a coordinator that hands over."""

import pytest

from tests.launcher.rendezvous.story import Story
from turnout.launcher.coordinator_messages import (
    ALL,
    AdoptShards,
    DaemonEndpoint,
    Finish,
    Formed,
    Handover,
    HeldStep,
    LastWorld,
    Leaving,
    Reached,
    Ready,
    ShardsAdopted,
    Stop,
    StopAt,
    Succeeded,
)
from turnout.launcher.rendezvous.state import StepDown


def running(names="abcd", nnodes="1:4", steps=None, **more):
    story = Story(nnodes, last_call_s=0.0, **more).join(*names)
    for name, step_ in (steps or {}).items():
        story.reach(name, step_)
    return story


def reached(story, **steps):
    for name, step_ in steps.items():
        story.say(name, Reached(story.round, step_))
    return story


def test_the_stop_step_is_ahead_of_the_farthest_and_sure_once_all_answer():
    story = running("abc", steps={"a": 10, "b": 12, "c": 9}).leave("c")
    assert [story.last(name) for name in "abc"] == [StopAt(1, 14, False)] * 3
    reached(story, a=11, b=13)
    assert story.last("a") == StopAt(1, 14, False)
    reached(story, c=10)
    assert [story.last(name) for name in "abc"] == [StopAt(1, 14, True)] * 3


def test_was_it_passed_a_later_one_is_agreed():
    story = running("ab", steps={"a": 10, "b": 10}).leave("b")
    reached(story, a=12, b=15)
    assert story.last("a") == StopAt(1, 17, False)
    reached(story, a=17)
    assert story.last("a") == StopAt(1, 17, False)
    reached(story, b=17)
    assert story.last("a") == StopAt(1, 17, True)


def test_all_stop_the_leaver_is_drained_and_the_others_go_on():
    story = reached(running("abc", steps={"a": 10}).leave("c"), a=10, b=10, c=10)
    story.say("abc", Succeeded(1))
    message = story.last("c", Finish)
    assert (message.exit, message.reason) == (143, "drained")
    assert (story.world, story.round) == ("ab", 2)
    assert story.last("a", Formed).reason == "member_left"
    assert story.last("a", Finish) is None


def test_all_are_done_but_one_of_an_older_world_with_no_step_to_agree_on():
    """Nobody was left to answer with a step, and the coordinator ended with a ValueError."""
    story = running("ab", steps={"a": 10}).leave("b").join("c", base=LastWorld(1, 3, inside=True, busy=True))
    assert story.last("c") == Stop(1, "member_left", 0.0)
    story.succeed("ab")
    assert [story.last(name, Finish).exit for name in "abc"] == [0, 0, 0]


def test_all_have_stopped_but_one_of_an_older_world():
    story = (
        running("ab", steps={"a": 10}).leave("b").join("c", base=LastWorld(1, 3, inside=True, busy=True)).ready("ab")
    )
    assert story.phase == "stopping"
    assert story.ready("c").lose("b").world == "ac"


def test_who_tells_no_steps_gets_the_grace_and_saves_by_its_own_hook():
    story = running("ab").leave("b", 25.0)
    assert [story.last(name) for name in "ab"] == [Stop(1, "member_left", 25.0)] * 2
    assert story.ready("ab").last("b", Finish).exit == 143
    assert story.lose("b").world == "a"


def test_who_finishes_before_the_stop_step_is_sure_has_finished():
    story = running("ab", steps={"a": 10}).leave("b").succeed("ab")
    assert [story.last(name, Finish).exit for name in "ab"] == [0, 0]


def test_an_unreached_stop_step_ends_the_processes_within_the_grace():
    story = running("ab", steps={"a": 10}).leave("b", 25.0).wait(19.9)
    assert story.last("a", Stop) is None
    story.wait(0.1)
    assert story.last("a", Stop) == Stop(1, "member_left", 5.0)
    assert story.ready("ab").last("b", Finish).exit == 143


def test_of_several_leavers_the_most_hurried_counts_and_all_drain_at_once():
    story = running("abcd", steps={"a": 10}).leave("c", 25.0).leave("d", 10.0)
    assert story.wait(8.0).last("a", Stop) == Stop(1, "member_left", 2.0)
    story.ready("abcd")
    assert [story.last(name, Finish).exit for name in "cd"] == [143, 143]
    assert story.lose("cd").world == "ab"


def test_without_an_arbiter_a_leaver_counts_until_it_is_gone():
    """A leaver that was told it may go could, until it is gone, have the last word in a world of others."""
    story = running("abc").leave("bc").ready("abc")
    assert (story.phase, story.lose("bc").world) == ("gathering", "a")


def test_half_the_world_leaves_and_the_other_half_needs_no_arbiter():
    story = running("abcd").leave("cd").ready("abcd").lose("cd")
    assert story.world == "ab"


def test_a_leaver_that_is_lost_on_the_way_costs_no_second_stop():
    story = running("ab", nnodes="1:2", granted=1, steps={"a": 3}).leave("b").lose("b")
    assert story.phase == "stopping"
    assert story.ready("a").grant().world == "a"


def test_a_spare_that_leaves_disturbs_nobody():
    story = running("ab", nnodes="2").join("c").leave("c")
    assert (story.phase, story.last("c", Finish).exit) == ("training", 143)


def test_who_is_done_and_asked_to_go_is_drained_and_not_done():
    story = running("ab", nnodes="2").succeed("b").leave("b")
    assert story.last("b", Finish).exit == 143
    assert story.lose("b").succeed("a").last("a", Finish).exit == 0


def test_a_failure_on_the_way_to_the_stop_step_is_a_failure():
    story = running("ab", steps={"a": 10}).leave("b").fail("a").ready("ab").lose("b")
    assert (story.state.budget.total, story.last("b", Finish).exit, story.world) == (1, 143, "a")


def test_below_the_min_the_others_wait_for_a_replacement():
    story = running("ab", nnodes="2", granted=1).leave("b").ready("ab").lose("b")
    assert (story.phase, story.last("b", Finish).exit) == ("gathering", 143)
    story.join("b", incarnation=1).grant()
    assert story.world == "ab"


def test_a_world_that_grows_stops_after_a_step_too():
    story = running("ab", nnodes="1:3", steps={"a": 10}).join("c")
    assert story.last("a") == StopAt(1, 12, False)
    assert story.last("c", Stop) is None


def test_growth_does_not_wait_for_ever_for_the_stop_step():
    story = running("ab", nnodes="1:3", steps={"a": 10}).join("c").wait(48.0)
    assert story.last("a") == Stop(1, "member_joined", 60.0)


@pytest.mark.parametrize("granted", [None, 1], ids=["without an arbiter", "with one"])
def test_a_leaving_coordinator_is_followed_by_the_oldest_of_the_others(granted):
    story = running("abc", granted=granted).leave("a").ready("abc")
    down = story.of(StepDown)[0]
    assert (down.handover, down.to.coordinator, down.to.round, down.size) == (True, "b/0", 2, 2)
    assert story.last("a", Finish).exit == 143
    assert [story.last(name, Finish) for name in "bc"] == [None, None]
    assert story.phase == "over"


def test_a_newcomer_during_a_handover_is_not_told_that_the_job_failed():
    story = running("abc").leave("a").ready("abc").join("d")
    assert story.last("d") is None


def test_the_handover_names_nobody_who_leaves_too():
    assert running("abc").leave("ab").ready("abc").of(StepDown)[0].to.coordinator == "c/0"


def test_who_is_handed_the_job_counts_the_leaver_no_longer():
    story = Story("1:2", base=LastWorld(1, 1, True), succeeds={"handed_over": True}).join(
        "a", base=LastWorld(1, 1, True)
    )
    assert story.world == "a"


def test_leaving_twice_is_leaving_once():
    story = running("ab", steps={"a": 10}).leave("b", 25.0)
    story.say("b", Leaving(5.0))
    assert len(story.events("member_leaving")) == 1
    assert story.state.ending.until_s == 20.0


# Before they go: what only they hold goes to who stays.


def held_step(step, rank, of=4, parts=True, count=0):
    return HeldStep(step, rank, of, 1, count, parts)


def training(names="abcd", nnodes="1:4", **more):
    return Story(nnodes, last_call_s=0.0, only=True, **more).join(*names, daemon_port=7)


def drained(job, leavers, memory, grace_s=10.0):
    """They are to go. All have stopped after the same step, and say what they hold."""
    job.reach("abcd", 5).leave(leavers, grace_s).say("abcd", Reached(job.round, 5))
    for name, holds in memory.items():
        job.say(name, Succeeded(job.round, holds))
    return job


OWN = {name: (held_step(9, at),) for at, name in enumerate("abcd")}


def adopted_shards(job, name):
    """Give what this member is to adopt, and from whom."""
    found = job.last(name, Handover)
    return (
        []
        if found is None
        else [(each.owner, each.first_rank, [endpoint.name for endpoint in each.endpoints]) for each in found.shards]
    )


@pytest.mark.contract("XD-06")
def test_three_of_four_leave_and_the_one_that_stays_takes_their_shards():
    job = drained(training(), "bcd", OWN)
    assert job.phase == "handing"
    assert adopted_shards(job, "a") == [("b", 1, ["b"]), ("c", 2, ["c"]), ("d", 3, ["d"])]
    assert job.last("a", Handover).shards[0] == AdoptShards("b", 1, 1, (DaemonEndpoint("b/0", "b", "127.0.0.1", 7),))
    assert [job.last(name) for name in "bcd"] == [Handover(1, 9, 1, 4, 8.0, ())] * 3, "which write it, and wait"
    assert job.events("shards_handed_over")[0][1]["to"] == {"a": 3}
    job.say("a", ShardsAdopted(1, (*OWN["a"], *(held_step(9, rank, count=1) for rank in (1, 2, 3)))))
    assert [job.last(name, Finish).exit for name in "bcd"] == [143] * 3
    formed = job.last("a", Formed)
    assert (formed.restore_step, formed.saved_round, formed.saved_by, formed.ranks, formed.locations) == (
        9,
        1,
        4,
        1,
        (),
    )


def test_two_stay_and_take_one_each():
    job = drained(training(), "cd", OWN)
    assert (adopted_shards(job, "a"), adopted_shards(job, "b")) == ([("c", 2, ["c"])], [("d", 3, ["d"])])
    job.say("a", ShardsAdopted(1, (*OWN["a"], held_step(9, 2, count=1))))
    assert job.phase == "handing", "b has not answered"
    job.say("b", ShardsAdopted(1, (*OWN["b"], held_step(9, 3, count=1))))
    assert {(each.first_rank, each.endpoint.name) for each in job.last("a", Formed).locations} == {(1, "b"), (3, "b")}


def test_nobody_waits_longer_than_the_most_hurried_leaver_can():
    job = drained(training(), "bcd", OWN, grace_s=5.0)
    job.wait(3.9)
    assert job.phase == "handing"
    job.wait(0.2)
    assert [job.last(name, Finish).exit for name in "bcd"] == [143] * 3
    assert job.last("a", Formed).restore_step == -1, "a has said nothing: it reads storage"


def test_who_takes_is_lost_meanwhile():
    job = drained(training(), "cd", OWN)
    job.say("b", ShardsAdopted(1, (*OWN["b"], held_step(9, 3, count=1)))).lose("a")
    assert job.last("b", Formed).restore_step == -1
    assert job.last("c", Finish)


def test_one_more_is_asked_to_go_meanwhile():
    """One that has adopted a shard hands that over, too."""
    job = drained(training(), "cd", OWN)
    job.say("a", ShardsAdopted(1, (*OWN["a"], held_step(9, 2, count=1))))
    job.leave("b", 9.0)
    assert adopted_shards(job, "a") == [("b", 1, ["b"]), ("d", 3, ["d"])]
    job.say("a", ShardsAdopted(1, (*OWN["a"], *(held_step(9, rank, count=1) for rank in (1, 2, 3)))))
    assert job.last("a", Formed).restore_step == 9


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param(
            {**OWN, "a": (held_step(9, 0), *(held_step(9, at, count=1) for at in (1, 2, 3)))}, id="copies are there"
        ),
        pytest.param({**OWN, "c": (held_step(8, 2),)}, id="no step is whole"),
        pytest.param(
            {name: (HeldStep(9, 0, ALL, 1), HeldStep(9, 0, ALL, 1, 1)) for name in "abcd"}, id="all have the same"
        ),
        pytest.param(
            {name: (held_step(9, at, parts=False),) for at, name in enumerate("abcd")},
            id="no other world could read it",
        ),
        pytest.param(dict.fromkeys("abcd", ()), id="nothing is in memory"),
    ],
)
def test_there_is_nothing_to_hand_over(memory):
    """They may go at once."""
    job = drained(training(), "bcd", memory)
    assert [job.last(name, Finish).exit for name in "bcd"] == [143] * 3
    assert not any(job.last(name, Handover) for name in "abcd")


def test_where_the_next_world_keeps_its_size_any_state_is_handed_over():
    """The leaver waits for others, which have the state from those who stay."""
    steps_by_member = {name: (held_step(9, at, parts=False),) for at, name in enumerate("abcd")}
    job = drained(training(nnodes="4"), "bcd", steps_by_member)
    job.say(
        "a", ShardsAdopted(1, (*steps_by_member["a"], *(held_step(9, at, parts=False, count=1) for at in (1, 2, 3))))
    )
    job.join("e", "f", "g", daemon_port=7)
    formed = job.last("e", Formed)
    assert (formed.restore_step, formed.saved_by, [endpoint.name for endpoint in formed.fetch_from]) == (9, 0, ["a"])


def test_who_is_asked_to_go_while_the_others_are_waited_for():
    """b has taken over what the first two had, below the least; when it is to go as well, all goes to a."""
    job = drained(training(nnodes="4"), "cd", OWN)
    job.say("a", ShardsAdopted(1, (*OWN["a"], held_step(9, 2, count=1)))).say(
        "b", ShardsAdopted(1, (*OWN["b"], held_step(9, 3, count=1)))
    )
    assert job.phase == "gathering"
    job.lose("cd").leave("b")
    assert adopted_shards(job, "a") == [("b", 1, ["b"]), ("ranks 3 and 0 more", 3, ["b"])]
    job.say("a", ShardsAdopted(1, (*OWN["a"], *(held_step(9, rank, count=1) for rank in (1, 2, 3)))))
    assert job.phase == "gathering"
    assert job.last("b", Finish).exit == 143


def test_who_has_stopped_already_is_asked_to_go():
    """Its processes have ended well with the stop step: it is not let go before the others have what it holds."""
    job = training().reach("abcd", 5).leave("d", 10.0).say("abcd", Reached(1, 5))
    job.say("c", Succeeded(1, OWN["c"])).leave("c", 10.0)
    assert job.last("c", Finish) is None
    for name in "abd":
        job.say(name, Succeeded(1, OWN[name]))
    assert (adopted_shards(job, "a"), adopted_shards(job, "b")) == ([("c", 2, ["c"])], [("d", 3, ["d"])])


def test_processes_that_had_to_be_ended():
    """The stop step was not reached in time: the newest that all have sealed is handed over in what is left."""
    job = training().reach("abcd", 5).leave("bcd", 10.0)
    job.wait(8.1)
    assert job.last("a", Stop)
    for at, name in enumerate("abcd"):
        job.say(name, Ready(1, 1, (), (held_step(8, at),)))
    assert job.last("b", Handover).step == 8
    assert job.last("b", Handover).within_s == pytest.approx(1.9 * 0.8)


def test_what_is_held_after_a_stop_step_is_what_was_told_then():
    """Was broken: the next world believed what members had told after an earlier loss, and lost all steps since."""
    job = Story("1:3", last_call_s=0.0, only=True).join("a", "b", daemon_port=7)
    alike = HeldStep(5, 0, ALL, 1), HeldStep(5, 0, ALL, 1, 1)
    job.fail("b")
    for name in "ab":
        job.say(name, Ready(1, 1, (), alike))
    assert job.last("a", Formed).restore_step == 5
    job.reach("ab", 8).join("c", daemon_port=7).say("ab", Reached(2, 8))
    newer = HeldStep(11, 0, ALL, 2), HeldStep(11, 0, ALL, 2, 1)
    for name in "ab":
        job.say(name, Succeeded(2, newer))
    assert job.last("c", Formed).restore_step == 11
