"""The nouns of the autoscaler: GPUs, observation, policy and decision, each with one reason of a closed list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from operator import attrgetter
from typing import NamedTuple

from turnout.autoscaler.capacity import Capacity
from turnout.jobs.model import Gain, Job, JobKey, JobLifecycle, Pause, gain
from turnout.jobs.queues.model import QueueShare
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import unix_s


class Reason(Enum):
    """Why a job was changed, or left as it is. The same word stands in log, metric, Event, `turnout why` and test."""

    # Grow.
    IDLE_ROOM = "IdleRoom"  # its queue has free room, and no job waits for it
    RETURNED = "RoomReturned"  # it gave workers to a job that left their room unused
    # Shrink.
    MAKES_ROOM = "MakesRoom"  # a waiting job gets its min from these workers
    ROOM_TAKEN = "RoomTaken"  # workers above its min found no node, because other pods took the room
    # Hold, of jobs that run.
    AT_MAX = "AtMax"  # its next size is above its max
    COOLDOWN = "Cooldown"  # it was resized less than its cooldown ago
    NO_FREE_ROOM = "NoFreeRoom"  # no whole worker fits on the nodes or in the queue
    HEADROOM_KEPT = "HeadroomKept"  # the room that is left is headroom
    ROOM_SETTLES = "RoomSettles"  # the room has not been idle for as long as a restart takes
    OTHERS_WAIT = "PendingMin"  # the room is promised to a job that waits for its min
    MARGINAL_GAIN = "MarginalGainTooSmall"  # the next worker adds too little speed
    BUDGET_SPENT = "RestartBudgetSpent"  # restarts have cost it more than lending has won it
    NOT_READY = "NotReady"  # its last change is not done yet
    PAUSED = "Paused"  # its owner has paused changes
    RIGID = "Rigid"  # its min is its max
    REFUSED = "AdapterRefused"  # its kind cannot be resized as it is
    QUEUE_CLOSED = "QueueClosed"  # its queue takes no new pods
    SUSPENDED = "Suspended"  # its owner or queue has suspended it
    # Hold, of jobs that wait.
    SCHEDULERS_TURN = "SchedulersTurn"  # there is room for its min
    WAITS_FOR_ROOM = "WaitsForRoom"  # elastic workers leave for it
    NEEDS_MORE = "NeedsMore"  # it would not fit even if every elastic worker left
    OVER_QUOTA = "OverQuota"  # its min is more than its queue may ever have
    UNSCHEDULABLE = "Unschedulable"  # its scheduler cannot bind it now, or has left its room unused
    # Hold or shrink, of all jobs at once.
    STALE = "StaleSnapshot"  # a list failed, is too old, or does not describe its queue readably
    NODES_UNREADY = "NodesUnready"  # too many nodes are lost to trust the observation
    CLOCK_JUMPED = "ClockJumped"  # a clock has jumped: two looks change nothing
    ALL_PAUSED = "AllPaused"  # an admin has stopped all changes
    RELEASED = "Released"  # an admin takes back everything that is lent


class GangReason(Enum):
    """Why the minCount of a native PodGroup was changed for a resized job, or is left as it is."""

    LOWERED = "GangMinLowered"  # the job shrinks below it
    RAISED = "GangMinRaised"  # the job runs more pods again, up to the number that the owner stated
    REFUSED = "GangMinRefused"  # the API server refuses the change
    SHARED = "GangShared"  # pods of others name the PodGroup, too
    NOT_OWNED = "GangNotOwned"  # another object owns the PodGroup


NODES = ""  # the key of the room on the nodes, in mappings whose other keys are names of queues
UNKNOWN_NODE = -1  # the row of an unknown node, whose room is not given away
NO_ROOM_ROWS = (None, UNKNOWN_NODE)  # rows of workers whose room cannot be given away


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker's pod."""

    index: int  # >= 0; a shrink deletes the highest indexes
    row: int | None  # of its node in the room; None without a node, UNKNOWN_NODE for an unknown node
    leaving: bool = False  # it terminates
    since_s: float = 0.0  # when its node started it, else when it was created, in seconds since 1970; 0 if unknown
    name: str = ""  # of the pod


