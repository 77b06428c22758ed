"""Assign ranks to hosts so that neighbours in rank are neighbours in the fabric: ranks under a switch are contiguous.

So a ring of ranks leaves each switch once, which is the minimum. The domain with the most pods comes first and the
smallest parts come last. Controllers delete the highest index first, so a shrinking job leaves its remote hosts before
its main domain. Lost ranks (of members that return) are the free ranks here: fill_gaps() puts them near their
neighbours, whose ranks and places are fixed.

A place is a host or another unit under a leaf. Its row has the number of its switch in each tier; in fill_gaps() and
its helpers the number of its host comes first. The tables of a fabric are not needed, so a launcher, which knows only
paths of switches, numbers its ranks by the same rule.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, islice, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy and networkx take a launcher longer to import than its world takes to form
    from turnout.topology.fabric import Fabric

Slots = tuple[tuple[int, int], ...]  # (host id, pods)
_MAX_SWAP_RANKS = 24  # with more free ranks no pairs are swapped: 24 ranks have 276 pairs in each pass


def in_rank_order(fabric: Fabric, slots: Iterable[tuple[int, int]], anchors: Iterable[tuple[int, int]] = ()) -> Slots:
    """Return slots in rank order.

    slots: (host id, pods), with different hosts. anchors: (host id, pods) of members that are placed already; they
    decide which domain comes first and are not returned. Source: docs/design.md 3
    """
    slots = tuple(slots)
    if len(slots) < 2:
        return slots
    anchors = tuple(anchors)
    all_slots = (*slots, *anchors)
    switch_rows = fabric.switch_of[1:, [host for host, _ in all_slots]].T.tolist()
    keys = rank_order_keys(switch_rows, [pods for _, pods in all_slots])
    anchored_pods = Counter[int]()
    for host, pods in anchors:
        anchored_pods[host] += pods
    keyed = [(key, -pods - anchored_pods[host], host, pods) for key, (host, pods) in zip(keys, slots, strict=False)]
    return tuple((host, pods) for _, _, host, pods in sorted(keyed))


def rank_order_keys(switch_rows: Sequence[Sequence[int]], pods: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a sort key for each place: places sorted by it are in rank order. Places under one leaf have equal keys.

    switch_rows: for each place the numbers of its switches of tier 1, 2, ..., T, without its host. pods: the number of
    pods in each place.
    """
    pods_under = [Counter[int]() for _ in switch_rows[0]] if switch_rows else []
    for row, count in zip(switch_rows, pods, strict=True):
        for tier, switch in enumerate(row):
            pods_under[tier][switch] += count
    keys: dict[tuple[int, ...], tuple[int, ...]] = {}  # the key of each leaf, by its row
    for row in {tuple(row) for row in switch_rows}:
        downwards = range(len(row) - 1, -1, -1)
        keys[row] = tuple(part for tier in downwards for part in (-pods_under[tier][row[tier]], row[tier]))
    return [keys[tuple(row)] for row in switch_rows]


def assign_ranks(
    fabric: Fabric, free_slots: Sequence[tuple[int, int]], free_ranks: Iterable[int], fixed_places: Mapping[int, int]
) -> dict[int, int]:
    """Assign the free ranks of a gang to its free slots: rank -> host id. A rank for which no place is left is absent.

    free_slots: (host id, pods). free_ranks: ranks without a place, also those of lost members. fixed_places: rank ->
    host id of the members that cannot move. Without fixed members the free ranks follow the plain rank order; otherwise
    fill_gaps() decides.
    """
    ranks_to_place = sorted(set(free_ranks) - set(fixed_places))
    ordered = in_rank_order(fabric, free_slots, [(host, 1) for _, host in sorted(fixed_places.items())])
    pool = [host for host, pods in ordered for _ in range(pods)][: len(ranks_to_place)]
    host_and_switches = {host: tuple(fabric.switch_of[:, host].tolist()) for host in {*pool, *fixed_places.values()}}
    return fill_gaps(host_and_switches, pool, ranks_to_place, fixed_places)


