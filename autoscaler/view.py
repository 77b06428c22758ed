"""What the watches have shown, and the observation made of it: jobs with their pods, queues with what they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoscaler.model import ELSEWHERE, Observation, Queue, Seen, Worker
from autoscaler.room import Room
from jobs.model import BadJob, Job, JobKey, JobKind, Life
from jobs.queues import koordinator
from jobs.queues.all import limits
from jobs.queues.model import NAMESPACE, QueueSpec
from kube import labels
from kube.errors import KubeError
from kube.objects import Node, Pod
from kube.shape import PodShape, amount, shape_of
from kube.snapshot import Charge, ClusterSnapshot
from kube.times import since_1970

Object = Mapping[str, Any]
_OVER = ("Succeeded", "Failed")


class View:
    """Changed by the watches, between decisions and never within one. kinds: by name.

    What a look needs is kept up to date change by change: a look costs no more than what has changed since the last.
    faults: what could not be read, by job; such a job is left alone and told.
    """

    def __init__(self, kinds: Mapping[str, JobKind]) -> None:
        self._kinds = kinds
        self._nodes: dict[str, Node] = {}
        self._total: Counter[str] = Counter()
        self._snapshot = ClusterSnapshot()
        self._pods: dict[str, Pod] = {}
        self._shapes: dict[str, PodShape] = {}
        self._of: dict[str, set[str]] = {}  # uid of an owner -> uids of its pods
        self._queues: dict[str, QueueSpec] = {}
        self._local: dict[str, str] = {}  # Kueue: namespace/name of a LocalQueue -> its ClusterQueue
        self._used: dict[str, Counter[str]] = {}  # by queue, of any name
        self._paid: dict[str, tuple[str, PodShape]] = {}  # uid of a pod -> who pays for it, and how much
        self._seen: dict[str, Seen] = {}
        self._changed: set[str] = set()  # uids of jobs that have to be looked at anew
        self._keys: dict[str, JobKey] = {}
        self.jobs: dict[str, Job] = {}
        self.raw: dict[JobKey, Object] = {}
        self.faults: dict[JobKey, str] = {}

    # What is seen.

    def put_job(self, kind: str, raw: Object) -> None:
        """A job as it is now."""
        meta = raw["metadata"]
        uid, key = meta["uid"], JobKey(kind, meta.get("namespace", ""), meta["name"])
        try:
            job = self._kinds[kind].read(raw)
        except BadJob as error:
            self._forget_job(uid)
            self.faults[key] = str(error)
            self._keys[uid] = key
            return
        self.faults.pop(key, None)
        before = self.jobs.get(uid)
        self.jobs[uid], self.raw[key] = job, raw
        self._keys[uid] = key
        self._changed.add(uid)
        if before is None or before.queue != job.queue:
            self._pay_anew(uid)

    def drop_job(self, uid: str) -> None:
        """A job is gone."""
        self._forget_job(uid)

    def put_pod(self, pod: Pod) -> None:
        """A pod as it is now. Raises KubeError for one whose requests cannot be read."""
        uid, shape = pod.metadata.uid, shape_of(pod)
        self._pods[uid], self._shapes[uid] = pod, shape
        for owner in pod.metadata.owner_references or ():
            self._of.setdefault(owner.uid, set()).add(uid)
            self._changed.add(owner.uid)
        if pod.spec.node_name and pod.status.phase not in _OVER:
            self._snapshot.charge(uid, Charge(pod.spec.node_name, shape, pod.spec.priority or 0))
        else:
            self._snapshot.release(uid)
        self._pay(uid)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        del self._shapes[uid]
        for owner in pod.metadata.owner_references or ():
            self._of.get(owner.uid, set()).discard(uid)
            self._changed.add(owner.uid)
        self._snapshot.release(uid)
        self._pay(uid)

    def put_node(self, node: Node) -> None:
        """A node as it is now."""
        name = node.metadata.name
        if name not in self._nodes:
            self._changed.update(self.jobs)  # some of their pods may be there
        self._offer(self._nodes.get(name), -1)
        self._offer(node, 1)
        self._nodes[name] = node
        if not self._snapshot.put_node(node):
            self._snapshot.lay_out(sorted(self._nodes))
            self._changed.update(self.jobs)  # rows have moved

    def drop_node(self, name: str) -> None:
        """A node is gone; its row stays, without room."""
        self._offer(self._nodes.pop(name, None), -1)
        self._snapshot.drop_node(name)
        self._changed.update(self.jobs)

    def put_queue(self, queue: QueueSpec) -> None:
        """A queue as it is now."""
        self._queues[queue.name] = queue

    def drop_queue(self, name: str) -> None:
        """A queue is gone."""
        self._queues.pop(name, None)

    def put_local_queue(self, name: str, cluster_queue: str) -> None:
        """A LocalQueue of Kueue leads to a ClusterQueue; "" for one that is gone."""
        if self._local.get(name, "") == cluster_queue:
            return
        self._local[name] = cluster_queue
        self._changed.update(self.jobs)
        for uid in self._pods:
            self._pay(uid)

    # What is made of it.

    def observation(self, now_s: float, age_s: float = 0.0, whole: bool = True) -> Observation:
        """Everything at this moment."""
        for uid in self._changed & self.jobs.keys():
            if self.jobs[uid].life is Life.DONE:
                self._seen.pop(uid, None)
            else:
                self._seen[uid] = self._look(self.jobs[uid])
        self._changed.clear()
        shapes = {shape for seen in self._seen.values() for shape in (seen.job.shape, *(s for s, _ in seen.job.beside))}
        for shape in shapes:
            self._snapshot.vector(shape)  # every resource gets its column first
        takes = {shape: self._snapshot.vector(shape) for shape in shapes}
        admits = {shape: self._snapshot.admitted(shape).copy() for shape in shapes}
        room = Room(self._snapshot.columns, self._snapshot.free(), takes, admits)
        return Observation(tuple(self._seen.values()), self._seen_queues(), room, age_s, whole)

    def _look(self, job: Job) -> Seen:
        """A job with its workers by index; pods of its other roles are told from them by their role."""
        pods = [self._pods[uid] for uid in self._of.get(job.uid, ()) if uid in self._pods]
        mine = [pod for pod in pods if _role(pod) in ("", job.role)]
        workers = [
            Worker(
                _index(pod),
                self._row(pod.spec.node_name),
                leaving=bool(pod.metadata.deletion_timestamp),
                since_s=since_1970(pod.metadata.creation_timestamp) or 0.0,
            )
            for pod in mine
            if pod.status.phase not in _OVER
        ]
        others = Counter(
            self._shapes[pod.metadata.uid] for pod in pods if _role(pod) not in ("", job.role) and pod.spec.node_name
        )
        beside = tuple(min(others[shape], wanted) for shape, wanted in job.beside)
        notes = (self.raw[job.key]["metadata"].get("annotations")) or {}
        done = sum(pod.status.phase == "Succeeded" for pod in mine)
        ordered = tuple(sorted(workers, key=lambda worker: (worker.index, worker.since_s, worker.row or 0)))
        job = replace(job, queue=self._resolved(job.key.namespace, job.queue))
        return Seen(job, ordered, beside, since_1970(notes.get(labels.RESIZED_AT)) or 0.0, done)

    def _seen_queues(self) -> dict[str, Queue]:
        most = limits(self._queues.values(), self._used, self._total)
        return {
            name: Queue(name, most[name], queue.deserved, Counter(self._used.get(name, ())), queue.open)
            for name, queue in self._queues.items()
        }

    def _row(self, node: str) -> int | None:
        """A node's row; ELSEWHERE for one that we do not know, None for no node."""
        if not node:
            return None
        return self._snapshot.row_of[node] if node in self._nodes else ELSEWHERE

    # Keeping count.

    def _forget_job(self, uid: str) -> None:
        key = self._keys.pop(uid, None)
        if key is not None:
            self.raw.pop(key, None)
            self.faults.pop(key, None)
        if self.jobs.pop(uid, None) is not None:
            self._seen.pop(uid, None)
            self._pay_anew(uid)

    def _pay_anew(self, job: str) -> None:
        for uid in self._of.get(job, ()):
            self._pay(uid)

    def _pay(self, uid: str) -> None:
        """Charge a pod to the queue that pays for it now, and to no other."""
        before = self._paid.pop(uid, None)
        if before is not None:
            self._used[before[0]].subtract(dict(before[1].requests))
        pod = self._pods.get(uid)
        if pod is not None and pod.spec.node_name and pod.status.phase not in _OVER:
            queue, shape = self._queue_of(pod), self._shapes[uid]
            self._paid[uid] = queue, shape
            self._used.setdefault(queue, Counter()).update(dict(shape.requests))

    def _offer(self, node: Node | None, sign: int) -> None:
        """Count what a node offers in the cluster's total."""
        for what, text in ((node.status.allocatable or {}) if node is not None else {}).items():
            try:
                self._total[what] += sign * amount(what, text)
            except KubeError:
                continue  # a resource that nobody can count is nobody's

    def _queue_of(self, pod: Pod) -> str:
        """The queue that pays for a pod: its job's, else what the pod itself says, else its namespace."""
        namespace = pod.metadata.namespace
        for owner in pod.metadata.owner_references or ():
            if (job := self.jobs.get(owner.uid)) is not None:
                return self._resolved(namespace, job.queue)
        said = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}
        named = (
            said.get(key)
            for key in (labels.VOLCANO_QUEUE, "volcano.sh/queue-name", koordinator.NAME, labels.KUEUE_QUEUE)
        )
        return self._resolved(namespace, next(filter(None, named), ""))

    def _resolved(self, namespace: str, queue: str) -> str:
        """The queue that a name means: a LocalQueue leads to its ClusterQueue, no name to that of the namespace."""
        return self._local.get(f"{namespace}/{queue}") or queue or NAMESPACE + namespace


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
