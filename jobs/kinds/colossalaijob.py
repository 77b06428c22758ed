"""ColossalAIJobs of T9k. They are never resized, but they count in their queue and have a priority.

The controller in turnout.controllers.kinds makes the pods. Contract: CA-01 to CA-42, CA-49 to CA-59
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from turnout.jobs.fields import FieldStruct, ObjectPart, decode
from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.crd import AGE, Crd, Rules, pod_template, rules
from turnout.jobs.kinds.job_kind import (
    MAX_REPLICAS,
    AnyObject,
    ConditionStatus,
    Count,
    JobKind,
    PodIdentity,
    PodTemplate,
    PodValues,
    Time,
)
from turnout.jobs.model import Job, JobLifecycle, Object
from turnout.kube import labels

KIND, PATH = "ColossalAIJob", "/apis/batch.tensorstack.dev/v1beta1/colossalaijobs"
LAUNCHER, WORKER = "launcher", "worker"
REFUSAL = "colossalai run reads its list of hosts once, at its start: another size needs a new start"

_TEXT = {"type": "string"}
_Texts = Annotated[list[str], Meta(max_length=1024)]
_ABSOLUTE = rules([("self.startsWith('/')", "spec.ssh.sshdPath: an absolute path is needed")])
_CONTAINER = {
    "properties": {"image": _TEXT, "workingDir": _TEXT},
    "required": ["image"],
    "x-kubernetes-preserve-unknown-fields": True,
}
_Workers = Annotated[int, Meta(ge=1, le=MAX_REPLICAS, extra_json_schema={"maximum": MAX_REPLICAS, "default": 1})]


class Ssh(FieldStruct, frozen=True):
    """How the launcher reaches the workers."""

    auth_mount_path: str = ""  # of the keys; "" for ~/.ssh
    sshd_path: Annotated[str, Meta(extra_json_schema={"x-kubernetes-validations": _ABSOLUTE})] = ""


class ColossalWorkers(FieldStruct, frozen=True, kw_only=True):
    """The workers, and the script that they train."""

    replicas: _Workers = 1
    proc_per_worker: Annotated[int, Meta(ge=1, extra_json_schema={"default": 1})] = 1  # processes of one pod
    command: Annotated[_Texts, Meta(extra_json_schema={"minItems": 1})]  # a .py file or -m, and arguments
    torch_args: _Texts = []  # further options of torchrun
    template: PodTemplate


class ColossalRunPolicy(FieldStruct, frozen=True):
    """The cleanup after the end of the job."""

    clean_up_workers: bool = False


class ReplicaOverride(FieldStruct, frozen=True, kw_only=True):
    """The changes that a mode of the job makes in the pods of one role. Empty fields change nothing."""

    type: str  # launcher or worker, in any case
    skip_init_container: bool = False  # True if the pod has no init container
    command: _Texts = []  # of the container, [] for no change
    args: _Texts = []  # of the container, [] for no change


_Overrides = Annotated[list[ReplicaOverride], Meta(max_length=8)]


class DebugMode(FieldStruct, frozen=True):
    """The pods run without training."""

    enabled: bool = False
    replica_specs: _Overrides = []


class PauseMode(FieldStruct, frozen=True):
    """The pods are deleted."""

    enabled: bool = False
    resume_specs: _Overrides = []  # of the pods after the pause


class RunMode(FieldStruct, frozen=True):
    """The mode of a job."""

    debug: DebugMode = DebugMode()
    pause: PauseMode = PauseMode()


class T9kScheduler(FieldStruct, frozen=True):
    """The place of a job in the queue of T9k's scheduler."""

    queue: str = ""
    priority: Annotated[int, Meta(ge=0, le=100, extra_json_schema={"maximum": 100})] = 0


class SchedulerSpec(FieldStruct, frozen=True):
    """The scheduler of the pods."""

    t9k_scheduler: T9kScheduler | None = None  # None for the cluster's default scheduler


def _unchanged(*fields: str) -> tuple[str, str]:
    """Return (CEL rule, message): a field of the spec, once set, can be neither changed nor removed.

    fields: the names on the path of the field, as in ("runMode", "pause").
    """
    paths = [".".join(fields[: depth + 1]) for depth in range(len(fields))]
    was_set, is_set = (" && ".join(f"has({each}.{path})" for path in paths) for each in ("oldSelf", "self"))
    path = paths[-1]
    return (
        f"!({was_set}) || ({is_set} && self.{path} == oldSelf.{path})",
        f"spec.{path} must not change once it is set",
    )


