"""Panels and variables as values, and the classic dashboard JSON that Grafana imports.

What is on a board is told by its maker. Panels are laid out in rows of 24 columns, in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

Object = dict[str, Any]

SCHEMA = 39  # of Grafana 10.4 and 11; a later Grafana brings a board of it up to date when it reads it
COLUMNS = 24
_SOURCE: Object = {"type": "prometheus", "uid": "${datasource}"}


class Kind(Enum):
    """How a panel shows its numbers."""

    STAT = "stat"
    LINES = "lines"
    STACK = "stack"
    BARS = "bars"
    TABLE = "table"

    @property
    def plugin(self) -> str:
        """Grafana's name for it."""
        return self.value if self in (Kind.STAT, Kind.TABLE) else "timeseries"


@dataclass(frozen=True, slots=True)
class Query:
    """One question to Prometheus. now: the last value is enough; else it is drawn over time."""

    expr: str
    legend: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title and unit."""

    title: str
    unit: str = "none"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. size: columns and rows of the grid. steps: (from this value on, colour). columns: of a table."""

    title: str
    says: str
    kind: Kind
    size: tuple[int, int]
    queries: tuple[Query, ...]
    unit: str = "none"
    axis: str = ""
    steps: tuple[tuple[float | None, str], ...] = ()
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the dashboard."""

    name: str
    title: str
    query: str


def board(uid: str, title: str, variables: Sequence[Variable], panels: Sequence[Panel]) -> Object:
    """The dashboard. Raises ValueError for a row of panels that is not filled."""
    return {
        "annotations": {"list": []},
        "description": "Made from code; edit that, not this.",
        "editable": True,
        "graphTooltip": 1,
        "id": None,
        "links": [],
        "panels": [
            {"id": number, "gridPos": place, **_panel(panel)}
            for number, (panel, place) in enumerate(zip(panels, _places(panels), strict=True), 1)
        ],
        "refresh": "30s",
        "schemaVersion": SCHEMA,
        "tags": ["turnout", "gpu", "queue"],
        "templating": {"list": [_datasource(), *map(_variable, variables)]},
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "title": title,
        "uid": uid,
        "version": 1,
    }


def _places(panels: Sequence[Panel]) -> Iterator[Object]:
    x = y = 0
    for panel in panels:
        width, height = panel.size
        yield {"x": x, "y": y, "w": width, "h": height}
        x += width
        if x > COLUMNS:
            raise ValueError(f"panel {panel.title!r} stands beyond the last column")
        if x == COLUMNS:
            x, y = 0, y + height
    if x:
        raise ValueError(f"the last row ends at column {x}")


def _datasource() -> Object:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(variable: Variable) -> Object:
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": _SOURCE,
        "definition": variable.query,
        "query": {"query": variable.query, "refId": "StandardVariableQuery"},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        "includeAll": False,
        "multi": False,
    }


def _panel(panel: Panel) -> Object:
    made: Object = {
        "title": panel.title,
        "description": panel.says,
        "type": panel.kind.plugin,
        "datasource": _SOURCE,
        "targets": [_target(chr(ord("A") + at), query, panel.kind) for at, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel.kind),
    }
    if panel.kind is Kind.TABLE:
        made["fieldConfig"]["overrides"] = [
            {"matcher": {"id": "byName", "options": column.title}, "properties": [{"id": "unit", "value": column.unit}]}
            for column in panel.columns
        ]
        made["transformations"] = _as_one_table(panel.columns)
    return made


def _target(ref: str, query: Query, kind: Kind) -> Object:
    return {
        "refId": ref,
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": "table" if kind is Kind.TABLE else "time_series",
        "instant": query.now,
        "range": not query.now,
    }


def _defaults(panel: Panel) -> Object:
    steps = [{"value": value, "color": colour} for value, colour in panel.steps]
    made: Object = {"unit": panel.unit, "min": 0} if panel.kind is not Kind.TABLE else {"unit": panel.unit}
    if panel.kind is Kind.STAT and panel.unit == "none":
        made["decimals"] = 0  # an increase is estimated between scrapes
    made["color"] = {"mode": "thresholds" if steps and panel.kind is Kind.STAT else "palette-classic"}
    if steps:
        made["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.kind.plugin == "timeseries":
        made["custom"] = {
            "axisLabel": panel.axis,
            "drawStyle": "bars" if panel.kind is Kind.BARS else "line",
            "lineInterpolation": "stepAfter" if panel.unit == "none" else "linear",
            "fillOpacity": 10 if panel.kind is Kind.LINES else 60,
            "showPoints": "never",
            "stacking": {"mode": "none" if panel.kind is Kind.LINES else "normal", "group": "A"},
            "thresholdsStyle": {"mode": "line" if steps else "off"},
        }
    return made


def _options(kind: Kind) -> Object:
    if kind is Kind.STAT:
        last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": last, "colorMode": "value", "graphMode": "none", "textMode": "value_and_name"}
    if kind is Kind.TABLE:
        return {"showHeader": True, "cellHeight": "sm"}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _as_one_table(columns: Sequence[Column]) -> list[Object]:
    """One line a job: the answers joined by its labels, each under the name of its column, the first one on top."""
    names = {f"Value #{chr(ord('A') + at)}": column.title for at, column in enumerate(columns)}
    labels = {"job_namespace": "namespace", "job_kind": "kind", "job_name": "job", "reason": "why"}
    order = ["job_namespace", "job_name", "job_kind", "reason", *names]
    return [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "indexByName": {name: at for at, name in enumerate(order)},
                "renameByName": {**labels, **names},
            },
        },
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": columns[0].title, "desc": True}]}},
    ]
