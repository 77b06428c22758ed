"""A scheduling cycle asks in kube-scheduler's order and takes every answer as it does.

Source: docs/facts/extender.md 1.4 and 1.5
"""

import random

import pytest

from tests.simulator.world import UNRACED, cluster, pod_info
from turnout.simulator.cluster.scheduler import (
    Chosen,
    Cursor,
    ExtenderReply,
    ExtenderSettings,
    Unscheduled,
    WaitReason,
    schedule_without_extender,
    scheduling_cycle,
)
from turnout.simulator.cluster.scheduling_queue import WaitingPods


def play(state, pod, replies, extender=None):
    """Run a cycle with these replies; gives the questions as (verb, names) and the outcome."""
    nodes_tried, replies = [], iter(replies)
    questions = scheduling_cycle(state, pod, Cursor(), UNRACED, extender or ExtenderSettings())
    try:
        question = next(questions)
        while True:
            nodes_tried.append((question.verb.value, question.names))
            question = questions.send(next(replies))
    except StopIteration as end:
        return nodes_tried, end.value


ALL = ("a", "b", "c")


@pytest.mark.parametrize(
    ("nominated", "replies", "questions", "outcome"),
    [
        pytest.param(
            "",
            [ExtenderReply(feasible_nodes=("b", "c")), ExtenderReply(points={"c": 10})],
            [("filter", ALL), ("prioritize", ("b", "c"))],
            Chosen("c", 2),
            id="filter, then prioritize what it kept",
        ),
        pytest.param(
            "", [ExtenderReply(feasible_nodes=("b",))], [("filter", ALL)], Chosen("b", 1), id="one left: no prioritize"
        ),
        pytest.param(
            "b",
            [ExtenderReply(feasible_nodes=("b",))],
            [("filter", ("b",))],
            Chosen("b", 1),
            id="the nominated node alone",
        ),
        pytest.param(
            "b",
            [ExtenderReply(), ExtenderReply(feasible_nodes=("a",))],
            [("filter", ("b",)), ("filter", ALL)],
            Chosen("a", 1),
            id="a nomination that is refused: all nodes, the second filter",
        ),
        pytest.param(
            "gone",
            [ExtenderReply(feasible_nodes=("a",))],
            [("filter", ALL)],
            Chosen("a", 1),
            id="a nomination of no node is passed over",
        ),
        pytest.param(
            "",
            [ExtenderReply(failed="down"), ExtenderReply(failed="down")],
            [("filter", ALL), ("prioritize", ALL)],
            Chosen("a", 3),
            id="an ignorable extender that is down changes nothing",
        ),
    ],
)
def test_the_order_of_questions(nominated, replies, questions, outcome):
    assert play(cluster(*ALL), pod_info("p", nominated=nominated), replies) == (questions, outcome)


def test_an_extender_that_keeps_nothing_makes_the_pod_wait():
    _, outcome = play(cluster(*ALL), pod_info("p"), [ExtenderReply()])
    assert outcome == Unscheduled(
        WaitReason.UNSCHEDULABLE, "0/3 nodes are available: the extender refused the 3 that the filters let in."
    )


def test_an_extender_that_may_not_be_ignored_ends_the_attempt():
    _, outcome = play(cluster(*ALL), pod_info("p"), [ExtenderReply(failed="down")], ExtenderSettings(ignorable=False))
    assert outcome == Unscheduled(WaitReason.SCHEDULER_ERROR, "down")


def test_a_name_that_was_not_asked_about_is_an_error():
    _, outcome = play(
        cluster(*ALL), pod_info("p"), [ExtenderReply(feasible_nodes=("z",))], ExtenderSettings(ignorable=False)
    )
    assert outcome.why is WaitReason.SCHEDULER_ERROR


def test_nothing_feasible_asks_nobody():
    questions, outcome = play(cluster(*ALL), pod_info("p", gpus=9), [])
    assert questions == []
    assert outcome == Unscheduled(WaitReason.UNSCHEDULABLE, "0/3 nodes are available: none holds the pod.")


def test_alone_spreads_as_the_default_does():
    state, dice, cursor = cluster(*ALL), random.Random(1), Cursor()
    nodes = []
    for number in range(6):
        pod = pod_info(f"p{number}")
        outcome = schedule_without_extender(state, pod, cursor, dice)
        state.place(pod, outcome.node)
        nodes.append(outcome.node)
    assert sorted(nodes[:3]) == sorted(nodes[3:]) == list(ALL)


def test_the_queue_goes_by_priority_then_arrival():
    queue = WaitingPods()
    for name, priority in (("first", 0), ("urgent", 9), ("second", 0)):
        queue.put(pod_info(name, priority=priority))
    order = []
    while (pod := queue.next(0.0)) is not None:
        order.append(pod.uid)
        queue.drop(pod.uid)
    assert order == ["urgent", "first", "second"]


def test_a_refused_pod_waits_for_a_change_and_for_its_pause():
    queue = WaitingPods(backoff_s=(1.0, 10.0))
    queue.put(pod_info("p"))
    queue.note_failed_try("p", 100.0, until_change=True)
    assert (queue.next(105.0), queue.next_try_in_s(105.0)) == (None, None)
    queue.wake()
    assert queue.next(100.5) is None
    assert queue.next_try_in_s(100.5) == pytest.approx(0.5)
    assert queue.next(101.0).uid == "p"


def test_the_pause_doubles_up_to_its_bound():
    queue = WaitingPods(backoff_s=(1.0, 10.0))
    queue.put(pod_info("p"))
    pauses = []
    for _ in range(6):
        queue.note_failed_try("p", 0.0, until_change=False)
        pauses.append(queue.next_try_in_s(0.0))
    assert pauses == [1, 2, 4, 8, 10, 10]


def test_the_pause_keeps_its_bound_after_any_number_of_failures():
    queue = WaitingPods(backoff_s=(1.0, 10.0))
    queue.put(pod_info("p"))
    for _ in range(1100):
        queue.note_failed_try("p", 0.0, until_change=False)
    assert queue.next_try_in_s(0.0) == 10