def fill_gaps(
    host_and_switches: Mapping[int, tuple[int, ...]],
    pool: Sequence[int],
    ranks_to_place: Sequence[int],
    fixed_places: Mapping[int, int],
) -> dict[int, int]:
    """Assign free ranks, such as the old ranks of returning members, to the places of a pool: rank -> place.

    host_and_switches: place -> the numbers of its host and of its switches of tier 1, 2, ..., T. pool: the free places
    in rank order; a place occurs once for each of its pods. ranks_to_place: the free ranks, ascending. If they are more
    than the places, the highest ranks get no place. fixed_places: rank -> place of the members that cannot move; if
    there is none, or only one free place, the ranks get the places in the order of the pool.

    Each gap between placed ranks is filled from its ends with the nearest places, tier by tier. Gaps that one switch
    can fill completely come first, of these the gaps between members of one leaf, and short gaps before long ones. Then
    pairs are swapped while a swap makes the ring cheaper. This is a heuristic: it may miss the minimum of crossings.
    """
    if not fixed_places or len(pool) < 2:
        return dict(zip(ranks_to_place, pool, strict=False))
    ranks_to_place, free_places = ranks_to_place[: len(pool)], list(pool)
    place_of = dict(fixed_places)
    gaps = _gaps(ranks_to_place, fixed_places)
    for tier in range(len(host_and_switches[free_places[0]])):
        places_under: dict[int, deque[int]] = {}
        for place in free_places:
            places_under.setdefault(host_and_switches[place][tier], deque()).append(place)
        for completely in (True, False):
            for gap in sorted(gaps, key=lambda gap: _gap_sort_key(gap, max(tier, 1), host_and_switches, place_of)):
                _fill(gap, tier, completely, places_under, host_and_switches, place_of)
        free_places = [place for switch in places_under.values() for place in switch]
        gaps = [gap for gap in gaps if gap.free]
        if not gaps:
            break
    if len(ranks_to_place) <= _MAX_SWAP_RANKS:
        _swap_pairs(ranks_to_place, host_and_switches, place_of)
    return {rank: place_of[rank] for rank in ranks_to_place}


def leaves_of_neighbours(
    free: Sequence[int], fixed_places: Mapping[int, int], room: Mapping[int, int]
) -> dict[int, int]:
    """Return rank -> leaf for free ranks, such as the old ranks of returning members: the leaf of the next member
    before or after it in the ring.

    free: ranks without a place, ascending. fixed_places: rank -> leaf of the placed members, at least one. room: leaf
    -> free pods. A rank for which neither neighbour's leaf has room is left out. Between members of two leaves, the
    leaf with more members takes ranks first; of two equal leaves, the leaf with less room.
    """
    host_and_switches = {leaf: (leaf, leaf) for leaf in {*fixed_places.values(), *room}}
    places_under = {leaf: deque([leaf] * min(pods, len(free))) for leaf, pods in sorted(room.items())}
    members, place_of = Counter(fixed_places.values()), dict(fixed_places)
    gaps = _gaps(free, fixed_places)
    for completely in (True, False):
        for gap in sorted(gaps, key=lambda gap: _gap_sort_key(gap, 1, host_and_switches, place_of)):
            left, right = ((-members[leaf], room.get(leaf, 0)) for leaf in (place_of[gap.left], place_of[gap.right]))
            _fill(gap, 1, completely, places_under, host_and_switches, place_of, left_first=left <= right)
    return {rank: place_of[rank] for rank in free if rank in place_of}


class _Gap:
    """Contiguous free ranks, with the placed ranks at their two ends. The ends move inward while the gap is filled."""

    __slots__ = ("free", "left", "right")

    def __init__(self, left: int, free: Iterable[int], right: int) -> None:
        """Take the placed rank before the gap, the free ranks in it, and the placed rank after it."""
        self.left, self.free, self.right = left, deque(free), right


def _gaps(ranks_to_place: Sequence[int], fixed_places: Mapping[int, int]) -> list[_Gap]:
    """Return the gaps between the placed ranks of the ring of all ranks, without empty gaps.

    ranks_to_place: the free ranks, ascending. fixed_places: rank -> place, at least one. The ranks above the last
    placed rank and below the first one make one gap.
    """
    ends = sorted(fixed_places)
    gaps = [
        _Gap(left, ranks_to_place[bisect(ranks_to_place, left) : bisect(ranks_to_place, right)], right)
        for left, right in pairwise(ends)
    ]
    across_the_end = [
        *ranks_to_place[bisect(ranks_to_place, ends[-1]) :],
        *ranks_to_place[: bisect(ranks_to_place, ends[0])],
    ]
    return [gap for gap in (*gaps, _Gap(ends[-1], across_the_end, ends[0])) if gap.free]


