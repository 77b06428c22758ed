"""Streams of gangs on a real kube-scheduler: what each gang's ring costs, and how soon it is bound."""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hack.bench.placement import streams, trickling
from hack.controlplane import scheduler_config
from hack.controlplane.api import Api
from hack.controlplane.nodes import address, gpu_node
from hack.controlplane.plane import ControlPlane, free_ports
from turnout.kube import labels
from turnout.topology.distance import cost
from turnout.topology.fabric import Fabric

MAP = "default/node-topology-config"
BOUND_S = 60.0  # a gang's pods are all bound by then, or it has failed
PODS = "/api/v1/namespaces/default/pods"
_PATCHED = re.compile(r'^apiserver_request_total\{[^}]*resource="pods"[^}]*verb="PATCH"[^}]*\} (\S+)$', re.M)


@dataclass(slots=True)
class Sent:
    """One stream: crossings and hosts by rank of each gang, seconds from its last pod's creation to its last binding.

    failed: gangs not bound in time. obeyed, placed: pods on their nominated node, and pods counted. patches: of pods,
    by whomever. pods: bound ones.
    """

    crossings: list[int] = field(default_factory=list)
    hosts: list[list[int]] = field(default_factory=list)
    bound_s: list[float] = field(default_factory=list)
    failed: int = 0
    obeyed: float = 0.0
    placed: float = 0.0
    patches: float = 0.0
    pods: int = 0


@dataclass(frozen=True, slots=True)
class Words:
    """How a gang is written, and how it goes: pod(gang, rank, size), leave(api, gang, size)."""

    pod: Callable[[str, int, int], dict[str, Any]]
    leave: Callable[[Api, str, int], Awaitable[None]]


async def send(
    events: Sequence[int], seed: int | None, apart_s: float, gated: bool, release: str = "", *, asks: bool = False
) -> Sent:
    """Send one stream through a fresh control plane. gated: our nominator lifts gates. asks: the scheduler asks us.

    seed: of the order in which each gang's pods come; None for that of their ranks. release: of Kubernetes, as
    ControlPlane takes it.
    """
    tree, dice, found = streams.fabric(), None if seed is None else random.Random(seed), Sent()
    plane = await asyncio.to_thread(lambda: ControlPlane(release=release).start())
    try:
        async with plane.api() as api:
            await build(api, tree)
            await asyncio.to_thread(start_asking if asks else ControlPlane.start_scheduler, plane)
            health = await asyncio.to_thread(start_nominator, plane) if gated else 0
            await warm(api, gated)
            before = await patches(api)
            await follow(api, events, dice, apart_s, Words(partial(pod, gated=gated), _leave), found)
            found.patches = await patches(api) - before
            if health:
                await asyncio.sleep(0.5)  # the last bindings are counted
                found.obeyed, every = obeyed(health)
                found.placed = every
            return found
    finally:
        await asyncio.to_thread(plane.stop)


async def follow(
    api: Api, events: Sequence[int], dice: random.Random | None, apart_s: float, words: Words, found: Sent
) -> None:
    """Let the gangs of a stream come and leave, and note what each ring costs and when it was bound."""
    tree, sizes = streams.fabric(), list[int]()
    for event in events:
        if event <= 0:
            await words.leave(api, f"gang-{-event}", sizes[-event])
            continue
        sizes.append(event)
        gang = f"gang-{len(sizes) - 1}"
        try:
            nodes, bound_s = await come(api, gang, event, dice, apart_s, words.pod)
        except TimeoutError:
            found.failed += 1
            continue
        found.bound_s.append(bound_s)
        found.pods += event
        found.hosts.append([tree.index[nodes[f"{gang}-{at}"]] for at in range(event)])
        found.crossings.append(cost(tree, found.hosts[-1]).total)


async def _leave(api: Api, gang: str, size: int) -> None:
    await asyncio.gather(*(api.delete(f"{PODS}/{gang}-{at}") for at in range(size)))


async def warm(api: Api, gated: bool) -> None:
    """Let one pod come and go, so that everybody is connected and the nominator leads."""
    await api.create(pod("warm", 0, 1, gated))
    await api.until(PODS, lambda pods: bool(pods) and bool(pods[0]["spec"].get("nodeName")), BOUND_S)
    await api.delete(f"{PODS}/warm-0")


