"""Pods that need not be near one another fill the smallest holes first, wherever they are."""

import pytest

from tests.topology.world import fabric, room
from turnout.topology.model import Placement, PlacementRequest, Refusal, RefusalReason
from turnout.topology.place import place_in_smallest_holes

# Two spines: hosts 0-1 and 2-3 in leaves of the first, host 4 under the second.
TREE = fabric([2, 2], [1])


@pytest.mark.parametrize(("rooms", "pods_requested", "slots", "tier"), [
    pytest.param([4, 1, 0, 2, 8], PlacementRequest(3, 3, 3), ((1, 1), (3, 2)), 2,
                 id="two small holes, not a large one"),
    pytest.param([4, 1, 0, 2, 8], PlacementRequest(4, 4, 4), ((0, 1), (1, 1), (3, 2)), 2,
                 id="the next hole takes the rest"),
    pytest.param([2, 2, 2, 2, 2], PlacementRequest(2, 2, 2), ((0, 2),), 0, id="of equal holes the first"),
    pytest.param([3, 5, 0, 2, 2], PlacementRequest(4, 4, 4, 2), ((0, 2), (3, 2)), 2, id="in pairs a host"),
    pytest.param([3, 0, 0, 0, 0], PlacementRequest(2, 2, 2, 2), ((0, 2),), 0,
                 id="a hole that is no multiple takes whole ones"),
    pytest.param([3, 0, 0, 0, 0], PlacementRequest(3, 3, 3, 2), ((0, 3),), 0,
                 id="the rest joins a pair where its hole is large enough"),
    pytest.param([2, 1, 0, 0, 0], PlacementRequest(3, 3, 3, 2), ((0, 2), (1, 1)), 1,
                 id="the rest needs no hole for a pair"),
    pytest.param([4, 2, 0, 1, 1], PlacementRequest(5, 5, 5, 2), ((0, 2), (1, 2), (3, 1)), 2,
                 id="the rest takes the smallest hole that is left"),
    pytest.param([0, 1, 0, 0, 2], PlacementRequest(1, 1, 1, 2), ((1, 1),), 0, id="fewer pods than a pair"),
    pytest.param([2, 1, 0, 0, 0], PlacementRequest(5, 2, 5, 2), ((0, 2),), 0,
                 id="without the rest if a pair finds no hole"),
    pytest.param([1, 0, 0, 1, 0], PlacementRequest(5, 2, 5), ((0, 1), (3, 1)), 2,
                 id="as many as fit, if they are the least"),
    pytest.param([0, 1, 0, 0, 0], PlacementRequest(1, 1, 1, anchors=((4, 1),)), ((1, 1),), 3,
                 id="members that run count for the tier"),
    pytest.param([0, 1, 0, 0, 0], PlacementRequest(3, 0, 3), ((1, 1),), 0, id="one, where none must start together"),
])  # fmt: skip
def test_where_the_pods_go(rooms, pods_requested, slots, tier):
    assert place_in_smallest_holes(TREE, room(*rooms), pods_requested) == Placement(
        slots, tier, sum(pods for _, pods in slots)
    )


@pytest.mark.parametrize(("rooms", "pods", "found"), [
    pytest.param([1, 0, 0, 1, 0], PlacementRequest(5, 3, 5), 2, id="fewer than must start together"),
    pytest.param([0, 0, 0, 0, 0], PlacementRequest(5, 0, 5), 0, id="none at all"),
    pytest.param([1, 1, 1, 1, 1], PlacementRequest(2, 2, 2, 2), 0, id="no host holds a pair"),
])  # fmt: skip
def test_where_too_few_fit_none_is_placed(rooms, pods, found):
    answer = place_in_smallest_holes(TREE, room(*rooms), pods)
    assert (answer, answer.room) == (Refusal(RefusalReason.NO_ROOM), found)
    assert answer.detail == f"{max(pods.min_pods, 1)} pods must start together, {found} find room"
