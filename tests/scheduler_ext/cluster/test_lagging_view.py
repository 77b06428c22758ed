"""A scheduler that has seen more than we have: what it offers shows that, and for how long a refusal is doubted."""

import pytest

from tests.kit import world
from tests.kit.world import World
from turnout.scheduler_ext.cluster.request_hints import CATCH_UP_S, LaggingView, offers_unknown_room


def seen(*pods):
    """Two hosts, a pod that waits for a whole one, and pods that are there."""
    stage, waiting = World(2), world.pod("waiting", 8)
    stage.put(waiting, *pods).view.settle(stage.now_s)
    return stage.view, stage.member(waiting)


FULL = world.pod("full", 8, at="a0")


@pytest.mark.parametrize(("pods", "names", "more"), [
    pytest.param((), ["a0", "a1"], False, id="both hosts have room"),
    pytest.param((FULL,), ["a1"], False, id="the one that has room"),
    pytest.param((FULL,), ["a0", "a1"], True, id="one that is full for us"),
    pytest.param((world.pod("half", 1, at="a0"),), ["a0"], True, id="one with too little room for us"),
    pytest.param((world.pod("leaving", 8, at="a0", leaving=True),), ["a0"], True, id="one that a pod is leaving"),
    pytest.param((), ["a0", "new"], True, id="one that no watch has shown"),
    pytest.param((FULL,), [], False, id="none"),
])  # fmt: skip
def test_a_scheduler_knows_more_when_it_offers_what_is_not_free_for_us(pods, names, more):
    view, waiting = seen(*pods)
    assert offers_unknown_room(view, waiting, names) is more


def test_a_host_taken_by_an_assumed_pod_is_full_for_us():
    view, waiting = seen(sent := world.pod("sent", 8))
    view.assume(view.pods[sent.metadata.uid], "a0", 0.0)
    assert offers_unknown_room(view, waiting, ["a0"])


class TestDoubt:
    BOTH = ("a0", "a1")

    def test_it_lasts_until_a_watch_must_have_caught_up(self):
        (view, waiting), lagging = seen(FULL), LaggingView()
        times = [0.0, 0.3, CATCH_UP_S - 0.1, CATCH_UP_S, CATCH_UP_S + 100.0]
        assert [lagging.should_retry(view, waiting, self.BOTH, now_s) for now_s in times] == [
            True,
            True,
            True,
            False,
            False,
        ]

    def test_it_ends_once_the_watch_has_caught_up_and_begins_anew_later(self):
        (view, waiting), lagging = seen(FULL), LaggingView()
        assert lagging.should_retry(view, waiting, self.BOTH, 0.0)
        view.drop_pod(FULL.metadata.uid)
        assert not lagging.should_retry(view, waiting, self.BOTH, 1.0)
        view.put_pod(FULL)
        assert lagging.should_retry(view, waiting, self.BOTH, CATCH_UP_S)

    def test_each_pod_has_its_own_and_one_that_is_gone_has_none(self):
        (view, waiting), lagging = seen(FULL, world.pod("other", 8)), LaggingView()
        lagging.should_retry(view, waiting, self.BOTH, 0.0)
        assert lagging.should_retry(view, view.pods["uid-other"], self.BOTH, CATCH_UP_S)
        lagging.forget(waiting.uid)
        assert lagging.should_retry(view, waiting, self.BOTH, CATCH_UP_S)
