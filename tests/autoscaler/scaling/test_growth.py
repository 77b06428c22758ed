"""Growth: who is looked at, which room it is charged to, and who has what another could not pay for."""

from dataclasses import replace

import pytest

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, shape, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import NODES, Reason, TerminatingPod
from turnout.jobs.model import Pause, ResizeBudget
from turnout.jobs.queues.model import QueueShare

STEEP, MIDDLE, FLAT = ((1, 1.0), (4, 3.9)), ((1, 1.0), (4, 3.0)), ((1, 1.0), (4, 2.0))
DEAR, CHEAP = ResizeBudget(restart_s=9e9), ResizeBudget(restart_s=0.0)
NONE_SETTLED = {NODES: {GPU: 0}}


def plan(at, policy=POLICY):
    return {step.key.name: step for step in decide(at, policy, NOW_S)}


def sizes_of(at, policy=POLICY):
    return {name: (step.target, step.reason) for name, step in plan(at, policy).items()}


def old(job, rows=(0,), **more):
    """A job whose workers have run for so long that it does not start."""
    job = state_of(job, rows, **more)
    return replace(job, workers=tuple(replace(each, since_s=0.0) for each in job.workers))


POOR = (1, Reason.MARGINAL_GAIN)


@pytest.mark.parametrize(
    ("poor", "minimum"),
    [
        pytest.param({"a": STEEP}, FLAT, id="one"),
        pytest.param({"a": STEEP, "bb": MIDDLE}, FLAT, id="two, the second of which is found when it has the room"),
    ],
)
def test_room_that_would_pay_for_no_restart_of_one_goes_to_another(poor, minimum):
    jobs = [old(job(name, curve=curve, resize_budget=DEAR)) for name, curve in poor.items()]
    at = world([len(jobs) + 4], *jobs, old(job("last", curve=minimum, resize_budget=CHEAP)))
    assert sizes_of(at) == {**dict.fromkeys(poor, POOR), "last": (4, Reason.IDLE_ROOM)}


def test_who_can_never_pay_is_found_whoever_is_looked_at_after_it():
    at = world([9], old(job("a", resize_budget=DEAR)), old(job("bb", resize_budget=CHEAP)))
    assert sizes_of(at) == {"a": POOR, "bb": (4, Reason.IDLE_ROOM)}


def test_without_any_time_to_win_it_back_no_restart_pays_however_cheap():
    policy = replace(POLICY, payback_s=0.0, restart_s=0.001)
    assert sizes_of(world([4], old(job("a", curve=STEEP))), policy) == {"a": POOR}


LEAVES = (TerminatingPod("q", shape(1), 0),) * 3


@pytest.mark.parametrize(
    ("free", "more", "policy"),
    [
        pytest.param(1, {"terminating_pods": LEAVES}, {}, id="what is not free yet"),
        pytest.param(4, {}, {"headroom": {GPU: 3}}, id="what is kept free"),
    ],
)
def test_beside_one_that_cannot_pay_nobody_grows_into(free, more, policy):
    at = world([2 + free], old(job("a", curve=FLAT)), old(job("dear", curve=STEEP, resize_budget=DEAR)), **more)
    assert sizes_of(at, replace(POLICY, **policy)) == {"a": (2, Reason.IDLE_ROOM), "dear": POOR}


@pytest.mark.parametrize(
    ("settled", "sizes"),
    [
        pytest.param({NODES: {"cpu": 0}}, {"a": 4, "bb": 4}, id="nobody says since when GPUs have been idle"),
        pytest.param({NODES: {GPU: 4}}, {"a": 4, "bb": 4}, id="enough for a unit of each"),
        pytest.param({NODES: {GPU: 3}}, {"a": 4, "bb": 2}, id="enough for one unit"),
    ],
)
def test_of_settled_room_each_unit_takes_all_its_workers(settled, sizes):
    jobs = [old(job(name, minimum=2, maximum=4, unit=2), [0, 0]) for name in ("a", "bb")]
    steps = plan(world([9], *jobs, idle_room=settled))
    assert {name: step.target for name, step in steps.items()} == sizes
    assert steps["bb"].reason is (Reason.IDLE_ROOM if sizes["bb"] == 4 else Reason.ROOM_SETTLES)


