"""Search long for the least that a mesh can send between leaves: simulated annealing over all free places.

It is no rule that anybody could place by, and no proof of a least. It tells how much is left to gain.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from turnout.topology.mesh import WEIGHTS, Mesh

Traffic = npt.NDArray[np.float64]  # pods x pods: GB of a step, both ways


def traffic(mesh: Mesh, ranks_per_pod: int) -> Traffic:
    """Return the GB that each pair of pods exchanges in a step, by the model of topology/mesh.py.

    ranks_per_pod: number of ranks in a pod.
    """
    ranks = np.arange(prod(size for _, size in mesh)).reshape([size for _, size in mesh])
    pods = ranks.size // ranks_per_pod
    found = np.zeros((pods, pods))
    for axis, (name, size) in enumerate(mesh):
        shifts = range(1, size) if name == "ep" else range(1, min(size, 2))
        for shift in shifts:
            senders, receivers = ranks, np.roll(ranks, -shift, axis)
            if name == "pp":  # the last stage sends nothing to the first
                senders, receivers = (np.take(each, range(size - 1), axis) for each in (senders, receivers))
            pairs = senders.ravel() // ranks_per_pod, receivers.ravel() // ranks_per_pod
            np.add.at(found, pairs, WEIGHTS[name] / len(shifts))
    np.fill_diagonal(found, 0.0)
    return found + found.T


def crossing_gb(sent: Traffic, leaves: Sequence[int]) -> float:
    """Return the GB that cross between leaves. sent: GB that each pair of pods exchanges. leaves: of each pod by
    rank.
    """
    at = np.asarray(leaves)
    return float(sent[at[:, None] != at].sum() / 2)


def least_gb(sent: Traffic, leaves: Sequence[int], spare: Mapping[int, int], moves: int, seed: int) -> float:
    """Return the lowest traffic between leaves in GB that simulated annealing finds.

    A move swaps the places of two pods, or takes a spare place. sent: GB that each pair of pods exchanges. leaves: leaf
    of each pod at first. spare: number of other free places by leaf. moves: their number.
    """
    rng, at, free = random.Random(seed), list(leaves), dict(spare)
    names = sorted({*free, *at})
    to = {leaf: sent[:, [pod for pod, its in enumerate(at) if its == leaf]].sum(1) for leaf in names}
    now = best = crossing_gb(sent, at)
    for move in range(moves):
        pod, other = rng.randrange(len(at)), rng.randrange(len(at))
        old, new = at[pod], at[other] if rng.random() < 0.5 else rng.choice(names)
        swaps = at[other] == new and free.get(new, 0) < 1
        if old == new or not (swaps or free.get(new, 0)):
            continue
        change = to[old][pod] - to[new][pod]
        if swaps:
            change += to[new][other] - to[old][other] + 2 * sent[pod, other]
        warmth = sent.max() * (1 - move / moves) ** 2 + 1e-9
        if change > 0 and rng.random() >= math.exp(-change / warmth):
            continue
        moved = sent[pod] - sent[other] if swaps else sent[pod]
        to[old], to[new] = to[old] - moved, to[new] + moved
        at[pod], now = new, now + change
        if swaps:
            at[other] = old
        else:
            free[new], free[old] = free[new] - 1, free.get(old, 0) + 1
        best = min(best, now)
    return float(best)
