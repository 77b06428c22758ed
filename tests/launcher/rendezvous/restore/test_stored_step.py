"""Which stored step all members of a round read: one, whoever sees what, and whatever is committed meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.rendezvous.story import Finish, Formed, LastWorld, Ready, Story
from turnout.launcher.coordinator_messages import HeldStep, StoredStepReport
from turnout.launcher.rendezvous.restore.restore_plan import choose_stored

A, B = "/checkpoints/a", "/checkpoints/b"


def running(names="abc"):
    return Story(str(len(names)), only=True).join(*names)


def sees(step, round_=1, target=A):
    return StoredStepReport(round_, target, step)


@pytest.mark.parametrize(("stored_steps", "named"), [
    pytest.param([(A, 7), (A, 7)], (A, 7), id="all see the same"),
    pytest.param([(A, 5), (A, 7)], (A, 7), id="one sees it later than another: it is committed"),
    pytest.param([(A, -1), (A, -1)], (A, -1), id="nothing is there: nobody reads what comes now"),
    pytest.param([("", -1), (A, 7)], (A, 7), id="a new worker knows no folder yet"),
    pytest.param([("", -1), ("", -1)], ("", -1), id="nobody knows one: each finds out for itself"),
    pytest.param([(A, 5), (B, 9)], (A, 5), id="of two folders that of the first counts"),
])  # fmt: skip
def test_the_step_that_is_named(stored_steps, named):
    story = running("ab")
    for member, (target, step) in zip("ab", stored_steps, strict=True):
        story.say(member, StoredStepReport(1, target, step))
    assert story.last("a") == story.last("b") == StoredStepReport(1, *named)


def test_it_is_named_too_where_memory_is_of_an_older_round():
    """Storage is looked at first: what it has may be newer."""
    story = running("ab").fail("b")
    for at, member in enumerate("ab"):
        story.say(member, Ready(1, 1, (), (HeldStep(6, at, 2, 0),)))
    assert (story.round, story.last("a", Formed).restore_step, story.last("a", Formed).check_storage) == (2, 6, True)
    story.say("a", sees(7, round_=2)).say("b", sees(5, round_=2))
    assert story.last("a") == story.last("b") == sees(7, round_=2)


def test_it_is_named_when_all_have_told():
    story = running().say("ab", sees(7))
    assert story.last("a", StoredStepReport) is None
    assert [story.say("c", sees(5)).last(each, StoredStepReport).step for each in "abc"] == [7, 7, 7]


def test_what_comes_later_changes_nothing():
    """A daemon whose agent is dead may commit up to a minute after it."""
    story = running("ab").say("ab", sees(7)).say("a", sees(9))
    assert story.state.checkpoints.stored_step == sees(7)
    assert [each for each in story.told["b"] if isinstance(each, StoredStepReport)] == [sees(7)]


def test_who_says_it_twice_counts_once():
    """Its link was lost, and it does not know whether it was heard."""
    story = running().say("a", sees(7))
    story.join("a", base=LastWorld(1, 3, True, True)).say("a", sees(9)).say("b", sees(5))
    assert story.state.checkpoints.stored_step is None
    assert story.say("c", sees(5)).state.checkpoints.stored_step == sees(7)


def test_who_comes_back_hears_it():
    story = running("ab").say("ab", sees(7)).join("b", base=LastWorld(1, 2, True, True))
    assert story.last("b") == sees(7)


def test_each_round_has_its_own():
    story = running("ab").say("ab", sees(7)).fail("b").ready("ab")
    assert story.state.checkpoints.stored_step is None
    story.say("a", sees(7)).say("ab", sees(9, round_=2))
    assert story.state.checkpoints.stored_step == sees(9, round_=2)


def test_a_word_of_an_older_round_is_no_word():
    story = running("ab").fail("b").ready("ab").say("ab", sees(7))
    assert (story.round, story.state.checkpoints.stored_step) == (2, None)


def ended(story, held_steps):
    """All say that their processes have ended, and what their memory holds: these steps."""
    for member, steps in held_steps.items():
        first = ord(member) - ord("a")
        story.say(member, Ready(story.round, 1, (), tuple(HeldStep(step, first, len(held_steps), 1) for step in steps)))
    return story


AHEAD = {"a": (4, 5), "b": (5, 6)}


def test_what_all_held_goes_to_storage_when_the_world_shrinks():
    """A rank may have saved once more than another when they were stopped."""
    story = ended(Story("1:2", only=True).join("a", "b").leave("b").fail("a"), AHEAD)
    assert story.last("b", Finish).persist_step == 5
    assert (
        story.last("a", Formed).round,
        story.last("a", Formed).restore_step,
        story.last("a", Formed).persist_step,
    ) == (2, -1, 5)
    story.fail("a")
    assert story.ready("a").last("a", Formed).persist_step == -1, "of the last world, not of one before"


def test_when_the_job_fails_what_all_held_is_carried_to_storage():
    story = Story("2", only=True, max_restarts=0).join("a", "b").fail("b")
    assert [ended(story, AHEAD).last(each, Finish).persist_step for each in "ab"] == [5, 5]


def test_where_somebody_is_lost_nobody_knows_what_all_held():
    story = ended(Story("1:2", only=True).join("a", "b").lose("b"), {"a": (4, 5)})
    assert story.last("a", Formed).persist_step == -1


@given(st.lists(st.none() | st.builds(StoredStepReport, st.just(3), st.sampled_from(["", A, B]), st.integers(-1, 5))))
def test_what_is_named_somebody_sees(stored_steps):
    named = choose_stored(3, stored_steps)
    assert named == StoredStepReport(3) or named in stored_steps
    assert all(
        each.step <= named.step for each in stored_steps if each is not None and each.target == named.target != ""
    )
