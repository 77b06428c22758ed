"""The Kubernetes objects of the demo: nodes, the topology ConfigMap, busy pods, gangs in Volcano's dialect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turnout.cli.demo.scenario import GPUS_PER_NODE, DemoGang, DemoNode
from turnout.kube import labels
from turnout.topology.names import TEXT_KEY

NAMESPACE = "training"
OTHERS = "others"
MAP_NAMESPACE, MAP_NAME = "turnout-system", "node-topology-config"
GPU = "nvidia.com/gpu"
_CPUS_PER_GPU, _GIB_PER_GPU = 8, 64

Raw = dict[str, Any]


def node(place: DemoNode) -> Raw:
    """A ready GPU node. Its labels say nothing of the switches: only the map does."""
    offers = {
        "cpu": str((GPUS_PER_NODE + 1) * _CPUS_PER_GPU),
        "memory": f"{(GPUS_PER_NODE + 1) * _GIB_PER_GPU}Gi",
        "pods": "110",
        GPU: str(GPUS_PER_NODE),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": place.name, "labels": {labels.HOSTNAME: place.name}},
        "spec": {},
        "status": {
            "capacity": offers,
            "allocatable": offers,
            "addresses": [{"type": "InternalIP", "address": place.ip}, {"type": "Hostname", "address": place.name}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def map_text(places: Iterable[DemoNode]) -> str:
    """The map as the ConfigMap holds it: `asw psw ip`, one line a node."""
    return "".join(f"{place.leaf} {place.spine} {place.ip}\n" for place in places)


def topology_map(places: Iterable[DemoNode]) -> Raw:
    """The topology ConfigMap."""
    return {"metadata": {"name": MAP_NAME}, "data": {TEXT_KEY: map_text(places)}}


def busy_pod(number: int, on: str, gpus: int) -> Raw:
    """Somebody else's pod that stands on a node already."""
    pod = _pod(f"other-{number:02d}", gpus, {}, {})
    pod["spec"]["nodeName"] = on
    return pod


def pod_group(gang: DemoGang) -> Raw:
    """The PodGroup that names a gang, as Volcano has it."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": gang.name},
        "spec": {"minMember": gang.pods},
    }


def members(gang: DemoGang) -> tuple[Raw, ...]:
    """The gang's pods in the order of their index."""
    return tuple(
        _pod(
            f"{gang.name}-{index}",
            gang.gpus,
            {labels.VOLCANO_TASK_INDEX: str(index), "volcano.sh/job-name": gang.name},
            {labels.VOLCANO_GROUP: gang.name},
        )
        for index in range(gang.pods)
    )


def _pod(name: str, gpus: int, marks: dict[str, str], notes: dict[str, str]) -> Raw:
    asks = {"cpu": str(gpus * _CPUS_PER_GPU), "memory": f"{gpus * _GIB_PER_GPU}Gi", GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": marks, "annotations": notes},
        "spec": {"containers": [{"name": "train", "image": "train", "resources": {"requests": asks, "limits": asks}}]},
    }
