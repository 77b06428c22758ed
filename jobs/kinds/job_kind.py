"""A kind of job: how its objects are read and resized, how it marks its pods, and the fields that kinds share.

Each module of this folder that is named after a kind specifies it. crd.py derives the CustomResourceDefinition of a
kind from its structs. turnout.controllers.kinds makes the pods of the kinds that we run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from turnout.jobs import annotations as job_annotations
from turnout.jobs.fields import MAX_INT32, MAX_PODS, FieldStruct, ObjectPart
from turnout.jobs.kinds.crd import Crd
from turnout.jobs.model import BadJob, Change, Job, JobKey, JobLifecycle, Object, Sizes
from turnout.kube import labels
from turnout.kube.errors import KubeError
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape, shape_of

BOUND_ANNOTATIONS = (labels.MIN_WORKERS, labels.MAX_WORKERS)
SIZE_OWNERS = ("JobSet", "MPIJob", "RayJob", "RayService", "TrainJob")  # owners that restore the sizes of their jobs
MAX_REPLICAS = 10_000  # of a role

# Types of fields, with the bounds that the CustomResourceDefinition states, too.
Count = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Pods = Annotated[int, Meta(ge=0, le=MAX_PODS)]
Replicas = Annotated[int, Meta(ge=0, le=MAX_REPLICAS, extra_json_schema={"maximum": MAX_REPLICAS, "default": 1})]
_PRESERVE_UNKNOWN = Meta(extra_json_schema={"x-kubernetes-preserve-unknown-fields": True})
AnyObject = Annotated[dict[str, Any], _PRESERVE_UNKNOWN]
AnyValue = Annotated[Any, _PRESERVE_UNKNOWN]
# Stays raw, because the controller copies fields that it does not know.
PodTemplate = Annotated[dict[str, Any], Meta(extra={"is_template": True})]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
_Seconds = Annotated[int, Meta(extra_json_schema={"format": "int64"})]  # since 1970
_IMMUTABLE = {
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "spec.runPolicy.managedBy never changes"}]
}


class Restart(Enum):
    """Whether a role's failed pod is recreated."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"
    EXIT_CODE = "ExitCode"  # 128 and above only, as a signal leaves it


class CleanPods(Enum):
    """Which pods are deleted once the job has ended."""

    NONE = "None"
    RUNNING = "Running"  # and pending ones, which would run later
    ALL = "All"


class ReplicaSpec(FieldStruct, frozen=True, kw_only=True):
    """A role of a job, as kubeflow/common has it."""

    replicas: Replicas = 1
    restart_policy: Restart | None = None  # None for the default of the kind
    template: PodTemplate


class SchedulingPolicy(FieldStruct, frozen=True):
    """The gang of a job, as kubeflow/common has it."""

    min_available: Pods | None = None  # pods that start together; None for the default of the kind
    queue: str = ""
    priority_class: str = ""
    min_resources: AnyObject | None = None
    schedule_timeout_seconds: Count | None = None


