"""Which queue pays for which pod, and so what each queue uses: counted pod by pod, never read from a status.

A name that a tenant wrote counts only where an object of that queue grants it to the tenant's namespace.
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
    """jobs: by uid, as they are at any time. shares: the queues, and to whom each grants itself.

    used: by queue, of any name, what its pods on nodes ask for.

    bare: what those of them ask for that are of no job. ungranted: why a name does not count, by job or gang.
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
        """Charge a pod to the queue that pays for it now, and to no other; None for one that is gone."""
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
        """A LocalQueue of Kueue leads to a ClusterQueue, "" for one that is gone. False when that is known."""
        if self._local.get(local_queue, "") == cluster_queue:
            return False
        self._local[local_queue] = cluster_queue
        return True

    def queue_of(self, pod: Pod) -> str:
        """The queue that pays for a pod: its job's, else what the pod itself says, else its namespace."""
        job = owner(pod, self._jobs)
        return self.resolved(pod.metadata.namespace, named(pod) if job is None else job.queue)

    def resolved(self, namespace: str, queue: str) -> str:
        """The queue that a name means: a LocalQueue leads to its ClusterQueue, no name to that of the namespace.

        So does a name that nobody grants to the namespace.
        """
        return self._granted(namespace, queue) or self._own(namespace)

    def queue_for(self, key: JobKey, queue: str) -> str:
        """The queue that the name on a job or gang means; why it does not count is taken down."""
        if why := self._fault(key.namespace, queue):
            self.ungranted[key] = why
        else:
            self.ungranted.pop(key, None)
        return self.resolved(key.namespace, queue)

    def payer(self, pod: Pod | None, group: PodGroup | None) -> str:
        """The queue of a gang that is nobody's job: as its PodGroup names it, else its pod."""
        own = named(pod) if pod is not None else ""
        if group is not None:
            return self.queue_for(JobKey("PodGroup", group.key.namespace, group.key.name), group.queue or own)
        gang = membership(pod).key if pod is not None else None
        return self.queue_for(JobKey("Pod", gang.namespace, gang.name) if gang else JobKey("Pod", "", ""), own)

    def forget_gangs(self) -> None:
        """Forget the faults of gangs that are nobody's job, which each look finds again."""
        self.ungranted = {key: why for key, why in self.ungranted.items() if key.kind not in ("Pod", "PodGroup")}

    def _fault(self, namespace: str, queue: str) -> str:
        """Say why a name does not count, "" for one that does."""
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
    """The queue that a pod itself names, "" for none."""
    marks, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    return next(filter(None, (notes.get(key) or marks.get(key) for key in _NAMED)), "")
