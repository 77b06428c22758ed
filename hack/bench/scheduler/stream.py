"""Streams of gangs on a real kube-scheduler: what each gang's ring costs, and how soon it is bound."""

from __future__ import annotations

import asyncio
import math
import random
import re
import statistics
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from hack.bench.placement import baselines, streams, trickling
from hack.bench.scheduler.cluster import (
    PODS,
    build,
    pod,
    start_extender,
    start_nominator,
    start_scheduler,
    switches_of,
)
from hack.bench.support.measure import ratio
from hack.bench.support.percentiles import nearest_rank
from hack.controlplane.api import Api
from hack.controlplane.plane import ControlPlane
from turnout.topology.fabric import ring_cost

# Our configuration of kube-scheduler sets it: with fewer nodes to choose from, the planned node may be missing.
SHIPPED_PERCENTAGE = 100
BOUND_S = 60.0  # a gang's pods are all bound by then, or it has failed
_PATCHED = re.compile(r'^apiserver_request_total\{[^}]*resource="pods"[^}]*verb="PATCH"[^}]*\} (\S+)$', re.M)


@dataclass(slots=True)
class StreamResult:
    """The results of one stream."""

    crossings: list[int] = field(default_factory=list)  # of the ring of each gang that was bound
    hosts: list[list[int]] = field(default_factory=list)  # host IDs by rank, of each gang that was bound
    bound_s: list[float] = field(default_factory=list)  # from the creation of a gang's last pod to its last binding
    failed_gangs: int = 0  # gangs that were not bound in time
    obeyed: float = 0.0  # pods that are on their nominated node
    nominated_pods: float = 0.0  # pods of which the nominator knows whether they are
    patches: float = 0.0  # of pods, by any client
    pods: int = 0  # that were bound


