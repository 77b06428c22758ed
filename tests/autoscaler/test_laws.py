"""The laws of what the autoscaler decides, over random small clusters."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, obeyed, shape, state_of, world
from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Reason
from turnout.autoscaler.scaling.free_room import lacking_pods


@st.composite
def worlds(draw, gpus_of_workers=(1, 1, 2, 4)):
    """Nodes, queues, and jobs that run or wait, with workers where there was room."""
    nodes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    left, jobs = list(nodes), []
    for number in range(draw(st.integers(1, 6))):
        gpus, unit = draw(st.sampled_from(gpus_of_workers)), draw(st.sampled_from([1, 1, 2]))
        minimum = unit * draw(st.integers(1, 3))
        maximum = minimum + unit * draw(st.integers(0, 3))
        replicas = minimum + unit * draw(st.integers(0, (maximum - minimum) // unit))
        rows = []
        for _ in range(replicas if draw(st.booleans()) else 0):
            fit = [row for row, gpus_left in enumerate(left) if gpus_left >= gpus]
            if not fit:
                break
            rows.append(draw(st.sampled_from(fit)))
            left[rows[-1]] -= gpus
        if len(rows) < minimum:
            for row in rows:
                left[row] += gpus
            rows, replicas = [], minimum
        more = {"queue": draw(st.sampled_from(["q", "r"])), "priority": draw(st.integers(0, 2)), "unit": unit}
        jobs.append(
            state_of(
                job(f"j{number}", minimum, maximum, max(len(rows), minimum) if rows else replicas, gpus, **more), rows
            )
        )
    queues = {name: draw(st.sampled_from([{}, {"limit": 6}, {"deserved": 3}])) for name in ("q", "r")}
    return world(nodes, *jobs, queues=queues)


@pytest.mark.contract("CS-15", "XD-07")
@settings(max_examples=scaled(300), deadline=None)
@given(worlds())
def test_bounds_and_units_are_kept_and_everybody_has_one_reason(at):  # CS-15, XD-07
    steps = decide(at, POLICY, NOW_S)
    assert [step.key for step in steps] == sorted(each.job.key for each in at.jobs)
    for step in steps:
        bounds = next(each.job for each in at.jobs if each.job.key == step.key)
        if step.changes:
            assert bounds.bounds.minimum <= step.target <= bounds.bounds.maximum
            assert bounds.sizes.allows(step.target)


@pytest.mark.contract("VE-29")
@settings(max_examples=scaled(300), deadline=None)
@given(worlds())
def test_after_an_eviction_the_waiters_fit(at):  # VE-29, VE-31, VE-35
    """All that are told that room comes, or that it is the scheduler's turn, fit together once the victims are gone."""
    steps = {step.key: step for step in decide(at, POLICY, NOW_S)}
    room = at.room.copy()
    for each in at.jobs:
        if steps[each.job.key].beneficiary is not None:
            size = steps[each.job.key].target
            room.release(each.job.shape, [worker.row for worker in each.workers if worker.index >= size])
    served = (Reason.WAITS_FOR_ROOM, Reason.SCHEDULERS_TURN)
    pods = [
        dict(shape_needed.requests)[GPU]
        for waiter in at.jobs
        if waiter.is_waiting and steps[waiter.job.key].reason in served
        for shape_needed, count in lacking_pods(waiter)
        for _ in range(count)
    ]
    assert fit(sorted(pods, reverse=True), tuple(room.fits(shape(1)).tolist()))
    assert all(steps[step.beneficiary].reason in served for step in steps.values() if step.beneficiary is not None)


def fit(pods, free):
    """True if these pods can be put on nodes with so many GPUs free, by trying every way."""
    if not pods:
        return True
    first, *rest = pods
    return any(
        fit(rest, (*free[:at], free[at] - first, *free[at + 1 :]))
        for at in {free.index(gpus) for gpus in set(free) if gpus >= first}
    )


@settings(max_examples=scaled(200), deadline=None)
@given(worlds(gpus_of_workers=(1,)))
def test_once_obeyed_a_plan_takes_nothing_back(at):
    """No job that was shrunk for somebody grows at once, and none that grew is shrunk, while nothing else happens.

    Among workers of one size: of several sizes a scheduler may fill other nodes than the plan had in mind.
    """
    steps = decide(at, POLICY, NOW_S)
    second_plan = {step.key: step for step in decide(obeyed(at, steps), POLICY, NOW_S + 1)}
    for step in steps:
        if step.changes:
            grew, grows = step.target > step.current, second_plan[step.key].target > second_plan[step.key].current
            assert second_plan[step.key].target == step.target or grew is grows


@settings(max_examples=scaled(200), deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_what_was_seen_changes_nothing(at, dice):
    shuffled = list(at.jobs)
    dice.shuffle(shuffled)
    assert sorted(decide(replace(at, jobs=tuple(shuffled)), POLICY, NOW_S)) == decide(at, POLICY, NOW_S)
