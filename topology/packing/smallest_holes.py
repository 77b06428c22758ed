"""Fill the smallest holes first, wherever they are: for pods that need not be near one another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turnout.topology.distance import common_tier
from turnout.topology.fabric import Fabric
from turnout.topology.model import Ask, Placement, Reason, Refusal


def smallest_holes(fabric: Fabric, room: npt.NDArray[np.int32], ask: Ask) -> Placement | Refusal:
    """Place as many pods as fit, from the ask's least up. Multiples a host hold, tiers do not."""
    usable = room // ask.multiple * ask.multiple
    order = np.lexsort((np.arange(len(usable)), usable))
    slots: list[tuple[int, int]] = []
    left = ask.pods
    for host in order[np.searchsorted(usable[order], 1) :].tolist():
        slots.append((host, min(left, int(usable[host]))))
        left -= slots[-1][1]
        if not left:
            break
    pods = ask.pods - left
    if pods < max(ask.least, 1):
        return Refusal(Reason.NO_ROOM, f"{max(ask.least, 1)} pods must start together, {pods} find room", pods)
    hosts = [host for host, _ in slots]
    tier = common_tier(fabric, [*(host for host, _ in ask.anchors), *hosts])
    return Placement(tuple(sorted(slots)), tier, pods)
