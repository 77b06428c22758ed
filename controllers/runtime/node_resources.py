"""Keeps which extended resources nodes offer: a name for each make, and nothing else of a node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from turnout.controllers.roles.devices import extended
from turnout.kube.objects import ObjectMeta, Struct
from turnout.kube.watch_events import Key

NODES_PATH = "/api/v1/nodes"


class OfferedStatus(Struct):
    """The part of a node's status that says what it has."""

    allocatable: dict[str, Any] | None = None


class OfferingNode(Struct):
    """A node as far as its devices go."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: OfferedStatus = msgspec.field(default_factory=OfferedStatus)


class NodeResources:
    """A sink of the watch of nodes. offered: by all nodes together, None while they have not been listed."""

    def __init__(self) -> None:
        self._by_node: dict[str, frozenset[str]] = {}
        self._nodes: Counter[str] = Counter()  # that offer a resource
        self.offered: frozenset[str] | None = None

    def put(self, node: OfferingNode) -> None:
        """A node as it is now."""
        self._set(node.metadata.name, extended(node.status.allocatable))

    def drop(self, key: Key) -> None:
        """A node is gone."""
        self._set(key.name, frozenset())
        self._by_node.pop(key.name, None)

    def synced(self, version: str) -> None:
        """All nodes have been told."""
        self.offered = frozenset(self._nodes)

    def _set(self, name: str, now: frozenset[str]) -> None:
        before = self._by_node.get(name, frozenset())
        if before == now:
            return
        self._by_node[name] = now
        self._nodes.update(now - before)
        self._nodes.subtract(before - now)
        self._nodes = +self._nodes
        if self.offered is not None:
            self.offered = frozenset(self._nodes)
