"""Nodes that are reserved for a gang: against its own priority and below, until they are given back or time is over."""

import pytest

from tests.kit import world
from tests.kit.world import World
from turnout.jobs.reservation import MAX_RESERVATIONS, Reservation, ReservationReason
from turnout.scheduler_ext.planner.reservations import Reservations

NODES = ("n0", "n1", "n2", "n3")
ROW_OF = {node: row for row, node in enumerate(NODES)}


def gangs(**priorities):
    """Gangs of these names and priorities."""
    w = World(2)
    for name, priority in priorities.items():
        w.put(*world.volcano(name, 1, priority=priority))
    return {key.name: gang for key, gang in w.view.gangs.items()}


def reservation(gang, rows, until_s=600.0):
    nodes = tuple(NODES[row] for row in rows)
    return Reservation(gang.key, nodes, ReservationReason.PREEMPTION, gang.priority, until_s)


def excluded_rows(table, gang):
    marks = table.rows_against(gang, ROW_OF, len(NODES))
    return None if marks is None else marks.nonzero()[0].tolist()


@pytest.mark.parametrize(("priority", "rows"), [
    pytest.param(9, [1, 2], id="a lower priority"),
    pytest.param(10, [1, 2], id="the same priority"),
    pytest.param(11, None, id="a higher one takes what it needs"),
])  # fmt: skip
def test_which_priorities_may_not_use_reserved_nodes(priority, rows):
    named, table = gangs(holder=10, other=priority), Reservations()
    table.put(reservation(named["holder"], [1, 2]))
    assert excluded_rows(table, named["other"]) == rows


def test_the_holder_uses_its_nodes_and_several_gangs_have_nodes_together():
    named, table = gangs(one=10, two=10, other=0), Reservations()
    table.put(reservation(named["one"], [0]))
    table.put(reservation(named["two"], [3]))
    assert excluded_rows(table, named["one"]) == [3]
    assert excluded_rows(table, named["other"]) == [0, 3]


def test_a_reservation_is_a_change_only_with_other_nodes_or_priority():
    named, table = gangs(bert=10), Reservations()
    bert = named["bert"]
    assert table.put(reservation(bert, [1, 2]))
    assert not table.put(reservation(bert, [1, 2]))
    assert not table.put(reservation(bert, [1, 2], until_s=900.0))
    assert table.get(bert.key).until_s == 900.0
    assert table.release_count == 0
    assert table.put(reservation(bert, [2]))
    assert table.release_count == 1  # n1 was given back: others are planned again
    table.release(bert.key)
    table.release(bert.key)
    assert table.release_count == 2
    assert excluded_rows(table, gangs(other=0)["other"]) is None


def test_reservations_end_by_their_time_each_for_itself():
    named, table = gangs(one=10, two=10, other=0), Reservations()
    table.put(reservation(named["one"], [0], until_s=600.0))
    table.put(reservation(named["two"], [3], until_s=601.0))
    assert [each.holder.name for each in table.expire(600.0)] == ["one"]
    assert excluded_rows(table, named["other"]) == [3]


def test_a_node_that_does_not_exist_is_nothing_and_counts_once_it_does():
    named, table = gangs(holder=10, other=0), Reservations()
    table.put(reservation(named["holder"], [1, 2]))
    assert table.rows_against(named["other"], {"n1": 0}, 1).tolist() == [True]
    table.clear_rows()  # as the planner does when rows change their meaning
    assert excluded_rows(table, named["other"]) == [1, 2]


def test_of_too_many_reservations_the_last_ones_bar_nobody():
    table = Reservations()
    (gang,) = gangs(g=0).values()
    for at in range(MAX_RESERVATIONS + 1):
        key = gang.key.__class__("default", f"g{at}", gang.key.dialect)
        table.put(Reservation(key, ("n0",), ReservationReason.REPAIR, 0, 600.0))
    assert len(list(table)) == MAX_RESERVATIONS