def test_when_others_came_first_it_is_told_what_is_full():
    at = world([5], old(job("a")), old(job("bb")))
    assert [(step.target, step.detail) for step in plan(at).values()] == [
        (4, "room in queue q"),
        (1, "no whole worker fits on the nodes"),
    ]


@pytest.mark.parametrize(
    ("state", "rows", "told_then"),
    [
        pytest.param(job("a", pause=Pause.GROW, resized_s=NOW_S - 9000), [0], (1, Reason.PAUSED), id="is not to grow"),
        pytest.param(
            job("a", pause=Pause.SHRINK, replicas=2), [0, 0, 0], (2, Reason.NOT_READY), id="has one too many as yet"
        ),
        pytest.param(job("a", replicas=2), [0, None], (2, Reason.NOT_READY), id="has one without a node"),
        pytest.param(job("a", pause=Pause.SHRINK, replicas=2), [0, 0], (4, Reason.IDLE_ROOM), id="is not to shrink"),
    ],
)
def test_what_a_job_may_do_that(state, rows, told_then):
    assert sizes_of(world([9], state_of(state, rows))) == {"a": told_then}


SHRANK = {"minimum": 1, "replicas": 2}


@pytest.mark.parametrize(
    ("more", "workers", "size_before", "back"),
    [
        pytest.param({"maximum": 8}, 2, 8, (8, Reason.RETURNED), id="all that it gave"),
        pytest.param({"maximum": 8}, 2, 5, (5, Reason.RETURNED), id="no more than it gave"),
        pytest.param({"maximum": 4}, 2, 8, (4, Reason.RETURNED), id="no more than it may have by now"),
        pytest.param({"maximum": 8, "resized_s": NOW_S - 5}, 2, 8, (8, Reason.RETURNED), id="at once"),
        pytest.param({"maximum": 8, "pause": Pause.SHRINK}, 2, 8, (8, Reason.RETURNED), id="also when not to shrink"),
        pytest.param({"maximum": 8, "pause": Pause.GROW}, 2, 8, (2, Reason.PAUSED), id="not when not to grow"),
        pytest.param({"maximum": 8, "pause": Pause.SHRINK}, 3, 8, (2, Reason.NOT_READY), id="not before one has gone"),
        pytest.param({"maximum": 8}, 2, 2, (2, Reason.ROOM_SETTLES), id="nothing when it has it all"),
    ],
)
def test_what_a_job_gave_in_vain_it_has_back_from_any_room(more, workers, size_before, back):
    shrunk_job = old(job("a", **SHRANK, **more), [0] * workers, size_before=size_before)
    assert sizes_of(world([9], shrunk_job, idle_room=NONE_SETTLED)) == {"a": back}


@pytest.mark.parametrize(
    ("state", "queue", "size"),
    [
        pytest.param(job("a"), None, 4, id="of which nobody says anything"),
        pytest.param(job("a"), QueueShare({GPU: 3}, used={}), 4, id="in which nobody is seen to use anything"),
        pytest.param(job("a", gpus=0), QueueShare({GPU: 3}, used={GPU: 4}), 4, id="too full of what it has none of"),
        pytest.param(job("a", minimum=2, unit=2), QueueShare({GPU: 3}, used={GPU: 2}), 2, id="without a whole unit"),
        pytest.param(
            job("a", minimum=2, unit=2, maximum=8), QueueShare({GPU: 5}, used={GPU: 2}), 4, id="with room for one unit"
        ),
    ],
)
def test_how_far_a_job_grows_in_a_queue(state, queue, size):
    at = world([19], old(state, [0] * state.replicas), queues={})
    at = replace(at, queues={} if queue is None else {"q": queue})
    assert plan(at)["a"].target == size


def test_what_is_kept_free_counts_from_nothing_in_an_unused_queue():
    at = replace(world([19], old(job("a", maximum=8))), queues={"q": QueueShare({GPU: 5}, used={})})
    assert plan(at, replace(POLICY, headroom={GPU: 1}))["a"].target == 5
