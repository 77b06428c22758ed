"""The ways in which runs of ranks are placed: how many gangs find a place by each, and what their rings cost."""

import numpy as np
import pytest

from hack.bench.placement import layered
from turnout.topology.fabric import build, ring_cost
from turnout.topology.layers import place_in_layers, place_in_whole_runs, placements_in_layers
from turnout.topology.mesh import hosts_of
from turnout.topology.model import MapEntry, Placement, PlacementRequest, Refusal, RefusalReason
from turnout.topology.place import place_balanced

SEEDS = range(80)


def drawn(short, multiple):
    """The scenes of the benchmark, with the room of each host in multiples. short: the last run lacks a pod."""
    for seed in SEEDS:
        fabric, room, pods, layers = layered.draw_instance(seed)
        if pods > short:
            yield fabric, room * multiple, PlacementRequest(pods - short, pods - short, pods, multiple, layers=layers)


def paid(fabric, found):
    return ring_cost(fabric, hosts_of(found)).total


@pytest.mark.parametrize(("short", "multiple", "first", "ways", "best"), [
    pytest.param(0, 1, (76, 296), (152, 636), (76, 293), id="whole runs"),
    pytest.param(1, 1, (72, 237), (148, 548), (76, 271), id="a last run that is short"),
    pytest.param(0, 2, (80, 92), (160, 226), (80, 91), id="in pairs a host"),
    pytest.param(1, 2, (80, 92), (160, 226), (80, 92), id="in pairs, with a short last run"),
])  # fmt: skip
def test_so_many_places_are_found_and_their_rings_cost_no_more(short, multiple, first, ways, best):
    """Count (places, crossings of all rings) of the first way, of both, and of the one that is taken."""
    scenes = list(drawn(short, multiple))
    costs = {
        first: [(fabric, place_in_whole_runs(fabric, room, request)) for fabric, room, request in scenes],
        ways: [
            (fabric, found) for fabric, room, request in scenes for found in placements_in_layers(fabric, room, request)
        ],
        best: [(fabric, place_in_layers(fabric, room, request)) for fabric, room, request in scenes],
    }
    for (places, max_pods), answers in costs.items():
        found = [
            (fabric, hosts_of_answer) for fabric, hosts_of_answer in answers if isinstance(hosts_of_answer, Placement)
        ]
        assert len(found) == places
        assert sum(paid(*one) for one in found) <= max_pods


# Two spines of two leaves of four hosts.
TREE = build(MapEntry(f"n{at}", (f"s{at // 8}", f"l{at // 4}"), at + 1) for at in range(16))


def on(*hosts, of=1):
    """Room for `of` pods on some hosts of TREE."""
    room = np.zeros(16, np.int32)
    room[list(hosts)] = of
    return room


def liked(*hosts):
    """A liking for some hosts of TREE."""
    liking = np.zeros(16, np.int32)
    liking[list(hosts)] = 1
    return liking


def hosts_of_plan(answer):
    return sorted(hosts_of(answer))


@pytest.mark.parametrize(("room", "request_fields", "hosts"), [
    pytest.param(on(0, 1, 4, 5, 8, 9), PlacementRequest(4, 4, 4, layers=((1, 2),)), [0, 1, 4, 5],
                 id="pairs under one spine"),
    pytest.param(on(0, 4, 5, 6, 8, 9, 12, 13), PlacementRequest(4, 4, 4, layers=((1, 2),)), [8, 9, 12, 13],
                 id="a lone host is no room for a pair"),
    pytest.param(on(0, 1, 4, 5, 8, 9, 10, 11), PlacementRequest(4, 4, 4, layers=((1, 2),)), [8, 9, 10, 11],
                 id="one leaf before two"),
    pytest.param(on(0, 1, 4, 5, 8, 9, 12, 13, 14, 15),
                 PlacementRequest(6, 6, 6, layers=((2, 4), (1, 2))), [8, 9, 12, 13, 14, 15],
                 id="a four and the pair that is left under one spine"),
    pytest.param(on(0, 1, 4, 5, 6, 8, 9), PlacementRequest(6, 6, 6, layers=((2, 4), (1, 2))), [0, 1, 4, 5, 8, 9],
                 id="a four under one spine, the pair that is left under another"),
    pytest.param(on(*range(6), 8, 9, 10), PlacementRequest(8, 8, 8, layers=((2, 4), (1, 2))), None,
                 id="room for a four and a pair, not for two fours"),
    pytest.param(on(0, 1, 2, 3), PlacementRequest(2, 2, 2, layers=((1, 2),), host_preferences=(liked(1, 3),)), [1, 3],
                 id="the hosts that are liked"),
    pytest.param(on(*range(8)),
                 PlacementRequest(6, 6, 6, layers=((1, 2),), host_preferences=(liked(3, 4, 5, 6, 7),)),
                 [0, 3, 4, 5, 6, 7],
                 id="the leaf that is liked is filled"),
    pytest.param(on(0, 1, 2), PlacementRequest(3, 3, 3, layers=((1, 2),)), [0, 1, 2], id="a last run that is short"),
    pytest.param(on(*range(4, 10)),
                 PlacementRequest(6, 6, 6, layers=((3, 4),), anchors=tuple((host, 1) for host in range(4))),
                 [4, 5, 6, 7, 8, 9], id="a layer as wide as the fabric asks nothing of a gang that grows, too"),
    pytest.param(on(1, 2, 3),
                 PlacementRequest(1, 1, 1, layers=((1, 2),), anchors=((0, 1),), host_preferences=(liked(3),)), [3],
                 id="the host that is liked beside a member"),
])  # fmt: skip
def test_runs_go_where_whole_ones_find_room(room, request_fields, hosts):
    answer = place_in_layers(TREE, room, request_fields)
    assert (hosts_of_plan(answer) if isinstance(answer, Placement) else None) == hosts


