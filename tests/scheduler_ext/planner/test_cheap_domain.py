"""The domain that costs others least, of those that a gang may use."""

import numpy as np
import pytest

from hack.bench.placement import preemptions
from tests.kit import world
from tests.kit.world import World, leaves
from tests.scheduler_ext.planner.test_victims import HIGH, LATER_S, key, preempted
from turnout.kube import labels
from turnout.scheduler_ext.planner.preemption import GangLoss, Victim, cheap_hosts, estimate_cost


def full(*sizes, off_map=0, priority=0, gpus=8):
    """Build a world in which each host is taken by a pod by itself."""
    w = World(*sizes, off_map=off_map)
    return w.put(*(world.pod(f"on-{name}", gpus, at=name, priority=priority) for name in w.names), *HIGH)


def cheap(w, need, held_hosts=(), widest=None, pod=HIGH[0]):
    """Return the hosts on which a gang preempts, by name; None for no opinion."""
    w.view.settle(w.now_s)
    member, rows = w.member(pod), w.view.snapshot.row_of
    room = w.view.snapshot.room_after_preemption(member.shape, member.priority, ())
    found = cheap_hosts(w.view, member, need, room, [rows[name] for name in held_hosts], widest, LATER_S)
    return None if found is None else {w.view.fabric.hosts[row]: int(found[row]) for row in found.nonzero()[0].tolist()}


@pytest.mark.parametrize(("need", "held_hosts", "widest", "found"), [
    pytest.param(2, (), None, 2, id="a leaf"),
    pytest.param(3, (), None, 3, id="a spine, where no leaf is large enough"),
    pytest.param(3, (), 2, 3, id="a spine, which is as wide as it may be"),
    pytest.param(3, (), 1, None, id="none, where a spine is too wide"),
    pytest.param(1, ("a0", "b0"), None, 1, id="the spine of its members"),
    pytest.param(1, ("a0", "b0"), 1, None, id="none, where its members are too far from each other"),
    pytest.param(9, (), None, None, id="none for more than there are"),
])  # fmt: skip
def test_how_wide_the_domain_is(need, held_hosts, widest, found):
    hosts = cheap(full(2, 2, 2, 2), need, held_hosts, widest)
    assert (None if hosts is None else sum(hosts.values())) == found


def test_beside_a_member_off_the_map_there_is_no_opinion():
    w = full(2, off_map=2)
    assert cheap(w, 1, ("x0",)) is None
    assert cheap(w, 1, ("a0",)) is not None
    assert set(cheap(w, 1)) <= {"a0", "a1"}


@pytest.mark.parametrize(("priorities", "leaf"), [
    pytest.param({"a": 50, "b": 1}, "b", id="the lower one, though it loses more"),
    pytest.param({"a": 1, "b": 50}, "a", id="the lower one, wherever it is"),
    pytest.param({"a": -3, "b": -7}, "b", id="also of those below none"),
    pytest.param({"a": 1, "b": 100}, "a", id="none of its own priority"),
])  # fmt: skip
def test_the_lowest_priority_that_suffices_leaves(priorities, leaf):
    w = World(2, 2)
    for name, priority in priorities.items():
        created = 0 if name == "b" else 7_190
        w.put(*(world.pod(f"{name}-{at}", 8, at=f"{name}{at}", priority=priority, created=created) for at in range(2)))
    assert leaves(dict(enumerate(preempted(w, HIGH, LATER_S)))) == {leaf}


def test_seven_priorities_are_tried_one_after_the_other_and_then_all():
    w = World(*[1] * 12).put(*HIGH[:1])
    for at, name in enumerate(w.names):  # the higher, the cheaper
        w.put(world.pod(f"on-{name}", 8, at=name, priority=at, created=100 * at))
    assert set(cheap(w, 7)) == set(w.names[:7])
    assert set(cheap(w, 8)) == set(w.names[4:])


