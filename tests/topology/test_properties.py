"""The laws that hold for every fabric, room and ask."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.topology.world import fabric, fabrics, scenes
from turnout.topology.fabric import build, common_tier, ring_cost, with_unmapped_hosts
from turnout.topology.model import DistanceRule, MapEntry, Placement, PlacementRequest, Refusal, RefusalReason
from turnout.topology.packing import choose_holes
from turnout.topology.place import plan
from turnout.topology.rank_order import assign_ranks, in_rank_order


@given(scenes())
def test_a_placement_keeps_what_was_asked(scene):
    built, rooms, request = scene
    answer = plan(built, rooms, request)
    if isinstance(answer, Refusal):
        return
    hosts = [host for host, _ in answer.slots]
    assert len(set(hosts)) == len(hosts)
    assert all(0 < pods <= rooms[host] and pods % request.multiple == 0 for host, pods in answer.slots)
    assert max(request.min_pods, 1) <= answer.pods <= request.pods
    assert answer.pods == sum(pods for _, pods in answer.slots)
    members = hosts + [host for host, _ in request.anchors]
    assert answer.tier == common_tier(built, members)
    if request.widest_tier is not None:
        assert answer.tier <= request.widest_tier
        assert all(built.mapped[host] for host in members)


@given(scenes())
def test_a_refusal_is_true(scene):
    built, rooms, request = scene
    answer = plan(built, rooms, request)
    if isinstance(answer, Placement):
        return
    required, min_pods = request.widest_tier is not None, max(request.min_pods, 1)
    usable = rooms // request.multiple * request.multiple * (built.mapped if required else 1)
    full_pods = request.pods // request.multiple * request.multiple
    members = [host for host, _ in request.anchors]
    match answer.reason:
        case RefusalReason.NO_MAP:
            assert required
            assert not built.mapped.any()
        case RefusalReason.OFF_MAP:
            assert required
            assert not built.mapped[members].all() or common_tier(built, members) > request.widest_tier
        case RefusalReason.NO_ROOM:
            assert usable.sum() < min_pods or full_pods < min_pods
        case RefusalReason.TIER_TOO_NARROW:
            row = built.switch_of[min(request.widest_tier, built.tiers)]
            room_by_switch = np.bincount(row, usable)
            assert max(room_by_switch[row[members]] if members else room_by_switch) < min_pods <= usable.sum()


@given(scenes(anchored=False))
def test_no_lower_domain_holds_the_gang_and_none_costs_less(scene):
    """Against every subset of switches: the tier is the lowest and, in it, the ring crosses the fewest switches."""
    built, rooms, request = scene
    request = PlacementRequest(min(request.pods, int(rooms.sum()) or 1), 1, 30)
    answer = plan(built, rooms, request)
    mapped = rooms * built.mapped
    if isinstance(answer, Refusal) or mapped.sum() < request.pods:
        return
    for tier in range(answer.tier):
        assert np.bincount(built.switch_of[tier], mapped).max() < request.pods
    paid = ring_cost(built, [host for host, pods in answer.slots for _ in range(pods)])
    leaves = np.bincount(built.switch_of[1], mapped).astype(int)
    if len(leaves) > 12:
        return
    home = built.switch_of[answer.tier][built.starts[1]] if answer.tier else np.zeros(len(leaves))
    cheapest = min(
        sum(
            len({int(built.switch_of[tier, built.starts[1][leaf]]) for leaf in chosen})
            for tier in range(1, answer.tier)
        )
        for count in range(1, len(leaves) + 1)
        for chosen in itertools.combinations(range(len(leaves)), count)
        if len({int(home[leaf]) for leaf in chosen}) == 1 and sum(leaves[leaf] for leaf in chosen) >= request.pods
    )
    assert paid.total == cheapest


@given(scenes(), st.randoms(use_true_random=False))
def test_a_fabric_relabelled_gives_the_relabelled_answer(scene, dice):
    """New names that keep the order keep the ids; names that shuffle the siblings keep tier, number and price."""
    built, rooms, request = scene
    renamed, where = relabelled(built, lambda name: f"new-{name}")
    assert where == list(range(len(built.hosts)))
    assert plan(renamed, rooms, request) == plan(built, rooms, request)
    marks = {}
    shuffled, where = relabelled(built, lambda name: marks.setdefault(name, f"{dice.random():.6f}-{len(marks)}"))
    moved = np.zeros_like(rooms)
    moved[where] = rooms
    relabelled_slots = tuple(sorted((where[host], pods) for host, pods in request.anchors))
    other = plan(
        shuffled,
        moved,
        PlacementRequest(
            request.pods,
            request.min_pods,
            request.max_pods,
            request.multiple,
            request.widest_tier,
            relabelled_slots,
            request.rule,
        ),
    )
    answer = plan(built, rooms, request)
    if isinstance(answer, Refusal):
        assert other == answer
        return
    unseen = 2 if request.rule is DistanceRule.LEAF_ONLY else built.tiers  # above the leaf that rule sees no difference
    assert (min(other.tier, unseen), other.pods) == (min(answer.tier, unseen), answer.pods)


def relabelled(built, name):
    """The fabric with every switch and host renamed, and the new id of each host."""
    hosts = {host: f"{'z' * (not built.mapped[at])}{name(host)}" for at, host in enumerate(built.hosts)}
    entries = [MapEntry(hosts[host], tuple(map(name, path)), 1) for host, path in built.paths.items()]
    new = with_unmapped_hosts(build(entries), [hosts[host] for host in built.hosts if host not in built.paths])
    return new, [new.id_of_host[hosts[host]] for host in built.hosts]


@given(scenes())
def test_planning_twice_gives_one_answer_and_changes_nothing(scene):
    built, rooms, request = scene
    before = rooms.copy()
    assert plan(built, rooms, request) == plan(built, rooms, request)
    assert (rooms == before).all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_pick_takes_the_fewest_holes_and_leaves_the_largest_whole(holes, data):
    need = data.draw(st.integers(0, sum(holes)))
    shares = choose_holes(holes, need)
    assert sum(pods for _, pods in shares) == need
    assert all(0 < pods <= holes[at] for at, pods in shares)
    sets = [chosen for chosen in itertools.combinations(range(len(holes)), len(shares)) if worth(holes, chosen, need)]
    assert len(shares) == 0 or not any(
        worth(holes, chosen, need) for chosen in itertools.combinations(range(len(holes)), len(shares) - 1)
    )
    assert left(holes, [at for at, _ in shares], need) == max(left(holes, chosen, need) for chosen in sets)


def worth(holes, chosen, need):
    return sum(holes[at] for at in chosen) >= need


def left(holes, chosen, need):
    """Squares of what stays free, the rest of the chosen holes in one of them."""
    return (
        sum(hole**2 for at, hole in enumerate(holes) if at not in chosen)
        + (sum(holes[at] for at in chosen) - need) ** 2
    )


def test_pick_is_bounded_where_the_table_would_be_large():
    holes = [3 + at * 37 % 61 for at in range(600)]
    shares = choose_holes(holes, 9000)
    assert sum(pods for _, pods in shares) == 9000
    descending = sorted(holes, reverse=True)
    assert sum(descending[: len(shares)]) >= 9000 > sum(descending[: len(shares) - 1])


@pytest.mark.parametrize(
    ("holes", "largest_used"),
    [
        pytest.param(200, False, id="of 200 holes the four that fit exactly"),
        pytest.param(201, True, id="of one more, past 400,000 cells, the largest and what fits beside it"),
    ],
)
def test_the_largest_holes_are_taken_unseen_where_the_table_would_be_large(holes, largest_used):
    """Four of 51 hold the pods exactly, and leave the hole of 100 whole."""
    shares = choose_holes([1] * (holes - 6) + [51] * 5 + [100], 4 * 51)
    assert (len(shares), holes - 1 in dict(shares)) == (4, largest_used)


@pytest.mark.contract("CS-05", "DL-101", "DL-103")
@given(fabrics(), st.data())
def test_rank_order_keeps_every_switch_in_one_run_whatever_the_input_order(built, data):
    hosts = data.draw(st.lists(st.integers(0, len(built.hosts) - 1), unique=True, min_size=1))
    counts = [(host, data.draw(st.integers(1, 3))) for host in hosts]
    ordered = in_rank_order(built, counts)
    assert sorted(ordered) == sorted(counts)
    assert in_rank_order(built, sorted(counts)) == ordered
    paid = ring_cost(built, [host for host, pods in ordered for _ in range(pods)])
    assert paid.crossings == tuple(count if count > 1 else 0 for count in paid.switches)


@given(fabrics(), st.data())
@example(fabric([2, 2], [2, 2]), None)
def test_free_ranks_get_each_slot_at_most_once(built, data):
    if data is None:
        return
    hosts = st.integers(0, len(built.hosts) - 1)
    host_by_rank = data.draw(st.dictionaries(st.integers(0, 11), hosts, max_size=6))
    free = [rank for rank in range(12) if rank not in host_by_rank]
    slots = sorted(data.draw(st.dictionaries(hosts, st.integers(1, 4), max_size=5)).items())
    given_ranks = assign_ranks(built, slots, free, host_by_rank)
    assert set(given_ranks) <= set(free)
    assert len(given_ranks) == min(len(free), sum(pods for _, pods in slots))
    for host, pods in slots:
        assert sum(given_host == host for given_host in given_ranks.values()) <= pods
    assert assign_ranks(built, slots[::-1], free[::-1], host_by_rank) == given_ranks


@given(fabrics(), st.data())
def test_no_two_free_ranks_could_swap_and_make_the_ring_cheaper(built, data):
    hosts = st.integers(0, len(built.hosts) - 1)
    host_by_rank = data.draw(st.dictionaries(st.integers(0, 9), hosts, min_size=1, max_size=4))
    slots = sorted(data.draw(st.dictionaries(hosts, st.integers(1, 4), min_size=1, max_size=4)).items())
    new_ranks = assign_ranks(built, slots, [rank for rank in range(10) if rank not in host_by_rank], host_by_rank)

    def paid(ring):
        return ring_cost(built, [ring[rank] for rank in sorted(ring)]).total

    best = paid({**host_by_rank, **new_ranks})
    for one, other in itertools.combinations(new_ranks, 2):
        assert paid({**host_by_rank, **new_ranks, one: new_ranks[other], other: new_ranks[one]}) >= best