@pytest.mark.parametrize(("room", "request_fields"), [
    pytest.param(on(0, 4, 8, 12), PlacementRequest(4, 4, 4, layers=((1, 2),)), id="no leaf holds a pair"),
    pytest.param(on(0, 1, 8, 9), PlacementRequest(4, 4, 4, layers=((2, 4), (1, 2))), id="no spine holds a four"),
    pytest.param(on(0, 1, 4, 5, 8, 9, 12, 13), PlacementRequest(6, 6, 6, widest_tier=2, layers=((1, 2),)),
                 id="no spine holds all"),
])  # fmt: skip
def test_runs_that_fit_nowhere_are_refused(room, request_fields):
    answer = place_in_layers(TREE, room, request_fields)
    assert isinstance(answer, Refusal)
    assert answer.detail


def test_where_all_do_not_fit_the_least_is_placed():
    answer = place_in_layers(TREE, on(0, 1, 4, 5, 8), PlacementRequest(8, 4, 8, layers=((1, 2),)))
    assert hosts_of_plan(answer) == [0, 1, 4, 5]


@pytest.mark.parametrize(("room", "request_fields", "shares"), [
    pytest.param(on(*range(8), of=4), PlacementRequest(24, 24, 24), [12, 12],
                 id="twelve and twelve, not sixteen and eight"),
    pytest.param(on(*range(12), of=4), PlacementRequest(36, 36, 36), [12, 12, 12], id="over two spines"),
    pytest.param(on(*range(8, 16), of=4), PlacementRequest(24, 24, 24), [0, 0, 12, 12], id="under the second spine"),
    pytest.param(on(*range(4, 12), of=4), PlacementRequest(24, 24, 24), [0, 12, 12], id="under leaves of both spines"),
    pytest.param(on(*range(8), of=4), PlacementRequest(12, 12, 12, anchors=((0, 4), (1, 4), (2, 4))), [0, 12],
                 id="members that run count: the other leaf's share is left"),
    pytest.param(on(*range(8), of=4), PlacementRequest(20, 20, 20, 4), [12, 8],
                 id="in fours a host: as even as fours allow"),
    pytest.param(on(0, 1, 2, 3, 4, of=4), PlacementRequest(20, 20, 20), [16, 4],
                 id="the fewest leaves come before even ones"),
    pytest.param(on(0, 1, 2, 3, of=4), PlacementRequest(16, 16, 16), [16], id="one leaf that holds all"),
])  # fmt: skip
def test_a_balanced_gang_is_even_over_the_fewest_leaves(room, request_fields, shares):
    found = place_balanced(TREE, room, request_fields)
    counts = np.bincount(TREE.switch_of[1][hosts_of(found)], minlength=len(shares))
    assert sorted(counts.tolist()) == sorted(shares)
    assert all(pods > 0 for _, pods in found.slots)


def test_a_balanced_gang_without_room_is_refused():
    assert place_balanced(TREE, on(0, of=1), PlacementRequest(2, 2, 2)) == Refusal(RefusalReason.NO_ROOM)


def test_a_domain_of_hundreds_of_hosts_is_tried_less_often_and_found():
    wide = build(MapEntry(f"n{at}", ("s", f"l{at // 400}"), at + 1) for at in range(800))
    found = place_in_whole_runs(wide, np.ones(800, np.int32), PlacementRequest(500, 500, 500, layers=((1, 250),)))
    assert np.bincount(wide.switch_of[1][hosts_of(found)]).tolist() == [250, 250]
