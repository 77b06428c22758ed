"""The nouns of jobs: what anybody has submitted, in whatever kind, as a queue sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from turnout.jobs.pod_identity import USUAL, PodMarks
from turnout.kube.pod_shape import PodShape

Object = Mapping[str, Any]


class Life(Enum):
    """The state of a job by its own object. Its pods show whether it waits or runs."""

    LIVE = "live"
    SUSPENDED = "suspended"
    DONE = "done"


class Pause(Enum):
    """Which changes of a job its owner has forbidden."""

    NONE = "none"
    GROW = "grow"
    SHRINK = "shrink"
    BOTH = "both"


class JobKey(NamedTuple):
    """A job's name: its kind as people write it, its namespace, its name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most workers, 1 <= least <= most."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"bounds need 1 <= least <= most, not {self.least}..{self.most}")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Which numbers of workers a job can have: multiples of `unit`, or `unit` doubled any number of times."""

    unit: int = 1
    doubles: bool = False

    def larger(self, size: int) -> int:
        """The next size up."""
        if not self.doubles:
            return (size // self.unit + 1) * self.unit
        found = self.unit
        while found <= size:
            found *= 2
        return found

    def smaller(self, size: int) -> int:
        """The next size down, 0 below the smallest."""
        return self.at_most(size - 1)

    def at_most(self, size: int) -> int:
        """The largest size that is not above; 0 when there is none."""
        if size < self.unit:
            return 0
        if not self.doubles:
            return size // self.unit * self.unit
        found = self.unit
        while found * 2 <= size:
            found *= 2
        return found

    def has(self, size: int) -> bool:
        """True if a job may have this size."""
        return size > 0 and self.at_most(size) == size


ANY_SIZE = Sizes()


@dataclass(frozen=True, slots=True)
class Order:
    """The order of jobs: the larger class, and in a namespace then the larger priority (0 to 100), the nearer deadline.

    class_value: of its PriorityClass, which admins give out. deadline_s: since 1970, None for no such wish. Contract:
    XD-08, VE-33.
    """

    class_value: int = 0
    priority: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class ResizeBudget:
    """The balance of what lending has won and cost a job, in seconds of its own time. docs/facts/autoscaling.md M5."""

    gained_s: float = 0.0  # when the size was last changed, restarts taken off
    resized_s: float = 0.0  # time of that change, 0 for never
    restart_s: float | None = None  # what a change of size costs the job, None for the usual cost
    at_start: bool = False  # that change was made as the job started


@dataclass(frozen=True, slots=True)
class Spread:
    """How far a gang may be spread. tier: the widest switch that it may span, None for any. multiple: pods a host."""

    tier: int | None = None
    multiple: int = 1


@dataclass(frozen=True, slots=True)
class Job:
    """One job. replicas: the workers that its object asks for now. shape: of one worker.

    wish: the most that a person has asked for by hand since we last wrote, None for no such wish. put_back: the size
    that we wrote last, where its object has been applied again as it was submitted, None where it was not. sizes: those
    that it can have. role: what its workers are called among its pods, "" when it has no other role. beside: pods of
    other roles, (shape, count), which are part of its least. refused: why it cannot be resized, "" when it can; it
    counts in its queue all the same. version: of its object, without which no change is written. priority_class: the
    name of its PriorityClass. part_of: the uid of the object that has made it, "" for none: is that a job, too, then it
    counts for both. pause_ends_s: when a pause is over, None for never. curve: workers -> how fast, ascending, as its
    owner knows or its pods have reported; learnt: by the latter. lifted: above others by Kueue. foreign: nobody's to
    resize, and waits as it stands: pods or a PodGroup of a kind that we do not know. selector: labels that its pods
    bear, where its object says so.
    """

    key: JobKey
    uid: str
    version: str
    queue: str
    replicas: int
    bounds: Bounds
    shape: PodShape
    order: Order = Order()
    created: str = ""
    sizes: Sizes = ANY_SIZE
    role: str = ""
    wish: int | None = None
    put_back: int | None = None
    beside: tuple[tuple[PodShape, int], ...] = ()
    life: Life = Life.LIVE
    pause: Pause = Pause.NONE
    pause_ends_s: float | None = None
    cooldown_s: float | None = None
    bank: ResizeBudget = ResizeBudget()
    curve: tuple[tuple[int, float], ...] = ()
    learnt: bool = True
    spread: Spread = Spread()
    priority_class: str = ""
    refused: str = ""
    lifted: bool = False
    foreign: bool = False
    part_of: str = ""
    selector: tuple[tuple[str, str], ...] = ()

    @property
    def elastic(self) -> bool:
        """True if the job's size may be changed."""
        return not self.refused and self.bounds.least < self.bounds.most and self.life is Life.LIVE

    @property
    def most(self) -> int:
        """The largest size that is wanted now."""
        return self.bounds.most if self.wish is None else max(self.bounds.least, min(self.wish, self.bounds.most))

    def paused(self, now_s: float) -> Pause:
        """Which changes are forbidden now."""
        return Pause.NONE if self.pause_ends_s is not None and now_s >= self.pause_ends_s else self.pause


@dataclass(frozen=True, slots=True)
class Change:
    """One write to the API server. form: the media type of the body.

    then: what is written after it, and only if it got through: by its own name, so that to write it twice is nothing.
    """

    method: str
    path: str
    body: Any
    form: str = "application/merge-patch+json"
    then: Change | None = None


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind: where its objects are, how one is read, and what resizes one to so many workers.

    read raises BadJob for an object that cannot be understood. resize is asked only of jobs that are not refused.
    naming: resizes, too, where a shrink has to name the pods that leave. again: what may have been lost after a
    resize of ours, to be written again while the job does not follow; None when there is nothing. pods: how its pods
    are known. object_kind: in its objects, where groups have that name in common and `kind` tells them apart.
    """

    kind: str
    path: str
    read: Callable[[Object], Job]
    resize: Callable[[Object, int], Change]
    naming: Callable[[Object, int, tuple[str, ...]], Change] | None = None
    again: Callable[[Object], Change | None] | None = None
    pods: PodMarks = USUAL
    object_kind: str = ""

    @property
    def api_version(self) -> str:
        """The `GROUP/VERSION` of its objects."""
        return self.path.removeprefix("/apis/").rpartition("/")[0]

    def change(self, raw: Object, workers: int, leaving: tuple[str, ...] = ()) -> Change:
        """Make the change that gives the job so many workers. leaving: the names of the pods that are meant to go."""
        return self.resize(raw, workers) if self.naming is None else self.naming(raw, workers, leaving)


class BadJob(Exception):
    """An object of a kind that cannot be read as one. The message names the field."""