class RunPolicySpec(FieldStruct, frozen=True):
    """The rules for a job as a whole, as kubeflow/common has it. Times are in seconds, None for no bound."""

    clean_pod_policy: CleanPods | None = None  # None for the default of the kind
    ttl_seconds_after_finished: Count | None = None  # from the end of the job to its deletion
    active_deadline_seconds: Count | None = None  # the longest that it may be active
    backoff_limit: Count | None = None  # restarts of containers, and failed pods
    suspend: bool = False
    managed_by: Annotated[str, Meta(extra_json_schema=_IMMUTABLE)] = ""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class ConditionStatus(FieldStruct, frozen=True):
    """A condition of a job."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_update_time: Time | None = None
    last_transition_time: Time | None = None


class ReplicaStatus(FieldStruct, frozen=True):
    """The pods of one role, and what the controller has to remember of it."""

    active: Count = 0
    succeeded: Count = 0
    failed: Count = 0
    restarts: Count = 0  # of all indices
    selector: str = ""  # labels of its pods
    restarted_pods: list[str] = []  # uids of pods that are counted as restarted
    quick_failures: dict[str, Count] = {}  # failures in a row, by index
    last_failures: dict[str, _Seconds] = {}  # by index


class JobStatus(FieldStruct, frozen=True):
    """The status of a job, as kubeflow/common has it."""

    conditions: list[ConditionStatus] = []
    replica_statuses: Mapping[str, ReplicaStatus] = {}  # by the name of the role
    start_time: Time | None = None
    completion_time: Time | None = None
    last_reconcile_time: Time | None = None


class NamedRole(NamedTuple):
    """A role of a job."""

    name: str  # in the spelling of its operator, such as Worker
    key: str  # in the spelling of the object, such as worker
    where: str  # its path, as in spec.msReplicaSpecs.worker
    spec: ReplicaSpec  # its fields

    @property
    def template(self) -> ObjectPart:
        """Return the pod template of the role."""
        return ObjectPart(self.spec.template, f"{self.where}.template")

    @property
    def pods(self) -> tuple[PodShape, int]:
        """Return (the shape of its pods, the number of its pods). Raises BadJob."""
        return worker_shape(self.template), self.spec.replicas


def named_roles(specs: Mapping[str, ReplicaSpec], names: Sequence[str], where: str) -> dict[str, NamedRole]:
    """Return the roles by name, in the order of `names`. A role that the object does not have is absent.

    specs: the roles by their names in the object, in which upper and lower case do not matter. names: all names that
    are allowed, in the spelling of the operator. where: the path of the roles in the object, for messages. Raises
    BadJob for another name, and for a name that is used twice.
    """
    by_word = {name.lower(): name for name in names}
    roles: dict[str, NamedRole] = {}
    for key, spec in specs.items():
        if (name := by_word.get(key.lower())) is None:
            raise BadJob(f"{where}.{key:.40} is no role: {', '.join(names)} are")
        if name in roles:
            raise BadJob(f"{where} has {name} twice")
        roles[name] = NamedRole(name, key, f"{where}.{key}", spec)
    return {name: roles[name] for name in names if name in roles}


PodValues = Mapping[str, str]  # labels and annotations of a pod, by key
_ROLE_LABELS = (labels.TRAINING_TYPE, labels.VOLCANO_TASK_SPEC)
_NUMBER = re.compile(r"[0-9]{1,9}")
_INDEX_LABELS = (labels.VOLCANO_TASK_INDEX, labels.TRAINING_INDEX, labels.JOB_INDEX)


def pod_role(values: PodValues, _: str) -> str:
    """Return the role of a pod in its job, "" if no label or annotation states it."""
    return first_value(values, *_ROLE_LABELS)


def pod_index(values: PodValues, name: str) -> int:
    """Return the index of a pod in its job, >= 0: from a label or annotation, else from the number at the end of its
    name.

    The labels are those of Volcano, the training operator and Indexed Jobs. name: of the pod. 0 if that value is no
    number of at most nine digits.
    """
    tail = name.rpartition("-")[2]
    return number_of(first_value(values, *_INDEX_LABELS) or tail)


def no_job_name(_: PodValues) -> str:
    """Return "": the pods of this kind have no label with the job's name; the job is their owner."""
    return ""


def first_value(values: PodValues, *keys: str) -> str:
    """Return the value of the first of these keys that is set and not empty, "" for none."""
    return next(filter(None, (values.get(key) for key in keys)), "")


def number_of(text: str) -> int:
    """Return the whole number in a text of up to nine digits, 0 for any other text."""
    return int(text) if _NUMBER.fullmatch(text) else 0


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The functions that find a pod's job, role and index, from its labels and annotations, and its name."""

    job: Callable[[PodValues], str] = no_job_name  # returns the name of the pod's job, "" if its owner is the job
    role: Callable[[PodValues, str], str] = pod_role  # returns the role, "" for none
    index: Callable[[PodValues, str], int] = pod_index  # returns the index; the highest is deleted first
    # True if indexes have gaps, so that only their order counts; of equal indexes the oldest pod is first.
    index_is_order: bool = False


