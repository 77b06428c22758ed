"""Who uses which GPUs, who lends to whom, why GPUs are idle: at one moment, and summed over time."""

from dataclasses import replace

import pytest

from tests.autoscaler.world import GPU, job, shape, state_of, world
from turnout.autoscaler.model import UNKNOWN_NODE, Reason, Step, Worker
from turnout.autoscaler.reporting.usage import (
    OTHER,
    IdleReason,
    Reclaims,
    UsageRates,
    UsageSums,
    UsedBy,
    borrowed_gpus,
    bound_pairs,
    idle_by_reason,
    idle_gpus,
    lending,
    split,
    split_return,
    unused_shares,
    usage_rates,
)
from turnout.jobs.model import JobLifecycle
from turnout.jobs.queues.model import QueueShare

GPUS = (GPU,)


def queue(used, deserved=None, limit=None, **more):
    amounts = [{} if each is None else {GPU: each} for each in (limit, deserved)]
    return QueueShare(*amounts, {GPU: used}, **more)


@pytest.mark.parametrize(("amount", "weights", "all_amounts", "parts"), [
    pytest.param(6, {"a": 4, "b": 8}, 0, {"a": 2, "b": 4}, id="in proportion to the weights"),
    pytest.param(12, {"a": 4, "b": 8}, 0, {"a": 4, "b": 8}, id="all of them"),
    pytest.param(15, {"a": 4, "b": 8}, 0, {"a": 4, "b": 8, OTHER: 3}, id="no more than a weight"),
    pytest.param(5, {}, 0, {OTHER: 5}, id="nobody has a weight"),
    pytest.param(0, {"a": 4}, 0, {}, id="nothing to split"),
    pytest.param(6, {"a": 12}, 24, {"a": 3, OTHER: 3}, id="others share the same weights"),
])  # fmt: skip
def test_an_amount_is_split_in_proportion(amount, weights, all_amounts, parts):
    found = split(amount, weights, all_amounts)
    assert found == pytest.approx(parts)
    assert sum(found.values()) == pytest.approx(amount)


@pytest.mark.parametrize(("queues", "unused"), [
    pytest.param({"a": queue(2, deserved=8)}, {"a": 6}, id="of the deserved share"),
    pytest.param({"a": queue(2, deserved=8, limit=99)}, {"a": 6}, id="the limit does not matter then"),
    pytest.param({"a": queue(2, limit=8)}, {"a": 6}, id="of the limit where no share is given"),
    pytest.param({"a": queue(9, deserved=8)}, {}, id="a queue above its share"),
    pytest.param({"a": queue(2)}, {}, id="a queue without share and limit"),
    pytest.param({"a": queue(2, limit=8, parent="up"), "up": queue(2, limit=9)}, {"a": 6}, id="a parent"),
    pytest.param({"cohort/c": queue(2, limit=8)}, {}, id="a cohort is no queue"),
])  # fmt: skip
def test_the_unused_share_of_a_queue(queues, unused):
    assert unused_shares(queues, GPUS) == unused


@pytest.mark.parametrize(("elastic", "queues", "borrowed"), [
    pytest.param({"a": 4}, {"a": queue(10, deserved=8)}, {"a": 2}, id="beyond the share only"),
    pytest.param({"a": 4}, {"a": queue(20, deserved=8)}, {"a": 4}, id="no more than the elastic workers"),
    pytest.param({"a": 4}, {"a": queue(6, deserved=8)}, {}, id="its own GPUs are not borrowed"),
    pytest.param({"a": 4}, {"a": queue(6)}, {"a": 4}, id="all where no share is given"),
    pytest.param({"a": 4}, {}, {"a": 4}, id="a queue that only jobs name"),
])  # fmt: skip
def test_the_gpus_that_a_queue_borrows(elastic, queues, borrowed):
    assert borrowed_gpus(elastic, queues, GPUS) == borrowed


def test_borrowed_gpus_come_from_the_unused_shares_of_others():
    queues = {"a": queue(12, deserved=6), "b": queue(2, deserved=6), "c": queue(0, deserved=8), "d": queue(3)}
    found = lending({"a": 6, "d": 3}, queues, GPUS)
    assert found == pytest.approx({("b", "a"): 2, ("c", "a"): 4, ("b", "d"): 1, ("c", "d"): 2})
    assert split_return("a", 3, queues, GPUS) == pytest.approx({"b": 1, "c": 2})


