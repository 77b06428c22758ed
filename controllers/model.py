"""The nouns of the job controllers: a job as its object states it, its children, its kind, and the writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from turnout.jobs.kinds.job_kind import CleanPods, Restart

Object = Mapping[str, Any]
JUMP_S = 10.0  # between readings of the clock; decisions that a jump delays are made again after it


class Reason(Enum):
    """Why something was done or refused. The same word stands in log, metric, Event, condition and test."""

    CREATED = "Created"
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
    NOT_OFFERED = "NoNodeOffers"  # a device that a role asks for
    BACK_OFF = "BackOff"  # a pod that failed several times is recreated after a pause
    NOT_CREATED = "CreationFailed"  # the API server refuses a child: a quota, a policy
    FAULT = "ControllerFault"  # a fault of ours keeps the job waiting
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
    role: str
    index: str
    mode: str = ""  # the mode of the job for which a pod was created, "" for kinds with one mode


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
    replicas: int
    template: Object  # of a pod
    restart: Restart
    most_restarts: int | None = None  # how often one index may be recreated, None for no bound
    survives_cleanup: bool = False  # its pods outlive the cleanup of an ended job
    outside_gang: bool = False  # its pods are no members of the job's gang and do not wait for it
    added_bytes: int = 0  # JSON bytes that its kind adds to each pod's template, if they grow with the job

    @property
    def label(self) -> str:
        """Return the role's name in labels and in names of pods."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica that has to be created."""

    index: int  # dense, taken over by the replacement
    number: int  # of its pod; never given twice if the kind is `numbered`, else the index
    restarts: int = 0  # of this index so far
    memory_kills: int = 0  # restarts for lack of memory
    avoids: tuple[str, ...] = ()  # names of nodes that pods of its role found faulty


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """Holds for a job as a whole. Times are in seconds, None for no bound."""

    suspended: bool = False
    clean_pods: CleanPods = CleanPods.NONE
    ttl_s: int | None = None  # from the end of the job to its deletion
    deadline_s: int | None = None  # the longest that it may be active
    backoff_limit: int | None = None  # restarts of containers, and failed pods
    start_s: int | None = None  # until as many pods as the gang needs have started


@dataclass(frozen=True, slots=True)
class GangSpec:
    """The fields of the job's PodGroup. Those from `name` on are Volcano's only."""

    min_member: int
    queue: str = ""
    priority_class: str = ""
    min_resources: Object | None = None
    timeout_s: int | None = None
    name: str = ""  # of the PodGroup, "" for the job's
    labels: Object = field(default_factory=dict)
    notes: Object = field(default_factory=dict)  # its annotations
    more: Object = field(default_factory=dict)  # further fields of its spec


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
    elastic: bool = False
    other_controller: str = ""  # another controller that the job names as its own


@dataclass(frozen=True, slots=True)
class RefusedJob:
    """An invalid object."""

    why: str  # names the field and its valid values
    reason: Reason = Reason.INVALID


class PodPhase(Enum):
    """A pod's phase. One that is being deleted while it runs counts as failed: its node may be gone."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod of the job."""

    name: str
    uid: str
    role: str  # the label
    index: int
    phase: PodPhase
    deleting: bool = False
    exit_code: int | None = None  # of the training container, None while it runs
    restarts: int = 0  # of containers
    ready: bool = False
    reason: str = ""  # why it failed, by its status or its container's: "Evicted", "OOMKilled"
    node: str = ""  # its name, "" before
    last_words: str = ""  # the termination message of the training container, or the end of its log
    mode: str = ""  # the value of the kind's label `mode`
    containers: Sequence[Object] = ()  # their statuses, if the kind reports them
    began_s: float | None = None  # of the training container, else of the pod, since 1970; None if unknown
    ended_s: float | None = None  # the same for its end
    scheduler_message: str = ""  # why its scheduler has no node for it, "" for a pod with a node
    since_s: float = 0.0  # its deletion, else its end, else its creation, since 1970; 0 if unknown


@dataclass(frozen=True, slots=True)
class ChildState:
    """A child that is not a pod."""

    key: ChildKey
    uid: str
    role: str = ""
    index: int = -1
    spec: Object = field(default_factory=dict)  # as it is now
    data: Object = field(default_factory=dict)  # of a ConfigMap
    phase: str = ""  # of a PodGroup


@dataclass(frozen=True, slots=True)
class OwnedObjects:
    """The objects that a job owns, as far as they are known."""

    pods: Sequence[PodState] = ()
    others: Mapping[ChildKey, ChildState] = field(default_factory=dict)
    offered: frozenset[str] | None = None  # extended resources of all nodes, None while unknown
    unread: bool = False  # pods cannot be read, so these are stale
    jumped_s: float = 0.0  # the last jump of a clock; decisions that depend on time are delayed

    def delay_event(self, what: str) -> EventOnJob:
        """Return the Event of an action that a clock jump delays."""
        return EventOnJob(
            Reason.CLOCK_JUMPED, f"{what} is put off: a clock has jumped by {self.jumped_s:.0f} s", warning=True
        )


class LazyChild(NamedTuple):
    """A child that is made once and never changed. Its body is built only where it is missing: a job has many."""

    key: ChildKey
    build: Callable[[], Object]


