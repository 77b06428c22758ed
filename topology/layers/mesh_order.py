"""Order the ranks of a mesh over places: which axis runs along the ring of places fastest, which slowest.

The places of a ring follow the fabric. Laid along it in another order of its axes, a mesh sends less between switches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod

import numpy as np

from turnout.topology.fabric import Fabric
from turnout.topology.layers.mesh import WEIGHTS, Mesh, crossing_gb, switches_of_ranks

Price = tuple[float, ...]  # GB between switches of tier 1, 2, ... below the top, and between hosts


def outer_axes(mesh: Mesh, ranks_a_pod: int) -> int:
    """Return how many axes, counted from the outermost, lie between pods alone: such axes may run in any order."""
    for count in range(len(mesh), 0, -1):
        if prod(size for _, size in mesh[count:]) % ranks_a_pod == 0:
            return count
    return 0


def heaviest_within(mesh: Mesh, ranks_a_pod: int) -> tuple[int, ...]:
    """Return the order of axes in which those with most traffic run fastest, the outermost first."""
    outer = outer_axes(mesh, ranks_a_pod)
    return (*sorted(range(outer), key=lambda axis: WEIGHTS[mesh[axis][0]]), *range(outer, len(mesh)))


def in_order(mesh: Mesh, order: Sequence[int], hosts: Sequence[int], ranks_a_pod: int) -> list[int]:
    """Return the host of each pod by rank, when the mesh is laid along the places with its axes in an order.

    hosts: of each pod, along the ring. order: the numbers of axes, the one that runs slowest first.
    """
    outer = outer_axes(mesh, ranks_a_pod)
    block = len(hosts) // prod(size for _, size in mesh[:outer])  # pods of the axes that stay innermost
    grid = np.asarray(hosts).reshape([*(mesh[axis][1] for axis in order[:outer]), block])
    found: list[int] = grid.transpose([*np.argsort(order[:outer]), outer]).ravel().tolist()
    return found


def price_of(fabric: Fabric, mesh: Mesh, hosts: Sequence[int], ranks_a_pod: int) -> Price:
    """Return what a mesh sends between switches. hosts: of each pod by rank."""
    rows = (fabric.switch_of[tier] for tier in (*range(1, fabric.tiers), 0))
    return tuple(crossing_gb(mesh, switches_of_ranks(row, hosts, ranks_a_pod)) for row in rows)


def cheapest_order(fabric: Fabric, mesh: Mesh, hosts: Sequence[int], ranks_a_pod: int) -> tuple[Price, list[int]]:
    """Return the least price, and the host of each pod by rank. hosts: along the ring. Of equals, the given order."""
    candidates = ((price_of(fabric, mesh, laid, ranks_a_pod), laid) for laid in _ways(mesh, hosts, ranks_a_pod))
    return min(candidates, key=lambda each: each[0])


def _ways(mesh: Mesh, hosts: Sequence[int], ranks_a_pod: int) -> Iterator[list[int]]:
    outer = outer_axes(mesh, ranks_a_pod)
    for order in permutations(range(outer)):
        yield in_order(mesh, (*order, *range(outer, len(mesh))), hosts, ranks_a_pod)
