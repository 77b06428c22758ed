"""Reads the pods of a job as its kind labels them: owner, index, reported step times, and whether they can be bound.

A tenant writes a pod's spec; only schedulers write its conditions. Obstacles that neither shows, such as an affinity
that no pod matches, show by room that stays unused (room_history.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from turnout.autoscaler.model import Worker
from turnout.jobs.annotations import points
from turnout.jobs.kinds.job_kind import DEFAULT_IDENTITY, JobKind, PodIdentity, PodValues
from turnout.jobs.model import BadJob, Job, JobKey
from turnout.jobs.scaling_curve import Curve, capped
from turnout.kube import labels
from turnout.kube.labels import PLACEMENT_GATE
from turnout.kube.objects import OwnerReference, Pod
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import unix_s

_GANG_SIZE_VARIABLES = ("PET_NNODES", "PET_NPROC_PER_NODE", "WORLD_SIZE")  # where a gang's size may stand

_CLAIMS: list[dict[str, Any]] = [{"persistentVolumeClaim": {}}]  # all that is kept of the volumes of a pod that waits


def drop_unused_fields(pod: Pod) -> Pod:
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


def with_owners(pod: Pod, kinds: Iterable[JobKind], uids: Mapping[JobKey, str]) -> Pod:
    """Return the pod with only the owners that may speak for it. The job that its labels name comes first.

    kinds: those whose pods name their job. uids: of known jobs; an unknown job is named by its key.
    """
    marks = labels_and_annotations(pod)
    had = pod.metadata.owner_references or []
    refs = [ref for ref in had if ref.controller or _names_elastic_job(marks, ref)]
    for kind in kinds:
        if name := kind.pods.job(marks):
            key = JobKey(kind.kind, pod.metadata.namespace, name)
            uid = uids.get(key, str(key))
            refs = [OwnerReference(kind.kind, name, uid), *(ref for ref in refs if ref.uid not in (uid, str(key)))]
    if refs == had:
        return pod
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=refs))


def _names_elastic_job(marks: PodValues, ref: OwnerReference) -> bool:
    """Return True if the reference is to the ElasticJob that the pod's labels name.

    DLRover's master does not declare itself the controller of its pods.
    """
    return ref.kind == "ElasticJob" and ref.name in (marks.get("elasticjob-name"), marks.get("elasticjob.dlrover/name"))


def owner(pod: Pod, jobs: Mapping[str, Job]) -> Job | None:
    """Return the job of a pod: its controller, in its namespace, whose selector matches. jobs: by uid."""
    for ref in pod.metadata.owner_references or ():
        job = jobs.get(ref.uid)
        if job is not None and _matches(pod, job):
            return job
    return None


def _matches(pod: Pod, job: Job) -> bool:
    marks = pod.metadata.labels or {}
    return job.key.namespace == pod.metadata.namespace and all(marks.get(key) == text for key, text in job.selector)


def kinds_naming_jobs(kinds: Mapping[str, JobKind]) -> tuple[JobKind, ...]:
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


USUAL_SCHEDULER = "default-scheduler"  # where a pod names none, as the API server has it
SCHEDULERS = (USUAL_SCHEDULER, "volcano", "koord-scheduler")
# kube-scheduler looks for claims before it looks at any node, so it says this however few GPUs are free.
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]{1,253})" not found')
_LOOKS_AT_ONCE = (USUAL_SCHEDULER, "koord-scheduler")  # Volcano looks once a PodGroup may go on


def unbindable(pod: Pod, schedulers: Collection[str]) -> str:
    """Return why no scheduler binds this pod now, "" if one may. schedulers: those that run in this cluster.

    Our own gate is no reason, because it is removed as soon as the gang has room.
    """
    if any(gate != {"name": PLACEMENT_GATE} for gate in pod.spec.scheduling_gates or ()):
        return f"pod {pod.metadata.name} waits behind a scheduling gate"
    name = pod.spec.scheduler_name or USUAL_SCHEDULER
    if name not in schedulers and not _was_tried(pod):
        return f"pod {pod.metadata.name} waits for scheduler {name[:63]!r}, which has never looked at it"
    return _missing_claim(pod, name)


def _missing_claim(pod: Pod, scheduler: str) -> str:
    """Return why a pod waits for a volume claim, "" if it does not.

    A claim exists if the scheduler does not report it as missing.
    """
    if not any("persistentVolumeClaim" in volume for volume in pod.spec.volumes or ()):
        return ""
    message = _unschedulable_message(pod)
    if message is None:
        unseen = scheduler in _LOOKS_AT_ONCE
        return f"pod {pod.metadata.name} claims a volume, and its scheduler has not looked for it yet" if unseen else ""
    missing = _NO_CLAIM.search(message)
    return f"pod {pod.metadata.name} claims volume {missing[1]!r}, which is not there" if missing else ""


def _was_tried(pod: Pod) -> bool:
    """Return True if a scheduler has reported that it found no node for the pod."""
    return _unschedulable_message(pod) is not None


def _unschedulable_message(pod: Pod) -> str | None:
    """Return why a scheduler found no node for the pod; None if no scheduler has tried.

    Only schedulers write conditions.
    """
    conditions = (each for each in pod.status.conditions or () if each.type == "PodScheduled")
    return next(
        (each.message for each in conditions if each.status == "False" and each.reason == "Unschedulable"), None
    )


MOST_POINTS = 64  # of a job


class Reports:
    """The last report for each size of each job, by the job's uid."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, float]] = {}

    def put_pod(self, uid: str, pod: Pod) -> None:
        """Store the report of a job's pod, `workers:seconds`. An unreadable report counts as none.

        The last MOST_POINTS sizes of a job are kept.
        """
        text = (pod.metadata.annotations or {}).get(labels.STEP_SECONDS)
        if text is None:
            return
        try:
            reported = points(text, labels.STEP_SECONDS)
        except BadJob:
            return
        known = self._seconds.setdefault(uid, {})
        for workers, seconds in reported:
            known.pop(workers, None)
            known[workers] = seconds
        while len(known) > MOST_POINTS:
            del known[next(iter(known))]

    def forget(self, uid: str) -> None:
        """Forget a deleted job."""
        self._seconds.pop(uid, None)

    def curve(self, uid: str, noted: Curve) -> Curve:
        """Return the speed of a job by size: the noted curve, updated with the reports of its pods."""
        now = self._seconds.get(uid)
        if not now:
            return noted
        points = {**dict(noted), **{workers: 1.0 / seconds for workers, seconds in now.items()}}
        return capped(tuple(sorted(points.items())[:MOST_POINTS]), 1.0)