def test_of_domains_of_one_price_the_one_with_least_room_is_chosen():
    assert set(cheap(full(3, 2), 2)) == {"b0", "b1"}
    leaving = World(3, 2).put(*HIGH)
    leaving.put(*(world.pod(f"on-{name}", 8, at=name, priority=0, leaving=True) for name in leaving.names))
    assert set(cheap(leaving, 2)) == {"b0", "b1"}
    assert set(cheap(World(3, 2).put(*HIGH), 2)) == {"b0", "b1"}


def test_of_domains_that_cost_nothing_the_one_with_least_room_is_chosen():
    half = world.volcano("half", 2, gpus=4, priority=100)
    w = World(3, 2).put(*half, *(world.pod(f"on-{name}", 4, at=name, priority=0) for name in ("b0", "b1")))
    assert cheap(w, 2, pod=half[0]) == {"b0": 1, "b1": 1}


def looked_at(w, need):
    """Return the hosts that a search for a domain looks at, by name."""
    rows, snapshot = set(), w.view.snapshot
    free_at = snapshot.resources.free_at
    snapshot.resources.free_at = lambda row: rows.add(w.names[row]) or free_at(row)
    cheap(w, need)
    return rows


def test_nobody_who_runs_is_looked_at_where_a_domain_is_free():
    w = World(2, 2, 2).put(*HIGH)
    for name in w.names:
        if name[0] != "b":
            w.put(world.pod(f"on-{name}", 8, at=name, priority=0))
    assert looked_at(w, 2) == {"b0", "b1"}


def test_a_host_that_no_pod_may_use_is_not_where_it_preempts():
    w = full(2)
    w.view.layout.put_node(world.node("a2", 8, "10.0.0.3", spec={"unschedulable": True}))
    w.view.layout.put_node(world.node("a0", 8, "10.0.0.1", spec={"unschedulable": True}))
    w.view.drop_pod("uid-on-a0")
    assert set(cheap(w, 1)) == {"a1"}


def test_no_equal_is_a_victim_however_many_priorities_there_are():
    """Eight of ten hosts must be cleared: nine and zero are dear, though equals on them are cheap."""
    mine = world.volcano("mine", 1, gpus=4, priority=100)
    w = World(*[1] * 10).put(*mine)
    for at, name in enumerate(w.names):
        dear = at in (0, 9)
        w.put(
            world.pod(f"low-{name}", 4, at=name, priority=at, created=0 if dear else 3_600),
            world.pod(f"equal-{name}", 4, at=name, priority=100, created=7_190 if dear else 10),
        )
    assert set(cheap(w, 8, pod=mine[0])) == set(w.names[1:9])


def test_where_not_all_can_be_searched_the_cheapest_looking_come_first():
    w = World(*[8] * 12).put(*HIGH)
    for at, name in enumerate(w.names):
        created = 7_000 if name[0] == "k" else 100 + at
        w.put(*(world.pod(f"on-{name}-{own}", 2, at=name, priority=0, created=created) for own in range(4)))
    assert {name[0] for name in cheap(w, 6)} == {"k"}
    assert 8 <= len(looked_at(w, 6)) < 96


LONE, WHOLE = GangLoss(0, 1 << 30), GangLoss(40, 0)  # a pod that can be lost by itself, a gang that stops


def on(row, lost, gang, **more):
    return Victim(row, (8,), lost, key(gang), **more)


