"""An extender beside a cluster that only it sees: nodes of 8 GPUs on leaves, and pods as a watch shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hack.controlplane.nodes import gpu_node
from turnout.kube import labels
from turnout.kube.client.clock import RealClock
from turnout.kube.objects import Node, Pod
from turnout.scheduler_ext.model import Notice, Rules
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server.extender import Extender
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.requests import Dispatcher, Verb
from turnout.scheduler_ext.server.watches import WatchState
from turnout.topology.fabric import Fabric, build
from turnout.topology.model import MapEntry

GPUS = 8


class SimulatedClock(RealClock):
    """A clock that stands still until `now_s` is set. It is for code that does not wait."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s


def leaves(hosts_of_leaf: Sequence[int]) -> Fabric:
    """Return a fabric of leaves. hosts_of_leaf: number of hosts of each leaf.

    Leaves are named leafN, and their hosts N-HOST, both numbered from 0.
    """
    names = [(f"{leaf}-{at}", f"leaf{leaf}") for leaf, size in enumerate(hosts_of_leaf) for at in range(size)]
    return build(MapEntry(name, (leaf,), at + 1) for at, (name, leaf) in enumerate(names))


class SimulatedCluster:
    """Nodes of 8 GPUs on the hosts of a fabric, and the extender that is asked about them."""

    def __init__(self, fabric: Fabric) -> None:
        metrics = Metrics()
        self.clock = SimulatedClock()
        self.watches = WatchState(plans_by(Rules()), self.clock)
        self.extender = Extender(Rules(), self.clock, metrics, _say_nothing, self.watches)
        self.dispatcher = Dispatcher(self.extender, metrics)
        self.leaf_of = {host: fabric.paths[host][-1] for host in fabric.hosts}
        for name in self.leaf_of:
            self.extender.view.layout.put_node(msgspec.convert(gpu_node(name, ""), Node))
        self.extender.view.layout.set_map(fabric)

    def show(self, pod: Mapping[str, Any]) -> None:
        """Show a pod to the extender, as an event of a watch does."""
        self.watches.put_pod(msgspec.convert(pod, Pod))

    def filter(self, pod: Mapping[str, Any], names: Sequence[str]) -> list[str]:
        """Ask the extender's filter about a pod. Return the names of the nodes that it keeps. names: candidates."""
        body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)}).encode()
        answer: dict[str, list[str] | None] = json.loads(self.dispatcher.answer(Verb.FILTER, body).body)
        return answer["NodeNames"] or []


def pod(name: str, gpus: int, gang: str = "", minimum: int = 0, at: str = "", **more: Any) -> dict[str, Any]:
    """Return a pod. gang: of koordinator, with `minimum` members, "" for none. at: its node, "" for a pending pod.

    gpus: that it asks for. more: notes (annotations), created (creation time), and further fields of its spec.
    """
    asks = {"nvidia.com/gpu": str(gpus)}
    notes = {labels.KOORD_NAME: gang, labels.KOORD_MIN: str(minimum)} if gang else {}
    notes |= more.pop("notes", {})
    meta = {"name": name, "namespace": "default", "uid": name, "annotations": notes}
    container = {"name": "main", "resources": {"requests": asks, "limits": asks}}
    spec = {"schedulerName": "default-scheduler", "containers": [container], "nodeName": at}
    return {"metadata": {**meta, "creationTimestamp": more.pop("created", "2026-01-01T00:00:00Z")},
            "spec": {**spec, **more}}  # fmt: skip


def _say_nothing(_: Notice) -> None:
    """Ignore what the extender tells owners."""
