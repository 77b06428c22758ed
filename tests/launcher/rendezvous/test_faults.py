"""Processes that fail: one restart is charged per fault, none for a loss, and a newer saved step refills the budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.rendezvous.story import Story, member, running
from turnout.launcher.coordinator_messages import (
    Finish,
    Formed,
    Heartbeat,
    LastWorld,
    ProcessFailed,
    encode,
    read_at_member,
)
from turnout.launcher.model import RestartBudget
from turnout.launcher.rendezvous.state import JobOver
from turnout.launcher.rendezvous.state_machine import begin, replace_coordinator


def next_round(story, names="abc"):
    return story.ready(names)


def test_a_failure_restarts_everybody_and_is_charged_once():
    story = next_round(running().fail("b"))
    assert (story.world, story.round, story.state.budget) == ("abc", 2, RestartBudget(1, 1, -1))
    assert {story.last(name, Formed).budget for name in "abc"} == {RestartBudget(1, 1, -1)}
    assert story.events("round_ended") == [
        ("process_failed", {"round": 1, "detail": "b, local rank 0: it crashed"}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "charged"),
    [
        pytest.param(lambda s: s.fail("abc"), 1, id="three failures of one round are one fault"),
        pytest.param(lambda s: s.fail("a").fail("b"), 1, id="one after the other, too"),
        pytest.param(lambda s: s.fail("a").lose("c"), 0, id="a loss that follows explains the failure"),
        pytest.param(lambda s: s.lose("c").fail("ab"), 0, id="a loss that came before explains it"),
        pytest.param(lambda s: s.fail("c").lose("c"), 0, id="the failing one is lost itself"),
        pytest.param(lambda s: s.lose("c"), 0, id="a loss alone costs nothing"),
        pytest.param(lambda s: s.fail("a", round_=7), None, id="a failure of another round is none"),
    ],
)
def test_what_is_charged(what, charged):
    story = what(running())
    if charged is None:
        assert (story.phase, story.state.budget) == ("training", RestartBudget())
        return
    story.ready([name for name in "abc" if f"{name}/0" in story.state.members])
    assert (story.round, story.state.budget.total) == (2, charged)


def test_the_budget_is_of_the_job_and_its_end_is_told():
    story = running(max_restarts=2)
    for culprit in "ab":
        next_round(story.fail(culprit))
    next_round(story.fail("c"))
    message = story.last("a", Finish)
    assert (message.exit, message.reason) == (1, "budget_spent")
    assert message.detail == "2 of 2 restarts are used; c, local rank 0: it crashed"
    assert story.lose("abc").of(JobOver)[0].exit == 1


def test_without_restarts_the_first_failure_is_the_last():
    assert next_round(running(max_restarts=0).fail("a")).last("b", Finish).reason == "budget_spent"


def test_the_end_can_be_read_by_all_however_long_the_error_was():
    """An agent cuts an error at 1,000 letters, and we put more before it: then the frame was none, and nobody ended."""
    story = running(max_restarts=0)
    message = next_round(story.say("a", ProcessFailed(story.round, 0, "x" * 1_000))).last("b", Finish)
    assert read_at_member(encode(message)) == message


def test_a_loss_is_free_also_without_restarts():
    assert running(max_restarts=0).lose("c").ready("ab").world == "ab"


def test_a_newer_saved_step_refills_the_budget_and_an_older_one_does_not():
    story = running(max_restarts=1).say("b", Heartbeat(10, 5))
    next_round(story.fail("a"))
    story.say("b", Heartbeat(11, 5))
    assert story.state.budget == RestartBudget(1, 1, 5)
    story.say("c", Heartbeat(12, 6))
    assert story.state.budget == RestartBudget(0, 1, 6)
    assert next_round(story.fail("a")).world == "abc"
    assert story.state.budget == RestartBudget(1, 2, 6)


def test_a_successor_goes_on_with_the_budget_that_anybody_brings():
    state = replace_coordinator(
        begin(member("a"), "job", running().terms, 0.0), LastWorld(4, 3, True), RestartBudget(0, 1)
    )
    assert state.budget == RestartBudget(0, 1)
    story = Story("1:3", base=LastWorld(4, 3, True)).join(
        "a", "b", base=LastWorld(4, 3, True), budget=RestartBudget(2, 3)
    )
    assert story.join("c", budget=RestartBudget(0, 1)).state.budget == RestartBudget(2, 3)


def test_a_failure_that_is_told_again_after_a_succession_is_not_charged():
    story = Story("1:3", base=LastWorld(4, 3, True)).join("a", "b", base=LastWorld(4, 3, True, True))
    story.say("b", ProcessFailed(4, 0, "it crashed")).ready("ab").wait(15)
    assert (story.world, story.state.budget) == ("ab", RestartBudget())


@given(
    rounds=st.lists(
        st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.booleans(), st.integers(0, 3)), max_size=12
    )
)
def test_the_law_of_the_budget(rounds):
    """One charge per round that failed without a loss; it never goes back; used is what came since the last save."""
    story, total, used, saved = Story("4", max_restarts=99, granted=1).join(*"abcd"), 0, 0, -1
    for number, (culprits, loses, step) in enumerate(rounds):
        if step > saved:
            story.say("a", Heartbeat(step, step))
            saved, used = step, 0
        story.fail(sorted(culprits))
        if loses:
            story.lose("d").join("d", incarnation=number + 1)
        else:
            total, used = total + 1, used + 1
        story.ready("abcd")
        if story.phase == "claiming":
            story.grant()
        assert story.state.budget == RestartBudget(used, total, saved)
        assert story.world == "abcd"
