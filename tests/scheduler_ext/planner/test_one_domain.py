"""Gangs that share one domain: rows outside of it are marked, and where none holds all of them, all rows are."""

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World
from turnout.kube import labels
from turnout.scheduler_ext.planner.batches import Work
from turnout.scheduler_ext.planner.order import rows_outside_shared_domain
from turnout.scheduler_ext.planner.request import GangPlan

TOGETHER = {labels.TOGETHER: "eval"}


def marked(w, pods, plans=()):
    """Return the leaves outside the domain of the first gang, as letters; None for none. plans: gang -> hosts."""
    w.put(*pods).view.settle(w.now_s)
    gang = w.view.gangs[w.member(pods[0]).membership.key]
    planned = {
        key: GangPlan(key, {f"uid-{key.name}-{at}": host for at, host in enumerate(hosts)})
        for key in w.view.gangs for name, hosts in dict(plans).items() if key.name == name
    }  # fmt: skip

    def room_of(shape, besides):
        room = w.view.snapshot.room(shape).copy()
        for row, _ in besides:
            room[row] = max(0, room[row] - 1)
        return room

    marks = rows_outside_shared_domain(w.view, Work(), gang, planned.get, room_of)
    return None if marks is None else "".join(sorted({w.view.fabric.hosts[row][0] for row in marks.nonzero()[0]}))


def gangs(*sizes, **more):
    """The pods of gangs named one, two and so on."""
    return [pod for name, size in zip(("one", "two", "three"), sizes, strict=False)
            for pod in world.volcano(name, size, **more)]  # fmt: skip


@pytest.mark.parametrize(("sizes", "notes", "plans", "found"), [
    pytest.param((2, 2), TOGETHER, {}, "ab", id="the leaf that holds both"),
    pytest.param((2, 1), TOGETHER, {}, "ac", id="the tightest that does"),
    pytest.param((3, 3), TOGETHER, {}, "c", id="a wider one for more"),
    pytest.param((2,), TOGETHER, {}, None, id="no other gang is there"),
    pytest.param((6, 6), TOGETHER, {}, None, id="none is named, where none holds both"),
    pytest.param((3, 3), {**TOGETHER, **REQUIRED}, {}, "abc", id="all rows, where none holds both and one is required"),
    pytest.param((1, 2), TOGETHER, {"two": [7, 8]}, "ab", id="where the other is planned"),
    pytest.param((1, 2), TOGETHER, {"two": [0, 1]}, "bc", id="where the other is planned, in the first leaf"),
])  # fmt: skip
def test_which_leaves_are_outside_the_domain(sizes, notes, plans, found):
    assert marked(World(4, 3, 4), gangs(*sizes, notes=notes), plans) == found


def test_members_to_come_need_room_in_it_until_their_gang_has_its_plan():
    w = World(4, 3, 4).put_group("two", 3)
    assert marked(w, gangs(1, 1, notes=TOGETHER)) == "ab"
    w = World(4, 3, 4).put_group("two", 3)
    assert marked(w, gangs(1, 1, notes=TOGETHER), {"two": []}) == "ab"
    w = World(3, 3, 3).put_group("two", 3)
    assert marked(w, gangs(1, 1, notes={**TOGETHER, **REQUIRED}), {"two": []}) == "abc"
    w = World(4, 3, 4).put_group("two", 3)
    assert marked(w, gangs(1, 1, notes=TOGETHER), {"two": [5]}) == "ac"


def test_members_that_run_are_in_it():
    w = World(4, 3, 4)
    w.put(*world.volcano("two", 1, at=["c0"], notes=TOGETHER))
    assert marked(w, gangs(2, notes=TOGETHER)) == "ab"
