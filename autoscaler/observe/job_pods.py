"""Reads the pods of a job as its kind labels them: the owner, if no reference names it, and the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from turnout.autoscaler.model import Worker
from turnout.jobs.model import Job, JobKey, JobKind
from turnout.jobs.pod_identity import DEFAULT_IDENTITY, PodIdentity, PodValues
from turnout.kube.objects import OwnerReference, Pod
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import unix_s

_GANG_SIZE_VARIABLES = ("PET_NNODES", "PET_NPROC_PER_NODE", "WORLD_SIZE")  # where a gang's size may stand

_CLAIMS: list[dict[str, Any]] = [{"persistentVolumeClaim": {}}]  # all that is kept of the volumes of a pod that waits


def slim(pod: Pod) -> Pod:
    """Drop from a pod, in place, what no decision reads, because tens of thousands of pods are kept."""
    claims = not pod.spec.node_name and any("persistentVolumeClaim" in volume for volume in pod.spec.volumes or ())
    pod.spec.volumes = _CLAIMS if claims else None
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        if container.env:
            container.env = [each for each in container.env if each.name in _GANG_SIZE_VARIABLES] or None
    return pod


def labels_and_annotations(pod: Pod) -> PodValues:
    """Return the labels and annotations of a pod in one mapping."""
    return {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}


def owned(pod: Pod, kinds: Iterable[JobKind], uids: Mapping[JobKey, str]) -> Pod:
    """Return the pod with only the owners that may speak for it. The job that its labels name comes first.

    kinds: those whose pods name their job. uids: of known jobs; an unknown job is named by its key.
    """
    marks = labels_and_annotations(pod)
    had = pod.metadata.owner_references or []
    refs = [ref for ref in had if ref.controller or _names(marks, ref)]
    for kind in kinds:
        if name := kind.pods.job(marks):
            key = JobKey(kind.kind, pod.metadata.namespace, name)
            uid = uids.get(key, str(key))
            refs = [OwnerReference(kind.kind, name, uid), *(ref for ref in refs if ref.uid not in (uid, str(key)))]
    if refs == had:
        return pod
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=refs))


def _names(marks: PodValues, ref: OwnerReference) -> bool:
    """True if the reference is to the ElasticJob that the pod's labels name.

    DLRover's master does not declare itself the controller of its pods.
    """
    return ref.kind == "ElasticJob" and ref.name in (marks.get("elasticjob-name"), marks.get("elasticjob.dlrover/name"))


def owner(pod: Pod, jobs: Mapping[str, Job]) -> Job | None:
    """Return the job of a pod: its controller, in its namespace, whose selector matches. jobs: by uid."""
    for ref in pod.metadata.owner_references or ():
        job = jobs.get(ref.uid)
        if job is not None and _meets(pod, job):
            return job
    return None


def _meets(pod: Pod, job: Job) -> bool:
    marks = pod.metadata.labels or {}
    return job.key.namespace == pod.metadata.namespace and all(marks.get(key) == text for key, text in job.selector)


def naming(kinds: Mapping[str, JobKind]) -> tuple[JobKind, ...]:
    """Return the kinds whose pods name their job."""
    return tuple(kind for kind in kinds.values() if kind.pods.job is not DEFAULT_IDENTITY.job)


def split(marks: PodIdentity, role: str, pods: Iterable[Pod]) -> tuple[list[Pod], list[Pod]]:
    """Return the workers of a job, and its pods of other roles. role: of a worker, "" if there are no other roles."""
    mine: list[Pod] = []
    rest: list[Pod] = []
    for pod in pods:
        theirs = marks.role(labels_and_annotations(pod), pod.metadata.name) if role else ""
        (mine if theirs in ("", role) else rest).append(pod)
    return mine, rest


def count_other_roles(roles: Sequence[tuple[PodShape, int]], pods: Iterable[PodShape]) -> tuple[int, ...]:
    """Count the pods of each other role that have a node, at most as many as the role has.

    roles: (shape, pods) by template. A pod differs from its template, because API servers add tolerations and a
    LimitRange adds requests. Equal shapes count first, then shapes of the same requests, then any.
    """
    left, counts = Counter(pods), [0] * len(roles)
    for alike in (_equal, _same_requests, _any):
        for at, (shape, most) in enumerate(roles):
            for each in left:
                if alike(each, shape):
                    matched = min(left[each], most - counts[at])
                    counts[at] += matched
                    left[each] -= matched
    return tuple(counts)


def _equal(pod: PodShape, template: PodShape) -> bool:
    return pod == template


def _same_requests(pod: PodShape, template: PodShape) -> bool:
    return pod.requests == template.requests


def _any(pod: PodShape, template: PodShape) -> bool:
    return True


def workers(marks: PodIdentity, pods: Iterable[Pod], row: Callable[[str], int | None]) -> tuple[Worker, ...]:
    """Return the workers of a job by index. row: returns the row of a node by its name."""
    found = [
        Worker(
            marks.index(labels_and_annotations(pod), pod.metadata.name),
            row(pod.spec.node_name),
            leaving=bool(pod.metadata.deletion_timestamp),
            since_s=unix_s(pod.status.start_time or pod.metadata.creation_timestamp) or 0.0,
            name=pod.metadata.name,
        )
        for pod in pods
    ]
    if not marks.index_is_order:
        return tuple(sorted(found, key=lambda worker: (worker.index, worker.since_s, worker.row or 0)))
    found.sort(key=lambda worker: (worker.leaving, worker.index, worker.since_s, worker.name))
    return tuple(replace(worker, index=at) for at, worker in enumerate(found))
