"""What the watches have shown, and the observation made of it: jobs with their pods, queues with what they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnout.autoscaler.model import TURN, UNKNOWN_NODE, AdminOverride, JobState, Observation, TerminatingPod
from turnout.autoscaler.observe import admin_override, job_pods
from turnout.autoscaler.observe.node_cache import NodeCache, shapes_of
from turnout.autoscaler.observe.queue_limits import Shares, as_queues_allow
from turnout.autoscaler.observe.queue_usage import QueueUsage
from turnout.autoscaler.observe.step_time_reports import Reports
from turnout.autoscaler.observe.unmanaged_gangs import Group, UnmanagedGangs
from turnout.jobs.model import BadJob, Job, JobKey, JobKind, Life
from turnout.jobs.queues.model import NAMESPACE, QueueSpec
from turnout.kube import labels
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import PodShape, shape_of
from turnout.topology.fabric import Fabric

Object = Mapping[str, Any]
_OVER = ("Succeeded", "Failed")


class Cache:
    """Changed by the watches, between decisions and never within one. kinds: by name.

    What a look needs is kept up to date change by change: a look costs no more than what has changed since the last.
    faults: what could not be read, by job; such a job is left alone and told.
    """

    def __init__(self, kinds: Mapping[str, JobKind], gpus: tuple[str, ...] = labels.GPU_RESOURCES) -> None:
        self._kinds, self._naming = kinds, job_pods.naming(kinds)
        self._uids: dict[JobKey, str] = {}  # of jobs
        self._parts: set[str] = set()  # uids of jobs that something else has made
        self._ground = NodeCache()
        self._pods: dict[str, Pod] = {}
        self._shapes: dict[str, PodShape] = {}
        self._of: dict[str, set[str]] = {}  # uid of an owner -> uids of its pods
        self._shares = Shares()
        self._going: set[str] = set()  # uids of pods on nodes that have been told to go
        self._seen: dict[str, JobState] = {}
        self._in_turn = True  # are they in their order? Then they are sorted in no time
        self._changed: set[str] = set()  # uids of jobs that have to be looked at anew
        self._keys: dict[str, JobKey] = {}
        self._classes: dict[str, int] = {}  # PriorityClass -> its value
        self.jobs: dict[str, Job] = {}
        self._accounts = QueueUsage(self.jobs)
        self.strays = UnmanagedGangs(lambda shape: shape.gpus(gpus) > 0)
        self.reports = Reports()
        self._standing, self._standing_ends_s = admin_override.read({})
        self.raw: dict[JobKey, Object] = {}
        self.faults: dict[JobKey, str] = {}

    # What is seen.

    def put_job(self, kind: str, raw: Object) -> None:
        """A job as it is now."""
        meta = raw["metadata"]
        uid, key = meta["uid"], JobKey(kind, meta.get("namespace", ""), meta["name"])
        try:
            job = self._kinds[kind].read(raw)
        except Exception as error:
            self._set_aside(uid, key, error)
            return
        self.faults.pop(key, None)
        before = self.jobs.get(uid)
        self.jobs[uid], self.raw[key] = job, raw
        self._keys[uid], self._uids[key] = key, uid
        if job.part_of:
            self._parts.add(uid)
        for pod in self._of.pop(str(key), ()):
            self.put_pod(self._pods[pod])  # it was there before its job
        self._changed.add(uid)
        if before is None or before.queue != job.queue:
            self._pay_anew(uid)

    def drop_job(self, uid: str) -> None:
        """A job is gone."""
        self._forget_job(uid)

    def put_pod(self, pod: Pod) -> None:
        """A pod as it is now. Raises KubeError for one whose requests cannot be read."""
        uid, shape = pod.metadata.uid, shape_of(pod)
        pod = job_pods.owned(pod, self._naming, self._uids)
        self._pods[uid], self._shapes[uid] = pod, shape
        for owner in pod.metadata.owner_references or ():
            self._of.setdefault(owner.uid, set()).add(uid)
            self._changed.add(owner.uid)
        self._ground.put_pod(pod, shape)
        self._pay(uid)
        self.reports.put_pod(pod)
        self._stray(uid)
        goes = pod.metadata.deletion_timestamp and pod.spec.node_name and pod.status.phase not in _OVER
        (self._going.add if goes else self._going.discard)(uid)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        del self._shapes[uid]
        self._going.discard(uid)
        for owner in pod.metadata.owner_references or ():
            self._of.get(owner.uid, set()).discard(uid)
            self._changed.add(owner.uid)
        self._ground.drop_pod(uid)
        self._pay(uid)
        self.strays.drop_pod(uid)

    def put_node(self, node: Node) -> None:
        """A node as it is now."""
        self._look_again(self._ground.put_node(node))

    def drop_node(self, name: str) -> None:
        """A node is gone; its row stays, without room."""
        self._look_again(self._ground.drop_node(name))

    def put_queue(self, queue: QueueSpec, at: str = "") -> None:
        """A queue as it is now. at: the object that says so, where several may speak of one queue."""
        if self._shares.put(queue, at or queue.name):
            self._pay_all()

    def use_map(self, fabric: Fabric) -> None:
        """Go by this map from the next look on."""
        self._ground.use_map(fabric)

    def put_standing(self, data: Mapping[str, str]) -> None:
        """What an admin says of all jobs; a word that we do not know stops everything, which harms least."""
        self._standing, self._standing_ends_s = admin_override.read(data)

    def put_class(self, name: str, value: int | None) -> None:
        """A PriorityClass as it is now; None for one that is gone."""
        if self._classes.get(name) != value:
            self._changed.update(uid for uid, job in self.jobs.items() if job.priority_class == name)
        self._classes[name] = value or 0

    def drop_queue(self, at: str) -> None:
        """The object of a queue is gone."""
        if self._shares.drop(at):
            self._pay_all()

    def put_local_queue(self, name: str, cluster_queue: str, open: bool = True) -> None:
        """A LocalQueue of Kueue leads to a ClusterQueue; "" for one that is gone."""
        stopped = cluster_queue and not open
        leads = self._shares.stop(name, cluster_queue) if stopped else self._shares.go_on(name, cluster_queue)
        if self._accounts.lead(name, leads):
            self._pay_all()

    def _pay_all(self) -> None:
        """Names lead elsewhere: every job may be in another queue."""
        self._accounts.of_namespace = self._shares.of_namespace
        self._changed.update(self.jobs)
        for uid in self._pods:
            self._pay(uid)

    # What is made of it.

    def observation(self, now_s: float, age_s: float = 0.0, whole: bool = True) -> Observation:
        """Everything at this moment."""
        if self._ground.settle():
            self._changed.update(self.jobs)  # rows have moved
        for uid in self._changed & self.jobs.keys():
            try:
                self._set_seen(uid, None if self.jobs[uid].life is Life.DONE else self._look(self.jobs[uid]))
            except Exception as error:
                self._set_aside(uid, self._keys[uid], error)
        self._changed.clear()
        if not self._in_turn:
            self._seen, self._in_turn = dict(sorted(self._seen.items(), key=lambda each: each[1].turn)), True
        ends_s = self._standing_ends_s
        waiting = self.strays.waiting(self.jobs.keys(), self._ground.row, self._payer, self._value)
        parts = {uid for uid in self._parts if self.jobs[uid].part_of in self.jobs}
        jobs = (each for each in self._seen.values() if each.job.uid not in parts) if parts else self._seen.values()
        leaving = tuple(self._leaving_alone())
        queues = self._shares.at_present(self._accounts.used, self._accounts.bare, self._ground.total)
        seen = sorted(as_queues_allow([*jobs, *waiting], queues), key=TURN)
        return Observation(
            tuple(seen),
            queues,
            self._ground.room(shapes_of(seen) | {pod.shape for pod in leaving}),
            age_s,
            whole,
            self._ground.unready(),
            AdminOverride.RUN if ends_s is not None and now_s >= ends_s else self._standing,
            leaving,
            in_turn=True,
        )

    def about(self, key: JobKey) -> tuple[str, str, str] | None:
        """What a job is to the API server: kind, API version, uid; None for one that is gone."""
        if (uid := self._uids.get(key)) is None:
            return self.strays.about.get(key)
        version = self._kinds[key.kind].path.removeprefix("/apis/").rpartition("/")[0]
        return "Job" if key.kind == "VolcanoJob" else key.kind, version, uid

    def pods_of(self, key: JobKey) -> list[Pod]:
        """The pods of a job."""
        return [self._pods[uid] for uid in self._of.get(self._uids.get(key, ""), ()) if uid in self._pods]

    def leaving(self, key: JobKey, size: int) -> list[Pod]:
        """The pods that go when a job gets this size."""
        seen = self._seen.get(self._uids.get(key, ""))
        names = {each.name for each in seen.living if each.index >= size} if seen is not None else ()
        return [pod for pod in self.pods_of(key) if pod.metadata.name in names]

    def nodes(self) -> Sequence[str]:
        """The names of the nodes, by their rows in the last observation."""
        return self._ground.names()

    def _leaving_alone(self) -> Iterator[TerminatingPod]:
        """Pods that go and of which no job tells: their job is gone or over, or of a kind that we do not know."""
        for uid in sorted(self._going):
            pod = self._pods[uid]
            row = self._ground.row(pod.spec.node_name)
            owners = pod.metadata.owner_references or ()
            if row is not None and row != UNKNOWN_NODE and not any(owner.uid in self._seen for owner in owners):
                yield TerminatingPod(self._accounts.queue_of(pod), self._shapes[uid], row)

    def _value(self, name: str) -> int:
        return self._classes.get(name, 0)

    def _payer(self, pod: Pod | None, group: Group | None) -> str:
        """The queue of a gang that is nobody's job."""
        if group is not None and group.queue:
            return self._accounts.resolved(group.key.namespace, group.queue)
        return self._accounts.queue_of(pod) if pod is not None else NAMESPACE + (group.key.namespace if group else "")

    def _look(self, job: Job) -> JobState:
        """A job with its workers by index; pods of its other roles are told from them by their role."""
        pods = [self._pods[uid] for uid in self._of.get(job.uid, ()) if uid in self._pods]
        marks = self._kinds[job.key.kind].pods
        mine, rest = job_pods.split(marks, job.role, pods)
        workers = job_pods.workers(marks, (pod for pod in mine if pod.status.phase not in _OVER), self._ground.row)
        others = Counter(self._shapes[pod.metadata.uid] for pod in rest if pod.spec.node_name)
        beside = tuple(min(others[shape], wanted) for shape, wanted in job.beside)
        done = sum(pod.status.phase == "Succeeded" for pod in mine)
        job = replace(
            job,
            queue=self._accounts.resolved(job.key.namespace, job.queue),
            order=replace(job.order, class_value=self._value(job.priority_class)),
            curve=self.reports.curve(job.uid, job.curve) if job.learnt else job.curve,
        )
        return JobState(job, workers, beside, done)

    def _set_seen(self, uid: str, seen: JobState | None) -> None:
        """A job as it is seen from now on; None for one that is over."""
        if (before := self._seen.get(uid)) is not None:
            self._shares.ask(before, -1)
        if seen is None:
            self._seen.pop(uid, None)
            return
        self._seen[uid] = seen
        self._shares.ask(seen, 1)
        self._in_turn &= before is not None and before.turn == seen.turn

    # Keeping count.

    def _set_aside(self, uid: str, key: JobKey, error: Exception) -> None:
        """Leave a job alone which cannot be read as it is now, whoever's fault that is: all others go on."""
        self._forget_job(uid)
        self._keys[uid], self._uids[key] = key, uid
        self.faults[key] = str(error) if isinstance(error, BadJob) else f"it cannot be read: {error!r}"

    def _forget_job(self, uid: str) -> None:
        key = self._keys.pop(uid, None)
        if key is not None:
            self.raw.pop(key, None)
            self.faults.pop(key, None)
            if self._uids.get(key) == uid:
                del self._uids[key]
        self._parts.discard(uid)
        if self.jobs.pop(uid, None) is not None:
            self._set_seen(uid, None)
            self.reports.forget(uid)
            self._pay_anew(uid)

    def _look_again(self, pods: Collection[str]) -> None:
        """Their node is one that we know now, or no more."""
        for uid in self._pods.keys() & pods:
            self._changed.update(owner.uid for owner in self._pods[uid].metadata.owner_references or ())

    def _pay_anew(self, job: str) -> None:
        for uid in self._of.get(job, ()):
            self._pay(uid)
            self._stray(uid)

    def _stray(self, uid: str) -> None:
        """Is a pod anybody's?"""
        pod = self._pods.get(uid)
        if pod is None or any(owner.uid in self.jobs for owner in pod.metadata.owner_references or ()):
            self.strays.drop_pod(uid)
        else:
            self.strays.put_pod(pod, self._shapes[uid])

    def _pay(self, uid: str) -> None:
        self._accounts.pay(uid, self._pods.get(uid), self._shapes.get(uid))
