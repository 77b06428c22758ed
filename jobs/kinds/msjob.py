"""MSJobs, mindspore.gitee.com/v1. Only jobs with dynamic workers are resized. Source: docs/facts/job-kinds.md 1.4;
MS-01, MS-15 to MS-25, MS-31.

MindSpore's Scheduler waits for its initial number of workers unless `enableDynamicWorker` is set. No field bounds such
a job, so annotations of its owner do. The controller in turnout.controllers.kinds makes the pods.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar

from msgspec import Meta

from turnout.jobs.fields import FieldStruct, ObjectPart, decode
from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.crd import AGE, Crd, Rules, pod_template
from turnout.jobs.kinds.job_kind import JobKind, JobStatus, NamedRole, ReplicaSpec, RunPolicySpec, named_roles
from turnout.jobs.model import BadJob, Change, Job, Object
from turnout.kube import labels

KIND, PATH, CONTAINER = "MSJob", "/apis/mindspore.gitee.com/v1/msjobs", "mindspore"
SCHEDULER, PS, WORKER = "Scheduler", "PS", "Worker"
_ROLES = "spec.msReplicaSpecs"
_WORKER = f".{_ROLES}.{WORKER}"
REFUSAL = "spec.enableDynamicWorker is not true: its Scheduler waits for the number of workers that it started with"


class SuccessPolicy(Enum):
    """Which workers have to succeed."""

    WORKER_0 = ""
    ALL_WORKERS = "AllWorkers"


class MSJobSpec(FieldStruct, frozen=True, kw_only=True):
    """The spec of an MSJob."""

    run_policy: RunPolicySpec = RunPolicySpec()
    success_policy: SuccessPolicy = SuccessPolicy.WORKER_0
    enable_dynamic_worker: bool = False
    # Scheduler, PS and Worker, in any case.
    ms_replica_specs: Annotated[dict[str, ReplicaSpec], Meta(extra_json_schema={"maxProperties": 3})]

    RULES: ClassVar[Rules] = (
        (
            "self.msReplicaSpecs.all(name, name.lowerAscii() in ['scheduler', 'ps', 'worker'])",
            f"{_ROLES}: Scheduler, PS and Worker are the roles",
        ),
        (
            "self.msReplicaSpecs.exists(name, name.lowerAscii() == 'worker')",
            f"{_ROLES}.Worker is missing: a job needs workers",
        ),
        (
            "self.msReplicaSpecs.all(name, name.lowerAscii() != 'scheduler' || !has(self.msReplicaSpecs[name].replicas)"
            " || self.msReplicaSpecs[name].replicas == 1)",
            f"{_ROLES}.Scheduler.replicas: a job has one Scheduler",
        ),
    )


def read_spec(part: ObjectPart) -> MSJobSpec:
    """Return the spec of a job. Raises BadJob."""
    return decode(MSJobSpec, part)


def roles(spec: MSJobSpec) -> dict[str, NamedRole]:
    """Return the roles Scheduler, PS and Worker by these names, in this order, whatever case the object uses.

    An absent role is left out. Raises BadJob for another name, a name that is used twice, a Scheduler whose replicas
    are not 1, and a job without the role Worker.
    """
    by_name = named_roles(spec.ms_replica_specs, (SCHEDULER, PS, WORKER), _ROLES)
    if WORKER not in by_name:
        raise BadJob(f"{_ROLES}.{WORKER} is missing: a job needs workers")
    if SCHEDULER in by_name and (count := by_name[SCHEDULER].spec.replicas) != 1:
        raise BadJob(f"{by_name[SCHEDULER].where}.replicas is {count}: a job has one Scheduler")
    return by_name


def read(raw: Object) -> Job:
    """Return the job that an MSJob describes: the Workers, and the Scheduler and PS as other roles. Raises BadJob.

    `refused` says why it must not be resized, such as a job without dynamic workers; "" if it may. Without our
    annotations its size is both its min and its max. A job without workers counts as suspended.
    """
    fields = job_kind.read_head(raw, KIND)
    spec = read_spec(fields.spec)
    by_name, gang = roles(spec), spec.run_policy.scheduling_policy
    worker, replicas = by_name[WORKER], by_name[WORKER].spec.replicas
    job = job_kind.build_job(
        fields,
        job_kind.SizeFields(replicas, max(1, replicas), max(1, replicas), worker.template),
        queue=gang.queue or fields.first_value(labels.QUEUE),
        priority_class=gang.priority_class,
        role=WORKER.lower(),
        other_roles=tuple(role.pods for name, role in sorted(by_name.items()) if name != WORKER),
        lifecycle=job_kind.state_by_conditions(
            fields, spec.run_policy.suspend or not replicas, ("Succeeded", "Failed")
        ),
        refused="" if spec.enable_dynamic_worker else REFUSAL,
    )
    return job_kind.refuse_if_gang_differs(job, gang, "all replicas")


def resize(raw: Object, workers: int) -> Change:
    """Return the patch to this number of workers. raw: the MSJob.

    Raises BadJob if the job is unreadable, or has no dynamic workers.
    """
    fields = job_kind.read_head(raw, KIND)
    spec = read_spec(fields.spec)
    if not spec.enable_dynamic_worker:
        raise BadJob(f"cannot be resized to {workers} workers: {REFUSAL}")
    size = {"msReplicaSpecs": {roles(spec)[WORKER].key: {"replicas": workers}}}
    return job_kind.resize_patch(read(raw), fields.annotations, PATH, workers, size, *job_kind.BOUND_ANNOTATIONS)


MS_JOB = JobKind(
    KIND,
    PATH,
    read,
    resize,
    sizes=(f"{_ROLES}.{WORKER}.replicas",),
    crd=Crd(
        MSJobSpec,
        JobStatus,
        (("State", "string", ".status.conditions[-1:].type"), ("Workers", "integer", f"{_WORKER}.replicas"), AGE),
        pod_template(CONTAINER),
        scale=(_WORKER, f".status.replicaStatuses.{WORKER}"),
    ),
)
