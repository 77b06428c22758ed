"""Fixtures: a queue of sixteen GPUs under two leaf switches, four jobs, and the objects made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnout.cli.demo.lending.model import Player
from turnout.cli.demo.manifests import GPU, MAP_NAME, Raw
from turnout.kube import labels
from turnout.simulator.cluster.node_builder import Place, map_text
from turnout.topology.names import TEXT_KEY

NAMESPACE, QUEUE = "team", "team"
LEAVES, NODES_PER_LEAF, GPUS_PER_NODE = 2, 2, 4
GPUS = LEAVES * NODES_PER_LEAF * GPUS_PER_NODE

# Grows into what is idle; needs what A has been lent; fits only once B has left; may not be resized.
A, B, C = Player("A", 2, 12), Player("B", 6, 6), Player("C", 12, 12)
D = Player("D", 1, 4, restarts=True)
PLAYERS = (A, B, C, D)


def places() -> list[Place]:
    """The nodes, leaf by leaf."""
    found = []
    for number in range(LEAVES * NODES_PER_LEAF):
        path = ("spine-1", f"leaf-{number // NODES_PER_LEAF + 1}")
        found.append(Place(f"gpu-{number + 1}", f"10.30.0.{number + 1}", path))
    return found


def topology_map(where: Sequence[Place]) -> Raw:
    """The topology ConfigMap."""
    return {"metadata": {"name": MAP_NAME}, "data": {TEXT_KEY: map_text(where)}}


def queue() -> Raw:
    """The queue, which may have every GPU there is."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": QUEUE},
        "spec": {"weight": 1, "reclaimable": True, "capability": {GPU: str(GPUS)}},
        "status": {"state": "Open"},
    }


def job(player: Player) -> Raw:
    """The Volcano Job that its owner submits, at its least size."""
    container = {"name": "train", "image": "train", "resources": {"limits": {GPU: "1"}}}
    task: dict[str, Any] = {
        "name": "worker",
        "replicas": player.least,
        "minAvailable": player.least,
        "template": {"spec": {"containers": [container]}},
    }
    notes = {labels.MAX_WORKERS: str(player.most)} if player.elastic else {}
    spec: dict[str, Any] = {"minAvailable": player.least, "queue": QUEUE, "tasks": [task]}
    if player.restarts:
        spec["policies"] = [{"event": "PodEvicted", "action": "RestartJob"}]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": player.name, "annotations": notes},
        "spec": spec,
    }
