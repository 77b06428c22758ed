"""Which bound pods are told where they stand, and which are left alone."""

import pytest

from tests.kit import world
from tests.kit.world import World
from turnout.kube import labels
from turnout.scheduler_ext.planner.nominations import plan_annotations, switch_path_of
from turnout.topology.fabric import EMPTY, build
from turnout.topology.model import MapEntry


def paths_of(w, noted=()):
    """{pod: path} of all that is to be written."""
    return {mark.name: mark.path for mark in plan_annotations(w.view, dict(noted), sorted(w.view.pods), w.now_s)}


def test_bound_members_of_a_gang_are_told_the_switches_above_their_node():
    w = World(4, 4, 4).put(*world.koordinator("g", 3, total=3, at=["a0", "b1", "c2"]))
    assert paths_of(w) == {"g-0": "psw0/asw0", "g-1": "psw0/asw1", "g-2": "psw1/asw2"}


@pytest.mark.parametrize(
    ("pods", "names"),
    [
        pytest.param(world.volcano("g", 2, at=["a0", "a1"]), ["g-0", "g-1"], id="Volcano's gang"),
        pytest.param(
            [world.pod(f"j-{i}", 8, "a0", marks={labels.JOB_INDEX: str(i)}, owner="Job/j") for i in range(2)],
            ["j-0", "j-1"],
            id="plain pods of one Job",
        ),
        pytest.param(world.koordinator("g", 2, total=2, at=["a0"]), ["g-0"], id="who still waits stands nowhere"),
        pytest.param([world.pod("p", 8, "a0")], [], id="a pod by itself has no ring"),
        pytest.param(
            [world.pod("alone", 8, "a0"), *world.volcano("g", 1, at=["a1"])],
            ["g-0"],
            id="which holds up nobody after it",
        ),
        pytest.param([world.pod("db-0", 0, "a0", owner="StatefulSet/db")], [], id="a database is no gang"),
        pytest.param(world.koordinator("g", 1, total=1, at=["a0"], leaving=True), [], id="who leaves"),
        pytest.param(world.koordinator("g", 1, total=1, at=["x0"]), [], id="on a node that the map does not know"),
        pytest.param(world.koordinator("g", 1, total=1, at=["gone"]), [], id="on a node that nobody knows"),
    ],
)
def test_who_is_told(pods, names):
    assert sorted(paths_of(World(4, 4, off_map=1).put(*pods))) == names


def test_only_what_differs_is_written_and_another_map_makes_it_differ():
    w = World(4, 4).put(*world.koordinator("g", 2, total=2, at=["a0", "b0"]))
    assert paths_of(w, {"uid-g-0": "psw0/asw0", "uid-g-1": "psw9/asw1"}) == {"g-1": "psw0/asw1"}
    noted = {"uid-g-0": "psw0/asw0", "uid-g-1": "psw0/asw1"}
    assert paths_of(w, noted) == {}
    w.view.layout.set_map(build([MapEntry("10.0.0.1", ("core", "asw0"), 1)]))
    assert paths_of(w, noted) == {"g-0": "core/asw0"}  # of g-1 nothing is known any more: what it carries is left
    w.view.layout.set_map(EMPTY)
    assert paths_of(w, noted) == {}


def test_a_path_is_what_the_map_wrote_however_deep_its_branch():
    fabric = build(
        [
            MapEntry("a", ("r", "s", "l"), 1),
            MapEntry("b", ("r", "s"), 2),
            MapEntry("c", ("r", "m"), 3),
            MapEntry("d", ("q",), 4),
        ]
    )
    assert [switch_path_of(fabric, host) for host in "abcdx"] == ["r/s/l", "r/s", "r/m", "q", ""]
