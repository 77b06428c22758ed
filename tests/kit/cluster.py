"""Objects for tests against a real API server: pods and gangs in each dialect, nodes on a fabric, what one waits for.

Builders only; `hack.controlplane.api.Api` carries them there (`create_all`, `until`).
"""

from __future__ import annotations

from hack.controlplane.nodes import GPU, address, gpu_node
from turnout.kube import labels

IMAGE = "registry.k8s.io/pause:3.10"  # never pulled: kwok plays the kubelet


def make_node(name, ip, gpus=8, **more):
    """Build a ready GPU node; see hack.controlplane.nodes.gpu_node."""
    return gpu_node(name, ip, gpus, **more)


def make_fabric(leaves, hosts_per_leaf, shuffle=None, gpus=8, **more):
    """Build nodes on leaves and the text of the map: (nodes, topology_config).

    shuffle: a random.Random that deals the names over the fabric, so that neighbours by name are strangers by switch.
    The map's lines are "asw psw ip", two leaves to a spine.
    """
    count = leaves * hosts_per_leaf
    numbers = list(range(count))
    if shuffle is not None:
        shuffle.shuffle(numbers)
    entries, lines = [], []
    for place, number in enumerate(numbers):
        leaf = place // hosts_per_leaf
        ip = address(number)
        entries.append(make_node(f"node-{number:03d}", ip, gpus, **more))
        lines.append(f"asw-{leaf:02d} psw-{leaf // 2:02d} {ip}")
    entries.sort(key=lambda node: node["metadata"]["name"])
    return entries, "\n".join(lines) + "\n"


def leaf_of(topology_config):
    """Give {InternalIP: leaf} of a map's text."""
    rows = (line.split() for line in topology_config.splitlines())
    return {ip: asw for asw, _, ip in rows}


def make_pod(name, gpus=1, namespace="default", scheduler="default-scheduler", notes=None, marks=None, **spec):
    """Build a pod that asks for GPUs (0: a CPU-only one). notes: annotations, marks: labels, the rest goes to spec."""
    room = {"cpu": "1", "memory": "1Gi", **({GPU: str(gpus)} if gpus else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": notes or {}, "labels": marks or {}},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "worker", "image": IMAGE, "resources": {"requests": room, "limits": room}}],
            **spec,
        },
    }


def volcano_gang(name, size, gpus=8, **more):
    """Build the pods of a gang that names a Volcano PodGroup."""
    return _members(name, size, gpus, more, notes={labels.VOLCANO_GROUP: name})


def koordinator_gang(name, size, minimum=None, gpus=8, total=None, **more):
    """Build the pods of a koordinator gang, which says its min itself."""
    notes = {labels.KOORD_NAME: name, labels.KOORD_MIN: str(minimum or size)}
    if total:
        notes[labels.KOORD_TOTAL] = str(total)
    return _members(name, size, gpus, more, notes=notes)


def plugins_gang(name, size, gpus=8, **more):
    """Build the pods of a gang that names a scheduler-plugins PodGroup."""
    return _members(name, size, gpus, more, marks={labels.PLUGINS_POD_GROUP: name})


def kai_gang(name, size, gpus=8, **more):
    """Build the pods of a gang that names a PodGroup of KAI."""
    return _members(name, size, gpus, more, notes={labels.KAI_GROUP: name})


def native_gang(name, size, gpus=8, **more):
    """Build the pods of a gang that names a PodGroup of Kubernetes' own."""
    return _members(name, size, gpus, {**more, "schedulingGroup": {"podGroupName": name}})


def _members(name, size, gpus, more, notes=None, marks=None):
    notes = {**(notes or {}), **more.pop("notes", {})}
    marks = {**(marks or {}), **more.pop("marks", {})}
    return [
        make_pod(f"{name}-{index}", gpus, notes=dict(notes), marks={**marks, "gang": name}, **more)
        for index in range(size)
    ]


