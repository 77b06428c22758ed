"""Standing plans seat by seat: whose room they keep, on which rows, and what of it others may use."""

import pytest

from tests.kit import world
from tests.kit.world import World
from turnout.jobs.gang import GangKey
from turnout.kube.node_capacity import Charge, ClusterSnapshot
from turnout.kube.pod_shape import shape_of
from turnout.scheduler_ext.planner.order import GangPosition, OrderedSeat, SeatClass
from turnout.scheduler_ext.planner.request import GangPlan, Seat, drop_seats, plan_sort_key
from turnout.scheduler_ext.planner.reserved_room import (
    StandingPlan,
    StandingPlans,
    growth_seats_beside,
    room_beside_plans,
    shapes_without_room,
)
from turnout.topology.model import Refusal, RefusalReason

GPU8, GPU4, PICKY = (shape_of(world.pod("p", 8)), shape_of(world.pod("p", 4)), shape_of(world.pod("p", 16)))


def key(name, namespace="default"):
    return GangKey(namespace, name, "scheduling.volcano.sh")


def order(place, level=SeatClass.WAITING, above=False):
    """A place in the order of gangs; the smaller, the earlier."""
    return int(level), 0, above, True, f"{place:03d}", 0, f"g{place}"


def kept(name, place, hosts, growth=(), above=(), shape=GPU8, namespace="default"):
    """A plan of a gang at a place in the order: hosts of its min, of members above it, of members to come."""
    seats = {f"{name}-{at}": host for at, host in enumerate([*hosts, *above])}
    claims = [OrderedSeat(order(place), host, shape, f"{name}-{at}") for at, host in enumerate(hosts)]
    over = order(place, above=True)
    claims += [OrderedSeat(over, host, shape, f"{name}-{len(hosts) + at}") for at, host in enumerate(above)]
    hopes = order(place, SeatClass.GROWTH, above=True)
    claims += [OrderedSeat(hopes, host, shape, "", 10 + at) for at, host in enumerate(growth)]
    spare = tuple(Seat(host, shape, 10 + at) for at, host in enumerate(growth))
    plan = GangPlan(
        key(name, namespace), seats, spare, shapes=dict.fromkeys(seats, shape), ranks=dict.fromkeys(seats, 0)
    )
    return StandingPlan(plan, GangPosition(len(hosts), order(place), order(place)), None, frozenset(), claims)


def reservations(*plans, nodes=4):
    """Reservations of these plans, and the snapshot under them: nodes n0 and so on of 8 GPUs."""
    snapshot = ClusterSnapshot()
    for at in range(nodes):
        snapshot.put_node(world.node(f"n{at}", 8))
    snapshot.set_row_order([f"n{at}" for at in range(nodes)])
    table = StandingPlans(snapshot)
    for each in plans:
        table.put(each.plan.key, each)
    return table, snapshot


def room(table, shape=GPU8, **more):
    return room_beside_plans(table.room, more.pop("without", ()), **more)(shape, more.get("besides", ())).tolist()


def test_a_plan_keeps_its_rows_until_it_is_replaced_or_removed():
    table, _ = reservations(kept("one", 1, [0, 1]), kept("two", 2, [2]))
    assert (room(table), sorted(table.gangs_by_row), len(table)) == ([0, 0, 0, 1], [0, 1, 2], 2)
    table.put(key("one"), kept("one", 1, [1, 3]))
    assert (room(table), sorted(table.gangs_by_row), len(table)) == ([1, 0, 0, 0], [1, 2, 3], 2)
    assert table.remove(key("one")) == [(1, GPU8), (3, GPU8)]
    assert (room(table), sorted(table.gangs_by_row), len(table)) == ([1, 1, 0, 1], [2], 1)
    assert (table.get(key("one")), table.plan_of(key("two")).plan.key) == (None, key("two"))
    table.clear()
    assert (room(table), list(table.gangs_by_row), len(table), list(table)) == ([1] * 4, [], 0, [])


def test_a_row_is_kept_for_as_long_as_one_plan_is_on_it():
    table, _ = reservations(kept("one", 1, [0], shape=GPU4), kept("two", 2, [0], shape=GPU4))
    table.remove(key("one"))
    assert (list(table.gangs_by_row), room(table, GPU4)[0]) == ([0], 1)


def test_seats_on_a_row_come_in_order_the_last_first():
    table, _ = reservations(kept("two", 2, [0], shape=GPU4), kept("one", 1, [0], [0], [0], shape=GPU4))
    seats = [(owner.name, claim.uid or claim.rank) for claim, owner in table.seats_on(0)]
    assert seats == [("one", 10), ("one", "one-1"), ("two", "two-0"), ("one", "one-0")]
    assert table.seats_on(3) == []


