"""The hosts of the map and the nodes of the cluster in one fabric: the map's hosts under the names of their nodes."""

from __future__ import annotations

from dataclasses import replace

from turnout.kube.node_capacity import ClusterSnapshot
from turnout.kube.objects import Node
from turnout.topology.fabric import EMPTY, Fabric, with_unmapped_hosts


class HostLayout:
    """The map and the addresses of the nodes, from which the fabric is laid out."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        """Start without nodes and without a map. snapshot: gets each node."""
        self.is_stale = True  # True if the hosts have changed since the last `lay_out`
        self._snapshot = snapshot
        self._map: Fabric = EMPTY
        self._ips: dict[str, str] = {}  # node -> InternalIP, "" for none

    def put_node(self, node: Node) -> None:
        """Add or update a node. If its name or its InternalIP is new, the layout is stale."""
        name = node.metadata.name
        ip = next((a.address for a in node.status.addresses or () if a.type == "InternalIP"), "")
        if self._ips.get(name) != ip:
            self._ips[name] = ip
            self.is_stale = True
        if not self._snapshot.put_node(node):
            self.is_stale = True

    def drop_node(self, name: str) -> None:
        """Remove a node. Its row in the tables is removed with the next new layout."""
        self._ips.pop(name, None)
        self._snapshot.drop_node(name)

    def set_map(self, fabric: Fabric) -> None:
        """Use a new fabric, whose hosts have the names of the map: InternalIPs or node names."""
        self._map = fabric
        self.is_stale = True

    def lay_out(self) -> Fabric:
        """Return the fabric: the map's hosts under the names of their nodes, then the nodes off the map.

        Host ids get a new meaning.
        """
        names = sorted(self._ips, reverse=True)  # of two nodes with one address the first by name has it
        by_key = {self._ips[name]: name for name in names if self._ips[name]} | {name: name for name in names}
        known = with_node_names(self._map, by_key)
        on_map = set(known.hosts)
        self.is_stale = False
        return with_unmapped_hosts(known, sorted(name for name in self._ips if name not in on_map))


def with_node_names(fabric: Fabric, by_key: dict[str, str]) -> Fabric:
    """Return a copy of the fabric with the hosts named like their nodes. A host without a node keeps its name.

    by_key: name or InternalIP of a host -> name of its node.
    """
    hosts = tuple(by_key.get(host, host) for host in fabric.hosts)
    return replace(fabric, hosts=hosts, id_of_host={name: host for host, name in enumerate(hosts)})
