"""The picture: one row a leaf, one cell a node, two signs a cell, each for four of its eight GPUs.

A letter is a gang, # is somebody else, a dot is free. Costs are counted here too, since the picture shows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnout.cli.demo.scenario import GPUS_PER_NODE, DemoGang, DemoNode, Scene
from turnout.topology.distance import cost
from turnout.topology.fabric import Fabric

FREE, OTHER = "·", "#"
_SIGNS = 2  # a cell is this wide

Placed = Mapping[str, Mapping[int, str]]  # gang name -> index -> node


@dataclass(frozen=True, slots=True)
class HeatmapRow:
    """One leaf of the picture. cells: two signs each."""

    spine: str
    leaf: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """The cost of a placed gang. crossings: ring edges that leave a leaf plus those that leave a spine."""

    leaves: int
    crossings: int


def board(
    places: Sequence[DemoNode], busy: Sequence[tuple[str, int]], gangs: Sequence[DemoGang], placements: Placed
) -> list[HeatmapRow]:
    """Draw who stands where. gangs: those that may stand there, in the order of arrival."""
    gpus: dict[str, str] = {}
    for name, count in busy:
        gpus[name] = gpus.get(name, "") + OTHER * count
    for gang in gangs:
        for _, name in sorted(placements.get(gang.name, {}).items()):
            gpus[name] = gpus.get(name, "") + gang.letter * gang.gpus
    rows: dict[tuple[str, str], list[str]] = {}
    for place in places:
        rows.setdefault((place.spine, place.leaf), []).append(_cell(gpus.get(place.name, "")))
    return [HeatmapRow(spine, leaf, tuple(cells)) for (spine, leaf), cells in sorted(rows.items())]


def _cell(slots: str) -> str:
    """Return two characters for the eight GPUs of a node: who holds most of each half, a dot if nobody does."""
    half = GPUS_PER_NODE // _SIGNS
    slots = slots.ljust(GPUS_PER_NODE, FREE)
    signs = ""
    for start in range(0, GPUS_PER_NODE, half):
        letters = Counter(slots[start : start + half].replace(FREE, ""))
        signs += letters.most_common(1)[0][0] if letters else FREE
    return signs


def score(fabric: Fabric, play: Scene, gang: DemoGang, nodes: Mapping[int, str]) -> Score | None:
    """Count what the gang costs as a ring in the order of its indices; None while it is not whole."""
    if len(nodes) < gang.pods:
        return None
    ips = {place.name: place.ip for place in play.places}
    spent = cost(fabric, [fabric.index[ips[nodes[index]]] for index in range(gang.pods)])
    return Score(leaves=spent.switches[0], crossings=spent.total)