class Step(NamedTuple):
    """The decision on one job: its size from now on. A job that is left alone keeps its current size."""

    key: JobKey  # the job
    target: int  # workers from now on
    current: int  # workers that it has
    reason: Reason
    detail: str = ""  # numbers for a person
    beneficiary: JobKey | None = None  # the waiting job for which this one shrinks
    at_start: bool = False  # the change is made while the job starts, and costs nothing

    @property
    def changes(self) -> bool:
        """True if the step changes the job's size, so that it is written."""
        return self.target != self.current


# Negated value of the PriorityClass, negated priority, deadline and creation (seconds since 1970), and the job.
QueueOrder = tuple[int, int, float, float, JobKey]
ORDER = attrgetter("queue_order")  # the sort key of JobStates
_NO_DEADLINE_S = float("inf")


class Pool:
    """A queue and a shape of pods, from which equal jobs take workers. Pools are compared by identity."""

    __slots__ = ("needs", "queue", "shape")

    def __init__(self, queue: str, shape: PodShape) -> None:
        self.queue, self.shape = queue, shape
        self.needs = tuple((resource, amount) for resource, amount in shape.requests if resource != "pods")


@lru_cache(maxsize=65_536)
def pool_of(queue: str, shape: PodShape) -> Pool:
    """Return the pool of a queue and a shape: the same object for equal arguments, as long as it is cached."""
    return Pool(queue, shape)


Identity = object  # of a JobState, as a key in mappings; see JobState.identity


@dataclass(frozen=True, slots=True)
class JobState:
    """One job and its workers at one moment, with the values that every decision asks of it, computed once."""

    job: Job
    workers: tuple[Worker, ...] = ()  # by index
    other_pods: tuple[int, ...] = ()  # pods of each other role that have a node, in the order of job.other_roles
    finished: int = 0  # workers that have succeeded and are not replaced
    unbindable: str = ""  # why no scheduler can bind the lacking pods, so that no room is kept for them; "" if one can
    size_before: int = 0  # workers before the job gave room that was left unused, 0 for none; it gets them back at once
    overdue: bool = False  # its promised workers stay too long, so that their room no longer counts as free

    # Workers that do not terminate, below the size of the job.
    living: tuple[Worker, ...] = field(init=False, compare=False, repr=False)
    # Node rows of the workers that terminate or are above the size: their room will be free soon.
    promised: tuple[int, ...] = field(init=False, compare=False, repr=False)
    # Living workers that have a node.
    bound_workers: int = field(init=False, compare=False, repr=False)
    # The job is live, and fewer pods than its min have a node.
    is_waiting: bool = field(init=False, compare=False, repr=False)
    # The job's place in the order of its queue: the smallest comes first.
    queue_order: QueueOrder = field(init=False, compare=False, repr=False)
    # Node rows of the living workers above the min.
    evictable_rows: tuple[int, ...] = field(init=False, compare=False, repr=False)
    # Queue and shape of the workers.
    pool: Pool = field(init=False, compare=False, repr=False)
    # The next larger size, in workers; may be above the max.
    next_size: int = field(init=False, compare=False, repr=False)
    # The request for the next larger size: the pool, and the number of additional workers.
    next_growth: tuple[Pool, int] = field(init=False, compare=False, repr=False)
    # The gain of the next larger size.
    next_gain: Gain = field(init=False, compare=False, repr=False)
    # Start of the first worker, in seconds since 1970; 0 without workers.
    began_s: float = field(init=False, compare=False, repr=False)
    # The job is elastic, does not wait, and has workers above its min.
    can_shrink: bool = field(init=False, compare=False, repr=False)
    # No pause, and every worker of the size has a node: only time and room decide whether the job grows.
    ready_to_grow: bool = field(init=False, compare=False, repr=False)
    # The step of a job whose size neither time nor room can change; None for any other job.
    hold_step: Step | None = field(init=False, compare=False, repr=False)
    # A key of this state in mappings. It equals only itself, and is hashed faster than a JobKey.
    identity: Identity = field(init=False, compare=False, repr=False)
    # The last step that `hold` returned; empty before.
    _last_hold: list[Step] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        job, workers, size, minimum = self.job, self.workers, self.job.replicas, self.job.bounds.minimum
        living = tuple([worker for worker in workers if not worker.leaving and worker.index < size])
        possibly_promised = workers if len(living) < len(workers) else ()
        bound = sum([worker.row is not None for worker in living])
        lacks_others = any(
            count < maximum for count, (_, maximum) in zip(self.other_pods, job.other_roles, strict=False)
        )
        is_waiting = job.lifecycle is JobLifecycle.LIVE and (bound + self.finished < minimum or lacks_others)
        pool, next_size = pool_of(job.queue, job.shape), job.sizes.larger(size)
        why = None if is_waiting else _fixed_size_reason(job, next_size, len(workers), len(living), bound)
        hold_step = None if why is None else Step(job.key, size, size, *why)
        set_field = partial(object.__setattr__, self)
        set_field("living", living)
        set_field("promised", _promised_rows(possibly_promised, size))
        set_field("bound_workers", bound)
        set_field("is_waiting", is_waiting)
        set_field("queue_order", _queue_order(job))
        set_field(
            "evictable_rows", tuple([worker.row for worker in living[minimum:] if worker.row not in NO_ROOM_ROWS])
        )
        set_field("pool", pool)
        set_field("next_size", next_size)
        set_field("next_growth", (pool, next_size - size))
        set_field("next_gain", gain(job.curve, minimum, size, next_size))
        set_field("began_s", min([worker.since_s for worker in living], default=0.0))
        set_field("can_shrink", job.elastic and not is_waiting and len(living) > minimum)
        set_field("ready_to_grow", job.pause is Pause.NONE and len(workers) == size == bound)
        set_field("hold_step", hold_step)
        set_field("identity", object())
        set_field("_last_hold", [] if hold_step is None else [hold_step])

    def hold(self, reason: Reason, detail: str = "") -> Step:
        """Return a step that keeps the size of the job. detail: numbers for a person.

        The object of the last call is returned again if reason and detail are the same.
        """
        last = self._last_hold[0] if self._last_hold else None
        if last is None or last.reason is not reason or last.detail != detail:
            size = self.job.replicas
            last = Step(self.job.key, size, size, reason, detail)
            self._last_hold[:] = [last]
        return last