class ColossalAIJobSpec(FieldStruct, frozen=True, kw_only=True):
    """The spec of a ColossalAIJob."""

    ssh: Ssh = Ssh()
    launcher: Annotated[dict[str, Any], Meta(extra_json_schema=_CONTAINER)]  # a container, without its name
    worker: ColossalWorkers
    run_policy: ColossalRunPolicy = ColossalRunPolicy()
    run_mode: RunMode = RunMode()
    scheduler: SchedulerSpec = SchedulerSpec()

    RULES: ClassVar[Rules] = (_unchanged("runMode", "pause", "resumeSpecs"),)


class ColossalReplicaStatus(FieldStruct, frozen=True):
    """One pod."""

    phase: str = ""
    name: str = ""
    uid: str = ""
    message: str = ""
    containers: list[AnyObject] = []


class ColossalTaskStatus(FieldStruct, frozen=True):
    """The pods of one role, under both names that the manuals have for the list."""

    type: str = ""
    restart_count: Count = 0
    status: list[ColossalReplicaStatus] = []
    replicas: list[ColossalReplicaStatus] = []


class ColossalCounts(FieldStruct, frozen=True):
    """The pods of the job by phase."""

    creating: Count = 0
    pending: Count = 0
    running: Count = 0
    succeeded: Count = 0
    failed: Count = 0
    deleted: Count = 0
    unknown: Count = 0


class ColossalAIJobStatus(FieldStruct, frozen=True):
    """The status of a ColossalAIJob."""

    phase: str = ""
    conditions: list[ConditionStatus] = []
    tasks: list[ColossalTaskStatus] = []
    aggregate: ColossalCounts = ColossalCounts()
    start_time: Time | None = None
    completion_time: Time | None = None


def read_spec(part: ObjectPart) -> ColossalAIJobSpec:
    """Return the spec of a job. Raises BadJob."""
    return decode(ColossalAIJobSpec, part)


def launcher_template(spec: ColossalAIJobSpec) -> ObjectPart:
    """Return the pod template of the launcher."""
    return ObjectPart({"spec": {"containers": [{**spec.launcher, "name": LAUNCHER}]}}, "spec.launcher")


def worker_template(spec: ColossalAIJobSpec) -> ObjectPart:
    """Return the pod template of the workers."""
    return ObjectPart(spec.worker.template, "spec.worker.template")


def read(raw: Object) -> Job:
    """Return the job that a ColossalAIJob describes. Its `refused` is REFUSAL: it is never resized. Raises BadJob.

    Without our annotations its size is both its min and its max.
    """
    fields = job_kind.read_head(raw, KIND)
    spec = read_spec(fields.spec)
    queue, replicas = spec.scheduler.t9k_scheduler or T9kScheduler(), spec.worker.replicas
    return job_kind.build_job(
        fields,
        job_kind.SizeFields(replicas, replicas, replicas, worker_template(spec)),
        queue=queue.queue or fields.first_value(labels.QUEUE),
        priority=queue.priority,
        role=WORKER,
        other_roles=((job_kind.worker_shape(launcher_template(spec)), 1),),
        lifecycle=_lifecycle(fields, spec),
        refused=REFUSAL,
    )


def _lifecycle(fields: job_kind.JobFields, spec: ColossalAIJobSpec) -> JobLifecycle:
    """Return the state of a job by its phase; a job that has not ended and whose pause mode is enabled is suspended."""
    if fields.status.text("phase") in ("Succeeded", "Failed"):
        return JobLifecycle.DONE
    return JobLifecycle.SUSPENDED if spec.run_mode.pause.enabled else JobLifecycle.LIVE


def _role(values: PodValues, name: str) -> str:
    """Return the role of a pod, by the label of T9k's scheduler, else by the end of the pod's name."""
    return values.get("scheduler.tensorstack.dev/role") or (LAUNCHER if name.endswith("-launcher") else WORKER)


COLOSSALAI_JOB = JobKind(
    KIND,
    PATH,
    read,
    job_kind.resize_refused(REFUSAL),
    pods=PodIdentity(role=_role),
    crd=Crd(
        ColossalAIJobSpec,
        ColossalAIJobStatus,
        (("Phase", "string", ".status.phase"), ("Workers", "integer", ".spec.worker.replicas"), AGE),
        pod_template(WORKER),
    ),
)