GROUPS = {"volcano": "scheduling.volcano.sh/v1beta1", "koordinator": "scheduling.sigs.k8s.io/v1alpha1"}
GROUPS["plugins"] = "scheduling.x-k8s.io/v1alpha1"
GROUPS["native"] = "scheduling.k8s.io/v1beta1"
GROUPS["kai"] = "scheduling.run.ai/v2alpha2"


def pod_group(dialect, name, minimum, namespace="default"):
    """Build the PodGroup of a dialect ("volcano", "koordinator", "plugins", "native", "kai")."""
    meta = {"name": name, "namespace": namespace}
    spec = {"schedulingPolicy": {"gang": {"minCount": minimum}}} if dialect == "native" else {"minMember": minimum}
    return {"apiVersion": GROUPS[dialect], "kind": "PodGroup", "metadata": meta, "spec": spec}


def pod_group_crd(dialect):
    """Build a CRD of ours for a dialect's PodGroups."""
    group, version = GROUPS[dialect].split("/")
    return plain_crd(group, version, "PodGroup", subresources={"status": {}})


def plain_crd(group, version, kind, scope="Namespaced", **more):
    """Build a CRD of ours for a kind of others: the group and kind are theirs, the schema takes anything."""
    plural = f"{kind.lower()}s"
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "schema": schema, **more}
    meta = {"name": f"{plural}.{group}"}
    if group.endswith("k8s.io"):  # protected: the API server wants to know who approved it
        meta["annotations"] = {"api-approved.kubernetes.io": "unapproved, for tests"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": meta,
        "spec": {"group": group, "scope": scope, "names": names, "versions": [served]},
    }


def indexed_job(name, size, gpus=8, namespace="default", scheduler="default-scheduler", notes=None):
    """Build an Indexed Job whose pods start together."""
    template = make_pod("unused", gpus, namespace, scheduler, notes, restartPolicy="Never")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": size,
            "template": {"metadata": {"annotations": notes or {}}, "spec": template["spec"]},
        },
    }


def pytorch_job(name, workers, gpus=8, namespace="default", scheduler="default-scheduler", notes=None, maximum=None):
    """Build a PyTorchJob of workers without a master; most: makes it elastic, from `workers` up."""
    pod = make_pod("unused", gpus, namespace, scheduler)
    pod["spec"]["containers"][0]["name"] = "pytorch"
    worker = {
        "replicas": workers,
        "restartPolicy": "OnFailure",
        "template": {"metadata": {"annotations": notes or {}}, "spec": pod["spec"]},
    }
    elastic = {"minReplicas": workers, "maxReplicas": maximum or workers, "rdzvBackend": "c10d"}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": worker}},
    }


def config_map(text, name="node-topology-config", namespace="default", key="topology_config"):
    """Build the ConfigMap that holds a map."""
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {key: text}}


def namespace(name):
    """Build a Namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def bound(count):
    """Return a question to a list of pods, answered {pod: node} once `count` of them are on nodes."""

    def nodes_of(pods):
        node_by_pod = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}
        return node_by_pod if len(node_by_pod) >= count else None

    return nodes_of


def in_phase(phase, count):
    """Return a question to a list of pods: True if `count` of them are in a phase."""
    return lambda pods: sum(pod.get("status", {}).get("phase") == phase for pod in pods) >= count


def unschedulable(count):
    """Return a question to a list of pods, answered {pod: message} once the scheduler has refused `count` of them."""

    def messages_of(pods):
        messages = {
            pod["metadata"]["name"]: condition.get("message", "")
            for pod in pods
            for condition in pod.get("status", {}).get("conditions") or ()
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        }
        return messages if len(messages) >= count else None

    return messages_of


def bound_token(plane, account, pod):
    """Ask for the token that the kubelet would give this pod: of its account, and bound to the pod itself."""
    meta = pod["metadata"]
    to = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600, "boundObjectRef": to},
    }
    path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
    return plane.request("POST", path, body)["status"]["token"]
