"""The nouns of a replay: what was submitted, the rules of the cluster, and what became of every job."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from turnout.jobs.model import ANY_SIZE, Sizes
from turnout.jobs.scaling_curve import Curve, speed


@dataclass(frozen=True, slots=True)
class Submission:
    """One job as somebody submits it. work_s: how long it takes with `least` workers and no restart.

    gpus: of one worker. sizes: those that it can have. curve: workers -> how fast, ascending, in any scale; without one
    it goes as most jobs do.
    """

    name: str
    at_s: float
    work_s: float
    least: int = 1
    most: int = 1
    gpus: int = 1
    sizes: Sizes = ANY_SIZE
    priority: int = 0
    curve: Curve = ()

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or self.gpus < 1 or self.work_s <= 0 or self.at_s < 0:
            raise ValueError(f"submission {self.name}: {self.least}..{self.most} workers of {self.gpus} GPUs")

    def speed(self, workers: int) -> float:
        """How fast it is, in the scale of its curve."""
        return speed(self.curve, workers)

    @property
    def min_gpus(self) -> int:
        """What it needs to start."""
        return self.least * self.gpus

    @property
    def turn(self) -> tuple[int, float, str]:
        """Who comes first: priority, then age, as the autoscaler has it."""
        return -self.priority, self.at_s, self.name


@dataclass(frozen=True, slots=True)
class Rules:
    """How the cluster behaves. nodes: the GPUs of each; one node is a pool in which nothing is ever scattered.

    restart_s: how long a job makes no progress once its size has changed. start_s: for how long a job only starts, so
    that a change of its size costs no more than what it has run. grace_s: how long a worker that was told to
    go still holds its GPUs. tick_s: between two looks, 0 for a look at every event. backfill: may a job
    start before an older one that does not fit? told_curves: are the curves known? all_seen: is the autoscaler
    shown the jobs behind one that does not fit under strict FIFO, too? A queue that is strict does not let them
    through: they have no pods that wait.
    """

    nodes: tuple[int, ...]
    restart_s: float = 60.0
    grace_s: float = 30.0
    tick_s: float = 5.0
    backfill: bool = False
    told_curves: bool = True
    all_seen: bool = False
    start_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.nodes or min(self.nodes) < 1 or min(self.restart_s, self.grace_s, self.tick_s) < 0:
            raise ValueError("a cluster needs nodes with GPUs, and no time may be negative")

    @property
    def gpus(self) -> int:
        """Of the whole cluster."""
        return sum(self.nodes)


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one job. restarts: changes of its size. robbed: those that made room for somebody else."""

    submitted: Submission
    started_s: float
    ended_s: float
    restarts: int = 0
    robbed: int = 0

    @property
    def waited_s(self) -> float:
        """From submission to its min."""
        return self.started_s - self.submitted.at_s

    @property
    def took_s(self) -> float:
        """From submission to the end."""
        return self.ended_s - self.submitted.at_s


@dataclass(frozen=True, slots=True)
class Eviction:
    """Workers of one job were told to go for another."""

    at_s: float
    victim: str
    workers: int
    for_: str


@dataclass(frozen=True)
class Tape:
    """A whole replay. ran: in the order of submissions. worked_gpu_s: GPU seconds in which jobs made progress until the
    last submission. looks: decisions made."""

    rules: Rules
    ran: tuple[Ran, ...]
    evictions: tuple[Eviction, ...] = ()
    worked_gpu_s: float = 0.0
    looks: int = 0

    @cached_property
    def window_s(self) -> float:
        """While jobs arrive: from the first submission to the last."""
        at = [ran.submitted.at_s for ran in self.ran]
        return max(at) - min(at)

    @property
    def utilisation(self) -> float:
        """Share of all GPUs that made progress while jobs arrived; restarts and workers on their way out are idle."""
        return self.worked_gpu_s / (self.rules.gpus * self.window_s) if self.window_s else 0.0

    @property
    def mean_took_s(self) -> float:
        """Mean completion time, from submission."""
        return sum(ran.took_s for ran in self.ran) / len(self.ran)

    @property
    def restarts(self) -> float:
        """Changes of size a job."""
        return sum(ran.restarts for ran in self.ran) / len(self.ran)