NeededChild = Object | LazyChild


class Create(NamedTuple):
    """Make a child."""

    body: Object


class Delete(NamedTuple):
    """Delete a child, if it still has this uid."""

    key: ChildKey
    uid: str


class Update(NamedTuple):
    """Give a child this content. field: where it stands, `spec` or `data`."""

    key: ChildKey
    content: Object
    field: str = "spec"


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
    delete_job: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """The pods of one role by their phase."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0


class GangDialect(Enum):
    """The scheduler for which PodGroups are made."""

    NONE = "none"
    VOLCANO = "volcano"
    SCHEDULER_PLUGINS = "scheduler-plugins"


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of the admin."""

    dialect: GangDialect = GangDialect.NONE
    scheduler: str = ""  # of pods of a gang that name none
    gate_pods: bool = False  # pods of a gang that request an accelerator wait behind our scheduling gate


class JobVerdict(NamedTuple):
    """A condition that a job has come to."""

    reason: Reason  # RUNNING, RESTARTING, SUCCEEDED or FAILED
    text: str


def as_mapping(value: Any) -> Object:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def replica_name(view: ControlledJob, role: Role, replica: Replica) -> str:
    """Return the name that most kinds give one replica: its pod's, and its Service's."""
    return f"{view.name}-{role.label}-{replica.number}"


class StatusContext(NamedTuple):
    """When a status is put into words. before: the status in the kind's own words as it is."""

    before: Object
    now_s: float


class StatusVocabulary(NamedTuple):
    """A kind's own words for a status. The core's are conditions, replicaStatuses, startTime and completionTime.

    fields: those that are written. read: takes a status of the kind to the core's words. write: the other way; the
    view is None for an object that is refused.
    """

    fields: tuple[str, ...] = ("conditions", "replicaStatuses", "startTime", "completionTime")
    read: Callable[[Object], Object] = lambda status: status
    write: Callable[[Object, ControlledJob | None, OwnedObjects, StatusContext], Object] = (
        lambda status, _view, _known, _moment: status
    )


CORE_WORDS = StatusVocabulary()


@dataclass(frozen=True, slots=True)
class ControlledKind:
    """A kind of jobs as data and plain functions."""

    kind: str
    apis: tuple[str, ...]  # each `GROUP/VERSION` that serves it; they differ by the group only
    plural: str  # in paths
    container: str  # the training container, "" for any
    read: Callable[[Object], ControlledJob | RefusedJob]
    labels: Callable[[ControlledJob, Role, Replica], dict[str, str]]  # of the child of one replica
    selector: Callable[[ControlledJob, Role], dict[str, str]]  # the labels of all pods of one role
    # The children matter if an address is known only once a Service exists.
    pod_spec: Callable[[ControlledJob, Role, Replica, OwnedObjects], dict[str, Any]]
    extras: Callable[[ControlledJob, OwnedObjects], Sequence[NeededChild]]  # the children beside pods
    # The conditions that follow from the pods, by the counts of each role, by its name.
    judge: Callable[[ControlledJob, Mapping[str, Counts], OwnedObjects], Sequence[JobVerdict]]
    restarts_at: int = 128  # the least exit code that Restart.EXIT_CODE recreates
    child_labels: ChildLabels = KUBEFLOW
    owns: tuple[str, ...] = ("Pod", "Service", "HorizontalPodAutoscaler")
    name: Callable[[ControlledJob, Role, Replica], str] = replica_name
    # Names of the roles whose missing pods are not created yet.
    postponed_roles: Callable[[ControlledJob, OwnedObjects], Collection[str]] = lambda _view, _known: ()
    # The part of a suspended job that still runs.
    suspended_view: Callable[[ControlledJob], ControlledJob | None] = lambda _view: None
    # True to recreate a failed pod, None to follow the role's policy.
    recreate: Callable[[ControlledJob, Role, PodState], bool | None] = lambda _view, _role, _pod: None
    vocabulary: StatusVocabulary = CORE_WORDS
    advice: Callable[[ControlledJob], Sequence[str]] = lambda _view: ()  # for the owner of a new job
    # True for a pod that was created for another mode of the job.
    outdated: Callable[[ControlledJob, PodState], bool] = lambda _view, _pod: False
    reports_containers: bool = False  # its status has the containers' own statuses
    numbered: bool = False  # a pod's name is never given twice
    # The exit code by which a pod reports a faulty node, None for kinds without one.
    faulty_node_exit_code: int | None = None
    # The annotations of one replica's pod.
    notes: Callable[[ControlledJob, Role, Replica], Mapping[str, str]] = lambda _view, _role, _replica: {}
    title: str = ""  # its name among kinds, if another kind has the same `kind`
    # Decides on a job whose lifecycle is a table of phases; otherwise conditions follow kubeflow/common.
    lifecycle: (
        Callable[[ControlledKind, ControlledJob, Object, OwnedObjects, float, Setup], ReconcileOutcome] | None
    ) = None
    phase: Callable[[Object], JobPhase] | None = None  # reads a status; None to follow the conditions

    @property
    def full_name(self) -> str:
        """Return the kind's name in settings and commands."""
        return self.title or self.kind
