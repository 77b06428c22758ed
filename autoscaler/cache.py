"""Keep what the watches have shown, and make observations of it: jobs with their pods, queues with their usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turnout.autoscaler.model import (
    ORDER,
    UNKNOWN_NODE,
    AdminOverride,
    Observation,
    TerminatingPod,
    read_admin_override,
)
from turnout.autoscaler.observe import job_pods
from turnout.autoscaler.observe.job_pods import SCHEDULERS, PodIndex, StepTimeReports
from turnout.autoscaler.observe.job_reader import JobReader, JobTable, OtherAutoscalers
from turnout.autoscaler.observe.job_states import GroupUses, JobStates
from turnout.autoscaler.observe.native_gangs import NativeGangs
from turnout.autoscaler.observe.node_cache import NodeCache, shapes_of
from turnout.autoscaler.observe.queues import QueueCache, QueueUsage, as_queues_allow
from turnout.autoscaler.observe.unmanaged_gangs import TerminatingPods, UnmanagedGangs
from turnout.jobs.gang import membership
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.model import JobKey
from turnout.jobs.reservation import Reservation, read_reservations
from turnout.kube import labels
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import shape_of

Object = Mapping[str, Any]
_OVER = ("Succeeded", "Failed")  # phases of pods that have ended
MAX_STARTED = 10_000  # remembered jobs that have started, in case they are deleted before the next observation


class NodeReservations:
    """The nodes that the nominator has reserved for gangs."""

    def __init__(self) -> None:
        """Start without reservations."""
        self._reservations: tuple[Reservation, ...] = ()

    def put(self, data: Mapping[str, str], wall_s: float) -> None:
        """Store these reservations (ConfigMap data) and no others; unreadable ones are left out. wall_s: since 1970."""
        reservations, _ = read_reservations(data, wall_s)  # the extender logs what cannot be read
        self._reservations = tuple(reservations.values())

    def nodes(self, now_s: float, pods: Iterable[Pod]) -> set[str]:
        """Return the nodes that are reserved for gangs of which no pod waits. now_s: since 1970. pods: of the cluster.

        A gang with waiting pods is counted by these: room is kept for them as for any job.
        """
        holders = {each.holder: each.nodes for each in self._reservations if each.until_s > now_s}
        if not holders:
            return set()
        namespaces = {key.namespace for key in holders}
        for pod in pods:
            if not pod.spec.node_name and pod.metadata.namespace in namespaces:
                holders.pop(membership(pod).key, None)
        return {node for nodes in holders.values() for node in nodes}


class AdminOrder:
    """An admin's order for all jobs, until its end."""

    def __init__(self) -> None:
        """Start without an order."""
        self._override, self._ends_s = read_admin_override({})

    def put(self, data: Mapping[str, str]) -> None:
        """Store an order. data: of its ConfigMap, {} for none. An unknown word stops all changes."""
        self._override, self._ends_s = read_admin_override(data)

    def at(self, now_s: float) -> AdminOverride:
        """Return the order that counts at a time. now_s: seconds since 1970."""
        return AdminOverride.RUN if self._ends_s is not None and now_s >= self._ends_s else self._override


class JobStarts:
    """The jobs that have started. unmanaged: the gangs without a job, which know their own starts."""

    def __init__(self, jobs: JobTable, unmanaged: UnmanagedGangs) -> None:
        """Start without notes. The class docstring explains the arguments."""
        self._jobs, self._unmanaged = jobs, unmanaged
        self._bound_jobs: dict[JobKey, None] = {}  # jobs with a pod that has had a node, most recently bound last

    def note(self, key: JobKey) -> None:
        """Remember that a job had a pod with a node. Beyond MAX_STARTED jobs, the one with the oldest last note is
        forgotten.
        """
        self._bound_jobs.pop(key, None)
        self._bound_jobs[key] = None
        if len(self._bound_jobs) > MAX_STARTED:
            del self._bound_jobs[next(iter(self._bound_jobs))]

    def forget(self, key: JobKey) -> None:
        """Forget an earlier job of this name."""
        self._bound_jobs.pop(key, None)

    def has_started(self, key: JobKey) -> bool:
        """Return True if a job or gang that waited before has started, not given up: the job still exists, or it had a
        pod with a node.

        For a gang only a pod with a node counts. A pod that came and went between two observations counts.
        """
        return (
            self._unmanaged.has_started(key)
            if key.kind in ("Pod", "PodGroup")
            else key in self._jobs.uids or key in self._bound_jobs
        )


