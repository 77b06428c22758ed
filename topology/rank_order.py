"""Assign ranks to hosts so that neighbours in rank are neighbours in the fabric.

The hosts of a switch follow one another at every tier. So a ring leaves each switch once, which is the minimum. The
domain with the most pods comes first and the smallest parts come last. Controllers delete the highest index first, so a
shrinking job leaves its remote hosts before its main domain.

A place is described by its row: one number for each of its switches. The tables of a fabric are not needed. So a
launcher, which knows only paths, numbers its ranks by the same rule.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, islice, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy and networkx take a launcher longer to import than its world takes to form
    from turnout.topology.fabric import Fabric

Slots = tuple[tuple[int, int], ...]
_MAX_SWAP_RANKS = 24  # ranks up to which pairs are tried for a swap: 276 pairs a pass


def ranks(fabric: Fabric, counts: Iterable[tuple[int, int]], anchors: Iterable[tuple[int, int]] = ()) -> Slots:
    """Return (host, pods) in rank order.

    counts: (host, pods), each host once. anchors: members placed before; they decide which domain comes first and are
    not returned.

    Source: docs/design.md 3
    """
    counts = tuple(counts)
    if len(counts) < 2:
        return counts
    anchors = tuple(anchors)
    everywhere = (*counts, *anchors)
    rows = fabric.switch_of[1:, [host for host, _ in everywhere]].T.tolist()
    keys = rank_order_keys(rows, [pods for _, pods in everywhere])
    at_home = Counter[int]()
    for host, pods in anchors:
        at_home[host] += pods
    keyed = [(key, -pods - at_home[host], host, pods) for key, (host, pods) in zip(keys, counts, strict=False)]
    return tuple((host, pods) for _, _, host, pods in sorted(keyed))


def rank_order_keys(rows: Sequence[Sequence[int]], pods: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a sort key for each place: sorted by it, places are in rank order. Places under one leaf have equal keys.

    rows: for each place the numbers of its switches of tier 1, 2, ..., T. pods: how many stand there.
    """
    pods_under = [Counter[int]() for _ in rows[0]] if rows else []
    for row, count in zip(rows, pods, strict=True):
        for tier, switch in enumerate(row):
            pods_under[tier][switch] += count
    keys: dict[tuple[int, ...], tuple[int, ...]] = {}  # of each leaf, told by its row
    for row in {tuple(row) for row in rows}:
        downwards = range(len(row) - 1, -1, -1)
        keys[row] = tuple(part for tier in downwards for part in (-pods_under[tier][row[tier]], row[tier]))
    return [keys[tuple(row)] for row in rows]


def assign(
    fabric: Fabric, free_slots: Sequence[tuple[int, int]], free_ranks: Iterable[int], fixed_places: Mapping[int, int]
) -> dict[int, int]:
    """Assign the free ranks of a gang to its free slots: rank -> host id, for as many ranks as there are slots.

    free_slots: (host, pods). fixed_places: rank -> host of the members that cannot move.

    Without fixed members this is the plain rank order; otherwise fill() decides.
    """
    ranks_to_place = sorted(set(free_ranks) - set(fixed_places))
    ordered = ranks(fabric, free_slots, [(host, 1) for _, host in sorted(fixed_places.items())])
    pool = [host for host, pods in ordered for _ in range(pods)][: len(ranks_to_place)]
    rows = {host: tuple(fabric.switch_of[:, host].tolist()) for host in {*pool, *fixed_places.values()}}
    return fill(rows, pool, ranks_to_place, fixed_places)


def fill(
    rows: Mapping[int, tuple[int, ...]],
    pool: Sequence[int],
    ranks_to_place: Sequence[int],
    fixed_places: Mapping[int, int],
) -> dict[int, int]:
    """Assign free ranks, ascending, to the places of a pool in rank order: rank -> place.

    rows: place -> the numbers of its host and of its switches of tier 1, 2, ..., T. fixed_places: rank -> place of the
    members that cannot move.

    Only as many ranks are assigned as the pool has places. Each gap between placed ranks is filled from its ends with
    the nearest places, tier by tier. Gaps that one switch fills whole come first, of these the ones between members of
    one leaf, and short ones before long ones. Then pairs are swapped while that makes the ring cheaper. This is a
    heuristic: the minimum of crossings is not guaranteed.
    """
    if not fixed_places or len(pool) < 2:
        return dict(zip(ranks_to_place, pool, strict=False))
    ranks_to_place, left = ranks_to_place[: len(pool)], list(pool)
    given = dict(fixed_places)
    gaps = _gaps(ranks_to_place, fixed_places)
    for tier in range(len(rows[left[0]])):
        under: dict[int, deque[int]] = {}
        for place in left:
            under.setdefault(rows[place][tier], deque()).append(place)
        for completely in (True, False):
            for gap in sorted(gaps, key=lambda gap: _gap_sort_key(gap, max(tier, 1), rows, given)):
                _fill(gap, tier, completely, under, rows, given)
        left = [place for switch in under.values() for place in switch]
        gaps = [gap for gap in gaps if gap.free]
        if not gaps:
            break
    if len(ranks_to_place) <= _MAX_SWAP_RANKS:
        _swap(ranks_to_place, rows, given)
    return {rank: given[rank] for rank in ranks_to_place}


