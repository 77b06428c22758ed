"""The demo's scenario: a fabric with shuffled names, some busy nodes, gangs that arrive and leave.

Contains the numbers and names of the demo, and makes the Kubernetes objects.
"""

from __future__ import annotations

import random
import string
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import permutations
from typing import Any

from turnout.kube import labels
from turnout.topology.names import TEXT_KEY

LEAVES, SPINES, NODES_PER_LEAF, GPUS_PER_NODE = 8, 2, 8, 8
MAX_GANGS = len(string.ascii_uppercase) - 1  # one letter each, and one for the last act
# (pods, GPUs a pod): whole nodes mostly, some larger than a leaf, some that share nodes.
_SHAPES = ((8, 8), (4, 8), (6, 8), (3, 8), (5, 8), (12, 8), (10, 8), (8, 4), (4, 4), (6, 4), (6, 2), (8, 1))
_FULLEST = 0.88  # of all GPUs; above it a gang has to leave before the next one comes


@dataclass(frozen=True, slots=True)
class DemoNode:
    """One node with its switches."""

    name: str
    ip: str
    leaf: str
    spine: str


@dataclass(frozen=True, slots=True)
class DemoGang:
    """A training job of the demo: `pods` pods of `gpus` GPUs each."""

    letter: str  # its character on the board
    pods: int
    gpus: int

    @property
    def name(self) -> str:
        return f"job-{self.letter.lower()}"

    @property
    def all_gpus(self) -> int:
        return self.pods * self.gpus


class ActKind(Enum):
    """The kinds of acts."""

    ARRIVES = "arrives"
    LEAVES = "leaves"


@dataclass(frozen=True, slots=True)
class Act:
    """The arrival or departure of a gang."""

    kind: ActKind
    gang: DemoGang


@dataclass(frozen=True, slots=True)
class Scene:
    """The whole scenario."""

    places: tuple[DemoNode, ...]  # leaf by leaf
    busy: tuple[tuple[str, int], ...]  # (node, GPUs) of pods that run from the beginning
    acts: tuple[Act, ...]


def scene(seed: int, gangs: int) -> Scene:
    """Return the scene of the demo: nodes, busy GPUs and acts. The same seed gives the same scene.

    gangs: number of gangs, 1 to MAX_GANGS.
    """
    rng = random.Random(seed)
    places = _places(rng)
    busy = _busy(rng, places)
    free = len(places) * GPUS_PER_NODE - sum(gpus for _, gpus in busy)
    return Scene(places, busy, _acts(rng, gangs, free, len(places) * GPUS_PER_NODE))


def _places(rng: random.Random) -> tuple[DemoNode, ...]:
    """Return the nodes with their leaves and spines.

    Their names do not show the cabling, as in a cluster that has grown: each leaf has names from everywhere.
    """
    count = LEAVES * NODES_PER_LEAF
    numbers = list(range(1, count + 1))
    rng.shuffle(numbers)
    return tuple(
        DemoNode(
            name=f"gpu-{number:02d}",
            ip=f"10.20.0.{number}",
            leaf=f"leaf-{at // NODES_PER_LEAF + 1}",
            spine=f"spine-{at // (NODES_PER_LEAF * LEAVES // SPINES) + 1}",
        )
        for at, number in enumerate(numbers)
    )


