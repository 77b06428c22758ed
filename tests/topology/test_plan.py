"""The placement of a gang, preference by preference, and the reasons of refusals."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from tests.kit.lines_run import lines_run
from tests.topology.world import fabric, guide_table, room
from turnout.topology.fabric import EMPTY, build, ring_cost, with_unmapped_hosts
from turnout.topology.map_formats import read_text
from turnout.topology.model import DistanceRule, MapEntry, Placement, PlacementRequest, Refusal, RefusalReason
from turnout.topology.place import place_in_multiples, placement_of, plan
from turnout.topology.rank_order import assign_ranks, fill_gaps, in_rank_order, rank_order_keys


def request(pods, **wish):
    return PlacementRequest(pods, wish.pop("min_pods", pods), wish.pop("max_pods", pods), **wish)


# Two spines: hosts 0-3 in two leaves of two, hosts 4-8 in leaves of two and three.
SMALL = fabric([2, 2], [2, 3])


def test_a_host_without_pods_is_no_part_of_a_placement():
    assert placement_of(SMALL, [(0, 2), (8, 0)], request(2)) == Placement(((0, 2),), 0, 2)


@pytest.mark.parametrize(
    ("rooms", "wish", "slots", "tier"),
    [
        pytest.param([8, 8, 8, 8, 8, 8, 8, 8, 8], request(8), [(0, 8)], 0, id="one host that holds all is nearest"),
        pytest.param([8, 5, 8, 8, 8, 8, 8, 8, 8], request(5), [(1, 5)], 0, id="the tightest host"),
        pytest.param([4, 4, 4, 4, 4, 4, 4, 4, 4], request(8), [(0, 4), (1, 4)], 1, id="the lowest domain: a leaf"),
        pytest.param([4, 4, 4, 1, 4, 4, 4, 4, 4], request(5), [(2, 4), (3, 1)], 1, id="the tightest leaf"),
        pytest.param(
            [4, 4, 4, 4, 4, 4, 4, 4, 4],
            request(8, max_pods=12),
            [(6, 4), (7, 4)],
            1,
            id="room to grow before the tightest",
        ),
        pytest.param(
            [1, 1, 1, 1, 2, 2, 2, 0, 0],
            request(4, max_pods=6),
            [(4, 2), (5, 2)],
            1,
            id="room to grow one tier up, if not here",
        ),
        pytest.param(
            [2, 2, 0, 1, 2, 2, 1, 1, 0],
            request(4, max_pods=6),
            [(4, 2), (5, 2)],
            1,
            id="that room before the tighter spine",
        ),
        pytest.param(
            [1, 1, 1, 1, 1, 1, 1, 1, 0], request(3), [(0, 1), (1, 1), (2, 1)], 2, id="the tightest spine, or the first"
        ),
        pytest.param(
            [1, 1, 1, 0, 1, 1, 1, 1, 1],
            request(4),
            [(6, 1), (7, 1), (8, 1), (4, 1)],
            2,
            id="fewest leaves before tightest",
        ),
        pytest.param(
            [3, 1, 3, 2, 0, 0, 0, 0, 0],
            request(6),
            [(2, 3), (3, 2), (1, 1)],
            2,
            id="a small hole is used up, large ones stay",
        ),
        pytest.param(
            [2, 2, 2, 2, 2, 2, 2, 2, 2],
            request(14),
            [(0, 2), (1, 2), (2, 2), (3, 2), (6, 2), (7, 2), (8, 2)],
            3,
            id="the whole fabric at last; the home of most pods first, the rest has the highest ranks",
        ),
        pytest.param(
            [7, 7, 4, 5, 0, 0, 0, 0, 0], request(6, multiple=2), [(0, 6)], 0, id="in pairs a host of 7 holds 6"
        ),
        pytest.param(
            [3, 3, 4, 0, 5, 1, 0, 0, 0],
            request(6, multiple=2),
            [(2, 4), (0, 2)],
            2,
            id="no host gets an odd number, and of two equal leaves the one with more hosts is left partly free",
        ),
        pytest.param(
            [2, 0, 2, 0, 2, 0, 2, 0, 0],
            request(7, multiple=2, min_pods=6),
            [(0, 2), (2, 2), (4, 2)],
            3,
            id="odd one out",
        ),
        pytest.param(
            [2, 2, 0, 0, 4, 4, 0, 0, 0],
            request(20, min_pods=10),
            [(4, 4), (5, 4), (0, 2), (1, 2)],
            3,
            id="as many as fit",
        ),
        pytest.param(
            [2, 2, 2, 0, 4, 4, 0, 0, 0],
            request(20, min_pods=6, widest_tier=2),
            [(4, 4), (5, 4)],
            1,
            id="as many as a spine holds",
        ),
        pytest.param(
            [0, 4, 4, 4, 4, 4, 4, 4, 4],
            request(4, anchors=((0, 4),)),
            [(1, 4)],
            1,
            id="members placed pull the rest near",
        ),
        pytest.param(
            [0, 2, 1, 1, 8, 8, 8, 8, 8],
            request(4, anchors=((0, 4),)),
            [(1, 2), (2, 1), (3, 1)],
            2,
            id="their leaf first",
        ),
        pytest.param(
            [0, 0, 8, 8, 0, 8, 8, 8, 8],
            request(8, anchors=((0, 1), (4, 1))),
            [(5, 8)],
            3,
            id="between two spines, a member's leaf",
        ),
    ],
)
def test_order_of_wishes(rooms, wish, slots, tier):
    pod_count = sum(pods for _, pods in slots)
    assert plan(SMALL, room(*rooms), wish) == Placement(tuple(slots), tier, pod_count)


@pytest.mark.parametrize(
    ("pods", "best"),
    [
        pytest.param(3, "b", id="three leaves of two spines before three of three"),
        pytest.param(4, "c", id="the only one that holds them"),
        pytest.param(2, "a", id="of two alike the first"),
    ],
)
def test_of_several_cores_the_one_in_which_a_gang_uses_the_fewest_switches(pods, best):
    """One pod a host, one host a leaf. Leaves of each spine: core a 1, 1, 1; core b 1, 2; core c 1, 1, 1, 1."""
    cores = {"a": [1, 1, 1], "b": [1, 2], "c": [1, 1, 1, 1]}
    paths = [
        (core, f"s{spine}", f"l{leaf}")
        for core, spines in cores.items()
        for spine, leaves in enumerate(spines)
        for leaf in range(leaves)
    ]
    tree = build(MapEntry(f"h{at}", path, at + 1) for at, path in enumerate(paths))
    rooms = room(*[1] * len(paths))
    if pods == 2:
        rooms[tree.id_of_host["h4"]] = rooms[tree.id_of_host["h5"]] = 0  # no spine holds two
    answer = plan(tree, rooms, request(pods))
    assert {tree.names[3][tree.switch_of[3, host]] for host, _ in answer.slots} == {(best,)}


def test_a_core_is_chosen_by_switches_that_a_gang_can_use_at_once():
    """Each core has four leaves that hold twenty pods, and two spines that do; in the second they are the same ones."""
    cores = {"a": [[5, 1, 1, 1, 1, 1], [5, 1, 1, 1, 1, 1], [5], [5]], "b": [[5, 5], [5, 5], [6, 5]]}
    paths, rooms = [], []
    for core, spines in cores.items():
        for spine, leaves in enumerate(spines):
            paths += [(core, f"s{spine}", f"l{leaf}") for leaf in range(len(leaves))]
            rooms += leaves
    tree = build(MapEntry(f"h{at}", path, at + 1) for at, path in enumerate(paths))
    answer = plan(tree, room(*rooms), request(20))
    assert {tree.names[3][tree.switch_of[3, host]] for host, _ in answer.slots} == {("b",)}


@pytest.mark.parametrize(
    "wish",
    [
        pytest.param({"pods": 0, "min_pods": 0}, id="for nobody"),
        pytest.param({"pods": 2, "min_pods": 3}, id="for fewer than must start"),
        pytest.param({"pods": 2, "min_pods": -1}, id="for less than none to start"),
        pytest.param({"pods": 2, "max_pods": 1}, id="for more than there may be"),
        pytest.param({"pods": 2, "multiple": 0}, id="in multiples of nothing"),
    ],
)
def test_what_cannot_be_asked(wish):
    with pytest.raises(ValueError, match="a request needs"):
        request(**wish)
    assert request(1, min_pods=0) == PlacementRequest(1, 0, 1, 1, None, (), DistanceRule.ALL_TIERS)


@pytest.mark.parametrize(
    ("rooms", "wish", "reason", "found"),
    [
        pytest.param([1] * 9, request(10), RefusalReason.NO_ROOM, 9, id="nine slots for ten"),
        pytest.param([1] * 9, request(3, multiple=2), RefusalReason.NO_ROOM, 0, id="single slots for pairs"),
        pytest.param([7] * 9, request(3, multiple=2), RefusalReason.NO_ROOM, 54, id="three that must start, in pairs"),
        pytest.param([0] * 9, request(3, min_pods=0), RefusalReason.NO_ROOM, 0, id="more workers, and no room for one"),
        pytest.param([1] * 9, request(4, widest_tier=1), RefusalReason.TIER_TOO_NARROW, 9, id="no leaf of four"),
        pytest.param([1] * 9, request(6, widest_tier=2), RefusalReason.TIER_TOO_NARROW, 9, id="no spine of six"),
        pytest.param(
            [1] * 9, request(10, widest_tier=2), RefusalReason.NO_ROOM, 9, id="required or not, nine are nine"
        ),
        pytest.param(
            [1] * 9,
            request(1, widest_tier=1, anchors=((0, 1), (2, 1))),
            RefusalReason.OFF_MAP,
            0,
            id="placed too far apart",
        ),
        pytest.param(
            [0, 0, 1, 1, 1, 1, 1, 1, 1],
            request(1, widest_tier=1, anchors=((0, 1),)),
            RefusalReason.TIER_TOO_NARROW,
            7,
            id="leaf full",
        ),
    ],
)
def test_refusals(rooms, wish, reason, found):
    answer = plan(SMALL, room(*rooms), wish)
    assert answer == Refusal(reason)
    assert answer.room == found
    assert 0 < len(answer.detail) <= 200


@pytest.mark.contract("CS-07", "DL-102")
def test_an_empty_map_blocks_nobody_but_required_gangs():
    strange = with_unmapped_hosts(EMPTY, ["a", "b", "c"])
    assert plan(strange, room(1, 1, 1), request(2)) == Placement(((0, 1), (1, 1)), 2, 2)
    assert plan(strange, room(1, 1, 1), request(2, widest_tier=2)) == Refusal(RefusalReason.NO_MAP)
    assert plan(EMPTY, room(), request(1)) == Refusal(RefusalReason.NO_ROOM)


@pytest.mark.parametrize(
    ("rooms", "wish", "slots"),
    [
        pytest.param(
            [1, 1, 1, 8], request(3), [(0, 1), (1, 1), (2, 1)], id="mapped hosts, though one off the map holds all"
        ),
        pytest.param([1, 1, 1, 8], request(8), [(3, 8)], id="a host off the map that holds all, where the map cannot"),
        pytest.param([1, 1, 1, 3], request(5), [(0, 1), (1, 1), (2, 1), (3, 2)], id="the rest off the map"),
        pytest.param([1, 1, 1, 2], request(5), [(0, 1), (1, 1), (2, 1), (3, 2)], id="all that there is off the map"),
        pytest.param([0, 0, 1, 3], request(3, anchors=((3, 1),)), [(3, 3)], id="beside a member off the map"),
        pytest.param([0, 0, 1, 2], request(3, anchors=((3, 1),)), [(2, 1), (3, 2)], id="beside it and on the map"),
        pytest.param([1, 1, 0, 3], request(9, min_pods=2), [(0, 1), (1, 1), (3, 3)], id="as many as fit anywhere"),
    ],
)
def test_hosts_off_the_map_come_last(rooms, wish, slots):
    answer = plan(with_unmapped_hosts(fabric([2, 1]), ["x"]), room(*rooms), wish)
    assert sorted(answer.slots) == slots


def test_of_hosts_off_the_map_those_of_members_come_first():
    two = with_unmapped_hosts(fabric([2, 1]), ["x", "y"])
    assert sorted(plan(two, room(1, 1, 0, 2, 1), request(3, anchors=((3, 1),))).slots) == [(0, 1), (1, 1), (3, 1)]


@pytest.mark.parametrize(("tree", "rooms", "wish", "pods"), [
    pytest.param(EMPTY, [], request(3, multiple=2), None, id="no host at all"),
    pytest.param(with_unmapped_hosts(fabric([2, 1]), ["x"]), [0, 0, 0, 3],
                 request(3, multiple=2, anchors=((3, 2),)), [(3, 3)],
                 id="beside a member off the map"),
])  # fmt: skip
def test_multiples_and_a_rest_off_the_map(tree, rooms, wish, pods):
    answer = place_in_multiples(tree, room(*rooms), wish)
    assert (sorted(answer.slots) if isinstance(answer, Placement) else None) == pods


def test_a_rest_joins_its_members_among_many_tighter_domains():
    """More spines than are tried hold the gang in less room, but its member runs under the last one."""
    tree = fabric(*[[2]] * 70, [1, 3])
    rooms = room(*[2, 1] * 70, 0, 2, 1, 1)
    answer = place_in_multiples(tree, rooms, request(3, multiple=2, anchors=((140, 1),), rule=DistanceRule.LEAF_ONLY))
    assert (answer.slots, answer.tier) == (((141, 2), (142, 1)), 2)


@pytest.mark.parametrize(
    ("rooms", "anchors", "reason"),
    [
        pytest.param([0, 0, 0, 8], (), RefusalReason.NO_ROOM, id="a required gang never goes off the map"),
        pytest.param([8, 8, 8, 8], ((3, 1),), RefusalReason.OFF_MAP, id="nor joins a member there"),
    ],
)
def test_required_means_on_the_map(rooms, anchors, reason):
    strange = with_unmapped_hosts(fabric([2, 1]), ["x"])
    assert plan(strange, room(*rooms), request(2, widest_tier=3, anchors=anchors)) == Refusal(reason)


@pytest.mark.contract("DL-104")
def test_leaf_only_sees_no_spine():
    """DL-104: two leaves of one spine are as far apart as any two."""
    tree = fabric([2, 1], [2, 2])
    rooms = room(0, 1, 1, 1, 0, 1, 0)
    assert plan(tree, rooms, request(2)).slots == ((1, 1), (2, 1))
    rooms = room(1, 1, 1, 1, 0, 0, 1)
    assert plan(tree, rooms, request(4)).tier == 3
    spines = {
        int(tree.switch_of[2, host]) for host, _ in plan(tree, rooms, request(3, rule=DistanceRule.LEAF_ONLY)).slots
    }
    assert spines == {0}
    assert plan(tree, room(0, 1, 1, 1, 0, 1, 0), request(2, widest_tier=2, rule=DistanceRule.LEAF_ONLY)).tier <= 2


@pytest.mark.contract("CS-05", "DL-101", "DL-103")
def test_every_access_switch_of_the_guide_s_table_is_one_run():
    """CS-05: the plan of all ten nodes is a permutation of them in which each asw follows itself."""
    tree = build(read_text(guide_table()).entries)
    answer = plan(tree, room(*[1] * 10), request(10))
    hosts = [host for host, _ in answer.slots]
    assert sorted(hosts) == list(range(10))
    leaves = [int(tree.switch_of[1, host]) for host in hosts]
    assert sum(a != b for a, b in pairwise(leaves)) == 3
    assert ring_cost(tree, hosts).crossings == (4, 2, 0)


def test_growth_stays_near_and_takes_what_there_is():
    def more(pods, **wish):
        return request(pods, min_pods=0, anchors=((0, 4),), **wish)

    rooms = room(0, 1, 4, 0, 8, 8, 8, 8, 8)
    assert plan(SMALL, rooms, more(3)).slots == ((1, 1), (2, 2))
    assert plan(SMALL, rooms, more(30, widest_tier=2)).pods == 5
    assert plan(SMALL, rooms, more(3, widest_tier=1)).slots == ((1, 1),)
    assert plan(SMALL, room(*[0] * 9), more(3)) == Refusal(RefusalReason.NO_ROOM)


def test_home_has_the_lowest_ranks_and_the_farthest_hosts_the_highest():
    counts = [(0, 1), (2, 1), (4, 2), (6, 3), (7, 1)]
    assert [host for host, _ in in_rank_order(SMALL, counts)] == [6, 7, 4, 0, 2]


def test_the_switch_of_the_highest_tier_with_most_members_is_home():
    keys = rank_order_keys([(0, 0), (1, 1), (2, 1)], [1, 1, 1])
    assert sorted(range(3), key=keys.__getitem__) == [1, 2, 0]


@pytest.mark.parametrize(("rooms", "pods", "liked", "anchors", "slots"), [
    pytest.param([0, 0, 0, 0, 0, 0, 1, 1, 1], 2, [7, 8], (), [(7, 1), (8, 1)], id="under a leaf"),
    pytest.param([0, 0, 0, 0, 0, 0, 1, 1, 1], 2, [8], ((6, 1),), [(6, 1), (8, 1)], id="after the hosts of members"),
    pytest.param([1, 1, 1, 1, 0, 0, 0, 0, 0], 3, [2, 3], (), [(0, 1), (2, 1), (3, 1)], id="a leaf under a spine"),
    pytest.param([0, 1, 1, 1, 0, 0, 0, 0, 0], 2, [2, 3], ((0, 1),), [(1, 1), (2, 1)], id="after the leaf of members"),
    pytest.param([2, 1, 1, 1, 0, 0, 0, 0, 0], 2, [2, 3], (), [(0, 2)], id="never before the lowest domain"),
])  # fmt: skip
def test_liking_decides_among_equals(rooms, pods, liked, anchors, slots):
    liking = np.zeros(9, np.int32)
    liking[liked] = 1
    assert sorted(plan(SMALL, room(*rooms), request(pods, anchors=anchors, host_preferences=(liking,))).slots) == slots


def test_hosts_without_room_are_not_liked():
    liking = np.array([0, 0, 0, 0, 1, 0, 0], np.int32)
    found = plan(fabric([4, 3]), room(1, 1, 0, 0, 1, 1, 0), request(2, host_preferences=(liking,)))
    assert [host for host, _ in found.slots] == [4, 5]


def test_every_place_says_how_many_stand_there():
    assert rank_order_keys([], []) == []
    with pytest.raises(ValueError, match="zip"):
        rank_order_keys([(0, 0), (0, 0)], [1])


@pytest.mark.parametrize(
    ("slots", "free", "host_by_rank", "expected"),
    [
        pytest.param([(4, 1), (0, 1), (1, 1)], [0, 1, 2], {}, {0: 0, 1: 1, 2: 4}, id="nobody placed: plain rank order"),
        pytest.param([(1, 1), (2, 1)], [1, 3], {0: 0, 2: 3}, {1: 1, 3: 2}, id="a gap takes the slot of its neighbour"),
        pytest.param(
            [(1, 1), (5, 1)], [1, 3], {0: 4, 2: 0, 4: 4}, {1: 5, 3: 1}, id="each gap the slot that costs the ring least"
        ),
        pytest.param(
            [(0, 3), (5, 3)],
            [0, 2, 3, 4],
            {1: 3, 5: 2},
            {0: 5, 2: 0, 3: 0, 4: 0},
            id="slots are swapped beyond those of one host, too",
        ),
        pytest.param(
            [(1, 1), (2, 1)], [1, 4], {0: 3, 2: 3, 3: 0, 5: 0}, {1: 2, 4: 1}, id="two slots, each near its gap"
        ),
        pytest.param([(1, 2)], [1, 2, 3], {0: 0}, {1: 1, 2: 1}, id="more ranks than slots: the lowest are served"),
        pytest.param([(1, 4)], [1], {0: 0}, {1: 1}, id="more slots than ranks"),
        pytest.param([], [1], {0: 0}, {}, id="no slot"),
    ],
)
def test_free_ranks_of_a_half_placed_gang(slots, free, host_by_rank, expected):
    assert assign_ranks(SMALL, slots, free, host_by_rank) == expected


def test_a_gap_that_one_leaf_fills_whole_is_not_cut():
    """Rank 1 alone between members of leaf 0 gets its only slot there; the long gap goes elsewhere as one."""
    node_by_pod = {0: 0, 2: 0, 7: 0}
    given = assign_ranks(SMALL, [(1, 1), (6, 2), (7, 2)], [1, 3, 4, 5, 6], node_by_pod)
    ring = [({**node_by_pod, **given})[rank] for rank in range(8)]
    assert given[1] == 1
    assert ring_cost(SMALL, ring).crossings == (2, 2, 0)


def test_a_gap_too_long_for_swaps_is_filled_from_both_ends_by_what_is_near():
    """Put the first ten of 39 free ranks beside rank 0, the last twelve beside rank 40, and the others between."""
    leaves = {0: 0, 1: 0, 2: 1, 3: 2}  # place -> its leaf; place 0 holds rank 0, place 2 holds rank 40
    rows = {place: (place, leaf, 0) for place, leaf in leaves.items()}
    pool = [3] * 17 + [1] * 10 + [2] * 12
    given = fill_gaps(rows, pool, list(range(1, 40)), {0: 0, 40: 2})
    assert [given[rank] for rank in range(1, 40)] == [1] * 10 + [3] * 17 + [2] * 12


def test_ten_times_the_hosts_are_not_ten_times_the_work():
    """A guard against a walk over the graph on 50,000 hosts; `hack.bench placement` measures the seconds."""
    lines = []
    for spines in (25, 250):
        tree = fabric(*[[8] * 25] * spines)
        rooms = np.arange(200 * spines, dtype=np.int32) * 7919 % 5
        assert plan(tree, rooms, request(512)).pods == 512
        lines.append(lines_run(partial(plan, tree, rooms, request(512))))
    assert lines[1] <= 6 * lines[0]
