"""PyTorchJobs of training-operator v1, and those of ctyun.cn, which have the same fields.

An elastic job succeeds as soon as any worker succeeds, so a worker that is removed must not exit with 0; turnout-run
ensures this. The pods know the bounds from PET_NNODES, which is set when a pod is created. Source:
docs/facts/autoscaling.md 5; PE-19, PE-49, VE-23, VE-24.
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
    """Return the job. kind: the name that separates kinds of different groups. Raises BadJob.

    If it has an elasticPolicy, annotations may only narrow its bounds, because its pods know them as PET_NNODES.
    Without a schedulingPolicy the gang is not checked.
    """
    head = common.head(raw, kind)
    roles = {name.lower(): role for name, role in head.spec.by_name("pytorchReplicaSpecs").items()}  # in any case
    if "worker" not in roles:
        raise BadJob(f"{_ROLES}.Worker is missing")
    worker, master = roles["worker"], roles.get("master")
    policy, run = head.spec.part("elasticPolicy"), head.spec.part("runPolicy")
    elastic = head.spec.has("elasticPolicy")  # also for an empty policy: the controller writes PET_NNODES
    replicas = worker.count("replicas", 1, 1)
    least, most = elastic_bounds(policy, replicas) if elastic else (replicas, replicas)
    outside = "" if least <= replicas <= most else f"{replicas} workers, and {policy.where} allows {least}..{most}"
    if outside:  # its pods know other bounds: a size within them would be one that nobody creates
        least = most = replicas
    gang = run.part("schedulingPolicy")
    job = common.job(
        head,
        common.SizeFields(replicas, least, most, worker.part("template"), policy.where if elastic else ""),
        queue=gang.text("queue") or head.first_value(labels.KUEUE_QUEUE, labels.QUEUE),
        priority_class=gang.text("priorityClass"),
        role="worker",
        other_roles=((common.worker_shape(master.part("template")), master.count("replicas", 1)),) if master else (),
        life=common.life(head, run.flag("suspend"), ("Succeeded", "Failed")),
        refused=outside or _refused(head, policy, run, elastic and master is not None),
    )
    if job.refused or not gang.value:
        return job
    needed = job.bounds.least + sum(count for _, count in job.other_roles)
    return replace(job, refused=common.gang_mismatch(gang, needed, "all replicas"))


def resize(kind: str, path: str, raw: Object, workers: int) -> Change:
    """Return the change to this number of workers. path: the path of the kind's objects."""
    head = common.head(raw, kind)
    name = next(name for name in head.spec.by_name("pytorchReplicaSpecs") if name.lower() == "worker")
    size = {"pytorchReplicaSpecs": {name: {"replicas": workers}}}
    keeps = () if head.spec.has("elasticPolicy") else common.BOUND_ANNOTATIONS
    return common.patch(read(kind, raw), head.notes, path, workers, size, *keeps)


def elastic_bounds(policy: Part, workers: int) -> tuple[int, int]:
    """Return the min and the max of workers that an elastic policy allows. The controller writes them as PET_NNODES.

    An absent bound equals the other one. Without both, each is `workers`. Raises BadJob if the min is above the max.
    Source: PE-26, VE-23
    """
    least = policy.count("minReplicas", 0) or policy.count("min", 0)
    most = policy.count("maxReplicas", 0) or policy.count("max", 0)
    least, most = least or most or workers, most or least or workers
    if least > most:
        raise BadJob(f"{policy.at('minReplicas')} is {least}, above {policy.at('maxReplicas')}, which is {most}")
    return least, most


def _refused(head: common.Head, policy: Part, run: Part, elastic_with_master: bool) -> str:
    if policy.parts("metrics"):
        return "spec.elasticPolicy.metrics: its own HPA resizes it, and two hands on one size fight"
    if elastic_with_master:
        return "an elastic job with a Master: rank 0 is then no worker, and the Master's size is fixed"
    if head.marks.get(labels.KUEUE_QUEUE):
        return "Kueue holds it, and can resize no PyTorchJob: it would evict it whole"
    return common.managed_elsewhere(run, "kubeflow.org/training-operator")


def _kind(name: str, path: str) -> JobKind:
    return JobKind(name, path, partial(read, name), partial(resize, name, path), object_kind=KIND)


PYTORCH_JOB = _kind(KIND, "/apis/kubeflow.org/v1/pytorchjobs")
CTYUN_PYTORCH_JOB = _kind(f"{KIND}.ctyun.cn", "/apis/ctyun.cn/v1/pytorchjobs")