@dataclass(frozen=True, slots=True)
class StreamCell:
    """One way to place gangs, with one spacing of their pods, over all seeds."""

    way: str
    spacing: str
    kubernetes: str  # of the scheduler's binary
    sent: tuple[StreamResult, ...]

    @property
    def crossings(self) -> float:
        """Return the mean crossings of a gang; NaN if every gang failed."""
        return mean([each for one in self.sent for each in one.crossings])

    def bound_s(self, share: float) -> float:
        """Return a percentile of the time from a gang's last pod to its last binding, in seconds. share: 0 to 1."""
        return nearest_rank([each for one in self.sent for each in one.bound_s], share)

    @property
    def failed_gangs(self) -> int:
        """Return the number of gangs that were not bound in time."""
        return sum(one.failed_gangs for one in self.sent)

    @property
    def obeyed(self) -> float:
        """Return the share of nominations that the scheduler took."""
        return ratio(sum(one.obeyed for one in self.sent), sum(one.nominated_pods for one in self.sent))

    @property
    def patches(self) -> float:
        """Return the number of patches for each bound pod, by any client."""
        return sum(one.patches for one in self.sent) / max(1, sum(one.pods for one in self.sent))

    def with_first_seeds(self, seeds: int) -> Self:
        """Return the cell with the results of its first seeds only."""
        return replace(self, sent=self.sent[:seeds])


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN for no values."""
    return statistics.fmean(values) if values else math.nan


def events_of(seed: int, gangs: int) -> list[int]:
    """Return the events of the committed stream `seed`, up to its first `gangs` gangs."""
    return streams.first_gangs(streams.read_committed()[seed], gangs)


def best_fit(seeds: Sequence[int], gangs: int) -> float:
    """Return the mean crossings of a gang by best fit in memory, over the same streams."""
    tree = streams.fabric()
    runs = (streams.replay(tree, events_of(seed, gangs), baselines.best_fit) for seed in seeds)
    return statistics.fmean(crossed for run in runs for crossed in run.total)


@dataclass(frozen=True, slots=True)
class GangFunctions:
    """How a gang is written and deleted.

    pod(gang, rank, size) returns a pod. leave(api, gang, size) deletes all pods of the gang.
    """

    pod: Callable[[str, int, int], dict[str, Any]]
    leave: Callable[[Api, str, int], Awaitable[None]]


async def send(
    events: Sequence[int],
    seed: int | None,
    apart_s: float,
    gated: bool,
    release: str = "",
    *,
    with_extender: bool = False,
) -> StreamResult:
    """Send one stream to a new control plane, and return the results.

    seed: of the order in which each gang's pods come; None for the order of ranks. apart_s: seconds between two pods.
    gated: the pods have our gates, which our nominator lifts. release: of Kubernetes, as ControlPlane takes it.
    with_extender: the scheduler asks our extender. events: as `placement.streams.generate` returns them.
    """
    rng, found = None if seed is None else random.Random(seed), StreamResult()
    plane = await asyncio.to_thread(lambda: ControlPlane(release=release).start())
    try:
        async with plane.api() as api:
            await build(api, switches_of(streams.fabric()))
            await asyncio.to_thread(start_with_extender if with_extender else ControlPlane.start_scheduler, plane)
            health = await asyncio.to_thread(start_nominator, plane, "--gates") if gated else 0
            await warm(api, gated)
            before = await patches(api)
            await follow(api, events, rng, apart_s, GangFunctions(partial(pod, gated=gated), _leave), found)
            found.patches = await patches(api) - before
            if health:
                await asyncio.sleep(0.5)  # the last bindings are counted
                found.obeyed, found.nominated_pods = count_obeyed_nominations(health)
            return found
    finally:
        await asyncio.to_thread(plane.stop)


async def follow(
    api: Api,
    events: Sequence[int],
    rng: random.Random | None,
    apart_s: float,
    gang_functions: GangFunctions,
    found: StreamResult,
) -> None:
    """Create and delete the gangs of a stream, and record in `found` what each ring costs and when it was bound.

    rng, apart_s: as in `create_gang`. gang_functions: how a gang's pods are written and deleted. events: as
    `placement.streams.generate` returns them.
    """
    tree, sizes = streams.fabric(), list[int]()
    for event in events:
        if event <= 0:
            await gang_functions.leave(api, f"gang-{-event}", sizes[-event])
            continue
        sizes.append(event)
        gang = f"gang-{len(sizes) - 1}"
        try:
            nodes, bound_s = await create_gang(api, gang, event, rng, apart_s, gang_functions.pod)
        except TimeoutError:
            found.failed_gangs += 1
            continue
        found.bound_s.append(bound_s)
        found.pods += event
        found.hosts.append([tree.id_of_host[nodes[f"{gang}-{at}"]] for at in range(event)])
        found.crossings.append(ring_cost(tree, found.hosts[-1]).total)


async def _leave(api: Api, gang: str, size: int) -> None:
    await asyncio.gather(*(api.delete(f"{PODS}/{gang}-{at}") for at in range(size)))


async def warm(api: Api, gated: bool) -> None:
    """Create one pod, wait until it is bound, and delete it, so that all programs are connected and the nominator
    leads.

    gated: the pod has our gate. Raises TimeoutError if it is not bound within BOUND_S.
    """
    await api.create(pod("warm", 0, 1, gated))
    await api.until(PODS, lambda pods: bool(pods) and bool(pods[0]["spec"].get("nodeName")), BOUND_S)
    await api.delete(f"{PODS}/warm-0")


def start_with_extender(plane: ControlPlane) -> None:
    """Start our extender, and a scheduler in the shipped configuration that asks it."""
    start_scheduler(plane, start_extender(plane), SHIPPED_PERCENTAGE)


async def create_gang(
    api: Api,
    gang: str,
    size: int,
    rng: random.Random | None,
    apart_s: float,
    pod_of: Callable[[str, int, int], dict[str, Any]],
) -> tuple[dict[str, str], float]:
    """Create a gang's pods. Return (their nodes by name, seconds from the last creation until all are bound).

    gang: its name. size: its pods. rng: for the order in which they come; None for the order of ranks. apart_s: seconds
    between two pods. pod_of: as in GangFunctions.pod. Raises TimeoutError if the pods are not bound within BOUND_S.
    """
    order = range(size) if rng is None else rng.sample(range(size), size)
    pods = [pod_of(gang, index, size) for index in order]
    if apart_s:
        for each in pods:
            await api.create(each)
            await asyncio.sleep(apart_s)
    else:
        await api.create_all(pods)
    return await wait_until_bound(api, gang, size, time.monotonic() - apart_s)


async def wait_until_bound(api: Api, gang: str, size: int, began_s: float) -> tuple[dict[str, str], float]:
    """Wait until all pods of a gang are bound. Return (their nodes by name of the pod, seconds since `began_s`).

    size: number of its pods. began_s: monotonic. Raises TimeoutError after BOUND_S.
    """

    def nodes_if_bound(pods_: list[dict[str, Any]]) -> dict[str, str]:
        """Return the nodes by pod name once all are bound, {} before."""
        nodes = {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods_}
        return nodes if len(nodes) == size and all(nodes.values()) else {}

    nodes = await api.until(f"{PODS}?labelSelector=gang%3D{gang}", nodes_if_bound, BOUND_S)
    return nodes, max(0.0, time.monotonic() - began_s)


async def patches(api: Api) -> float:
    """Count the patches of pods that the API server has answered."""
    return sum(float(found) for found in _PATCHED.findall(str(await api.get("/metrics"))))


def count_obeyed_nominations(health: int) -> tuple[float, float]:
    """Return (pods bound on their nominated node, all bound pods that had a gate). health: port of the metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{health}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    series = dict(re.findall(r'^turnout_gate_bindings_total\{as_nominated="(\w+)"\} (\S+)$', text, re.M))
    yes = float(series.get("true", 0))
    return yes, yes + float(series.get("false", 0))


APART_S = {"together": 0.0, "20 ms apart": trickling.APART_S}
