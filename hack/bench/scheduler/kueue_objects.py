"""Gangs, queues and the manager's settings in the words of Kueue 0.16, so that it places the benchmark's streams.

No I/O. The objects come from a release's manifests; here is only what differs on loopback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from hack.bench.scheduler.cluster import pod
from hack.controlplane.nodes import GPU
from turnout.topology.fabric import Fabric

NAMESPACE, SERVICE, SECRET = "kueue-system", "kueue-webhook-service", "kueue-webhook-server-cert"
BLOCK, RACK, HOST = "example.com/block", "example.com/rack", "kubernetes.io/hostname"
QUEUE = "gangs"
VERSION = "kueue.x-k8s.io/v1beta2"
_FLAVOR = {"example.com/gpus": "true"}  # a flavor with a topology must say by a label which nodes are its own
_RANK = "rank"  # label of a pod
_GROUP = "kueue.x-k8s.io"
_SETTINGS = "kueue-manager-config"
# What a manager outside a cluster needs: it runs as the administrator, so no roles; nobody asks for its own API.
_KINDS = ("Namespace", "Secret", "CustomResourceDefinition", "Service")
_HOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def objects_of_release(release: Iterable[Mapping[str, Any]], port: int) -> list[dict[str, Any]]:
    """Return the objects of a release that the manager needs, in the order of creation. Left out: roles, the
    Deployment, the visibility API, and every Service except that of the webhooks.

    release: its objects. port: of this machine, to which the webhooks are directed.
    """
    found: list[dict[str, Any]] = []
    for each in release:
        kind = each["kind"]
        if kind in _HOOKS:
            found.append({**each, "webhooks": [_at_port(hook, port) for hook in each["webhooks"]]})
        elif kind == "Service" and each["metadata"]["name"] == SERVICE:
            found.append({**each, "spec": {"ports": [{"port": port}]}})
        elif kind == "CustomResourceDefinition" and "webhook" in each["spec"].get("conversion", {}):
            conversion = each["spec"]["conversion"]
            conversion = {**conversion, "webhook": _at_port(conversion["webhook"], port)}
            found.append({**each, "spec": {**each["spec"], "conversion": conversion}})
        elif kind in _KINDS and kind != "Service":
            found.append(dict(each))
    order = (*_KINDS, *_HOOKS)
    return sorted(found, key=lambda each: order.index(each["kind"]))


def _at_port(hook: Mapping[str, Any], port: int) -> dict[str, Any]:
    client = hook["clientConfig"]
    return {**hook, "clientConfig": {**client, "service": {**client["service"], "port": port}}}


def settings(
    release: Iterable[Mapping[str, Any]], host: str, port: int, health: str, certificates: str
) -> dict[str, Any]:
    """Return the Configuration that a release ships, changed for one manager that serves loopback and reads only pods.

    release: its objects. host, port: of the manager's webhooks. health: host:port of its probes. certificates: the
    folder of its certificates. Its client may send 500 requests a second, as kube-controller-manager's does here.
    """
    (shipped,) = (
        each["data"]["controller_manager_config.yaml"]
        for each in release
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == _SETTINGS
    )
    return {
        **yaml.safe_load(shipped),
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": health},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": host, "port": port, "certDir": certificates},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 500, "burst": 1000},
        "integrations": {"frameworks": ["pod"]},
        # The visibility API would write its certificate to the root of the disk.
        "featureGates": {"TopologyAwareScheduling": True, "VisibilityOnDemand": False},
    }


def node_labels(tree: Fabric, host: str) -> dict[str, str]:
    """Return the labels of a host of the streams' fabric: its spine as block, its leaf as rack, and the flavor's label.

    Raises KeyError for a host that is not on the fabric.
    """
    block, rack = tree.paths[host]
    return {**_FLAVOR, BLOCK: block, RACK: rack}


def queues(gpus: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of one queue with a quota of `gpus` GPUs in one flavor with a topology, as (API path,
    object).
    """
    levels = [{"nodeLabel": label} for label in (BLOCK, RACK, HOST)]
    quota = {"name": GPU, "nominalQuota": str(gpus)}
    flavors = [{"name": QUEUE, "resources": [quota]}]
    spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}]}
    flavor = {"topologyName": QUEUE, "nodeLabels": _FLAVOR}
    return [
        ("topologies", _object("Topology", {"levels": levels})),
        ("resourceflavors", _object("ResourceFlavor", flavor)),
        ("clusterqueues", _object("ClusterQueue", spec)),
        ("namespaces/default/localqueues", _object("LocalQueue", {"clusterQueue": QUEUE})),
    ]


def _object(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": QUEUE}, "spec": dict(spec)}


def gang_pod(gang: str, index: int, size: int) -> dict[str, Any]:
    """Return a pod of a gang as a member of a pod group of Kueue, which prefers one rack and keeps the order of ranks.

    gang: its name. index: the pod's rank. size: pods of the gang.
    """
    member = pod(gang, index, size, gated=False)
    member["metadata"]["labels"] |= {f"{_GROUP}/queue-name": QUEUE, f"{_GROUP}/pod-group-name": gang, _RANK: str(index)}
    member["metadata"]["annotations"] = {
        f"{_GROUP}/pod-group-total-count": str(size),
        f"{_GROUP}/pod-group-pod-index-label": _RANK,
        f"{_GROUP}/podset-preferred-topology": RACK,
    }
    return member


def count_departed_pods(events: Sequence[int]) -> int:
    """Return the number of pods of the gangs that leave in a stream. The benchmark, not Kueue, patches each of them.

    events: in order, as placement/streams.py draws them: n > 0, a gang of n pods comes; n <= 0, gang number -n leaves.
    """
    sizes = [event for event in events if event > 0]
    return sum(sizes[-event] for event in events if event <= 0)
