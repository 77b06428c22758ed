"""The nouns of the job controllers: a job as its object states it, its children, its kind, and the writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from turnout.jobs.kinds.job_kind import CleanPods, Restart

Object = Mapping[str, Any]
JUMP_S = 10.0  # between two readings of the clock, and from a clock jump to the decisions that it delays


class Reason(Enum):
    """Why something was done or refused. The same word stands in log, metric, Event, condition and test."""

    CREATED = "Created"
    GANG_STARTED = "GangStarted"  # as many pods as the gang's min have started, for jobs with a limit for that
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    INVALID = "Invalid"  # the object is invalid: a field is named
    TOO_LARGE = "TooLarge"  # its children would be too many bytes together
    NAME_TAKEN = "NameTaken"  # an object of somebody else has the name of a child
    ADVICE = "Advice"  # the job runs, and may surprise its owner
    NOT_OFFERED = "NoNodeOffers"  # no node offers a device that a role requests
    BACK_OFF = "BackOff"  # a pod that failed several times is recreated after a pause
    NOT_CREATED = "CreationFailed"  # the API server refuses a child: a quota, a policy
    FAULT = "ControllerFault"  # an internal error keeps the job waiting
    CLOCK_JUMPED = "ClockJumped"  # an end or a deletion by time is delayed for two readings of the clock


class JobPhase(Enum):
    """The phase of a job of any kind."""

    PENDING = "pending"  # not all of its pods run yet
    RUNNING = "running"
    RESTARTING = "restarting"
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class RestartReason(Enum):
    """Why a pod is recreated, or a whole job restarted."""

    OUT_OF_MEMORY = "out_of_memory"
    EVICTED = "evicted"  # by the kubelet, a drain, a preemption or a deletion
    FAULTY_NODE = "faulty_node"  # the pod found its node faulty, by its exit code
    PROCESS_FAILED = "process_failed"  # any other end of a container
    TASK_COMPLETED = "task_completed"  # a policy of the job asks for a restart then


class JobKey(NamedTuple):
    """The path of its group (`/apis/GROUP/VERSION`), the namespace and the name of a job."""

    api: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ChildLabels:
    """The labels by which the children of a kind are found."""

    job: str  # on every child; its value is the job's name
    role: str  # its value is the label of the role
    index: str  # its value is the index of the replica
    mode: str = ""  # its value is the mode of the job for which a pod was created, "" for kinds with one mode


KUBEFLOW = ChildLabels(
    "training.kubeflow.org/job-name", "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
)


class ChildKey(NamedTuple):
    """The kind and the name of a child; its namespace is the job's."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Role:
    """Pods that differ by their index only."""

    name: str  # as upstream spells it, "Worker"
    replicas: int  # >= 0
    template: Object  # of a pod
    restart: Restart  # the restart policy of its pods
    max_restarts: int | None = None  # how often one index may be recreated, None for no bound
    survives_cleanup: bool = False  # its pods outlive the cleanup of an ended job
    outside_gang: bool = False  # its pods are no members of the job's gang and do not wait for it
    added_bytes: int = 0  # JSON bytes that its kind adds to each pod's template, if they grow with the job

    @property
    def label(self) -> str:
        """The role's name in labels and in names of pods: in lower case."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica that has to be created."""

    index: int  # 0 to replicas - 1; the replacement of a pod gets the same index
    number: int  # in the pod's name; never used twice if the kind has `unique_pod_names`, else the index
    restarts: int = 0  # restarts of this index so far
    oom_kills: int = 0  # restarts of this index after an OOM kill
    avoids: tuple[str, ...] = ()  # names of nodes that pods of its role found faulty


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The policy of a job as a whole. Times are in seconds, None for no bound."""

    suspended: bool = False
    clean_pods: CleanPods = CleanPods.NONE  # which pods are deleted after the end of the job
    ttl_s: int | None = None  # from the end of the job to its deletion
    active_deadline_s: int | None = None  # the longest that it may be active
    backoff_limit: int | None = None  # restarts of containers and failed pods after which the job fails
    start_s: int | None = None  # seconds; the job fails if the gang's min of pods has not started by then


@dataclass(frozen=True, slots=True)
class GangSpec:
    """The fields of the job's PodGroup. Those from `name` on are Volcano's only."""

    min_member: int  # pods that start together, >= 0
    queue: str = ""  # "" for the default queue
    priority_class: str = ""  # "" for none
    min_resources: Object | None = None  # None for the sum of the requests of `min_member` pods
    timeout_s: int | None = None  # time for the scheduler to place the gang, None for its default
    name: str = ""  # of the PodGroup, "" for the job's name
    labels: Object = field(default_factory=dict)
    annotations: Object = field(default_factory=dict)
    extra_fields: Object = field(default_factory=dict)  # further fields of its spec


@dataclass(frozen=True, slots=True)
class ControlledJob:
    """A job as its object states it, defaults filled in. roles: the lead first."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    roles: tuple[Role, ...]
    policy: RunPolicy
    gang: GangSpec
    spec: Any  # what only one kind reads, as its `read` returns it
    elastic: bool = False  # it may run with fewer pods than its roles have
    other_controller: str = ""  # another controller that the job names as its own, "" for none


