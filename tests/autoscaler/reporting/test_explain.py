"""The chain of one decision in numbers, and why nodes let a worker in or not."""

from dataclasses import replace

import pytest

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, shape, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Reason
from turnout.autoscaler.reporting.why import Holder, chain, count_refusals, refusal, worker_text
from turnout.jobs.model import JobKey, Spread
from turnout.kube.objects import Node, NodeCondition, NodeSpec, NodeStatus, ObjectMeta, Taint
from turnout.kube.pod_shape import PodShape, amount_text


def of(name, at, policy=POLICY, nodes=()):
    return chain(JobKey("Job", "ns", name), at, decide(at, policy, NOW_S), policy, NOW_S, nodes, (GPU,))


def node(name="n", ready=True, **spec):
    status = NodeStatus(allocatable={GPU: "8", "pods": "110"}, conditions=[NodeCondition("Ready", str(ready))])
    return Node(ObjectMeta(name=name, labels={"disk": "ssd", "zone": "a"}), NodeSpec(**spec), status)


LENT = state_of(job("a", minimum=2, maximum=8, replicas=7), [0] * 7)
WAITS = state_of(job("b", minimum=8, maximum=8))


@pytest.mark.contract("CS-12", "VE-06", "VE-08", "VE-12", "VE-13")
def test_a_waiting_job_is_told_all_from_its_queue_to_what_it_lacks():
    explanation = of("b", world([8], LENT, WAITS, queues={"q": {"limit": 8, "deserved": 5}}), nodes=[node()])
    assert (explanation.state, explanation.reason, explanation.workers) == ("waiting", Reason.NEEDS_MORE, 8)
    queue = explanation.queue
    assert (queue.limit, queue.deserved, queue.used, queue.free, queue.headroom) == (8, 5, 7, 1, 0)
    assert queue.holders == (Holder("Job/ns/a", 2, 5),)
    assert [(each.resource, each.needs, each.limit, each.free) for each in explanation.quota] == [(GPU, 8, 8, 1)]
    room = explanation.room
    assert (room.worker, room.nodes, room.admits, room.with_room, room.fits, room.fits_when_empty) == (
        f"1 {GPU}",
        1,
        1,
        1,
        1,
        8,
    )
    gang = explanation.gang
    assert (gang.minimum, gang.bound, gang.missing, gang.finished) == (8, 0, 8, 0)
    assert explanation.size is None


def test_a_running_job_is_told_its_size_its_bank_and_its_cooldown():
    running_job = replace(
        LENT, job=replace(LENT.job, resize_budget=job("x", resized_s=NOW_S - 100, gained_s=50).resize_budget)
    )
    size = of("a", world([8], running_job)).size
    assert (size.size, size.requested, size.larger, size.elastic) == (7, 7, 8, 5)
    assert (size.cooldown_s, size.changed_s) == (500.0, NOW_S - 100)
    assert size.balance_s > 50
    assert of("a", world([8], LENT)).size.changed_s is None


def test_who_gives_and_for_whom_is_told_on_both_sides():
    at = world(
        [8],
        replace(LENT, job=replace(LENT.job, maximum=8) if False else LENT.job),
        state_of(job("b", minimum=4, maximum=4)),
    )
    assert of("b", at).shrinking_jobs == (("Job/ns/a", 7, 4),)
    assert of("a", at).beneficiary == "Job/ns/b"


def test_a_queue_that_nobody_describes_is_told_by_its_pods():
    explanation = of("a", world([8], LENT, queues={}))
    assert (explanation.queue.known, explanation.queue.used, explanation.queue.limit, explanation.quota) == (
        False,
        7,
        None,
        (),
    )


def test_the_largest_holders_come_first_and_the_others_are_counted():
    jobs = [state_of(job("x" * n, minimum=1, maximum=n, replicas=n), [0] * n) for n in range(1, 9)]
    queue = of("x", world([40], *jobs)).queue
    assert [each.job[7:] for each in queue.holders] == ["x" * n for n in (8, 7, 6, 5, 4)]
    assert queue.others == 3


def test_a_gang_under_one_switch_says_so():
    gang = of("b", world([8], state_of(job("b", minimum=2, maximum=4, spread=Spread(1, 2))))).gang
    assert (gang.tier, gang.multiple, gang.maximum) == (1, 2, 4)


def test_a_job_that_was_not_seen_has_no_chain():
    assert of("nobody", world([8], LENT)) is None


@pytest.mark.parametrize(
    ("raw_node", "why"),
    [
        pytest.param(node(), "", id="it lets it in"),
        pytest.param(node(ready=False), "not ready", id="not ready"),
        pytest.param(node(unschedulable=True), "cordoned", id="cordoned"),
        pytest.param(
            node(unschedulable=True, taints=[Taint("node.kubernetes.io/unschedulable", None, "NoSchedule")]),
            "cordoned",
            id="cordoned, and the controller has tainted it",
        ),
        pytest.param(node(taints=[Taint("team", "x", "NoSchedule")]), "taint team", id="a taint"),
        pytest.param(node(taints=[Taint("team", "x", "PreferNoSchedule")]), "", id="a taint that only asks"),
    ],
)
def test_why_a_node_does_not_let_a_worker_in(raw_node, why):
    assert refusal(raw_node, shape(1)) == why


def test_selectors_and_affinities_are_named():
    asks = shape(1)
    assert refusal(node(), replace(asks, selector=(("disk", "ssd"), ("zone", "b")))) == "without label zone=b"
    far = ((((("zone", "In", ("c",)),)), ()),)
    assert refusal(node(), replace(asks, terms=far)) == "outside its node affinity"
    assert count_refusals([node(), node(ready=False), node(ready=False)], asks) == {"not ready": 2}


@pytest.mark.parametrize(
    ("what", "amount", "text"),
    [("cpu", 4000, "4 cpu"), ("cpu", 500, "500m cpu"), ("memory", 64 << 30, "64Gi memory"), (GPU, 8, f"8 {GPU}")],
)
def test_amounts_are_told_as_people_write_them(what, amount, text):
    assert amount_text(what, amount) == text


def test_a_worker_is_told_gpus_first():
    asks = PodShape((("cpu", 2000), ("memory", 1 << 30), (GPU, 2), ("pods", 1)))
    assert worker_text(asks, (GPU,)) == f"2 {GPU}, 2 cpu, 1Gi memory"
    assert worker_text(PodShape((("pods", 1),)), (GPU,)) == "nothing"
