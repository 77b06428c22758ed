"""Works out which queue pays for which pod, and what each queue uses. Pods are counted; no status is read.

The name of a queue that a tenant wrote counts only if an object of that queue grants it to the tenant's namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from turnout.autoscaler.observe.job_pods import owner
from turnout.autoscaler.observe.queue_limits import Shares
from turnout.autoscaler.observe.unmanaged_gangs import PodGroup
from turnout.jobs.gang import membership
from turnout.jobs.model import Job, JobKey
from turnout.jobs.queues import koordinator
from turnout.jobs.queues.model import NAMESPACE
from turnout.kube import labels
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape

_OVER = ("Succeeded", "Failed")
_IMPLIED = "default"  # Volcano's: a job that names no queue is in it, also where nobody has made it
_LONGEST = 63  # characters of a name in a message
_NAMED = (labels.VOLCANO_QUEUE, "volcano.sh/queue-name", koordinator.NAME, labels.KUEUE_QUEUE)


class QueueUsage:
    """The use of each queue.

    jobs: by uid, always current. shares: the queues and their grants. used: requests of a queue's pods on nodes, by
    queue. bare: requests of those pods that have no job. ungranted: why a name does not count, by job or gang.
    """

    def __init__(self, jobs: Mapping[str, Job], shares: Shares) -> None:
        self._jobs, self._shares = jobs, shares
        self._charged: dict[str, tuple[str, PodShape]] = {}  # uid of a pod -> who pays for it, and how much
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

    def lead(self, local_queue: str, cluster_queue: str) -> bool:
        """Store the ClusterQueue of a LocalQueue, "" for a deleted one. True if that is new."""
        if self._local.get(local_queue, "") == cluster_queue:
            return False
        self._local[local_queue] = cluster_queue
        return True

    def queue_of(self, pod: Pod) -> str:
        """Return the queue that pays for a pod: that of its job, else its own, else that of its namespace."""
        job = owner(pod, self._jobs)
        return self.resolved(pod.metadata.namespace, named(pod) if job is None else job.queue)

    def resolved(self, namespace: str, queue: str) -> str:
        """Return the queue that a name means. A LocalQueue leads to its ClusterQueue.

        A missing name, and a name that is not granted to the namespace, lead to the queue of the namespace.
        """
        return self._granted(namespace, queue) or self._own(namespace)

    def queue_for(self, key: JobKey, queue: str) -> str:
        """Return the queue of a job or gang. Note why its name does not count, if so."""
        if why := self._fault(key.namespace, queue):
            self.ungranted[key] = why
        else:
            self.ungranted.pop(key, None)
        return self.resolved(key.namespace, queue)

    def payer(self, pod: Pod | None, group: PodGroup | None) -> str:
        """Return the queue of a gang without a job: the one that its PodGroup names, else its pod."""
        own = named(pod) if pod is not None else ""
        if group is not None:
            return self.queue_for(JobKey("PodGroup", group.key.namespace, group.key.name), group.queue or own)
        gang = membership(pod).key if pod is not None else None
        return self.queue_for(JobKey("Pod", gang.namespace, gang.name) if gang else JobKey("Pod", "", ""), own)

    def forget_gangs(self) -> None:
        """Forget the faults of gangs without a job. Each observation finds them again."""
        self.ungranted = {key: why for key, why in self.ungranted.items() if key.kind not in ("Pod", "PodGroup")}

    def _fault(self, namespace: str, queue: str) -> str:
        """Return why a name does not count, "" if it counts."""
        own = NAMESPACE + namespace
        if queue in ("", own) or self._granted(namespace, queue):
            return ""
        if queue == _IMPLIED and not self._shares.exists(queue):
            return ""
        name, counts = queue[:_LONGEST], self._own(namespace)
        return f"no queue grants the name {name!r} to namespace {namespace}, so it counts in {counts}"

    def _granted(self, namespace: str, queue: str) -> str:
        leads_to = self._local.get(f"{namespace}/{queue}", "")
        if leads_to and self._shares.is_cluster_queue(leads_to):
            return leads_to
        return queue if self._shares.grants(queue, namespace) else ""

    def _own(self, namespace: str) -> str:
        return self._shares.of_namespace.get(namespace) or NAMESPACE + namespace


def named(pod: Pod) -> str:
    """Return the queue that a pod itself names, "" for none."""
    marks, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    return next(filter(None, (notes.get(key) or marks.get(key) for key in _NAMED)), "")
