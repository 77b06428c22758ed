"""The README's picture: which gang of a run is drawn, and that the drawing says what the run measured."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from hack.codegen.placement_picture import PICTURE, PlacementPair, draw_svg, most_different
from turnout.cli.demo.scenario import DemoGang, scene
from turnout.cli.demo.screen import Score

SVG = "{http://www.w3.org/2000/svg}"


def placement(letter, ours, theirs, gpus=8, leaves=1):
    nodes = {0: "gpu-01", 1: "gpu-02"}
    return PlacementPair(DemoGang(letter, 2, gpus), nodes, nodes, Score(leaves, ours), Score(5, theirs))


@pytest.mark.parametrize(
    ("placements", "chosen"),
    [
        pytest.param([placement("A", 0, 4), placement("B", 0, 9)], "B", id="the gang that saves the most crossings"),
        pytest.param([placement("A", 0, 4), placement("B", 0, 9, gpus=4)], "A", id="never a gang of parts of nodes"),
        pytest.param([placement("A", 0, 4), placement("B", 2, 17, leaves=2)], "A", id="never a gang above one leaf"),
    ],
)
def test_which_gang_is_drawn(placements, chosen):
    assert most_different(placements).gang.letter == chosen


def test_each_rank_is_drawn_once_a_half_with_the_numbers_of_the_run():
    root = ET.fromstring(draw_svg(scene(1, 3), placement("A", 0, 7)))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert sorted(text for text in texts if text in {"0", "1"}) == ["0", "0", "1", "1"]
    assert "kube-scheduler alone: 5 leaf switches, 7 ring crossings" in texts
    assert "with Turnout: 1 leaf switch, 0 ring crossings" in texts


def test_the_committed_picture_has_a_description_for_screen_readers():
    root = ET.parse(PICTURE).getroot()
    assert root.get("role") == "img"
    assert "With Turnout: 1 leaf switch, 0 ring crossings" in (root.findtext(f"{SVG}desc") or "")
