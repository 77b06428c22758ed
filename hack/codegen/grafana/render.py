"""Turn a board into the JSON that Grafana imports: the classic form, schema 39, of Grafana 10.4 and later."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hack.codegen.grafana.model import Board, Limits, Panel, Query, Row, Unit, Viz, expand_macros

Json = dict[str, Any]
SCHEMA = 39
COLUMNS = 24  # of Grafana's grid
PAGE_URL = "http://127.0.0.1:8765"  # where `turnout page` listens; the chart sets the address of its own page
TAG = "turnout"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_STAT_HEIGHT, _HEIGHT = 4, 8  # grid units
_FOLLOWS = "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"
_JOB_OF_ROW = (
    'var-namespace=${__data.fields["namespace"]}&var-kind=${__data.fields["kind"]}&var-job=${__data.fields["job"]}'
)
_ID_OF_ROW = '${__data.fields["kind"]}/${__data.fields["namespace"]}/${__data.fields["job"]}'
QUEUE_LINK = ("The board of the queue", 'd/turnout-queue?var-queue=${__data.fields["queue"]}&' + _FOLLOWS)
JOB_LINK = ("The board of the job", f"d/turnout-job?{_JOB_OF_ROW}&{_FOLLOWS}")
WHY_LINK = ("Why it waits, on the page", "${page_url}/#/job?id=" + _ID_OF_ROW)
# Columns of a table: the labels in the order in which they are shown, and the name of each.
COLUMN_NAMES = {
    "queue": "queue",
    "job_namespace": "namespace",
    "job_name": "job",
    "job_kind": "kind",
    "gang_namespace": "namespace",
    "gang_name": "gang",
}
# The choices at the top of a board, by name: label and query.
VARIABLES = {
    "cluster": ("Cluster", "label_values(turnout_build_info, cluster)"),
    "queue": ("Queue", "label_values(turnout_queue_jobs{C}, queue)"),
    "namespace": ("Namespace", "label_values(turnout_job_info{C}, job_namespace)"),
    "kind": ("Kind", 'label_values(turnout_job_info{C, job_namespace=~"$namespace"}, job_kind)'),
    "job": ("Job", 'label_values(turnout_job_info{C, job_namespace=~"$namespace", job_kind=~"$kind"}, job_name)'),
}
_SEVERAL = ("cluster", "queue")  # variables that take several values, and All
_RESIZES = 'sum by (queue, direction) (increase(turnout_autoscaler_changes_total{C, outcome="Written"}[2m])) > 0'
_TAINTS = 'sum by (reason) (increase(turnout_node_changes_total{C, outcome="Written"}[2m])) > 0'
_MAP_EDITS = "1000 * max by (cluster) (turnout_topology_last_reload_timestamp_seconds{C})"
ANNOTATIONS = (
    ("Resizes", "blue", _RESIZES, "{{queue}}: {{direction}}", False),
    ("Node changes", "red", _TAINTS, "{{reason}}", False),
    ("Map edits", "purple", _MAP_EDITS, "a new map of switches", True),
)


def text_of(board: Board) -> str:
    """Return the text of the board's file."""
    return json.dumps(dashboard(board), indent=1, ensure_ascii=False) + "\n"


def dashboard(board: Board) -> Json:
    """Return the board as Grafana's JSON."""
    return {
        "annotations": {"list": [_annotation(*each) for each in ANNOTATIONS]},
        "description": " ".join(board.questions),
        "editable": True,
        "graphTooltip": 1,
        "id": None,
        "links": _links(),
        "panels": list(_panels(board.rows)),
        "refresh": "30s",
        "schemaVersion": SCHEMA,
        "tags": [TAG],
        "templating": {"list": list(_variables(board.variables))},
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "title": f"Turnout: {board.title}",
        "uid": f"turnout-{board.name}",
        "version": 1,
    }


def _annotation(name: str, colour: str, query: str, title: str, is_time: bool) -> Json:
    """Return an annotation. is_time: the value is the time of the event, in milliseconds since 1970.

    query: PromQL with macros. title: of each event, a template of Grafana.
    """
    return {
        "datasource": SOURCE,
        "enable": True,
        "expr": expand_macros(query),
        "iconColor": colour,
        "name": name,
        "step": "120s",
        "titleFormat": title,
        "useValueForTime": "on" if is_time else "off",
    }


