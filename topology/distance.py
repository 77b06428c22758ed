"""Distances of hosts, the cost of a rank order, and scores of hosts for a scheduler.

The distance of two hosts is the tier of the lowest switch above both; it is 0 for a host and itself. The cost of a rank
order counts the ring edges that leave a switch, tier by tier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric
from turnout.topology.model import Cost, DistanceRule


def distance(fabric: Fabric, one: int, other: int, rule: DistanceRule = DistanceRule.ALL_TIERS) -> int:
    """Return the distance of two hosts, 0..T.

    Under LEAF_ONLY, hosts of different leaves all have distance T.
    """
    tier = fabric.tier_between(one, other)
    return fabric.tiers if rule is DistanceRule.LEAF_ONLY and tier > 1 else tier


def to_all(fabric: Fabric, host: int, rule: DistanceRule = DistanceRule.ALL_TIERS) -> npt.NDArray[np.int8]:
    """Return the distance of every host from one host."""
    return to_nearest(fabric, (host,), rule)


def to_nearest(
    fabric: Fabric, hosts: Iterable[int], rule: DistanceRule = DistanceRule.ALL_TIERS
) -> npt.NDArray[np.int8]:
    """Return the distance of every host from the nearest of some hosts, or T + 1 everywhere when none is given."""
    ids = np.fromiter(hosts, np.int32)
    distances = np.full(len(fabric.hosts), fabric.tiers + (not len(ids)), np.int8)
    if not len(ids):
        return distances
    tiers = (1, 0) if rule is DistanceRule.LEAF_ONLY else range(fabric.tiers - 1, -1, -1)
    for tier in tiers:
        marked_switches = np.zeros(len(fabric.starts[tier]), np.bool_)
        marked_switches[fabric.switch_of[tier][ids]] = True
        distances[marked_switches[fabric.switch_of[tier]]] = tier
    return distances


def common_tier(fabric: Fabric, hosts: Iterable[int]) -> int:
    """Return the tier of the lowest switch above all of some hosts; 0 for one host or none."""
    ids = sorted(set(hosts))
    if len(ids) < 2:
        return 0
    return fabric.tier_between(ids[0], ids[-1])  # ids run in fabric order, so the ends span the rest


def cost(fabric: Fabric, hosts_by_rank: Sequence[int]) -> Cost:
    """Return the cost of a ring in which rank i talks to rank i + 1 and the last rank to the first.

    hosts_by_rank: one host id per rank. An edge that leaves both a leaf and its spine counts once at each of the two
    tiers.
    """
    if not hosts_by_rank:
        return Cost((0,) * fabric.tiers, (0,) * fabric.tiers)
    rows = fabric.switch_of[1:, np.asarray(hosts_by_rank, np.int32)]
    crossings = tuple((rows != np.roll(rows, 1, axis=1)).sum(axis=1).tolist())
    switches = tuple(len(np.unique(row)) for row in rows)
    return Cost(crossings, switches, sum(crossings))


TOP = 10  # kube-scheduler's MaxExtenderPriority; it multiplies by the extender's weight


def scores(
    fabric: Fabric,
    planned_hosts: Iterable[int],
    anchors: Iterable[int] = (),
    rule: DistanceRule = DistanceRule.ALL_TIERS,
) -> npt.NDArray[np.int8]:
    """Return one score per host id: 10 for a planned host, and less with every tier to the nearest member.

    planned_hosts: their ids. anchors: host ids of members that are already placed.

    Scores fall strictly with the tier as far as eleven values allow. Hosts no nearer than the top switch and hosts off
    the map get 0. Without planned hosts and anchors every score is 0.
    """
    planned = np.fromiter(planned_hosts, np.int32)
    distances = to_nearest(fabric, [*planned.tolist(), *anchors], rule)
    result = _steps(fabric.tiers)[distances]
    result[~fabric.mapped] = 0
    result[planned] = TOP
    return result


def _steps(tiers: int) -> npt.NDArray[np.int8]:
    """Return the score of a host that is not planned, for each distance 0..T+1; at most 9."""
    lowest = TOP - 1
    if tiers <= lowest:
        steps = [lowest - (lowest * tier) // tiers for tier in range(tiers)]
    else:
        steps = [max(lowest - tier, 1) for tier in range(tiers)]
    return np.array([*steps, 0, 0], np.int8)
