"""Compute what each queue may use and what it uses now, and which queue pays for which pod, in every dialect.

Pods are counted; no status is read. The name of a queue that a tenant wrote counts only if an object of that queue
grants it to the tenant's namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from turnout.autoscaler.model import JobState
from turnout.autoscaler.observe.job_pods import job_of
from turnout.autoscaler.observe.unmanaged_gangs import PodGroupState
from turnout.jobs.gang import membership
from turnout.jobs.model import Job, JobKey
from turnout.jobs.queues import koordinator
from turnout.jobs.queues.model import NAMESPACE, Amounts, Demand, QueueDialect, QueueShare, QueueSpec
from turnout.jobs.queues.registry import shares
from turnout.kube import labels
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape

_MinRequest = tuple[tuple[tuple[str, int], ...], bool]  # (resource, amount) of a job's min, and whether it waits for it
STOPPED = "stopped/"  # prefix of the name of the closed queue that stands for a stopped LocalQueue


class QueueMins:
    """The mins of the jobs in each queue, other roles included, counted once for all jobs with an equal min."""

    def __init__(self) -> None:
        """Start without jobs."""
        self._mins: dict[str, Counter[_MinRequest]] = {}  # by queue: number of jobs with each request

    def replace(self, before: JobState | None, after: JobState | None) -> None:
        """Replace a job's min, other roles included, in its queue.

        before, after: the job's states; None for a job that did not exist before, or that is over now.
        """
        if before is not None and after is not None and _have_same_min(before, after):
            return
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)

    def _count(self, state: JobState, times: int) -> None:
        """Add a job's min, other roles included, to those of its queue. times: 1 to add it, -1 to take it back."""
        job, mins = state.job, self._mins.setdefault(state.job.queue, Counter())
        minimum = Counter[str]()
        for shape, pods in ((job.shape, job.bounds.minimum), *job.other_roles):
            for resource, amount in shape.requests:
                minimum[resource] += amount * pods
        request = tuple(sorted(minimum.items())), state.is_waiting
        mins[request] += times
        if not mins[request]:
            del mins[request]
        if not mins:
            del self._mins[job.queue]

    def sums(self, capability: Mapping[str, Amounts], total: Amounts) -> dict[str, Counter[str]]:
        """Return queue -> resource -> sum of the mins of its jobs. total: what all nodes offer.

        A waiting Volcano job that is larger than its queue's capability is left out: Volcano never admits it, so its
        pods are never created. capability: of each queue of Volcano, by name. Source: docs/facts/schedulers.md 3.1,
        Enqueue
        """
        demand: dict[str, Counter[str]] = {}
        for queue, mins in self._mins.items():
            sums = demand.setdefault(queue, Counter())
            limit = capability.get(queue)
            for (minimum, is_waiting), times in mins.items():
                if limit is not None and is_waiting and not _is_within(minimum, limit, total):
                    continue
                for resource, amount in minimum:
                    sums[resource] += amount * times
        return demand


