"""PyTorchJobs of training-operator v1, and those of ctyun.cn, which have the same fields.

An elastic job succeeds as soon as any worker succeeds, so a worker that is removed must not exit with 0; turnout-run
ensures this. The pods know the bounds from PET_NNODES, which is set when a pod is created. The controller in
turnout.controllers.kinds makes the pods of the same specification. Source: docs/facts/autoscaling.md 5; PE-19, PE-49,
VE-23, VE-24.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

from msgspec import Meta

from turnout.jobs.fields import FieldStruct, ObjectPart, decode
from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.crd import AGE, Crd, Rules, pod_template
from turnout.jobs.kinds.job_kind import (
    AnyObject,
    Count,
    JobKind,
    JobStatus,
    NamedRole,
    Pods,
    ReplicaSpec,
    RunPolicySpec,
    named_roles,
)
from turnout.jobs.model import BadJob, Change, Job, JobLifecycle, Object
from turnout.kube import labels

KIND, CONTAINER = "PyTorchJob", "pytorch"
OPERATOR = "kubeflow.org/training-operator"
_ROLES, _POLICY = "spec.pytorchReplicaSpecs", "spec.elasticPolicy"
_WORKER = f".{_ROLES}.Worker"


class RendezvousOption(FieldStruct, frozen=True):
    """One option of torchrun's --rdzv-conf."""

    key: str = ""
    value: str = ""


class ElasticPolicy(FieldStruct, frozen=True):
    """The bounds of an elastic job, and the rendezvous of its workers."""

    min_replicas: Pods = 0  # workers; 0 counts as absent
    max_replicas: Pods = 0  # workers; 0 counts as absent
    min: Pods = 0  # alias of minReplicas, VE-23
    max: Pods = 0  # alias of maxReplicas
    rdzv_port: Pods = 0  # 0 for the port of worker 0
    max_restarts: Count | None = None
    n_proc_per_node: Count | None = None  # excludes spec.nprocPerNode
    rdzv_backend: str = ""  # "" for c10d
    rdzv_host: str = ""  # "" for worker 0
    rdzv_id: str = ""
    rdzv_conf: Annotated[list[RendezvousOption], Meta(max_length=256)] = []
    standalone: bool = False
    metrics: Annotated[list[AnyObject], Meta(max_length=64)] = []  # of the HPA

    RULES: ClassVar[Rules] = (
        (
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            f"{_POLICY}.minReplicas is above maxReplicas",
        ),
    )


class PyTorchJobSpec(FieldStruct, frozen=True, kw_only=True):
    """The spec of a PyTorchJob."""

    nproc_per_node: str = ""  # processes of a pod: a number, or a word of torchrun's --nproc-per-node
    elastic_policy: ElasticPolicy | None = None  # an empty one makes a job elastic, too
    run_policy: RunPolicySpec = RunPolicySpec()
    # Master and Worker, in any case.
    pytorch_replica_specs: Annotated[dict[str, ReplicaSpec], Meta(extra_json_schema={"maxProperties": 2})]

    RULES: ClassVar[Rules] = (
        (
            "self.pytorchReplicaSpecs.all(name, name.lowerAscii() in ['master', 'worker'])",
            f"{_ROLES}: Master and Worker are the roles",
        ),
        (
            "!('Master' in self.pytorchReplicaSpecs) || !has(self.pytorchReplicaSpecs['Master'].replicas)"
            " || self.pytorchReplicaSpecs['Master'].replicas == 1",
            f"{_ROLES}.Master.replicas: a job has one Master",
        ),
        (
            "!has(self.elasticPolicy) || !has(self.elasticPolicy.nProcPerNode) || !has(self.nprocPerNode)",
            f"{_POLICY}.nProcPerNode must not be used with spec.nprocPerNode",
        ),
        (
            "!has(self.elasticPolicy) || self.pytorchReplicaSpecs.exists(name, name.lowerAscii() == 'worker')",
            f"{_ROLES}.Worker is missing: {_POLICY} needs it",
        ),
    )


def read_spec(part: ObjectPart) -> PyTorchJobSpec:
    """Return the spec of a job.

    Raises BadJob for a wrong field or role, for bounds with the min above the max, and for fields that exclude one
    another.
    """
    spec = decode(PyTorchJobSpec, part)
    policy = spec.elastic_policy
    if policy is not None and policy.n_proc_per_node is not None and spec.nproc_per_node:
        raise BadJob(f"{_POLICY}.nProcPerNode must not be used with spec.nprocPerNode")
    bounds(spec)
    return spec


def roles(spec: PyTorchJobSpec) -> dict[str, NamedRole]:
    """Return the roles Master and Worker by these names, in this order, whatever case the object uses.

    An absent role is left out. Raises BadJob for another name, a name that is used twice, a Master whose replicas are
    not 1, no role, and an elastic job without the role Worker.
    """
    by_name = named_roles(spec.pytorch_replica_specs, ("Master", "Worker"), _ROLES)
    if "Master" in by_name and (count := by_name["Master"].spec.replicas) != 1:
        raise BadJob(f"{by_name['Master'].where}.replicas is {count}: a job has one Master")
    if not by_name:
        raise BadJob(f"{_ROLES} is missing: a Master or Workers are needed")
    if spec.elastic_policy is not None and "Worker" not in by_name:
        raise BadJob(f"{_ROLES}.Worker is missing: {_POLICY} needs it")
    return by_name