async def build(api: Api, tree: Fabric, labels_of: Callable[[str], Mapping[str, str]] = lambda _: {}) -> None:
    """Create the nodes of a fabric, and our map of it. labels_of: a host's, beside its own name."""
    lines = [f"{'.'.join(tree.paths[host])} {tree.paths[host][0]} {host}" for host in tree.hosts]
    meta = {"name": MAP.partition("/")[2], "namespace": "default"}
    data = {"topology_config": "\n".join(lines) + "\n"}
    nodes = (gpu_node(host, address(at), labels=labels_of(host)) for at, host in enumerate(tree.hosts))
    await api.create_all(nodes)
    await api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


def start_asking(plane: ControlPlane) -> None:
    """Start our extender, and a scheduler in the shipped configuration that asks it."""
    port, health = free_ports(2)
    argv = [sys.executable, "-m", "turnout.scheduler_ext", "--kubeconfig", str(plane.kubeconfig), "--configmap", MAP]
    argv += ["--bind", f"127.0.0.1:{port}", "--metrics-bind", f"127.0.0.1:{health}", "--log-level", "warning"]
    plane.start_program("extender", argv, f"http://127.0.0.1:{health}/readyz")
    plane.start_scheduler(scheduler_config.shipped(f"http://127.0.0.1:{port}"))


def start_nominator(plane: ControlPlane, *flags: str, name: str = "nominator") -> int:
    """Start our nominator with gates, as a program of this name. Returns the port of its metrics."""
    (health,) = free_ports(1)
    argv = [sys.executable, "-m", "turnout.scheduler_ext.nominator", "--kubeconfig", str(plane.kubeconfig), "--gates"]
    argv += ["--configmap", MAP, "--lease", "default/turnout-nominator", "--log-level", "warning"]
    argv += ["--metrics-bind", f"127.0.0.1:{health}", *flags]
    plane.start_program(name, argv, f"http://127.0.0.1:{health}/readyz")
    return health


async def come(
    api: Api,
    gang: str,
    size: int,
    dice: random.Random | None,
    apart_s: float,
    written: Callable[[str, int, int], dict[str, Any]],
) -> tuple[dict[str, str], float]:
    """Create a gang's pods. Return their nodes, and the seconds from the last creation to all bound.

    dice: for the order in which they come; None for that of their ranks. written: as in Words.pod.
    Raises TimeoutError when they are not bound in time.
    """
    order = range(size) if dice is None else dice.sample(range(size), size)
    pods = [written(gang, index, size) for index in order]
    if apart_s:
        for each in pods:
            await api.create(each)
            await asyncio.sleep(apart_s)
    else:
        await api.create_all(pods)
    return await bound_since(api, gang, size, time.monotonic() - apart_s)


async def bound_since(api: Api, gang: str, size: int, began_s: float) -> tuple[dict[str, str], float]:
    """Wait until a gang is bound. Return its pods' nodes, and the seconds since a moment of the monotonic clock."""

    def bound(pods_: list[dict[str, Any]]) -> dict[str, str]:
        nodes = {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods_}
        return nodes if len(nodes) == size and all(nodes.values()) else {}

    nodes = await api.until(f"{PODS}?labelSelector=gang%3D{gang}", bound, BOUND_S)
    return nodes, max(0.0, time.monotonic() - began_s)


def pod(gang: str, index: int, size: int, gated: bool, gpus: int = 8) -> dict[str, Any]:
    """Build a pod of a gang, behind our gate or not."""
    asks = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": asks, "limits": asks}}
    notes = {labels.KOORD_NAME: gang, labels.KOORD_MIN: str(size)}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    if gated:
        spec["schedulingGates"] = [{"name": labels.PLACEMENT_GATE}]
    meta = {"name": f"{gang}-{index}", "namespace": "default", "labels": {"gang": gang}, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


async def patches(api: Api) -> float:
    """Count the patches of pods that the API server has answered."""
    return sum(float(found) for found in _PATCHED.findall(str(await api.get("/metrics"))))


def obeyed(health: int) -> tuple[float, float]:
    """Return how many pods let go are bound on their nominated node, and how many are bound."""
    with urllib.request.urlopen(f"http://127.0.0.1:{health}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    series = dict(re.findall(r'^turnout_gate_nominations_total\{obeyed="(\w+)"\} (\S+)$', text, re.M))
    yes = float(series.get("true", 0))
    return yes, yes + float(series.get("false", 0))


APART_S = {"together": 0.0, "20 ms apart": trickling.APART_S}
