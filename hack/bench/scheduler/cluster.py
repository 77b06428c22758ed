"""A real control plane with GPU nodes and their map, and the programs of ours that a measurement needs beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hack.controlplane import scheduler_config
from hack.controlplane.api import Api
from hack.controlplane.nodes import address, gpu_node
from hack.controlplane.plane import ControlPlane, free_ports
from turnout.kube import labels
from turnout.topology.fabric import Fabric

MAP = "default/node-topology-config"
PODS = "/api/v1/namespaces/default/pods"
# The API server answers as fast as it can, so that its own limits are not what is measured.
UNLIMITED = (
    "--enable-priority-and-fairness=false",
    "--max-requests-inflight=0",
    "--max-mutating-requests-inflight=0",
)
VERBS = ("filter", "prioritize", "preempt")


def generated_switches(nodes: int, hosts_per_leaf: int, leaves_per_spine: int = 16) -> dict[str, tuple[str, str]]:
    """Return name -> (leaf, spine) of `nodes` nodes, node-00000 and on.

    hosts_per_leaf, leaves_per_spine: consecutive nodes share a leaf, consecutive leaves a spine.
    """
    leaf_of = [at // hosts_per_leaf for at in range(nodes)]
    return {
        f"node-{at:05d}": (f"asw-{leaf:04d}", f"psw-{leaf // leaves_per_spine:03d}") for at, leaf in enumerate(leaf_of)
    }


def switches_of(tree: Fabric) -> dict[str, tuple[str, str]]:
    """Return the leaf and the spine above each host of a fabric of two tiers."""
    return {host: (".".join(tree.paths[host]), tree.paths[host][0]) for host in tree.hosts}


async def build(
    api: Api, above: Mapping[str, tuple[str, str]], labels_of: Callable[[str], Mapping[str, str]] = lambda _: {}
) -> None:
    """Create nodes of 8 GPUs, and our topology ConfigMap with the switches above each.

    above: name of each node -> (leaf, spine). labels_of: returns further labels of a node.
    """
    await api.create_all(gpu_node(name, address(at), labels=labels_of(name)) for at, name in enumerate(above))
    meta = {"name": MAP.partition("/")[2], "namespace": "default"}
    lines = "".join(f"{leaf} {spine} {name}\n" for name, (leaf, spine) in above.items())
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"topology_config": lines}}
    await api.create(body)


def pod(gang: str, index: int, size: int, gated: bool = False, gpus: int = 8) -> dict[str, Any]:
    """Return a pod of a gang of `size`, with koordinator's annotations; it needs no PodGroup. gated: with our
    scheduling gate.

    gang: "" for a lone pod. index: its rank. gpus: that it asks for.
    """
    asks = {"nvidia.com/gpu": str(gpus)}  # no more: Kueue's queue covers nothing else
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": asks, "limits": asks}}
    notes = {labels.KOORD_NAME: gang, labels.KOORD_MIN: str(size)} if gang else {}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    if gated:
        spec["schedulingGates"] = [{"name": labels.PLACEMENT_GATE}]
    meta = {"name": f"{gang}-{index}", "namespace": "default", "labels": {"gang": gang}, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def start_extender(plane: ControlPlane, program: Sequence[str] = ()) -> int:
    """Start an extender on the control plane and return the port of its verbs.

    program: command that takes two ports as its last arguments; empty for ours.
    """
    port, health = free_ports(2)
    argv = [*program, str(port), str(health)]
    if not program:
        argv = [sys.executable, "-m", "turnout.scheduler_ext", f"--kubeconfig={plane.kubeconfig}", "--configmap", MAP]
        argv += [f"--bind=127.0.0.1:{port}", f"--metrics-bind=127.0.0.1:{health}", "--log-level=warning"]
    plane.start_program("extender", argv, f"http://127.0.0.1:{health}/readyz")
    return port


def start_nominator(plane: ControlPlane, *flags: str, name: str = "nominator") -> int:
    """Start our nominator on the control plane. Return the port of its metrics.

    flags: further command-line flags. name: of the program on the control plane.
    """
    (health,) = free_ports(1)
    argv = [sys.executable, "-m", "turnout.scheduler_ext.nominator", f"--kubeconfig={plane.kubeconfig}"]
    argv += ["--configmap", MAP, "--lease=default/turnout-nominator", "--log-level=warning"]
    argv += [f"--metrics-bind=127.0.0.1:{health}", *flags]
    plane.start_program(name, argv, f"http://127.0.0.1:{health}/readyz")
    return health


def start_scheduler(
    plane: ControlPlane, port: int | None, percentage: int | None = None, verbs: Sequence[str] = VERBS
) -> None:
    """Start kube-scheduler on the control plane with the configuration that Turnout ships.

    port: of the extender; None for no extender. percentage: percentageOfNodesToScore; None for the scheduler's default.
    verbs: that the extender is asked for.
    """
    config = scheduler_config.with_extender_url(f"http://127.0.0.1:{port or 1}")
    config.pop("percentageOfNodesToScore", None)
    if percentage is not None:
        config["percentageOfNodesToScore"] = percentage
    if port is None:
        del config["extenders"]
    else:
        for verb in set(VERBS) - set(verbs):
            config["extenders"][0].pop(f"{verb}Verb", None)
        config["extenders"][0]["httpTimeout"] = "5s"
    plane.start_scheduler(config)
