"""Draw one gang of the demo twice, without and with Turnout: `python -m hack.codegen.placement_picture`.

The demo runs with the real extender. This module records where the members of each gang landed, and draws the gang
whose numbers of ring crossings differ most, as a picture of the README.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console

from turnout.cli.demo.driver import Show, perform
from turnout.cli.demo.scenario import NODES_PER_LEAF, Act, DemoGang, DemoNode, Scene
from turnout.cli.demo.screen import Pair, Placed, Score, Screen

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "gang.svg"

CELL, GAP, COLUMNS = 22, 4, 4  # pixels of a node and between two nodes; nodes in a row of a leaf
LEAF_WIDTH = COLUMNS * (CELL + GAP) + 8
LEAF_HEIGHT = (NODES_PER_LEAF // COLUMNS) * (CELL + GAP) + 26
SPINE_LEAVES = 4
HALF_WIDTH = SPINE_LEAVES * (LEAF_WIDTH + 8) + 24
SPINE_HEIGHT = LEAF_HEIGHT + 34
TOP = 92
LEGEND = (
    "A square is a node with 8 GPUs. A number is the rank of the gang's pod there. "
    "A line joins neighbours in the ring. Dark grey: another job. Light grey: free."
)


@dataclass(frozen=True, slots=True)
class PlacementPair:
    """One gang with the nodes of its members, by rank, in both clusters."""

    gang: DemoGang
    ours: Mapping[int, str]  # rank -> node name
    theirs: Mapping[int, str]  # rank -> node name
    our_score: Score
    their_score: Score
    our_busy: frozenset[str] = frozenset()  # nodes that other jobs use
    their_busy: frozenset[str] = frozenset()


class RecordingScreen(Screen):
    """A screen of the demo that prints to memory and records each gang that both clusters placed whole."""

    def __init__(self) -> None:
        super().__init__(Console(file=StringIO()))
        self.scene: Scene | None = None
        self.placements: list[PlacementPair] = []

    def open(self, play: Scene) -> None:
        """Record the fabric before any cable is moved."""
        self.scene = play
        super().open(play)

    def act(
        self,
        play: Scene,
        act: Act,
        present: Sequence[DemoGang],
        ours: Placed,
        theirs: Placed,
        scores: Pair,
        late: Sequence[DemoGang],
    ) -> None:
        """Record the gang of this event if both clusters placed it whole."""
        gang = act.gang
        our_score, their_score = scores.ours.get(gang.letter), scores.theirs.get(gang.letter)
        if play is self.scene and our_score is not None and their_score is not None and gang in present:
            nodes = dict(ours[gang.name]), dict(theirs[gang.name])
            busy = (_others(play, where, gang) for where in (ours, theirs))
            self.placements.append(PlacementPair(gang, *nodes, our_score, their_score, *busy))
        super().act(play, act, present, ours, theirs, scores, late)


def _others(play: Scene, placement: Placed, gang: DemoGang) -> frozenset[str]:
    """Return the nodes that something else than this gang uses."""
    return frozenset(name for name, _ in play.busy).union(
        *(nodes.values() for name, nodes in placement.items() if name != gang.name)
    )


def most_different(placements: Sequence[PlacementPair]) -> PlacementPair:
    """Return the gang of whole nodes that we placed under one leaf and that saves the most crossings.

    Raises ValueError if there is no such gang.
    """
    candidates = [each for each in placements if each.gang.gpus == 8 and each.our_score.leaves == 1]
    return max(candidates, key=lambda each: (each.their_score.crossings - each.our_score.crossings, each.gang.letter))


def draw_svg(scene: Scene, placement: PlacementPair) -> str:
    """Return the picture as SVG text: both placements side by side, with a line between neighbours in the ring.

    scene: the demo's fabric, before cables are moved. placement: the gang in both clusters.
    """
    gang, width = placement.gang, 2 * HALF_WIDTH + 60
    height = TOP + 2 * (SPINE_HEIGHT + 12) + 26
    title = f"One gang of {gang.pods} pods with {gang.gpus} GPUs each, placed twice on equal clusters"
    description = (
        f"kube-scheduler alone: {_sentence(placement.their_score)}. With Turnout: {_sentence(placement.our_score)}."
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="system-ui, sans-serif">',
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
        f'<text x="24" y="32" font-size="18" font-weight="600" fill="#1c2733">{escape(title)}</text>',
    ]
    for left, heading, nodes, busy, score, colour in (
        (24, "kube-scheduler alone", placement.theirs, placement.their_busy, placement.their_score, "#b3471d"),
        (HALF_WIDTH + 36, "with Turnout", placement.ours, placement.our_busy, placement.our_score, "#0b7285"),
    ):
        parts += _half(scene, nodes, busy, left, f"{heading}: {_sentence(score)}", colour)
    parts.append(f'<text x="24" y="{height - 14}" font-size="12" fill="#52606d">{LEGEND}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _sentence(score: Score) -> str:
    leaves = "1 leaf switch" if score.leaves == 1 else f"{score.leaves} leaf switches"
    return f"{leaves}, {score.crossings} ring crossings"


def _half(
    scene: Scene, nodes: Mapping[int, str], busy: frozenset[str], left: int, heading: str, colour: str
) -> list[str]:
    """Return the SVG elements of one placement: switches, nodes, and the ring of the gang.

    nodes: node of each rank. busy: nodes of other jobs. left: x of the left edge, in pixels. scene: has the nodes with
    their switches. heading: the text above. colour: of the gang, as in SVG.
    """
    corners = _corners(scene.places, left)
    ranks = {name: rank for rank, name in nodes.items()}
    parts = [f'<text x="{left}" y="{TOP - 22}" font-size="16" fill="{colour}">{escape(heading)}</text>']
    for number, spine in enumerate(sorted({place.spine for place in scene.places})):
        top = TOP + number * (SPINE_HEIGHT + 12)
        parts.append(
            f'<rect x="{left}" y="{top}" width="{HALF_WIDTH - 8}" height="{SPINE_HEIGHT}" rx="8" fill="#f1f4f8"/>'
            f'<text x="{left + 10}" y="{top + 17}" font-size="12" fill="#52606d">{spine}</text>'
        )
        leaves = sorted({place.leaf for place in scene.places if place.spine == spine})
        for at, leaf in enumerate(leaves):
            x, y = left + 10 + at * (LEAF_WIDTH + 8), top + 24
            parts.append(
                f'<rect x="{x}" y="{y}" width="{LEAF_WIDTH}" height="{LEAF_HEIGHT}" rx="6" fill="#ffffff" '
                'stroke="#cbd2d9"/>'
                f'<text x="{x + 6}" y="{y + LEAF_HEIGHT - 6}" font-size="11" fill="#52606d">{leaf}</text>'
            )
    centres = [_centre(corners[nodes[rank]]) for rank in sorted(nodes)]
    for (x1, y1), (x2, y2) in pairwise([*centres, centres[0]]):
        parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="2" opacity="0.55"/>'
        )
    for place in scene.places:
        x, y = corners[place.name]
        rank = ranks.get(place.name)
        fill = colour if rank is not None else "#9aa5b1" if place.name in busy else "#e4e7eb"
        parts.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="4" fill="{fill}"/>')
        if rank is not None:
            parts.append(
                f'<text x="{x + CELL / 2:g}" y="{y + 15.5:g}" font-size="12" font-weight="600" '
                f'text-anchor="middle" fill="#ffffff">{rank}</text>'
            )
    return parts


def _corners(places: Sequence[DemoNode], left: int) -> dict[str, tuple[int, int]]:
    """Return the upper left corner of each node as (x, y) in pixels, by its name. left: of the whole picture."""
    corners: dict[str, tuple[int, int]] = {}
    spines = sorted({place.spine for place in places})
    for number, spine in enumerate(spines):
        leaves = sorted({place.leaf for place in places if place.spine == spine})
        for at, leaf in enumerate(leaves):
            for slot, place in enumerate(each for each in places if each.leaf == leaf):
                row, column = divmod(slot, COLUMNS)
                x = left + 16 + at * (LEAF_WIDTH + 8) + column * (CELL + GAP)
                y = TOP + number * (SPINE_HEIGHT + 12) + 30 + row * (CELL + GAP)
                corners[place.name] = x, y
    return corners


def _centre(corner: tuple[int, int]) -> tuple[int, int]:
    return corner[0] + CELL // 2, corner[1] + CELL // 2


def main() -> int:
    """Run the demo's placements, draw the gang that differs most, and write the picture. Return 0."""
    screen = RecordingScreen()
    asyncio.run(perform(Show(pause_s=0.0), screen))
    assert screen.scene is not None
    chosen = most_different(screen.placements)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw_svg(screen.scene, chosen))
    print(f"{PICTURE}: gang {chosen.gang.letter}, {_sentence(chosen.their_score)} -> {_sentence(chosen.our_score)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
