"""Runs of ranks within runs: kept whole, near the exact optimum, and found wherever they fit."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hack.bench.placement import exact, layered
from tests.kit.hypothesis_examples import scaled
from turnout.topology.fabric import build, fabric_under, ring_cost
from turnout.topology.layers import place_in_layers
from turnout.topology.mesh import hosts_of
from turnout.topology.model import MapEntry, Placement, PlacementRequest

FEW = settings(max_examples=scaled(30), deadline=None)


@FEW
@given(st.integers(10_000, 90_000))
def test_layers_are_kept_and_cost_little_more_than_the_optimum(seed):
    fabric, room, pods, layers = layered.draw_instance(seed)
    found = place_in_layers(fabric, room, PlacementRequest(pods, pods, pods, layers=layers))
    min_pods = exact.optimum(fabric, room, pods, 5.0, layers)
    assert (min_pods is None) == (not isinstance(found, Placement))
    if min_pods is None:
        return
    hosts = hosts_of(found)
    assert len(hosts) == pods
    assert (np.bincount(hosts, minlength=len(room)) <= room).all()
    for tier, size in layers:
        assert not (np.bincount(fabric.switch_of[tier][hosts]) % size).any()
    assert ring_cost(fabric, hosts).total <= 1.6 * min_pods + 1


@pytest.mark.parametrize(("seed", "min_pods", "max_pods"), [
    pytest.param(477, 18, 20, id="spines cost too: it had 28, on eight of them"),
    pytest.param(453, 9, 10, id="shared from the top down it is cheaper: it had 12"),
    pytest.param(163, 6, 7, id="so is this one: it had 8"),
])  # fmt: skip
def test_the_cheaper_of_two_ways_is_taken(seed, min_pods, max_pods):
    fabric, room, pods, layers = layered.draw_instance(seed)
    found = place_in_layers(fabric, room, PlacementRequest(pods, pods, pods, layers=layers))
    assert min_pods <= ring_cost(fabric, hosts_of(found)).total <= max_pods


@pytest.mark.parametrize(("pods", "layers", "counts"), [
    pytest.param(10, ((1, 4),), [4, 4, 2], id="a last run that is shorter"),
    pytest.param(4, ((3, 2), (1, 2)), [4], id="a layer as wide as the fabric asks for nothing"),
    pytest.param(8, ((2, 4), (1, 2)), [4, 4], id="fours under a spine, pairs under a leaf"),
])  # fmt: skip
def test_how_many_are_under_each_leaf(pods, layers, counts):
    fabric = build(MapEntry(f"n{at}", (f"s{at // 8}", f"l{at // 4}"), at + 1) for at in range(16))
    found = place_in_layers(fabric, np.ones(16, np.int32), PlacementRequest(pods, pods, pods, layers=layers))
    under_leaf = np.bincount(fabric.switch_of[1][hosts_of(found)])
    assert sorted(under_leaf[under_leaf > 0].tolist(), reverse=True) == counts


@pytest.mark.parametrize(("pods_by_leaf", "free", "pods", "fits"), [
    pytest.param([4, 3], [2, 0], 1, False, id="a member does not return in the place of another run"),
    pytest.param([4, 3], [2, 1], 1, True, id="it returns in its own run"),
    pytest.param([4, 2], [2, 1], 2, False, id="of two that return one has no place in their run"),
    pytest.param([4, 4], [2, 0], 2, True, id="a new run that is shorter begins anywhere"),
    pytest.param([4, 3, 1], [4, 0, 3], 3, True, id="runs that were broken before us are not made worse"),
])  # fmt: skip
def test_where_members_come_back_to_a_gang_in_runs_of_four(pods_by_leaf, free, pods, fits):
    entries, anchors, room = [], [], []
    for leaf, (busy_pods, left) in enumerate(zip(pods_by_leaf, free, strict=True)):
        for at in range(busy_pods + left):
            anchors += [(len(entries), 1)] if at < busy_pods else []
            room.append(int(at >= busy_pods))
            entries.append(MapEntry(f"n{leaf}-{at}", (f"l{leaf}",), len(entries) + 1))
    request = PlacementRequest(pods, pods, pods, anchors=tuple(anchors), layers=((1, 4),))
    assert isinstance(place_in_layers(build(entries), np.array(room, np.int32), request), Placement) is fits


def test_a_run_that_members_have_begun_is_completed_first():
    fabric = build(MapEntry(f"n{at}", (f"l{at // 4}",), at + 1) for at in range(12))
    room = np.array([0, 0, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1], np.int32)
    found = place_in_layers(fabric, room, PlacementRequest(6, 6, 6, anchors=((0, 1), (1, 1)), layers=((1, 4),)))
    assert np.bincount(fabric.switch_of[1][hosts_of(found)]).tolist() in ([2, 4], [2, 0, 4])


def test_a_part_of_a_fabric_counts_its_hosts_from_its_first():
    fabric = build(MapEntry(f"n{at}", (f"s{at // 8}", f"l{at // 4}"), at + 1) for at in range(16))
    part = fabric_under(fabric, 2, 1)
    assert part.hosts == fabric.hosts[8:]
    assert part.switch_of.tolist() == [list(range(8)), [0] * 4 + [1] * 4, [0] * 8]


def tree(*spines):
    """A fabric and its room: spines of leaves of hosts, each host as its free pods."""
    room = [free for spine in spines for leaf in spine for free in leaf]
    places = [(f"s{s}", f"l{s}-{at}") for s, spine in enumerate(spines) for at, leaf in enumerate(spine) for _ in leaf]
    return build(MapEntry(f"n{at}", place, at + 1) for at, place in enumerate(places)), np.array(room, np.int32)


@pytest.mark.parametrize(("spines", "pods", "layers", "slots"), [
    pytest.param([[[4, 2], [8]]], 6, ((1, 2),), {2: 6}, id="one host before two of a tighter leaf"),
    pytest.param([[[4, 2, 8]]], 6, ((1, 2),), {2: 6}, id="one host before two beside it"),
    pytest.param([[[8], [7]]], 7, ((1, 2),), {1: 7}, id="the tightest of the hosts that hold all"),
    pytest.param([[[3], [3]], [[1, 6]]], 6, ((2, 2),), {3: 6}, id="runs of a spine on one host"),
    pytest.param([[[3], [3]], [[2, 5]]], 6, ((2, 2),), {2: 1, 3: 5}, id="runs of a spine under one leaf"),
    pytest.param([[[4, 2], [8]]], 6, ((2, 4), (1, 2)), {2: 6}, id="runs within runs on one host"),
])  # fmt: skip
def test_the_lowest_domain_that_holds_all_runs_is_taken(spines, pods, layers, slots):
    fabric, room = tree(*spines, [[1]])
    assert dict(place_in_layers(fabric, room, PlacementRequest(pods, pods, pods, layers=layers)).slots) == slots


def keeps_runs(fabric, counts, layers):
    """True if at most one switch of each layer has pods that are no whole runs, and only where the gang's are none."""
    for tier, size in layers:
        sums = np.add.reduceat(counts, fabric.starts[tier])
        if np.count_nonzero(sums % size) > (sum(counts) % size > 0):
            return False
    return True


