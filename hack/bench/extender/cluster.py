"""The cluster that the extender is measured on: nodes under leaves and spines, pods that stand there, gangs to come."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from turnout.kube import labels
from turnout.topology.names import YAML_KEY

NAMESPACE = "default"
MAP_NAMESPACE, MAP_NAME = "kube-system", "node-topology-config"
GPUS_PER_NODE = 8
HOSTS_PER_LEAF, LEAVES_PER_SPINE = 32, 16
GPU = "nvidia.com/gpu"

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gang:
    """One job of the stream."""

    name: str
    pods: int
    gpus: int  # of each pod
    tier: int = 0  # the required switch tier, 0 for a preference


def node_name(number: int) -> str:
    """Name a node with 43 characters, as clouds do. number: from 0."""
    return f"train-gpu-pool-a-{number:05d}.eu-central-9.internal"[:43]


def node(number: int, beat: int = 0) -> Raw:
    """Return a ready node of 8 GPUs, with the labels, addresses and images that real nodes have.

    number: of the node, which gives its name. beat: time of its last heartbeat; any number.
    """
    name = node_name(number)
    offers = {"cpu": "96", "memory": "1152Gi", "pods": "110", GPU: str(GPUS_PER_NODE), "ephemeral-storage": "800Gi"}
    marks = {labels.HOSTNAME: name, "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "z1"}
    return {
        "metadata": {"name": name, "labels": marks, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"cloud:///{number}"},
        "status": {
            "capacity": offers,
            "allocatable": offers,
            "addresses": [{"type": "Hostname", "address": name}],
            "conditions": [
                {"type": kind, "status": "True" if kind == "Ready" else "False", "lastHeartbeatTime": str(beat)}
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            ],
            "images": [{"names": [f"registry/image-{n}@sha256:{n:064x}"], "sizeBytes": n} for n in range(10)],
        },
    }


def topology_map(nodes: int) -> Raw:
    """Return the topology ConfigMap: 32 hosts below a leaf, 16 leaves below a spine."""
    head, tail = node_name(0).split("00000")
    lines = ["fabric:"]
    for leaf, first in enumerate(range(0, nodes, HOSTS_PER_LEAF)):
        if leaf % LEAVES_PER_SPINE == 0:
            lines.append(f"  spine-{leaf // LEAVES_PER_SPINE}:")
        last = min(first + HOSTS_PER_LEAF, nodes) - 1
        lines.append(f"    leaf-{leaf}: {head}[{first:05d}-{last:05d}]{tail}")
    return {"metadata": {"name": MAP_NAME}, "data": {YAML_KEY: "\n".join(lines) + "\n"}}


def busy_nodes(nodes: int, pods: int, rng: random.Random) -> list[int]:
    """Draw the node of each of `pods` running pods with one GPU; 40 % of the nodes stay empty.

    Raises ValueError if the other nodes have fewer than `pods` GPUs.
    """
    used = rng.sample(range(nodes), nodes * 3 // 5)
    return rng.sample([number for number in used for _ in range(GPUS_PER_NODE)], pods)


def pod(name: str, gpus: int, on: str = "", gang: Gang | None = None, index: int = 0) -> Raw:
    """Return a training pod of about 2 KB, as a job controller creates it. on: its node, "" for a pending pod.

    gpus: that it asks for. gang, index: its gang, None for none, and its rank there.
    """
    asks = {"cpu": str(gpus * 8), "memory": f"{gpus * 64}Gi", GPU: str(gpus)}
    env = [{"name": f"TRAINING_SETTING_{n:02d}", "value": f"value-{n}" * 3} for n in range(20)]
    notes = {labels.VOLCANO_GROUP: gang.name} if gang else {}
    if gang and gang.tier:
        notes |= {labels.TOPOLOGY: "required", labels.TOPOLOGY_TIER: str(gang.tier)}
    marks = {"app": "train", labels.VOLCANO_TASK_INDEX: str(index)} if gang else {"app": "serve"}
    container = {"name": "main", "image": "train:1", "env": env, "resources": {"requests": asks, "limits": asks}}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": marks, "annotations": notes},
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [container],
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "priority": 0,
            **({"nodeName": on} if on else {}),
        },
    }


def pod_group(gang: Gang) -> Raw:
    """Return the PodGroup that names a gang, as Volcano has it."""
    meta = {"name": gang.name, "namespace": NAMESPACE}
    named = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
    return {**named, "metadata": meta, "spec": {"minMember": gang.pods}}


def gangs(seed: int) -> Iterator[Gang]:
    """Yield endless gangs, each with its own name.

    Every fourth has to stay under one spine. Every twelfth is larger than the leaf that it asks for, and waits.
    """
    rng, number = random.Random(seed), 0
    while True:
        number += 1
        name = f"gang-{seed}-{number}"
        if number % 12 == 0:
            yield Gang(name, HOSTS_PER_LEAF + 1, GPUS_PER_NODE, 1)
            continue
        pods, gpus = rng.choice([(4, 8), (8, 1), (8, 4), (8, 8), (16, 8), (32, 2)])
        yield Gang(name, pods, gpus, 2 if number % 4 == 0 else 0)
