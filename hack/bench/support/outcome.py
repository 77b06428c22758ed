"""The outcome of a benchmark: tables for people, figures for machines, and targets that are met or not."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

MISSED = 3  # exit status
Picked = TypeVar("Picked")
_OPS: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


class Scale(Enum):
    """How much a benchmark measures."""

    FULL = "full"  # the sizes that targets name
    QUICK = "quick"  # the same measurement in a minute or two
    SMALLEST = "smallest"  # seconds: shows that the benchmark runs, measures nothing

    def pick(self, full: Picked, quick: Picked, smallest: Picked) -> Picked:
        """Return the value of this scale."""
        return {Scale.FULL: full, Scale.QUICK: quick, Scale.SMALLEST: smallest}[self]


@dataclass(frozen=True, slots=True)
class Target:
    """One promise, stated once, where it is measured. op: "<=" or ">="."""

    name: str
    value: float
    op: str
    limit: float

    def __post_init__(self) -> None:
        if self.op not in _OPS:
            raise ValueError(f"target {self.name}: op is {self.op!r}, must be one of {sorted(_OPS)}")

    @property
    def met(self) -> bool:
        """True if the promise was kept; never for a value that is no number."""
        return _OPS[self.op](self.value, self.limit)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people, one text per column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a run found. figures: name -> number. notes: lines under the tables, what a reader must know.

    strict: a target that is missed is a failure, which ends the program with MISSED.
    """

    title: str
    tables: Sequence[Table]
    figures: Mapping[str, float]
    targets: Sequence[Target] = ()
    notes: Sequence[str] = field(default=())
    strict: bool = False