class Cache:
    """The jobs, pods, nodes and queues that the watches have shown. Watches change it between decisions only.

    kinds: by name. gpus: the resources that count as a GPU. schedulers: the schedulers that run in this cluster.
    State is updated with each change, so that an observation costs no more than the changes since the last one. The
    public attributes are its parts: a part on which nothing else depends is read and changed directly.
    """

    def __init__(
        self,
        kinds: Mapping[str, JobKind],
        gpus: tuple[str, ...] = labels.GPU_RESOURCES,
        schedulers: tuple[str, ...] = SCHEDULERS,
    ) -> None:
        """Start empty. The class docstring explains the arguments."""
        self._kinds_naming_jobs = job_pods.kinds_naming_jobs(kinds)
        self.jobs = JobTable(kinds)
        self.pods = PodIndex(self.jobs.by_uid)
        self.nodes = NodeCache()
        self.queues = QueueCache()
        self.usage = QueueUsage(self.jobs.by_uid, self.queues)
        self.unmanaged = UnmanagedGangs(lambda shape: shape.gpus(gpus) > 0, schedulers)
        self.native = NativeGangs()
        self.others = OtherAutoscalers(kinds, self._read_again)
        self.reader = JobReader(kinds, self.jobs, self._read_again, self.others.of)
        self.override, self.reservations = AdminOrder(), NodeReservations()
        self.starts = JobStarts(self.jobs, self.unmanaged)
        self._reports, self._terminating = StepTimeReports(), TerminatingPods()
        self.states = JobStates(
            kinds, self.jobs, self.pods, self.nodes, self.usage, self.queues.mins, self._reports, schedulers
        )
        self.group_uses = GroupUses(self.native, self.jobs, self.pods, self.states)

    def put_job(self, kind: str, raw: Object) -> None:
        """Store a job of a kind, and charge and assign the pods that name it. `reader.faults` says why a job cannot be
        read.

        Such a job is not observed, unless workers are lent to it (JobReader.read).
        """
        meta = raw["metadata"]
        uid, key = meta["uid"], JobKey(kind, meta.get("namespace", ""), meta["name"])
        if (read := self.reader.read(key, uid, raw)) is None:
            self._forget_job(uid)
            self.jobs.put_unreadable(uid, key, raw)
            return
        job, raw = read
        before = self.jobs.by_uid.get(uid)
        if before is None:
            self.starts.forget(key)
        self.jobs.put(uid, key, job, raw)
        for pod in self.pods.take_named_by(str(key)):
            self.put_pod(self.pods.by_uid[pod])  # it existed before its job
        self.states.changed.add(uid)
        if before is None or (before.queue, before.selector) != (job.queue, job.selector):
            self._assign_pods(self.pods.named_by(uid))

    def _read_again(self, key: JobKey) -> None:
        """Read the object of a job again. An unknown job is ignored."""
        if raw := self.jobs.object_of(key):
            self.put_job(key.kind, raw)

    def drop_job(self, uid: str) -> None:
        """Drop a deleted job by its uid. An unknown job is ignored."""
        self.reader.forget(uid, self.jobs.keys.get(uid))
        self._forget_job(uid)

    def put_pod(self, pod: Pod) -> None:
        """Store a pod, and charge it to its node and queue. Raises KubeError, with nothing stored, for unreadable
        requests.
        """
        uid, shape = pod.metadata.uid, shape_of(pod)
        pod = job_pods.with_owners(pod, self._kinds_naming_jobs, self.jobs.uids)
        self.pods.put(pod, shape)
        self.states.changed.update(owner.uid for owner in pod.metadata.owner_references or ())
        if pod.spec.node_name:
            self.states.forget_wait(pod)
            if (job := self.pods.job_of(uid)) is not None:
                self.starts.note(job.key)
        self.nodes.put_pod(pod, shape)
        self.native.put_pod(pod)
        self._assign_pods((uid,))
        is_terminating = pod.metadata.deletion_timestamp and pod.spec.node_name and pod.status.phase not in _OVER
        self._terminating.put(uid, bool(is_terminating))

    def drop_pod(self, uid: str) -> None:
        """Drop a deleted pod by its uid. An unknown pod is ignored."""
        if (pod := self.pods.drop(uid)) is None:
            return
        self.states.forget_wait(pod)
        self._terminating.put(uid, False)
        self.states.changed.update(owner.uid for owner in pod.metadata.owner_references or ())
        self.nodes.snapshot.release(uid)
        self.native.drop_pod(uid)
        self._assign_pods((uid,))

    def put_node(self, node: Node) -> None:
        """Store a node. If it is new, the jobs with pods on it are computed again."""
        self.states.changed.update(self.pods.owners_of(self.nodes.put_node(node)))

    def drop_node(self, name: str) -> None:
        """Drop a deleted node, and compute the jobs with pods on it again. Its row stays, without room."""
        self.states.changed.update(self.pods.owners_of(self.nodes.drop_node(name)))

    def observation(
        self, now_s: float, age_s: float = 0.0, complete: bool = True, monotonic_s: float | None = None
    ) -> Observation:
        """Return the observation of now, with the jobs sorted by ORDER. Changed jobs and queue names are read first.

        A job that raises an exception counts as unreadable. now_s: since 1970. age_s: since the last event of the
        oldest list. complete: False if some list failed. monotonic_s: now by the monotonic clock; None for `now_s`.
        """
        monotonic_s = now_s if monotonic_s is None else monotonic_s
        if self.queues.take_change_of_names():
            self.states.changed.update(self.jobs.by_uid)
            for uid, pod in self.pods.by_uid.items():
                self.usage.charge(uid, pod, self.pods.shapes[uid])
        for uid, error in self.states.update(now_s, monotonic_s).items():
            key = self.jobs.keys[uid]
            raw = self.jobs.raw.get(key, {})
            self.reader.note_fault(key, error)
            self._forget_job(uid)
            self.jobs.put_unreadable(uid, key, raw)
        self.usage.forget_gangs()
        waiting = self.unmanaged.waiting_gangs(
            self.jobs.by_uid.keys(), self.nodes.row, self.usage.queue_of_gang, self.states.class_value
        )
        leaving = tuple(self._terminating_pods(monotonic_s))
        reserved = self.reservations.nodes(now_s, self.pods.by_uid.values())
        queues = self.queues.queues(self.usage.used, self.usage.bare, self.nodes.total)
        states = sorted(as_queues_allow([*self.states.resizable(), *waiting], queues), key=ORDER)
        return Observation(
            tuple(states),
            queues,
            self.nodes.room(shapes_of(states) | {pod.shape for pod in leaving}, reserved),
            age_s,
            complete,
            self.nodes.unready_share(),
            self.override.at(now_s),
            leaving,
            self.nodes.free_on(reserved),
            is_sorted=True,
        )

    def _terminating_pods(self, monotonic_s: float) -> Iterator[TerminatingPod]:
        """Yield terminating pods on known nodes of no observed job, for at most PROMISE_S, while their room counts
        as free.
        """
        for uid in self._terminating.uids_with_promised_room(monotonic_s):
            pod, job = self.pods.by_uid[uid], self.pods.job_of(uid)
            row = self.nodes.row(pod.spec.node_name)
            if row is not None and row != UNKNOWN_NODE and (job is None or job.uid not in self.states.by_uid):
                yield TerminatingPod(self.usage.queue_of(pod), self.pods.shapes[uid], row)

    def _forget_job(self, uid: str) -> None:
        """Forget a job by its uid, and charge its pods as pods of no job."""
        if self.jobs.drop(uid) is not None:
            self.states.set(uid, None)
            self._reports.forget(uid)
            self._assign_pods(self.pods.named_by(uid))

    def _assign_pods(self, uids: Iterable[str]) -> None:
        """Charge pods, by their uids, to the queues that pay for them now, a deleted pod to none.

        Assign each to its job, whose step times it may report, or to the pods without a job.
        """
        for uid in uids:
            pod, shape, job = self.pods.by_uid.get(uid), self.pods.shapes.get(uid), self.pods.job_of(uid)
            self.usage.charge(uid, pod, shape)
            if pod is not None and job is not None:
                self._reports.put_pod(job.uid, pod)
            if pod is None or shape is None or job is not None:
                self.unmanaged.drop_pod(uid)
            else:
                self.unmanaged.put_pod(pod, shape)