DEFAULT_IDENTITY = PodIdentity()


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job: where its objects are, how to read one, and how to resize one."""

    kind: str  # a name that is unique among all kinds
    path: str  # the path that lists the objects of all namespaces
    read: Callable[[Object], Job]  # returns the job that an object describes; raises BadJob
    # Returns the change to a number of workers. It is called only for jobs that are not refused.
    resize: Callable[[Object, int], Change]
    # Does the same for a kind of which a shrink must name the pods that leave; None for other kinds.
    resize_with_names: Callable[[Object, int, tuple[str, ...]], Change] | None = None
    # Returns the second write of our last resize, the ScalePlan, in case it was lost; None if it was carried out. The
    # object may exist: then the API server answers Conflict, which is no failure.
    recreate_scale_plan: Callable[[Object], Change | None] | None = None
    pods: PodIdentity = DEFAULT_IDENTITY  # how the job, role and index of its pods are found
    object_kind: str = ""  # the kind in the objects, if several API groups share it; "" if it equals `kind`
    sizes: tuple[str, ...] | None = None  # fields that a resize may change; None for a kind that is never resized
    creates: tuple[str, ...] = ()  # resources (plural names) of which a resize creates an object
    crd: Crd | None = None  # its CustomResourceDefinition; None for a kind that others define

    @property
    def group(self) -> str:
        """Return the API group of the objects."""
        return self.api_version.partition("/")[0]

    @property
    def plural(self) -> str:
        """Return the name of the kind's objects in paths."""
        return self.path.rpartition("/")[2]

    @property
    def api_version(self) -> str:
        """Return the `GROUP/VERSION` of the objects."""
        return self.path.removeprefix("/apis/").rpartition("/")[0]

    def change(self, raw: Object, workers: int, leaving: tuple[str, ...] = ()) -> Change:
        """Return the write that changes the job to this number of workers. Raises BadJob.

        raw: the job's object, valid and not refused. workers: the new size. leaving: the names of the pods that should
        leave; a kind whose resize cannot name pods ignores them.
        """
        if self.resize_with_names is None:
            return self.resize(raw, workers)
        return self.resize_with_names(raw, workers, leaving)


@dataclass(frozen=True, slots=True)
class JobFields:
    """The metadata, spec and status of a job's object."""

    key: JobKey
    uid: str
    version: str  # the resourceVersion
    created: str  # the creationTimestamp, RFC 3339
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    spec: ObjectPart  # empty if it is absent
    status: ObjectPart  # empty if it is absent
    owner_kind: str = ""  # the kind of its controller owner, "" for none
    owner_uid: str = ""  # the UID of its controller owner, "" for none
    is_deleted: bool = False  # True if it has a deletionTimestamp

    def first_value(self, *keys: str) -> str:
        """Return the value of the first of these keys that is set and not empty; "" for none.

        For each key a label is preferred to an annotation.
        """
        values = (self.labels.get(key) or self.annotations.get(key) for key in keys)
        return next(filter(None, values), "")


@dataclass(frozen=True, slots=True)
class SizeFields:
    """The size and the bounds of a job by its own fields, in pods."""

    replicas: int  # the current size, >= 0
    minimum: int  # the min, >= 1
    maximum: int  # the max, >= minimum
    template: ObjectPart  # the pod template of a worker
    fixed_field: str = ""  # the field that sets the bounds, if annotations may only narrow them; else ""
    unit: int = 1  # pods that are added or removed together, >= 1


def read_head(raw: Object, kind: str) -> JobFields:
    """Return the metadata, spec and status of a job's object. An absent spec or status is an empty part.

    kind: the unique name of its kind, JobKind.kind. Raises BadJob without a name, and if the metadata are malformed.
    """
    object_part = ObjectPart(raw)
    meta = object_part.part("metadata")
    if not meta.text("name"):
        raise BadJob(f"a {kind} without metadata.name")
    owners = [each for each in meta.parts("ownerReferences") if each.flag("controller")]
    return JobFields(
        JobKey(kind, meta.text("namespace"), meta.text("name")),
        meta.text("uid"),
        meta.text("resourceVersion"),
        meta.text("creationTimestamp"),
        meta.text_map("annotations"),
        meta.text_map("labels"),
        object_part.part("spec"),
        object_part.part("status"),
        owner_kind=owners[0].text("kind") if owners else "",
        owner_uid=owners[0].text("uid") if owners else "",
        is_deleted=bool(meta.text("deletionTimestamp")),
    )