def _promised_rows(workers: tuple[Worker, ...], size: int) -> tuple[int, ...]:
    """Return the node rows of workers that terminate or are above the size. Workers without a known node have none."""
    rows = [worker.row for worker in workers if worker.leaving or worker.index >= size]
    return tuple([row for row in rows if row is not None and row != UNKNOWN_NODE])


def _queue_order(job: Job) -> QueueOrder:
    """Return the sort key of a job in its queue. A job without deadline comes after all jobs with one."""
    order = job.order
    deadline_s = _NO_DEADLINE_S if order.deadline_s is None else order.deadline_s
    return -order.class_value, -order.priority, deadline_s, unix_s(job.created) or 0.0, job.key


def _fixed_size_reason(job: Job, next_size: int, workers: int, living: int, bound: int) -> tuple[Reason, str] | None:
    """Return (reason, detail) why neither time nor room can change a job that does not wait; None if one of them can.

    next_size: the next larger size. workers, living, bound: numbers of all workers, of those that neither terminate nor
    are above the size, and of those of them that have a node.
    """
    size = job.replicas
    if job.lifecycle is JobLifecycle.SUSPENDED:
        return Reason.SUSPENDED, ""
    if job.refused:
        return Reason.REFUSED, job.refused
    if job.bounds.minimum == job.bounds.maximum:
        return Reason.RIGID, ""
    if job.pause is not Pause.NONE or living != bound:
        return None
    if next_size > job.maximum:
        return Reason.AT_MAX, f"{size} of {job.maximum}"
    if workers != size or bound != size:
        return Reason.NOT_READY, f"{bound} of {size} workers have a node"
    return None


class AdminOverride(Enum):
    """An admin's order for all jobs at once."""

    RUN = "run"
    PAUSE = "pause"  # every job keeps its size
    RELEASE = "release"  # every job goes back to its min, as before an uninstall


class TerminatingPod(NamedTuple):
    """A terminating pod: the queue that pays for it, its shape, and its node's row."""

    queue: str
    shape: PodShape
    row: int


