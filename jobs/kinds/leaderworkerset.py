"""LeaderWorkerSets: groups of one leader and its workers, which come and go whole, the highest first.

A worker is a pod, leaders too, and sizes are multiples of a group's size. Source: docs/facts/autoscaling.md 5.
"""

from __future__ import annotations

from turnout.jobs.kinds import common
from turnout.jobs.model import BadJob, Change, Job, JobKind, Object
from turnout.jobs.pod_identity import PodMarks, Said, number
from turnout.kube import labels

KIND, PATH = "LeaderWorkerSet", "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets"
_MARK = "leaderworkerset.sigs.k8s.io"


def read(raw: Object) -> Job:
    """Read one; without annotations of ours, which count pods, it is as large as it says. Raises BadJob."""
    head = common.head(raw, KIND)
    each = head.spec.part("leaderWorkerTemplate")
    if not each.has("workerTemplate"):
        raise BadJob(f"{each.at('workerTemplate')} is missing")
    groups, size = head.spec.count("replicas", 1), each.count("size", 1, 1)
    template = each.part("workerTemplate")
    leader = common.worker_shape(each.part("leaderTemplate" if each.has("leaderTemplate") else "workerTemplate"))
    apart = size > 1 and leader != common.worker_shape(template)
    if size == 1 and each.has("leaderTemplate"):
        template = each.part("leaderTemplate")  # groups of a leader alone
    workers = size - 1 if apart else size
    own = max(1, groups) * workers
    return common.job(
        head,
        common.Sized(groups * workers, own, own, template, unit=workers),
        queue=head.said(labels.KUEUE_QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        role="worker" if apart else "",
        beside=((leader, groups),) if apart and groups else (),
        refused=_refused(head, apart),
    )


def resize(raw: Object, workers: int) -> Change:
    """Give it so many pods, in whole groups."""
    head, job = common.head(raw, KIND), read(raw)
    groups = workers // head.spec.part("leaderWorkerTemplate").count("size", 1, 1)
    return common.patch(job, head.notes, PATH, workers, {"replicas": groups}, *common.BOTH)


def _refused(head: common.Head, apart: bool) -> str:
    if apart:
        return "its leaders ask for other room than its workers: a group is not so many equal pods"
    if head.spec.part("rolloutStrategy").part("rollingUpdateConfiguration").count("partition", 0) > 0:
        return "its rollout stands at a partition: groups of two revisions run, and a new size would move it"
    if head.marks.get(labels.KUEUE_QUEUE):
        return "Kueue holds it, and resizes no LeaderWorkerSet in place: it would evict it whole"
    return ""


def _job(said: Said) -> str:
    """Its leaders are owned by a StatefulSet, the workers by another for each leader."""
    return said.get(f"{_MARK}/name", "")


def _role(said: Said, _: str) -> str:
    return "leader" if said.get(f"{_MARK}/worker-index") == "0" else "worker"


def _index(said: Said, _: str) -> int:
    """Counted through all groups: a group is as large as its pods say."""
    group, worker = number(said.get(f"{_MARK}/group-index", "")), number(said.get(f"{_MARK}/worker-index", ""))
    return group * number(said.get(f"{_MARK}/size", "")) + worker


LEADER_WORKER_SET = JobKind(KIND, PATH, read, resize, pods=PodMarks(job=_job, role=_role, index=_index))
