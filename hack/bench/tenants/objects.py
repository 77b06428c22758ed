"""Nodes, a map and pods as JSON, as an API server would show them."""

from __future__ import annotations

from typing import Any

from turnout.kube import labels

GPU = "nvidia.com/gpu"
GPUS_PER_NODE, HOSTS_PER_LEAF, LEAVES_PER_SPINE = 8, 40, 4
Raw = dict[str, Any]


def node_name(number: int) -> str:
    """Name a node by its number, from 0."""
    return f"gpu-{number:05d}"


def node(number: int) -> Raw:
    """Return a ready node of GPUS_PER_NODE GPUs. number: for its name."""
    offers = {"cpu": "96", "memory": "1152Gi", "pods": "110", GPU: str(GPUS_PER_NODE)}
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": node_name(number)}, "status": {"allocatable": offers, "conditions": ready}}


def map_lines(nodes: int) -> str:
    """Return the topology of as many nodes, a line a host."""
    leaf_of = [number // HOSTS_PER_LEAF for number in range(nodes)]
    return "\n".join(f"leaf{leaf} spine{leaf // LEAVES_PER_SPINE} {node_name(at)}" for at, leaf in enumerate(leaf_of))


def pod(
    namespace: str, gang: str, index: int, gpus: int, notes: dict[str, str], created_s: float = 0.0, life: int = 0
) -> Raw:
    """Return a pod of a koordinator gang.

    gpus: whole GPUs. notes: further annotations. created_s: of the creation, simulated seconds. life: number of earlier
    pods with its name. gang, index: name of its gang, and its rank there.
    """
    asks = {"cpu": "1", "memory": "1Gi", **({GPU: str(gpus)} if gpus else {})}
    seconds = int(created_s)
    stamp = f"2026-01-01T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"
    name = f"{gang}-{index}"
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}/{name}/{life}",
            "creationTimestamp": stamp,
            "annotations": {labels.KOORD_NAME: gang, **notes},
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "priority": 0,
            "containers": [{"name": "main", "resources": {"requests": dict(asks), "limits": dict(asks)}}],
        },
        "status": {"phase": "Pending"},
    }