class QueueCache:
    """The queues that objects describe. mins: those of the jobs in each queue; the caller keeps them current."""

    def __init__(self) -> None:
        """Start without queues."""
        self._specs: dict[str, QueueSpec] = {}  # by the key of the object
        self.mins = QueueMins()
        self._named: dict[str, dict[str, QueueSpec]] = {}  # name of a queue -> key of each of its objects -> spec
        self._closed: dict[str, str] = {}  # closed queue of a stopped LocalQueue -> its ClusterQueue
        self._names_changed = False  # a name may mean another queue than at the last take_change_of_names()
        # The queue that pays for pods of a namespace that name none. A missing namespace pays by a queue of its own.
        self.queue_of_namespace: Mapping[str, str] = {}

    def take_change_of_names(self) -> bool:
        """Return True if a name may mean another queue since the last call; then the queues of jobs and pods have to be
        resolved again.

        It may because a queue is new, deleted or renamed, or because grants, LocalQueues or the queues of namespaces
        have changed.
        """
        changed, self._names_changed = self._names_changed, False
        return changed

    def note_change_of_names(self) -> None:
        """Note that a name may mean another queue now, because a LocalQueue has changed."""
        self._names_changed = True

    def put(self, queue: QueueSpec, object_key: str = "") -> None:
        """Store a queue in place of the earlier version of its object.

        object_key: of the object that describes the queue, as several may describe one; "" for the queue's name.
        """
        object_key = object_key or queue.name
        before = self._specs.get(object_key)
        if before is not None and before.name != queue.name:
            self.drop(object_key)
        self._specs[object_key] = queue
        self._named.setdefault(queue.name, {})[object_key] = queue
        if queue.dialect is QueueDialect.KOORDINATOR:
            self._update_namespaces()
        self._names_changed |= before is None or before.access.grants != queue.access.grants

    def drop(self, object_key: str) -> None:
        """Drop a queue whose object was deleted. object_key: with which it was stored. An unknown key is ignored."""
        queue = self._specs.pop(object_key, None)
        if queue is None:
            return
        self._names_changed = True
        del self._named[queue.name][object_key]
        if not self._named[queue.name]:
            del self._named[queue.name]
        if queue.dialect is QueueDialect.KOORDINATOR:
            self._update_namespaces()

    def exists(self, queue: str) -> bool:
        """Return True if some object has this name of a queue."""
        return queue in self._named

    def is_cluster_queue(self, queue: str) -> bool:
        """Return True if a LocalQueue may lead to this queue: it is a ClusterQueue, or a closed queue that
        close_local_queue() returned.

        A closed queue counts as its ClusterQueue. False for an unknown name, and for a name that a queue of another
        dialect has as well. The admin of a namespace writes its LocalQueues, so they may name anything.
        """
        objects = self._named.get(self._closed.get(queue, queue))
        return objects is not None and all(each.dialect is QueueDialect.KUEUE for each in objects.values())

    def grants(self, queue: str, namespace: str) -> bool:
        """Return True if a namespace may name a queue: each object of that name grants it.

        False for an unknown queue.
        """
        objects = self._named.get(queue)
        return objects is not None and all(
            each.access.grants is None or namespace in each.access.grants for each in objects.values()
        )

    def close_local_queue(self, local_queue: str, cluster_queue: str) -> str:
        """Close a LocalQueue. Return the name of a closed queue that stands for it, below its ClusterQueue.

        If the closed queue had another ClusterQueue before, a change of names is noted. local_queue: namespace/name.
        cluster_queue: its ClusterQueue.
        """
        name = f"{STOPPED}{local_queue}"
        if self._closed.get(name) != cluster_queue:
            self._closed[name] = cluster_queue
            self.note_change_of_names()
        return name

    def reopen_local_queue(self, local_queue: str, cluster_queue: str) -> str:
        """Reopen a LocalQueue, or forget a deleted one. Return `cluster_queue`, for symmetry with close_local_queue().

        local_queue: namespace/name. cluster_queue: its ClusterQueue, "" for a deleted one.
        """
        self._closed.pop(f"{STOPPED}{local_queue}", None)
        return cluster_queue

    def queues(self, used: Mapping[str, Amounts], bare: Mapping[str, Amounts], total: Amounts) -> dict[str, QueueShare]:
        """Return every queue by name, with its share of the current demand. A new mapping.

        A closed LocalQueue is a closed queue of its own below its ClusterQueue, whose use includes it. used: queue ->
        requests of pods on nodes. bare: the part of these pods without a job. total: what all nodes offer.
        """
        used = {**used}
        for name, cluster_queue in self._closed.items():
            used[cluster_queue] = Counter(used.get(cluster_queue, {})) + Counter(used.get(name, {}))
        capability = {
            spec.name: spec.capability for spec in self._specs.values() if spec.dialect is QueueDialect.VOLCANO
        }
        demand = self.mins.sums(capability, total)
        for name, amounts in bare.items():
            demand.setdefault(name, Counter()).update(amounts)
        demand = {name: positive for name, amounts in demand.items() if (positive := +amounts)}
        queues = shares(self._specs.values(), Demand(used, demand, total)) if self._specs else {}
        for name, cluster_queue in self._closed.items():
            queues[name] = QueueShare(used=dict(used.get(name, {})), open=False, parent=cluster_queue)
        return queues

    def _update_namespaces(self) -> None:
        """Compute `queue_of_namespace` again."""
        before, self.queue_of_namespace = self.queue_of_namespace, koordinator.quota_of_namespace(self._specs.values())
        self._names_changed |= before != self.queue_of_namespace


def _have_same_min(state: JobState, other: JobState) -> bool:
    """Return True if two states of one job add the same to the demand of the same queue. state, other: before and
    after.
    """
    job, other_job = state.job, other.job
    return (
        state.is_waiting == other.is_waiting
        and job.queue == other_job.queue
        and job.bounds.minimum == other_job.bounds.minimum
        and job.shape == other_job.shape
        and job.other_roles == other_job.other_roles
    )


