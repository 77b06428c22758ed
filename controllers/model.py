"""The nouns of the job controllers: a job as its object states it, what it owns, and what has to be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

Object = Mapping[str, Any]
JUMP_S = 10.0  # between looks at the clock; what a jump puts off is looked at again after it


class Restart(Enum):
    """Whether a role's failed pod is made anew."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"
    EXIT_CODE = "ExitCode"  # 128 and above only, as a signal leaves it


class CleanPods(Enum):
    """Which pods are deleted once the job has ended."""

    NONE = "None"
    RUNNING = "Running"  # and pending ones, which would run later
    ALL = "All"


class Reason(Enum):
    """Why something was done or refused. The same word stands in log, metric, Event, condition and test."""

    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    INVALID = "Invalid"  # the object cannot be obeyed: a field is named
    TOO_LARGE = "TooLarge"  # its children would be too many bytes together
    NAME_TAKEN = "NameTaken"  # an object of somebody else has the name of a child
    ADVICE = "Advice"  # the job runs, and may surprise its owner
    NOT_OFFERED = "NoNodeOffers"  # a device that a role asks for
    BACK_OFF = "BackOff"  # a pod that failed again and again is made anew later
    NOT_CREATED = "CreationFailed"  # the API server refuses a child: a quota, a policy
    FAULT = "ControllerFault"  # a fault of ours keeps the job waiting
    CLOCK_JUMPED = "ClockJumped"  # an end or a deletion that time decides is put off for two looks at the clock


class JobKey(NamedTuple):
    """The path of its group (`/apis/GROUP/VERSION`), the namespace and the name of a job."""

    api: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ChildLabels:
    """The labels by which the children of a kind are found. job: every child has it, its value is the job's name.

    mode: tells for which of the job's modes a pod was made, "" where a kind has one mode.
    """

    job: str
    role: str
    index: str
    mode: str = ""


KUBEFLOW = ChildLabels(
    "training.kubeflow.org/job-name", "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
)


