"""The boards as files: they are made from their tables, can be imported as they are, and show every metric."""

import json
import re

import msgspec
import pytest

from hack.codegen.alerts import __main__ as alert_generator
from hack.codegen.grafana import __main__ as generator
from hack.codegen.grafana import coverage
from hack.codegen.grafana.model import MAX_PANELS, Board, Limits, Panel, Query, Row, Viz, expand_macros
from hack.codegen.grafana.render import COLUMNS, PAGE_URL, dashboard
from hack.lint.code_blocks import run_by
from tests.deploy.grafana_schema import Dashboard
from tests.deploy.test_manifests import MANIFESTS

FOLDER = MANIFESTS.parent / "grafana"
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
EVERY_BOARD = pytest.mark.parametrize("name", BOARDS)
EVERY_PANEL = pytest.mark.parametrize(
    "panel",
    [
        pytest.param(panel, id=f"{name}: {panel['title']}")
        for name, board in BOARDS.items()
        for panel in board["panels"]
        if panel["type"] != "row"
    ],
)
VARIABLES = {"queue": ["queue"], "job": ["namespace", "kind", "job"]}


@pytest.mark.contract("CS-20")
def test_the_files_are_made_from_the_tables():
    assert run_by("tests/deploy/test_dashboard_file.py::test_the_files_are_made_from_the_tables")
    assert generator.main([]) == 0
    assert sorted(BOARDS) == sorted(board.name for board in generator.BOARDS)


@EVERY_BOARD
def test_a_board_has_the_form_that_grafana_imports(name):
    board = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Dashboard)
    assert board.uid == f"turnout-{name}"
    names = [each.name for each in board.templating.list]
    assert names == ["datasource", "cluster", *VARIABLES.get(name, ()), "page_url"]
    panels = [panel for panel in board.panels if panel.type != "row"]
    assert len(panels) <= MAX_PANELS
    assert len({panel.id for panel in board.panels}) == len(board.panels)
    known = {*names, "__range", "__rate_interval", "__url_time_range", "__data", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(BOARDS[name]))) <= known
    assert [panel.type for panel in board.panels].index("row") > 3, "numbers stand above the first row"


@EVERY_BOARD
def test_panels_fill_the_grid_and_none_lies_on_another(name):
    places = [panel["gridPos"] for panel in BOARDS[name]["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == COLUMNS - 1
    assert {y for _, y in cells} == set(range(1 + max(y for _, y in cells)))


@EVERY_BOARD
def test_a_board_names_its_questions_and_leads_to_boards_and_page(name):
    board = BOARDS[name]
    assert board["description"].count("?") >= 3
    boards, page = board["links"]
    assert boards["tags"] == board["tags"] == ["turnout"]
    assert (page["url"], board["templating"]["list"][-1]["query"]) == ("${page_url}", PAGE_URL)
    assert [each["name"] for each in board["annotations"]["list"]] == ["Resizes", "Node changes", "Map edits"]


@EVERY_PANEL
def test_a_panel_says_what_it_answers_in_which_unit(panel):
    assert re.fullmatch(r"[A-Z][\w ,]{3,50}", panel["title"])
    assert re.fullmatch(r"(?s)[A-Z][^?]{15,100}\?( .{5,300}\.)?", panel["description"])
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    assert not steps or steps[0]["value"] is None
    values = [step["value"] for step in steps[1:]]
    assert values == sorted(set(values))
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert len(set(legends)) == len(legends)
    assert all(target["instant"] != target["range"] for target in panel["targets"])


def test_a_panel_names_an_alert_that_exists():
    named = {panel.alert for board in generator.BOARDS for panel in board.panels()} - {""}
    alerts = {each.name for group in alert_generator.GROUPS for each in group.alerts}
    assert len(named) > 20
    assert named <= alerts


def test_a_table_names_the_values_of_each_query():
    tables = [panel for board in BOARDS.values() for panel in board["panels"] if panel["type"] == "table"]
    assert len(tables) > 5
    for panel in tables:
        (names,) = (each["options"]["renameByName"] for each in panel["transformations"] if each["id"] == "organize")
        assert {f"Value #{target['refId']}" for target in panel["targets"]} <= names.keys()
        columns = [each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]]
        assert set(columns) <= set(names.values())
        sorts = [each["options"]["sort"][0]["field"] for each in panel["transformations"] if each["id"] == "sortBy"]
        assert set(sorts) <= {target["legendFormat"] for target in panel["targets"]}


@pytest.mark.parametrize(
    ("text", "query"),
    [
        pytest.param("up{C}", 'up{cluster=~"$cluster"}', id="a cluster"),
        pytest.param('up{Q, a="b"}', 'up{cluster=~"$cluster", queue=~"$queue", a="b"}', id="a queue and more"),
        pytest.param("rate(up{C}[W])", 'rate(up{cluster=~"$cluster"}[$__rate_interval])', id="a range"),
        pytest.param(
            "sum by (JOB, C_) (x)", "sum by (job_namespace, job_kind, job_name, C_) (x)", id="labels of a job"
        ),
        pytest.param('x{state="C"}', 'x{state="C"}', id="a value that reads like a macro"),
    ],
)
def test_macros(text, query):
    assert expand_macros(text) == query


def test_a_board_has_twenty_panels_at_most():
    panels = tuple(Panel(f"panel {number}", "Why?", Viz.STAT, (Query("up", "up"),)) for number in range(21))
    with pytest.raises(ValueError, match="21 panels"):
        Board("wide", "wide", (), (Row("", panels),))


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        pytest.param(Limits(1, 5), [(None, "green"), (1, "orange"), (5, "red")], id="more is worse"),
        pytest.param(Limits(0.9, 0.7), [(None, "red"), (0.7, "orange"), (0.9, "green")], id="less is worse"),
        pytest.param(Limits(red=1), [(None, "green"), (1, "red")], id="red alone"),
        pytest.param(Limits(good=1), [(None, "red"), (1, "green"), (2, "red")], id="exactly one is good"),
    ],
)
def test_limits_become_colours(limits, steps):
    board = Board("b", "b", (), (Row("", (Panel("title", "Why?", Viz.STAT, (Query("up", "up"),), limits=limits),)),))
    (panel,) = dashboard(board)["panels"]
    found = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [(step["value"], step["color"]) for step in found] == steps


@pytest.mark.contract("CS-20")
def test_a_metric_on_no_board_and_a_series_of_nobody_are_faults():
    exprs = [expr for board in generator.BOARDS for expr in board.exprs()]
    assert list(coverage.faults(exprs)) == []
    fewer = [expr for expr in exprs if "turnout_gated_pods" not in expr]
    assert [each.partition(" is on")[0] for each in coverage.faults(fewer)] == ["the metric turnout_gated_pods"]
    more = [*exprs, "turnout_gated_pod"]
    assert list(coverage.faults(more)) == ["no program exports turnout_gated_pod, and no rule records it"]
    assert len(coverage.EXCEPTIONS) <= coverage.MAX_EXCEPTIONS
    assert all(len(reason) > 20 for reason in coverage.EXCEPTIONS.values())
