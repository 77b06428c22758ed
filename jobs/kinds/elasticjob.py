"""DLRover ElasticJobs, resized by ScalePlans: one new object for each change. Source: docs/facts/dlrover.md 5; VE-16.

Only annotations of the owner make a job elastic, because masters built after August 2025 (dlrover #1608) read no plans,
and the job does not tell which master it has. A master does not change the job's replicas, so our annotation holds the
requested size. Our own job controller changes the replicas and records the plan; then the replicas are the size, as
with any kind.

A change is two writes: our annotations on the job, which only one writer of a version can make, then the plan, whose
name contains that version. A plan that was lost in between is recreated from the annotations, under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta, field

from turnout.jobs import annotations as job_annotations
from turnout.jobs.fields import FieldStruct, ObjectPart, decode
from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.crd import AGE, Crd, Rules, pod_template
from turnout.jobs.kinds.job_kind import (
    AnyObject,
    AnyValue,
    Count,
    JobKind,
    JobStatus,
    NamedRole,
    PodIdentity,
    PodValues,
    ReplicaSpec,
    ReplicaStatus,
    Time,
    first_value,
    number_of,
)
from turnout.jobs.model import Change, Job, JobLifecycle, Object
from turnout.kube import labels

GROUP = "elastic.iml.github.io/v1alpha1"
KIND, PATH, PLANS_PATH = "ElasticJob", f"/apis/{GROUP}/elasticjobs", f"/apis/{GROUP}/scaleplans"
MASTER, WORKER, CONTAINER = "dlrover-master", "worker", "main"
ALL_REDUCE, SINGLE_JOB = "AllreduceStrategy", "single-job"
MAX_NAME = 37  # characters: the name of the master's Service is 26 longer, and at most 63
JOB_NAME = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # a regular expression of the names of ElasticJobs
ROLES = "spec.replicaSpecs"
_PULL = {"imagePullPolicy": {"type": "string", "enum": ["Always", "Never", "IfNotPresent"]}}
_ONE_COUNT: Rules = (
    (
        "!has(self.restartCount) || !has(self.restartCounts) || self.restartCount == self.restartCounts",
        "restartCount and restartCounts mean the same: say one of them",
    ),
)
_OneMaster = Annotated[int, Meta(ge=1, extra_json_schema={"maximum": 1, "default": 1})]
_MasterTemplate = Annotated[dict[str, Any], Meta(extra_json_schema=pod_template("", _PULL))]


class WorkerSpec(ReplicaSpec, frozen=True, kw_only=True):
    """The workers of an ElasticJob."""

    restart_count: Count | None = None  # how often one rank gets a new pod
    restart_counts: Count | None = None  # the same, in the other spelling of DLRover
    auto_scale: bool = False  # DLRover resizes the role by itself
    restart_timeout: Count | None = None
    priority: str = ""

    RULES: ClassVar[Rules] = _ONE_COUNT


class MasterSpec(FieldStruct, frozen=True):
    """The master of an ElasticJob. Its template overrides the master's own fields and needs nothing else."""

    replicas: _OneMaster = 1
    restart_policy: str = ""
    restart_count: Count | None = None  # how often the master gets a new pod
    restart_counts: Count | None = None  # the same, in the other spelling of DLRover
    auto_scale: bool = False
    restart_timeout: Count | None = None
    priority: str = ""
    template: _MasterTemplate = {}

    RULES: ClassVar[Rules] = _ONE_COUNT


class ElasticRoles(FieldStruct, frozen=True, kw_only=True):
    """The roles of an ElasticJob."""

    worker: WorkerSpec
    dlrover_master: MasterSpec = field(name=MASTER, default=MasterSpec())
    # Roles of other strategies, whose pods are counted but not made here.
    ps: AnyObject | None = None
    chief: AnyObject | None = None
    evaluator: AnyObject | None = None


class ElasticJobSpec(FieldStruct, frozen=True, kw_only=True):
    """The spec of an ElasticJob."""

    # A strategy or a mode that is not run here is reported in a condition, not refused by the schema (DL-12).
    distribution_strategy: Annotated[str, Meta(extra_json_schema={"default": ALL_REDUCE})] = ""
    optimize_mode: Annotated[str, Meta(extra_json_schema={"default": SINGLE_JOB})] = ""
    suspend: bool = False
    resource_limits: AnyObject | None = None
    envs: AnyValue = None
    brain_service: str = ""
    replica_specs: ElasticRoles


