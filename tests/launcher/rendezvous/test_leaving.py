"""Who is asked to go: a stop step that nobody has passed, a save, and DRAINED; and a coordinator that hands over."""

import pytest

from launcher.rendezvous.state import StepDown
from launcher.wire import Base, Finish, Formed, Leaving, Reached, Stop, StopAt, Succeeded
from tests.launcher.rendezvous.story import Story


def running(names="abcd", nnodes="1:4", steps=None, **more):
    story = Story(nnodes, last_call_s=0.0, **more).join(*names)
    for name, step_ in (steps or {}).items():
        story.reach(name, step_)
    return story


def reached(story, **steps):
    for name, step_ in steps.items():
        story.say(name, Reached(story.round, step_))
    return story


def test_the_stop_step_lies_ahead_of_the_farthest_and_is_sure_when_all_have_answered():
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
    told = story.last("c", Finish)
    assert (told.exit, told.reason) == (143, "drained")
    assert (story.world, story.round) == ("ab", 2)
    assert story.last("a", Formed).reason == "member_left"
    assert story.last("a", Finish) is None


def test_who_tells_no_steps_gets_the_grace_and_saves_by_its_own_hook():
    story = running("ab").leave("b", 25.0)
    assert [story.last(name) for name in "ab"] == [Stop(1, "member_left", 25.0)] * 2
    assert story.ready("ab").last("b", Finish).exit == 143
    assert story.lose("b").world == "a"


def test_who_finishes_before_the_stop_step_is_sure_has_finished():
    story = running("ab", steps={"a": 10}).leave("b").succeed("ab")
    assert [story.last(name, Finish).exit for name in "ab"] == [0, 0]


def test_a_stop_step_that_nobody_reaches_in_time_ends_the_processes_before_the_grace_is_over():
    story = running("ab", steps={"a": 10}).leave("b", 25.0).wait(19.9)
    assert story.last("a", Stop) is None
    story.wait(0.1)
    assert story.last("a", Stop) == Stop(1, "member_left", 5.0)
    assert story.ready("ab").last("b", Finish).exit == 143


def test_of_several_leavers_the_most_hurried_counts_and_all_are_drained_at_once():
    story = running("abcd", steps={"a": 10}).leave("c", 25.0).leave("d", 10.0)
    assert story.wait(8.0).last("a", Stop) == Stop(1, "member_left", 2.0)
    story.ready("abcd")
    assert [story.last(name, Finish).exit for name in "cd"] == [143, 143]
    assert story.lose("cd").world == "ab"


def test_without_an_arbiter_a_leaver_counts_until_it_is_gone():
    """It was told that it may go: before it is gone it may have the last word in a world of others."""
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
def test_the_coordinator_itself_leaves_and_the_oldest_of_the_others_goes_on(granted):
    story = running("abc", granted=granted).leave("a").ready("abc")
    down = story.of(StepDown)[0]
    assert (down.handover, down.to.coordinator, down.to.round, down.size) == (True, "b/0", 2, 2)
    assert story.last("a", Finish).exit == 143
    assert [story.last(name, Finish) for name in "bc"] == [None, None]
    assert story.phase == "over"


def test_who_knocks_while_it_is_handed_over_is_not_told_that_the_job_has_failed():
    story = running("abc").leave("a").ready("abc").join("d")
    assert story.last("d") is None


def test_the_handover_names_nobody_who_leaves_too():
    assert running("abc").leave("ab").ready("abc").of(StepDown)[0].to.coordinator == "c/0"


def test_who_is_handed_the_job_counts_the_leaver_no_longer():
    story = Story("1:2", base=Base(1, 1, True), succeeds={"handed": True}).join("a", base=Base(1, 1, True))
    assert story.world == "a"


def test_leaving_twice_is_leaving_once():
    story = running("ab", steps={"a": 10}).leave("b", 25.0)
    story.say("b", Leaving(5.0))
    assert len(story.events("member_leaving")) == 1
    assert story.state.until_s == 20.0
