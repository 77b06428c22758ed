"""Place and order a mesh of parallelism: axes with much traffic under low switches, judged by a traffic model.

Consecutive ranks differ in the innermost axis, as in PyTorch's DeviceMesh. Ranks along an axis are a ring (data,
context and tensor parallel), a chain (pipeline) or all pairs (all-to-all of experts). WEIGHTS states the GB that one
rank sends along an axis in one step; docs/topology.md states the model behind these numbers.

The ring is the rank order of a placement's hosts; neighbours in it are near each other. A mesh that assigns its axes to
the ring in another order may send less between switches. Lost members of a mesh return to the leaves of the members
with which they exchange most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations, product
from math import lcm, prod

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric
from turnout.topology.layers import place_in_layers, placements_in_layers
from turnout.topology.model import Placement, PlacementRequest, Refusal

Mesh = Sequence[tuple[str, int]]  # (axis, ranks along it), the outermost axis first
Layers = tuple[tuple[int, int], ...]  # as PlacementRequest.layers

WEIGHTS = {"tp": 80.0, "ep": 80.0, "cp": 40.0, "dp": 9.0, "pp": 1.0}  # GB that a rank sends along an axis in a step
_MAX_LAYOUTS = 10  # of one mesh that are tried


def crossing_gb(mesh: Mesh, switches: Sequence[int]) -> float:
    """Return how many GB all ranks together send between different switches in one step of training.

    mesh: its sizes multiply to the number of ranks. switches: the number of the switch of each rank, in rank order.
    Traffic under one switch does not count.
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


def layouts(
    mesh: Mesh, ranks_per_pod: int, pods: int, max_pods_on_host: int, tiers: int
) -> Iterator[tuple[int, Layers]]:
    """Yield the layouts of a mesh: (multiple of pods on a host, layers), at most _MAX_LAYOUTS and the layout (1, ()).

    (1, ()) sets no condition. ranks_per_pod: ranks of one pod. pods: of the gang. max_pods_on_host: the most pods that
    a host takes. tiers: of the fabric. A run is the pods of consecutive ranks that differ in inner axes only. Each run
    is tried on one host, under one leaf and under one spine; an inner run is never given a higher tier than the run
    around it. Axes inside one pod need no condition.
    """
    sizes = [prod(size for _, size in mesh[axis:]) for axis in range(1, len(mesh))]
    runs = [size // ranks_per_pod for size in sizes if size % ranks_per_pod == 0]
    runs = list(dict.fromkeys(run for run in runs if 1 < run < pods))
    result: dict[tuple[int, Layers], None] = {}
    for chosen_tiers in product(*[[*range(run > max_pods_on_host, min(tiers, 3)), None] for run in runs]):
        tier_runs = [(tier, run) for tier, run in zip(chosen_tiers, runs, strict=True) if tier is not None]
        if any(inner[0] > outer[0] for outer, inner in pairwise(tier_runs)):
            continue
        multiple = next((run for tier, run in tier_runs if tier == 0), 1)
        layers: list[tuple[int, int]] = []
        for tier, run in tier_runs:
            if tier > 0 and (not layers or tier < layers[-1][0]):
                layers.append((tier, run))
        result[multiple, tuple(layers)] = None
    first_layouts = list(result)[:_MAX_LAYOUTS]
    yield from first_layouts
    if (1, ()) not in first_layouts:
        yield 1, ()


def is_complete(mesh: Mesh, pods: int, ranks_per_pod: int) -> bool:
    """Return True if a gang of this many pods has exactly the ranks of the mesh."""
    return prod(size for _, size in mesh) == pods * ranks_per_pod


def switches_of_ranks(switch_of_host: npt.NDArray[np.int32], hosts: Sequence[int], ranks_per_pod: int) -> list[int]:
    """Return the switch of each rank, in rank order.

    switch_of_host: by host id. hosts: the host id of each pod, in rank order. ranks_per_pod: ranks of one pod.
    """
    by_rank: list[int] = np.repeat(switch_of_host[list(hosts)], ranks_per_pod).tolist()
    return by_rank


Price = tuple[float, ...]  # GB that a step sends between switches of tier 1, 2, ... below the top, then between hosts


def count_outer_axes(mesh: Mesh, ranks_per_pod: int) -> int:
    """Return how many axes, counted from the outermost one, only connect different pods. Such axes may be in any order.

    ranks_per_pod: ranks of one pod.
    """
    for count in range(len(mesh), 0, -1):
        if prod(size for _, size in mesh[count:]) % ranks_per_pod == 0:
            return count
    return 0


def heaviest_innermost(mesh: Mesh, ranks_per_pod: int) -> tuple[int, ...]:
    """Return the numbers of the axes, the outermost first, with the axes of most traffic innermost.

    ranks_per_pod: ranks of one pod. Axes inside a pod keep their places.
    """
    outer_axes = count_outer_axes(mesh, ranks_per_pod)
    return (*sorted(range(outer_axes), key=lambda axis: WEIGHTS[mesh[axis][0]]), *range(outer_axes, len(mesh)))


def hosts_by_rank(mesh: Mesh, order: Sequence[int], hosts: Sequence[int], ranks_per_pod: int) -> list[int]:
    """Return the host id of each pod by rank.

    Along the ring the axes follow each other as in `order`; the ranks follow the order of the mesh. order: the numbers
    of the axes, the one that changes slowest along the ring first. Only the outer axes, which connect different pods,
    are read; the inner ones keep their places. hosts: the host id of each pod along the ring. ranks_per_pod: ranks of
    one pod.
    """
    outer_axes = count_outer_axes(mesh, ranks_per_pod)
    pods_per_block = len(hosts) // prod(
        size for _, size in mesh[:outer_axes]
    )  # pods that differ only in the inner axes
    grid = np.asarray(hosts).reshape([*(mesh[axis][1] for axis in order[:outer_axes]), pods_per_block])
    by_rank: list[int] = grid.transpose([*np.argsort(order[:outer_axes]), outer_axes]).ravel().tolist()
    return by_rank


