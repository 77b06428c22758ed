"""PyTorchJobs of training-operator v1, and those of ctyun.cn, which are like them.

Source: docs/facts/autoscaling.md 5; PE-19, PE-49, VE-23, VE-24.

An elastic one ends well as soon as any worker has ended well: a worker that is told to go must not exit with 0, which
turnout-run sees to. What its pods know of its bounds, PET_NNODES, is written into each when it is made.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from turnout.jobs.kinds import common
from turnout.jobs.model import BadJob, Change, Job, JobKind, Object
from turnout.jobs.typed_fields import Part
from turnout.kube import labels

KIND = "PyTorchJob"
_ROLES = "spec.pytorchReplicaSpecs"


def read(kind: str, raw: Object) -> Job:
    """Read one. kind: as it is called beside those of other groups. Raises BadJob.

    With an elasticPolicy annotations may only narrow its bounds: its pods know them as PET_NNODES. Without a
    schedulingPolicy no gang is said, and none is looked for.
    """
    head = common.head(raw, kind)
    roles = {name.lower(): role for name, role in head.spec.by_name("pytorchReplicaSpecs").items()}  # in any case
    if "worker" not in roles:
        raise BadJob(f"{_ROLES}.Worker is missing")
    worker, master = roles["worker"], roles.get("master")
    policy, run = head.spec.part("elasticPolicy"), head.spec.part("runPolicy")
    replicas = worker.count("replicas", 1, 1)
    gang = run.part("schedulingPolicy")
    job = common.job(
        head,
        common.Sized(
            replicas,
            _bound(policy, "minReplicas", "min", replicas),
            _bound(policy, "maxReplicas", "max", replicas),
            worker.part("template"),
            fixed="spec.elasticPolicy" if policy.value else "",
        ),
        queue=gang.text("queue") or head.said(labels.KUEUE_QUEUE, labels.QUEUE),
        priority_class=gang.text("priorityClass"),
        role="worker",
        beside=((common.worker_shape(master.part("template")), master.count("replicas", 1)),) if master else (),
        life=common.life(head, run.flag("suspend"), ("Succeeded", "Failed")),
        refused=_refused(head, policy, master is not None) or common.elsewhere(run, "kubeflow.org/training-operator"),
    )
    if job.refused or not gang.value:
        return job
    needed = job.bounds.least + sum(count for _, count in job.beside)
    return replace(job, refused=common.gang_differs(gang, needed, "all replicas"))


def resize(kind: str, path: str, raw: Object, workers: int) -> Change:
    """Give it so many workers. path: of its kind."""
    head = common.head(raw, kind)
    name = next(name for name in head.spec.by_name("pytorchReplicaSpecs") if name.lower() == "worker")
    size = {"pytorchReplicaSpecs": {name: {"replicas": workers}}}
    keeps = () if head.spec.part("elasticPolicy").value else common.BOTH
    return common.patch(read(kind, raw), head.notes, path, workers, size, *keeps)


def _bound(policy: Part, long: str, short: str, replicas: int) -> int:
    return policy.count(long, 0) or policy.count(short, 0) or replicas


def _refused(head: common.Head, policy: Part, has_master: bool) -> str:
    if policy.parts("metrics"):
        return "spec.elasticPolicy.metrics: its own HPA resizes it, and two hands on one size fight"
    if has_master and policy.value:
        return "an elastic job with a Master: rank 0 is then no worker, and the Master's size is fixed"
    if head.marks.get(labels.KUEUE_QUEUE):
        return "Kueue holds it, and can resize no PyTorchJob: it would evict it whole"
    return ""


def _kind(name: str, path: str) -> JobKind:
    return JobKind(name, path, partial(read, name), partial(resize, name, path), object_kind=KIND)


PYTORCH_JOB = _kind(KIND, "/apis/kubeflow.org/v1/pytorchjobs")
CTYUN_PYTORCH_JOB = _kind(f"{KIND}.ctyun.cn", "/apis/ctyun.cn/v1/pytorchjobs")
