"""Members that died come back where their neighbours in the ring are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import world
from tests.kit.hypothesis_examples import scaled
from tests.kit.world import World
from turnout.kube import labels
from turnout.topology.fabric import ring_cost

MANY = settings(max_examples=scaled(100), deadline=None)


def pods_of(size, life=0):
    notes = {labels.VOLCANO_GROUP: "g"}
    return [
        world.pod(f"g-{at}", 8, notes=notes, marks={labels.VOLCANO_TASK_INDEX: str(at)}, uid=f"u{at}-{life}")
        for at in range(size)
    ]


def ring(w, node_by_pod, size):
    """(crossings of leaves, leaves) of the gang's ring."""
    found = ring_cost(w.view.fabric, [w.view.snapshot.row_of[node_by_pod[f"g-{at}"]] for at in range(size)])
    return found.crossings[0], found.switches[0] if found.switches[0] > 1 else 0


def repaired(sizes, size, lost, comes, at_once):
    """Place a gang, lose some members, and let them come back in an order. The world, and where all members are."""
    w = World(*sizes).put_group("g", size)
    first, replacements = pods_of(size), pods_of(size, 1)
    node_by_pod = w.schedule(*first)
    for at in lost:
        w.view.drop_pod(first[at].metadata.uid)
        del node_by_pod[f"g-{at}"]
    coming = [replacements[at] for at in comes]
    for each in [coming] if at_once else [[pod] for pod in coming]:
        node_by_pod |= w.schedule(*each)
    return w, node_by_pod


def test_two_ranks_lost_on_two_leaves_return_each_to_its_own():
    w, node_by_pod = repaired([5, 5], 8, [1, 6], [1, 6], at_once=True)
    assert ring(w, node_by_pod, 8) == (2, 2)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("comes", [[3, 4], [4, 3]])
def test_neighbours_lost_at_the_seam_of_two_leaves_return_in_any_order(comes, at_once):
    w, node_by_pod = repaired([5, 5], 8, [3, 4], comes, at_once)
    assert ring(w, node_by_pod, 8) == (2, 2)


@st.composite
def repairs(draw):
    sizes = draw(st.lists(st.integers(2, 6), min_size=2, max_size=5))
    size = draw(st.integers(2, sum(sizes)))
    lost = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=size - 1))
    return sizes, size, lost, draw(st.permutations(lost)), draw(st.booleans())


@MANY
@given(repairs())
def test_after_any_loss_the_ring_crosses_no_more_than_it_spans(scene):
    _sizes, size, *_ = scene
    w, node_by_pod = repaired(*scene)
    assert len(node_by_pod) == size
    crossings, leaves = ring(w, node_by_pod, size)
    assert crossings <= leaves


@pytest.mark.parametrize(("sizes", "at", "leaf"), [
    pytest.param([3, 2], ["a0", "a1", "b0"], {"a"}, id="two on leaf a, one on leaf b"),
    pytest.param([2, 3], ["a0", "b0", "b1"], {"b"}, id="one on leaf a, two on leaf b"),
    pytest.param([3, 3], ["b0", "a0", "a1"], {"a"}, id="whichever comes first in the ring"),
    pytest.param([2, 3], ["a0", "b0"], {"a"}, id="of two equally full leaves the tighter leaf"),
    pytest.param([3, 2], ["a0", "b0"], {"b"}, id="wherever the tighter leaf is in the ring"),
])  # fmt: skip
def test_the_next_pod_of_a_gang_goes_to_the_leaf_with_most_of_its_members(sizes, at, leaf):
    w = World(*sizes)
    pods = world.volcano("g", len(at) + 1, at=at)
    w.put(*pods)
    assert {host[0] for host in w.schedule(pods[-1]).values()} == leaf
