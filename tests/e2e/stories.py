"""Share between stories a cluster that invites bad placements, and the conditions to wait for."""

from __future__ import annotations

import asyncio

from hack.controlplane.errors import ApiError
from tests.kit import cluster

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"


async def tempt(stage, free_leaf_at=5):
    """Fill all leaves but one in part, so that whoever looks for the tightest hole one pod at a time splits a gang.

    Gives the leaf that is left whole.
    """
    by_leaf: dict[str, list[str]] = {}
    for node, ip in sorted(stage.ip_of.items()):
        by_leaf.setdefault(stage.leaf[ip], []).append(node)
    free_leaf = sorted(by_leaf)[free_leaf_at]
    strangers = [
        cluster.make_pod(f"stranger-{node}", 8, nodeName=node)
        for at, (leaf, nodes) in enumerate(sorted(by_leaf.items()))
        if leaf != free_leaf
        for node in nodes[: 1 + at % 5]
    ]
    await stage.submit(*strangers)
    return free_leaf


async def fill(stage, left):
    """Fill all but so many nodes of each leaf with strangers."""
    by_leaf = {}
    for node, ip in sorted(stage.ip_of.items()):
        by_leaf.setdefault(stage.leaf[ip], []).append(node)
    nodes = [node for each in by_leaf.values() for node in each[left:]]
    await stage.submit(*(cluster.make_pod(f"stranger-{node}", 8, nodeName=node) for node in nodes))


async def landed_where(stage, selector, size, within_s=60.0):
    """Wait until `size` pods with a label are bound; {pod: node}."""
    async with stage.plane.api() as api:
        return await api.until(f"{PODS}?labelSelector={selector}", cluster.bound(size), within_s)


async def refused(stage, gang, size, within_s=60.0):
    """Wait until the scheduler has refused `size` pods of a gang; {pod: message}."""
    async with stage.plane.api() as api:
        return await api.until(f"{PODS}?labelSelector=gang%3D{gang}", cluster.unschedulable(size), within_s)


async def bound_now(stage, gang):
    """The pods of a gang that are bound by now; {pod: node}."""
    async with stage.plane.api() as api:
        return cluster.bound(0)(await api.pods(selector=f"gang={gang}")) or {}


async def remove(stage, gang, size):
    """Delete the pods of a gang."""
    async with stage.plane.api() as api:
        for at in range(size):
            await api.delete(f"{PODS}/{gang}-{at}")
        await api.until(f"{PODS}?labelSelector=gang%3D{gang}", lambda pods: not pods)


async def create_priority_class(api, name, value):
    """Create a PriorityClass, and wait until admission gives its value to pods.

    Admission reads classes from a cache of its own, which learns of a new one some time after it was stored; a pod
    that names it before is refused. So the API server is asked with pods that are never stored.
    """
    meta = {"name": name}
    await api.create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": value})
    probe = cluster.make_pod("priority-probe", 0, priorityClassName=name)
    async with asyncio.timeout(30):
        while True:
            try:
                admitted = await api.create(probe, query="?dryRun=All")
                if admitted["spec"]["priority"] == value:
                    return
            except ApiError as error:
                if error.status != 403:
                    raise