class ElasticReplicaStatus(ReplicaStatus, frozen=True):
    """The pods of one role of an ElasticJob."""

    restart_counts: dict[str, Count] = {}  # by index
    memory_kills: dict[str, Count] = {}  # restarts for lack of memory, by index
    faulty_nodes: list[str] = []  # names
    next_number: Count = 0  # the first number that no pod was given


class ElasticJobStatus(JobStatus, frozen=True):
    """The status of an ElasticJob."""

    replica_statuses: Mapping[str, ElasticReplicaStatus] = {}
    phase: str = ""


class ScalePlanRole(FieldStruct, frozen=True):
    """The size of one role."""

    replicas: Count | None = None  # the new number of pods; None for no change
    resource: AnyObject | None = None  # the new resources of a pod; None for no change


class ScalePlanSpec(FieldStruct, frozen=True, kw_only=True):
    """The spec of a ScalePlan, which resizes an ElasticJob."""

    owner_job: Annotated[str, Meta(extra_json_schema={"pattern": f"^{JOB_NAME}$"})]
    manual_scaling: bool = False
    replica_resource_specs: dict[str, ScalePlanRole] = {}
    create_pods: AnyValue = None
    remove_pods: AnyValue = None
    migrate_pods: AnyValue = None
    ps_hosts: AnyValue = None


class ScalePlanStatus(FieldStruct, frozen=True):
    """The status of a ScalePlan."""

    phase: str = ""
    message: str = ""
    create_time: Time | None = None
    finish_time: Time | None = None


def read_spec(part: ObjectPart) -> ElasticJobSpec:
    """Return the spec of a job. Raises BadJob."""
    return decode(ElasticJobSpec, part)


def worker_role(spec: ElasticJobSpec) -> NamedRole:
    """Return the role of the workers."""
    return NamedRole(WORKER, WORKER, f"{ROLES}.{WORKER}", spec.replica_specs.worker)


def command_bounds(words: tuple[str, ...]) -> tuple[int, int] | None:
    """Return (min, max) of the workers by --nnodes in the words of a command line; None without a readable --nnodes."""
    return job_kind.number_range(job_kind.flag_value(words, "--nnodes"))


