"""Which rank sits where: neighbours in rank are neighbours in the fabric.

The hosts of a switch follow one another at every tier, so a ring leaves each switch once, which is the least it can.
The domain with the most pods comes first and the smallest parts last: controllers delete the highest index first, so
a shrinking job gives up its outposts before its home.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from topology.fabric import Fabric

Slots = tuple[tuple[int, int], ...]


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
