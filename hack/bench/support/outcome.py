"""The outcome of a benchmark: tables for people, figures for machines, and targets that are met or not."""

from __future__ import annotations

import math
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
    """A measured value, and the limit that it has to meet."""

    name: str
    value: float
    op: str  # "<=" or ">="
    limit: float

    def __post_init__(self) -> None:
        if self.op not in _OPS:
            raise ValueError(f"target {self.name}: op is {self.op!r}, must be one of {sorted(_OPS)}")

    @property
    def is_met(self) -> bool:
        """True if the value meets the limit; False for NaN."""
        return _OPS[self.op](self.value, self.limit)


@dataclass(frozen=True, slots=True)
class Table:
    """Measurements: a table for people, whose numbers are also the figures of the JSON line, as "LABEL: HEADING"."""

    title: str
    # The format of each column's numbers by its heading; the first column has the labels of the rows.
    columns: Mapping[str, str]
    # A label and its cells. A text is no figure. NaN is shown as "-", infinity as "never", None as nothing.
    rows: Sequence[Sequence[object]]
    key: str = ""  # put before the figures' names, if tables have labels in common

    def texts(self) -> list[list[str]]:
        """Return the rows as they are shown."""
        return [[_text(cell, form) for cell, form in zip(row, self.columns.values(), strict=True)] for row in self.rows]

    def figures(self) -> dict[str, float]:
        """Return every number in the table, by the name of its row and column."""
        return {
            " ".join(filter(None, (self.key, f"{label}: {heading}" if heading else str(label)))): cell
            for label, *cells in self.rows
            for heading, cell in zip(list(self.columns)[1:], cells, strict=True)
            if isinstance(cell, float | int)
        }


def _text(cell: object, form: str) -> str:
    """Return a cell as text: "" for None, "-" for NaN, "never" for infinity. form: of numbers, as in format()."""
    if not isinstance(cell, float | int):
        return "" if cell is None else str(cell)
    if math.isfinite(cell):
        return format(cell, form)
    return "-" if math.isnan(cell) else "never"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run."""

    title: str
    tables: Sequence[Table]
    targets: Sequence[Target] = ()
    notes: Sequence[str] = ()  # lines below the tables
    strict: bool = False  # a missed target is a failure, which ends the program with MISSED
    more: Mapping[str, float] = field(default_factory=dict)  # figures that no table has

    @property
    def figures(self) -> dict[str, float]:
        """Return all figures of the outcome by name. Raises ValueError if two have the same name."""
        parts = [*(table.figures() for table in self.tables), self.more]
        found = {name: value for part in parts for name, value in part.items()}
        if len(found) != sum(map(len, parts)):
            raise ValueError(f"{self.title}: two figures have one name")
        return found


def combine(title: str, *outcomes: Outcome) -> Outcome:
    """Return the outcomes of several parts as one, in their order. Equal notes are kept once.

    title: of the whole. It is strict if one part is. Of equal names in `more` the last part's counts.
    """
    return Outcome(
        title,
        [table for each in outcomes for table in each.tables],
        [target for each in outcomes for target in each.targets],
        list(dict.fromkeys(note for each in outcomes for note in each.notes)),
        any(each.strict for each in outcomes),
        {name: value for each in outcomes for name, value in each.more.items()},
    )
