"""Making room: who is asked, whose workers are believed to go, and what a job that is asked in vain keeps."""

from dataclasses import replace

import pytest

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, shape, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Reason
from turnout.jobs.model import Pause, ResizeBudget


def plan(at, policy=POLICY):
    return {step.key.name: step for step in decide(at, policy, NOW_S)}


def sizes_of(at, policy=POLICY):
    return {name: (step.target, step.reason) for name, step in plan(at, policy).items()}


@pytest.mark.parametrize(
    ("queues", "lends", "left"),
    [
        pytest.param({"q": {"deserved": 4}}, "q", 2, id="its own queue, though that borrows nothing"),
        pytest.param({"q": {"limit": 3}}, "q", 2, id="its own queue, when that is full"),
        pytest.param({"q": {}, "r": {"deserved": 2}}, "r", 2, id="another that borrows"),
        pytest.param({"q": {}, "r": {"deserved": 3}}, "r", 3, id="not another that has its own"),
        pytest.param({"q": {}}, "r", 2, id="another of which nobody says anything"),
    ],
)
def test_who_is_asked_for_room(queues, lends, left):
    at = world([3], state_of(job("lent", replicas=3, queue=lends), [0] * 3), state_of(job("waits")), queues=queues)
    assert plan(at)["lent"].target == left


def test_where_the_first_to_give_is_paused_the_next_one_gives():
    paused = state_of(job("paused", replicas=3, pause=Pause.SHRINK, created="2026-01-03T00:00:00Z"), [0] * 3)
    giver = state_of(job("giver", replicas=3, created="2026-01-02T00:00:00Z"), [0] * 3)
    waiting_job = state_of(job("waits", created="2026-01-01T00:00:00Z"))
    steps = plan(world([6], paused, giver, waiting_job))
    assert {name: steps[name].target for name in ("paused", "giver")} == {"paused": 3, "giver": 2}
    unpaused = replace(paused, job=replace(paused.job, pause=Pause.NONE))
    assert plan(world([6], unpaused, giver, waiting_job))["paused"].target == 2  # the newest is the first to give


def test_what_nobody_uses_is_not_borrowed():
    at = world(
        [3], state_of(job("lent", replicas=3, queue="r"), [0] * 3), state_of(job("waits")), queues={"q": {}, "r": {}}
    )
    own = replace(at.queues["r"], deserved={GPU: 3, "cpu": 0})
    assert plan(replace(at, queues={**at.queues, "r": own}))["lent"].target == 3


def test_who_is_asked_in_vain_keeps_its_room_for_the_next():
    """Two of the four lent ones are borrowed: no three for the first, and just one for the second."""
    lent = state_of(job("lent", replicas=4, queue="r"), [0] * 4)
    first, second = (
        state_of(job("first", minimum=3, created="2026-01-01T00:00:00Z")),
        state_of(job("second", maximum=1)),
    )
    at = world([4], lent, first, second, queues={"q": {}, "r": {"deserved": 2}})
    assert sizes_of(at) == {
        "lent": (3, Reason.MAKES_ROOM),
        "first": (3, Reason.NEEDS_MORE),
        "second": (1, Reason.WAITS_FOR_ROOM),
    }


def test_nobody_gives_out_of_a_queue_that_cannot_be_read():
    at = world(
        [3], state_of(job("lent", replicas=3, queue="r"), [0] * 3), state_of(job("waits")), queues={"q": {}, "r": {}}
    )
    broken = replace(at.queues["r"], faults=("spec: what?",))
    at = replace(at, queues={**at.queues, "r": broken})
    assert sizes_of(at) == {"lent": (3, Reason.STALE), "waits": (1, Reason.NEEDS_MORE)}


def test_who_waits_in_a_queue_that_nobody_describes_is_served():
    assert sizes_of(world([1], state_of(job("a")), queues={}))["a"] == (1, Reason.SCHEDULERS_TURN)


def test_in_a_strict_queue_all_are_served_for_whom_there_is_room():
    at = world([2], state_of(job("a")), state_of(job("bb")))
    at = replace(at, queues={"q": replace(at.queues["q"], strict=True)})
    assert sizes_of(at) == {"a": (1, Reason.SCHEDULERS_TURN), "bb": (1, Reason.SCHEDULERS_TURN)}


def test_what_a_min_asks_for_is_the_sum_over_its_roles():
    one_job = job("a", minimum=2, other_roles=((shape(4), 2), (shape(0), 3)))
    assert plan(world([1], state_of(one_job)))["a"].detail == f"its min asks for 10 {GPU}"


@pytest.mark.parametrize(
    ("more", "leaving", "waited_for"),
    [
        pytest.param({}, False, False, id="not for one that has not obeyed for so long"),
        pytest.param({}, True, True, id="for one that was told to go, however late"),
        pytest.param({"wanted_workers": 2}, False, True, id="for one whose size a person has set since"),
    ],
)
def test_workers_that_go_are_waited_for(more, leaving, waited_for):
    bank = ResizeBudget(0.0, NOW_S - POLICY.promise_s - 1)
    going = state_of(job("a", minimum=2, replicas=2, resize_budget=bank, **more), [0] * 4)
    going = replace(going, workers=tuple(replace(w, leaving=leaving and w.index > 1) for w in going.workers))
    lent = state_of(job("lent", replicas=4), [0] * 4)
    assert (plan(world([8], going, lent, state_of(job("waits", minimum=2))))["lent"].target == 4) is waited_for


def test_a_job_that_is_not_to_shrink_gives_up_no_worker_without_a_node():
    observed_job = state_of(job("a", replicas=3, pause=Pause.SHRINK), [0, None, None])
    observed_job = replace(
        observed_job, workers=tuple(replace(each, since_s=NOW_S - 900) for each in observed_job.workers)
    )
    assert sizes_of(world([1], observed_job)) == {"a": (3, Reason.NOT_READY)}


def test_a_job_at_its_min_gives_up_no_worker_without_a_node():
    observed_job = state_of(job("a", minimum=2), [0, None], finished=1)
    observed_job = replace(
        observed_job, workers=tuple(replace(each, since_s=NOW_S - 900) for each in observed_job.workers)
    )
    assert sizes_of(world([1], observed_job)) == {"a": (2, Reason.NOT_READY)}
