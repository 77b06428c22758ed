"""A world that is there: who comes late, who is lost, who is replaced; and that it never changes itself."""

import pytest

from launcher.rendezvous.state import Drop, Wake
from launcher.wire import Base, Formed, Ready, Stop, StopAt, Waiting
from tests.launcher.rendezvous.story import Story


def running(nnodes, names, **more):
    """A job whose world is these."""
    story = Story(nnodes, **{"last_call_s": 0.0, **more}).join(*names)
    assert story.world == names
    return story


@pytest.mark.parametrize(
    ("nnodes", "more", "there", "come", "after_s", "phase"),
    [
        pytest.param("1:2", {}, "ab", "c", 600, "training", id="the world is full: who comes late waits"),
        pytest.param("1:4", {"unit": 2}, "ab", "c", 600, "training", id="not a whole unit: it waits"),
        pytest.param("1:4", {"unit": 2}, "ab", "cd", 0, "stopping", id="a whole unit, and the max: it grows at once"),
        pytest.param("1:4", {}, "ab", "c", 0, "training", id="more may come: it settles first"),
        pytest.param("1:4", {}, "ab", "c", 1, "stopping", id="it has settled"),
        pytest.param("1:3", {}, "ab", "c", 0, "stopping", id="the max is reached: nobody else can come"),
    ],
)
def test_who_comes_late_ends_no_world_unless_it_can_grow(nnodes, more, there, come, after_s, phase):
    story = running(nnodes, there, **more).join(*come).wait(after_s)
    assert story.phase == phase
    if phase == "training":
        assert story.last(come[0], Waiting).reason == "spare"
        assert story.last(there[0]).round == 1


def test_a_world_grows_to_the_wanted_number_at_once_and_to_a_whole_unit_only():
    story = Story("1:8", last_call_s=0.0, unit=2, wanted=2).join("a", "b")
    story.join("c", wanted=4)
    assert story.phase == "training"
    story.join("d", wanted=4).ready("ab")
    assert (story.world, story.round) == ("abcd", 2)
    assert story.last("c", Formed).reason == "member_joined"


@pytest.mark.parametrize("joined_s", [1.0, 30.0])
def test_somebody_looks_again_when_the_world_has_settled(joined_s):
    story = running("1:4", "ab").wait(joined_s).join("c")
    assert story.of(Wake)[-1].at_s == joined_s + 1.0


@pytest.mark.parametrize(
    ("nnodes", "unit", "there", "lost", "world"),
    [
        pytest.param("1:4", 1, "abcd", "d", "abc", id="the world shrinks at once"),
        pytest.param("1:4", 1, "abcd", "cd", "ab", id="by two at once"),
        pytest.param("2:4", 2, "abcd", "d", "ab", id="by a whole unit"),
        pytest.param("2", 1, "ab", "b", "", id="a fixed size waits for a replacement"),
        pytest.param("3:4", 1, "abcd", "cd", "", id="below the min it waits"),
        pytest.param("3:4", 2, "abcd", "d", "", id="below the min as the unit makes it"),
    ],
)
def test_a_member_is_lost(nnodes, unit, there, lost, world):
    story = running(nnodes, there, unit=unit, granted=1).lose(lost)
    stayed = [name for name in there if name not in lost]
    assert all(story.last(name) == Stop(1, "member_lost", 30.0) for name in stayed)
    story.ready(stayed)
    if story.phase == "claiming":
        story.grant()
    assert story.world == world
    assert [reason for reason, _ in story.events("round_ended")] == ["member_lost"]


def test_the_next_world_begins_when_nobody_trains_any_more():
    story = running("1:4", "abcd").lose("d").ready("ab")
    assert story.phase == "stopping"
    assert story.ready("c").world == "abc"


def test_a_replacement_fills_the_place_that_was_lost():
    story = running("2", "ab", granted=1).lose("b").ready("a")
    assert story.phase == "gathering"
    story.join("b", incarnation=1).grant()
    assert (story.world, story.round) == ("ab", 2)


def test_a_replacement_that_comes_before_the_loss_is_seen_takes_the_name_over():
    story = running("2", "ab", granted=1).join("b", incarnation=1)
    assert [drop.id for drop in story.of(Drop)] == ["b/0"]
    assert story.phase == "stopping"
    story.ready("a").grant()
    assert set(story.state.world.seats) == {"a/0", "b/1"}


def test_a_short_job_regroups_for_a_moment_and_no_longer_than_it_settles():
    story = running("2:4", "abcd", granted=1).lose("bcd").ready("a").join("e")
    assert story.phase == "gathering"
    assert story.wait(1.0).phase == "claiming"
    assert story.grant().world == "ae"


def test_a_spare_steps_in_at_once():
    story = running("2", "ab", granted=1).join("c").lose("b").ready("a").grant()
    assert story.world == "ac"


def test_members_of_the_last_world_come_before_older_spares():
    story = running("2", "bc", granted=1).join("a", "d").lose("c").ready("b").grant()
    assert story.world == "ab"
    story = running("2:3", "bcd", granted=1).join("a").lose("d").ready("bc").grant()
    assert story.world == "abc"


@pytest.mark.parametrize(
    ("base", "phase"),
    [
        pytest.param(Base(1, 2, True, True), "training", id="its processes still run: nothing has happened"),
        pytest.param(Base(1, 2, True, False), "stopping", id="it has ended them: its world is over"),
        pytest.param(Base(), "stopping", id="the round never reached it"),
    ],
)
def test_a_member_comes_back_before_its_loss_was_seen(base, phase):
    story = running("2", "ab").join("b", base=base)
    assert story.phase == phase
    assert story.last("b", Waiting) is None


def test_a_member_that_says_its_processes_are_gone_ends_the_round():
    story = running("2", "ab").say("b", Ready(1, 5))
    assert story.phase == "stopping"
    assert story.ready("a").last("b", Formed).round == 2


def test_a_late_word_of_an_older_round_is_no_word():
    story = running("2", "ab").fail("b").ready("ab")
    assert story.round == 2
    story.say("a", Ready(1, 1)).fail("b", round_=1)
    assert (story.phase, story.state.budget.total) == ("training", 1)


def test_a_number_from_elsewhere_makes_nobody_deaf():
    """A spare that has heard of round 7 joins: what members of round 1 say is heard all the same."""
    story = running("2", "ab").join("c", base=Base(7, 4, False, False))
    story.fail("b").ready("ab")
    assert (story.world, story.round, story.state.budget.total) == ("ab", 8, 1)


def test_who_comes_back_while_a_stop_step_is_agreed_hears_of_it():
    story = running("1:3", "abc").reach("abc", 10).leave("c")
    story.join("b", base=Base(1, 3, True, True))
    assert story.last("b") == StopAt(1, 12, False)


def test_a_world_of_strangers_is_waited_out():
    """All of the old world are lost at once, and may train on until they miss us: the spares wait for that."""
    story = Story("2", only=True).join("b", "c").join("a", "d")
    assert story.world == "bc"
    story.lose("bc")
    assert (story.phase, story.wait(14.9).phase) == ("gathering", "gathering")
    assert story.wait(0.1).world == "ad"
