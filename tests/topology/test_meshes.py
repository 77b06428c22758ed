"""A mesh of parallelism sends no more between leaves than the ring of the same gang, or than DLRover's re-rank."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hack.bench.placement.mesh import gangs
from tests.kit.hypothesis_examples import scaled
from turnout.topology.fabric import build
from turnout.topology.mesh import cheapest_order, count_outer_axes, crossing_gb, hosts_by_rank, layouts, place_mesh
from turnout.topology.model import MapEntry, PlacementRequest

SIXTEEN = build(MapEntry(f"n{at}", (f"l{at // 4}",), at + 1) for at in range(16))


@pytest.mark.parametrize(("mesh", "switches", "gb"), [
    pytest.param((("tp", 4),), [0, 0, 1, 1], 2 * 80.0, id="a ring of tensor parallel ranks is cut twice"),
    pytest.param((("pp", 4),), [0, 0, 1, 1], 1.0, id="a pipeline is cut once"),
    pytest.param((("ep", 2),), [0, 1], 2 * 80.0, id="each of two experts sends to the other"),
    pytest.param((("ep", 4),), [0, 0, 1, 1], 8 / 3 * 80.0, id="of all pairs of experts two in three are cut"),
    pytest.param((("dp", 2), ("tp", 2)), [0, 0, 1, 1], 4 * 9.0, id="data parallel ranks on two leaves"),
    pytest.param((("dp", 2), ("tp", 2)), [0, 0, 0, 0], 0.0, id="one leaf"),
])  # fmt: skip
def test_what_a_mesh_sends(mesh, switches, gb):
    assert crossing_gb(mesh, switches) == pytest.approx(gb)


def test_dlrovers_rule_restated_crosses_as_its_authors_say():
    """16 nodes on four leaves, pp4 dp4: no pipeline edge leaves a leaf, and all 16 data edges do."""
    laid = gangs.rerank(SIXTEEN, (("pp", 4), ("dp", 4), ("tp", 8)), list(range(16)))
    leaves = [host // 4 for host in laid]
    assert crossing_gb((("pp", 4), ("dp", 4)), leaves) == 16 * 9.0


def test_each_pod_has_one_place_in_any_order_of_the_axes():
    mesh = (("dp", 4), ("pp", 2), ("ep", 2), ("tp", 8))
    assert sorted(hosts_by_rank(mesh, (2, 0, 1, 3), list(range(16)), 8)) == list(range(16))
    assert hosts_by_rank(mesh, (0, 1, 2, 3), list(range(16)), 8) == list(range(16))


def test_pipelines_that_run_outermost_may_be_laid_along_a_leaf():
    price, hosts = cheapest_order(SIXTEEN, (("dp", 4), ("pp", 4), ("tp", 8)), list(range(16)), 8)
    assert [hosts[at] // 4 for at in range(4)] == [0, 1, 2, 3]
    assert price[0] == 12 * 8.0


def test_ways_to_place_a_mesh_are_few_and_the_last_asks_for_nothing():
    ways = list(layouts((("dp", 8), ("pp", 8), ("cp", 4), ("ep", 8), ("tp", 8)), 1, 16_384, 8, 4))
    assert len(ways) <= 11
    assert ways[-1] == (1, ())


@settings(max_examples=scaled(20), deadline=None)
@given(st.integers(1_000, 9_000))
def test_no_mesh_sends_more_between_leaves_than_its_ring_or_a_re_rank(seed):
    for row in gangs.measure(range(seed, seed + 1), searched=0):
        assert row.ours <= row.ring + 1e-6
        assert row.ours <= row.rerank + 1e-6


@pytest.mark.parametrize(("pods_on_host", "counts"), [
    pytest.param(8, [8, 4], id="a tensor group of 6 would fit a host"),
    pytest.param(4, [4, 4, 4], id="a tensor group of 6 would fit a leaf"),
])  # fmt: skip
def test_a_mesh_keeps_the_multiple_on_each_host(pods_on_host, counts):
    fabric = build(MapEntry(f"n{at}", (f"l{at // 2}",), at + 1) for at in range(16))
    room = np.full(16, pods_on_host, np.int32)
    placement = place_mesh(fabric, room, PlacementRequest(12, 12, 12, multiple=4), (("dp", 2), ("tp", 6)), 1)
    assert sorted((pods for _, pods in placement.slots), reverse=True) == counts


@pytest.mark.parametrize(("mesh", "ranks_per_pod", "pods", "on_host", "ways"), [
    pytest.param((("dp", 2), ("tp", 8)), 8, 2, 1, [(1, ())], id="a pod holds the inner axis: nothing to ask for"),
    pytest.param((("dp", 2), ("tp", 4)), 2, 4, 2, [(2, ()), (1, ((1, 2),)), (1, ((2, 2),)), (1, ())],
                 id="a tensor group in a host, under a leaf, under a spine"),
    pytest.param((("dp", 2), ("tp", 4)), 2, 4, 1, [(1, ((1, 2),)), (1, ((2, 2),)), (1, ())],
                 id="no host holds a tensor group"),
    pytest.param((("dp", 3), ("tp", 4)), 8, 2, 1, [(1, ())], id="a pod holds two tensor groups"),
])  # fmt: skip
def test_the_ways_to_place_a_mesh(mesh, ranks_per_pod, pods, on_host, ways):
    assert list(layouts(mesh, ranks_per_pod, pods, on_host, 3)) == ways


def test_no_inner_group_is_under_a_wider_switch_than_the_group_around_it():
    ways = list(layouts((("dp", 2), ("pp", 2), ("tp", 2)), 1, 8, 1, 3))
    assert ways[0] == (1, ((1, 4),))
    assert (1, ((2, 4), (1, 2))) in ways
    assert all(outer[0] > inner[0] for _, layers in ways for outer, inner in pairwise(layers))


def test_an_axis_of_one_rank_sends_nothing():
    assert crossing_gb((("tp", 1), ("dp", 2)), [0, 1]) == crossing_gb((("dp", 2),), [0, 1]) == 18.0


@pytest.mark.parametrize(("mesh", "ranks_per_pod", "count"), [
    pytest.param((("dp", 2), ("pp", 2), ("tp", 8)), 8, 2, id="a pod holds the tensor group"),
    pytest.param((("dp", 2), ("pp", 2), ("tp", 8)), 16, 1, id="and two stages"),
    pytest.param((("dp", 2), ("tp", 3)), 4, 0, id="pods hold no whole axis"),
    pytest.param((("dp", 2), ("tp", 3)), 1, 2, id="a rank a pod: all axes"),
])  # fmt: skip
def test_how_many_axes_lie_between_pods_alone(mesh, ranks_per_pod, count):
    assert count_outer_axes(mesh, ranks_per_pod) == count