def _links() -> list[Json]:
    """Return the links above the panels: to every board, and to the page."""
    boards = {"type": "dashboards", "title": "Boards", "tags": [TAG], "asDropdown": False, "includeVars": True}
    page = {"type": "link", "title": "Live page", "url": "${page_url}", "icon": "external link", "targetBlank": True}
    return [{**boards, "keepTime": True}, page]


def _variables(names: Sequence[str]) -> Iterator[Json]:
    """Yield the variables of a board. names: keys of VARIABLES; "cluster" is always one of them."""
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
    for name in ("cluster", *names):
        label, query = VARIABLES[name]
        several = name in _SEVERAL
        choice = {"current": {"text": ["All"], "value": ["$__all"]}, "allValue": ".*"} if several else {}
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": SOURCE,
            "definition": expand_macros(query),
            "query": {"query": expand_macros(query), "refId": "StandardVariableQuery"},
            "refresh": 2,
            "sort": 1,
            "includeAll": several,
            "multi": several,
            **choice,
        }
    yield {"name": "page_url", "label": "Page", "type": "constant", "hide": 2, "query": PAGE_URL}


def _panels(rows: Sequence[Row]) -> Iterator[Json]:
    """Yield the JSON of rows and panels with their places on the grid, from the top down, numbered from 1.

    A row without a title yields only its panels.
    """
    number, top = 0, 0
    for row in rows:
        if row.title:
            number += 1
            place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
            yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
            top += 1
        for line in _lines(row.panels):
            height = max(_STAT_HEIGHT if panel.viz in (Viz.STAT, Viz.GAUGE) else _HEIGHT for panel in line)
            left = 0
            for panel, width in zip(line, _widths([_width(each) for each in line]), strict=True):
                number += 1
                yield _panel(number, panel, {"x": left, "y": top, "w": width, "h": height})
                left += width
            top += height


def _width(panel: Panel) -> int:
    """Return the least width of a panel, in columns of the grid."""
    if panel.viz in (Viz.STAT, Viz.GAUGE):
        return 4
    if panel.viz is Viz.TABLE and len(panel.queries) > 3:
        return COLUMNS
    return 8


