"""Hosts that others leave for a gang are held for it: against its own priority and below, until they are given back."""

import pytest

from tests import world
from tests.world import World
from turnout.scheduler_ext.planner.reserved_room import HostReservations


def gangs(**priorities):
    """Gangs of these names and priorities."""
    w = World(2)
    for name, priority in priorities.items():
        w.put(*world.volcano(name, 1, priority=priority))
    return {key.name: gang for key, gang in w.view.gangs.items()}


@pytest.mark.parametrize(("priority", "barred"), [
    pytest.param(9, [1, 2], id="a lower priority"),
    pytest.param(10, [1, 2], id="the same priority"),
    pytest.param(11, None, id="a higher one takes what it needs"),
])  # fmt: skip
def test_who_may_not_use_the_hosts_that_are_held(priority, barred):
    made, held = gangs(holder=10, other=priority), HostReservations()
    held.reserve(made["holder"], [1, 2])
    marks = held.rows_reserved_against(made["other"], 4)
    assert (None if marks is None else marks.nonzero()[0].tolist()) == barred


def test_the_holder_uses_them_and_several_hold_together():
    made, held = gangs(one=10, two=10, other=0), HostReservations()
    held.reserve(made["one"], [0])
    held.reserve(made["two"], [3])
    assert held.rows_reserved_against(made["one"], 4).nonzero()[0].tolist() == [3]
    assert held.rows_reserved_against(made["other"], 4).nonzero()[0].tolist() == [0, 3]


def test_hosts_are_held_anew_only_if_they_or_the_priority_changed():
    made, held = gangs(bert=10), HostReservations()
    assert held.reserve(made["bert"], [1, 2])
    assert not held.reserve(made["bert"], [2, 1])
    assert held.release_count == 0
    assert held.reserve(made["bert"], [2])
    assert held.release_count == 1  # host 1 was given back: others are planned again
    held.release(made["bert"].key)
    held.release(made["bert"].key)
    assert held.release_count == 2
    held.reserve(made["bert"], [2])
    held.clear()
    assert held.release_count == 3
    assert held.rows_reserved_against(gangs(other=0)["other"], 4) is None
