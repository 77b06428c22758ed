"""What the watches have shown, and the observation made of it: jobs with their pods, queues with what they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from autoscaler.model import Observation, Queue, Seen, Worker
from autoscaler.room import Room
from jobs.model import BadJob, Job, JobKey, JobKind, Life
from jobs.queue import NAMESPACE, QueueSpec, limits
from kube import labels
from kube.errors import KubeError
from kube.objects import Node, Pod
from kube.shape import PodShape, amount, shape_of
from kube.snapshot import Charge, ClusterSnapshot

Object = Mapping[str, Any]
_OVER = ("Succeeded", "Failed")


class View:
    """Changed by the watches, between decisions and never within one. kinds: by name.

    faults: what could not be read, by job; such a job is left alone and told.
    """

    def __init__(self, kinds: Mapping[str, JobKind]) -> None:
        self._kinds = kinds
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._shapes: dict[str, PodShape] = {}
        self._of: dict[str, set[str]] = {}  # uid of an owner -> uids of its pods
        self._queues: dict[str, QueueSpec] = {}
        self.jobs: dict[str, Job] = {}
        self.raw: dict[JobKey, Object] = {}
        self.faults: dict[JobKey, str] = {}

    # What is seen.

    def put_job(self, kind: str, raw: Object) -> None:
        """A job as it is now."""
        meta = raw["metadata"]
        key = JobKey(kind, meta.get("namespace", ""), meta["name"])
        try:
            job = self._kinds[kind].read(raw)
        except BadJob as error:
            self.jobs.pop(meta["uid"], None)
            self.faults[key] = str(error)
            return
        self.faults.pop(key, None)
        self.jobs[meta["uid"]] = job
        self.raw[key] = raw

    def drop_job(self, uid: str) -> None:
        """A job is gone."""
        job = self.jobs.pop(uid, None)
        if job is not None:
            self.raw.pop(job.key, None)

    def put_pod(self, pod: Pod) -> None:
        """A pod as it is now. Raises KubeError for one whose requests cannot be read."""
        uid = pod.metadata.uid
        self._pods[uid] = pod
        self._shapes[uid] = shape_of(pod)
        for owner in pod.metadata.owner_references or ():
            self._of.setdefault(owner.uid, set()).add(uid)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone."""
        pod = self._pods.pop(uid, None)
        self._shapes.pop(uid, None)
        for owner in (pod.metadata.owner_references or ()) if pod is not None else ():
            self._of.get(owner.uid, set()).discard(uid)

    def put_node(self, node: Node) -> None:
        """A node as it is now."""
        self._nodes[node.metadata.name] = node

    def drop_node(self, name: str) -> None:
        """A node is gone."""
        self._nodes.pop(name, None)

    def put_queue(self, queue: QueueSpec) -> None:
        """A queue as it is now."""
        self._queues[queue.name] = queue

    def drop_queue(self, name: str) -> None:
        """A queue is gone."""
        self._queues.pop(name, None)

    # What is made of it.

    def observation(self, now_s: float, age_s: float = 0.0, whole: bool = True) -> Observation:
        """Everything at this moment."""
        snapshot = self._snapshot()
        jobs = tuple(self._seen(job, snapshot) for job in self.jobs.values() if job.life is not Life.DONE)
        shapes = {job.shape for job in self.jobs.values()} | {s for j in self.jobs.values() for s, _ in j.beside}
        takes = {shape: snapshot.vector(shape) for shape in shapes}
        takes = {shape: snapshot.vector(shape) for shape in takes}  # once all resources have a column
        admits = {shape: snapshot.admitted(shape) for shape in shapes}
        room = Room(tuple(snapshot.columns), snapshot.free(), takes, admits)
        return Observation(jobs, self._seen_queues(), room, age_s, whole)

    def _snapshot(self) -> ClusterSnapshot:
        made = ClusterSnapshot()
        made.lay_out(sorted(self._nodes))
        for node in self._nodes.values():
            made.put_node(node)
        for uid, pod in self._pods.items():
            if pod.spec.node_name and pod.status.phase not in _OVER:
                made.charge(uid, Charge(pod.spec.node_name, self._shapes[uid], pod.spec.priority or 0))
        return made

    def _seen(self, job: Job, snapshot: ClusterSnapshot) -> Seen:
        """A job with its workers by index; pods of its other roles are told from them by their shape and role."""
        pods = [self._pods[uid] for uid in self._of.get(job.uid, ()) if uid in self._pods]
        mine = [pod for pod in pods if _role(pod) in ("", job.role)]
        workers = [
            Worker(
                _index(pod),
                snapshot.row_of.get(pod.spec.node_name) if pod.spec.node_name else None,
                leaving=bool(pod.metadata.deletion_timestamp),
                since_s=since_1970(pod.metadata.creation_timestamp),
            )
            for pod in mine
            if pod.status.phase not in _OVER
        ]
        others = Counter(
            self._shapes[pod.metadata.uid] for pod in pods if _role(pod) not in ("", job.role) and pod.spec.node_name
        )
        beside = tuple(min(others[shape], wanted) for shape, wanted in job.beside)
        notes = (self.raw[job.key]["metadata"].get("annotations")) or {}
        resized_s = since_1970(notes.get(labels.RESIZED_AT))
        done = sum(pod.status.phase == "Succeeded" for pod in mine)
        return Seen(job, tuple(sorted(workers, key=lambda worker: worker.index)), beside, resized_s, done)

    def _seen_queues(self) -> dict[str, Queue]:
        total: Counter[str] = Counter()
        for node in self._nodes.values():
            for what, text in (node.status.allocatable or {}).items():
                try:
                    total[what] += amount(what, text)
                except KubeError:
                    continue  # a resource that nobody can count is nobody's
        used: dict[str, Counter[str]] = {name: Counter() for name in self._queues}
        for uid, pod in self._pods.items():
            queue = self._queue_of(pod)
            if queue in used and pod.spec.node_name and pod.status.phase not in _OVER:
                used[queue].update(dict(self._shapes[uid].requests))
        most = limits(self._queues.values(), total)
        return {
            name: Queue(name, most[name], queue.deserved, used[name], queue.open)
            for name, queue in self._queues.items()
        }

    def _queue_of(self, pod: Pod) -> str:
        """The queue that pays for a pod: its job's, else what the pod itself says, else its namespace."""
        for owner in pod.metadata.owner_references or ():
            if (job := self.jobs.get(owner.uid)) is not None:
                return job.queue or NAMESPACE + pod.metadata.namespace
        said = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}
        return said.get(labels.VOLCANO_QUEUE) or said.get("volcano.sh/queue-name") or NAMESPACE + pod.metadata.namespace


def since_1970(stamp: str | None) -> float:
    """An RFC 3339 time as seconds; 0 for none."""
    try:
        return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
    except ValueError:
        return 0.0


def _role(pod: Pod) -> str:
    said = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}
    return said.get(labels.TRAINING_TYPE) or said.get(labels.VOLCANO_TASK_SPEC) or ""


def _index(pod: Pod) -> int:
    said = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}
    for key in (labels.VOLCANO_TASK_INDEX, labels.TRAINING_INDEX, labels.JOB_INDEX):
        if (text := said.get(key, "")).isdigit():
            return int(text)
    tail = pod.metadata.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0
