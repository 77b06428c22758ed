"""Spread a gang evenly over the fewest leaves that hold it: 12 and 12 rather than 16 and 8.

The domain is the one that the gang would have without the wish.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric
from turnout.topology.model import Ask, Placement, Refusal
from turnout.topology.multiples import in_multiples
from turnout.topology.packing.domain_capacity import Sums
from turnout.topology.packing.fewest_switches import Spread

Room = npt.NDArray[np.int32]


def balanced(fabric: Fabric, room: Room, ask: Ask) -> Placement | Refusal:
    """Place a gang; where it needs several leaves, give none more than its share if the fewest leaves allow that.

    room: as for plan(). Members that hold a host count in the share of their leaf.
    """
    found = in_multiples(fabric, room, ask)
    if isinstance(found, Refusal) or found.tier < 2:
        return found
    hosts = [host for host, _ in (*ask.anchors, *found.slots)]
    first, end = fabric.span(found.tier, int(fabric.switch_of[found.tier][hosts[0]]))
    unit = ask.multiple
    starts = fabric.starts[1][fabric.switch_of[1][first] : fabric.switch_of[1][end - 1] + 1]
    anchored_pods = np.zeros(len(room), np.int32)
    for host, pods in ask.anchors:
        anchored_pods[host] += pods
    free = np.add.reduceat(room[first:end] // unit * unit, starts - first)
    leaf_anchored = np.add.reduceat(anchored_pods[first:end], starts - first)
    share = _share(free, leaf_anchored, found.pods + int(leaf_anchored.sum()), unit)
    even = np.zeros_like(room)
    sums = Sums(fabric, room // unit, ask.liking)
    spread = Spread(sums, [host for host, _ in ask.anchors])
    for at, leaf in enumerate(range(int(fabric.switch_of[1][first]), int(fabric.switch_of[1][end - 1]) + 1)):
        most = min(int(free[at]), max(0, share - int(leaf_anchored[at]))) // unit
        for host, pods in spread.fill(1, leaf, most):
            even[host] += pods * unit
    even_placement = in_multiples(fabric, even, replace(ask, pods=found.pods, least=min(ask.least, found.pods)))
    return even_placement if isinstance(even_placement, Placement) and even_placement.pods == found.pods else found


def _share(free: Room, leaf_anchored: Room, pods: int, unit: int) -> int:
    """Return the least share of a leaf with which as few leaves as possible hold all pods."""
    most = np.sort(free + leaf_anchored)[::-1]
    fewest = int(np.searchsorted(np.cumsum(most), pods)) + 1
    share = -(-pods // (fewest * unit)) * unit
    while int(np.minimum(most[:fewest], share).sum()) < pods and share < pods:
        share += unit
    return share
