"""Under which switch each node is, as the topology ConfigMap has it: for gangs that must not be spread."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from turnout.kube.objects import Node
from turnout.topology.fabric import Fabric

NOWHERE = -1


def switches(fabric: Fabric, nodes: Iterable[Node | None]) -> tuple[NDArray[np.int32], ...]:
    """Return the switch of each node, one array for each tier from the leaves up;

    NOWHERE for a node that is not on the map.
    """
    hosts = [NOWHERE if node is None else _host(fabric, node) for node in nodes]
    if not fabric.mapped_count or not hosts:
        return ()
    at = np.array(hosts, dtype=np.intp)
    known = at >= 0
    found = []
    for tier in range(1, fabric.tiers + 1):
        row = np.full(len(hosts), NOWHERE, dtype=np.int32)
        row[known] = fabric.switch_of[tier][at[known]]
        found.append(row)
    return tuple(found)


def _host(fabric: Fabric, node: Node) -> int:
    """Return a node's place on the map, by its InternalIP or its name."""
    for name in (*(a.address for a in node.status.addresses or () if a.type == "InternalIP"), node.metadata.name):
        at = fabric.index.get(name)
        if at is not None and fabric.mapped[at]:
            return at
    return NOWHERE
