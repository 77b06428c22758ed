"""Place a whole mesh: of many ways to keep its inner axes under low switches, the one that sends least between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric
from turnout.topology.layers.mesh import Layers, Mesh, layouts
from turnout.topology.layers.mesh_order import Price, cheapest_order, heaviest_within
from turnout.topology.layers.nested import in_layers, ways_of_layers
from turnout.topology.model import Ask, Placement, Refusal


def place_mesh(
    fabric: Fabric, room: npt.NDArray[np.int32], ask: Ask, mesh: Mesh, ranks_a_pod: int
) -> Placement | Refusal:
    """Place a mesh so that it sends least between leaves, then least between higher switches, then between hosts.

    room: as for plan(). ask: its layers are those of another wish. The place of the plain ring is one of those tried.
    """
    found = in_layers(fabric, room, ask)
    if isinstance(found, Refusal) or found.tier < 1 or found.pods < ask.pods:
        return found  # one host holds all, or not all find room
    prices: dict[Placement, Price] = {}
    for multiple, layers in _ways(mesh, ranks_a_pod, ask.pods, int(room.max(initial=0)), fabric.tiers):
        way = replace(ask, multiple=max(multiple, ask.multiple), layers=layers or ask.layers)
        for placement in ways_of_layers(fabric, room, replace(way, least=way.pods)):
            if placement.pods == ask.pods and placement not in prices:
                prices[placement] = cheapest_order(fabric, mesh, hosts_of(placement), ranks_a_pod)[0]
    return min(prices, key=lambda each: prices[each]) if prices else found


def hosts_of(placement: Placement) -> list[int]:
    """Return the host of each pod, in the order of the placement."""
    return [host for host, pods in placement.slots for _ in range(pods)]


def _ways(mesh: Mesh, ranks_a_pod: int, pods: int, on_host: int, tiers: int) -> Iterator[tuple[int, Layers]]:
    """Yield the layouts of the mesh as it is given, and with the axes of most traffic innermost."""
    orders = dict.fromkeys((tuple(range(len(mesh))), heaviest_within(mesh, ranks_a_pod)))
    each = (layouts([mesh[axis] for axis in order], ranks_a_pod, pods, on_host, tiers) for order in orders)
    yield from dict.fromkeys(way for ways in each for way in ways)