def tier_of(fabric, counts):
    hosts = np.flatnonzero(counts)
    return next(tier for tier in range(fabric.tiers + 1) if len(set(fabric.switch_of[tier][hosts].tolist())) == 1)


@st.composite
def small(draw):
    """A fabric of at most six hosts with its room, some pods, and runs of pairs or threes."""
    hosts = st.integers(0, 4)
    leaves = st.lists(st.lists(hosts, min_size=1, max_size=2), min_size=1, max_size=2)
    spines = draw(st.lists(leaves, min_size=1, max_size=3).filter(
        lambda spines: sum(len(leaf) for spine in spines for leaf in spine) <= 6))  # fmt: skip
    return *tree(*spines), draw(st.integers(1, 8)), draw(st.sampled_from([((1, 2),), ((1, 3),), ((2, 2),),
                                                                          ((2, 4), (1, 2))]))  # fmt: skip


@given(small())
def test_no_lower_domain_holds_all_runs(scene):
    fabric, room, pods, layers = scene
    layers = tuple(layer for layer in layers if layer[0] < fabric.tiers)
    found = place_in_layers(fabric, room, PlacementRequest(pods, pods, pods, layers=layers))
    ways = [np.array(counts) for counts in itertools.product(*(range(min(free, pods) + 1) for free in room.tolist()))
            if sum(counts) == pods]  # fmt: skip
    lowest = min((tier_of(fabric, way) for way in ways if keeps_runs(fabric, way, layers)), default=None)
    assert (found.tier if isinstance(found, Placement) else None) == lowest