@dataclass(frozen=True, slots=True)
class RefusedJob:
    """An invalid object."""

    why: str  # names the field and its valid values
    reason: Reason = Reason.INVALID


class PodPhase(Enum):
    """The phase of a pod, as its status states it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class TrainingContainer:
    """The training container of a pod: when it started, and how it ended. Times are in seconds since 1970."""

    exit_code: int | None = None  # None while it runs
    message: str = ""  # its termination message, or the end of its log
    started_s: float | None = None  # its start, else that of the pod; None if unknown
    ended_s: float | None = None  # None while it runs, or if unknown


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod of the job."""

    name: str
    uid: str
    role: str  # the value of its role label
    index: int  # -1 without a readable index label
    phase: PodPhase
    deleting: bool = False  # it terminates
    training_container: TrainingContainer = TrainingContainer()
    restarts: int = 0  # restarts of its containers
    ready: bool = False
    reason: str = ""  # why it failed, by its status or its container's: "Evicted", "OOMKilled"
    node: str = ""  # name of its node, "" without one
    mode: str = ""  # the value of the kind's label `mode`
    containers: Sequence[Object] = ()  # their statuses, if the kind reports them
    scheduler_message: str = ""  # why its scheduler has no node for it, "" for a pod with a node
    state_since_s: float = 0.0  # its deletion, else its end, else its creation, since 1970; 0 if unknown


@dataclass(frozen=True, slots=True)
class ChildState:
    """A child that is not a pod."""

    key: ChildKey
    uid: str
    role: str = ""  # the value of its role label, "" for a child of the whole job
    index: int = -1  # -1 for a child of the whole job
    spec: Object = field(default_factory=dict)  # as the API server has it
    data: Object = field(default_factory=dict)  # of a ConfigMap
    phase: str = ""  # of a PodGroup


@dataclass(frozen=True, slots=True)
class OwnedObjects:
    """The objects that a job owns, as far as they are known."""

    pods: Sequence[PodState] = ()
    others: Mapping[ChildKey, ChildState] = field(default_factory=dict)
    offered: frozenset[str] | None = None  # extended resources of all nodes, None while unknown
    pods_unreadable: bool = False  # pods cannot be read, so `pods` is stale
    jumped_s: float = 0.0  # size of a clock jump just now, which delays decisions that depend on time; 0 for none

    def delay_event(self, action: str) -> EventOnJob:
        """Return the Event which states that a clock jump delays an action. action: the subject of the sentence, such
        as "its end".
        """
        return EventOnJob(
            Reason.CLOCK_JUMPED, f"{action} is put off: a clock has jumped by {self.jumped_s:.0f} s", warning=True
        )


class LazyChild(NamedTuple):
    """A child that is created once and never changed. Its body is built only if the child is missing."""

    key: ChildKey
    build: Callable[[], Object]


NeededChild = Object | LazyChild


class Create(NamedTuple):
    """The creation of a child."""

    body: Object


class Delete(NamedTuple):
    """The deletion of a child, if it still has this uid."""

    key: ChildKey
    uid: str


class Update(NamedTuple):
    """The new content of a child."""

    key: ChildKey
    content: Object
    field: str = "spec"  # the field with the content: `spec` or `data`


class EventOnJob(NamedTuple):
    """An Event on the job."""

    reason: Reason
    text: str
    warning: bool = False


Write = Create | Delete | Update


@dataclass(frozen=True, slots=True)
class ReconcileOutcome:
    """The result of one reconciliation of a job."""

    writes: tuple[Write, ...] = ()
    events: tuple[EventOnJob, ...] = ()
    status: Object | None = None  # a merge patch of the job's status, None without a change
    status_first: bool = False  # write it before the children, since it counts those that are deleted
    requeue_s: float | None = None  # when to reconcile again at the latest, None for the next change
    restarts: tuple[RestartReason, ...] = ()  # one for each pod, or for the whole job, that restarts
    delete_job: bool = False  # delete the job itself


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of pods of one role, by phase. Pending pods, and pods of an unknown phase, are not counted."""

    active: int = 0  # that run and do not terminate
    succeeded: int = 0
    failed: int = 0  # that have failed, or terminate while they run


class GangDialect(Enum):
    """The scheduler for which PodGroups are made."""

    NONE = "none"
    VOLCANO = "volcano"
    SCHEDULER_PLUGINS = "scheduler-plugins"


@dataclass(frozen=True, slots=True)
class GangSettings:
    """The settings of the admin about PodGroups, their scheduler and scheduling gates."""

    dialect: GangDialect = GangDialect.NONE
    scheduler: str = ""  # of pods of a gang that name none
    gate_pods: bool = False  # pods of a gang that request an accelerator wait behind our scheduling gate


class PodDerivedCondition(NamedTuple):
    """A condition that follows from the pods of a job."""

    reason: Reason  # RUNNING, RESTARTING, SUCCEEDED or FAILED
    text: str


def as_mapping(value: Any) -> Object:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def replica_name(job: ControlledJob, role: Role, replica: Replica) -> str:
    """Return the default name of a replica's pod and of its Service."""
    return f"{job.name}-{role.label}-{replica.number}"


