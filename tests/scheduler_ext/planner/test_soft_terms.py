"""In which order a plan gives up soft terms, and that it gives up no term without need."""

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World
from turnout.kube import labels
from turnout.scheduler_ext.planner.place_gang import RELAXATIONS
from turnout.scheduler_ext.planner.request import SoftTerm

EVEN = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "even"}},
        }
    ]
}


def growth():
    """Two pods that may become forty, where three fit."""
    w = World(3)
    w.put(*world.koordinator("g", 2, minimum=2, total=40))
    return w


def cpu_anchor():
    """A member without a GPU runs on leaf a, which has no room for the others."""
    w = World(2, 2)
    w.put(world.pod("full-0", 8, "a0"), world.pod("full-1", 8, "a1"))
    launcher = world.volcano("g", 1, gpus=0, at=["a0"], notes=REQUIRED)
    w.put(*launcher, *world.volcano("g", 3, notes=REQUIRED)[1:])
    return w


def nomination():
    """A member is nominated to leaf a, which has no room for the other."""
    w = World(2, 2)
    w.put(world.pod("full", 8, "a1"))
    first, second = world.volcano("g", 2, notes=REQUIRED)
    first = world.volcano("g", 1, notes=REQUIRED, nominated="a0", ours=True)[0]
    w.put(first, second)
    return w


def even_spread():
    """Four pods on two nodes, of which a node takes one while another is empty."""
    w = World(2)
    w.put(
        *(world.pod(f"g-{at}", 1, notes={labels.VOLCANO_GROUP: "g"}, marks={"app": "even"}, **EVEN) for at in range(4))
    )
    w.put_group("g", 4)
    return w


def enough():
    """Two pods that must share a leaf, and room for them."""
    w = World(2, 2)
    w.put(*world.volcano("g", 2, notes=REQUIRED))
    return w


@pytest.mark.parametrize(
    ("scene", "given_up"),
    [
        pytest.param(enough, (), id="no term without need"),
        pytest.param(growth, (SoftTerm.GROWTH_SEATS,), id="seats to grow that do not fit"),
        pytest.param(cpu_anchor, (SoftTerm.CPU_ANCHORS,), id="a member without a GPU elsewhere"),
        pytest.param(nomination, (SoftTerm.NEIGHBOURS, SoftTerm.NOMINATIONS), id="a nomination beside a full node"),
        pytest.param(even_spread, (SoftTerm.EVEN_SPREAD,), id="more pods than nodes"),
    ],
)
def test_what_a_plan_gives_up(scene, given_up):
    (plan,) = scene().plans.plan_all(1000.0)
    assert plan.refusal is None
    assert plan.released_terms == given_up


def test_each_soft_term_has_one_step():
    assert [step.term for step in RELAXATIONS] == list(SoftTerm)