def _is_within(minimum: Iterable[tuple[str, int]], limit: Amounts, total: Amounts) -> bool:
    """Return True if a min fits the limit of a queue and the total of all nodes. A missing limit allows any amount.

    minimum: (resource, amount) of the min.
    """
    return all(
        amount <= limit.get(resource, amount) and amount <= total.get(resource, amount) for resource, amount in minimum
    )


def as_queues_allow(jobs: Iterable[JobState], queues: Mapping[str, QueueShare]) -> Iterable[JobState]:
    """Return the jobs; a job that its queue does not allow to be resized has the queue's reason in `refused`.

    A queue with `refused` allows no resize. A queue with `eviction_risk` allows it only for jobs with Kueue's priority
    boost. A job that is refused already keeps its own reason. queues: by name; a job of an unknown queue is not
    changed. If every queue allows all, `jobs` itself is returned, else an iterator that can be read once.
    """
    unsafe = {name: queue for name, queue in queues.items() if queue.refused or queue.eviction_risk}
    return _refuse_in_unsafe_queues(jobs, unsafe) if unsafe else jobs


def _refuse_in_unsafe_queues(jobs: Iterable[JobState], unsafe: Mapping[str, QueueShare]) -> Iterator[JobState]:
    """Yield the jobs; a job that its queue does not allow to be resized has the queue's reason in `refused`.

    unsafe: the queues with `refused` or `eviction_risk`, by name.
    """
    for each in jobs:
        queue = unsafe.get(each.job.queue)
        why = "" if queue is None else queue.refused or ("" if each.job.kueue_boosted else queue.eviction_risk)
        yield replace(each, job=replace(each.job, refused=why)) if why and not each.job.refused else each


_OVER = ("Succeeded", "Failed")  # phases of pods that have ended
_VOLCANO_DEFAULT = "default"  # Volcano's queue for jobs that name none; it may not exist
_MAX_NAME = 63  # characters of a name in a message
# Annotations or labels in which a pod names its queue; the first one that is present counts.
_QUEUE_KEYS = (labels.VOLCANO_QUEUE, "volcano.sh/queue-name", koordinator.NAME, labels.KUEUE_QUEUE)


class QueueUsage:
    """The use of each queue, and the queue that pays for each pod.

    jobs: by uid; the caller keeps them current. queue_cache: the queues and their grants. used: requests of pods on
    nodes, by queue and resource. bare: the part of `used` by pods without a job. ungranted: why the name of a queue
    does not count, by job or gang.
    """

    def __init__(self, jobs: Mapping[str, Job], queue_cache: QueueCache) -> None:
        """Start without pods. The class docstring explains the arguments."""
        self._jobs, self._queue_cache = jobs, queue_cache
        self._charged: dict[str, tuple[str, PodShape]] = {}  # uid of a pod -> its queue and its shape
        self._local: dict[str, str] = {}  # Kueue: namespace/name of a LocalQueue -> its ClusterQueue
        self._bare: set[str] = set()  # uids of pods on nodes that are of no job
        self.used: dict[str, Counter[str]] = {}
        self.bare: dict[str, Counter[str]] = {}
        self.ungranted: dict[JobKey, str] = {}

    def charge(self, uid: str, pod: Pod | None, shape: PodShape | None) -> None:
        """Charge a pod to the queue that pays for it now, and to no other.

        uid: of the pod. pod, shape: None for a deleted pod. A deleted pod, an ended pod and a pod without a node are
        charged to no queue.
        """
        before = self._charged.pop(uid, None)
        if before is not None:
            self.used[before[0]].subtract(dict(before[1].requests))
            if uid in self._bare:
                self._bare.discard(uid)
                self.bare[before[0]].subtract(dict(before[1].requests))
        if pod is not None and shape is not None and pod.spec.node_name and pod.status.phase not in _OVER:
            queue = self.queue_of(pod)
            self._charged[uid] = queue, shape
            self.used.setdefault(queue, Counter()).update(dict(shape.requests))
            if job_of(pod, self._jobs) is None:
                self._bare.add(uid)
                self.bare.setdefault(queue, Counter()).update(dict(shape.requests))

    def put_local_queue(self, local_queue: str, cluster_queue: str, open: bool = True) -> None:
        """Store the ClusterQueue of a LocalQueue of Kueue; "" for a deleted LocalQueue.

        local_queue: namespace/name of the LocalQueue. cluster_queue: its name, also of one that does not exist. open:
        False if it takes no workloads.
        """
        is_stopped = cluster_queue and not open
        queue = (
            self._queue_cache.close_local_queue(local_queue, cluster_queue)
            if is_stopped
            else self._queue_cache.reopen_local_queue(local_queue, cluster_queue)
        )
        if self._local.get(local_queue, "") != queue:
            if queue:
                self._local[local_queue] = queue
            else:
                del self._local[local_queue]
            self._queue_cache.note_change_of_names()

    def queue_of(self, pod: Pod) -> str:
        """Return the queue that pays for a pod: of its job, else the one that it names, else of its namespace."""
        job = job_of(pod, self._jobs)
        return self.resolve(pod.metadata.namespace, queue_named_by(pod) if job is None else job.queue)

    def resolve(self, namespace: str, queue: str) -> str:
        """Return the queue that a name in a namespace means. A LocalQueue leads to its ClusterQueue.

        queue: the name, "" for none. A missing name, and one that is not granted to the namespace, mean the queue of
        the namespace.
        """
        return self._granted_queue(namespace, queue) or self._namespace_queue(namespace)

    def resolve_for_job(self, key: JobKey, queue: str) -> str:
        """Return the queue that pays for a job or gang. queue: the name in its object, "" for none.

        If that name is not granted, the queue of the namespace pays, and `ungranted` gets the reason.
        """
        if why := self._ungranted_reason(key.namespace, queue):
            self.ungranted[key] = why
        else:
            self.ungranted.pop(key, None)
        return self.resolve(key.namespace, queue)

    def queue_of_gang(self, pod: Pod | None, group: PodGroupState | None) -> str:
        """Return the queue that pays for a gang without a job: the one that its PodGroup names, else the one that its
        pod names.

        pod, group: None if the gang has none. If the name is not granted, the queue of the namespace pays, and
        `ungranted` gets the reason under the name of the gang.
        """
        pod_queue = queue_named_by(pod) if pod is not None else ""
        if group is not None:
            return self.resolve_for_job(
                JobKey("PodGroup", group.key.namespace, group.key.name), group.queue or pod_queue
            )
        gang = membership(pod).key if pod is not None else None
        return self.resolve_for_job(
            JobKey("Pod", gang.namespace, gang.name) if gang else JobKey("Pod", "", ""), pod_queue
        )

    def forget_gangs(self) -> None:
        """Remove gangs without a job from `ungranted`. Each observation adds them again."""
        self.ungranted = {key: why for key, why in self.ungranted.items() if key.kind not in ("Pod", "PodGroup")}

    def _ungranted_reason(self, namespace: str, queue: str) -> str:
        """Return why a namespace may not use the queue that its job names; "" if it may, or if the job names none.

        Such a job is charged to the queue of its namespace.
        """
        namespace_queue = NAMESPACE + namespace
        if queue in ("", namespace_queue) or self._granted_queue(namespace, queue):
            return ""
        if queue == _VOLCANO_DEFAULT and not self._queue_cache.exists(queue):
            return ""
        name, paying_queue = queue[:_MAX_NAME], self._namespace_queue(namespace)
        return f"no queue grants the name {name!r} to namespace {namespace}, so it counts in {paying_queue}"

    def _granted_queue(self, namespace: str, queue: str) -> str:
        """Return the queue that a name in a job of this namespace means; "" if the namespace may not use it.

        A LocalQueue of the namespace means its ClusterQueue; its name goes before that of any other queue.
        """
        cluster_queue = self._local.get(f"{namespace}/{queue}", "")
        if cluster_queue and self._queue_cache.is_cluster_queue(cluster_queue):
            return cluster_queue
        return queue if self._queue_cache.grants(queue, namespace) else ""

    def _namespace_queue(self, namespace: str) -> str:
        """Return the queue that pays for pods of a namespace that name no granted queue."""
        return self._queue_cache.queue_of_namespace.get(namespace) or NAMESPACE + namespace


def queue_named_by(pod: Pod) -> str:
    """Return the queue that a pod itself names by annotation or label, "" for none."""
    pod_labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    return next(filter(None, (annotations.get(key) or pod_labels.get(key) for key in _QUEUE_KEYS)), "")