def _busy(rng: random.Random, places: tuple[DemoNode, ...]) -> tuple[tuple[str, int], ...]:
    chosen = rng.sample(places, len(places) // 6)
    return tuple((place.name, rng.choice((2, 4, 8, 8))) for place in chosen)


def _acts(rng: random.Random, gangs: int, free: int, all_gpus: int) -> tuple[Act, ...]:
    """Return the arrivals of gangs of random shapes, and departures of random running gangs, at most _FULLEST of the
    cluster full.

    gangs: their number, at most 26. free: GPUs free at the start. all_gpus: GPUs of the cluster.
    """
    acts: list[Act] = []
    running: list[DemoGang] = []
    for letter in string.ascii_uppercase[:gangs]:
        pods, gpus = rng.choice(_SHAPES)
        gang = DemoGang(letter, pods, gpus)
        while running and free - gang.all_gpus < (1 - _FULLEST) * all_gpus:
            ended_gang = running.pop(rng.randrange(len(running)))
            acts.append(Act(ActKind.LEAVES, ended_gang))
            free += ended_gang.all_gpus
        acts.append(Act(ActKind.ARRIVES, gang))
        running.append(gang)
        free -= gang.all_gpus
    return tuple(acts)


NAMESPACE = "training"
OTHERS = "others"
MAP_NAMESPACE, MAP_NAME = "turnout-system", "node-topology-config"
GPU = "nvidia.com/gpu"
_CPUS_PER_GPU, _GIB_PER_GPU = 8, 64

Raw = dict[str, Any]


def node(place: DemoNode) -> Raw:
    """Return a ready GPU node. Its labels do not name its switches: only the map does."""
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
    """Return the map of these nodes as the ConfigMap holds it: `asw psw ip`, one line a node."""
    return "".join(f"{place.leaf} {place.spine} {place.ip}\n" for place in places)


def topology_map(places: Iterable[DemoNode]) -> Raw:
    """Return the topology ConfigMap with the map of these nodes."""
    return {"metadata": {"name": MAP_NAME}, "data": {TEXT_KEY: map_text(places)}}


def busy_pod(number: int, on: str, gpus: int) -> Raw:
    """Return a pod of another team that has the node `on`. number: makes its name unique. gpus: that it holds."""
    pod = _pod(f"other-{number:02d}", gpus, {}, {})
    pod["spec"]["nodeName"] = on
    return pod


def pod_group(gang: DemoGang) -> Raw:
    """Return the gang's PodGroup, as Volcano defines it."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": gang.name},
        "spec": {"minMember": gang.pods},
    }


def members(gang: DemoGang) -> tuple[Raw, ...]:
    """Return the gang's pods in the order of their index."""
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
    """Return a pod that asks for GPUs, and for CPU and memory in proportion. marks: labels. notes: annotations."""
    asks = {"cpu": str(gpus * _CPUS_PER_GPU), "memory": f"{gpus * _GIB_PER_GPU}Gi", GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": marks, "annotations": notes},
        "spec": {"containers": [{"name": "train", "image": "train", "resources": {"requests": asks, "limits": asks}}]},
    }


@dataclass(frozen=True, slots=True)
class Recabling:
    """A move of nodes between leaves."""

    places: tuple[DemoNode, ...]  # the new map
    leaf: str  # which gains `nodes` free nodes of leaf `other`, for as many of its busy ones
    other: str
    nodes: int
    gang: DemoGang  # of whole nodes, as many as the leaf has free afterwards, more than any leaf had free before


def recable(places: tuple[DemoNode, ...], busy: Collection[str], letter: str) -> Recabling | None:
    """Return the largest gang for which moving cables between two leaves makes room, and the move.

    None if no move gives room for more nodes under one leaf than there is now. places: all nodes. busy: names of the
    nodes with any pod. letter: of the new gang.
    """
    free: dict[str, list[DemoNode]] = {place.leaf: [] for place in places}
    for place in places:
        if place.name not in busy:
            free[place.leaf].append(place)
    roomiest = max(map(len, free.values()))
    pairs = [
        (min(NODES_PER_LEAF, len(free[a]) + len(free[b])), a, b)
        for a, b in permutations(free, 2)
        if len(free[a]) >= len(free[b])
    ]
    size, leaf, other = max(pairs, key=lambda pair: pair[0])
    if size <= roomiest or size < 2:
        return None
    gains = free[other][: size - len(free[leaf])]
    leaving = [place for place in places if place.leaf == leaf and place.name in busy][: len(gains)]
    return Recabling(_swapped(places, gains, leaving), leaf, other, len(gains), DemoGang(letter, size, GPUS_PER_NODE))


def _swapped(places: tuple[DemoNode, ...], arriving: list[DemoNode], leaving: list[DemoNode]) -> tuple[DemoNode, ...]:
    """Return the nodes after each pair has exchanged its places, so that a leaf keeps its number of ports.

    arriving, leaving: nodes of the same number that exchange their leaves.
    """
    stands_for: dict[str, DemoNode] = {}
    for gain, give in zip(arriving, leaving, strict=True):
        stands_for[gain.name], stands_for[give.name] = give, gain
    moved = [stands_for.get(place.name, place) for place in places]
    return tuple(replace(place, name=new.name, ip=new.ip) for place, new in zip(places, moved, strict=True))
