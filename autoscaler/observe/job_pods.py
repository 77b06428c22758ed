"""Keep the pods by their owners, and read them as their kind labels them: index, step times, whether they can be bound.

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
from turnout.jobs.model import BadJob, Curve, Job, JobKey, capped
from turnout.kube import labels
from turnout.kube.labels import PLACEMENT_GATE
from turnout.kube.objects import OwnerReference, Pod
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import unix_s

_GANG_SIZE_VARIABLES = ("PET_NNODES", "PET_NPROC_PER_NODE", "WORLD_SIZE")  # where a gang's size may stand

# Stands for the volumes of a waiting pod that has claims: only their existence matters.
_CLAIMS: list[dict[str, Any]] = [{"persistentVolumeClaim": {}}]


def drop_unused_fields(pod: Pod) -> Pod:
    """Drop the fields that no decision reads from a pod, in place, and return it.

    Tens of thousands of pods are kept in memory.
    """
    claims = not pod.spec.node_name and any("persistentVolumeClaim" in volume for volume in pod.spec.volumes or ())
    pod.spec.volumes = _CLAIMS if claims else None
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        if container.env:
            container.env = [each for each in container.env if each.name in _GANG_SIZE_VARIABLES] or None
    return pod


def labels_and_annotations(pod: Pod) -> PodValues:
    """Return the labels and annotations of a pod in one new mapping. An annotation goes before a label of the same
    key.
    """
    return {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}


def with_owners(pod: Pod, kinds: Iterable[JobKind], uids: Mapping[JobKey, str]) -> Pod:
    """Return the pod with only the owners that count: controllers, and jobs that its labels name, which come first.

    The pod itself is not changed, and is returned if nothing has to change. kinds: kinds whose pods name their job.
    uids: job -> uid of known jobs; an unknown job gets its key, as text, as uid.
    """
    values = labels_and_annotations(pod)
    before = pod.metadata.owner_references or []
    refs = [ref for ref in before if ref.controller or _names_elastic_job(values, ref)]
    for kind in kinds:
        if name := kind.pods.job(values):
            key = JobKey(kind.kind, pod.metadata.namespace, name)
            uid = uids.get(key, str(key))
            refs = [OwnerReference(kind.kind, name, uid), *(ref for ref in refs if ref.uid not in (uid, str(key)))]
    if refs == before:
        return pod
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=refs))


def _names_elastic_job(values: PodValues, ref: OwnerReference) -> bool:
    """Return True if the reference is to the ElasticJob that the pod's labels name.

    DLRover's master does not declare itself the controller of its pods.
    """
    return ref.kind == "ElasticJob" and ref.name in (
        values.get("elasticjob-name"),
        values.get("elasticjob.dlrover/name"),
    )


def job_of(pod: Pod, jobs: Mapping[str, Job]) -> Job | None:
    """Return the job of a pod: its first owner that is a job in its namespace whose selector matches; None without one.

    jobs: by uid.
    """
    for ref in pod.metadata.owner_references or ():
        job = jobs.get(ref.uid)
        if job is not None and _matches(pod, job):
            return job
    return None


def _matches(pod: Pod, job: Job) -> bool:
    """Return True if a pod is in the namespace of a job, and has the labels of its selector."""
    pod_labels = pod.metadata.labels or {}
    return job.key.namespace == pod.metadata.namespace and all(
        pod_labels.get(key) == text for key, text in job.selector
    )


def kinds_naming_jobs(kinds: Mapping[str, JobKind]) -> tuple[JobKind, ...]:
    """Return the kinds whose pods name their job."""
    return tuple(kind for kind in kinds.values() if kind.pods.job is not DEFAULT_IDENTITY.job)


def split_by_role(identity: PodIdentity, role: str, pods: Iterable[Pod]) -> tuple[list[Pod], list[Pod]]:
    """Return (the workers of a job, its pods of other roles). A pod without a role is a worker.

    identity: how its kind labels pods. role: of the workers; "" if the kind has no other roles.
    """
    worker_pods: list[Pod] = []
    other_pods: list[Pod] = []
    for pod in pods:
        pod_role = identity.role(labels_and_annotations(pod), pod.metadata.name) if role else ""
        (worker_pods if pod_role in ("", role) else other_pods).append(pod)
    return worker_pods, other_pods


def count_other_roles(roles: Sequence[tuple[PodShape, int]], pods: Iterable[PodShape]) -> tuple[int, ...]:
    """Return how many pods with a node each role has, in the order of `roles`, at most as many as the role has.

    roles: (shape of the template, pods of the role). pods: shapes of the pods with a node. A pod differs from its
    template, because API servers add tolerations and a LimitRange adds requests: equal shapes count first, then shapes
    of the same requests, then any.
    """
    if not roles:
        return ()
    remaining, counts = Counter(pods), [0] * len(roles)
    for are_alike in (_equal, _same_requests, _any):
        for role_index, (shape, max_pods) in enumerate(roles):
            for pod in remaining:
                if are_alike(pod, shape):
                    matched = min(remaining[pod], max_pods - counts[role_index])
                    counts[role_index] += matched
                    remaining[pod] -= matched
    return tuple(counts)


def _equal(pod: PodShape, template: PodShape) -> bool:
    return pod == template


def _same_requests(pod: PodShape, template: PodShape) -> bool:
    return pod.requests == template.requests


def _any(pod: PodShape, template: PodShape) -> bool:
    return True


def workers(identity: PodIdentity, pods: Iterable[Pod], row: Callable[[str], int | None]) -> tuple[Worker, ...]:
    """Return the workers of a job by index.

    For a kind whose indexes may have gaps (`identity.index_is_order`), the workers are numbered anew from 0 in their
    order, terminating ones last. identity: how the job's kind labels pods. pods: its workers' pods. row: returns the
    row of a node by its name, None for "".
    """
    pods_as_workers = [
        Worker(
            identity.index(labels_and_annotations(pod), pod.metadata.name),
            row(pod.spec.node_name),
            leaving=bool(pod.metadata.deletion_timestamp),
            since_s=unix_s(pod.status.start_time or pod.metadata.creation_timestamp) or 0.0,
            name=pod.metadata.name,
        )
        for pod in pods
    ]
    if not identity.index_is_order:
        return tuple(sorted(pods_as_workers, key=lambda worker: (worker.index, worker.since_s, worker.row or 0)))
    pods_as_workers.sort(key=lambda worker: (worker.leaving, worker.index, worker.since_s, worker.name))
    return tuple(
        worker if worker.index == index else replace(worker, index=index)
        for index, worker in enumerate(pods_as_workers)
    )


USUAL_SCHEDULER = "default-scheduler"  # of a pod that names no scheduler
SCHEDULERS = (USUAL_SCHEDULER, "volcano", "koord-scheduler")
# kube-scheduler checks claims before any node, so it writes this message however few GPUs are free.
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]{1,253})" not found')
# Schedulers that check a pod at once. Volcano checks it only after it has admitted the PodGroup.
_IMMEDIATE_SCHEDULERS = (USUAL_SCHEDULER, "koord-scheduler")


def unbindable_reason(pod: Pod, schedulers: Collection[str]) -> str:
    """Return why no scheduler can bind this pod now, "" if one may. schedulers: those that run in this cluster.

    Our own scheduling gate is no reason, because it is removed as soon as the gang has room.
    """
    if any(gate != {"name": PLACEMENT_GATE} for gate in pod.spec.scheduling_gates or ()):
        return f"pod {pod.metadata.name} waits behind a scheduling gate"
    name = pod.spec.scheduler_name or USUAL_SCHEDULER
    if name not in schedulers and not _was_tried(pod):
        return f"pod {pod.metadata.name} waits for scheduler {name[:63]!r}, which has never tried it"
    return _missing_claim(pod, name)


def _missing_claim(pod: Pod, scheduler: str) -> str:
    """Return why a pod waits for a volume claim, "" if it does not. scheduler: the name of the pod's scheduler.

    A claim exists if the scheduler has tried the pod and does not report the claim as missing. Volcano tries a pod
    late: before that nothing is missing.
    """
    if not any("persistentVolumeClaim" in volume for volume in pod.spec.volumes or ()):
        return ""
    message = _unschedulable_message(pod)
    if message is None:
        not_tried = scheduler in _IMMEDIATE_SCHEDULERS
        return (
            f"pod {pod.metadata.name} claims a volume, and its scheduler has not looked for it yet" if not_tried else ""
        )
    missing = _NO_CLAIM.search(message)
    return f"pod {pod.metadata.name} claims volume {missing[1]!r}, which is not there" if missing else ""


def _was_tried(pod: Pod) -> bool:
    """Return True if a scheduler has reported that it found no node for the pod."""
    return _unschedulable_message(pod) is not None


def _unschedulable_message(pod: Pod) -> str | None:
    """Return the message of a scheduler that found no node for the pod; None if no scheduler has reported that."""
    conditions = (each for each in pod.status.conditions or () if each.type == "PodScheduled")
    return next(
        (each.message for each in conditions if each.status == "False" and each.reason == "Unschedulable"), None
    )


MAX_POINTS = 64  # sizes of one job whose speed is kept


class StepTimeReports:
    """The last reported seconds per step of each job at each size, by the job's uid."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, float]] = {}  # uid -> workers -> seconds per step

    def put_pod(self, uid: str, pod: Pod) -> None:
        """Store the step times that a job's pod reports: annotation STEP_SECONDS, pairs `workers:seconds`. uid: of the
        job.

        A pod without a report, or with an unreadable one, changes nothing. The MAX_POINTS sizes that were reported last
        are kept.
        """
        report = (pod.metadata.annotations or {}).get(labels.STEP_SECONDS)
        if report is None:
            return
        try:
            reported = points(report, labels.STEP_SECONDS)
        except BadJob:
            return
        known = self._seconds.setdefault(uid, {})
        for workers, seconds in reported:
            known.pop(workers, None)
            known[workers] = seconds
        while len(known) > MAX_POINTS:
            del known[next(iter(known))]

    def forget(self, uid: str) -> None:
        """Forget a deleted job by its uid."""
        self._seconds.pop(uid, None)

    def curve(self, uid: str, noted: Curve) -> Curve:
        """Return the speed of a job by size, in steps per second: the points of `noted` and the reported ones.

        Of a size that has both, the reported point counts. Speeds rise at most in proportion to workers. Of more than
        MAX_POINTS sizes, the smallest are kept. Without a report, `noted` is returned as it is. uid: of the job. noted:
        the measured curve of the job's annotation, (workers, steps per second), () for none.
        """
        seconds_by_size = self._seconds.get(uid)
        if not seconds_by_size:
            return noted
        points = {**dict(noted), **{workers: 1.0 / step_s for workers, step_s in seconds_by_size.items()}}
        return capped(tuple(sorted(points.items())[:MAX_POINTS]), 1.0)


