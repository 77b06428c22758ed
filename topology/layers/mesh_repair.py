"""Find the leaves to which lost members of a mesh return: where those are to whom each sends most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
import numpy.typing as npt

from turnout.topology.layers.mesh import WEIGHTS, Mesh

MOST_PODS = 256  # of a mesh whose members are weighed against one another

Pulls = npt.NDArray[np.float64]


def pulls_of(mesh: Mesh, ranks_a_pod: int) -> Pulls | None:
    """Return how many GB each two pods of a mesh exchange in a step; None for a mesh of too many pods."""
    ranks = prod(size for _, size in mesh)
    pods = ranks // ranks_a_pod
    if not 1 < pods <= MOST_PODS or ranks % ranks_a_pod:
        return None
    grid = (np.arange(ranks) // ranks_a_pod).reshape([size for _, size in mesh])
    found: Pulls = np.zeros((pods, pods))
    for axis, (name, size) in enumerate(mesh):
        shifts = range(1, size) if name == "ep" else range(1, min(2, size))
        for shift in shifts:
            one, other = grid, np.roll(grid, -shift, axis)
            if name == "pp":  # the last stage sends nothing to the first
                one, other = (np.take(each, range(size - 1), axis) for each in (one, other))
            np.add.at(found, (one.ravel(), other.ravel()), WEIGHTS[name] / len(shifts))
    return found + found.T


def leaves_in_mesh(
    pulls: Pulls, ranks: Iterable[int], leaf_of: Mapping[int, int], holes: Mapping[int, int]
) -> dict[int, int]:
    """Return rank -> leaf for lost members, those first that exchange most with members of a leaf with room.

    leaf_of: of the members that have a place. holes: leaf -> how many it takes. Who exchanges nothing with anybody
    under such a leaf, or finds it full, is left out.
    """
    known = [rank for rank in sorted(set(ranks)) if rank < len(pulls)]
    leaves = sorted(leaf for leaf, pods in holes.items() if pods > 0)
    left, found = dict(holes), dict[int, int]()
    gain = np.zeros((len(known), len(leaves)))
    for rank, leaf in leaf_of.items():
        if leaf in leaves and rank < len(pulls):
            gain[:, leaves.index(leaf)] += pulls[known, rank]
    while gain.max(initial=0.0) > 0:
        row, column = divmod(int(gain.argmax()), len(leaves))
        rank, leaf = known[row], leaves[column]
        found[rank] = leaf
        left[leaf] -= 1
        gain[:, column] += pulls[known, rank]
        gain[[known.index(each) for each in found]] = 0.0
        gain[:, [left[each] <= 0 for each in leaves]] = 0.0
    return found
