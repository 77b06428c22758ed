"""The exit barrier: a job is done when the whole world is, and everybody hears it before the coordinator goes."""

import pytest

from tests.launcher.rendezvous.story import running
from turnout.launcher.coordinator_messages import Finish, Formed, LastWorld, Succeeded
from turnout.launcher.rendezvous.state import JobOver, Wake


def test_done_is_said_when_all_are_done():
    story = running().succeed("ab")
    assert (story.phase, story.last("a", Finish)) == ("training", None)
    story.succeed("c")
    assert [(story.last(name).exit, story.last(name).reason) for name in "abc"] == [(0, "all_done")] * 3


def test_spares_hear_it_too():
    story = running("ab", "2").join("c").succeed("ab")
    assert story.last("c", Finish).exit == 0


@pytest.mark.parametrize(
    ("what", "done"),
    [
        pytest.param(lambda s: s.succeed("c").lose("c").succeed("ab"), True, id="a done member is lost: it was done"),
        pytest.param(lambda s: s.succeed("ab").lose("c"), False, id="the one that is not done is lost: a new round"),
        pytest.param(lambda s: s.succeed("ab").fail("c"), False, id="the last one fails: a new round"),
        pytest.param(lambda s: s.succeed("abc").lose("c"), True, id="all are done: who goes first is no loss"),
        pytest.param(
            lambda s: s.succeed("c").join("c", base=LastWorld(1, 3, True)).succeed("ab"),
            True,
            id="a done member comes back: it is still done",
        ),
        pytest.param(
            lambda s: s.join("c", base=LastWorld(1, 3, True, True)).succeed("abc"),
            True,
            id="it comes back first and says then that it is done",
        ),
    ],
)
def test_the_exit_barrier(what, done):
    story = what(running())
    assert story.phase == "finishing" or not done
    if not done:
        _ = story.ready("abc") if story.phase == "stopping" else story
        assert (story.phase, story.round, story.of(JobOver)) == ("training", 2, [])


def test_nobody_grows_or_drains_a_world_that_is_nearly_done():
    story = running("ab", "1:3").succeed("a").join("c").wait(600)
    assert story.phase == "training"


def test_a_new_round_forgets_who_was_done():
    story = running().succeed("ab").fail("c").ready("abc")
    assert story.last("a", Formed).round == 2
    assert story.succeed("c").phase == "training"
    assert story.succeed("ab").phase == "finishing"


def test_done_in_another_round_is_not_done():
    story = running("ab", "2").fail("a").ready("ab").say("ab", Succeeded(1))
    assert story.phase == "training"


def test_it_is_over_when_all_others_have_gone_or_the_farewell_is_past():
    story = running().succeed("abc").lose("b")
    assert story.of(JobOver) == []
    story.lose("c")
    assert [over.exit for over in story.of(JobOver)] == [0]
    slow = running().succeed("abc").wait(4.9)
    assert (slow.of(JobOver), slow.of(Wake)[-1].at_s) == ([], 5.0)
    assert [over.exit for over in slow.wait(0.1).of(JobOver)] == [0]


@pytest.mark.parametrize(("culprit", "exit_"), [("", 0), ("a", 1)], ids=["done", "failed"])
def test_who_comes_too_late_hears_how_it_ended(culprit, exit_):
    story = running("ab", "2", max_restarts=0)
    _ = story.fail(culprit).ready("ab") if culprit else story.succeed("ab")
    assert story.join("c").last("c").exit == exit_


def test_a_job_that_is_over_hears_nothing_more():
    story = running("ab", "2").succeed("ab").lose("ab")
    before = len(story.effects)
    story.join("c").fail("a").wait(100)
    assert (story.phase, [effect for effect in story.effects[before:] if isinstance(effect, JobOver)]) == ("over", [])
