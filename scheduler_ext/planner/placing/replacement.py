"""Seat members that come back, or come late, under the leaf of their neighbours in ring or mesh, while it has room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from turnout.kube.node_capacity import Rows
from turnout.topology.distance import common_tier
from turnout.topology.fabric import Fabric
from turnout.topology.layers.mesh_repair import Pulls, leaves_in_mesh
from turnout.topology.packing.domain_capacity import Sums
from turnout.topology.packing.fewest_switches import Spread
from turnout.topology.rank_order import leaves_of_neighbours

MOST_ABSENT = 1_024  # ranks without a member that are thought of


def beside_neighbours(
    fabric: Fabric,
    room: Rows,
    ranks: Sequence[int],
    absent: Sequence[int],
    placed: Mapping[int, int],
    tier: int | None,
    pulls: Pulls | None = None,
) -> list[int]:
    """Return hosts under the leaves of some ranks' neighbours, one for each pod that finds one so, in no order.

    ranks: of the pods to place. absent: other ranks that have no place. placed: rank -> host of members that have one.
    tier: the widest allowed. pulls: what members of a mesh exchange; None for a ring.

    Takes the pods' room from `room`, which it changes.
    """
    anchors = sorted(set(placed.values()))
    if not placed or not ranks or tier == 0 or anchors[-1] >= fabric.mapped_count:
        return []
    if tier is not None and common_tier(fabric, anchors) > tier:
        return []
    leaf_of = fabric.switch_of[1]
    spans = {leaf: fabric.span(1, leaf) for leaf in np.unique(leaf_of[anchors]).tolist()}
    holes = {leaf: int(room[first:end].sum()) for leaf, (first, end) in spans.items()}
    free = sorted({*ranks, *absent} - placed.keys())
    there = {rank: int(leaf_of[host]) for rank, host in placed.items()}
    chosen = leaves_of_neighbours(free, there, holes) if pulls is None else leaves_in_mesh(pulls, free, there, holes)
    counts = Counter(chosen[rank] for rank in ranks if rank in chosen)
    if not counts:
        return []
    spread = Spread(Sums(fabric, room), anchors)
    slots = [slot for leaf, pods in sorted(counts.items()) for slot in spread.fill(1, leaf, pods)]
    for host, pods in slots:
        room[host] -= pods
    return [host for host, pods in slots for _ in range(pods)]
