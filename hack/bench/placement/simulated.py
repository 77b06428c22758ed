"""An extender beside a cluster that only it sees: nodes of 8 GPUs on leaves, and pods as a watch shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hack.bench.placement.trickling import SimulatedClock
from hack.controlplane.nodes import gpu_node
from turnout.kube import labels
from turnout.kube.objects import Node, Pod
from turnout.scheduler_ext.model import Notice, Rules
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server.extender import Extender
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.requests import Dispatcher, Verb
from turnout.scheduler_ext.server.watches import WatchState
from turnout.topology.fabric import build
from turnout.topology.model import Entry

GPUS = 8


class SimulatedCluster:
    """Leaves of so many hosts, and the extender that is asked about them. Hosts are named LEAF-HOST."""

    def __init__(self, hosts_of_leaf: Sequence[int]) -> None:
        metrics = Metrics()
        clock = SimulatedClock()
        self.watches = WatchState(plans_by(Rules()), clock)
        self.extender = Extender(Rules(), clock, metrics, _say_nothing, self.watches)
        self.dispatcher = Dispatcher(self.extender, metrics)
        self.leaf_of = {f"{leaf}-{at}": leaf for leaf, size in enumerate(hosts_of_leaf) for at in range(size)}
        for name in self.leaf_of:
            self.extender.view.put_node(msgspec.convert(gpu_node(name, ""), Node))
        self.extender.view.set_map(build(Entry(name, (f"leaf{leaf}",), at + 1)
                                    for at, (name, leaf) in enumerate(self.leaf_of.items())))  # fmt: skip

    def show(self, pod: Mapping[str, Any]) -> None:
        """Show a pod."""
        self.watches.put_pod(msgspec.convert(pod, Pod))

    def filter(self, pod: Mapping[str, Any], names: Sequence[str]) -> list[str]:
        """Ask where a pod may go."""
        body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)}).encode()
        answer: dict[str, list[str] | None] = json.loads(self.dispatcher.answer(Verb.FILTER, body).body)
        return answer["NodeNames"] or []


def pod(name: str, gpus: int, gang: str = "", least: int = 0, at: str = "", **more: Any) -> dict[str, Any]:
    """Make a pod: of a koordinator gang of so many where one is named, and bound where a node is."""
    asks = {"nvidia.com/gpu": str(gpus)}
    notes = {labels.KOORD_NAME: gang, labels.KOORD_MIN: str(least)} if gang else {}
    meta = {"name": name, "namespace": "default", "uid": name, "annotations": notes}
    container = {"name": "main", "resources": {"requests": asks, "limits": asks}}
    spec = {"schedulerName": "default-scheduler", "containers": [container], "nodeName": at}
    return {"metadata": {**meta, "creationTimestamp": more.pop("created", "2026-01-01T00:00:00Z")},
            "spec": {**spec, **more}}  # fmt: skip


def _say_nothing(_: Notice) -> None:
    """Ignore what the extender tells owners."""
