"""Keep the pods by uid and by the owners that they name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from turnout.autoscaler.observe import job_pods
from turnout.jobs.model import Job
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape

_NO_UIDS: frozenset[str] = frozenset()


class PodIndex:
    """The pods of the cluster.

    jobs: by uid; the caller keeps them current. by_uid: the pods. shapes: of the pods, by uid.
    """

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        """Start without pods. The class docstring explains the arguments."""
        self._jobs = jobs
        self.by_uid: dict[str, Pod] = {}
        self.shapes: dict[str, PodShape] = {}
        self._by_owner: dict[str, set[str]] = {}  # uid of an owner -> uids of its pods

    def put(self, pod: Pod, shape: PodShape) -> None:
        """Store a pod in place of its earlier version. shape: of the pod."""
        uid = pod.metadata.uid
        self.by_uid[uid], self.shapes[uid] = pod, shape
        for owner in pod.metadata.owner_references or ():
            self._by_owner.setdefault(owner.uid, set()).add(uid)

    def drop(self, uid: str) -> Pod | None:
        """Drop a pod by its uid. Return it; None for an unknown pod."""
        pod = self.by_uid.pop(uid, None)
        if pod is None:
            return None
        del self.shapes[uid]
        for owner in pod.metadata.owner_references or ():
            pods = self._by_owner.get(owner.uid, set())
            pods.discard(uid)
            if not pods:
                self._by_owner.pop(owner.uid, None)
        return pod

    def named_by(self, owner: str) -> Collection[str]:
        """Return the uids of the pods that name an owner. owner: its uid. Read only; valid until the next change."""
        return self._by_owner.get(owner, _NO_UIDS)

    def take_named_by(self, owner: str) -> Collection[str]:
        """Return the uids of the pods that name an owner, and forget that they do. owner: its uid."""
        return self._by_owner.pop(owner, _NO_UIDS)

    def owners_of(self, uids: Iterable[str]) -> set[str]:
        """Return the uids of the owners of these pods. Unknown pods are left out."""
        pods = (pod for uid in uids if (pod := self.by_uid.get(uid)) is not None)
        return {owner.uid for pod in pods for owner in pod.metadata.owner_references or ()}

    def job_of(self, uid: str) -> Job | None:
        """Return the job of a pod, by the pod's uid; None for an unknown pod, or a pod of no job."""
        pod = self.by_uid.get(uid)
        return None if pod is None else job_pods.job_of(pod, self._jobs)

    def of_job(self, job_uid: str) -> list[Pod]:
        """Return the pods of a job by the job's uid, in no order. Pods that name the job without being its own are
        left out.
        """
        pods = (self.by_uid[uid] for uid in self._by_owner.get(job_uid, ()) if uid in self.by_uid)
        return [pod for pod in pods if (job := job_pods.job_of(pod, self._jobs)) is not None and job.uid == job_uid]
