"""The nouns of the lender: what it saw, what it may do, and what it decided, each with one reason of a closed list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from autoscaler.room import Room
from jobs.model import Job, JobKey


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
    OTHERS_WAIT = "PendingMin"  # the room is promised to a job that waits for its min
    MARGINAL_GAIN = "MarginalGainTooSmall"
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


ELSEWHERE = -1  # the row of a node that is not known: its room is nobody's to give


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker's pod. row: of its node in the room, None while it has none. leaving: it has been told to go."""

    index: int
    row: int | None
    leaving: bool = False
    since_s: float = 0.0  # when it was created


@dataclass(frozen=True, slots=True)
class Seen:
    """One job and its workers, by index. beside: how many pods of its other roles have a node, in the job's order.

    resized_s: when its size was last changed by us; 0 for never. done: workers that have ended well, for whom nobody
    comes any more.
    """

    job: Job
    workers: tuple[Worker, ...] = ()
    beside: tuple[int, ...] = ()
    resized_s: float = 0.0
    done: int = 0

    living: tuple[Worker, ...] = field(init=False, compare=False, repr=False)
    promised: tuple[int, ...] = field(init=False, compare=False, repr=False)
    placed: int = field(init=False, compare=False, repr=False)
    waits: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """What every decision asks, worked out once.

        living: the workers that stay: not told to go, nor above the size that the job asks for by now. promised: the
        nodes of the others, whose room is as good as free for whoever waits. placed: how many living ones have a
        node. waits: is anything missing to its min?
        """
        size = self.job.replicas
        living = tuple(worker for worker in self.workers if not worker.leaving and worker.index < size)
        going = self.workers if len(living) < len(self.workers) else ()
        promised = (w.row for w in going if w.row not in (None, ELSEWHERE) and (w.leaving or w.index >= size))
        placed = sum(worker.row is not None for worker in living)
        short = any(there < wanted for there, (_, wanted) in zip(self.beside, self.job.beside, strict=False))
        for name, value in (
            ("living", living),
            ("promised", tuple(promised)),
            ("placed", placed),
            ("waits", placed + self.done < self.job.bounds.least or short),
        ):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue. limit: what its pods may ask for together, by resource, as quantities of kube.shape; absent: no bound.

    deserved: what is its own; beyond it, it borrows. used: by all its pods, those that leave included.
    """

    name: str
    limit: Mapping[str, int] = field(default_factory=dict)
    deserved: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    open: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen at one moment. age_s: of the oldest list in it. whole: False when some list failed."""

    jobs: tuple[Seen, ...]
    queues: Mapping[str, Queue]
    room: Room
    age_s: float = 0.0
    whole: bool = True


def default_speed(workers: int) -> float:
    """How fast a job is with so many workers, beside one: what measured tables give on average."""
    return float(workers**0.9)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a queue's owner has set. headroom: by resource, kept free in every queue and on the nodes.

    cooldown_s: between two changes of a job, shrinking for somebody who waits apart. pending_s: how long a worker
    above the min may be without a node. least_gain: how much faster a job has to become by its next unit.
    stale_s: the oldest list that may be acted on. speed: workers -> how fast.
    """

    cooldown_s: float = 600.0
    pending_s: float = 30.0
    least_gain: float = 0.05
    stale_s: float = 150.0
    headroom: Mapping[str, int] = field(default_factory=dict)
    speed: Callable[[int], float] = default_speed


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one job: its size from now on, which is the old one for a job that is left alone.

    for_: the waiting job that a shrink makes room for. detail: numbers for a person.
    """

    key: JobKey
    workers: int
    was: int
    reason: Reason
    detail: str = ""
    for_: JobKey | None = None

    @property
    def changes(self) -> bool:
        """Is anything written?"""
        return self.workers != self.was
