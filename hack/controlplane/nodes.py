"""GPU nodes as Kubernetes objects, as in a cluster of identical machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GPU = "nvidia.com/gpu"


def gpu_node(
    name: str,
    ip: str,
    gpus: int = 8,
    labels: Mapping[str, str] | None = None,
    cpu: str = "96",
    memory: str = "1Ti",
    pods: str = "110",
    gpu: str = GPU,
    taints: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return a ready node, as JSON, with the InternalIP `ip`.

    gpus: their number; 0 for a node without the resource. labels, taints: in addition to the host name's label. cpu,
    memory, pods: quantities. gpu: name of the resource of GPUs.
    """
    room = {
        "cpu": cpu,
        "memory": memory,
        "pods": pods,
        "ephemeral-storage": "1Ti",
        **({gpu: str(gpus)} if gpus else {}),
    }
    spec: dict[str, Any] = {"taints": list(taints)} if taints else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {
            "capacity": dict(room),
            "allocatable": dict(room),
            "addresses": [{"type": "InternalIP", "address": ip}, {"type": "Hostname", "address": name}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "made for a test"}],
        },
    }


def gpu_nodes(count: int, prefix: str = "node-", **each: Any) -> list[dict[str, Any]]:
    """Return `count` nodes node-000, node-001 ... with addresses from 10.1.0.1 on.

    prefix: in place of "node-". each: further arguments of `gpu_node`, the same for all.
    """
    width = max(3, len(str(count - 1)))
    return [gpu_node(f"{prefix}{index:0{width}d}", address(index), **each) for index in range(count)]


def address(index: int) -> str:
    """Return the InternalIP of node number `index`: 10.1.0.1 for node 0, with 250 nodes in each block of 256
    addresses.
    """
    block, host = divmod(index, 250)
    return f"10.{1 + block // 256}.{block % 256}.{host + 1}"
