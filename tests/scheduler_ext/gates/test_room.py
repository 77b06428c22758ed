"""A scheduling gate holds no room: neither in the plans of the extender, nor in those of who lifts gates."""

import pytest

from tests.kit import world
from tests.kit.world import World
from tests.scheduler_ext.gates.gated_world import GATE

THEIRS = [{"name": "example.com/hold"}]


def gated(name, size, gates, **more):
    return [
        world.see(world.cluster.koordinator_gang(name, size, schedulingGates=gates, **more)[at]) for at in range(size)
    ]


@pytest.mark.parametrize(
    ("gates", "lifts", "fits"),
    [
        pytest.param(THEIRS, False, True, id="of somebody else"),
        pytest.param(THEIRS, True, True, id="of somebody else, where we lift ours"),
        pytest.param(GATE, False, True, id="ours, for the extender"),
        pytest.param(GATE, True, False, id="ours, for whoever lifts it: it is that gang's turn"),
        pytest.param([*GATE, *THEIRS], True, True, id="ours and somebody else's"),
    ],
)
def test_a_gang_behind_gates_keeps_no_room_from_one_that_can_start(gates, lifts, fits):
    w = World(4)
    w.view.lifts_gates = lifts
    w.put(*gated("first", 4, gates), *(later := world.koordinator("later", 4, created=9)))
    assert (len(w.plan(later[0])) == 4) is fits


def test_a_gang_that_lacks_members_keeps_no_room_behind_our_gate():
    w = World(4)
    w.view.lifts_gates = True
    w.put(*gated("first", 4, GATE)[:3], *(later := world.koordinator("later", 4, created=9)))
    assert len(w.plan(later[0])) == 4


def test_once_a_gate_of_a_gang_is_lifted_its_room_is_kept_whole():
    w, gang = World(4), gated("first", 4, GATE)
    w.put(world.koordinator("first", 1, minimum=4)[0], *gang[1:])
    w.put(*(later := world.koordinator("later", 4, created=9)))
    assert w.plan(later[0]) == {}