def test_whoever_hopes_is_named_and_counted_by_namespace():
    table, _ = reservations(
        kept("one", 1, [0], [1, 2]), kept("two", 2, [3]), kept("far", 3, [], [3], namespace="elsewhere")
    )
    assert [each.plan.key.name for each in table.with_growth_seats.values()] == ["one", "far"]
    assert [
        growth_seats_beside(each, table.with_growth_seats) for each in (key("one"), key("two"), key("x", "elsewhere"))
    ] == [0, 2, 1]
    assert kept("one", 1, [0], [1, 2], [3]).growth_seats() == [(1, GPU8), (2, GPU8)]
    table.put(key("one"), kept("one", 1, [0]))
    assert [each.plan.key.name for each in table.with_growth_seats.values()] == ["far"]


@pytest.mark.parametrize(("place_in_order", "growth", "found"), [
    pytest.param(order(0), True, [0, 1, 2, 3], id="the first may use all"),
    pytest.param(order(1), True, [1, 2, 3], id="a gang's own min is not open to itself"),
    pytest.param(order(5), True, [1, 2], id="behind both the seats above the min are left, and those hoped for"),
    pytest.param(order(5), False, [2], id="or not those hoped for of gangs ahead"),
    pytest.param(order(0), False, [0, 1, 2, 3], id="of gangs behind all"),
])  # fmt: skip
def test_which_rows_are_open_to_a_place_in_the_order(place_in_order, growth, found):
    table, _ = reservations(kept("one", 1, [0], growth=[1], above=[2]), kept("two", 2, [3]))
    assert sorted(host for host, _ in table.pods_behind(place_in_order, growth)) == found


def test_seats_of_members_to_come_give_way_first_and_only_as_many_as_must():
    table, snapshot = reservations(
        kept("one", 1, [0], growth=[0], shape=GPU4), kept("two", 2, [1], growth=[1], shape=GPU4)
    )
    assert table.surplus_on(0) == []
    snapshot.charge("stranger", Charge("n0", GPU4, 0))
    assert table.room.is_overdrawn(0)
    assert [(claim.rank, owner.name) for claim, owner in table.surplus_on(0)] == [(10, "one")]
    assert table.room.is_overdrawn(0)  # what is looked at stays as it was
    snapshot.charge("other", Charge("n0", GPU4, 0))
    assert [(claim.rank, owner.name) for claim, owner in table.surplus_on(0)] == [(10, "one")]
    assert table.surplus_on(1) == []


def test_a_shape_of_which_a_row_holds_none_does_not_fit():
    _, snapshot = reservations(kept("one", 1, [0]))
    assert shapes_without_room(snapshot, 0, [GPU8, GPU4, PICKY]) == {PICKY}
    snapshot.charge("stranger", Charge("n0", GPU4, 0))
    assert shapes_without_room(snapshot, 0, [GPU8, GPU4]) == {GPU8}


def test_room_may_be_that_of_some_rows_beside_some_pods():
    table, _ = reservations(kept("one", 1, [0]))
    assert room(table, rows=[0, 1]) == [0, 1, 0, 0]
    assert room(table, rows=[0, 1], without=[(0, GPU8)]) == [1, 1, 0, 0]
    assert room(table, extra_pods=[(2, GPU8)]) == [0, 1, 0, 1]
    assert room_beside_plans(table.room, (), extra_pods=[(2, GPU8)])(GPU8, [(3, GPU8)]).tolist() == [0, 1, 0, 0]


def test_a_plan_without_some_seats_keeps_the_others():
    plan = kept("one", 1, [0, 1], [2, 3]).plan
    less = drop_seats(plan, {"one-0", 11})
    assert (dict(less.hosts), [seat.rank for seat in less.open_seats]) == ({"one-1": 1}, [10])
    assert (set(less.shapes), set(less.ranks)) == ({"one-1"}, {"one-1"})
    assert less.reserved_pods() == [(1, GPU8), (2, GPU8)]


@pytest.mark.parametrize(("better", "worse"), [
    pytest.param(([0, 2], None), ([0, 1, 2], "few"), id="one that is whole, of fewer members"),
    pytest.param(([0, 2, 3], None), ([0, 1], None), id="that of more members, on more switches"),
    pytest.param(([0, 2, 3], "few"), ([0, 1], "few"), id="also of two that are not whole"),
    pytest.param(([2, 3], None), ([0, 2], None), id="of equals the one on fewer switches"),
])  # fmt: skip
def test_of_two_plans_for_a_gang_the_first_is_the_better(better, worse):
    def plan_on(hosts, detail):
        refusal = None if detail is None else Refusal(RefusalReason.NO_ROOM, detail)
        return GangPlan(key("one"), {f"one-{at}": host for at, host in enumerate(hosts)}, refusal=refusal)

    fabric = World(2, 2).fabric
    assert plan_sort_key(fabric, plan_on(*better)) < plan_sort_key(fabric, plan_on(*worse))
