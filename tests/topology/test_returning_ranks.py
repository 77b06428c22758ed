"""Ranks that come back go to the leaf of those beside them in the ring, or in the mesh."""

import pytest

from turnout.topology.mesh import MOST_PODS, leaves_in_mesh, pod_traffic
from turnout.topology.rank_order import leaves_of_neighbours


@pytest.mark.parametrize(("free", "host_by_rank", "room", "leaves"), [
    pytest.param([1], {0: 0, 2: 0}, {0: 1, 1: 1}, {1: 0}, id="between two members of a leaf"),
    pytest.param([1], {0: 0, 2: 1}, {1: 1}, {1: 1}, id="beside the neighbour that has room"),
    pytest.param([1], {0: 0, 2: 0}, {1: 1}, {}, id="no leaf of its neighbours has room"),
    pytest.param([1, 2], {0: 0, 3: 1}, {0: 1, 1: 1}, {1: 0, 2: 1}, id="a gap is filled from both ends"),
    pytest.param([1, 2], {0: 0, 3: 0}, {0: 1}, {1: 0}, id="as many as find room"),
    pytest.param([1, 3, 4], {0: 0, 2: 0, 5: 0}, {0: 1}, {1: 0}, id="a gap that is filled whole comes first"),
    pytest.param([3], {0: 0, 1: 0, 2: 1}, {0: 1, 1: 1}, {3: 0}, id="a lone rank goes to the leaf with most members"),
    pytest.param([1], {0: 1, 2: 0, 3: 0}, {0: 1, 1: 1}, {1: 0}, id="on whichever side that leaf is"),
    pytest.param([1], {0: 1, 2: 0}, {0: 1, 1: 2}, {1: 0}, id="of equally full leaves the one with least room"),
    pytest.param([0], {1: 2, 3: 1}, {1: 1}, {0: 1}, id="the ring has no end: rank 0 is beside the last one"),
])  # fmt: skip
def test_lost_ranks_go_beside_their_neighbours_in_the_ring(free, host_by_rank, room, leaves):
    assert leaves_of_neighbours(free, host_by_rank, room) == leaves


@pytest.mark.parametrize(("mesh", "ranks_per_pod"), [
    pytest.param((("dp", 4),), 4, id="one pod exchanges with nobody"),
    pytest.param((("dp", 3), ("tp", 3)), 2, id="ranks that do not fill the pods"),
    pytest.param((("dp", MOST_PODS + 1),), 1, id="more pods than are weighed"),
])  # fmt: skip
def test_a_mesh_that_is_not_weighed(mesh, ranks_per_pod):
    assert pod_traffic(mesh, ranks_per_pod) is None


def test_the_largest_mesh_is_weighed():
    assert pod_traffic((("dp", MOST_PODS),), 1).shape == (MOST_PODS, MOST_PODS)


@pytest.mark.parametrize(("mesh", "pairs"), [
    pytest.param((("dp", 2),), {(0, 1): 18.0}, id="each of two sends to the other"),
    pytest.param((("dp", 3),), {(0, 1): 9.0, (1, 2): 9.0, (0, 2): 9.0}, id="a ring of three"),
    pytest.param((("pp", 3),), {(0, 1): 1.0, (1, 2): 1.0}, id="a pipeline is no ring"),
    pytest.param((("ep", 3),), {(0, 1): 80.0, (1, 2): 80.0, (0, 2): 80.0}, id="each expert with each other"),
    pytest.param((("pp", 2), ("dp", 2)), {(0, 1): 18.0, (2, 3): 18.0, (0, 2): 1.0, (1, 3): 1.0}, id="along each axis"),
    pytest.param((("dp", 1), ("pp", 2)), {(0, 1): 1.0}, id="an axis of one sends nothing"),
])  # fmt: skip
def test_who_exchanges_how_much_in_a_step(mesh, pairs):
    traffic = pod_traffic(mesh, 1)
    assert (traffic == traffic.T).all()
    count = len(traffic)
    assert {(a, b): traffic[a, b] for a in range(count) for b in range(a + 1, count) if traffic[a, b]} == pairs


GRID = (("dp", 2), ("tp", 4))  # ranks 0-3 and 4-7 are tensor groups; 0 and 4 are data neighbours


@pytest.mark.parametrize(("ranks", "leaf_of", "holes", "leaves"), [
    pytest.param([1], {0: 5, 2: 5, 4: 6}, {5: 1, 6: 1}, {1: 5}, id="to its tensor group"),
    pytest.param([4], {0: 5, 6: 7}, {5: 1, 7: 1}, {4: 5}, id="to its data neighbour, where it has no other"),
    pytest.param([1, 5], {0: 5, 4: 6}, {5: 1, 6: 1}, {1: 5, 5: 6}, id="each to its own group"),
    pytest.param([1, 2], {0: 5}, {5: 2}, {1: 5, 2: 5}, id="one draws the other"),
    pytest.param([1, 3], {0: 5}, {5: 1}, {1: 5}, id="a leaf that is full takes no more"),
    pytest.param([1], {0: 5}, {6: 3}, {}, id="whom no leaf with room draws is left out"),
    pytest.param([1], {0: 5}, {5: 0}, {}, id="no room at all"),
    pytest.param([1, 99], {0: 5, 98: 5}, {5: 9}, {1: 5}, id="ranks outside the mesh are nobody's"),
])  # fmt: skip
def test_lost_ranks_of_a_mesh_go_to_those_they_exchange_most_with(ranks, leaf_of, holes, leaves):
    assert leaves_in_mesh(pod_traffic(GRID, 1), ranks, leaf_of, holes) == leaves


@pytest.mark.parametrize(("axis", "first"), [
    pytest.param("ep", [0, 160 / 3, 160 / 3, 160 / 3], id="experts with all others alike"),
    pytest.param("dp", [0, 9, 0, 9], id="data parallel ranks with their neighbours in a ring"),
    pytest.param("pp", [0, 1, 0, 0], id="stages of a pipeline with the next one alone"),
])  # fmt: skip
def test_how_much_the_first_of_four_exchanges_with_each(axis, first):
    assert pod_traffic(((axis, 4),), 1)[0].tolist() == pytest.approx(first)
