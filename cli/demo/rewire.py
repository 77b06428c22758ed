"""The last act: cables are moved so that a leaf gets room for a gang that no leaf had room for before."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import permutations

from turnout.cli.demo.scenario import GPUS_PER_NODE, NODES_PER_LEAF, DemoGang, DemoNode


@dataclass(frozen=True, slots=True)
class Recabling:
    """A move of nodes between leaves.

    leaf: gains `nodes` free nodes of leaf `other`, for as many of its busy ones.
    gang: whole nodes, as many as the leaf has free afterwards, more than any leaf had free before.
    """

    places: tuple[DemoNode, ...]  # the new map
    leaf: str
    other: str
    nodes: int
    gang: DemoGang


def recable(places: tuple[DemoNode, ...], busy: Collection[str], letter: str) -> Recabling | None:
    """Find the largest gang that moving cables between two leaves makes room for; None when there is none.

    busy: names of the nodes on which anything stands.
    """
    free: dict[str, list[DemoNode]] = {place.leaf: [] for place in places}
    for place in places:
        if place.name not in busy:
            free[place.leaf].append(place)
    roomiest = max(map(len, free.values()))
    pairs = [
        (min(NODES_PER_LEAF, len(free[a]) + len(free[b])), a, b)
        for a, b in permutations(free, 2)
        if len(free[a]) >= len(free[b])
    ]
    size, leaf, other = max(pairs, key=lambda pair: pair[0])
    if size <= roomiest or size < 2:
        return None
    gains = free[other][: size - len(free[leaf])]
    leaving = [place for place in places if place.leaf == leaf and place.name in busy][: len(gains)]
    return Recabling(_swapped(places, gains, leaving), leaf, other, len(gains), DemoGang(letter, size, GPUS_PER_NODE))


def _swapped(places: tuple[DemoNode, ...], arriving: list[DemoNode], leaving: list[DemoNode]) -> tuple[DemoNode, ...]:
    """Each pair changes places, so that a leaf keeps its number of ports."""
    stands_for: dict[str, DemoNode] = {}
    for gain, give in zip(arriving, leaving, strict=True):
        stands_for[gain.name], stands_for[give.name] = give, gain
    moved = [stands_for.get(place.name, place) for place in places]
    return tuple(replace(place, name=new.name, ip=new.ip) for place, new in zip(places, moved, strict=True))