_NO_UIDS: frozenset[str] = frozenset()


class PodIndex:
    """The pods of the cluster.

    jobs: by uid; the caller keeps them current. by_uid: the pods. shapes: of the pods, by uid.
    """

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        """Start without pods. The class docstring explains the arguments."""
        self._jobs = jobs
        self.by_uid: dict[str, Pod] = {}
        self.shapes: dict[str, PodShape] = {}
        self._by_owner: dict[str, set[str]] = {}  # uid of an owner -> uids of its pods

    def put(self, pod: Pod, shape: PodShape) -> None:
        """Store a pod in place of its earlier version. shape: of the pod."""
        uid = pod.metadata.uid
        self.by_uid[uid], self.shapes[uid] = pod, shape
        for owner in pod.metadata.owner_references or ():
            self._by_owner.setdefault(owner.uid, set()).add(uid)

    def drop(self, uid: str) -> Pod | None:
        """Drop a pod by its uid. Return it; None for an unknown pod."""
        pod = self.by_uid.pop(uid, None)
        if pod is None:
            return None
        del self.shapes[uid]
        for owner in pod.metadata.owner_references or ():
            pods = self._by_owner.get(owner.uid, set())
            pods.discard(uid)
            if not pods:
                self._by_owner.pop(owner.uid, None)
        return pod

    def named_by(self, owner: str) -> Collection[str]:
        """Return the uids of the pods that name an owner. owner: its uid. Read only; valid until the next change."""
        return self._by_owner.get(owner, _NO_UIDS)

    def take_named_by(self, owner: str) -> Collection[str]:
        """Return the uids of the pods that name an owner, and forget that they do. owner: its uid."""
        return self._by_owner.pop(owner, _NO_UIDS)

    def owners_of(self, uids: Iterable[str]) -> set[str]:
        """Return the uids of the owners of these pods. Unknown pods are left out."""
        pods = (pod for uid in uids if (pod := self.by_uid.get(uid)) is not None)
        return {owner.uid for pod in pods for owner in pod.metadata.owner_references or ()}

    def job_of(self, uid: str) -> Job | None:
        """Return the job of a pod, by the pod's uid; None for an unknown pod, or a pod of no job."""
        pod = self.by_uid.get(uid)
        return None if pod is None else job_of(pod, self._jobs)

    def of_job(self, job_uid: str) -> list[Pod]:
        """Return the pods of a job by the job's uid, in no order. Pods that name the job without being its own are
        left out.
        """
        pods = (self.by_uid[uid] for uid in self._by_owner.get(job_uid, ()) if uid in self.by_uid)
        return [pod for pod in pods if (job := job_of(pod, self._jobs)) is not None and job.uid == job_uid]