def bounds(spec: PyTorchJobSpec) -> tuple[int, int] | None:
    """Return (min, max) of the workers, which the pods get as PET_NNODES; None for a job without an elasticPolicy.

    An absent bound equals the other one. Without both, each is the number of workers. Raises BadJob if the min is above
    the max, or if the roles are wrong. Source: PE-26, VE-23
    """
    by_name, policy = roles(spec), spec.elastic_policy
    if policy is None:
        return None
    workers = by_name["Worker"].spec.replicas
    min_workers, max_workers = policy.min_replicas or policy.min, policy.max_replicas or policy.max
    min_workers, max_workers = min_workers or max_workers or workers, max_workers or min_workers or workers
    if min_workers > max_workers:
        raise BadJob(f"{_POLICY}.minReplicas is {min_workers}, above {_POLICY}.maxReplicas, which is {max_workers}")
    return min_workers, max_workers


def read(kind: str, raw: Object) -> Job:
    """Return the job that a PyTorchJob describes. kind: the unique name of its kind. Raises BadJob.

    If it has an elasticPolicy, annotations may only narrow its bounds, because its pods know them as PET_NNODES. A job
    without workers has the size of its Master, and a job without any pods counts as suspended.
    """
    fields = job_kind.read_head(raw, kind)
    spec = read_spec(fields.spec)
    by_name, run = roles(spec), spec.run_policy
    resized, *other_roles = [role for role in reversed(by_name.values()) if role.spec.replicas] or by_name.values()
    sized, size_refusal = _size(spec, resized)
    job = job_kind.build_job(
        fields,
        sized,
        queue=run.scheduling_policy.queue or fields.first_value(labels.KUEUE_QUEUE, labels.QUEUE),
        priority_class=run.scheduling_policy.priority_class,
        role=resized.name.lower(),
        other_roles=tuple(role.pods for role in other_roles),
        lifecycle=_lifecycle(fields, run.suspend or not sized.replicas),
        refused=size_refusal or _resize_refusal(fields, spec, spec.elastic_policy is not None and "Master" in by_name),
    )
    return job_kind.refuse_if_gang_differs(job, run.scheduling_policy, "all replicas")


def _size(spec: PyTorchJobSpec, resized: NamedRole) -> tuple[job_kind.SizeFields, str]:
    """Return (size and bounds of a job, reason why it must not be resized), the reason "" if the size is within its
    bounds.

    A job whose size is outside its bounds gets this size as min and max, and a reason, so that it is not resized: its
    pods were started with the bounds of the elasticPolicy, and no controller brings the size within them. resized: the
    role whose pods are the job's workers.
    """
    replicas, allowed = resized.spec.replicas, bounds(spec)
    min_workers, max_workers = allowed or (replicas, replicas)
    refusal = ""
    if not min_workers <= replicas <= max_workers:
        refusal = f"{replicas} workers, and {_POLICY} allows {min_workers}..{max_workers}"
        min_workers = max_workers = replicas
    fixed_field = _POLICY if allowed is not None else "" if resized.name == "Worker" else resized.where
    size = job_kind.SizeFields(replicas, max(1, min_workers), max(1, max_workers), resized.template, fixed_field)
    return size, refusal


def _lifecycle(fields: job_kind.JobFields, suspended: bool) -> JobLifecycle:
    """Return the state of a job by its conditions. suspended: its spec suspends it, or it has no pods."""
    return job_kind.state_by_conditions(fields, suspended, ("Succeeded", "Failed"))


def resize(kind: str, path: str, raw: Object, workers: int) -> Change:
    """Return the merge patch that sets the replicas of the role Worker to `workers`.

    The patch also records this size in annotations, see job_kind.resize_patch(). It is valid only for the
    resourceVersion of `raw`. Raises BadJob if the job cannot be read. kind: the unique name of its kind. path: of the
    URL that lists its objects in all namespaces. raw: the PyTorchJob; it must have the role Worker.
    """
    fields = job_kind.read_head(raw, kind)
    spec = read_spec(fields.spec)
    size = {"pytorchReplicaSpecs": {roles(spec)["Worker"].key: {"replicas": workers}}}
    bound_keys = job_kind.BOUND_ANNOTATIONS if spec.elastic_policy is None else ()
    return job_kind.resize_patch(read(kind, raw), fields.annotations, path, workers, size, *bound_keys)


def _resize_refusal(fields: job_kind.JobFields, spec: PyTorchJobSpec, elastic_with_master: bool) -> str:
    """Return a sentence why the autoscaler must not resize the job; "" if it may.

    elastic_with_master: it has an elasticPolicy and a Master.
    """
    if spec.elastic_policy is not None and spec.elastic_policy.metrics:
        return f"{_POLICY}.metrics: its own HPA resizes it, and two autoscalers would overwrite each other"
    if elastic_with_master:
        return "an elastic job with a Master: rank 0 is then no worker, and the Master's size is fixed"
    if fields.labels.get(labels.KUEUE_QUEUE):
        return "Kueue holds it, and can resize no PyTorchJob: it would evict the whole job"
    return job_kind.manager_refusal(spec.run_policy.managed_by, "spec.runPolicy.managedBy", OPERATOR)


CRD = Crd(
    PyTorchJobSpec,
    JobStatus,
    (("State", "string", ".status.conditions[-1:].type"), ("Workers", "integer", f"{_WORKER}.replicas"), AGE),
    pod_template(CONTAINER),
    scale=(_WORKER, ".status.replicaStatuses.Worker"),
)


def _kind(name: str, path: str) -> JobKind:
    """Return the kind of PyTorchJobs of one API group. name: unique among all kinds. path: lists the objects."""
    return JobKind(
        name,
        path,
        partial(read, name),
        partial(resize, name, path),
        object_kind=KIND,
        sizes=(f"{_ROLES}.Worker.replicas",),
        crd=CRD,
    )


PYTORCH_JOB = _kind(KIND, "/apis/kubeflow.org/v1/pytorchjobs")
CTYUN_PYTORCH_JOB = _kind(f"{KIND}.ctyun.cn", "/apis/ctyun.cn/v1/pytorchjobs")
