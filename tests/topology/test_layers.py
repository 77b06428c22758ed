"""Runs of ranks within runs: kept whole, near the exact optimum, and found wherever they fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hack.bench.placement import exact, layered
from tests.support.examples import scaled
from turnout.topology.fabric import build, cost, under
from turnout.topology.mesh import hosts_of
from turnout.topology.model import Ask, Entry, Placement
from turnout.topology.slices import in_layers

FEW = settings(max_examples=scaled(30), deadline=None)


@FEW
@given(st.integers(10_000, 90_000))
def test_layers_are_kept_and_cost_little_more_than_the_optimum(seed):
    fabric, room, pods, layers = layered.draw(seed)
    found = in_layers(fabric, room, Ask(pods, pods, pods, layers=layers))
    least = exact.optimum(fabric, room, pods, 5.0, layers)
    assert (least is None) == (not isinstance(found, Placement))
    if least is None:
        return
    hosts = hosts_of(found)
    assert len(hosts) == pods
    assert (np.bincount(hosts, minlength=len(room)) <= room).all()
    for tier, size in layers:
        assert not (np.bincount(fabric.switch_of[tier][hosts]) % size).any()
    assert cost(fabric, hosts).total <= 1.6 * least + 1


@pytest.mark.parametrize(("seed", "least", "most"), [
    pytest.param(477, 18, 20, id="spines cost too: it had 28, on eight of them"),
    pytest.param(453, 9, 10, id="shared from the top down it is cheaper: it had 12"),
    pytest.param(163, 6, 7, id="so is this one: it had 8"),
])  # fmt: skip
def test_the_cheaper_of_two_ways_is_taken(seed, least, most):
    fabric, room, pods, layers = layered.draw(seed)
    found = in_layers(fabric, room, Ask(pods, pods, pods, layers=layers))
    assert least <= cost(fabric, hosts_of(found)).total <= most


@pytest.mark.parametrize(("pods", "layers", "counts"), [
    pytest.param(10, ((1, 4),), [4, 4, 2], id="a last run that is shorter"),
    pytest.param(4, ((3, 2), (1, 2)), [4], id="a layer as wide as the fabric asks for nothing"),
    pytest.param(8, ((2, 4), (1, 2)), [4, 4], id="fours under a spine, pairs under a leaf"),
])  # fmt: skip
def test_how_many_are_under_each_leaf(pods, layers, counts):
    fabric = build(Entry(f"n{at}", (f"s{at // 8}", f"l{at // 4}"), at + 1) for at in range(16))
    found = in_layers(fabric, np.ones(16, np.int32), Ask(pods, pods, pods, layers=layers))
    under_leaf = np.bincount(fabric.switch_of[1][hosts_of(found)])
    assert sorted(under_leaf[under_leaf > 0].tolist(), reverse=True) == counts


@pytest.mark.parametrize(("held", "free", "pods", "fits"), [
    pytest.param([4, 3], [2, 0], 1, False, id="a member does not return in the place of another run"),
    pytest.param([4, 3], [2, 1], 1, True, id="it returns in its own run"),
    pytest.param([4, 2], [2, 1], 2, False, id="of two that return one has no place in their run"),
    pytest.param([4, 4], [2, 0], 2, True, id="a new run that is shorter begins anywhere"),
    pytest.param([4, 3, 1], [4, 0, 3], 3, True, id="runs that were broken before us are not made worse"),
])  # fmt: skip
def test_where_members_come_back_to_a_gang_in_runs_of_four(held, free, pods, fits):
    entries, anchors, room = [], [], []
    for leaf, (taken, left) in enumerate(zip(held, free, strict=True)):
        for at in range(taken + left):
            anchors += [(len(entries), 1)] if at < taken else []
            room.append(int(at >= taken))
            entries.append(Entry(f"n{leaf}-{at}", (f"l{leaf}",), len(entries) + 1))
    ask = Ask(pods, pods, pods, anchors=tuple(anchors), layers=((1, 4),))
    assert isinstance(in_layers(build(entries), np.array(room, np.int32), ask), Placement) is fits


def test_a_run_that_members_have_begun_is_completed_first():
    fabric = build(Entry(f"n{at}", (f"l{at // 4}",), at + 1) for at in range(12))
    room = np.array([0, 0, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1], np.int32)
    found = in_layers(fabric, room, Ask(6, 6, 6, anchors=((0, 1), (1, 1)), layers=((1, 4),)))
    assert np.bincount(fabric.switch_of[1][hosts_of(found)]).tolist() in ([2, 4], [2, 0, 4])


def test_a_part_of_a_fabric_counts_its_hosts_from_its_first():
    fabric = build(Entry(f"n{at}", (f"s{at // 8}", f"l{at // 4}"), at + 1) for at in range(16))
    part = under(fabric, 2, 1)
    assert part.hosts == fabric.hosts[8:]
    assert part.switch_of.tolist() == [list(range(8)), [0] * 4 + [1] * 4, [0] * 8]
