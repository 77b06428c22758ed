"""Keep what the watches have shown, and make observations of it: jobs with their pods, queues with their usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from turnout.autoscaler.memory import Terms
from turnout.autoscaler.model import (
    ORDER,
    UNKNOWN_NODE,
    AdminOverride,
    JobState,
    Observation,
    TerminatingPod,
    Worker,
    read_admin_override,
)
from turnout.autoscaler.observe import job_pods
from turnout.autoscaler.observe.job_pods import SCHEDULERS, StepTimeReports, unbindable
from turnout.autoscaler.observe.job_reader import JobReader, OtherAutoscalers, plausible_budget
from turnout.autoscaler.observe.native_gangs import (
    MAX_GROUPS_OF_JOB,
    GroupName,
    GroupUse,
    NativeGangs,
    group_named,
    is_alive,
    min_of_settled,
    obstacle_of,
)
from turnout.autoscaler.observe.node_cache import NodeCache, shapes_of
from turnout.autoscaler.observe.packed import Packed
from turnout.autoscaler.observe.queues import QueueCache, QueueUsage, as_queues_allow
from turnout.autoscaler.observe.unmanaged_gangs import TerminatingPods, UnmanagedGangs
from turnout.jobs.gang import membership
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.model import Job, JobKey, JobLifecycle
from turnout.jobs.queues.model import QueueSpec
from turnout.jobs.reservation import Reservation, read_reservations
from turnout.kube import labels
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import PodShape, shape_of

Object = Mapping[str, Any]
_OVER = ("Succeeded", "Failed")  # phases of pods that have ended
MAX_STARTED = 10_000  # remembered jobs that have started, in case they are deleted before the next observation


class Cache:
    """The jobs, pods, nodes and queues that the watches have shown. Watches change it between decisions only.

    kinds: by name. gpus: the resources that count as a GPU. schedulers: the schedulers that run in this cluster.
    State is updated with each change, so that an observation costs no more than the changes since the last one.
    """

    def __init__(
        self,
        kinds: Mapping[str, JobKind],
        gpus: tuple[str, ...] = labels.GPU_RESOURCES,
        schedulers: tuple[str, ...] = SCHEDULERS,
    ) -> None:
        """Start empty. The class docstring explains the arguments."""
        self._kinds, self._kinds_naming_jobs, self._schedulers = kinds, job_pods.kinds_naming_jobs(kinds), schedulers
        self._uids: dict[JobKey, str] = {}  # of jobs
        self._part_uids: set[str] = set()  # uids of jobs that another object has created
        self.nodes = NodeCache()
        self._pods: dict[str, Pod] = {}
        self._shapes: dict[str, PodShape] = {}
        self._pods_by_owner: dict[str, set[str]] = {}  # uid of an owner -> uids of its pods
        self._queue_cache = QueueCache()
        self._terminating = TerminatingPods()
        self._ahead_s = 0.0  # wall clock minus monotonic clock at the last observation
        # Since when workers lack a node, by the monotonic clock. Key: namespace and name of the pod.
        self._without_node_since_s: dict[tuple[str, str], float] = {}
        self._started_jobs: dict[JobKey, None] = {}  # jobs with a pod that has had a node, most recently bound last
        self.others = OtherAutoscalers(kinds, self._read_again)
        self._reader = JobReader(kinds, self.others.of)
        self._unreadable: dict[str, Object] = {}  # jobs that cannot be read, by uid
        self._states: dict[str, JobState] = {}
        self._is_sorted = True  # the states are in queue order, so sorting is fast
        self._changed: set[str] = set()  # uids of jobs whose state has to be computed again
        self._keys = dict[str, JobKey]()
        self._classes: dict[str, int] = {}  # PriorityClass -> its value
        self.jobs: dict[str, Job] = {}
        self._accounts = QueueUsage(self.jobs, self._queue_cache)
        self._queue_names_changed = False  # a name may mean another queue than at the last observation
        self.unmanaged = UnmanagedGangs(lambda shape: shape.gpus(gpus) > 0, schedulers)
        self.native = NativeGangs()
        self.reports = StepTimeReports()
        self._admin_override, self._override_ends_s = read_admin_override({})
        self._reservations: tuple[Reservation, ...] = ()
        self.raw: dict[JobKey, Object] = {}

    def put_reservations(self, data: Mapping[str, str], wall_s: float) -> None:
        """Store these reservations (ConfigMap data) and no others; unreadable ones are left out. wall_s: since 1970."""
        reservations, _ = read_reservations(data, wall_s)  # the extender logs what cannot be read
        self._reservations = tuple(reservations.values())

    def put_job(self, kind: str, raw: Object) -> None:
        """Store a job of a kind, and charge and assign the pods that name it. `faults` says why a job cannot be read.

        Such a job is not observed, unless workers are lent to it (JobReader.read).
        """
        meta = raw["metadata"]
        uid, key = meta["uid"], JobKey(kind, meta.get("namespace", ""), meta["name"])
        if (read := self._reader.read(key, uid, raw)) is None:
            self._set_unreadable(uid, key, raw)
            return
        self._unreadable.pop(uid, None)
        job, raw = read
        before = self.jobs.get(uid)
        if before is None:
            self._started_jobs.pop(key, None)
        self.jobs[uid], self.raw[key] = job, Packed(raw)
        self._keys[uid], self._uids[key] = key, uid
        if job.part_of:
            self._part_uids.add(uid)
        for pod in self._pods_by_owner.pop(str(key), ()):
            self.put_pod(self._pods[pod])  # it existed before its job
        self._changed.add(uid)
        if before is None or (before.queue, before.selector) != (job.queue, job.selector):
            self._charge_pods_of(uid)

    @property
    def faults(self) -> Mapping[JobKey, str]:
        """Why a job cannot be read, by job."""
        return self._reader.faults

    @property
    def unknown(self) -> Mapping[JobKey, tuple[str, ...]]:
        """The names of annotations with our prefix that nobody reads, by job."""
        return self._reader.unknown

    @property
    def ungranted(self) -> Mapping[JobKey, str]:
        """Why the name of a queue does not count, by job or waiting gang."""
        return self._accounts.ungranted

    def store_written_annotations(self, key: JobKey, annotations: Mapping[str, str]) -> None:
        """Store annotations that we have written on a job: they count, whatever its owner writes."""
        if (uid := self._uids.get(key)) is not None:
            self._reader.store_written_annotations(uid, annotations)

    def forget_written(self) -> None:
        """Forget what this replica has written, since another leader may have written after that."""
        self._reader.forget_written()

    def lent_terms(self, growing: Collection[JobKey]) -> dict[str, Terms]:
        """Return uid -> lending terms, for leader memory, of jobs above the min of their terms and of growing jobs."""
        return self._reader.lent_terms(self.jobs, {self._uids[key] for key in growing if key in self._uids})

    def restore_terms(self, terms: Mapping[str, Terms]) -> None:
        """Store the lending terms of the previous leader by uid, and read those jobs again. Ignores unknown uids."""
        for uid in terms.keys() & self._keys.keys():
            self._reader.restore_terms(uid, terms[uid])
            self._read_again(self._keys[uid])

    def _read_again(self, key: JobKey) -> None:
        """Read the object of a job again. An unknown job is ignored."""
        if raw := self._unreadable.get(self._uids.get(key, "")) or self.raw.get(key):
            self.put_job(key.kind, raw)

    def label_of(self, label: str, key: JobKey) -> str:
        """Return the value of a label of a job; "" without that label, for an unknown job, and for the label ""."""
        labels = (self.raw.get(key) or {}).get("metadata", {}).get("labels") if label else None
        value = labels.get(label) if isinstance(labels, Mapping) else None
        return value if isinstance(value, str) else ""

    def drop_job(self, uid: str) -> None:
        """Drop a deleted job by its uid. An unknown job is ignored."""
        self._reader.forget(uid, self._keys.get(uid))
        self._unreadable.pop(uid, None)
        self._forget_job(uid)

    def put_pod(self, pod: Pod) -> None:
        """Store a pod, and charge it to its node and queue. Raises KubeError, with nothing stored, for unreadable
        requests.
        """
        uid, shape = pod.metadata.uid, shape_of(pod)
        pod = job_pods.with_owners(pod, self._kinds_naming_jobs, self._uids)
        self._pods[uid], self._shapes[uid] = pod, shape
        for owner in pod.metadata.owner_references or ():
            self._pods_by_owner.setdefault(owner.uid, set()).add(uid)
            self._changed.add(owner.uid)
        if pod.spec.node_name:
            self._without_node_since_s.pop((pod.metadata.namespace, pod.metadata.name), None)
            if (job := job_pods.job_of(pod, self.jobs)) is not None:
                self._note_started(job.key)
        self.nodes.put_pod(pod, shape)
        self.native.put_pod(pod)
        self._charge(uid)
        self._assign_pod(uid)
        is_terminating = pod.metadata.deletion_timestamp and pod.spec.node_name and pod.status.phase not in _OVER
        self._terminating.put(uid, bool(is_terminating))

    def _note_started(self, key: JobKey) -> None:
        """Remember that a job had a pod with a node. Beyond MAX_STARTED jobs, the one with the oldest last note is
        forgotten.
        """
        self._started_jobs.pop(key, None)
        self._started_jobs[key] = None
        if len(self._started_jobs) > MAX_STARTED:
            del self._started_jobs[next(iter(self._started_jobs))]

    def drop_pod(self, uid: str) -> None:
        """Drop a deleted pod by its uid. An unknown pod is ignored."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        del self._shapes[uid]
        self._without_node_since_s.pop((pod.metadata.namespace, pod.metadata.name), None)
        self._terminating.put(uid, False)
        for owner in pod.metadata.owner_references or ():
            pods = self._pods_by_owner.get(owner.uid, set())
            pods.discard(uid)
            if not pods:
                self._pods_by_owner.pop(owner.uid, None)
            self._changed.add(owner.uid)
        self.nodes.snapshot.release(uid)
        self.native.drop_pod(uid)
        self._charge(uid)
        self.unmanaged.drop_pod(uid)

    def put_node(self, node: Node) -> None:
        """Store a node. If it is new, the jobs with pods on it are computed again."""
        self._mark_owners_changed(self.nodes.put_node(node))

    def drop_node(self, name: str) -> None:
        """Drop a deleted node, and compute the jobs with pods on it again. Its row stays, without room."""
        self._mark_owners_changed(self.nodes.drop_node(name))

    def put_queue(self, queue: QueueSpec, object_key: str = "") -> None:
        """Store a queue. object_key: of its object, as several may describe one queue; "" for the queue's name."""
        self._queue_names_changed |= self._queue_cache.put(queue, object_key or queue.name)

    def put_admin_override(self, data: Mapping[str, str]) -> None:
        """Store an admin's order for all jobs. data: of its ConfigMap, {} for none. An unknown word stops all
        changes.
        """
        self._admin_override, self._override_ends_s = read_admin_override(data)

    def put_class(self, name: str, value: int | None) -> None:
        """Store the value of a PriorityClass; None for a deleted one, which counts as 0."""
        if self._classes.get(name) != value:
            self._changed.update(uid for uid, job in self.jobs.items() if job.priority_class == name)
        self._classes[name] = value or 0

    def drop_queue(self, object_key: str) -> None:
        """Drop a queue whose object was deleted. object_key: with which it was stored."""
        self._queue_names_changed |= self._queue_cache.drop(object_key)

    def put_local_queue(self, name: str, cluster_queue: str, open: bool = True) -> None:
        """Store the ClusterQueue of a LocalQueue of Kueue; "" for a deleted LocalQueue.

        name: namespace/name of the LocalQueue. cluster_queue: its name, also of one that does not exist. open: False if
        it takes no workloads.
        """
        is_stopped = cluster_queue and not open
        queue = (
            self._queue_cache.close_local_queue(name, cluster_queue)
            if is_stopped
            else self._queue_cache.reopen_local_queue(name, cluster_queue)
        )
        self._queue_names_changed |= self._accounts.put_local_queue(name, queue)

    def _charge_all(self) -> None:
        """Charge every pod again if names of queues may have another meaning since the last observation."""
        if not self._queue_names_changed:
            return
        self._queue_names_changed = False
        self._changed.update(self.jobs)
        for uid in self._pods:
            self._charge(uid)

    def observation(
        self, now_s: float, age_s: float = 0.0, complete: bool = True, monotonic_s: float | None = None
    ) -> Observation:
        """Return the observation of now, with the jobs sorted by ORDER. Changed jobs and queue names are read first.
        now_s: since 1970. age_s: since the last event of the oldest list. complete: False if some list failed.
        monotonic_s: now by the monotonic clock; None for `now_s`.
        """
        monotonic_s = now_s if monotonic_s is None else monotonic_s
        self._charge_all()
        self._update_states(now_s, monotonic_s)
        ends_s = self._override_ends_s
        self._accounts.forget_gangs()
        waiting = self.unmanaged.waiting(
            self.jobs.keys(), self.nodes.row, self._accounts.queue_of_gang, self._priority_value
        )
        leaving, reserved = tuple(self._terminating_pods(monotonic_s)), self._reserved_nodes(now_s)
        queues = self._queue_cache.queues(self._accounts.used, self._accounts.bare, self.nodes.total)
        states = sorted(as_queues_allow([*self._resizable_states(), *waiting], queues), key=ORDER)
        return Observation(
            tuple(states),
            queues,
            self.nodes.room(shapes_of(states) | {pod.shape for pod in leaving}, reserved),
            age_s,
            complete,
            self.nodes.unready_share(),
            AdminOverride.RUN if ends_s is not None and now_s >= ends_s else self._admin_override,
            leaving,
            self.nodes.free_on(reserved),
            is_sorted=True,
        )

    def _reserved_nodes(self, now_s: float) -> set[str]:
        """Return the nodes that are reserved for gangs of which no pod waits. now_s: since 1970. A gang with waiting
        pods is counted by these: room is kept for them as for any job.
        """
        holders = {each.holder: each.nodes for each in self._reservations if each.until_s > now_s}
        if not holders:
            return set()
        namespaces = {key.namespace for key in holders}
        for pod in self._pods.values():
            if not pod.spec.node_name and pod.metadata.namespace in namespaces:
                holders.pop(membership(pod).key, None)
        return {node for nodes in holders.values() for node in nodes}

    def _update_states(self, now_s: float, monotonic_s: float) -> None:
        """Compute the states of changed jobs, and of all jobs after a jump of the wall clock or if rows have moved.

        A job that raises an exception counts as unreadable. now_s: seconds since 1970. monotonic_s: by the monotonic
        clock.
        """
        if abs(now_s - monotonic_s - self._ahead_s) > 1.0:
            self._ahead_s = now_s - monotonic_s
            self._changed.update(self.jobs)  # the wall clock has jumped, waiting times have not
        if self.nodes.assign_rows():
            self._changed.update(self.jobs)  # rows have moved
        for uid in self._changed & self.jobs.keys():
            try:
                job = self.jobs[uid]
                self._set_state(
                    uid, None if job.lifecycle is JobLifecycle.DONE else self._job_state(job, now_s, monotonic_s)
                )
            except Exception as error:
                self._reader.note_fault(self._keys[uid], error)
                self._set_unreadable(uid, self._keys[uid], self.raw.get(self._keys[uid], {}))
        self._changed.clear()
        if not self._is_sorted:
            self._states = dict(sorted(self._states.items(), key=lambda each: each[1].queue_order))
            self._is_sorted = True

    def _resizable_states(self) -> Iterable[JobState]:
        """Return the states of jobs that are not a part of another known job."""
        parts = {uid for uid in self._part_uids if self.jobs[uid].part_of in self.jobs}
        return (state for uid, state in self._states.items() if uid not in parts) if parts else self._states.values()

    def about(self, key: JobKey) -> tuple[str, str, str] | None:
        """Return (kind, API version, uid) of a job or unmanaged gang, for Events; None for a deleted job or started
        gang.
        """
        if (uid := self._uids.get(key)) is None:
            return self.unmanaged.about.get(key)
        kind = self._kinds[key.kind]
        return kind.object_kind or kind.kind, kind.api_version, uid

    def queues_of_scraped_jobs(self) -> Iterator[tuple[JobKey, str]]:
        """Return an iterator over (owner, queue that pays for it) of pods without a job. Owners are as Prometheus
        names them.
        """
        return ((key, self._accounts.queue_of(pod)) for key, pod in self.unmanaged.scraped_jobs())

    def pods_of(self, key: JobKey) -> list[Pod]:
        """Return the pods of a job; empty for an unknown job."""
        return self._pods_of(self._uids.get(key, ""))

    def leaving_pods(self, key: JobKey, size: int) -> list[Pod]:
        """Return the living pods with an index at or above a new size of a job, in workers; [] for an unknown job."""
        state = self._states.get(self._uids.get(key, ""))
        names = {each.name for each in state.living if each.index >= size} if state is not None else ()
        return [pod for pod in self.pods_of(key) if pod.metadata.name in names]

    def group_uses(self, key: JobKey, size: int) -> list[GroupUse]:
        """Return how the pods of a job at a size, in workers, use native PodGroups, sorted by name; [] for an unknown
        job.

        Only pods that are not over, not terminating and below the size count, and only PodGroups with a gang policy: at
        most MAX_GROUPS_OF_JOB.
        """
        uid = self._uids.get(key, "")
        job, state = self.jobs.get(uid), self._states.get(uid)
        if job is None or state is None:
            return []
        leaving = {worker.name for worker in state.workers if worker.leaving or worker.index >= size}
        pods, running = Counter[GroupName](), Counter[GroupName]()
        for pod in self._pods_of(uid):
            name = group_named(pod)
            if name is not None and is_alive(pod) and pod.metadata.name not in leaving:
                pods[name] += 1
                running[name] += pod.status.phase == "Running"
        uses: list[GroupUse] = []
        for name in sorted(pods):
            if (group := self.native.group(name)) is not None and len(uses) < MAX_GROUPS_OF_JOB:
                obstacle = obstacle_of(group, job, (self._job_of(each) for each in self.native.pods(name)))
                uses.append(GroupUse(group, pods[name], running[name], obstacle))
        return uses

    def settled_uses(self, changes: Callable[[JobKey], bool]) -> list[tuple[JobKey, GroupUse]]:
        """Return (job, use) of native PodGroups whose minCount does not fit the pods of a resized job, which all run.

        Each changed PodGroup is checked once. It is checked again at the next call if its job lacks pods, if some of
        its pods do not run, or if `changes` returns True for the job: the job's size is about to change. A PodGroup
        with an obstacle, or of a job that we have never resized, is left out.
        """
        settled: list[tuple[JobKey, GroupUse]] = []
        unsettled: list[GroupName] = []
        uses_of_jobs: dict[JobKey, list[GroupUse]] = {}  # the pods of a job are gone through once
        for name in self.native.take_unsettled():
            key = self._job_of(next(iter(self.native.pods(name)), ""))
            state = self._states.get(self._uids.get(key, "")) if key is not None else None
            if key is None or state is None:
                continue
            if key not in uses_of_jobs:
                uses_of_jobs[key] = self.group_uses(key, state.job.replicas)
            use = next((each for each in uses_of_jobs[key] if (each.group.namespace, each.group.name) == name), None)
            if use is None or use.obstacle is not None:
                continue
            is_complete = (
                len(state.living) + state.finished >= state.job.replicas == len(state.workers) + state.finished
            )
            if changes(key) or not is_complete or use.running < use.pods:
                unsettled.append(name)
            elif min_of_settled(use) is not None and self._resized(key):
                settled.append((key, use))
        self.native.check_again(unsettled)
        return settled

    def _job_of(self, uid: str) -> JobKey | None:
        """Return the job of a pod, by the pod's uid; None for an unknown pod, or a pod of no job."""
        pod = self._pods.get(uid)
        job = None if pod is None else job_pods.job_of(pod, self.jobs)
        return None if job is None else job.key

    def _resized(self, key: JobKey) -> bool:
        """Return True if an autoscaler has resized a job."""
        return labels.WROTE_WORKERS in (self.raw[key]["metadata"].get("annotations") or {})

    def _terminating_pods(self, monotonic_s: float) -> Iterator[TerminatingPod]:
        """Yield terminating pods on known nodes of no observed job, for at most PROMISE_S, while their room counts
        as free.
        """
        for uid in self._terminating.uids_with_promised_room(monotonic_s):
            pod = self._pods[uid]
            row = self.nodes.row(pod.spec.node_name)
            job = job_pods.job_of(pod, self.jobs)
            if row is not None and row != UNKNOWN_NODE and (job is None or job.uid not in self._states):
                yield TerminatingPod(self._accounts.queue_of(pod), self._shapes[uid], row)

    def _priority_value(self, name: str) -> int:
        """Return the value of a PriorityClass by its name; 0 for an unknown one."""
        return self._classes.get(name, 0)

    def _job_state(self, job: Job, now_s: float, monotonic_s: float) -> JobState:
        """Return the state of a job. now_s: seconds since 1970. monotonic_s: now by the monotonic clock."""
        pods = self._pods_of(job.uid)
        identity = self._kinds[job.key.kind].pods
        worker_pods, other_role_pods = job_pods.split_by_role(identity, job.role, pods)
        workers = job_pods.workers(
            identity, (pod for pod in worker_pods if pod.status.phase not in _OVER), self.nodes.row
        )
        workers = tuple(
            each if each.row is not None else self._worker_without_node(job, each, now_s, monotonic_s)
            for each in workers
        )
        bound_shapes = (self._shapes[pod.metadata.uid] for pod in other_role_pods if pod.spec.node_name)
        other_pods = job_pods.count_other_roles(job.other_roles, bound_shapes)
        finished = sum(pod.status.phase == "Succeeded" for pod in worker_pods)
        began_s = min([worker.since_s for worker in workers if not worker.leaving], default=0.0)
        job = replace(
            job,
            resize_budget=plausible_budget(job.resize_budget, job.created, began_s, now_s),
            queue=self._accounts.resolve_for_job(job.key, job.queue),
            order=job.order.with_class_value(self._priority_value(job.priority_class)),
            curve=self.reports.curve(job.uid, job.curve) if job.curve_measured else job.curve,
        )
        state = JobState(job, workers, other_pods, finished)
        return (
            replace(state, unbindable=why)
            if state.is_waiting and (why := self._unbindable(state, worker_pods, other_role_pods))
            else state
        )

    def _worker_without_node(self, job: Job, worker: Worker, now_s: float, monotonic_s: float) -> Worker:
        """Return a copy of a worker without a node, with `since_s` set to when we first saw it without one (since
        1970).

        That time is kept by the monotonic clock, so that a jump of the wall clock changes no waiting time. now_s:
        seconds since 1970. monotonic_s: by the monotonic clock.
        """
        age_s = max(0.0, now_s - worker.since_s)
        known_s = self._without_node_since_s.setdefault((job.key.namespace, worker.name), monotonic_s - age_s)
        return replace(worker, since_s=now_s - (monotonic_s - known_s))

    def _unbindable(self, state: JobState, worker_pods: Collection[Pod], other_role_pods: Collection[Pod]) -> str:
        """Return why no scheduler binds what a waiting job lacks to its min, "" if one can. Missing workers count as
        bindable. worker_pods: pods of its resized role. other_role_pods: of its other roles.
        """
        reasons = [unbindable(pod, self._schedulers) for pod in worker_pods if not pod.spec.node_name]
        bindable = (
            state.bound_workers + state.finished + reasons.count("") + max(0, state.job.replicas - len(worker_pods))
        )
        if bindable >= state.job.bounds.minimum:
            reasons = []
        reasons += [unbindable(pod, self._schedulers) for pod in other_role_pods if not pod.spec.node_name]
        return next(filter(None, reasons), "")

    def started(self, key: JobKey) -> bool:
        """Return True if a job or gang that waited before has started, not given up: the job still exists, or it had a
        pod with a node.

        For a gang only a pod with a node counts. A pod that came and went between two observations counts.
        """
        return (
            self.unmanaged.started(key)
            if key.kind in ("Pod", "PodGroup")
            else key in self._uids or key in self._started_jobs
        )

    def _set_state(self, uid: str, state: JobState | None) -> None:
        """Store the state of a job, and count its min in its queue. state: None forgets a job that is over or
        unreadable.
        """
        before = self._states.get(uid)
        self._queue_cache.mins.replace(before, state)
        if state is None:
            self._states.pop(uid, None)
            if before is not None:
                self._accounts.ungranted.pop(before.job.key, None)
            return
        self._states[uid] = state
        self._is_sorted &= before is not None and before.queue_order == state.queue_order

    def _set_unreadable(self, uid: str, key: JobKey, raw: Object) -> None:
        """Keep the object `raw` of an unreadable job, and take the job out of all decisions."""
        self._forget_job(uid)
        self._unreadable[uid] = Packed(raw)
        self._keys[uid], self._uids[key] = key, uid

    def _forget_job(self, uid: str) -> None:
        """Forget a job by its uid, and charge its pods as pods of no job."""
        key = self._keys.pop(uid, None)
        if key is not None:
            self.raw.pop(key, None)
            if self._uids.get(key) == uid:
                del self._uids[key]
        self._part_uids.discard(uid)
        if self.jobs.pop(uid, None) is not None:
            self._set_state(uid, None)
            self.reports.forget(uid)
            self._charge_pods_of(uid)

    def _mark_owners_changed(self, pods: Collection[str]) -> None:
        """Mark the owners of these pods as changed, because the node of the pods was added or removed."""
        for uid in self._pods.keys() & pods:
            self._changed.update(owner.uid for owner in self._pods[uid].metadata.owner_references or ())

    def _pods_of(self, job_uid: str) -> list[Pod]:
        """Return the pods of a job by the job's uid, in no order. Pods that name the job without being its own are
        left out.
        """
        pods = (self._pods[uid] for uid in self._pods_by_owner.get(job_uid, ()) if uid in self._pods)
        return [pod for pod in pods if (owner := job_pods.job_of(pod, self.jobs)) is not None and owner.uid == job_uid]

    def _charge_pods_of(self, job_uid: str) -> None:
        """Charge the pods that name a job to queues again, and assign them. job_uid: also of a job just forgotten."""
        for uid in self._pods_by_owner.get(job_uid, ()):
            self._charge(uid)
            self._assign_pod(uid)

    def _assign_pod(self, uid: str) -> None:
        """Assign a pod, by its uid, to its job, whose step times it may report, or to the pods without a job."""
        pod = self._pods.get(uid)
        job = None if pod is None else job_pods.job_of(pod, self.jobs)
        if pod is not None and job is not None:
            self.reports.put_pod(job.uid, pod)
        if pod is None or job is not None:
            self.unmanaged.drop_pod(uid)
        else:
            self.unmanaged.put_pod(pod, self._shapes[uid])

    def _charge(self, uid: str) -> None:
        """Charge a pod, by its uid, to the queue that pays for it now; a deleted pod to none."""
        self._accounts.charge(uid, self._pods.get(uid), self._shapes.get(uid))
