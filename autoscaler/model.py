"""The nouns of the autoscaler: what it saw, what it may do, what it decided, each with one reason of a closed list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from turnout.autoscaler.capacity import Capacity
from turnout.jobs.model import Job, JobKey, Life, Pause
from turnout.jobs.scaling_curve import Gain, gain
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import since_1970


class Reason(Enum):
    """Why a job was changed, or left as it is. The same word stands in log, metric, Event, `turnout why` and test."""

    # Grow.
    IDLE_ROOM = "IdleRoom"  # its queue has room that nobody waits for
    # Shrink.
    MAKES_ROOM = "MakesRoom"  # a waiting job gets its min from these workers
    ROOM_TAKEN = "RoomTaken"  # workers above its min found no node: somebody else took the room
    # Hold, of jobs that run.
    AT_MAX = "AtMax"
    COOLDOWN = "Cooldown"
    NO_FREE_ROOM = "NoFreeRoom"  # no whole worker fits on the nodes or in the queue
    HEADROOM_KEPT = "HeadroomKept"
    ROOM_SETTLES = "RoomSettles"  # the room has not been idle for as long as a restart takes
    OTHERS_WAIT = "PendingMin"  # the room is promised to a job that waits for its min
    MARGINAL_GAIN = "MarginalGainTooSmall"
    BUDGET_SPENT = "RestartBudgetSpent"  # restarts have cost it more than lending has won it
    NOT_READY = "NotReady"  # its last change is not done yet
    PAUSED = "Paused"
    RIGID = "Rigid"  # its least is its most
    REFUSED = "AdapterRefused"  # its kind cannot be resized as it is
    QUEUE_CLOSED = "QueueClosed"
    SUSPENDED = "Suspended"
    # Hold, of jobs that wait.
    SCHEDULERS_TURN = "SchedulersTurn"  # there is room for its min
    WAITS_FOR_ROOM = "WaitsForRoom"  # elastic workers leave for it
    NEEDS_MORE = "NeedsMore"  # it would not fit even if every elastic worker left
    OVER_QUOTA = "OverQuota"  # its min is more than its queue may ever have
    # Of everybody.
    STALE = "StaleSnapshot"
    NODES_UNREADY = "NodesUnready"  # so many nodes are lost that what is seen is not to be trusted
    ALL_PAUSED = "AllPaused"  # an admin has stopped all changes
    RELEASED = "Released"  # an admin takes back everything that is lent


NODES = ""  # where room is idle: on the nodes, beside the queues by their names
UNKNOWN_NODE = -1  # the row of a node that is not known: its room is nobody's to give


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker's pod. row: of its node in the room, None while it has none. leaving: it has been told to go.

    name: of the pod.
    """

    index: int
    row: int | None
    leaving: bool = False
    since_s: float = 0.0  # when its node took it in, else when it was created
    name: str = ""


class Step(NamedTuple):
    """What becomes of one job: its size from now on, which is the old one for a job that is left alone.

    for_: the waiting job that a shrink makes room for. detail: numbers for a person. at_start: is it made while the job
    starts, so that it costs nothing?
    """

    key: JobKey
    workers: int
    was: int
    reason: Reason
    detail: str = ""
    for_: JobKey | None = None
    at_start: bool = False

    @property
    def changes(self) -> bool:
        """Is anything written?"""
        return self.workers != self.was


Turn = tuple[int, int, float, float, JobKey]
TURN = attrgetter("turn")  # of a Seen, to sort by
_FOREVER_S = float("inf")


class Pool:
    """A queue and a shape of pods: what alike jobs take workers from. There is one of each, so identity will do."""

    __slots__ = ("needs", "queue", "shape")

    def __init__(self, queue: str, shape: PodShape) -> None:
        self.queue, self.shape = queue, shape
        self.needs = tuple((what, amount) for what, amount in shape.requests if what != "pods")


@lru_cache(maxsize=65_536)
def pool_of(queue: str, shape: PodShape) -> Pool:
    """The one pool of a queue and a shape."""
    return Pool(queue, shape)


