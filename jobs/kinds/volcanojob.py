"""Volcano Jobs: minAvailable is the min, a task's replicas are the max. Source: docs/facts/autoscaling.md 5; VE-14,
VE-15, VE-26.

Running pods keep the hosts and numbers that the env plugin set; the file of hosts follows the size. Fields and bounds
of the definition are those of Volcano's; it is for clusters in which Volcano has not installed its own, and the
controller in turnout.controllers.kinds makes the pods there.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from turnout.jobs.fields import FieldStruct, ObjectPart, decode
from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.crd import AGE, ANY_OBJECT, TEXT, Crd, Rules
from turnout.jobs.kinds.job_kind import Count, JobKind, Pods, PodTemplate, Time
from turnout.jobs.model import BadJob, Change, Job, JobLifecycle, Object
from turnout.kube import labels

KIND, PATH = "VolcanoJob", "/apis/batch.volcano.sh/v1alpha1/jobs"
# The phases of a job.
PENDING, RUNNING, RESTARTING = "Pending", "Running", "Restarting"
ABORTING, ABORTED, TERMINATING, TERMINATED = "Aborting", "Aborted", "Terminating", "Terminated"
COMPLETING, COMPLETED, FAILED = "Completing", "Completed", "Failed"
# The phase that follows a phase in which pods are being deleted.
NEXT = {ABORTING: ABORTED, TERMINATING: TERMINATED, COMPLETING: COMPLETED}
ENDS = (ABORTED, TERMINATED, COMPLETED, FAILED)
DEFAULT_QUEUE = "default"
_EVICTION = ("PodEvicted", "*")  # the events that an eviction of a pod raises
_HARMLESS = ("", "SyncJob")  # the actions that neither restart nor end pods
_FIXED_WORLDS = ("mpi", "pytorch", "tensorflow")  # plugins that set the world size when a pod is created
# Of Volcano's schema; our controller acts on three of them and refuses the others.
_EVENTS = ("*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated")
_OTHER_EVENTS = ("PodRunning", "OutOfSync", "CommandIssued")


def _one_of(*words: str) -> Meta:
    """Return the constraint of a text to these words, for the schema only."""
    return Meta(extra_json_schema={"enum": list(words)})


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of an object. properties: schemas by field. required: names of fields."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


_COUNT = {"type": "integer", "format": "int32", "minimum": 0}
_POSITIVE = {**_COUNT, "minimum": 1}
_LONG_TEXT = {"type": "string", "maxLength": 253}
_TOPOLOGY = _object(
    {
        "mode": {"type": "string", "enum": ["hard", "soft"], "default": "hard"},
        "highestTierAllowed": {"type": "integer", "minimum": 0},
        "highestTierName": _LONG_TEXT,
    }
)
_VOLUME = _object({"mountPath": TEXT, "volumeClaimName": _LONG_TEXT, "volumeClaim": ANY_OBJECT}, "mountPath")
_PARTITIONS = _object(
    {
        "totalPartitions": _POSITIVE,
        "partitionSize": _POSITIVE,
        "minPartitions": {**_COUNT, "default": 0},
        "networkTopology": _TOPOLOGY,
    },
    "partitionSize",
    "totalPartitions",
)
_DEPENDENCY = _object({"name": {"type": "array", "items": TEXT}, "iteration": TEXT})
_POD = _object({"containers": {"type": "array", "items": ANY_OBJECT, "minItems": 1}}, "containers")
_TEMPLATE = _object({"metadata": ANY_OBJECT, "spec": {**_POD, "x-kubernetes-preserve-unknown-fields": True}}, "spec")

_Name = Annotated[str, Meta(extra_json_schema={"maxLength": 63})]
_LongName = Annotated[str, Meta(extra_json_schema={"maxLength": 253})]
_Event = Annotated[str, _one_of(*_EVENTS, *_OTHER_EVENTS)]
_Topology = Annotated[dict[str, Any], Meta(extra_json_schema=_TOPOLOGY)]
_Volumes = list[Annotated[dict[str, Any], Meta(extra_json_schema=_VOLUME)]]


class VolcanoPolicy(FieldStruct, frozen=True):
    """An event or an exit code, and the action that it causes."""

    action: str = ""
    event: _Event = ""
    events: list[_Event] = []
    timeout: str = ""
    exit_code: int | None = None  # of a container, instead of an event


class VolcanoTask(FieldStruct, frozen=True, kw_only=True):
    """Pods of a job that differ by their index only."""

    name: _Name = ""  # "" for default and the number of the task
    replicas: Pods = 1
    min_available: Pods | None = None  # pods that the gang needs; None for all
    template: PodTemplate
    policies: list[VolcanoPolicy] = []
    topology_policy: Annotated[str, _one_of("none", "best-effort", "restricted", "single-numa-node")] = ""
    max_retry: Annotated[int, Meta(extra_json_schema={"minimum": -1})] | None = None
    depends_on: Annotated[dict[str, Any], Meta(extra_json_schema=_DEPENDENCY)] | None = None
    partition_policy: Annotated[dict[str, Any], Meta(extra_json_schema=_PARTITIONS)] | None = None


class VolcanoJobSpec(FieldStruct, frozen=True, kw_only=True):
    """The spec of a Volcano Job."""

    scheduler_name: _Name = ""
    min_available: Pods | None = None  # pods of all tasks that start together; None for the sum of the tasks' own
    volumes: _Volumes = []
    tasks: Annotated[list[VolcanoTask], Meta(extra_json_schema={"maxItems": 1_024})]
    policies: list[VolcanoPolicy] = []
    plugins: dict[str, list[str] | None] = {}  # options by plugin
    running_estimate: str = ""
    queue: Annotated[_LongName, Meta(extra_json_schema={"default": DEFAULT_QUEUE})] = ""
    max_retry: Annotated[Count, Meta(extra_json_schema={"default": 3})] = 0  # 0 for the default
    ttl_seconds_after_finished: Count | None = None
    priority_class_name: _LongName = ""
    min_success: Annotated[Pods, Meta(extra_json_schema={"minimum": 1})] = 0  # 0 counts as absent
    network_topology: _Topology | None = None

    RULES: ClassVar[Rules] = (("self.tasks.size() > 0", "spec.tasks is empty: a job has one task at least"),)


class VolcanoState(FieldStruct, frozen=True):
    """The phase of a job."""

    phase: Annotated[str, _one_of(PENDING, RUNNING, RESTARTING, *NEXT, *ENDS)] = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Time | None = None


class VolcanoTaskStatus(FieldStruct, frozen=True):
    """The pods of one task by phase."""

    phase: dict[str, Count] = {}


class VolcanoCondition(FieldStruct, frozen=True):
    """A phase that the job has had."""

    status: str = ""
    last_transition_time: Time | None = None


class VolcanoJobStatus(FieldStruct, frozen=True):
    """The status of a Volcano Job. Counts are of pods."""

    state: VolcanoState = VolcanoState()
    min_available: Count = 0
    pending: Count = 0
    running: Count = 0
    succeeded: Count = 0
    failed: Count = 0
    terminating: Count = 0
    unknown: Count = 0
    version: Count = 0  # of the pods: a restart increments it
    retry_count: Count = 0
    task_status_count: dict[str, VolcanoTaskStatus] = {}
    running_duration: str = ""
    controlled_resources: dict[str, str] = {}
    conditions: list[VolcanoCondition] = []


def read_spec(part: ObjectPart) -> VolcanoJobSpec:
    """Return the spec of a job. Raises BadJob for a wrong field, and for a job without tasks."""
    spec = decode(VolcanoJobSpec, part)
    if not spec.tasks:
        raise BadJob("spec.tasks is empty: a job has one task at least")
    return spec


def task_name(task: VolcanoTask, number: int) -> str:
    """Return the name of a task. number: its position in spec.tasks, from 0."""
    return task.name or f"default{number}"


def template_of(task: VolcanoTask, number: int) -> ObjectPart:
    """Return the pod template of a task. number: its position in spec.tasks, from 0."""
    return ObjectPart(task.template, f"spec.tasks[{number}].template")


def read(raw: Object) -> Job:
    """Return the job that a Volcano Job describes. Raises BadJob.

    Its workers are the pods of one task, that of _elastic_task(). Its max is the replicas of this task, its min
    spec.minAvailable less the pods of all other tasks, at least 1 and at most the max; without it all replicas.
    Annotations may replace both.
    """
    fields = job_kind.read_head(raw, KIND)
    spec = read_spec(fields.spec)
    index = _elastic_task(spec.tasks)
    task = spec.tasks[index]
    replicas = task.replicas
    other_pods = sum(each.replicas for each in spec.tasks) - replicas
    min_available = replicas + other_pods if spec.min_available is None else spec.min_available
    minimum = min(replicas, max(1, min_available - other_pods))
    return job_kind.build_job(
        fields,
        job_kind.SizeFields(replicas, max(1, minimum), max(1, replicas), template_of(task, index)),
        queue=spec.queue or DEFAULT_QUEUE,
        priority_class=spec.priority_class_name,
        role=task_name(task, index),
        other_roles=tuple(
            (job_kind.worker_shape(template_of(each, position)), each.replicas)
            for position, each in enumerate(spec.tasks)
            if position != index
        ),
        lifecycle=_lifecycle(fields, replicas),
        refused=_resize_refusal(spec, task, minimum + other_pods),
    )


def _lifecycle(fields: job_kind.JobFields, replicas: int) -> JobLifecycle:
    """Return the state of a job by its phase; a job that has not ended and has no replicas is suspended."""
    if fields.status.part("state").text("phase") in ENDS:
        return JobLifecycle.DONE
    return JobLifecycle.LIVE if replicas else JobLifecycle.SUSPENDED


def resize(raw: Object, workers: int) -> Change:
    """Return the patch to this number of replicas of the elastic task. Raises BadJob.

    The task's minAvailable becomes _own_min(), at most `workers`. The max is recorded in an annotation. raw: the
    Volcano Job.
    """
    fields, job = job_kind.read_head(raw, KIND), read(raw)
    spec = read_spec(fields.spec)
    number = _elastic_task(spec.tasks)
    tasks: list[Any] = [dict(part.value) for part in fields.spec.parts("tasks")]
    tasks[number] |= {"replicas": workers, "minAvailable": min(workers, _own_min(spec.tasks[number], job))}
    return job_kind.resize_patch(job, fields.annotations, PATH, workers, {"tasks": tasks}, labels.MAX_WORKERS)


def _own_min(task: VolcanoTask, job: Job) -> int:
    """Return the min of a task, in pods: its minAvailable if that is less than its replicas, else the min of `job`."""
    minimum = job.bounds.minimum if task.min_available is None else task.min_available
    return minimum if minimum < task.replicas else job.bounds.minimum


def _elastic_task(tasks: list[VolcanoTask]) -> int:
    """Return the index of the task that is resized: the first one named worker or workers; else the task with the most
    replicas, of several the last.
    """
    named = [number for number, task in enumerate(tasks) if task.name in ("worker", "workers")]
    return named[0] if named else max(range(len(tasks)), key=lambda number: (tasks[number].replicas, number))


def _resize_refusal(spec: VolcanoJobSpec, task: VolcanoTask, min_pods: int) -> str:
    """Return a sentence why the autoscaler must not resize the job; "" if it may.

    task: the one that would be resized. min_pods: the min of the job with all tasks, in pods.
    """
    for where, policies in (("spec", spec.policies), ("the task", task.policies)):
        for policy in policies:
            if {policy.event, *policy.events} & {*_EVICTION} and policy.action not in _HARMLESS:
                return f"{where} does {policy.action} on PodEvicted, which each shrink would set off"
    if task.partition_policy:
        return "its task has a partitionPolicy, which fixes the number of replicas"
    for plugin in _FIXED_WORLDS:
        if plugin in spec.plugins:
            return f"its plugin {plugin} writes the number of pods into each pod only at the creation of the pod"
    if spec.min_success > min_pods:
        return f"spec.minSuccess is more than its min of {min_pods} pods: a shrunk job could not end"
    return ""


VOLCANO_JOB = JobKind(
    KIND,
    PATH,
    read,
    resize,
    object_kind="Job",
    sizes=("spec.tasks[].replicas", "spec.tasks[].minAvailable"),
    crd=Crd(
        VolcanoJobSpec,
        VolcanoJobStatus,
        (
            ("Status", "string", ".status.state.phase"),
            ("minAvailable", "integer", ".status.minAvailable"),
            ("Runnings", "integer", ".status.running"),
            AGE,
            ("Queue", "string", ".spec.queue"),
        ),
        _TEMPLATE,
        short_names=("vcjob", "vj"),
    ),
)