def leaves_of_neighbours(
    free: Sequence[int], fixed_places: Mapping[int, int], room: Mapping[int, int]
) -> dict[int, int]:
    """Choose for free ranks the leaf of the members beside them in the ring: rank -> leaf, for those that it has room.

    free: ranks without a place, ascending. fixed_places: rank -> leaf, at least one. room: leaf -> free pods. Between
    members of two leaves, the leaf with more members takes ranks first; of two equal leaves, the leaf with less room.
    """
    rows = {leaf: (leaf, leaf) for leaf in {*fixed_places.values(), *room}}
    under = {leaf: deque([leaf] * min(pods, len(free))) for leaf, pods in sorted(room.items())}
    members, given = Counter(fixed_places.values()), dict(fixed_places)
    gaps = _gaps(free, fixed_places)
    for completely in (True, False):
        for gap in sorted(gaps, key=lambda gap: _gap_sort_key(gap, 1, rows, given)):
            left, right = ((-members[leaf], room.get(leaf, 0)) for leaf in (given[gap.left], given[gap.right]))
            _fill(gap, 1, completely, under, rows, given, left_first=left <= right)
    return {rank: given[rank] for rank in free if rank in given}


class _Gap:
    """A run of free ranks, with the placed ranks at its two ends. The ends move inward while the gap is filled."""

    __slots__ = ("free", "left", "right")

    def __init__(self, left: int, free: Iterable[int], right: int) -> None:
        self.left, self.free, self.right = left, deque(free), right


def _gaps(ranks_to_place: Sequence[int], fixed_places: Mapping[int, int]) -> list[_Gap]:
    """Cut the ring of all ranks at the placed ones. Ranks above the last and below the first make one gap."""
    ends = sorted(fixed_places)
    gaps = [
        _Gap(left, ranks_to_place[bisect(ranks_to_place, left) : bisect(ranks_to_place, right)], right)
        for left, right in pairwise(ends)
    ]
    around = [*ranks_to_place[bisect(ranks_to_place, ends[-1]) :], *ranks_to_place[: bisect(ranks_to_place, ends[0])]]
    return [gap for gap in (*gaps, _Gap(ends[-1], around, ends[0])) if gap.free]


def _gap_sort_key(
    gap: _Gap, tier: int, rows: Mapping[int, tuple[int, ...]], given: Mapping[int, int]
) -> tuple[bool, int, tuple[int, ...]]:
    """Return the sort key of a gap: one between members under one switch can be filled from that switch alone."""
    one, other = rows[given[gap.left]], rows[given[gap.right]]
    return one[tier] != other[tier], len(gap.free), tuple(islice(gap.free, 1))


def _fill(
    gap: _Gap,
    tier: int,
    completely: bool,
    under: Mapping[int, deque[int]],
    rows: Mapping[int, tuple[int, ...]],
    given: dict[int, int],
    left_first: bool = True,
) -> None:
    """Give ranks of a gap to places near its ends, first from one side, then from the other.

    Places count as near if they are under the same switch of this tier as the member at that end. completely: fill the
    gap only if it can be filled completely. under: switch -> its unused places. rows: place -> its switch of each tier.
    given: rank -> place, which is added to. left_first: the places near the left end are used before the others.
    """
    for from_left in (left_first, not left_first):
        if not gap.free:
            return
        nearest = under.get(rows[given[gap.left if from_left else gap.right]][tier], deque[int]())
        if completely and len(nearest) < len(gap.free):
            continue
        while nearest and gap.free:
            rank = gap.free.popleft() if from_left else gap.free.pop()
            given[rank] = nearest.popleft()
            if from_left:
                gap.left = rank
            else:
                gap.right = rank


def _swap(ranks_to_place: Sequence[int], rows: Mapping[int, tuple[int, ...]], given: dict[int, int]) -> None:
    """Swap pairs of free ranks while the ring gets cheaper. Every swap saves a crossing, so the loop ends."""
    ring = sorted(given)
    at = {rank: position for position, rank in enumerate(ring)}

    def around(*ranks_: int) -> int:
        """Return the switch crossings of the ring's edges at these ranks."""
        edges = {(at[rank] + step) % len(ring) for rank in ranks_ for step in (-1, 0)}
        return sum(
            _crossings(rows[given[ring[edge]]], rows[given[ring[(edge + 1) % len(ring)]]]) for edge in sorted(edges)
        )

    better = True
    while better:
        better = False
        for one, other in combinations(ranks_to_place, 2):
            if given[one] == given[other]:
                continue
            before = around(one, other)
            given[one], given[other] = given[other], given[one]
            if around(one, other) < before:
                better = True
            else:
                given[one], given[other] = given[other], given[one]


def _crossings(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many switches of tier 1 and above an edge leaves."""
    return sum(a != b for a, b in zip(one[1:], other[1:], strict=True))