@dataclass(frozen=True, slots=True)
class JobState:
    """One job and its workers, by index. beside: how many pods of its other roles have a node, in the job's order.

    done: workers that have ended well, for whom nobody comes any more.
    """

    job: Job
    workers: tuple[Worker, ...] = ()
    beside: tuple[int, ...] = ()
    done: int = 0

    living: tuple[Worker, ...] = field(init=False, compare=False, repr=False)
    promised: tuple[int, ...] = field(init=False, compare=False, repr=False)
    placed: int = field(init=False, compare=False, repr=False)
    waits: bool = field(init=False, compare=False, repr=False)
    turn: Turn = field(init=False, compare=False, repr=False)
    still: Step | None = field(init=False, compare=False, repr=False)
    spare: tuple[int, ...] = field(init=False, compare=False, repr=False)
    pool: Pool = field(init=False, compare=False, repr=False)
    larger: int = field(init=False, compare=False, repr=False)
    unit: tuple[Pool, int] = field(init=False, compare=False, repr=False)
    first: Gain = field(init=False, compare=False, repr=False)
    gives: bool = field(init=False, compare=False, repr=False)
    steady: bool = field(init=False, compare=False, repr=False)
    began_s: float = field(init=False, compare=False, repr=False)
    _said: list[Step] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """What every decision asks, worked out once.

        living: the workers that stay: not told to go, nor above the size that the job asks for by now. promised: the
        nodes of the others, whose room is as good as free for whoever waits. placed: how many living ones have a
        node. waits: is anything missing to its min? turn: who comes first, the smallest. still: the step of a job that
        is left alone whatever room and time there is, None for one that time or room may move. spare: the nodes of
        its workers above the min. larger: the next size up; unit: what that takes of which pool; first: what it is
        worth. gives: has it workers to give? steady: only time and room decide whether it grows. began_s: since when
        its first worker has run.
        """
        object.__setattr__(self, "_said", [])
        job = self.job
        size, order = job.replicas, job.order
        living = tuple(worker for worker in self.workers if not worker.leaving and worker.index < size)
        going = self.workers if len(living) < len(self.workers) else ()
        promised = (w.row for w in going if w.row not in (None, UNKNOWN_NODE) and (w.leaving or w.index >= size))
        placed = sum(worker.row is not None for worker in living)
        short = any(there < wanted for there, (_, wanted) in zip(self.beside, job.beside, strict=False))
        waits = job.life is Life.LIVE and (placed + self.done < job.bounds.least or short)
        deadline_s = _FOREVER_S if order.deadline_s is None else order.deadline_s
        pool, larger = pool_of(job.queue, job.shape), job.sizes.larger(size)
        for name, value in (
            ("living", living),
            ("promised", tuple(promised)),
            ("placed", placed),
            ("waits", waits),
            ("spare", tuple(w.row for w in living[job.bounds.least :] if w.row not in (None, UNKNOWN_NODE))),
            ("turn", (-order.class_value, -order.priority, deadline_s, since_1970(job.created) or 0.0, job.key)),
            ("pool", pool),
            ("larger", larger),
            ("unit", (pool, larger - size)),
            ("first", gain(job.curve, job.bounds.least, size, larger)),
            ("began_s", min([worker.since_s for worker in living], default=0.0)),
            ("gives", job.elastic and not waits and len(living) > job.bounds.least),
        ):
            object.__setattr__(self, name, value)
        why = None if waits else self._still()
        object.__setattr__(self, "still", None if why is None else self.hold(*why))
        object.__setattr__(self, "steady", job.pause is Pause.NONE and len(self.workers) == size == placed)

    def _still(self) -> tuple[Reason, str] | None:
        job, size = self.job, self.job.replicas
        if job.life is Life.SUSPENDED:
            return Reason.SUSPENDED, ""
        if job.refused:
            return Reason.REFUSED, job.refused
        if job.bounds.least == job.bounds.most:
            return Reason.RIGID, ""
        if job.pause is not Pause.NONE or len(self.living) != self.placed:
            return None
        if self.larger > job.most:
            return Reason.AT_MAX, f"{size} of {job.most}"
        if len(self.workers) != size or self.placed != size:
            return Reason.NOT_READY, f"{self.placed} of {size} workers have a node"
        return None

    def hold(self, reason: Reason, detail: str = "") -> Step:
        """The step of a job that is left alone. The same is made once: most looks say what the last one said."""
        last = self._said[0] if self._said else None
        if last is None or last.reason is not reason or last.detail != detail:
            size = self.job.replicas
            last = Step(self.job.key, size, size, reason, detail)
            self._said[:] = [last]
        return last


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue. limit: what its pods may ask for together, by resource, in units of pod_shape.py; absent: no bound.

    deserved: what is its own; beyond it, it borrows. used: by all its pods, those that leave included. headroom: kept
    free in it, by its owner's word. within, kept, called: what is above it, as in jobs/queues/quota_accounting.py.
    refused: why no job of it can be resized; hazard: why none can that Kueue does not lift above
    others. faults: why nothing of it may be changed. strict: nobody in it starts before an older one.
    """

    name: str
    limit: Mapping[str, int] = field(default_factory=dict)
    deserved: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    open: bool = True
    headroom: Mapping[str, int] = field(default_factory=dict)
    within: str = ""
    kept: Mapping[str, int] = field(default_factory=dict)
    called: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    hazard: str = ""
    faults: tuple[str, ...] = ()
    strict: bool = False


class AdminOverride(Enum):
    """The order of an admin for all jobs at once."""

    RUN = "run"
    PAUSE = "pause"  # every job keeps its size
    RELEASE = "release"  # every job goes back to its min, as before an uninstall


class TerminatingPod(NamedTuple):
    """A pod that has been told to go: the queue that pays for it, and its node's row."""

    queue: str
    shape: PodShape
    row: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen at one moment. jobs: by key. age_s: of the oldest list in it. whole: False when some list failed.

    unready: the share of nodes that are not ready. standing: what an admin has said of all jobs. leaving: pods that go,
    of no job that is here any more. in_turn: jobs are in the order of their turns. settled: by NODES or queue and by
    resource, what has been idle for as long as a restart takes; None where that does not matter.
    """

    jobs: tuple[JobState, ...]
    queues: Mapping[str, Queue]
    room: Capacity
    age_s: float = 0.0
    whole: bool = True
    unready: float = 0.0
    standing: AdminOverride = AdminOverride.RUN
    leaving: tuple[TerminatingPod, ...] = ()
    in_turn: bool = False
    settled: Mapping[str, Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """What a queue's owner has set. headroom: by resource, kept free in every queue and on the nodes.

    cooldown_s: between two changes of a job, shrinking for somebody who waits apart. pending_s: how long a worker
    above the min may be without a node. least_gain: what an added worker has to add, beside what one of the least
    does. restart_s: what a change of size costs a job; payback_s: by when growing has to win it back; budget: the
    share of its time that restarts may cost a job whatever they win. stale_s: the oldest list that may be acted on.
    most_unready: the share of nodes above which nothing is changed. promise_s: for how long room counts that a
    controller has not freed. start_s: for how long a job starts, once it has its min: to be resized then costs it
    nothing. settle: of a restart's time, for how long room has to have been idle before somebody restarts for it.
    """

    cooldown_s: float = 600.0
    pending_s: float = 30.0
    least_gain: float = 0.05
    stale_s: float = 150.0
    headroom: Mapping[str, int] = field(default_factory=dict)
    restart_s: float = 60.0
    payback_s: float = 3600.0
    budget: float = 0.0
    most_unready: float = 0.45
    promise_s: float = 300.0
    start_s: float = 10.0
    settle: float = 0.75

    @property
    def settle_s(self) -> float:
        """Give it in seconds."""
        return self.settle * self.restart_s
