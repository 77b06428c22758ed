"""Which rank sits where: neighbours in rank are neighbours in the fabric.

The hosts of a switch follow one another at every tier, so a ring leaves each switch once, which is the least it can.
The domain with the most pods comes first and the smallest parts last: controllers delete the highest index first, so
a shrinking job gives up its outposts before its home.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from topology.fabric import Fabric

Slots = tuple[tuple[int, int], ...]
_SWAPPED = 24  # ranks up to which pairs are tried for a swap: 276 pairs a pass


def ranks(fabric: Fabric, counts: Iterable[tuple[int, int]], anchors: Iterable[tuple[int, int]] = ()) -> Slots:
    """Return (host, pods) in rank order.

    counts: (host, pods), each host once. anchors: members placed before; they say where home is but are not returned.
    Source: DESIGN §3.4
    """
    counts = tuple(counts)
    if len(counts) < 2:
        return counts
    rows = fabric.switch_of[1:, [host for host, _ in counts]].T.tolist()
    placed = [(row, pods) for row, (_, pods) in zip(rows, counts, strict=True)]
    for host, pods in anchors:
        placed.append((fabric.switch_of[1:, host].tolist(), pods))
    held = [Counter[int]() for _ in range(fabric.tiers)]
    for row, pods in placed:
        for tier, switch in enumerate(row):
            held[tier][switch] += pods
    at_home = Counter[int]()
    for host, pods in anchors:
        at_home[host] += pods
    keyed = []
    for row, (host, pods) in zip(rows, counts, strict=True):
        key = [part for tier in range(fabric.tiers - 1, -1, -1) for part in (-held[tier][row[tier]], row[tier])]
        keyed.append((key, -pods - at_home[host], host, pods))
    return tuple((host, pods) for _, _, host, pods in sorted(keyed))


def assign(
    fabric: Fabric, free_slots: Sequence[tuple[int, int]], free_ranks: Iterable[int], placed: Mapping[int, int]
) -> dict[int, int]:
    """Give the free ranks of a gang to its free slots: rank -> host id, for as many ranks as there are slots.

    free_slots: (host, pods). placed: rank -> host of the members that cannot move. With none placed this is the
    plain rank order. Else each gap between placed ranks is filled from its ends with the slots nearest to them,
    tier by tier, gaps that one switch fills whole first and short ones before long; then pairs are swapped while
    that makes the ring cheaper. A heuristic: the least crossings are not promised.
    """
    wanted = sorted(set(free_ranks) - set(placed))
    ordered = ranks(fabric, free_slots, [(host, 1) for _, host in sorted(placed.items())])
    pool = [host for host, pods in ordered for _ in range(pods)][: len(wanted)]
    if not placed or len(pool) < 2:
        return dict(zip(wanted, pool, strict=False))
    wanted = wanted[: len(pool)]
    rows = {host: tuple(fabric.switch_of[:, host].tolist()) for host in {*pool, *placed.values()}}
    given = dict(placed)
    gaps = _gaps(wanted, placed)
    for tier in range(fabric.tiers + 1):
        for whole in (True, False):
            for gap in sorted(gaps, key=lambda gap: (len(gap.free), gap.free[:1])):
                _fill(gap, tier, whole, pool, rows, given)
    if len(wanted) <= _SWAPPED:
        _swap(wanted, rows, given)
    return {rank: given[rank] for rank in wanted}


class _Gap:
    """Free ranks in a row, and the placed ranks at its two ends, which move inward as it is filled."""

    __slots__ = ("free", "left", "right")

    def __init__(self, left: int, free: list[int], right: int) -> None:
        self.left, self.free, self.right = left, free, right


def _gaps(wanted: Sequence[int], placed: Mapping[int, int]) -> list[_Gap]:
    """Cut the ring of all ranks at the placed ones. Ranks above the last and below the first make one gap."""
    first, last = min(placed), max(placed)
    gaps: list[_Gap] = []
    for left, right in zip(sorted(placed), [*sorted(placed)[1:], first], strict=True):
        inside = (
            [rank for rank in wanted if left < rank < right]
            if left != last
            else [rank for rank in wanted if rank > last] + [rank for rank in wanted if rank < first]
        )
        if inside:
            gaps.append(_Gap(left, inside, right))
    return gaps


def _fill(
    gap: _Gap, tier: int, whole: bool, pool: list[int], rows: Mapping[int, tuple[int, ...]], given: dict[int, int]
) -> None:
    """Fill a gap from both ends with slots under the ends' switches of this tier; `whole`: all of it or nothing."""
    for from_left in (True, False):
        if not gap.free:
            return
        end = rows[given[gap.left if from_left else gap.right]][tier]
        near = [at for at, host in enumerate(pool) if rows[host][tier] == end][: len(gap.free)]
        if whole and len(near) < len(gap.free):
            continue
        for host in [pool[at] for at in near]:
            rank = gap.free.pop(0 if from_left else -1)
            given[rank] = host
            if from_left:
                gap.left = rank
            else:
                gap.right = rank
        for at in reversed(near):
            del pool[at]


def _swap(wanted: Sequence[int], rows: Mapping[int, tuple[int, ...]], given: dict[int, int]) -> None:
    """Swap pairs of free ranks while the ring gets cheaper; every swap saves a crossing, so it ends."""
    ring = sorted(given)
    at = {rank: position for position, rank in enumerate(ring)}

    def around(*ranks_: int) -> int:
        edges = {(at[rank] + step) % len(ring) for rank in ranks_ for step in (-1, 0)}
        return sum(_apart(rows[given[ring[edge]]], rows[given[ring[(edge + 1) % len(ring)]]]) for edge in sorted(edges))

    better = True
    while better:
        better = False
        for one, other in combinations(wanted, 2):
            if given[one] == given[other]:
                continue
            before = around(one, other)
            given[one], given[other] = given[other], given[one]
            if around(one, other) < before:
                better = True
            else:
                given[one], given[other] = given[other], given[one]


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many switches, tiers 1 and up, an edge leaves."""
    return sum(a != b for a, b in zip(one[1:], other[1:], strict=True))