@pytest.mark.parametrize(("need", "room", "victims", "price"), [
    pytest.param(1, [2], [on(0, 10, "lone")], 5, id="a host's price for each pod that it holds then"),
    pytest.param(2, [2], [on(0, 10, "lone")], 10, id="for all that it holds"),
    pytest.param(2, [1, 2], [on(0, 8, "lone"), on(1, 6, "lone")], 6, id="the cheapest host alone, where it is enough"),
    pytest.param(3, [1, 2], [on(0, 8, "lone"), on(1, 6, "lone")], 14, id="with the next, where it is not"),
    pytest.param(2, [1, 2, 9], [on(0, 8, "lone"), on(1, 6, "lone")], 6, id="none from outside of the domain"),
    pytest.param(1, [1, 1], [on(0, 8, "whole"), on(1, 8, "whole")], 20, id="a gang's price is shared by its pods"),
    pytest.param(2, [1, 1], [on(0, 8, "whole"), on(1, 8, "whole")], 40, id="and whole where all of them leave"),
    pytest.param(1, [1, 1], [on(0, 8, "whole"), on(1, 8, "whole", terminating=True)], 0, id="a leaving pod is free"),
    pytest.param(1, [1, 0], [on(0, 8, "lone"), on(1, 1, "lone")], 8, id="a host that is too small helps nobody"),
])  # fmt: skip
def test_about_what_a_domain_costs(need, room, victims, price):
    by_row = {row: [each for each in victims if each.host == row] for row in range(len(room))}
    assert estimate_cost(need, np.array(room), by_row, {key("lone"): LONE, key("whole"): WHOLE}, 0, 2) == price


def test_a_pod_by_itself_counts_from_its_creation_and_a_second_at_least():
    w = World(1, 1).put(*HIGH[:1])
    w.put(
        world.pod("long", 1, at="a0", priority=0, created=7_000),
        world.pod("short", 8, at="b0", priority=0, created=7_199),
    )
    assert cheap(w, 1) == {"b0": 1}
    assert LATER_S - 7_200 == 1767225600.0
    w = World(1, 1).put(*HIGH[:1])
    w.put(
        world.pod("one", 4, at="a0", priority=0, created=7_300),
        world.pod("other", 8, at="b0", priority=0, created=7_300),
    )
    assert cheap(w, 1) == {"a0": 1}


def test_a_pod_above_its_gangs_min_counts_its_gpus_times_its_time():
    w = World(2, 2).put(*HIGH[:1])
    w.put(*world.koordinator("long", 2, minimum=1, gpus=1, at=["a0", "a1"], priority=0, created=7_000))
    w.put(*world.koordinator("short", 2, minimum=1, gpus=8, at=["b0", "b1"], priority=0, created=7_199))
    assert {name[0] for name in cheap(w, 1)} == {"b"}


def test_a_gang_that_keeps_apart_preempts_in_no_domain_of_its_set():
    notes = {labels.APART: "leaf", labels.APART_SET: "evals"}
    w = World(2, 2, 2)
    w.put(*world.volcano("there", 1, gpus=1, at=["a0"], priority=100, notes=notes))
    for name, created in (("a0", 7_100), ("a1", 7_100), ("b0", 0), ("b1", 0), ("c0", 7_000), ("c1", 7_000)):
        w.put(world.pod(f"on-{name}", 7, at=name, priority=0, created=created))
    mine = world.volcano("mine", 1, priority=100, notes=notes)
    assert leaves(dict(enumerate(preempted(w, mine, LATER_S)))) == {"c"}


def test_beside_free_hosts_of_another_resource_nobody_else_is_counted():
    w = World(2, 2).put(*HIGH[:1])
    w.put(world.pod("cpu", 0, at="a0", priority=0), world.pod("gpu", 8, at="b0", priority=0))
    w.put(world.pod("gpu-1", 8, at="b1", priority=0), world.pod("gpu-2", 8, at="a1", priority=0))
    assert cheap(w, 1) == {"a0": 1}


@pytest.mark.parametrize("multiple", [2, 4])
def test_pods_in_multiples_preempt_at_the_least_loss_of_all_choices(multiple):
    prices = [preemptions.preemption_cost(seed, multiple) for seed in range(60)]
    assert sum(minimum > 0 for _, minimum in prices) > 30
    assert [paid for paid, _ in prices] == [minimum for _, minimum in prices]


def test_pods_in_slices_preempt_near_the_least_loss_of_all_choices():
    prices = [preemptions.preemption_cost_in_slices(seed) for seed in range(60)]
    assert None not in [paid for paid, _ in prices]
    assert sum(paid for paid, _ in prices) <= 1.05 * sum(minimum for _, minimum in prices)