def mesh_price(fabric: Fabric, mesh: Mesh, hosts: Sequence[int], ranks_per_pod: int) -> Price:
    """Return the traffic of a mesh, in GB that it sends in one training step: between switches of tier 1, 2, ... below
    the top, and last between hosts.

    hosts: the host id of each pod, in rank order. ranks_per_pod: ranks of one pod. The smaller tuple is better, as
    Python compares tuples.
    """
    tables = (fabric.switch_of[tier] for tier in (*range(1, fabric.tiers), 0))
    return tuple(crossing_gb(mesh, switches_of_ranks(table, hosts, ranks_per_pod)) for table in tables)


def cheapest_order(fabric: Fabric, mesh: Mesh, hosts: Sequence[int], ranks_per_pod: int) -> tuple[Price, list[int]]:
    """Return (least price over all orders of the outer axes, host id of each pod by rank in that order).

    hosts: the host id of each pod along the ring. ranks_per_pod: ranks of one pod. The price is that of mesh_price().
    Outer axes only connect different pods. Of several orders with the least price the first counts; the order of the
    mesh itself comes first.
    """
    candidates = (
        (mesh_price(fabric, mesh, reordered_hosts, ranks_per_pod), reordered_hosts)
        for reordered_hosts in _hosts_of_axis_orders(mesh, hosts, ranks_per_pod)
    )
    return min(candidates, key=lambda each: each[0])


def _hosts_of_axis_orders(mesh: Mesh, hosts: Sequence[int], ranks_per_pod: int) -> Iterator[list[int]]:
    """Yield the host id of each pod, by rank, once for each order of the outer axes, which only connect different pods.

    The order of the mesh itself comes first. hosts: the host id of each pod along the ring. ranks_per_pod: ranks of one
    pod.
    """
    outer_axes = count_outer_axes(mesh, ranks_per_pod)
    for order in permutations(range(outer_axes)):
        yield hosts_by_rank(mesh, (*order, *range(outer_axes, len(mesh))), hosts, ranks_per_pod)


def place_mesh(
    fabric: Fabric, room: npt.NDArray[np.int32], request: PlacementRequest, mesh: Mesh, ranks_per_pod: int
) -> Placement | Refusal:
    """Place a mesh by the cheapest of several layouts: the one that sends least between leaves, then least between
    higher switches, then between hosts.

    It may miss the minimum over all choices of hosts. The prices are those of cheapest_order(), by which the caller
    assigns the ranks: the slots of the result are in the order of the ring. room: pods that each host id has room for,
    as for plan(). request: without layers, because a gang with runs of ranks has no mesh; its multiple is kept. mesh:
    is_complete() must be true for `request.pods`. ranks_per_pod: ranks of one pod. One candidate is the placement that
    the gang would get without a mesh, so the result costs at most as much. If one host holds all pods, or not all pods
    find room, that placement or refusal is the result.
    """
    plain = place_in_layers(fabric, room, request)
    if isinstance(plain, Refusal) or plain.tier < 1 or plain.pods < request.pods:
        return plain  # one host holds all, or not all find room
    prices: dict[Placement, Price] = {}
    for multiple, layers in _layouts_of_axis_orders(
        mesh, ranks_per_pod, request.pods, int(room.max(initial=0)), fabric.tiers
    ):
        common = lcm(multiple, request.multiple)
        if common > request.pods:  # no host can hold it; it may also be too large for the counts of pods
            continue
        layout_request = replace(request, multiple=common, layers=layers)
        for placement in placements_in_layers(fabric, room, replace(layout_request, min_pods=layout_request.pods)):
            is_usable = placement.pods == request.pods and _keeps_multiple(placement, request.multiple)
            if is_usable and placement not in prices:
                prices[placement] = cheapest_order(fabric, mesh, hosts_of(placement), ranks_per_pod)[0]
    return min(prices, key=lambda each: prices[each]) if prices else plain


