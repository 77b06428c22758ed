"""A gang preempts on the hosts on which others lose the fewest GPUs, gangs counted whole."""

import itertools
import random

import pytest

from tests.kit import world
from tests.kit.hypothesis_examples import scaled
from tests.kit.world import REQUIRED, World, leaves
from turnout.jobs.gang import GangKey
from turnout.kube import labels
from turnout.scheduler_ext.model import Victims
from turnout.scheduler_ext.planner.answers import answer_preempt
from turnout.scheduler_ext.planner.preemption import GangLoss, MoveBudget, Victim, cheap_hosts, cheapest_hosts

SCENES = scaled(300)


def key(name):
    return GangKey("default", name, "scheduling.volcano.sh")


def scene(seed):
    """A domain of up to seven hosts of 8 GPUs with some gangs on it: (need, wants, free, victims, worth)."""
    dice = random.Random(seed)
    free = {host: [8] for host in range(dice.randint(3, 7))}
    victims, worth = [], {}
    for name in range(dice.randint(2, 6)):
        gpus, members = dice.choice([1, 2, 4, 8, 8]), []
        for _ in range(dice.randint(1, 4)):
            room = [host for host in free if free[host][0] >= gpus]
            if room:
                members.append(Victim(dice.choice(room), (gpus,), gpus, key(f"g{name}")))
                free[members[-1].host][0] -= gpus
        if members:
            elsewhere = dice.choice([0, 0, 0, 2, 5])
            worth[key(f"g{name}")] = GangLoss(gpus * (len(members) + elsewhere), dice.choice([0, 0, 0, 1, 2]))
            victims += members
    wants = dice.choice([8, 8, 8, 4, 2])
    return dice.randint(1, len(free) * 8 // wants), [wants], free, victims, worth


def least_price(need, wants, free, victims, worth):
    """The least price, by trying everything."""
    choices = []
    for gang, value in worth.items():
        own, above = [each for each in victims if each.gang == gang], value.above_min
        some = [each for count in range(min(above, len(own)) + 1) for each in itertools.combinations(own, count)]
        choices.append([(each, sum(victim.lost_gpu_s for victim in each)) for each in some])
        if len(own) > above:
            choices[-1].append((tuple(own), value.lost_gpu_s))
    best = None
    for chosen in itertools.product(*choices):
        price = sum(each for _, each in chosen)
        if best is None or price < best:
            have = {host: amounts[0] for host, amounts in free.items()}
            for victim in (victim for each, _ in chosen for victim in each):
                have[victim.host] += victim.amounts[0]
            best = price if sum(each // wants[0] for each in have.values()) >= need else best
    return best


def test_the_price_is_the_least_on_random_domains():
    ours = minimum = 0
    for seed in range(SCENES):
        need, wants, free, victims, worth = scene(seed)
        bill, best = cheapest_hosts(need, wants, free, victims, worth), least_price(need, wants, free, victims, worth)
        assert sum(bill.hosts.values()) >= need
        assert bill.lost_gpu_s >= best
        ours, minimum = ours + bill.lost_gpu_s, minimum + best
    assert ours <= 1.01 * minimum


@pytest.mark.parametrize("seed", [960, 1213, 2374, 4106, 4590])
def test_few_gangs_are_tried_in_every_combination(seed):
    """In these domains the least price is behind a combination that is not enough."""
    assert cheapest_hosts(*scene(seed)).lost_gpu_s == least_price(*scene(seed))


def test_without_time_to_search_there_is_still_an_answer():
    for seed in range(50):
        need, wants, free, victims, worth = scene(seed)
        bill = cheapest_hosts(need, wants, free, victims, worth, MoveBudget(3))
        assert sum(bill.hosts.values()) >= need


def test_a_domain_that_is_too_small_whoever_leaves_has_no_price():
    assert cheapest_hosts(2, [8], {0: [0]}, [Victim(0, (8,), 8, key("g"))], {key("g"): GangLoss(8, 0)}) is None


HIGH = world.volcano("high", 2, priority=100)


def preempted(w, pods, wall_s=0.0):
    """The nodes on which the members of a gang preempt, asked about one after the other."""
    found = []
    w.put(*pods)
    for pod in pods:
        victims = {name: Victims((f"uid-{name}",)) for name in w.names}
        found += answer_preempt(w.plans, w.member(pod), victims, w.now_s, wall_s)
    return found


@pytest.mark.parametrize(("low", "leaf"), [
    pytest.param([("x", "a0 a1 c0 c1"), ("y", "b0 b1")], "b", id="a gang that runs elsewhere, too, costs more"),
    pytest.param([("x", "a0 b0"), ("y", "a1 b1"), ("z", "c0 c1")], "c", id="two gangs cost more than one"),
    pytest.param([("x", "a0"), ("y", "b0 b1"), ("z", "c0 c1")], "a", id="a host that is free costs nothing"),
])  # fmt: skip
def test_a_gang_preempts_in_the_leaf_that_costs_the_fewest_gpus(low, leaf):
    w = World(2, 2, 2)
    for name, places in low:
        at = places.split()
        w.put(*world.volcano(name, len(at), at=at, priority=0)).put_group(name, len(at))
    assert leaves(dict(enumerate(preempted(w, HIGH)))) == {leaf}


LATER_S = 1767225600.0 + 7_200  # two hours into 2026, when the pods of this world are created


def test_a_gang_that_has_just_begun_loses_less():
    w = World(2, 2)
    w.put(*world.volcano("old", 2, at=["a0", "a1"], priority=0)).put_group("old", 2)
    w.put(*world.volcano("young", 2, at=["b0", "b1"], priority=0, created=7_190)).put_group("young", 2)
    assert leaves(dict(enumerate(preempted(w, HIGH, LATER_S)))) == {"b"}
    assert leaves(dict(enumerate(preempted(w, HIGH)))) == {"a"}  # without the time both cost the same


def test_more_gpus_for_a_short_time_are_cheaper_than_few_for_a_long_one():
    w = World(2, 2)
    w.put(*world.volcano("old", 2, gpus=4, at=["a0", "a1"], priority=0)).put_group("old", 2)
    w.put(*world.volcano("young", 2, at=["b0", "b1"], priority=0, created=7_190)).put_group("young", 2)
    assert leaves(dict(enumerate(preempted(w, HIGH, LATER_S)))) == {"b"}


def test_a_higher_priority_loses_nobody_while_a_lower_one_suffices():
    w = World(2, 2)
    w.put(*world.volcano("low", 2, at=["a0", "a1"], priority=1)).put_group("low", 2)
    w.put(*world.volcano("middle", 2, gpus=1, at=["b0", "b1"], priority=50, created=7_190)).put_group("middle", 2)
    assert leaves(dict(enumerate(preempted(w, HIGH, LATER_S)))) == {"a"}


def test_members_above_a_min_leave_before_a_whole_gang():
    elastic = world.koordinator("elastic", 4, minimum=2, at=["a0", "b0", "b1", "c0"], priority=0)
    w = World(2, 2, 2, 1).put(*elastic, *world.koordinator("rigid", 3, at=["a1", "c1", "d0"], priority=0))
    assert sorted(preempted(w, HIGH)) == ["b0", "b1"]


def test_pods_that_leave_anyway_cost_nothing():
    w = World(2, 2)
    going = world.volcano("going", 2, at=["b0", "b1"], priority=0, leaving=True)
    w.put(*world.volcano("small", 2, gpus=1, at=["a0", "a1"], priority=0), *going)
    assert sorted(preempted(w, HIGH)) == ["b0", "b1"]


def test_the_second_member_is_sent_beside_the_first():
    w, pods = World(2, 2, 2), world.volcano("high", 2, priority=100, notes=REQUIRED)
    for name, at in (("x", ["a0", "a1"]), ("y", ["b0", "b1"]), ("z", ["c0", "c1"])):
        w.put(*world.volcano(name, 2, at=at, priority=0))
    (first,) = preempted(w, pods[:1])
    nominated = world.volcano("high", 2, priority=100, notes=REQUIRED, nominated=first)[0]
    w.put(nominated)
    (second,) = preempted(w, pods[1:])
    assert (first[0], first != second) == (second[0], True)


def test_pods_of_a_plain_job_count_each_by_itself():
    job = [world.pod(f"j-{at}", 8, at=node, marks={labels.JOB_INDEX: str(at)}, owner="Job/j", priority=0)
           for at, node in enumerate(["a0", "a1", "c0", "c1"])]  # fmt: skip
    w = World(2, 2, 2, 1).put(*job, *world.volcano("gang", 3, at=["b0", "b1", "d0"], priority=0))
    assert sorted(preempted(w, HIGH)) == ["a0", "a1"]


@pytest.mark.parametrize(("held_hosts", "leaf"), [
    pytest.param((), "a", id="of a new gang the leaf that costs least"),
    pytest.param(("b0",), "b", id="its own leaf, though another costs less"),
    pytest.param(("c1",), "c", id="its own leaf, the last one"),
])  # fmt: skip
def test_only_the_leaf_of_members_is_looked_at(held_hosts, leaf):
    w = World(2, 2, 2)
    for name, gpus in (("a", 1), ("b", 4), ("c", 8)):
        at = [f"{name}0", f"{name}1"]
        w.put(*world.volcano(name, 2, gpus=gpus, at=at, priority=0)).put_group(name, 2)
    w.put(*HIGH)
    w.view.settle(w.now_s)
    member, rows = w.member(HIGH[0]), w.view.snapshot.row_of
    room = w.view.snapshot.room_after_preemption(member.shape, member.priority, ())
    found = cheap_hosts(w.view, member, 1, room, [rows[name] for name in held_hosts], 1, LATER_S)
    assert {w.names[row][0] for row in found.nonzero()[0].tolist()} == {leaf}
