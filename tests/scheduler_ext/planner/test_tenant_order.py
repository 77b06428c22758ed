"""A gang goes before another namespace's by its PriorityClass and its age, by nothing that its owner writes later."""

import pytest

from tests import world
from tests.world import World
from turnout.scheduler_ext.cache.cache import MOST_PATIENCE_S


def mine(size, least=None, at=("a0",), **more):
    return world.koordinator("mine", size, least=least, at=at, namespace="mine", created=1, **more)


def other(priority=0, created=2):
    return world.volcano("other", 2, namespace="theirs", created=created, priority=priority)


@pytest.mark.parametrize("least", [pytest.param(3, id="by its min"), pytest.param(None, id="by having more pods")])
@pytest.mark.parametrize("priority", [0, 1000])
def test_a_min_raised_after_the_start_goes_after_others(priority, least):
    w, old = World(3), mine(1, 1)
    w.put(*old)
    w.plan(old[0])
    w.now_s += MOST_PATIENCE_S + 1
    w.put(*mine(3, least), *(theirs := other(priority)))
    assert len(w.schedule(*theirs)) == 2


@pytest.mark.parametrize("least", [3, None])
def test_members_that_come_just_after_the_first_count_for_the_start(least):
    w, first = World(3), mine(1, 1)
    w.put(*first)
    w.plan(first[0])
    w.put(*(all_ := mine(3, least)), *(theirs := other(1000)))
    assert [len(w.schedule(*theirs)), len(w.schedule(*all_[1:]))] == [0, 2]


def test_a_member_that_comes_again_has_its_place_first():
    w, pods = World(4), mine(4, 4, at=["a0", "a1", "a2", "a3"])
    w.put(*pods)
    w.plan(pods[0])
    w.now_s += 2 * MOST_PATIENCE_S
    w.view.drop_pod(pods[3].metadata.uid)
    lone = world.volcano("lone", 1, namespace="theirs", created=2, priority=1000)
    w.put(again := mine(4, 4, at=["a0", "a1", "a2"])[3], *lone)
    assert [len(w.schedule(*lone)), len(w.schedule(again))] == [0, 1]


def test_one_important_pod_lifts_no_others_of_its_gang():
    """A quota may leave a tenant one pod of a high PriorityClass: it is one pod's word, not a gang's."""
    w, pods = World(3), [*mine(2, 3, at=(), total=3), *mine(3, 3, at=(), priority=1000)[2:]]
    w.put(*pods, *(theirs := other(500)))
    assert len(w.schedule(*theirs)) == 2
