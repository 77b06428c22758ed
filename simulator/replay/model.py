"""The values of a replay: submissions, the rules of the cluster, and the result of every job."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from turnout.jobs.model import ANY_SIZE, Curve, Sizes, speed


@dataclass(frozen=True, slots=True)
class Submission:
    """One job as a user submits it. Raises ValueError for sizes or times that are out of bounds."""

    name: str
    at_s: float  # time of submission, in seconds
    work_s: float  # how long it takes with `minimum` workers and no restart, in seconds
    minimum: int = 1  # min, in workers
    maximum: int = 1  # max, in workers
    gpus: int = 1  # of one worker
    sizes: Sizes = ANY_SIZE  # numbers of workers that it can have
    priority: int = 0  # a higher one goes first
    curve: Curve = ()  # (workers, speed), ascending, in any scale; without one the usual curve is taken

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum or self.gpus < 1 or self.work_s <= 0 or self.at_s < 0:
            raise ValueError(f"submission {self.name}: {self.minimum}..{self.maximum} workers of {self.gpus} GPUs")

    def speed(self, workers: int) -> float:
        """Return how fast it is with `workers` workers, in the scale of its curve; without a curve in that of the
        usual one.
        """
        return speed(self.curve, workers)

    @property
    def min_gpus(self) -> int:
        """The number of GPUs that it needs to start."""
        return self.minimum * self.gpus

    @property
    def turn(self) -> tuple[int, float, str]:
        """The sort key of the queue: priority, then age, as the autoscaler has it."""
        return -self.priority, self.at_s, self.name


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """The behaviour of the cluster. Times are in seconds. Raises ValueError without nodes or GPUs, or for a negative
    time.
    """

    nodes: tuple[int, ...]  # the GPUs of each node; one node is a pool without fragmentation
    restart_s: float = 60.0  # how long a job makes no progress after a resize
    grace_s: float = 30.0  # how long a worker that was told to leave still holds its GPUs
    tick_s: float = 5.0  # between two looks; 0 for a look at every event
    backfill: bool = False  # True: a job may start before an older one that does not fit
    known_curves: bool = True  # True: the curves are known
    # True: under strict FIFO the autoscaler also sees the jobs behind one that does not fit; a strict queue gives them
    # no pods, so in a real cluster they are not seen
    all_seen: bool = False
    start_s: float = 10.0  # how long a job only starts, so that a resize costs no more than what it has run

    def __post_init__(self) -> None:
        if not self.nodes or min(self.nodes) < 1 or min(self.restart_s, self.grace_s, self.tick_s, self.start_s) < 0:
            raise ValueError("a cluster needs nodes with GPUs, and no time may be negative")

    @property
    def gpus(self) -> int:
        """The GPUs of the whole cluster."""
        return sum(self.nodes)


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job."""

    submitted: Submission
    started_s: float  # when it ran with its min
    ended_s: float
    restarts: int = 0  # restarts after a change of its size that cost it restart_s
    shrinks_for_others: int = 0  # changes that made room for another job

    @property
    def waited_s(self) -> float:
        """The time from submission to running with its min, in seconds."""
        return self.started_s - self.submitted.at_s

    @property
    def took_s(self) -> float:
        """The time from submission to the end, in seconds."""
        return self.ended_s - self.submitted.at_s


@dataclass(frozen=True, slots=True)
class Eviction:
    """Workers of one job that were told to leave for another job."""

    at_s: float  # time of the decision
    victim: str  # name of the job that gives the workers
    workers: int  # how many leave
    beneficiary: str  # name of the job that gets the room


@dataclass(frozen=True)
class ReplayOutcome:
    """The result of a whole replay."""

    rules: ReplayRules
    results: tuple[JobResult, ...]  # in the order of submissions
    evictions: tuple[Eviction, ...] = ()  # in the order of time
    worked_gpu_s: float = 0.0  # GPU seconds in which jobs made progress until the last submission
    decisions: int = 0  # decisions made

    @cached_property
    def window_s(self) -> float:
        """The time from the first submission to the last, in seconds."""
        at = [ran.submitted.at_s for ran in self.results]
        return max(at) - min(at)

    @property
    def utilisation(self) -> float:
        """The share of all GPU time in the window with progress. Restarts and leaving workers count as idle."""
        return self.worked_gpu_s / (self.rules.gpus * self.window_s) if self.window_s else 0.0

    @property
    def mean_took_s(self) -> float:
        """The mean completion time from submission, in seconds."""
        return sum(ran.took_s for ran in self.results) / len(self.results)

    @property
    def restarts(self) -> float:
        """The mean number of restarts per job that cost restart_s."""
        return sum(ran.restarts for ran in self.results) / len(self.results)
