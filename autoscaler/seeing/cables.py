"""Under which switch each node is, as the topology ConfigMap has it: for gangs that must not be spread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from turnout.kube.objects import Node
from turnout.topology import parse
from turnout.topology.errors import BadFabric
from turnout.topology.fabric import EMPTY, Fabric, build

NOWHERE = -1


class Cables:
    """The last good map. faults: of a text that could not be used, "" when it could."""

    def __init__(self) -> None:
        self._fabric: Fabric = EMPTY
        self.faults = ""

    def put(self, data: Mapping[str, str]) -> None:
        """A map as it is now. One with faults changes nothing (CS-06)."""
        reading = parse.read(data)
        faults = reading.faults
        if not faults:
            try:
                self.draw(build(reading.entries))
            except BadFabric as error:
                faults = error.faults
        self.faults = "; ".join(f"line {fault.line}: {fault.text}" for fault in faults[:5])

    def draw(self, fabric: Fabric) -> None:
        """Use a map that has been read."""
        self._fabric = fabric

    def switches(self, nodes: Iterable[Node | None]) -> tuple[NDArray[np.int32], ...]:
        """Of each tier, from the leaves up: the switch of each node, NOWHERE for one that is not on the map."""
        fabric = self._fabric
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
    """A node's place on the map, by its InternalIP or its name."""
    for name in (*(a.address for a in node.status.addresses or () if a.type == "InternalIP"), node.metadata.name):
        at = fabric.index.get(name)
        if at is not None and fabric.mapped[at]:
            return at
    return NOWHERE
