"""The nouns of a board: rows of panels, their questions and their queries.

Queries are written with short macros, which `expand_macros` replaces. render.py turns a board into Grafana's JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

MAX_PANELS = 20  # of a board; rows are not counted
JOB_LABELS = "job_namespace, job_kind, job_name"
_CLUSTER = 'cluster=~"$cluster"'
# Every macro stands where a matcher, a range or a label list stands.
MACROS = {
    "C": _CLUSTER,
    "Q": f'{_CLUSTER}, queue=~"$queue"',
    "J": f'{_CLUSTER}, job_namespace=~"$namespace", job_kind=~"$kind", job_name=~"$job"',
    "W": "$__rate_interval",
    "R": "$__range",
    "JOB": JOB_LABELS,
}
_MACRO = re.compile(r"(?<=[{\[(, ])(" + "|".join(MACROS) + r")(?=[}\]),])")


def expand_macros(text: str) -> str:
    """Return the query `text` with its macros replaced."""
    return _MACRO.sub(lambda match: MACROS[match[1]], text)


class Viz(Enum):
    """How a panel shows its values. The value is Grafana's name of the panel's type."""

    STAT = "stat"  # the values of this moment, as numbers
    GAUGE = "gauge"  # a share of this moment
    TOTALS = "bargauge"  # the values of this moment, as bars
    TABLE = "table"  # the values of this moment, a row for each object
    LINES = "timeseries"
    AREA = "timeseries-area"  # values that add up
    BARS = "timeseries-bars"  # counts in each interval
    HEATMAP = "heatmap"  # the buckets of a histogram

    @property
    def panel_type(self) -> str:
        """Return Grafana's type of panel."""
        return self.value.partition("-")[0]

    @property
    def is_instant(self) -> bool:
        """True if only the newest value of each series is shown."""
        return self in (Viz.STAT, Viz.GAUGE, Viz.TOTALS, Viz.TABLE)


class Unit(Enum):
    """The unit of a panel. The value is Grafana's name of the unit."""

    COUNT = "none"
    GPUS = "suffix: GPUs"
    GPU_HOURS = "suffix: GPU h"
    SECONDS = "s"
    SHARE = "percentunit"
    PER_SECOND = "cps"
    TIME = "dateTimeAsIso"  # milliseconds since 1970
    AGO = "dateTimeFromNow"  # milliseconds since 1970


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    text: str  # PromQL with macros
    legend: str = ""  # the name of its values: `{{label}}` stands for a label's value; "" names a column of a table
    unit: Unit | None = None  # that of the panel if None

    @property
    def expr(self) -> str:
        """Return the query as Grafana sends it."""
        return expand_macros(self.text)


@dataclass(frozen=True, slots=True)
class Limits:
    """The values at which a number turns amber and red. Smaller is worse where amber is above red."""

    amber: float | None = None
    red: float | None = None
    good: float | None = None  # the only good whole number; every other number is red


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a board."""

    title: str
    question: str  # that it answers
    viz: Viz
    queries: tuple[Query, ...]
    unit: Unit = Unit.COUNT
    limits: Limits = Limits()
    about: str = ""  # what a reader has to know beside the question
    sort: str = ""  # the column by which a table is sorted, largest first
    alert: str = ""  # the alert that fires where the panel turns red, without "Turnout"
    links: str = "job"  # where the cell of a job leads: "job" for the board, "why" for the page

    def __post_init__(self) -> None:
        if not self.queries or not self.question.endswith("?"):
            raise ValueError(f"the panel {self.title} needs a query and a question")

    @property
    def description(self) -> str:
        """Return the text that Grafana shows beside the title."""
        alert = f"Alert and runbook: Turnout{self.alert}." if self.alert else ""
        return " ".join(filter(None, (self.question, self.about, alert)))


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that belong together. Without a title they stand at the top of the board."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    name: str  # of its file, and the end of its uid
    title: str
    questions: tuple[str, ...]  # that the board answers
    rows: tuple[Row, ...]
    variables: tuple[str, ...] = ()  # beside data source, cluster and page_url: names of VARIABLES

    def __post_init__(self) -> None:
        panels = self.panels()
        if len(panels) > MAX_PANELS:
            raise ValueError(f"the board {self.name} has {len(panels)} panels, more than {MAX_PANELS}")
        titles = [panel.title for panel in panels]
        if len(set(titles)) != len(titles):
            raise ValueError(f"the board {self.name} has two panels of one title")

    def panels(self) -> Sequence[Panel]:
        """Return the panels of all rows."""
        return [panel for row in self.rows for panel in row.panels]

    def exprs(self) -> Iterator[str]:
        """Yield every query of the board."""
        yield from (query.expr for panel in self.panels() for query in panel.queries)