def _keeps_multiple(placement: Placement, multiple: int) -> bool:
    """Return True if each host has a multiple of pods, or all but the one with the remainder of all pods.

    A layout whose runs are no whole multiples may give a placement that does not keep it.
    """
    return sum(pods % multiple != 0 for _, pods in placement.slots) <= (placement.pods % multiple != 0)


def hosts_of(placement: Placement) -> list[int]:
    """Return the host id of each pod, in the order of the placement."""
    return [host for host, pods in placement.slots for _ in range(pods)]


def _layouts_of_axis_orders(
    mesh: Mesh, ranks_per_pod: int, pods: int, max_pods_on_host: int, tiers: int
) -> Iterator[tuple[int, Layers]]:
    """Yield the layouts of the mesh as it is, then with the axes of most traffic innermost, without duplicates.

    The arguments and results are those of layouts().
    """
    orders = dict.fromkeys((tuple(range(len(mesh))), heaviest_innermost(mesh, ranks_per_pod)))
    layouts_by_order = (
        layouts([mesh[axis] for axis in order], ranks_per_pod, pods, max_pods_on_host, tiers) for order in orders
    )
    yield from dict.fromkeys(layout for layouts_of_order in layouts_by_order for layout in layouts_of_order)


MOST_PODS = 256  # of a mesh whose traffic between each two pods is computed

PodTraffic = npt.NDArray[
    np.float64
]  # shape (pods, pods): GB that each two pods exchange in a step, both directions; see pod_traffic()


def pod_traffic(mesh: Mesh, ranks_per_pod: int) -> PodTraffic | None:
    """Return how many GB each two pods of a mesh exchange in a step: shape (pods, pods), by their ranks.

    The matrix is symmetric: an entry has both directions together. The diagonal has twice the traffic inside each pod,
    so do not sum the matrix. ranks_per_pod: ranks of one pod. None for a mesh of one pod or of more than MOST_PODS, and
    if its ranks do not fill whole pods.
    """
    ranks = prod(size for _, size in mesh)
    pods = ranks // ranks_per_pod
    if not 1 < pods <= MOST_PODS or ranks % ranks_per_pod:
        return None
    grid = (np.arange(ranks) // ranks_per_pod).reshape([size for _, size in mesh])
    sent: PodTraffic = np.zeros((pods, pods))
    for axis, (name, size) in enumerate(mesh):
        shifts = range(1, size) if name == "ep" else range(1, min(2, size))
        for shift in shifts:
            sender, receiver = grid, np.roll(grid, -shift, axis)
            if name == "pp":  # the last stage sends nothing to the first
                sender, receiver = (np.take(each, range(size - 1), axis) for each in (sender, receiver))
            np.add.at(sent, (sender.ravel(), receiver.ravel()), WEIGHTS[name] / len(shifts))
    return sent + sent.T


def leaves_in_mesh(
    traffic: PodTraffic, ranks: Iterable[int], leaf_of: Mapping[int, int], holes: Mapping[int, int]
) -> dict[int, int]:
    """Return rank -> leaf for returning members, so that each exchanges most with the members under its leaf.

    traffic: of the mesh. ranks: the old ranks of the returning members, one rank for each pod. leaf_of: rank -> leaf of
    the members that have a place. holes: leaf -> pods that it has room for. The returning member that exchanges most is
    placed first. A returning member that exchanges nothing with members under a leaf with room is left out. Of leaves
    with equal traffic the leaf with most members is chosen, then the leaf with least room.
    """
    lost_ranks = [rank for rank in sorted(set(ranks)) if rank < len(traffic)]
    members = Counter(leaf_of.values())
    leaves = sorted(
        (leaf for leaf, pods in holes.items() if pods > 0), key=lambda leaf: (-members[leaf], holes[leaf], leaf)
    )
    room_left, leaf_of_lost = dict(holes), dict[int, int]()
    exchanged = np.zeros((len(lost_ranks), len(leaves)))
    for rank, leaf in leaf_of.items():
        if leaf in leaves and rank < len(traffic):
            exchanged[:, leaves.index(leaf)] += traffic[lost_ranks, rank]
    while exchanged.max(initial=0.0) > 0:
        row, column = divmod(int(exchanged.argmax()), len(leaves))
        rank, leaf = lost_ranks[row], leaves[column]
        leaf_of_lost[rank] = leaf
        room_left[leaf] -= 1
        exchanged[:, column] += traffic[lost_ranks, rank]
        exchanged[[lost_ranks.index(each) for each in leaf_of_lost]] = 0.0
        exchanged[:, [room_left[each] <= 0 for each in leaves]] = 0.0
    return leaf_of_lost