def build_job(
    fields: JobFields, sized: SizeFields, queue: str, priority: Any = None, priority_class: str = "", **job_fields: Any
) -> Job:
    """Return the job that the fields of its kind and our annotations describe. Raises BadJob.

    fields: the metadata, spec and status of its object. sized: the size and bounds by the fields of its kind. queue:
    its name, "" for none. priority: the priority in a field of the kind, of any type, None for none; it must be 0 to
    100 unless our annotation replaces it. priority_class: "" for that of the pod template. job_fields: fields of Job
    that only this kind sets. If `refused` is absent or "", the job's owner or gang may refuse instead. A job that is
    being deleted is DONE, whatever `lifecycle` is.
    """
    annotations, sizes = fields.annotations, _sizes(fields.annotations, sized.unit)
    pause, ends_s = job_annotations.pause(annotations)
    pod_notes = sized.template.part("metadata").text_map("annotations")
    bounds = job_annotations.bounds(annotations, sized.minimum, sized.maximum, sizes, sized.fixed_field)
    gang_min = bounds.minimum + sum(count for _, count in job_fields.get("other_roles", ()))
    job_fields["refused"] = job_fields.get("refused") or _owner_refusal(fields) or _gang_refusal(pod_notes, gang_min)
    job_fields |= (
        {"lifecycle": JobLifecycle.DONE} if fields.is_deleted else {}
    )  # a job that is being deleted gets no more pods
    return Job(
        fields.key,
        fields.uid,
        fields.version,
        queue=queue,
        replicas=sized.replicas,
        bounds=bounds,
        shape=worker_shape(sized.template),
        order=job_annotations.order(annotations, priority),
        created=fields.created,
        sizes=sizes,
        wanted_workers=job_annotations.manual_size(annotations, sized.replicas),
        reapplied_size=job_annotations.reapplied_size(annotations, sized.replicas),
        pause=pause,
        pause_ends_s=ends_s,
        cooldown_s=job_annotations.duration_s(annotations, labels.COOLDOWN, labels.VOLCANO_COOLDOWN),
        resize_budget=job_annotations.resize_budget(annotations),
        curve=job_annotations.curve(annotations),
        curve_measured=labels.CURVE not in annotations,
        kueue_boosted=labels.KUEUE_BOOST in annotations,
        spread=job_annotations.spread(pod_notes),
        priority_class=priority_class or sized.template.part("spec").text("priorityClassName"),
        part_of=fields.owner_uid,
        **job_fields,
    )


def worker_shape(template: ObjectPart) -> PodShape:
    """Return the shape of a pod of this pod template. Raises BadJob if the pod's spec cannot be read."""
    spec = template.part("spec").value
    try:
        return shape_of(msgspec.convert({"metadata": {}, "spec": spec}, Pod))
    except (msgspec.ValidationError, KubeError, AttributeError) as error:
        raise BadJob(f"{template.at('spec')}: {error}") from error


def state_by_conditions(fields: JobFields, suspended: bool, final_types: tuple[str, ...]) -> JobLifecycle:
    """Return DONE if one of the final conditions in the job's status is "True", else SUSPENDED or LIVE.

    suspended: True if the job's spec suspends it. final_types: the types of the conditions that end the job. Raises
    BadJob if the conditions are malformed.
    """
    conditions = {each.text("type"): each.text("status") for each in fields.status.parts("conditions")}
    if any(conditions.get(end) == "True" for end in final_types):
        return JobLifecycle.DONE
    return JobLifecycle.SUSPENDED if suspended else JobLifecycle.LIVE


def manager_refusal(manager: str, where: str, own_manager: str) -> str:
    """Return "" if the kind's own controller manages a job, else the reason, as a sentence, why it must not be resized.

    manager: the value of managedBy, "" if absent. where: the path of managedBy in the object. own_manager: the value
    that means the kind's own controller.
    """
    return "" if manager in ("", own_manager) else f"{where} is {manager}: its pods are made elsewhere"


def kueue_refusal(fields: JobFields) -> str:
    """Return "" if Kueue lets a job be resized, else the reason, as a sentence, why it must not be resized.

    Kueue resizes a job of one of its queues only with the elastic annotation; it would evict the whole job without it.
    """
    if fields.labels.get(labels.KUEUE_QUEUE) and fields.annotations.get(labels.KUEUE_ELASTIC) != "true":
        return f"Kueue holds it and {labels.KUEUE_ELASTIC} is not true: a resize would evict the whole job"
    return ""


def refuse_if_gang_differs(job: Job, gang: SchedulingPolicy, default: str) -> Job:
    """Return the job, or a copy with `refused` set if the min of its gang is not the min of the job with all roles.

    gang: the schedulingPolicy of the job; an empty one is not checked. default: the pods that an absent minAvailable
    means, in words, for the sentence. A job that is refused already is returned unchanged.
    """
    if job.refused or gang == SchedulingPolicy():
        return job
    where, min_available = "spec.runPolicy.schedulingPolicy.minAvailable", gang.min_available
    needed = job.bounds.minimum + sum(count for _, count in job.other_roles)
    if min_available is None:
        return replace(job, refused=f"{where} is not set, so its gang needs {default}: set it to {needed}")
    if min_available != needed:
        own_min = f"the job's min with all roles is {needed} pods"
        return replace(job, refused=f"{where} is {min_available}, and {own_min}: both must be equal")
    return job


