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

MAX_ABSENT_RANKS = 1_024  # ranks without a member that are thought of


def hosts_beside_neighbours(
    fabric: Fabric,
    room: Rows,
    ranks: Sequence[int],
    absent: Sequence[int],
    host_of_rank: Mapping[int, int],
    tier: int | None,
    pulls: Pulls | None = None,
) -> list[int]:
    """Return hosts under the leaves of some ranks' neighbours, one for each pod that finds one so, in no order.

    ranks: of the pods to place. absent: other ranks that have no place. host_of_rank: rank -> host of placed members.
    tier: the widest allowed. pulls: the traffic between members of a mesh; None for a ring.

    Takes the pods' room from `room`, which it changes.
    """
    anchors = sorted(set(host_of_rank.values()))
    if not host_of_rank or not ranks or tier == 0 or anchors[-1] >= fabric.mapped_count:
        return []
    if tier is not None and common_tier(fabric, anchors) > tier:
        return []
    leaf_of = fabric.switch_of[1]
    spans = {leaf: fabric.span(1, leaf) for leaf in np.unique(leaf_of[anchors]).tolist()}
    holes = {leaf: int(room[first:end].sum()) for leaf, (first, end) in spans.items()}
    free = sorted({*ranks, *absent} - host_of_rank.keys())
    leaf_of_rank = {rank: int(leaf_of[host]) for rank, host in host_of_rank.items()}
    chosen = (
        leaves_of_neighbours(free, leaf_of_rank, holes)
        if pulls is None
        else leaves_in_mesh(pulls, free, leaf_of_rank, holes)
    )
    counts = Counter(chosen[rank] for rank in ranks if rank in chosen)
    if not counts:
        return []
    spread = Spread(Sums(fabric, room), anchors)
    slots = [slot for leaf, pods in sorted(counts.items()) for slot in spread.fill(1, leaf, pods)]
    for host, pods in slots:
        room[host] -= pods
    return [host for host, pods in slots for _ in range(pods)]
