"""The parts of a decision log's line: nouns as plain structures, and the changes since the line before."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import msgspec
import numpy as np

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import JobState, Observation, Policy, Queue, Step
from turnout.jobs.model import Job, JobKey
from turnout.kube.pod_shape import PodShape

VERSION = 4
Decision = tuple[str, int]  # a decision's reason and size
Kind = tuple[int, list[int], list[int]]  # a shape's number, what a pod of it takes, the runs of nodes that let it in


class BadLog(Exception):
    """A line that cannot be read, or that builds on one which is not there. Skip to the next whole one."""


def _mirror(noun: type[Any], without: Collection[str] = (), **other: Any) -> type[Any]:
    """A plain structure of the fields by which a noun is made: none that is added there is forgotten here.

    without: fields that are told elsewhere. other: fields that are told in another type.
    """
    hints = get_type_hints(noun)
    told = [each for each in fields(noun) if each.init and each.name not in without]
    parts = [(each.name, other.get(each.name, hints[each.name]), *_default(each.default)) for each in told]
    return msgspec.defstruct(f"Plain{noun.__name__}", parts, kw_only=True, omit_defaults=True)


def _default(value: Any) -> tuple[Any, ...]:
    """Give the default of a field that is left out of a line where it has just that."""
    return (value,) if value is None or isinstance(value, bool | int | float | str) else ()


def taken(noun: Any, plain: type[Any]) -> dict[str, Any]:
    """Give a noun's values in the fields of a mirror."""
    return {each: getattr(noun, each) for each in plain.__struct_fields__}


PLAIN_SHAPE = _mirror(PodShape)
PLAIN_JOB = _mirror(Job, shape=int, beside=tuple[tuple[int, int], ...])
PLAIN_SEEN = _mirror(JobState, job=PLAIN_JOB)
PLAIN_OBSERVATION = _mirror(Observation, without=("jobs", "queues", "room", "leaving"))


class RoomChange(msgspec.Struct, omit_defaults=True):
    """The changes of the room since the line before.

    The rows of a new table are all told. switches: the whole map, when it has changed.
    """

    size: int  # rows of the table
    names: list[str] | None = None  # of the columns, told when the table is another one
    rows: list[tuple[int, list[int]]] = []  # those that changed, and what is free there
    kinds: list[Kind] = []  # shapes that other nodes let in by now
    dropped: list[int] = []  # shapes that nobody asks for any more
    switches: list[list[int]] | None = None


class Line(msgspec.Struct, omit_defaults=True):
    """One look, as the changes since the line before."""

    version: int
    number: int  # 0 for a line that says everything, else one more than the line that it builds on
    now_s: float
    digest: str  # of all decisions, details included
    look: Any  # the observation, without what the other fields tell
    room: RoomChange
    program: str = ""  # the version of Turnout that wrote it
    policy: Policy | None = None  # when it has changed
    shapes: list[Any] = []  # new ones, numbered on
    leaving: list[tuple[str, int, int]] = []  # pods of no job, by queue, shape and row
    jobs: list[Any] = []
    gone: list[JobKey] = []
    queues: list[Queue] = []
    queues_gone: list[str] = []
    news: list[Step] = []  # decisions that differ from those of the line before


@dataclass(frozen=True, slots=True)
class Told:
    """A line read: everything to decide again, and what was decided, by job."""

    seen: Observation
    policy: Policy
    now_s: float
    program: str
    words: Mapping[JobKey, Decision]
    digest: str


def digest(steps: Iterable[Step]) -> str:
    """Return a hash that is equal for plans of the same steps, in whatever order."""
    ordered = sorted(steps, key=lambda step: step.key)
    return hashlib.blake2b(msgspec.json.encode(ordered), digest_size=12).hexdigest()


def words(steps: Iterable[Step]) -> dict[JobKey, Decision]:
    """Decisions by job, in what makes one differ from another."""
    return {step.key: (step.reason.value, step.target) for step in steps}


def parts_of(room: Capacity) -> dict[PodShape, tuple[Any, Any]]:
    """Give, for each shape, what a pod takes and which nodes let it in."""
    return {shape: (takes, room.admits[shape]) for shape, takes in room.takes.items()}


def same_map(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return one is other or (
        len(one) == len(other) and all(np.array_equal(*pair) for pair in zip(one, other, strict=True))
    )


def runs_of(admits: Any) -> list[int]:
    """The rows at which yes turns into no and back, beginning with the first yes."""
    padded = np.concatenate(([False], np.asarray(admits, dtype=bool)))
    return np.flatnonzero(padded[1:] != padded[:-1]).tolist()


def admits_of(runs: Sequence[int], size: int) -> Any:
    found = np.zeros(size, dtype=bool)
    for at in range(0, len(runs), 2):
        found[runs[at] : runs[at + 1] if at + 1 < len(runs) else size] = True
    return found
