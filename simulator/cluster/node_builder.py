"""Build the nodes of a local cluster and its map: a number of nodes, or the hosts of a given map."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from turnout.topology.model import MapEntry

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
HOSTS_PER_LEAF, LEAVES_PER_SPINE = 8, 4
MAX_NODES = 5_000
_CPUS_PER_GPU, _GIB_PER_GPU = 12, 120
_ROOM_FOR_OTHERS = 2  # as many GPUs' worth of CPU and memory besides
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to create: its name, its address and its switches."""

    name: str
    ip: str
    path: tuple[str, ...]  # the widest switch first


def generate_nodes(count: int) -> list[NodeSpec]:
    """Return `count` new nodes with names, addresses and switches: eight under a leaf switch, four leaves under a
    spine.
    """
    found = []
    for number in range(count):
        leaf = number // HOSTS_PER_LEAF
        spine = leaf // LEAVES_PER_SPINE
        found.append(
            NodeSpec(f"gpu-{number + 1:04d}", _nth_address(number), (f"spine-{spine + 1}", f"leaf-{leaf + 1}"))
        )
    return found


def nodes_of_map(entries: Iterable[MapEntry]) -> list[NodeSpec]:
    """Return a node for every host of a map, in its order.

    A host that is an IP address gets a name, a host that is a name gets the address of its place in the map. The
    addresses may collide if a map has hosts of both forms.
    """
    nodes = []
    for number, entry in enumerate(entries):
        if _is_address(entry.host):
            nodes.append(NodeSpec(f"node-{entry.host.replace('.', '-').replace(':', '-')}", entry.host, entry.path))
        else:
            nodes.append(NodeSpec(entry.host, _nth_address(number), entry.path))
    return nodes


def hosts_without_node_name(node_specs: Sequence[NodeSpec]) -> list[str]:
    """Return the hosts of a map that cannot be a node's name, in order; [] if all can.

    node_specs: from nodes_of_map().
    """
    return [spec.name for spec in node_specs if len(spec.name) > 253 or not _NAME.fullmatch(spec.name)]


def map_text(node_specs: Iterable[NodeSpec]) -> str:
    """Return the map of nodes in the form of a topology ConfigMap: `LEAF SPINE IP`, one line per node.

    The format's own names are asw and psw. LEAF is the last switch of a node's path, SPINE the one before it. Raises
    IndexError for a path with fewer than two switches.
    """
    return "".join(f"{spec.path[-1]} {spec.path[-2]} {spec.ip}\n" for spec in node_specs)


def node(spec: NodeSpec, gpus: int, stamp: str, kubelet: tuple[str, int] = ("", 0)) -> Object:
    """Return a ready node as JSON values.

    spec: its name and address. gpus: its GPUs, which also decide its CPU and memory. stamp: the time as RFC 3339.
    kubelet: host and port at which an API server reaches its kubelet, ("", 0) for none.
    """
    worth = gpus + _ROOM_FOR_OTHERS
    offers = {"cpu": str(worth * _CPUS_PER_GPU), "memory": f"{worth * _GIB_PER_GPU}Gi", "pods": "110"}
    if gpus:
        offers[GPU] = str(gpus)
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "the local cluster's kubelet is ready",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": {"kubernetes.io/hostname": spec.name, "kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {
            "capacity": offers,
            "allocatable": offers,
            "addresses": [
                {"type": "InternalIP", "address": spec.ip},
                {"type": "Hostname", "address": spec.name},
                *([{"type": "ExternalIP", "address": kubelet[0]}] if kubelet[0] else []),
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet[1]}},
            "conditions": [{**ready, "lastHeartbeatTime": stamp, "lastTransitionTime": stamp}],
            "nodeInfo": {"kubeletVersion": "v1.35.4-turnout-local", "osImage": "turnout-local", "kernelVersion": "none"}
            | {"containerRuntimeVersion": "none://0", "architecture": "amd64", "operatingSystem": "linux"},
        },
    }


def _nth_address(number: int) -> str:
    """Return the IP address of node `number`, counted from 0."""
    return str(ipaddress.IPv4Address("10.0.0.1") + number)


def _is_address(text: str) -> bool:
    """Return True if a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
