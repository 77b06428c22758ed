"""Score hosts 0..10 for a scheduler: the planned hosts first, then hosts near the gang."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from turnout.topology.distance import to_nearest
from turnout.topology.fabric import Fabric
from turnout.topology.model import DistanceRule

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