def _gap_sort_key(
    gap: _Gap, tier: int, host_and_switches: Mapping[int, tuple[int, ...]], place_of: Mapping[int, int]
) -> tuple[bool, int, tuple[int, ...]]:
    """Return the sort key of a gap: gaps whose two ends are under one switch of the tier come first, then short gaps
    before long ones, then the gap whose first free rank along the ring is the lowest.

    host_and_switches: place -> the numbers of its host and of its switches of tier 1, 2, ..., T. place_of: rank ->
    place.
    """
    left_row, right_row = host_and_switches[place_of[gap.left]], host_and_switches[place_of[gap.right]]
    return left_row[tier] != right_row[tier], len(gap.free), tuple(islice(gap.free, 1))


def _fill(
    gap: _Gap,
    tier: int,
    completely: bool,
    places_under: Mapping[int, deque[int]],
    host_and_switches: Mapping[int, tuple[int, ...]],
    place_of: dict[int, int],
    left_first: bool = True,
) -> None:
    """Assign ranks of a gap to places near its ends, first near one end, then near the other. The gap shrinks.

    A place is near an end if it is under the same switch of `tier` as the member at that end. completely: fill the gap
    only if one of its ends has places for all of it. places_under: switch of `tier` -> its unused places, which are
    taken from it. host_and_switches: place -> the numbers of its host and of its switches of tier 1, 2, ..., T.
    place_of: rank -> place, to which the ranks are added. left_first: begin at the left end.
    """
    for from_left in (left_first, not left_first):
        if not gap.free:
            return
        nearest = places_under.get(
            host_and_switches[place_of[gap.left if from_left else gap.right]][tier], deque[int]()
        )
        if completely and len(nearest) < len(gap.free):
            continue
        while nearest and gap.free:
            rank = gap.free.popleft() if from_left else gap.free.pop()
            place_of[rank] = nearest.popleft()
            if from_left:
                gap.left = rank
            else:
                gap.right = rank


def _swap_pairs(
    ranks_to_place: Sequence[int], host_and_switches: Mapping[int, tuple[int, ...]], place_of: dict[int, int]
) -> None:
    """Swap the places of pairs of free ranks while a swap makes the ring cheaper.

    ranks_to_place: the free ranks. host_and_switches: place -> the numbers of its host and of its switches of tier 1,
    2, ..., T. place_of: rank -> place of all ranks that have a place, the fixed ones included; it is changed. Every
    swap saves a crossing, so the loop ends.
    """
    ring = sorted(place_of)
    position_of = {rank: position for position, rank in enumerate(ring)}

    def crossings_at(*ranks_: int) -> int:
        """Return how many switches the edges of the ring at these ranks leave, over all tiers."""
        edges = {(position_of[rank] + step) % len(ring) for rank in ranks_ for step in (-1, 0)}
        return sum(
            _crossings(
                host_and_switches[place_of[ring[edge]]], host_and_switches[place_of[ring[(edge + 1) % len(ring)]]]
            )
            for edge in sorted(edges)
        )

    is_cheaper = True
    while is_cheaper:
        is_cheaper = False
        for first_rank, second_rank in combinations(ranks_to_place, 2):
            if place_of[first_rank] == place_of[second_rank]:
                continue
            before = crossings_at(first_rank, second_rank)
            place_of[first_rank], place_of[second_rank] = place_of[second_rank], place_of[first_rank]
            if crossings_at(first_rank, second_rank) < before:
                is_cheaper = True
            else:
                place_of[first_rank], place_of[second_rank] = place_of[second_rank], place_of[first_rank]


def _crossings(row: tuple[int, ...], other_row: tuple[int, ...]) -> int:
    """Return how many switches of tier 1 and above an edge between two places leaves.

    row, other_row: the numbers of the host and of the switches of tier 1, 2, ..., T of each place.
    """
    return sum(a != b for a, b in zip(row[1:], other_row[1:], strict=True))
