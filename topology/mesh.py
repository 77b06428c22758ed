"""Place and order a mesh of parallelism: axes with much traffic under low switches, judged by a traffic model.

Ranks follow the mesh: the innermost axis runs fastest, as in PyTorch's DeviceMesh. An axis is a ring of its ranks
(data, context and tensor parallel), a chain (pipeline) or all pairs (all-to-all of experts). WEIGHTS states the GB that
one rank sends along an axis in one step; docs/topology.md states the model behind these numbers.

The places of a ring follow the fabric. A mesh whose axes are laid along the ring in another order may send less between
switches. Lost members of a mesh return to the leaves of the members to which they send most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations, product
from math import prod

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric
from turnout.topology.model import Ask, Placement, Refusal
from turnout.topology.slices import in_layers, ways_of_layers

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
    """Return True if a gang of so many pods is the mesh."""
    return prod(size for _, size in mesh) == pods * ranks_a_pod


def switches_of_ranks(row: npt.NDArray[np.int32], hosts: Sequence[int], ranks_a_pod: int) -> list[int]:
    """Return the switch of each rank. row: the switch of each host. hosts: of the pods, in rank order."""
    each: list[int] = np.repeat(row[list(hosts)], ranks_a_pod).tolist()
    return each


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


def hosts_by_rank(mesh: Mesh, order: Sequence[int], hosts: Sequence[int], ranks_a_pod: int) -> list[int]:
    """Return the host of each pod by rank, if the mesh is laid along the ring with its axes in another order.

    hosts: of each pod along the ring. order: numbers of the axes, the one that changes slowest first.
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
    candidates = ((price_of(fabric, mesh, laid, ranks_a_pod), laid) for laid in _axis_orders(mesh, hosts, ranks_a_pod))
    return min(candidates, key=lambda each: each[0])


def _axis_orders(mesh: Mesh, hosts: Sequence[int], ranks_a_pod: int) -> Iterator[list[int]]:
    outer = outer_axes(mesh, ranks_a_pod)
    for order in permutations(range(outer)):
        yield hosts_by_rank(mesh, (*order, *range(outer, len(mesh))), hosts, ranks_a_pod)


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
    for multiple, layers in _layout_requests(mesh, ranks_a_pod, ask.pods, int(room.max(initial=0)), fabric.tiers):
        way = replace(ask, multiple=max(multiple, ask.multiple), layers=layers or ask.layers)
        for placement in ways_of_layers(fabric, room, replace(way, least=way.pods)):
            if placement.pods == ask.pods and placement not in prices:
                prices[placement] = cheapest_order(fabric, mesh, hosts_of(placement), ranks_a_pod)[0]
    return min(prices, key=lambda each: prices[each]) if prices else found


def hosts_of(placement: Placement) -> list[int]:
    """Return the host of each pod, in the order of the placement."""
    return [host for host, pods in placement.slots for _ in range(pods)]


def _layout_requests(mesh: Mesh, ranks_a_pod: int, pods: int, on_host: int, tiers: int) -> Iterator[tuple[int, Layers]]:
    """Yield the layouts of the mesh as it is given, and with the axes of most traffic innermost."""
    orders = dict.fromkeys((tuple(range(len(mesh))), heaviest_within(mesh, ranks_a_pod)))
    each = (layouts([mesh[axis] for axis in order], ranks_a_pod, pods, on_host, tiers) for order in orders)
    yield from dict.fromkeys(way for ways in each for way in ways)


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
    under such a leaf, or finds it full, is left out. Of leaves with equal traffic the leaf with most members is chosen,
    then the leaf with least room.
    """
    known = [rank for rank in sorted(set(ranks)) if rank < len(pulls)]
    members = Counter(leaf_of.values())
    leaves = sorted(
        (leaf for leaf, pods in holes.items() if pods > 0), key=lambda leaf: (-members[leaf], holes[leaf], leaf)
    )
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
