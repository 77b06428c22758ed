"""How long room has been idle: the least that was free over the last while, and nothing where that is not known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autoscaler.world import GPU, NOW_S, job, shape, state_of, world
from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.model import NODES
from turnout.autoscaler.observe.room_history import IdleRoom
from turnout.jobs.queues.model import QueueShare

SPAN_S = 60.0


def free(gpus, used=None):
    """A node with so many idle GPUs, and a queue of eight that uses so many."""
    at = world([gpus], state_of(job("a")))
    queues = {"q": QueueShare({GPU: 8, "cpu": 9}, used={GPU: used})} if used is not None else {}
    return replace(at, queues=queues)


def settled(*free_gpus, place=NODES):
    """Return what had settled at each of these looks: (seconds, what was seen)."""
    idle = IdleRoom(SPAN_S)
    return [idle.update(at, NOW_S + s).idle_room[place][GPU] for s, at in free_gpus]


@pytest.mark.parametrize(
    ("free_gpus", "found"),
    [
        pytest.param([(0, 4), (59, 4), (60, 4)], [0, 0, 4], id="what was there before the first look is not known"),
        pytest.param([(0, 4), (100, 4), (110, 7), (169, 7), (170, 7)], [0, 4, 4, 4, 7], id="what came is idle later"),
        pytest.param([(0, 4), (100, 1), (110, 4), (169, 4), (170, 4)], [0, 1, 1, 1, 4], id="a dip counts from its end"),
        pytest.param([(0, 4), (100, 4), (101, 6), (102, 8), (161, 8), (162, 8)], [0, 4, 4, 4, 6, 8], id="step by step"),
        pytest.param([(0, 4), (500, 8)], [0, 4], id="between two looks it is as it was at the first"),
    ],
)
def test_the_least_of_the_span_has_settled(free_gpus, found):
    assert settled(*((s, free(gpus)) for s, gpus in free_gpus)) == found
    assert settled(*((s, free(0, used=8 - gpus)) for s, gpus in free_gpus), place="q") == found


def test_where_restarts_cost_nothing_all_that_is_free_has_settled():
    idle = IdleRoom(0.0)
    assert [idle.update(free(gpus), NOW_S).idle_room[NODES][GPU] for gpus in (3, 5, 1)] == [3, 5, 1]


def test_only_devices_settle_and_only_on_nodes_that_let_somebody_in():
    at = world([4, 3], state_of(job("a")))
    at.room.admitting_nodes[shape(1)][0] = False
    idle_room = IdleRoom(0.0).update(replace(at, queues=free(0, used=2).queues), NOW_S).idle_room
    assert idle_room == {NODES: {GPU: 3}, "q": {GPU: 6}}


def test_a_queue_that_is_new_or_comes_again_begins_anew():
    idle = IdleRoom(SPAN_S)
    for s, at in ((0, free(4)), (100, free(4, used=2)), (130, free(4)), (140, free(4, used=2)), (190, free(4, used=2))):
        found = idle.update(at, NOW_S + s).idle_room
    assert found == {NODES: {GPU: 4}, "q": {GPU: 0}}


def test_it_tells_when_more_will_have_settled():
    idle = IdleRoom(SPAN_S)
    assert idle.due_s(NOW_S) == float("inf")
    dues = [idle.update(free(gpus), NOW_S + s) and idle.due_s(NOW_S + s) for s, gpus in ((0, 4), (70, 4), (80, 6))]
    assert dues == [NOW_S + 60, float("inf"), NOW_S + 140]


@settings(max_examples=scaled(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 8)), min_size=1, max_size=30))
def test_it_is_the_least_that_anybody_would_find_who_remembers_everything(pauses_s):
    idle, now_s, history = IdleRoom(SPAN_S), NOW_S, []
    for wait_s, gpus in pauses_s:
        now_s += wait_s
        history.append((now_s, gpus))
        ends = [at_s for at_s, _ in history[1:]] + [float("inf")]
        recent = [each for (_, each), end_s in zip(history, ends, strict=True) if end_s > now_s - SPAN_S]
        known = now_s - history[0][0] >= SPAN_S
        assert idle.update(free(gpus), now_s).idle_room[NODES][GPU] == (min(recent) if known else 0)
        assert np.isinf(idle.due_s(now_s)) or idle.due_s(now_s) > now_s
