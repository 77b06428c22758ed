"""A cluster whose every GPU is lent, as objects: nodes, elastic jobs with their pods, gangs that come and wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hack.controlplane.nodes import GPU, address, gpu_node
from turnout.kube import labels

Raw = dict[str, Any]
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
PER_NODE = 8


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """How large the cluster is. A gang asks for just what one job has lent, so that each causes one shrink."""

    jobs: int  # elastic ones, with a min of one worker
    workers: int  # pods of each job
    gpus: int  # of each pod
    others: int = 0  # pods that belong to no job

    @property
    def nodes(self) -> int:
        return -(-self.pods * self.gpus // PER_NODE)

    @property
    def pods(self) -> int:
        return self.jobs * self.workers + self.others

    @property
    def gang_pods(self) -> int:
        """Pods of one gang."""
        return self.workers - 1


def nodes(size: ClusterSize) -> list[Raw]:
    """Return every node."""
    return [gpu_node(_node(at), address(at)) for at in range(size.nodes)]


def jobs(size: ClusterSize) -> list[Raw]:
    """Return every elastic job, at its max."""
    return [_job(f"job-{at:05d}", size) for at in range(size.jobs)]


def pods(size: ClusterSize, objects: list[Raw]) -> Iterator[Raw]:
    """Yield every pod, bound to its node. objects: the jobs as the API server returned them. size.gpus divides 8."""
    places = (_node(at) for at in range(size.nodes) for _ in range(PER_NODE // size.gpus))
    for job, index in ((job, index) for job in objects for index in range(size.workers)):
        meta, template = job["metadata"], job["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        mark = {labels.JOB_INDEX: str(index)}
        yield _pod(
            f"{meta['name']}-{index}",
            size.gpus,
            next(places),
            labels={**template["metadata"]["labels"], **mark},  # by which the job selects its pods
            annotations=mark,
            ownerReferences=[owner],
        )
    for at in range(size.others):
        yield _pod(f"other-{at:05d}", size.gpus, next(places))


def gang(name: str, size: ClusterSize) -> list[Raw]:
    """Return the pending pods of a gang that no known controller owns, with koordinator's annotations; it has no
    PodGroup.
    """
    count = str(size.gang_pods)
    notes = {labels.KOORD_NAME: name, labels.KOORD_MIN: count, labels.KOORD_TOTAL: count}
    return [_pod(f"{name}-{rank}", size.gpus, annotations=notes) for rank in range(size.gang_pods)]


def group(name: str, size: ClusterSize, phase: str) -> Raw:
    """Return a PodGroup of Volcano in this phase, for a gang of `size.gang_pods` pods, with an owner."""
    asks = {GPU: str(size.gpus * size.gang_pods)}
    owner = {"apiVersion": "example.com/v1", "kind": "Training", "name": name, "uid": f"uid-of-{name}"}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]},  # it would make the pods
        "spec": {"minMember": size.gang_pods, "minResources": asks},
        "status": {"phase": phase},
    }


def members(name: str, size: ClusterSize, places: list[str]) -> list[Raw]:
    """Return the pods of the PodGroup `name`, one for each of `places`.

    places: the node of each pod, "" for a pending pod.
    """
    notes = {labels.VOLCANO_GROUP: name}
    return [_pod(f"{name}-{rank}", size.gpus, place, annotations=notes) for rank, place in enumerate(places)]


def group_crd() -> Raw:
    """Return the CRD of PodGroups without a schema and without the subresource for the status."""
    names = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": "v1beta1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "podgroups.scheduling.volcano.sh"},
        "spec": {"group": "scheduling.volcano.sh", "scope": "Namespaced", "names": names, "versions": [served]},
    }


def _node(number: int) -> str:
    return f"node-{number:05d}"


def _job(name: str, size: ClusterSize) -> Raw:
    """Return an elastic Indexed Job with `size.workers` workers, which may shrink to one."""
    notes = {labels.MIN_WORKERS: "1", labels.MAX_WORKERS: str(size.workers)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "annotations": notes},
        "spec": {
            "completionMode": "Indexed",
            "completions": size.workers,
            "parallelism": size.workers,
            "template": {"spec": {**_spec(size.gpus), "restartPolicy": "Never"}},
        },
    }


def _pod(name: str, gpus: int, place: str = "", **meta: Any) -> Raw:
    on = {"nodeName": place} if place else {}
    metadata = {"name": name, "namespace": "default", **meta}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**_spec(gpus), **on}}


def _spec(gpus: int) -> Raw:
    asks = {"cpu": "1", "memory": "1Gi", GPU: str(gpus)}
    container = {"name": "worker", "image": "train:1", "resources": {"requests": asks, "limits": asks}}
    return {"terminationGracePeriodSeconds": 0, "containers": [container]}
