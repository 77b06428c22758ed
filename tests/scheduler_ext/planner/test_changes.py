"""A change of one member costs what the change costs, and the plans are those of looking at the whole gang."""

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kit import world
from tests.kit.world import REQUIRED, World
from turnout.kube import labels

NOTES = {"near": {}, "in one leaf": REQUIRED, "in pairs": {labels.PODS_PER_HOST_MULTIPLE: "2"}}


def gangs(sizes, mins, notes):
    """Pods of gangs a, b, c with these sizes and minimums, by name."""
    pods = {}
    for name, size, minimum in zip("abc", sizes, mins, strict=False):
        gang_pods = world.koordinator(
            name, size, minimum=min(minimum, size), gpus=2, total=size + 1, notes=NOTES[notes]
        )
        pods |= {pod.metadata.name: pod for pod in gang_pods}
    return pods


def nominee(pod, node):
    """The pod with a nomination of ours."""
    return world.see(msgspec.to_builtins(pod), uid=pod.metadata.uid, nominated=node, ours=True)


def happen(w, pods, what, number):
    """Let one thing happen to a pod of the world. Returns the answer, if anybody asked."""
    pod = pods[sorted(pods)[number % len(pods)]]
    uid, node = pod.metadata.uid, w.names[number % len(w.names)]
    if what == "show":
        w.put(pod)
    if uid not in w.view.pods:
        return None
    if what == "ask":
        return w.fit(pod).nodes
    if what == "bind":
        w.bind(pod, w.view.node_of(w.member(pod)) or node)
    elif what == "delete":
        w.view.drop_pod(uid)
    elif what == "nominate" and not w.member(pod).node:
        w.put(nominee(pod, node))
    return None


def play(story, pods, look_at_all):
    """Play a story, and return all answers and plans. look_at_all: no change counts as that of one place."""
    w, found = World(3, 3, 2), []
    w.put(*pods.values())
    for what, number in story:
        if look_at_all:
            for key in list(w.view.changed_gangs):
                w.view.changed_gangs.add(key)
        answer = happen(w, pods, what, number)
        if look_at_all:
            for key in list(w.view.changed_gangs):
                w.view.changed_gangs.add(key)
        plans = {plan.key: plan for plan in w.plans.plan_all(w.now_s)}
        places = {key: w.plans.position_in_plan(key) for key in plans}
        found.append((what, answer, plans, places))
    return found


stories = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "bind", "bind", "show", "delete", "nominate"]), st.integers(0, 60)),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@example([("ask", 0), ("nominate", 0)], [2], [1, 1, 1], "near")  # a nomination moves the gang in the order
@given(
    stories,
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(st.integers(1, 6), min_size=3, max_size=3),
    st.sampled_from(sorted(NOTES)),
)
def test_plans_after_a_change_of_places_are_those_of_the_whole_gang(story, sizes, mins, notes):
    pods = gangs(sizes, mins, notes)
    assert play(story, pods, look_at_all=False) == play(story, pods, look_at_all=True)


@pytest.mark.parametrize("size", [16, 160])
def test_a_question_after_a_binding_takes_the_work_of_the_change(size):
    w, pods = World(*[8] * 8), world.volcano("g", size, gpus=1)
    other = world.volcano("other", 2)
    w.put_group("g", size).put_group("other", 2).put(*pods, *other)
    w.fit(other[0])
    w.fit(pods[0])
    w.fit(other[1])
    steps = []
    for pod in pods[1:8]:
        w.bind(pod, w.fit(pod).node)
        before = w.plans.steps
        w.fit(other[1])
        steps.append(w.plans.steps - before)
    assert max(steps) <= 8
