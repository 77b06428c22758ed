"""The streams of gangs once more, on a real kube-scheduler that asks our extender, with pods that come one by one.

Each gang's pods are created some milliseconds apart and shuffled, as no job controller promises an order; the next
gang comes when all are bound. What they cost a ring is held against the plan for the whole gang, made in memory.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from hack.bench.placement import streams, trickling
from hack.bench.placement.run import ours
from hack.bench.support.outcome import Outcome, Table, Target
from hack.controlplane import scheduler_config
from hack.controlplane.api import Api
from hack.controlplane.nodes import gpu_node
from hack.controlplane.plane import ControlPlane, free_ports
from turnout.kube import labels
from turnout.topology.cost import cost
from turnout.topology.fabric import Fabric

MAP = "default/node-topology-config"
GANGS = 40
BOUND_S = 60.0  # a gang's pods are all bound by then
_PODS = "/api/v1/namespaces/default/pods"


def run(quick: bool) -> Outcome:
    """Send the first gangs of a few streams through a real scheduler. quick: one seed and fewer gangs."""
    seeds, gangs = ((1,), 15) if quick else ((1, 2, 3), GANGS)
    rows = []
    for seed in seeds:
        events = streams.first(streams.committed()[seed], gangs)
        together = streams.replay(streams.fabric(), events, ours)
        print(f"seed {seed}", file=sys.stderr, flush=True)
        trickled = asyncio.run(_send(events, seed))
        rows.append((seed, statistics.fmean(together.total), statistics.fmean(trickled)))
    worse = sum(trickled > together for _, together, trickled in rows)
    title = f"ring crossings a gang, {gangs} gangs, pods {trickling.APART_S * 1e3:.0f} ms apart and shuffled"
    lines = [(str(seed), f"{together:.3f}", f"{trickled:.3f}") for seed, together, trickled in rows]
    return Outcome(
        title="stream: gangs that trickle in, on a real kube-scheduler",
        tables=(Table(title, ("seed", "planned whole", "as they landed"), lines),),
        figures={
            **{f"planned_{seed}": together for seed, together, _ in rows},
            **{f"landed_{seed}": trickled for seed, _, trickled in rows},
        },
        targets=(Target("seeds on which pods that trickle in cost a ring more", worse, "<=", 0),),
    )


async def _send(events: Sequence[int], seed: int) -> list[int]:
    """Return what each gang's ring costs."""
    tree, dice = streams.fabric(), random.Random(seed)
    plane = await asyncio.to_thread(lambda: ControlPlane().start())
    try:
        async with plane.api() as api:
            await _build(api, tree)
            await asyncio.to_thread(_start, plane)
            paid: list[int] = []
            sizes: list[int] = []
            for event in events:
                if event <= 0:
                    await asyncio.gather(*(api.delete(f"{_PODS}/gang-{-event}-{at}") for at in range(sizes[-event])))
                    continue
                nodes = await _come(api, len(sizes), event, dice)
                sizes.append(event)
                paid.append(cost(tree, [tree.index[node] for node in nodes]).total)
            return paid
    finally:
        await asyncio.to_thread(plane.stop)


async def _build(api: Api, tree: Fabric) -> None:
    lines = [f"{'.'.join(tree.paths[host])} {tree.paths[host][0]} {host}" for host in tree.hosts]
    meta = {"name": MAP.partition("/")[2], "namespace": "default"}
    data = {"topology_config": "\n".join(lines) + "\n"}
    await api.create_all([gpu_node(host, f"10.1.{at // 250}.{at % 250 + 1}") for at, host in enumerate(tree.hosts)])
    await api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


def _start(plane: ControlPlane) -> None:
    """Start our extender, and a scheduler in the shipped configuration that asks it."""
    port, health = free_ports(2)
    argv = [sys.executable, "-m", "turnout.scheduler_ext", "--kubeconfig", str(plane.kubeconfig), "--configmap", MAP]
    argv += ["--bind", f"127.0.0.1:{port}", "--metrics-bind", f"127.0.0.1:{health}", "--log-level", "warning"]
    plane.start_program("extender", argv, f"http://127.0.0.1:{health}/readyz")
    plane.start_scheduler(scheduler_config.shipped(f"http://127.0.0.1:{port}"))


async def _come(api: Api, number: int, size: int, dice: random.Random) -> list[str]:
    """Create a gang's pods one by one in any order, and return their nodes by rank once all are bound."""
    for index in dice.sample(range(size), size):
        await api.create(_pod(number, index, size))
        await asyncio.sleep(trickling.APART_S)

    def bound(pods: list[dict[str, Any]]) -> dict[str, str]:
        found = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}
        return found if len(found) == size and all(found.values()) else {}

    nodes = await api.until(f"{_PODS}?labelSelector=gang%3Dgang-{number}", bound, BOUND_S)
    return [nodes[f"gang-{number}-{index}"] for index in range(size)]


def _pod(number: int, index: int, size: int) -> dict[str, Any]:
    asks = {"nvidia.com/gpu": "8"}
    name = f"gang-{number}"
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": asks, "limits": asks}}
    notes = {labels.KOORD_NAME: name, labels.KOORD_MIN: str(size)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-{index}", "namespace": "default", "labels": {"gang": name}, "annotations": notes},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }
