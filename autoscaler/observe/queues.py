"""Works out what each queue may use and what it uses now, and which queue pays for which pod, in every dialect.

Pods are counted; no status is read. The name of a queue that a tenant wrote counts only if an object of that queue
grants it to the tenant's namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from turnout.autoscaler.model import JobState
from turnout.autoscaler.observe.job_pods import owner
from turnout.autoscaler.observe.unmanaged_gangs import WaitingGroup
from turnout.jobs.gang import membership
from turnout.jobs.model import Job, JobKey
from turnout.jobs.queues import koordinator
from turnout.jobs.queues.model import NAMESPACE, Amounts, Demand, Queue, QueueDialect, QueueSpec
from turnout.jobs.queues.registry import shares
from turnout.kube import labels
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape

_Ask = tuple[tuple[tuple[str, int], ...], bool]  # a job's min by resource, and whether it waits for that
STOPPED = "stopped/"  # prefix of the queue of a stopped LocalQueue


class Shares:
    """The queues as their owners describe them, by object, and the mins that jobs request of them."""

    def __init__(self) -> None:
        self._specs: dict[str, QueueSpec] = {}
        self._mins: dict[str, Counter[_Ask]] = {}
        self._named: dict[str, dict[str, QueueSpec]] = {}  # by name, by object
        self._stopped: dict[str, str] = {}  # a LocalQueue that takes nothing -> its ClusterQueue
        self.of_namespace: Mapping[str, str] = {}  # of pods that name none, but for the namespace's own

    def put(self, queue: QueueSpec, at: str) -> bool:
        """Store a queue. True if names or namespaces may lead to another queue now. at: its object."""
        before = self._specs.get(at)
        renamed = before is not None and before.name != queue.name and self.drop(at)
        self._specs[at] = queue
        self._named.setdefault(queue.name, {})[at] = queue
        granted = before is None or before.grants != queue.grants
        return (queue.dialect is QueueDialect.KOORDINATOR and self._update_namespaces()) or granted or renamed

    def drop(self, at: str) -> bool:
        """Drop a queue whose object was deleted. True if names or namespaces may lead to another queue now."""
        queue = self._specs.pop(at, None)
        if queue is None:
            return False
        del self._named[queue.name][at]
        if not self._named[queue.name]:
            del self._named[queue.name]
        if queue.dialect is QueueDialect.KOORDINATOR:
            self._update_namespaces()
        return True

    def exists(self, queue: str) -> bool:
        """Return True if an object bears this name."""
        return queue in self._named

    def is_cluster_queue(self, queue: str) -> bool:
        """Return True if LocalQueues may lead to this queue: a ClusterQueue, or the stand-in of a stopped LocalQueue.

        The admin of a namespace writes its LocalQueues, so they may name anything.
        """
        objects = self._named.get(self._stopped.get(queue, queue))
        return objects is not None and all(each.dialect is QueueDialect.KUEUE for each in objects.values())

    def grants(self, queue: str, namespace: str) -> bool:
        """Return True if pods and jobs of a namespace may name a queue: each object of its name grants it to them."""
        objects = self._named.get(queue)
        return objects is not None and all(each.grants is None or namespace in each.grants for each in objects.values())

    def stop(self, local_queue: str, cluster_queue: str) -> str:
        """Close a LocalQueue: return the name of a closed queue of its own, below its ClusterQueue."""
        name = f"{STOPPED}{local_queue}"
        self._stopped[name] = cluster_queue
        return name

    def resume(self, local_queue: str, cluster_queue: str) -> str:
        """Open a LocalQueue again, or forget a deleted one. Return its ClusterQueue, "" for none."""
        self._stopped.pop(f"{STOPPED}{local_queue}", None)
        return cluster_queue

    def count_min(self, state: JobState, times: int) -> None:
        """Count a job's min in the demand of its queue. times: -1 to take it back."""
        job, mins = state.job, self._mins.setdefault(state.job.queue, Counter())
        least = Counter[str]()
        for shape, pods in ((job.shape, job.bounds.least), *job.other_roles):
            for what, amount in shape.requests:
                least[what] += amount * pods
        ask = tuple(sorted(least.items())), state.is_waiting
        mins[ask] += times
        if not mins[ask]:
            del mins[ask]

    def _demand(self, total: Amounts) -> dict[str, Counter[str]]:
        """Sum up the mins of each queue's jobs. In Volcano a job that its queue can never hold requests nothing.

        Volcano admits such a job to no queue, so its pods are not created. Source: docs/facts/schedulers.md 3.1,
        Enqueue
        """
        most = {spec.name: spec.capability for spec in self._specs.values() if spec.dialect is QueueDialect.VOLCANO}
        found: dict[str, Counter[str]] = {}
        for queue, mins in self._mins.items():
            sums = found.setdefault(queue, Counter())
            limit = most.get(queue)
            for (least, is_waiting), times in mins.items():
                if limit is not None and is_waiting and not _is_within(least, limit, total):
                    continue
                for what, amount in least:
                    sums[what] += amount * times
        return found

    def queues(self, used: Mapping[str, Amounts], bare: Mapping[str, Amounts], total: Amounts) -> dict[str, Queue]:
        """Return every queue. used: by queue, of pods on nodes. bare: of pods without a job. total: of all nodes."""
        used = {**used}
        for name, above in self._stopped.items():
            used[above] = Counter(used.get(above, {})) + Counter(used.get(name, {}))
        demand = self._demand(total)
        for name, amounts in bare.items():
            demand.setdefault(name, Counter()).update(amounts)
        demand = {name: left for name, amounts in demand.items() if (left := +amounts)}
        queues = shares(self._specs.values(), Demand(used, demand, total)) if self._specs else {}
        for name, above in self._stopped.items():
            queues[name] = Queue(used=dict(used.get(name, {})), open=False, parent=above)
        return queues

    def _update_namespaces(self) -> bool:
        before, self.of_namespace = self.of_namespace, koordinator.quota_of_namespace(self._specs.values())
        return before != self.of_namespace


def _is_within(least: Iterable[tuple[str, int]], limit: Amounts, total: Amounts) -> bool:
    return all(amount <= limit.get(what, amount) and amount <= total.get(what, amount) for what, amount in least)


def as_queues_allow(jobs: Iterable[JobState], queues: Mapping[str, Queue]) -> Iterable[JobState]:
    """Return the jobs; those of queues in which no resize is safe get the queue's reason as `refused`."""
    unsafe = {name: queue for name, queue in queues.items() if queue.refused or queue.eviction_risk}
    return _with_refusals(jobs, unsafe) if unsafe else jobs


def _with_refusals(jobs: Iterable[JobState], unsafe: Mapping[str, Queue]) -> Iterator[JobState]:
    """Yield the jobs; those of an unsafe queue get the reason why they are not resized. unsafe: name -> queue."""
    for each in jobs:
        queue = unsafe.get(each.job.queue)
        why = "" if queue is None else queue.refused or ("" if each.job.kueue_boosted else queue.eviction_risk)
        yield replace(each, job=replace(each.job, refused=why)) if why and not each.job.refused else each


_OVER = ("Succeeded", "Failed")
_IMPLIED = "default"  # Volcano's queue for jobs that name none; it may not exist
_LONGEST = 63  # characters of a name in a message
_NAMED = (labels.VOLCANO_QUEUE, "volcano.sh/queue-name", koordinator.NAME, labels.KUEUE_QUEUE)


class QueueUsage:
    """The use of each queue.

    jobs: by uid, always current. shares: the queues and their grants. used: requests of a queue's pods on nodes, by
    queue. bare: requests of those pods that have no job. ungranted: why a name does not count, by job or gang.
    """

    def __init__(self, jobs: Mapping[str, Job], shares: Shares) -> None:
        self._jobs, self._shares = jobs, shares
        self._charged: dict[str, tuple[str, PodShape]] = {}  # uid of a pod -> its queue and its shape
        self._local: dict[str, str] = {}  # Kueue: namespace/name of a LocalQueue -> its ClusterQueue
        self._bare: set[str] = set()  # uids of pods on nodes that are of no job
        self.used: dict[str, Counter[str]] = {}
        self.bare: dict[str, Counter[str]] = {}
        self.ungranted: dict[JobKey, str] = {}

    def charge(self, uid: str, pod: Pod | None, shape: PodShape | None) -> None:
        """Charge a pod to the queue that pays for it now, and to no other. pod: None for a deleted one."""
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
            if owner(pod, self._jobs) is None:
                self._bare.add(uid)
                self.bare.setdefault(queue, Counter()).update(dict(shape.requests))

    def put_local_queue(self, local_queue: str, cluster_queue: str) -> bool:
        """Store the ClusterQueue of a LocalQueue, "" for a deleted one. True if that is new."""
        if self._local.get(local_queue, "") == cluster_queue:
            return False
        self._local[local_queue] = cluster_queue
        return True

    def queue_of(self, pod: Pod) -> str:
        """Return the queue that pays for a pod: that of its job, else its own, else that of its namespace."""
        job = owner(pod, self._jobs)
        return self.resolve(pod.metadata.namespace, queue_named_by(pod) if job is None else job.queue)

    def resolve(self, namespace: str, queue: str) -> str:
        """Return the queue that a name means. A LocalQueue leads to its ClusterQueue.

        A missing name, and a name that is not granted to the namespace, lead to the queue of the namespace.
        """
        return self._granted(namespace, queue) or self._namespace_queue(namespace)

    def queue_for(self, key: JobKey, queue: str) -> str:
        """Return the queue of a job or gang. Note why its name does not count, if so."""
        if why := self._fault(key.namespace, queue):
            self.ungranted[key] = why
        else:
            self.ungranted.pop(key, None)
        return self.resolve(key.namespace, queue)

    def queue_of_gang(self, pod: Pod | None, group: WaitingGroup | None) -> str:
        """Return the queue of a gang without a job: the one that its PodGroup names, else its pod."""
        own = queue_named_by(pod) if pod is not None else ""
        if group is not None:
            return self.queue_for(JobKey("PodGroup", group.key.namespace, group.key.name), group.queue or own)
        gang = membership(pod).key if pod is not None else None
        return self.queue_for(JobKey("Pod", gang.namespace, gang.name) if gang else JobKey("Pod", "", ""), own)

    def forget_gangs(self) -> None:
        """Forget the faults of gangs without a job. Each observation finds them again."""
        self.ungranted = {key: why for key, why in self.ungranted.items() if key.kind not in ("Pod", "PodGroup")}

    def _fault(self, namespace: str, queue: str) -> str:
        """Return why a namespace may not use the queue that its job names; "" if it may.

        Such a job is charged to the queue of its namespace.
        """
        own = NAMESPACE + namespace
        if queue in ("", own) or self._granted(namespace, queue):
            return ""
        if queue == _IMPLIED and not self._shares.exists(queue):
            return ""
        name, counts = queue[:_LONGEST], self._namespace_queue(namespace)
        return f"no queue grants the name {name!r} to namespace {namespace}, so it counts in {counts}"

    def _granted(self, namespace: str, queue: str) -> str:
        """Return the queue that a namespace's job is charged to, by the name in the job.

        "" if the namespace may not use it.
        """
        leads_to = self._local.get(f"{namespace}/{queue}", "")
        if leads_to and self._shares.is_cluster_queue(leads_to):
            return leads_to
        return queue if self._shares.grants(queue, namespace) else ""

    def _namespace_queue(self, namespace: str) -> str:
        return self._shares.of_namespace.get(namespace) or NAMESPACE + namespace


def queue_named_by(pod: Pod) -> str:
    """Return the queue that a pod itself names, "" for none."""
    marks, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    return next(filter(None, (notes.get(key) or marks.get(key) for key in _NAMED)), "")