def read(raw: Object) -> Job:
    """Return the job that an ElasticJob describes. Raises BadJob.

    Its size is its replicas, or the size that we wrote last while our ScalePlan is not carried out yet. `refused` says
    why it must not be resized, "" if it may; it may not unless annotations set a bound. Then --nnodes in its command
    limits the bounds; without annotations its replicas are both its min and its max.
    """
    fields = job_kind.read_head(raw, KIND)
    spec = read_spec(fields.spec)
    worker = worker_role(spec)
    plan_name = fields.annotations.get(labels.SCALE_PLAN)
    has_open_plan = plan_name is not None and fields.annotations.get(labels.SCALED_PLAN) != plan_name
    written_size = job_annotations.count(fields.annotations, labels.WROTE_WORKERS) if has_open_plan else None
    replicas = worker.spec.replicas if written_size is None else written_size
    words = job_kind.command_words(worker.template)
    nnodes = command_bounds(words)
    unit = job_kind.number_range(job_kind.flag_value(words, "--node_unit", "--node-unit"))
    has_bounds = labels.MIN_WORKERS in fields.annotations or labels.MAX_WORKERS in fields.annotations
    size = max(1, worker.spec.replicas)
    min_workers, max_workers = nnodes if nnodes is not None and has_bounds else (size, size)
    return job_kind.build_job(
        fields,
        job_kind.SizeFields(
            replicas, min_workers, max_workers, worker.template, "--nnodes" if nnodes else "", unit[0] if unit else 1
        ),
        queue=fields.first_value(labels.KUEUE_QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        role=WORKER,
        other_roles=tuple(
            (job_kind.worker_shape(role.part("template")), role.count("replicas", 1))
            for name, role in sorted(fields.spec.parts_by_name("replicaSpecs").items())
            if name != WORKER
        ),
        lifecycle=_lifecycle(fields, spec.suspend or not replicas),
        refused=_resize_refusal(spec, has_bounds),
    )


def resize(raw: Object, workers: int) -> Change:
    """Return the patch of our annotations on the job, and as its `then` the creation of a ScalePlan for its master.

    raw: the ElasticJob. workers: the new size. Raises BadJob if the job is unreadable.
    """
    fields = job_kind.read_head(raw, KIND)
    name = f"{fields.key.name[:200]}-turnout-{fields.version}"
    change = job_kind.resize_patch(read(raw), fields.annotations, PATH, workers, None, *job_kind.BOUND_ANNOTATIONS)
    change.body["metadata"]["annotations"][labels.SCALE_PLAN] = name
    return Change(change.method, change.path, change.body, change.media_type, then=_plan(fields, name, workers))


def recreate_scale_plan(raw: Object) -> Change | None:
    """Return the creation of the ScalePlan of our last resize, in case it was lost.

    None if DLRover has carried it out, or if we have not resized the job. The ScalePlan may exist and still wait: then
    the API server answers Conflict, which is no failure. raw: the ElasticJob. Raises BadJob if the job is unreadable.
    """
    fields = job_kind.read_head(raw, KIND)
    name, workers = (
        fields.annotations.get(labels.SCALE_PLAN),
        job_annotations.count(fields.annotations, labels.WROTE_WORKERS),
    )
    plan_is_done = not name or name == fields.annotations.get(labels.SCALED_PLAN)
    return None if plan_is_done or name is None or workers is None else _plan(fields, name, workers)


def _plan(fields: job_kind.JobFields, name: str, workers: int) -> Change:
    """Return the creation of a ScalePlan that the job owns. Both label names are set, because DLRover renamed them.

    fields: of the ElasticJob. name: of the ScalePlan. workers: the new size.
    """
    body = {
        "apiVersion": GROUP,
        "kind": "ScalePlan",
        "metadata": {
            "name": name,
            "namespace": fields.key.namespace,
            "labels": {
                "elasticjob-name": fields.key.name,
                "elasticjob.dlrover/name": fields.key.name,
                "scale-type": "manual",
            },
            "ownerReferences": [{"apiVersion": GROUP, "kind": KIND, "name": fields.key.name, "uid": fields.uid}],
        },
        "spec": {"ownerJob": fields.key.name, "replicaResourceSpecs": {"worker": {"replicas": workers}}},
    }
    path = f"/apis/{GROUP}/namespaces/{fields.key.namespace}/scaleplans"
    return Change("POST", path, body, "application/json")


def _lifecycle(fields: job_kind.JobFields, suspended: bool) -> JobLifecycle:
    """Return the state of a job by its phase. suspended: its spec suspends it, or it has no workers."""
    if fields.status.text("phase") in ("Succeeded", "Failed"):
        return JobLifecycle.DONE
    return JobLifecycle.SUSPENDED if suspended else JobLifecycle.LIVE


def _resize_refusal(spec: ElasticJobSpec, has_bounds: bool) -> str:
    """Return a sentence why the autoscaler must not resize the job; "" if it may.

    has_bounds: annotations set its bounds.
    """
    strategy = spec.distribution_strategy
    if strategy != ALL_REDUCE:
        return f"spec.distributionStrategy is {strategy or 'not set'}: only the workers of {ALL_REDUCE} are alike"
    if spec.optimize_mode == "cluster" or spec.replica_specs.worker.auto_scale:
        return (
            "DLRover resizes it by itself (optimizeMode cluster, or autoScale), "
            "and two autoscalers would overwrite each other"
        )
    if not has_bounds:
        bounds = f"{labels.MIN_WORKERS} and {labels.MAX_WORKERS}"
        return f"it is unknown if its master reads ScalePlans: set {bounds} if it does"
    return ""


def _role(values: PodValues, _: str) -> str:
    """Return the role of a pod, "" if no label states it."""
    return first_value(values, "elasticjob.dlrover/replica-type", "replica-type")


def _index(values: PodValues, _: str) -> int:
    """Return the index of a pod from its labels, 0 without one.

    A master deletes the highest first; a replacement pod gets a new index.
    """
    return number_of(first_value(values, "elasticjob.dlrover/replica-index", "replica-index"))


_PATH_OF_WORKERS = f".{ROLES}.{WORKER}"
ELASTIC_JOB = JobKind(
    KIND,
    PATH,
    read,
    resize,
    recreate_scale_plan=recreate_scale_plan,
    pods=PodIdentity(role=_role, index=_index, index_is_order=True),
    sizes=(),  # a ScalePlan has the size
    creates=("scaleplans",),
    crd=Crd(
        ElasticJobSpec,
        ElasticJobStatus,
        (("Phase", "string", ".status.phase"), ("Workers", "integer", f"{_PATH_OF_WORKERS}.replicas"), AGE),
        pod_template(CONTAINER, _PULL),
        scale=(_PATH_OF_WORKERS, f".status.replicaStatuses.{WORKER}"),
        max_name=MAX_NAME,
    ),
)
SCALE_PLAN_CRD = Crd(
    ScalePlanSpec,
    ScalePlanStatus,
    (("Job", "string", ".spec.ownerJob"), ("Phase", "string", ".status.phase"), AGE),
    max_name=253,
)