class ChildKey(NamedTuple):
    """The kind and the name of a child; its namespace is the job's."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Role:
    """Pods that are alike but for their index. name: as upstream spells it, "Worker".

    most_restarts: how often one index may be made anew, None for no bound. kept: its pods outlive the job's cleaning.
    alone: its pods are no members of the job's gang and do not wait for it. added_bytes: of JSON, what its kind adds to
    each pod's template where that grows with the job.
    """

    name: str
    replicas: int
    template: Object  # of a pod
    restart: Restart
    most_restarts: int | None = None
    survives_cleanup: bool = False
    outside_gang: bool = False
    added_bytes: int = 0

    @property
    def label(self) -> str:
        """The role's name in labels and names of pods."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica that is to be made. index: dense, taken over by whoever replaces it.

    number: of its pod, never given twice where the kind is `numbered`, else the index. restarts: of this index so far.
    starved: how many of those lacked memory. avoids: names of nodes where pods of its role found the node faulty.
    """

    index: int
    number: int
    restarts: int = 0
    starved: int = 0
    avoids: tuple[str, ...] = ()


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
class Gang:
    """The words of the job's PodGroup. name, labels, notes, more: Volcano's alone.

    name: of the PodGroup, "" for the job's. notes: its annotations. more: further fields of its spec.
    """

    min_member: int
    queue: str = ""
    priority_class: str = ""
    min_resources: Object | None = None
    timeout_s: int | None = None
    name: str = ""
    labels: Object = field(default_factory=dict)
    notes: Object = field(default_factory=dict)
    more: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as its object states it, defaults filled in. roles: the lead first."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    roles: tuple[Role, ...]
    policy: RunPolicy
    gang: Gang
    spec: Object  # for what only one kind reads, checked by its `read`
    elastic: bool = False
    elsewhere: str = ""  # another controller that the job names as its own


@dataclass(frozen=True, slots=True)
class Refused:
    """An object that cannot be obeyed. why: names the field and what it has to be."""

    why: str
    reason: Reason = Reason.INVALID


class Phase(Enum):
    """A pod's phase. One that is being deleted while it runs counts as failed: its node may be gone."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod of the job. exit_code: of the training container, None while it has not ended. restarts: of containers.

    reason: why it failed, as its status or its container's says: "Evicted", "OOMKilled". node: its name, "" before.
    last_words: what the training container left at its end, or the end of its log where the kubelet was asked for it.
    mode: the label of that name. containers: their statuses as they are, where the kind tells them. began_s, ended_s:
    of the training container, else of the pod, since 1970, None where the kubelet has not said. waits: why its
    scheduler has no node for it, "" for one with a node.
    since_s: when it was told to go, else ended, else was made, in seconds since 1970; 0 where nothing says it.
    """

    name: str
    uid: str
    role: str  # the label
    index: int
    phase: Phase
    deleting: bool = False
    exit_code: int | None = None
    restarts: int = 0
    ready: bool = False
    reason: str = ""
    node: str = ""
    last_words: str = ""
    mode: str = ""
    containers: Sequence[Object] = ()
    began_s: float | None = None
    ended_s: float | None = None
    scheduler_message: str = ""
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ChildState:
    """A child that is no pod. spec: as it is now. data: of a ConfigMap. phase: of a PodGroup."""

    key: ChildKey
    uid: str
    role: str = ""
    index: int = -1
    spec: Object = field(default_factory=dict)
    data: Object = field(default_factory=dict)
    phase: str = ""


@dataclass(frozen=True, slots=True)
class KnownChildren:
    """The objects that a job owns. offered: extended resources of nodes, None while unknown. unread: pods are old.

    jumped_s: by how much a clock has jumped just now: nothing that only time decides is done, but a while later.
    """

    pods: Sequence[PodState] = ()
    others: Mapping[ChildKey, ChildState] = field(default_factory=dict)
    offered: frozenset[str] | None = None
    unread: bool = False
    jumped_s: float = 0.0

    def put_off(self, what: str) -> Say:
        """Tell what a clock's jump puts off."""
        return Say(Reason.CLOCK_JUMPED, f"{what} is put off: a clock has jumped by {self.jumped_s:.0f} s", warning=True)


class Later(NamedTuple):
    """A child that is made once and never changed. Its body is built only where it is missing: a job has many."""

    key: ChildKey
    build: Callable[[], Object]


Wanted = Object | Later


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


class Say(NamedTuple):
    """An Event on the job."""

    reason: Reason
    text: str
    warning: bool = False


Write = Create | Delete | Update


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one look at a job. again_s: when to look again at the latest, None for when something changes.

    status: a merge patch of the job's status, None where it is as it has to be. status_first: it is written before the
    children, since it counts those that are deleted; else after them. gone: the job itself is to be deleted.
    """

    writes: tuple[Write, ...] = ()
    says: tuple[Say, ...] = ()
    status: Object | None = None
    status_first: bool = False
    requeue_s: float | None = None
    delete_job: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """The pods of one role by their phase."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0


class Dialect(Enum):
    """The scheduler for which PodGroups are made."""

    NONE = "none"
    VOLCANO = "volcano"
    SCHEDULER_PLUGINS = "scheduler-plugins"


@dataclass(frozen=True, slots=True)
class Setup:
    """The choices of the admin. scheduler: the name that pods of a gang are given, where they have none.

    gate_pods: pods of a gang that ask for an accelerator wait behind our scheduling gate.
    """

    dialect: Dialect = Dialect.NONE
    scheduler: str = ""
    gate_pods: bool = False


class Verdict(NamedTuple):
    """A condition that a job has come to."""

    reason: Reason  # RUNNING, RESTARTING, SUCCEEDED or FAILED
    text: str


def replica_name(view: JobView, role: Role, replica: Replica) -> str:
    """Return the name that most kinds give one replica: its pod's, and its Service's."""
    return f"{view.name}-{role.label}-{replica.number}"