def _lines(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Divide the panels of a row, in order, into lines whose least widths fit the grid."""
    lines: list[list[Panel]] = []
    for panel in panels:
        line = lines[-1] if lines else []
        if line and sum(map(_width, line)) + _width(panel) <= COLUMNS:
            line.append(panel)
        else:
            lines.append([panel])
    return lines


def _widths(widths: Sequence[int]) -> list[int]:
    """Widen the panels of a line in equal parts until they fill the grid."""
    more, rest = divmod(COLUMNS - sum(widths), len(widths))
    return [width + more + (index < rest) for index, width in enumerate(widths)]


def _panel(number: int, panel: Panel, place: Json) -> Json:
    """Return one panel as Grafana's JSON. place: its position and size on the grid. number: its ID on the board."""
    found = {
        "id": number,
        "gridPos": place,
        "title": panel.title,
        "description": panel.description,
        "type": panel.viz.panel_type,
        "datasource": SOURCE,
        "targets": [_target(ref, query, panel.viz) for ref, query in zip("ABCDEFGH", panel.queries, strict=False)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": _options(panel),
    }
    return {**found, "transformations": _columns(panel)} if panel.viz is Viz.TABLE else found


def _target(ref: str, query: Query, viz: Viz) -> Json:
    """Return one query of a panel as Grafana's JSON. ref: its letter. viz: of the panel."""
    shape = {Viz.TABLE: "table", Viz.HEATMAP: "heatmap"}.get(viz, "time_series")
    return {
        "refId": ref,
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": shape,
        "instant": viz.is_instant,
        "range": not viz.is_instant,
    }


def _steps(limits: Limits) -> list[Json]:
    """Return the colour thresholds, from the smallest value up."""
    if limits.good is not None:
        steps = [(None, "red"), (limits.good, "green"), (limits.good + 1, "red")]
    elif limits.amber is not None and limits.red is not None and limits.amber > limits.red:
        steps = [(None, "red"), (limits.red, "orange"), (limits.amber, "green")]
    else:
        pairs = ((limits.amber, "orange"), (limits.red, "red"))
        steps = [(None, "green"), *((at, colour) for at, colour in pairs if at is not None)]
    return [{"value": at, "color": colour} for at, colour in steps]


def _defaults(panel: Panel) -> Json:
    """Return the fieldConfig.defaults of a panel: unit, limits and colours of its values, which single queries may
    override.
    """
    has_limits = panel.limits != Limits()
    colour = "thresholds" if has_limits and panel.viz.is_instant else "palette-classic"
    found: Json = {"unit": panel.unit.value, "color": {"mode": colour}}
    if panel.unit not in (Unit.TIME, Unit.AGO):
        found["min"] = 0
    if panel.unit is Unit.SHARE:
        found["max"] = 1
    if panel.unit in (Unit.COUNT, Unit.GPUS, Unit.GPU_HOURS):
        found["decimals"] = 1 if panel.unit is Unit.GPU_HOURS else 0
    if has_limits:
        found["thresholds"] = {"mode": "absolute", "steps": _steps(panel.limits)}
    if panel.viz.panel_type == "timeseries":
        found["custom"] = _drawing(panel.viz, has_limits)
    return found


def _drawing(viz: Viz, has_limits: bool) -> Json:
    """Return the fieldConfig.defaults.custom of a graph: lines, fill and whether the thresholds are drawn.

    has_limits: the panel has thresholds.
    """
    is_stacked = viz in (Viz.AREA, Viz.BARS)
    return {
        "drawStyle": "bars" if viz is Viz.BARS else "line",
        "lineInterpolation": "stepAfter",
        "fillOpacity": {Viz.LINES: 0, Viz.AREA: 40, Viz.BARS: 80}[viz],
        "showPoints": "never",
        "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if has_limits else "off"},
    }


def _overrides(panel: Panel) -> Iterator[Json]:
    """Yield the unit of each query that has its own one, and the links of a table's columns."""
    for query in panel.queries:
        if query.unit is not None:
            yield _override(query.legend, {"id": "unit", "value": query.unit.value})
    if panel.viz is not Viz.TABLE:
        return
    labels = {name for query in panel.queries for name in COLUMN_NAMES if name in query.expr}
    if "queue" in labels:
        yield _override("queue", _cell_link(QUEUE_LINK))
    if "job_name" in labels:
        yield _override("job", _cell_link(WHY_LINK if panel.links == "why" else JOB_LINK))


def _override(column: str, *properties: Json) -> Json:
    return {"matcher": {"id": "byName", "options": column}, "properties": list(properties)}


def _cell_link(link: tuple[str, str]) -> Json:
    title, url = link
    return {"id": "links", "value": [{"title": title, "url": url, "targetBlank": url.startswith("${page_url}")}]}


def _options(panel: Panel) -> Json:
    """Return the `options` object of a panel, which depends on the kind of its visualization."""
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    tooltip = {"mode": "multi", "sort": "desc"}
    match panel.viz:
        case Viz.STAT:
            mode = "value" if len(panel.queries) == 1 and "{{" not in panel.queries[0].legend else "value_and_name"
            return {"reduceOptions": reduce, "colorMode": "value", "graphMode": "none", "textMode": mode}
        case Viz.GAUGE:
            return {"reduceOptions": reduce, "showThresholdLabels": False, "showThresholdMarkers": True}
        case Viz.TOTALS:
            return {"reduceOptions": reduce, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": True}
        case Viz.TABLE:
            return {"showHeader": True, "cellHeight": "sm"}
        case Viz.HEATMAP:
            return {
                "calculate": False,
                "cellGap": 1,
                "yAxis": {"unit": "none"},
                "tooltip": {"mode": "single", "show": True},
            }
        case _:
            legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
            return {"legend": legend, "tooltip": tooltip}


def _columns(panel: Panel) -> list[Json]:
    """Return the transformations that join a panel's queries into a table.

    Its rows are objects, its columns are queries.
    """
    values = {f"Value #{ref}": query.legend for ref, query in zip("ABCDEFGH", panel.queries, strict=False)}
    if len(panel.queries) == 1:  # Grafana names the column of a lone query without its letter
        values["Value"] = panel.queries[0].legend
    names = {**COLUMN_NAMES, **values}
    order = {name: index for index, name in enumerate(names)}
    organize = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": names}
    steps: list[Json] = [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]
    if panel.sort:
        steps.append({"id": "sortBy", "options": {"fields": {}, "sort": [{"field": panel.sort, "desc": True}]}})
    return steps
