"""Domains of many gangs, where not every combination is tried, and pods by themselves."""

import random

import pytest

from tests.scheduler_ext.planner.test_victims import key, scene
from turnout.scheduler_ext.planner.preemption import GangLoss, MoveBudget, Victim, cheapest_hosts

HOSTS, GPUS, CPUS = 10, 8, 96


def crowded(seed):
    """Ten hosts with so many gangs, of GPUs and CPUs, that no combination is tried: as for `cheapest`."""
    dice = random.Random(seed)
    free = {host: [GPUS, CPUS] for host in range(HOSTS)}
    victims, worth = [], {}
    for name in range(14):
        gpus, members = dice.choice([1, 2, 2, 4]), []
        amounts = (gpus, gpus * dice.choice([4, 12, 20]))
        for _ in range(dice.randint(1, 4)):
            room = [
                host for host in free if all(have >= amount for have, amount in zip(free[host], amounts, strict=True))
            ]
            if room:
                lost = gpus * dice.randint(1, 50)
                members.append(
                    Victim(dice.choice(room), amounts, lost, key(f"g{name}"), terminating=dice.random() < 0.1)
                )
                free_there = free[members[-1].host]
                free[members[-1].host] = [have - amount for have, amount in zip(free_there, amounts, strict=True)]
        if members:
            spent = sum(each.lost_gpu_s for each in members)
            worth[key(f"g{name}")] = GangLoss(spent + dice.choice([0, 0, 20, 60]), dice.choice([0, 1, 2, 4]))
            victims += members
    return dice.randint(2, 6), [8, 48], free, victims, worth


MEASURED = {
    0: 112,
    1: 326,
    2: 114,
    3: 630,
    4: 761,
    5: 157,
    6: 1271,
    7: 520,
    8: 269,
    9: 1072,
    10: 747,
    11: 2,
    12: 137,
    13: 286,
    14: 54,
    15: 448,
    17: 529,
    34: 638,
    39: 328,
    73: 263,
}  # by seed


@pytest.mark.parametrize(("seed", "price"), [pytest.param(*each, id=f"domain {each[0]}") for each in MEASURED.items()])
def test_of_many_gangs_the_price_is_no_higher_than_it_was_measured(seed, price):
    need, wants, free, victims, worth = crowded(seed)
    bill = cheapest_hosts(need, wants, free, victims, worth)
    assert sum(bill.hosts.values()) >= need
    assert bill.lost_gpu_s <= price


def test_a_search_that_has_spent_its_moves_keeps_what_it_has_found():
    assert [cheapest_hosts(*scene(343), moves).lost_gpu_s for moves in (MoveBudget(40), None)] == [20, 16]


def test_moves_that_were_looked_at_are_counted_for_the_next_domain():
    moves = MoveBudget()
    cheapest_hosts(*crowded(1), moves)
    assert MoveBudget(0).left <= moves.left < MoveBudget().left


OLD, NEW = "2026-10-01T08:00:00Z", "2026-10-01T09:00:00Z"


def chosen_of(*victims, need=1, above_min=1 << 30, lost=0, wants=(8,), free=0, moves=None):
    """Return the price, and the hosts that hold a pod, once the cheapest of victims with a host each have left."""
    worth = {each.gang: GangLoss(lost, above_min) for each in victims}
    hosts = {at: [free] * len(wants) for at in range(len(victims))}
    bill = cheapest_hosts(need, wants, hosts, victims, worth, moves)
    return bill.lost_gpu_s, sorted(bill.hosts)


def victim(host, lost=8, name="", amounts=(8,), **more):
    return Victim(host, amounts, lost, key(name or f"g{host}"), **more)


@pytest.mark.parametrize(("victims", "host"), [
    pytest.param([victim(0, 8), victim(1, 7), victim(2, 9)], 1, id="who loses least"),
    pytest.param([victim(0, 7), victim(1, 9, terminating=True), victim(2, 8)], 1, id="who leaves anyway"),
])  # fmt: skip
def test_of_pods_by_themselves_who_leaves(victims, host):
    assert chosen_of(*victims)[1] == [host]


@pytest.mark.parametrize(("victims", "host"), [
    pytest.param([victim(0, created=OLD), victim(1, created=NEW), victim(2, created=OLD)], 1, id="the newest"),
    pytest.param([victim(0, created=NEW, priority=5), victim(1, created=OLD)], 1, id="the lowest priority before it"),
])  # fmt: skip
def test_who_leaves_of_equal_prices(victims, host):
    assert chosen_of(*victims) == (8, [host])
    assert chosen_of(*victims, above_min=0, lost=8) == (8, [host])
    assert chosen_of(*victims, above_min=0, lost=8, moves=MoveBudget(0)) == (8, [host])


def test_a_gang_that_loses_no_more_than_it_may_goes_on():
    gang = [victim(at, 8, "g") for at in range(3)]
    assert chosen_of(*gang, need=1, above_min=1, lost=100) == (8, [0])
    assert chosen_of(*gang, need=2, above_min=1, lost=100) == (100, [0, 1, 2])


def test_a_gang_that_stops_anyway_costs_nothing_more():
    gang = [victim(0, 8, "g", terminating=True), victim(1, 8, "g")]
    assert chosen_of(*gang, need=2, above_min=0, lost=100) == (0, [0, 1])
    assert chosen_of(*gang, need=2, above_min=1, lost=100) == (100, [0, 1])


def test_each_resource_must_be_free():
    few, many = victim(0, 1, amounts=(8, 10)), victim(1, 9, amounts=(8, 48))
    assert chosen_of(few, many, wants=(8, 48)) == (9, [1])
    assert chosen_of(few, many, wants=(8, 48), free=40) == (1, [0])


def test_of_a_hosts_pods_no_more_leave_than_must():
    pods = [victim(0, 5, f"g{at}", amounts=(4,)) for at in range(2)]
    worth = {each.gang: GangLoss(5, 0) for each in pods}
    assert cheapest_hosts(1, [4], {0: [0]}, pods, worth).lost_gpu_s == 5
    assert cheapest_hosts(1, [8], {0: [0]}, pods, worth).lost_gpu_s == 10
    assert cheapest_hosts(1, [8], {0: [4]}, pods, worth).lost_gpu_s == 5


def test_where_enough_is_free_nobody_leaves():
    bill = cheapest_hosts(1, [8], {0: [8], 1: [0]}, [victim(1)], {key("g1"): GangLoss(8, 0)})
    assert (bill.lost_gpu_s, dict(bill.hosts)) == (0, {0: 1})
    assert cheapest_hosts(1, [8], {0: [8]}, [], {}).lost_gpu_s == 0
    assert cheapest_hosts(2, [8], {0: [8]}, [], {}) is None