def resize_patch(
    job: Job, annotations: Mapping[str, str], path: str, workers: int, spec: Any, *bound_keys: str
) -> Change:
    """Return the merge patch that resizes a job to `workers`, valid only for the resourceVersion in `job`.

    The patch also records the written size, at the first resize the submitted size, and a manual size. annotations:
    those that the job has now. path: of the URL that lists the kind's objects in all namespaces. spec: the changed
    fields of the spec, None for none. bound_keys: keys of BOUND_ANNOTATIONS (the min and the max), each of which is
    written if the job does not have it: such a job has no bound of its own, its bound was the size in the object, which
    this patch changes.
    """
    new_annotations = {labels.WROTE_WORKERS: str(workers)}
    if labels.WROTE_WORKERS not in annotations and job.replicas > 0:
        new_annotations[labels.SUBMITTED_WORKERS] = str(job.replicas)
    if job.wanted_workers is not None:
        new_annotations[labels.WISH_WORKERS] = str(job.wanted_workers)
    bound_values = {labels.MIN_WORKERS: str(job.bounds.minimum), labels.MAX_WORKERS: str(job.bounds.maximum)}
    new_annotations |= {key: bound_values[key] for key in bound_keys if key not in annotations}
    body = {
        "metadata": {"resourceVersion": job.version, "annotations": new_annotations},
        **({"spec": spec} if spec else {}),
    }
    group, _, name = path.rpartition("/")
    return Change("PATCH", f"{group}/namespaces/{job.key.namespace}/{name}/{job.key.name}", body)


def resize_refused(why: str) -> Callable[[Object, int], Change]:
    """Return a resize function that always raises BadJob, for a kind whose jobs are never resized. why: the reason."""

    def resize(_: Object, workers: int) -> Change:
        raise BadJob(f"cannot be resized to {workers} workers: {why}")

    return resize


def _sizes(annotations: Mapping[str, str], unit: int) -> Sizes:
    """Return the sizes that both the owner's annotation and the kind allow.

    annotations: of the job. unit: pods that the kind adds or removes together, >= 1. Raises BadJob if the annotation is
    unreadable or no multiple of the unit.
    """
    chosen = job_annotations.sizes(annotations)
    if chosen.doubles:
        return Sizes(unit, doubles=True)
    if labels.UNIT in annotations and chosen.unit % unit:
        raise BadJob(
            f"annotation {labels.UNIT} is {chosen.unit}: it must be a multiple of {unit}, the number of pods that this "
            "kind adds and removes together"
        )
    return Sizes(max(unit, chosen.unit))


def _owner_refusal(fields: JobFields) -> str:
    """Return why a job must not be resized because its owner would restore the size; "" if no owner does."""
    return f"its {fields.owner_kind} created it and sets its size" if fields.owner_kind in SIZE_OWNERS else ""


def _gang_refusal(pod_annotations: Mapping[str, str], minimum: int) -> str:
    """Return why a job must not be resized: the koordinator gang of its pods needs more pods than the job's min.

    "" if the gang needs no more, or states no readable min. pod_annotations: of the pod template. minimum: the min of
    the job, the pods of all roles included.
    """
    gang_min = pod_annotations.get(labels.KOORD_MIN, "")
    if re.fullmatch(r"[0-9]{1,7}", gang_min) is None or int(gang_min) <= minimum:
        return ""
    floor_text = f"{labels.KOORD_MIN} of its pods is {gang_min}, more than its min of {minimum}"
    return f"{floor_text}: after a resize to its min the gang could not start again"


def command_words(template: ObjectPart) -> tuple[str, ...]:
    """Return the words of all containers' commands and arguments, each text split at spaces. Raises BadJob."""
    containers = template.part("spec").parts("containers")
    texts = [text for each in containers for text in (*each.texts("command"), *each.texts("args"))]
    return tuple(word for text in texts for word in text.split())


def flag_value(words: tuple[str, ...], *names: str) -> str:
    """Return the value of the first word of a command line that is one of these flags; "" if there is none, or if no
    value follows it.

    words: the command line, with `--name value` or `--name=value`. names: of the flags, with their dashes.
    """
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next(iter(words[position + 1 : position + 2]), "")
    return ""


def number_range(text: str) -> tuple[int, int] | None:
    """Return (min, max) of a text such as torchrun's --nnodes: `2:8`, or `4` for (4, 4). None for any other text.

    Numbers are 1 to 999999. It is not checked that the min is at most the max.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,5})(?::([1-9][0-9]{0,5}))?", text)
    return None if match is None else (int(match[1]), int(match[2] or match[1]))