class StatusContext(NamedTuple):
    """The status before a change, and the time of the change."""

    before: Object  # as stored, in the kind's own terms
    now_s: float  # seconds since 1970


class StatusTranslation(NamedTuple):
    """The translation between a kind's own status and the status that `reconcile` uses, its core status.

    A core status has conditions, replicaStatuses, startTime and completionTime.
    """

    fields: tuple[str, ...] = ("conditions", "replicaStatuses", "startTime", "completionTime")  # that are written
    read: Callable[[Object], Object] = lambda status: status  # translates a status of the kind to a core status
    # Translates a core status to a status of the kind. The job is None for an object that is refused.
    write: Callable[[Object, ControlledJob | None, OwnedObjects, StatusContext], Object] = (
        lambda status, _job, _owned, _moment: status
    )


NO_TRANSLATION = StatusTranslation()


@dataclass(frozen=True, slots=True)
class ChildRules:
    """How the children of a kind's jobs are made and found."""

    labels: Callable[[ControlledJob, Role, Replica], dict[str, str]]  # of the child of one replica
    selector: Callable[[ControlledJob, Role], dict[str, str]]  # the labels of all pods of one role
    # The children matter if an address is known only once a Service exists.
    pod_spec: Callable[[ControlledJob, Role, Replica, OwnedObjects], dict[str, Any]]
    others: Callable[[ControlledJob, OwnedObjects], Sequence[NeededChild]]  # all children that are not pods
    label_keys: ChildLabels = KUBEFLOW  # the labels by which they are found
    owns: tuple[str, ...] = ("Pod", "Service", "HorizontalPodAutoscaler")  # the kinds of the children
    name: Callable[[ControlledJob, Role, Replica], str] = replica_name
    # The annotations of one replica's pod.
    pod_annotations: Callable[[ControlledJob, Role, Replica], Mapping[str, str]] = lambda _job, _role, _replica: {}
    unique_pod_names: bool = False  # a pod's name is never given twice


@dataclass(frozen=True, slots=True)
class StatusRules:
    """How the status of a kind's jobs follows from their pods."""

    # The conditions that follow from the pods. The counts are by the name of the role.
    conditions_of_pods: Callable[[ControlledJob, Mapping[str, Counts], OwnedObjects], Sequence[PodDerivedCondition]]
    translation: StatusTranslation = NO_TRANSLATION
    reports_containers: bool = False  # the status has the containers' own statuses
    # Decides on a job whose lifecycle is a table of phases; None if its conditions follow kubeflow/common.
    lifecycle: (
        Callable[[ControlledKind, ControlledJob, Object, OwnedObjects, float, GangSettings], ReconcileOutcome] | None
    ) = None
    phase: Callable[[Object], JobPhase] | None = None  # reads a status; None to follow the conditions


@dataclass(frozen=True, slots=True)
class RestartRules:
    """Which failed pods of a kind's jobs are recreated."""

    lowest_retryable_exit_code: int = 128  # the lowest exit code for which Restart.EXIT_CODE recreates a pod
    # True to recreate a failed pod, False to let the job fail, None to follow the role's policy.
    should_recreate: Callable[[ControlledJob, Role, PodState], bool | None] = lambda _job, _role, _pod: None
    # The exit code by which a pod reports a faulty node, None for kinds without one.
    faulty_node_exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class ControlledKind:
    """A kind of jobs as data and plain functions."""

    kind: str
    apis: tuple[str, ...]  # each `GROUP/VERSION` that serves it; they differ by the group only
    plural: str  # in paths
    container: str  # name of the training container, "" for any
    read: Callable[[Object], ControlledJob | RefusedJob]
    children: ChildRules
    status: StatusRules
    restarts: RestartRules = RestartRules()
    # Names of the roles whose missing pods are not created yet.
    postponed_roles: Callable[[ControlledJob, OwnedObjects], Collection[str]] = lambda _job, _owned: ()
    # The part of a suspended job that still runs, None if nothing of it runs.
    part_while_suspended: Callable[[ControlledJob], ControlledJob | None] = lambda _job: None
    creation_warnings: Callable[[ControlledJob], Sequence[str]] = lambda _job: ()  # for the owner of a new job
    # True for a pod that was created for another mode of the job.
    is_of_other_mode: Callable[[ControlledJob, PodState], bool] = lambda _job, _pod: False
    title: str = ""  # its name among kinds, if another kind has the same `kind`

    @property
    def full_name(self) -> str:
        """The kind's name in settings and commands."""
        return self.title or self.kind