@dataclass(frozen=True, slots=True)
class Observation:
    """The facts of one moment on which a decision is made."""

    jobs: tuple[JobState, ...]  # sorted by ORDER if `is_sorted`
    queues: Mapping[str, QueueShare]  # by name
    room: Capacity  # the free room of the nodes
    age_s: float = 0.0  # time since the last event of the oldest list in it, >= 0
    complete: bool = True  # False when some list failed
    unready: float = 0.0  # the share of nodes that are not ready, 0 to 1
    admin_override: AdminOverride = AdminOverride.RUN  # an admin's order for all jobs
    terminating_pods: tuple[TerminatingPod, ...] = ()  # of jobs that are deleted, over, or of no known kind
    # Free amounts, by resource, on nodes reserved for gangs of which no pod waits. `room` does not contain them.
    reserved: Mapping[str, int] = field(default_factory=dict)
    is_sorted: bool = False  # the jobs are sorted by ORDER
    # Room that was idle for `Policy.idle_before_growth_s`, by NODES or queue and by resource.
    # None if idle time does not matter.
    idle_room: Mapping[str, Mapping[str, int]] | None = None
    jumped_s: float = 0.0  # by how much the wall clock has jumped since the last observation, 0 for not at all


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that a decision depends on. Each time is in seconds."""

    cooldown_s: float = 600.0  # from any change of the size of a job to its next growth; a shrink needs none
    pending_s: float = 30.0  # how long a worker above the min may be without a node
    min_gain: float = (
        0.05  # the smallest gain for which a worker is added, as a share of the speed of a worker of the min
    )
    stale_s: float = 150.0  # the age of the oldest list that may be acted on
    headroom: Mapping[str, int] = field(default_factory=dict)  # by resource, kept free in every queue and on the nodes
    restart_s: float = 60.0  # the cost of a change of size
    payback_s: float = 3600.0  # the time in which growth has to win its restarts back
    restart_budget_share: float = 0.0  # the share of its time that restarts may cost a job whatever they win
    max_unready_share: float = 0.45  # the share of unready nodes above which nothing is changed
    # How long the room of workers that are to leave counts as free, although their controller has not deleted them.
    promise_s: float = 300.0
    start_s: float = 10.0  # how long a job counts as starting once it has its min; a resize is free then
    # How long room has to be idle before a job restarts for it, as a share of restart_s.
    idle_share_before_growth: float = 0.75
    bind_s: float = 20.0  # how long room is kept for a job that does not take it

    @property
    def idle_before_growth_s(self) -> float:
        """How long room has to be idle before a job restarts for it, in seconds."""
        return self.idle_share_before_growth * self.restart_s


OVERRIDE_KEY, UNTIL_KEY = "standing", "until"  # keys in the data of the ConfigMap of an admin's order


def read_admin_override(data: Mapping[str, str]) -> tuple[AdminOverride, float | None]:
    """Return (an admin's order, its end in seconds since 1970 or None for no end). data: of its ConfigMap, {} for none.

    Without data the order is RUN. An unknown word stops all changes, which is safest. An end that cannot be read counts
    as none.
    """
    text = data.get(OVERRIDE_KEY, AdminOverride.RUN.value).strip()
    words = {each.value: each for each in AdminOverride}
    return words.get(text, AdminOverride.PAUSE), unix_s(data[UNTIL_KEY].strip()) if data.get(UNTIL_KEY) else None


def admin_override_data(override: AdminOverride, until: str = "") -> dict[str, str]:
    """Return the data of the ConfigMap of an admin's order. override: the order. until: its end as RFC 3339, "" for
    no end.
    """
    return {OVERRIDE_KEY: override.value, **({UNTIL_KEY: until} if until else {})}


Gpus = tuple[str, ...]  # the names of the resources that count as GPUs
Amounts = Mapping[str, int]  # by resource


def total_gpus(amounts: Amounts, gpus: Gpus) -> int:
    """Return how many GPUs these amounts contain: the sum over all GPU resources."""
    return sum(amounts.get(each, 0) for each in gpus)


def gpu_limit(limits: Amounts, gpus: Gpus) -> int | None:
    """Return how many GPUs these limits allow: the sum over the GPU resources with a limit; None if none has one."""
    named = [limits[each] for each in gpus if each in limits]
    return sum(named) if named else None


def remaining_gpus(limits: Amounts, used: Amounts, gpus: Gpus) -> int | None:
    """Return how many GPUs these limits leave, >= 0; None if they limit no GPU resource.

    Each resource is counted by itself: one that is used beyond its limit leaves 0. used: amounts in use, by resource.
    """
    named = [max(0, limits[each] - used.get(each, 0)) for each in gpus if each in limits]
    return sum(named) if named else None


def largest_gpu_amount(amounts: Amounts, gpus: Gpus) -> int:
    """Return the largest of the amounts of GPU resources, 0 without any.

    For a headroom that is stated for each GPU resource: it is meant once, not once for each.
    """
    return max((amounts.get(each, 0) for each in gpus), default=0)
