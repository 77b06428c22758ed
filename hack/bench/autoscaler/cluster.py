"""A full cluster of elastic Indexed Jobs as an API server shows it: nodes, jobs, pods, with what controllers write.

The objects have about the size of real ones, managedFields included.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hack.bench.extender import cluster as bench_objects
from hack.bench.extender.cluster import node_name
from turnout.kube import labels

Raw = dict[str, Any]
Change = tuple[str, str, Raw]  # (collection, word, object)
GPU, PER_NODE = bench_objects.GPU, bench_objects.GPUS_PER_NODE
NAMESPACES = 50
MAX_WORKERS = 6  # workers of a job
CREATED = "2026-01-01T00:00:00Z"
JOBS, PODS, NODES, QUOTAS = "/apis/batch/v1/jobs", "/api/v1/pods", "/api/v1/nodes", "/api/v1/resourcequotas"


@dataclass(slots=True)
class Cluster:
    """The present objects, by collection and uid. version: the newest resource version."""

    objects: dict[str, dict[str, Raw]] = field(
        default_factory=lambda: {each: {} for each in (JOBS, PODS, NODES, QUOTAS)}
    )
    version: int = 0

    def put(self, path: str, raw: Raw) -> Raw:
        """Set the next resource version in an object, store it in the collection `path` under its UID, and return
        it.
        """
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path][raw["metadata"]["uid"]] = raw
        return raw


def build(jobs: int, nodes: int, rng: random.Random, waiters: int = 0) -> Cluster:
    """Return a cluster whose nodes are filled with jobs.

    The jobs have up to MAX_WORKERS workers of 1, 2, 4 or 8 GPUs; a job for which there is no room is left out. waiters:
    number of further jobs, of which no pod has a node. rng: draws the sizes.
    """
    cluster = Cluster()
    for number in range(nodes):
        cluster.put(NODES, node(number))
    for number in range(NAMESPACES):
        cluster.put(QUOTAS, quota(f"team-{number}", nodes * PER_NODE // NAMESPACES * 2))
    for number, (minimum, gpus, on) in enumerate(fill_jobs(jobs, nodes, rng)):
        job = cluster.put(JOBS, indexed_job(number, len(on), minimum, MAX_WORKERS, gpus))
        for index, at in enumerate(on):
            cluster.put(PODS, worker(job, index, gpus, at))
    for number in range(jobs, jobs + waiters):
        job = cluster.put(JOBS, indexed_job(number, 2, 2, 2, PER_NODE))
        for index in range(2):
            cluster.put(PODS, worker(job, index, PER_NODE, None))
    return cluster


def fill_jobs(jobs: int, nodes: int, rng: random.Random) -> list[tuple[int, int, list[int]]]:
    """Return (minimum, GPUs of a worker, number of each worker's node) of every job that got a worker.

    Each of `jobs` jobs gets up to two workers; then they grow while there is room, as in a cluster that lends idle
    GPUs. nodes: their number. rng: draws the minimum and the GPUs.
    """
    room, filled_nodes = _Room(nodes), list[tuple[int, int, list[int]]]()
    for _ in range(jobs):
        minimum, gpus = rng.randint(1, 2), rng.choice((1, 2, 4, 8))
        filled_nodes.append((minimum, gpus, [at for _ in range(2) if (at := room.take(gpus)) is not None]))
    while True:
        grew = False
        for _, gpus, on in filled_nodes:
            if len(on) < MAX_WORKERS and (at := room.take(gpus)) is not None:
                on.append(at)
                grew = True
        if not grew:
            return [each for each in filled_nodes if each[2]]


class _Room:
    """Gives out the GPUs of `nodes` nodes, which are all free at first."""

    def __init__(self, nodes: int) -> None:
        self._by_free: dict[int, deque[int]] = {free: deque() for free in range(PER_NODE + 1)}
        self._by_free[PER_NODE].extend(range(nodes))

    def take(self, gpus: int) -> int | None:
        """Take `gpus` GPUs of the fullest node with enough free GPUs. Return its number; None if there is none."""
        for free in range(gpus, PER_NODE + 1):
            if self._by_free[free]:
                number = self._by_free[free].popleft()
                self._by_free[free - gpus].append(number)
                return number
        return None


def node(number: int, beat: int = 0) -> Raw:
    """Return a ready node of 8 GPUs, with all metadata that an API server returns. beat: number of its heartbeat."""
    record = bench_objects.node(number, beat)
    record["metadata"] |= _meta(node_name(number), "", f"n-{number}")
    return record


def quota(namespace: str, gpus: int) -> Raw:
    """Return the ResourceQuota of one team, for `gpus` GPUs. namespace: of the team."""
    return {"metadata": _meta("gpus", namespace, f"q-{namespace}"), "spec": {"hard": {f"requests.{GPU}": str(gpus)}}}


def indexed_job(number: int, size: int, minimum: int, maximum: int, gpus: int) -> Raw:
    """Return an elastic Indexed Job with `size` workers.

    number: its name and namespace follow from it. gpus: of each worker. minimum, maximum: bounds of its workers.
    """
    meta = _meta(f"job-{number:05d}", f"team-{number % NAMESPACES}", f"j-{number}")
    meta["annotations"] = {labels.MIN_WORKERS: str(minimum), labels.MAX_WORKERS: str(maximum)}
    meta["generation"] = 1
    return {
        "metadata": meta,
        "spec": {
            "parallelism": size,
            "completions": size,
            "completionMode": "Indexed",
            "backoffLimit": 6,
            "template": {"metadata": {"labels": {"app": "train"}}, "spec": pod_spec(gpus)},
        },
        "status": {"active": size, "startTime": CREATED, "ready": size},
    }


def worker(job: Raw, index: int, gpus: int, on: int | None, life: int = 0) -> Raw:
    """Return one pod of a job. index: in the job. gpus: of the pod.

    on: number of its node, None for a pending pod. life: number of earlier pods with its index.
    """
    owner = job["metadata"]
    name = f"{owner['name']}-{index}-{life:05d}"
    marks = {"batch.kubernetes.io/job-name": owner["name"], "job-name": owner["name"], labels.JOB_INDEX: str(index)}
    meta = _meta(name, owner["namespace"], f"{owner['uid']}-{index}-{life}")
    meta |= {"labels": {"app": "train", **marks}, "annotations": {labels.JOB_INDEX: str(index)}}
    meta["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": owner["name"], "uid": owner["uid"], "controller": True}
    ]
    spec = pod_spec(gpus)
    return {
        "metadata": meta,
        "spec": spec if on is None else {**spec, "nodeName": node_name(on)},
        "status": {"phase": "Pending" if on is None else "Running", "conditions": [], "podIP": "10.9.8.7"},
    }


def pod_spec(gpus: int) -> Raw:
    """Return the spec of a training pod, with environment, mounts and a toleration."""
    return {**bench_objects.pod("", gpus)["spec"], "restartPolicy": "Never"}


def _meta(name: str, namespace: str, uid: str) -> Raw:
    """Return metadata as large as a real object's, with managedFields. namespace: "" for none. uid: the object's."""
    fields: dict[str, Raw] = {f"f:field-{n}": {} for n in range(30)}
    wrote = [
        {"manager": who, "operation": "Update", "apiVersion": "v1", "time": CREATED, "fieldsV1": {"f:spec": fields}}
        for who in ("kube-controller-manager", "kubelet")
    ]
    named = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {**named, "uid": uid, "creationTimestamp": CREATED, "managedFields": wrote}


def changes(cluster: Cluster, rng: random.Random) -> Iterator[Change]:
    """Yield changes of the cluster without end: pods report or are replaced, jobs' statuses change, nodes send
    heartbeats.

    Each is (collection, type of the watch event, object); it is also stored in `cluster`.
    """
    pods, jobs = ([*cluster.objects[path]] for path in (PODS, JOBS))
    numbers, lives = len(cluster.objects[NODES]), 0
    while True:
        lives += 1
        draw = rng.random()
        if draw < 0.5:
            raw = cluster.objects[PODS][rng.choice(pods)]
            report = {"type": "Ready", "status": "True", "lastTransitionTime": str(lives)}
            yield PODS, "MODIFIED", cluster.put(PODS, {**raw, "status": {**raw["status"], "conditions": [report]}})
        elif draw < 0.7:
            yield from _replace_pod(cluster, pods, rng, lives)
        elif draw < 0.85:
            raw = cluster.objects[JOBS][rng.choice(jobs)]
            yield JOBS, "MODIFIED", cluster.put(JOBS, {**raw, "status": {**raw["status"], "failed": lives}})
        else:
            yield NODES, "MODIFIED", cluster.put(NODES, node(rng.randrange(numbers), lives))


def _replace_pod(cluster: Cluster, pods: list[str], rng: random.Random, generation: int) -> Iterator[Change]:
    """Yield the changes that replace a random pod: it is deleted, created with the same index, and bound.

    pods: uids of all pods, in which the new pod's replaces the old one's. generation: part of the new pod's name.
    """
    index = rng.randrange(len(pods))
    removed = cluster.objects[PODS].pop(pods[index])
    cluster.version += 1
    removed = {**removed, "metadata": {**removed["metadata"], "resourceVersion": str(cluster.version)}}
    yield PODS, "DELETED", removed
    stem = removed["metadata"]["name"].rpartition("-")[0]
    meta = {
        **removed["metadata"],
        "name": f"{stem}-{generation:05d}",
        "uid": f"{removed['metadata']['uid'][:20]}-{generation}",
    }
    spec = {key: value for key, value in removed["spec"].items() if key != "nodeName"}
    pods[index] = meta["uid"]
    yield PODS, "ADDED", cluster.put(PODS, {**removed, "metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    after = {**removed, "metadata": dict(meta)}
    yield PODS, "MODIFIED", cluster.put(PODS, after)
