"""The nouns of jobs of every kind, as a queue needs them, and the speed of a job by its number of workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from turnout.kube.pod_shape import PodShape

Curve = tuple[tuple[int, float], ...]  # (workers >= 1, speed > 0), ascending by workers
_MAX_POWER = 20.0  # the largest exponent of the workers, so that the speed of any curve stays finite and above 0
DEFAULT_POWER = (
    0.9  # the exponent of the workers in the speed of a job without a curve. Source: docs/facts/autoscaling.md 7.1
)


class Gain(NamedTuple):
    """The worth of growing from one size to another."""

    share: float  # the relative gain in speed; 0.1 is 10 % faster
    per_worker: float  # the gain of each added worker, relative to a worker at the min; 1.0 is perfect scaling


@lru_cache(maxsize=65_536)
def speed(curve: Curve, workers: int) -> float:
    """Return the speed at a number of workers, in the unit of the curve; by the default curve if `curve` is empty.

    Between and beyond the points the speed is a power of the workers. Beyond the last point it never grows faster than
    the default curve. A single point continues as the default curve. workers: less than 1 counts as 1.
    """
    workers = max(1, workers)
    if not curve:
        return float(workers**DEFAULT_POWER)
    for (low, slow), (high, fast) in pairwise(curve):
        if low <= workers <= high:
            return slow * float((workers / low) ** _power(low, slow, high, fast))
    has_slope = len(curve) > 1
    if workers < curve[0][0]:
        base_workers, base_speed = curve[0]
        power = _power(*curve[0], *curve[1]) if has_slope else DEFAULT_POWER
    else:
        base_workers, base_speed = curve[-1]
        power = min(DEFAULT_POWER, _power(*curve[-2], *curve[-1])) if has_slope else DEFAULT_POWER
    return base_speed * float((workers / base_workers) ** power)


def capped(curve: Curve, power: float) -> Curve:
    """Return the curve with limited growth: between two points, speed grows at most by (ratio of workers) ** power.

    Each point is compared with the limited point before it, so the first is unchanged. power: 1.0 is perfect scaling.
    """
    limited: list[tuple[int, float]] = []
    for workers, fast in curve:
        if limited:
            last_workers, last_speed = limited[-1]
            fast = min(fast, last_speed * float((workers / last_workers) ** power))
        limited.append((workers, fast))
    return tuple(limited)


def _power(low: int, slow: float, high: int, fast: float) -> float:
    """Return the exponent with which the speed grows from `slow` at `low` workers to `fast` at `high` workers.

    It is limited to -_MAX_POWER to _MAX_POWER.
    """
    return max(-_MAX_POWER, min(math.log(fast / slow) / math.log(high / low), _MAX_POWER))


@lru_cache(maxsize=65_536)
def gain(curve: Curve, minimum: int, size: int, larger: int) -> Gain:
    """Return the worth of growing from `size` to `larger` workers.

    curve: of the job, () for the default curve. minimum: the min of the job, in workers, >= 1. size: >= 1. If `larger`
    is not above `size`, the gain of each worker is 0.
    """
    min_worker_speed, speed_now, larger_speed = (
        speed(curve, minimum) / minimum,
        speed(curve, size),
        speed(curve, larger),
    )
    per_worker = (larger_speed - speed_now) / (larger - size) / min_worker_speed if larger > size else 0.0
    return Gain(larger_speed / speed_now - 1, per_worker)


Object = Mapping[str, Any]  # a Kubernetes object as JSON


class JobLifecycle(Enum):
    """The state of a job by its own object. Its pods show whether it waits or runs."""

    LIVE = "live"  # it waits or runs
    SUSPENDED = "suspended"  # it has no pods by the wish of its owner, and may continue
    DONE = "done"  # it succeeded, failed or is being deleted


class Pause(Enum):
    """The changes of size that the owner of a job has forbidden."""

    NONE = "none"
    GROW = "grow"
    SHRINK = "shrink"
    BOTH = "both"


class JobKey(NamedTuple):
    """The name of a job: kind, namespace and name."""

    kind: str  # the kind; where several API groups share it, a longer name that only one of them has
    namespace: str  # of its object
    name: str  # of its object

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The min and the max of a job's workers."""

    minimum: int  # workers, >= 1
    maximum: int  # workers, >= minimum

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise ValueError(f"bounds need 1 <= minimum <= maximum, not {self.minimum}..{self.maximum}")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of workers that a job can have: multiples of `unit`, or powers of two times `unit`."""

    unit: int = 1  # workers, >= 1
    doubles: bool = False  # only unit, 2 * unit, 4 * unit …

    def larger(self, size: int) -> int:
        """Return the smallest allowed size that is larger than `size` workers, >= 0."""
        if not self.doubles:
            return (size // self.unit + 1) * self.unit
        larger_size = self.unit
        while larger_size <= size:
            larger_size *= 2
        return larger_size

    def smaller(self, size: int) -> int:
        """Return the largest size that is smaller than `size` workers, 0 if there is none."""
        return self.round_down(size - 1)

    def round_down(self, size: int) -> int:
        """Return the largest allowed size that is at most `size` workers; 0 if there is none."""
        if size < self.unit:
            return 0
        if not self.doubles:
            return size // self.unit * self.unit
        allowed_size = self.unit
        while allowed_size * 2 <= size:
            allowed_size *= 2
        return allowed_size

    def allows(self, size: int) -> bool:
        """Return True if a job may have this size."""
        return size > 0 and self.round_down(size) == size


ANY_SIZE = Sizes()


@dataclass(frozen=True, slots=True)
class Order:
    """The place of a job in the order of jobs.

    A larger class is first; in a namespace, then the larger priority, then the earlier deadline. Contract: XD-08,
    VE-33.
    """

    class_value: int = 0  # the value of its PriorityClass, which admins assign
    priority: int = 0  # 0 to 100
    deadline_s: float | None = None  # seconds since 1970; None without a deadline

    def with_class_value(self, class_value: int) -> Order:
        """Return the order with another value of the PriorityClass; the same object if the value is equal."""
        return self if class_value == self.class_value else replace(self, class_value=class_value)


@dataclass(frozen=True, slots=True)
class ResizeBudget:
    """The time that changes of size have gained and cost a job, in seconds. Source: docs/facts/autoscaling.md M5"""

    gained_s: float = 0.0  # the net gain at the last change of size, after the cost of restarts
    resized_s: float = 0.0  # the time of the last change, in seconds since 1970; 0 for never
    restart_s: float | None = None  # the cost of one change of size, in seconds; None for the default
    at_start: bool = False  # True if the last change was made when the job started


@dataclass(frozen=True, slots=True)
class Spread:
    """How far a gang may be spread."""

    tier: int | None = None  # the widest switch tier that it may span; None for any
    multiple: int = 1  # the number of pods on a host is a multiple of this, >= 1


@dataclass(frozen=True, slots=True)
class Job:
    """A training job of any kind."""

    key: JobKey  # its kind, namespace and name
    uid: str  # the UID of its object
    version: str  # the resourceVersion of its object; a change is valid only for this version
    queue: str  # the name of the queue that it asks for, "" for none
    replicas: int  # workers that its object requests now, >= 0
    bounds: Bounds  # its min and its max
    shape: PodShape  # of one worker
    order: Order = Order()  # its place in the order of jobs
    created: str = ""  # the creationTimestamp of its object, RFC 3339
    sizes: Sizes = ANY_SIZE  # the sizes that it can have
    role: str = ""  # the role of its workers among its pods, "" if it has no other role
    wanted_workers: int | None = None  # the size that a person set by hand, in workers; None without one
    reapplied_size: int | None = None  # the size that we wrote last, if the submitted object was applied again since
    other_roles: tuple[tuple[PodShape, int], ...] = ()  # (shape of a pod, number of pods) of each other role
    lifecycle: JobLifecycle = JobLifecycle.LIVE  # whether it is live, suspended or done
    pause: Pause = Pause.NONE  # the changes that its owner has forbidden
    pause_ends_s: float | None = None  # seconds since 1970; None for never
    cooldown_s: float | None = None  # seconds between two changes of its size; None for the default
    resize_budget: ResizeBudget = ResizeBudget()  # the time that changes of its size have gained and cost
    curve: tuple[tuple[int, float], ...] = ()  # (workers, speed), ascending by workers
    curve_measured: bool = True  # True if the pods measured the curve, False if its owner wrote it
    spread: Spread = Spread()  # how far its pods may be spread
    priority_class: str = ""  # the name of its PriorityClass, "" for none
    refused: str = ""  # why it cannot be resized, "" if it can; it counts in its queue in both cases
    kueue_boosted: bool = False  # True if Kueue's priority boost places it above other jobs
    foreign: bool = False  # True for pods or a PodGroup of an unknown kind, which may wait but are never resized
    part_of: str = ""  # the UID of its owner, "" for none; the pods of a job whose owner is a job belong to both
    selector: tuple[tuple[str, str], ...] = ()  # labels of its pods, () if its object does not state them

    @property
    def elastic(self) -> bool:
        """True if the autoscaler may change the size: a live job with min < max that is not refused."""
        return not self.refused and self.bounds.minimum < self.bounds.maximum and self.lifecycle is JobLifecycle.LIVE

    @property
    def maximum(self) -> int:
        """Return the largest size that the job should have now: its max, or the size that a person set, in bounds."""
        return (
            self.bounds.maximum
            if self.wanted_workers is None
            else max(self.bounds.minimum, min(self.wanted_workers, self.bounds.maximum))
        )

    def paused(self, now_s: float) -> Pause:
        """Return the changes that are forbidden now. now_s: seconds since 1970."""
        return Pause.NONE if self.pause_ends_s is not None and now_s >= self.pause_ends_s else self.pause


@dataclass(frozen=True, slots=True)
class Change:
    """One write to the API server."""

    method: str  # the HTTP method
    path: str  # the URL path of the object, or of the list in which to create one
    body: Any  # JSON value
    media_type: str = "application/merge-patch+json"  # the media type of the body
    then: Change | None = None  # written after a success; its object has a fixed name, so a repetition has no effect


class BadJob(Exception):
    """An object that cannot be read as a job of its kind. The message names the field."""
