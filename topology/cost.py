"""Compute the cost of a rank order: how many ring edges leave a switch, tier by tier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnout.topology.fabric import Fabric
from turnout.topology.model import Cost


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
