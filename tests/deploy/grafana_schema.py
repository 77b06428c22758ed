"""What a dashboard in Grafana's classic form may hold, as far as the boards use it. Unknown fields are errors.

Source: Grafana 10.4, "Dashboard JSON model" and the options of its panels.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Natural = Annotated[int, Meta(ge=0)]


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    pass


class Source(Strict):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class Annotation(Strict):
    datasource: Source
    enable: bool
    expr: str
    icon_color: Literal["blue", "red", "purple"]
    name: str
    step: Annotated[str, Meta(pattern="^[0-9]+s$")]
    title_format: str
    use_value_for_time: Literal["on", "off"]


class Annotations(Strict):
    list: list[Annotation]


class Link(Strict):
    type: Literal["dashboards", "link"]
    title: str
    tags: list[str] = []
    as_dropdown: bool = False
    include_vars: bool = False
    keep_time: bool = False
    url: str = ""
    icon: str = ""
    target_blank: bool = False


class VariableQuery(Strict):
    query: Annotated[str, Meta(pattern=r"^label_values\(.+, \w+\)$")]
    ref_id: str


class Choice(Strict):
    text: list[str]
    value: list[str]


class Variable(Strict):
    name: Annotated[str, Meta(pattern=r"^\w+$")]
    label: str
    type: Literal["datasource", "query", "constant"]
    query: str | VariableQuery
    hide: Literal[0, 2] = 0
    refresh: Literal[0, 1, 2] = 0
    definition: str = ""
    datasource: Source | None = None
    sort: Natural = 0
    include_all: bool = False
    multi: bool = False
    current: Choice | None = None
    all_value: str | None = None


class Variables(Strict):
    list: list[Variable]


class Place(Strict):
    x: Annotated[int, Meta(ge=0, lt=24)]
    y: Natural
    w: Annotated[int, Meta(ge=1, le=24)]
    h: Annotated[int, Meta(ge=1)]


class Target(Strict):
    ref_id: Annotated[str, Meta(pattern="^[A-Z]$")]
    datasource: Source
    expr: str
    legend_format: Annotated[str, Meta(min_length=1)]
    format: Literal["time_series", "table", "heatmap"]
    instant: bool
    range: bool


class Step(Strict):
    value: float | None
    color: Literal["green", "orange", "red"]


class Thresholds(Strict):
    mode: Literal["absolute"]
    steps: Annotated[list[Step], Meta(min_length=2)]


class Colour(Strict):
    mode: Literal["thresholds", "palette-classic"]


class Stacking(Strict):
    mode: Literal["none", "normal"]
    group: str


class LineStyle(Strict):
    mode: Literal["off", "line"]


class Drawing(Strict):
    draw_style: Literal["line", "bars"]
    line_interpolation: Literal["stepAfter"]
    fill_opacity: Annotated[int, Meta(ge=0, le=100)]
    show_points: Literal["never"]
    stacking: Stacking
    thresholds_style: LineStyle


class Defaults(Strict):
    unit: str
    color: Colour
    min: float | None = None
    max: float | None = None
    decimals: Natural | None = None
    thresholds: Thresholds | None = None
    custom: Drawing | None = None


class Matcher(Strict):
    id: Literal["byName"]
    options: str


class CellLink(Strict):
    title: str
    url: str
    target_blank: bool


class Property(Strict):
    id: Literal["unit", "links"]
    value: str | list[CellLink]


class Override(Strict):
    matcher: Matcher
    properties: list[Property]


class FieldConfig(Strict):
    defaults: Defaults
    overrides: list[Override]


class Transformation(Strict):
    id: Literal["merge", "organize", "sortBy"]
    options: dict[str, Any]


class Panel(Strict):
    id: Annotated[int, Meta(ge=1)]
    type: Literal["row", "stat", "gauge", "bargauge", "table", "timeseries", "heatmap"]
    title: Annotated[str, Meta(min_length=3)]
    grid_pos: Place
    description: str = ""
    datasource: Source | None = None
    targets: Annotated[list[Target], Meta(max_length=8)] = []
    field_config: FieldConfig | None = None
    options: dict[str, Any] = {}
    transformations: list[Transformation] = []
    collapsed: bool = False
    panels: Annotated[list[dict[str, Any]], Meta(max_length=0)] = []


class TimeRange(Strict):
    from_: str = msgspec.field(name="from")
    to: str


class Dashboard(Strict):
    annotations: Annotations
    description: Annotated[str, Meta(min_length=30)]
    editable: bool
    graph_tooltip: Literal[0, 1, 2]
    id: None
    links: list[Link]
    panels: list[Panel]
    refresh: str
    schema_version: Literal[39]
    tags: list[str]
    templating: Variables
    time: TimeRange
    timezone: Literal["browser"]
    title: Annotated[str, Meta(pattern="^Turnout: ")]
    uid: Annotated[str, Meta(pattern="^turnout-[a-z]+$", max_length=40)]
    version: int
