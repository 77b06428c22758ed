"""The nouns of jobs: what anybody has submitted, in whatever kind, as a queue sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from kube.shape import PodShape

Object = Mapping[str, Any]


class Life(Enum):
    """Where a job stands by its own word; whether it waits or runs is seen from its pods."""

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
class Job:
    """One job. replicas: the workers that its object asks for now. shape: of one worker.

    wish: the most that a person has asked for by hand since we last wrote, None for no such wish. unit: the size
    changes in multiples of this. role: what its workers are called among its pods, "" when it has no other role.
    beside: pods of other roles, (shape, count), which are part of its least. refused: why it cannot be resized, ""
    when it can; it counts in its queue all the same. version: of its object, without which no change is written.
    """

    key: JobKey
    uid: str
    version: str
    queue: str
    replicas: int
    bounds: Bounds
    shape: PodShape
    priority: int = 0
    created: str = ""
    unit: int = 1
    role: str = ""
    wish: int | None = None
    beside: tuple[tuple[PodShape, int], ...] = ()
    life: Life = Life.LIVE
    pause: Pause = Pause.NONE
    cooldown_s: float | None = None
    refused: str = ""

    @property
    def elastic(self) -> bool:
        """May its size be changed?"""
        return not self.refused and self.bounds.least < self.bounds.most and self.life is Life.LIVE

    @property
    def most(self) -> int:
        """The largest size that is wanted now."""
        return self.bounds.most if self.wish is None else max(self.bounds.least, min(self.wish, self.bounds.most))


@dataclass(frozen=True, slots=True)
class Change:
    """One write to the API server. form: the media type of the body."""

    method: str
    path: str
    body: Any
    form: str = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind: where its objects are, how one is read, and what resizes one to so many workers.

    read raises BadJob for an object that cannot be understood. resize is asked only of jobs that are not refused.
    """

    kind: str
    path: str
    read: Callable[[Object], Job]
    resize: Callable[[Object, int], Change]


class BadJob(Exception):
    """An object of a kind that cannot be read as one. The message names the field."""
