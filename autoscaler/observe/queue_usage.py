"""Which queue pays for which pod, and so what each queue uses: counted pod by pod, never read from a status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from turnout.autoscaler.observe.job_pods import owner
from turnout.jobs.model import Job
from turnout.jobs.queues import koordinator
from turnout.jobs.queues.model import NAMESPACE
from turnout.kube import labels
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape

_OVER = ("Succeeded", "Failed")
_NAMED = (labels.VOLCANO_QUEUE, "volcano.sh/queue-name", koordinator.NAME, labels.KUEUE_QUEUE)


class QueueUsage:
    """jobs: by uid, as they are at any time. used: by queue, of any name, what its pods on nodes ask for.

    bare: what those of them ask for that are of no job. of_namespace: who pays for pods that name no queue, where that
    is not their namespace's own.
    """

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._paid: dict[str, tuple[str, PodShape]] = {}  # uid of a pod -> who pays for it, and how much
        self._local: dict[str, str] = {}  # Kueue: namespace/name of a LocalQueue -> its ClusterQueue
        self._bare: set[str] = set()  # uids of pods on nodes that are of no job
        self.used: dict[str, Counter[str]] = {}
        self.bare: dict[str, Counter[str]] = {}
        self.of_namespace: Mapping[str, str] = {}

    def pay(self, uid: str, pod: Pod | None, shape: PodShape | None) -> None:
        """Charge a pod to the queue that pays for it now, and to no other; None for one that is gone."""
        before = self._paid.pop(uid, None)
        if before is not None:
            self.used[before[0]].subtract(dict(before[1].requests))
            if uid in self._bare:
                self._bare.discard(uid)
                self.bare[before[0]].subtract(dict(before[1].requests))
        if pod is not None and shape is not None and pod.spec.node_name and pod.status.phase not in _OVER:
            queue = self.queue_of(pod)
            self._paid[uid] = queue, shape
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
        namespace, job = pod.metadata.namespace, owner(pod, self._jobs)
        return self.resolved(namespace, _said(pod, _NAMED) if job is None else job.queue)

    def resolved(self, namespace: str, queue: str) -> str:
        """The queue that a name means: a LocalQueue leads to its ClusterQueue, no name to that of the namespace."""
        own = self.of_namespace.get(namespace) or NAMESPACE + namespace
        return self._local.get(f"{namespace}/{queue}") or queue or own


def _said(pod: Pod, keys: Iterable[str]) -> str:
    marks, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    return next(filter(None, (notes.get(key) or marks.get(key) for key in keys)), "")
