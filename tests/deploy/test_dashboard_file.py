"""The queue owner's board as a file: it can be imported as it is, and is clear to read."""

import json
import re

import pytest

from tests.deploy.test_manifests import MANIFESTS

FILE = MANIFESTS.parent / "grafana/queue.json"
BOARD = json.loads(FILE.read_text())
SCHEMA = 39  # of Grafana 10.4 and 11; a later Grafana brings a board of it up to date when it reads it
COLUMNS = 24
PANELS = BOARD["panels"]
EVERY_PANEL = pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])


def test_the_board_can_be_imported_as_it_is():
    assert BOARD["schemaVersion"] == SCHEMA
    assert BOARD["id"] is None
    assert BOARD["uid"] == "turnout-queue"
    assert [each["name"] for each in BOARD["templating"]["list"]] == ["datasource", "cluster", "queue"]
    assert len(PANELS) <= 20
    assert len({panel["id"] for panel in PANELS}) == len({panel["title"] for panel in PANELS}) == len(PANELS)
    named = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD)))
    assert named == {"datasource", "cluster", "queue", "__range", "__rate_interval"}


def test_panels_fill_the_grid_and_none_lies_on_another():
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == COLUMNS - 1
    assert len(cells) == COLUMNS * (1 + max(y for _, y in cells))


@EVERY_PANEL
def test_a_panel_says_what_it_shows_in_which_unit(panel):
    assert re.fullmatch(r"[A-Z][\w ,]{3,50}", panel["title"])
    assert re.fullmatch(r"(?s)[A-Z].{30,400}\.", panel["description"])
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in ("none", "s")
    steps = defaults.get("thresholds", {}).get("steps", [])
    assert [step["value"] for step in steps] == sorted((step["value"] for step in steps), key=lambda at: at or 0)
    assert not steps or steps[0]["value"] is None
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert len(set(legends)) == len(legends)
    assert all(legends)
    assert all(target["datasource"]["uid"] == "${datasource}" for target in (panel, *panel["targets"]))


def test_a_table_names_the_values_of_each_query():
    tables = [panel for panel in PANELS if panel["type"] == "table"]
    assert tables
    for panel in tables:
        (names,) = (each["options"]["renameByName"] for each in panel["transformations"] if each["id"] == "organize")
        assert {f"Value #{target['refId']}" for target in panel["targets"]} <= names.keys()
        units = [each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]]
        assert set(units) <= set(names.values())
        assert len(units) == len(panel["targets"])
