"""Lay a mesh of parallelism over the fabric: axes with much traffic under low switches, judged by a traffic model.

Ranks follow the mesh: the innermost axis runs fastest, as in PyTorch's DeviceMesh. An axis is a ring of its ranks
(data, context and tensor parallel), a chain (pipeline) or all pairs (experts' all-to-all). WEIGHTS tells what one rank
sends along an axis in one step, in GB; docs/topology.md states the model that it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

import numpy as np
import numpy.typing as npt

Mesh = Sequence[tuple[str, int]]
Layers = tuple[tuple[int, int], ...]

WEIGHTS = {"tp": 80.0, "ep": 80.0, "cp": 40.0, "dp": 9.0, "pp": 1.0}
_MOST_LAYOUTS = 10


def crossing_gb(mesh: Mesh, switches: Sequence[int]) -> float:
    """Return how many GB a step sends between switches.

    switches: the switch of each rank, in rank order, one for each rank of the mesh.
    """
    grid = np.asarray(switches, np.int64).reshape([size for _, size in mesh])
    total = 0.0
    for axis, (name, size) in enumerate(mesh):
        if size < 2:
            continue
        shifts = range(1, size) if name == "ep" else (1,)
        for shift in shifts:
            crossing = grid != np.roll(grid, -shift, axis)
            if name == "pp":  # the last stage sends nothing to the first
                crossing = np.take(crossing, range(size - 1), axis)
            total += WEIGHTS[name] / len(shifts) * int(crossing.sum())
    return total


def layouts(mesh: Mesh, ranks_a_pod: int, pods: int, on_host: int, tiers: int) -> Iterator[tuple[int, Layers]]:
    """Yield ways to place a mesh: (pods a host in multiples, layers). The last one asks for nothing.

    on_host: the most pods that a host takes. Each run of the inner axes is tried under a host, a leaf and higher
    switches; a run within another never under a wider one. Axes that a pod holds whole need nothing.
    """
    sizes = [prod(size for _, size in mesh[at:]) for at in range(1, len(mesh))]
    runs = [size // ranks_a_pod for size in sizes if size % ranks_a_pod == 0]
    runs = list(dict.fromkeys(run for run in runs if 1 < run < pods))
    found: dict[tuple[int, Layers], None] = {}
    for chosen in product(*[[*range(run > on_host, min(tiers, 3)), None] for run in runs]):
        levels = [(tier, run) for tier, run in zip(chosen, runs, strict=True) if tier is not None]
        if any(inner[0] > outer[0] for outer, inner in pairwise(levels)):
            continue
        multiple = next((run for tier, run in levels if tier == 0), 1)
        layers: list[tuple[int, int]] = []
        for tier, run in levels:
            if tier > 0 and (not layers or tier < layers[-1][0]):
                layers.append((tier, run))
        found[multiple, tuple(layers)] = None
    first_layouts = list(found)[:_MOST_LAYOUTS]
    yield from first_layouts
    if (1, ()) not in first_layouts:
        yield 1, ()


def is_complete(mesh: Mesh, pods: int, ranks_a_pod: int) -> bool:
    """True if a gang of so many pods is the mesh."""
    return prod(size for _, size in mesh) == pods * ranks_a_pod


def switches_of_ranks(row: npt.NDArray[np.int32], hosts: Sequence[int], ranks_a_pod: int) -> list[int]:
    """Return the switch of each rank. row: the switch of each host. hosts: of the pods, in rank order."""
    each: list[int] = np.repeat(row[list(hosts)], ranks_a_pod).tolist()
    return each
