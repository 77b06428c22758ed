"""Compute the distance of hosts: the tier of the lowest switch above both, 0 for a host and itself."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric
from turnout.topology.model import DistanceRule


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