def test_gpus_that_nobody_has_a_share_of_are_lent_by_other():
    assert lending({"a": 6}, {"a": queue(6, deserved=0), "b": queue(2, deserved=4)}, GPUS) == pytest.approx(
        {("b", "a"): 2, (OTHER, "a"): 4}
    )


def hold(each, reason):
    return Step(each.job.key, each.job.replicas, each.job.replicas, reason)


def waiting(name="w", minimum=4, **more):
    return state_of(job(name, minimum=minimum, maximum=minimum, **more))


def running(name="a", **more):
    return state_of(job(name, minimum=2, maximum=8, replicas=3, **more), rows=[0, 0, 0])


def leaving(name="l"):
    """A job that gave two workers, which still terminate."""
    return state_of(job(name, minimum=1, maximum=8, replicas=1), rows=[0, 0, 0])


QUEUES = {"q": {"limit": 100}}
IDLE = {
    "nothing is idle": (0, [(waiting(), Reason.NEEDS_MORE)], {}, {}),
    "no job": (5, [], {}, {"nobody_waits": 5}),
    "jobs that want nothing": (5, [(running(), Reason.AT_MAX)], {}, {"nobody_waits": 5}),
    "a job that fits in number": (5, [(waiting(), Reason.NEEDS_MORE)], {}, {"fragmented": 5}),
    "a job larger than all that is idle": (3, [(waiting(), Reason.NEEDS_MORE)], {}, {"too_small": 3}),
    "a large and a small job": (
        5,
        [(waiting("w", 9), Reason.NEEDS_MORE), (waiting("v"), Reason.NEEDS_MORE)],
        {},
        {"fragmented": 5},
    ),
    "a job over its quota": (5, [(waiting("w", 101), Reason.OVER_QUOTA)], {}, {"nobody_waits": 5}),
    "a job at the limit of its queue": (200, [(waiting("w", 101), Reason.NEEDS_MORE)], {}, {"nobody_waits": 200}),
    "a growing job that fits no node": (5, [(running(gpus=4), Reason.NO_FREE_ROOM)], {}, {"fragmented": 5}),
    "a growing job of larger workers": (3, [(running(gpus=4), Reason.NO_FREE_ROOM)], {}, {"too_small": 3}),
    "room for a job that starts": (9, [(waiting(), Reason.SCHEDULERS_TURN)], {}, {"reserved": 4, "nobody_waits": 5}),
    "no more than is idle is reserved": (3, [(waiting(), Reason.SCHEDULERS_TURN)], {}, {"reserved": 3}),
    "workers that leave free the rest": (
        9,
        [(waiting(), Reason.WAITS_FOR_ROOM), (leaving(), Reason.AT_MAX)],
        {},
        {"reserved": 2, "nobody_waits": 7},
    ),
    "headroom that stops a job": (9, [(running(), Reason.HEADROOM_KEPT)], {GPU: 4}, {"headroom": 4, "nobody_waits": 5}),
    "headroom that nobody wants": (9, [(running(), Reason.AT_MAX)], {GPU: 4}, {"nobody_waits": 9}),
    "room that settles": (9, [(running(), Reason.ROOM_SETTLES)], {}, {"settling": 5, "nobody_waits": 4}),
    "a cooldown": (2, [(running(), Reason.COOLDOWN)], {}, {"settling": 2}),
    "one after another": (
        9,
        [(waiting("w"), Reason.SCHEDULERS_TURN), (running(), Reason.COOLDOWN), (waiting("v"), Reason.NEEDS_MORE)],
        {},
        {"reserved": 4, "settling": 5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IDLE)
def test_why_gpus_are_idle(case):
    free_gpus, jobs, headroom, reasons = IDLE[case]
    observation = world([8], *(each for each, _ in jobs), queues=QUEUES)
    steps = [hold(each, reason) for each, reason in jobs]
    found = idle_by_reason(observation, steps, free_gpus, GPUS, headroom)
    assert {reason.value: amount for reason, amount in found.items()} == reasons
    assert sum(found.values()) == free_gpus


def test_idle_gpus_belong_to_the_queues_that_leave_their_share_unused():
    observation = replace(world([8]), queues={"a": queue(0, deserved=4), "b": queue(2, deserved=4)})
    assert idle_gpus(observation, [], 12, GPUS, {}) == pytest.approx(
        {("a", "nobody_waits"): 4, ("b", "nobody_waits"): 2, (OTHER, "nobody_waits"): 6}
    )


def test_who_holds_which_gpus():
    elastic = running("bert", queue="a", other_roles=((shape(1), 1),))
    elastic = replace(elastic, other_pods=(1,))
    rigid_job = state_of(job("gpt", minimum=1, maximum=1, queue="b", gpus=4), rows=[UNKNOWN_NODE])
    observation = replace(
        world([8], elastic, rigid_job), queues={"a": queue(7, deserved=2), "b": queue(4, deserved=8), "c": queue(0)}
    )
    rates = usage_rates(observation, [], 0, GPUS, owner_label_of=lambda key: f"of-{key.name}")
    bert = UsedBy("a", "Job/ns/bert", "of-bert")
    gpus_by_user = {bert: 4, UsedBy("b", "Job/ns/gpt", "of-gpt"): 4, UsedBy("a"): 3}
    assert (rates.held_gpus, rates.elastic, rates.gained) == (
        gpus_by_user,
        {bert: 1},
        {"a": pytest.approx(0.88, abs=0.01)},
    )
    assert rates.lent == {("b", "a"): 1}


def test_gpus_of_workers_that_terminate_are_held_and_not_elastic():
    state = running("bert")
    workers = (*state.workers, Worker(3, 0, leaving=True))
    rates = usage_rates(world([8], replace(state, workers=workers)), [], 0, GPUS)
    assert (sum(rates.held_gpus.values()), sum(rates.elastic.values())) == (4, 1)


def test_rates_are_summed_over_time():
    holder, sums = UsedBy("q", "Job/ns/a"), UsageSums()
    sums.add(UsageRates({holder: 4}, lent={("a", "b"): 2}), 10.0)
    sums.add(UsageRates({holder: 2}, idle={("q", "fragmented"): 1}), 5.0)
    assert (sums.seconds, sums.held_gpu_s, sums.lent, sums.idle) == (
        15.0,
        {holder: 50},
        {("a", "b"): 20},
        {("q", "fragmented"): 5},
    )


def test_pairs_are_counted_by_name_up_to_a_bound():
    known = set()
    assert bound_pairs({("a", "b"): 1, ("a", "c"): 2, ("a", "d"): 3}, known, max_pairs=2) == {
        ("a", "b"): 1,
        ("a", "c"): 2,
        (OTHER, OTHER): 3,
    }
    assert bound_pairs({("a", "d"): 3, ("a", "c"): 5, ("e", "f"): 1}, known, max_pairs=2) == {
        ("a", "c"): 5,
        (OTHER, OTHER): 4,
    }


def test_the_time_until_lent_gpus_are_bound_to_the_job_that_needs_them():
    waiting_job, starts = waiting(), state_of(job("w", minimum=4, maximum=4), rows=[0] * 4)
    reclaims, step = Reclaims(), hold(waiting_job, Reason.WAITS_FOR_ROOM)
    assert reclaims.update([waiting_job], [step], 100.0) == []
    assert reclaims.update([waiting_job], [hold(waiting_job, Reason.SCHEDULERS_TURN)], 130.0) == []
    assert reclaims.update([starts], [], 160.0) == [("q", 60.0)]
    assert reclaims.update([starts], [], 170.0) == []


@pytest.mark.parametrize("end", [
    pytest.param([], id="a deleted job"),
    pytest.param([state_of(job("w", minimum=4, maximum=4, lifecycle=JobLifecycle.SUSPENDED))], id="a suspended job"),
])  # fmt: skip
def test_a_job_that_does_not_start_has_no_time(end):
    reclaims, waiting_job = Reclaims(), waiting()
    reclaims.update([waiting_job], [hold(waiting_job, Reason.WAITS_FOR_ROOM)], 100.0)
    assert reclaims.update(end, [], 160.0) == []
    assert reclaims.update([state_of(job("w", minimum=4, maximum=4), rows=[0] * 4)], [], 170.0) == []


def test_room_without_workers_that_leave_is_no_reclaim():
    reclaims, waiting_job = Reclaims(), waiting()
    reclaims.update([waiting_job], [hold(waiting_job, Reason.SCHEDULERS_TURN)], 100.0)
    assert reclaims.update([state_of(job("w", minimum=4, maximum=4), rows=[0] * 4)], [], 170.0) == []


def test_every_reason_has_a_case():
    assert {reason for *_, found in IDLE.values() for reason in found} == {reason.value for reason in IdleReason}
