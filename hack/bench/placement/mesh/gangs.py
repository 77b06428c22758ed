"""Meshes of parallelism: bytes across leaves for Megatron's layouts, against a ring and against DLRover's re-rank.

The traffic is that of topology/mesh.py. A ring is the same gang placed without the wish, ranks along the fabric.
DLRover's `--enable-topology-rerank` (docs/facts/dlrover.md) permutes the ring's world: pipeline columns are packed
greedily, each into the leaf that has most places left. What a search by annealing over all free places finds stands
beside ours: of many layouts the ring sends the least that can be, and then no ratio to it can be below 1.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

import numpy as np

from hack.bench.placement.baselines import Hosts, Room
from hack.bench.placement.mesh import annealed
from hack.bench.support.outcome import Outcome, Table, Target
from turnout.topology.fabric import Fabric, build
from turnout.topology.mesh import Mesh, cheapest_order, count_outer_axes, hosts_of, mesh_price, place_mesh
from turnout.topology.model import MapEntry, Placement, PlacementRequest
from turnout.topology.place import plan

RANKS_A_POD = 8
SEARCHED, MOVES = 60, 60_000  # gangs that are searched for, and moves for each
# Megatron's order: tensor, context, expert, data, pipeline, from the innermost; dp and pp change places in some.
LAYOUTS: tuple[Mesh, ...] = (
    (("pp", 4), ("dp", 4), ("tp", 8)),
    (("pp", 2), ("dp", 8), ("tp", 8)),
    (("pp", 8), ("dp", 2), ("tp", 8)),
    (("dp", 4), ("pp", 4), ("tp", 8)),
    (("dp", 4), ("pp", 2), ("cp", 2), ("tp", 8)),
    (("pp", 4), ("dp", 2), ("cp", 2), ("tp", 8)),
    (("dp", 4), ("ep", 4), ("tp", 8)),
    (("pp", 2), ("dp", 4), ("ep", 4), ("tp", 4)),
    (("dp", 4), ("pp", 2), ("ep", 8), ("tp", 8)),
    (("pp", 2), ("dp", 2), ("ep", 8), ("tp", 8)),
)


@dataclass(frozen=True, slots=True)
class MeshRow:
    """GB that one gang sends across leaves, by placement."""

    layout: str
    ring: float
    rerank: float
    ours: float
    minimum: float | None  # found by annealing; None if it was not searched for


def measure(seeds: range, searched: int = SEARCHED) -> list[MeshRow]:
    """Place one gang for each seed, and return a row for each gang that fits as a ring and as a mesh.

    searched: number of gangs, from the first, for which simulated annealing searches the least traffic too.
    """
    found: list[MeshRow] = []
    for seed in seeds:
        rng = random.Random(seed)
        mesh = LAYOUTS[seed % len(LAYOUTS)]
        fabric, room = _cluster(rng)
        pods = prod(size for _, size in mesh) // RANKS_A_POD
        ring = plan(fabric, room, PlacementRequest(pods, pods, pods))
        meshed = place_mesh(fabric, room, PlacementRequest(pods, pods, pods), mesh, RANKS_A_POD)
        if not isinstance(ring, Placement) or not isinstance(meshed, Placement):
            continue
        ring_hosts = hosts_of(ring)
        hosts = cheapest_order(fabric, mesh, hosts_of(meshed), RANKS_A_POD)[1]
        theirs = rerank(fabric, mesh, ring_hosts)
        ring_gb, theirs_gb, gb = (
            mesh_price(fabric, mesh, each, RANKS_A_POD)[0] for each in (ring_hosts, theirs, hosts)
        )
        minimum = _least_gb(fabric, room, mesh, hosts, seed) if len(found) < searched else None
        layout = ",".join(f"{name}={size}" for name, size in mesh)
        found.append(MeshRow(layout, ring_gb, theirs_gb, gb, minimum))
    return found


def _least_gb(fabric: Fabric, room: Room, mesh: Mesh, hosts: Hosts, seed: int) -> float:
    """Return the lowest traffic in GB that annealing finds from our own places. hosts: of the pods. seed: of the
    search.
    """
    leaf_of = fabric.switch_of[1]
    used = np.bincount(hosts, minlength=len(room))
    spare = np.bincount(leaf_of, weights=room - used).astype(int)
    sent = annealed.traffic(mesh, RANKS_A_POD)
    free = {leaf: int(count) for leaf, count in enumerate(spare) if count}
    return annealed.least_gb(sent, [int(leaf_of[host]) for host in hosts], free, MOVES, seed)


def rerank(fabric: Fabric, mesh: Mesh, hosts: Hosts) -> Hosts:
    """Return the host of each pod by DLRover's rule, for the same hosts. hosts: the ring's host of each pod.

    It is `hosts` itself if no pipeline ("pp") of the mesh spans several pods.
    """
    outer = count_outer_axes(mesh, RANKS_A_POD)
    names = [name for name, _ in mesh[:outer]]
    if "pp" not in names:
        return hosts
    block = len(hosts) // prod(size for _, size in mesh[:outer])
    ranks = np.arange(len(hosts)).reshape([*(size for _, size in mesh[:outer]), block])
    columns = np.moveaxis(ranks, names.index("pp"), -2).reshape(-1, mesh[names.index("pp")][1] * block)
    free: dict[int, Hosts] = {}
    for host in hosts:
        free.setdefault(int(fabric.switch_of[1][host]), []).append(host)
    given: dict[int, int] = {}
    for column in columns.tolist():
        left = list(column)
        while left:
            leaf = max(free, key=lambda one: (len(free[one]) >= len(left), len(free[one]), -one))
            for rank in left[: len(free[leaf])]:
                given[rank] = free[leaf].pop(0)
            left = [rank for rank in left if rank not in given]
            if not free[leaf]:
                del free[leaf]
    return [given[rank] for rank in range(len(hosts))]


def outcome(rows: list[MeshRow]) -> Outcome:
    """Return GB across leaves by layout, and the ratios of all gangs that are on several leaves at all."""
    spread = [row for row in rows if row.ring > 0]
    searched = [(row.ours, row.minimum, row.ring) for row in spread if row.minimum is not None]
    to_ring = [row.ours / row.ring for row in spread]
    total_ratio = sum(row.ours for row in spread) / max(sum(row.ring for row in spread), 1e-9)
    minimum = sum(ours for ours, _, _ in searched) / max(sum(minimum for _, minimum, _ in searched), 1e-9)
    to_theirs = max((row.ours / row.rerank for row in spread if row.rerank), default=0.0)
    return Outcome(
        "meshes",
        [_table(rows)],
        [
            Target("meshes: GB across leaves to the ring's", total_ratio, "<=", 0.6),
            Target("meshes: mean of the gangs' ratios to the ring's", sum(to_ring) / max(len(spread), 1), "<=", 0.6),
            Target("meshes: GB across leaves to the least annealing found", minimum, "<=", 1.05),
            Target("meshes: the worst gang's to the ring's", max(to_ring, default=0.0), "<=", 1.0),
            Target("meshes: the worst gang's to DLRover's", to_theirs, "<=", 1.0),
        ],
        more={
            "meshes, gangs": len(spread),
            "meshes, annealed to the ring's, mean": sum(each / ring for _, each, ring in searched)
            / max(len(searched), 1),
        },
    )


def _table(rows: list[MeshRow]) -> Table:
    """Return the table of GB that cross leaves in a step, by layout: means over the gangs of each layout."""
    by_layout: dict[str, list[MeshRow]] = {}
    for row in rows:
        by_layout.setdefault(row.layout, []).append(row)
    lines = []
    for layout, each in by_layout.items():
        means = [sum(getattr(row, name) for row in each) / len(each) for name in ("ring", "rerank", "ours")]
        pairs = [(row.ours, row.minimum) for row in each if row.minimum is not None]
        ratio = sum(ours for ours, _ in pairs) / max(sum(minimum for _, minimum in pairs), 1e-9) if pairs else None
        lines.append((layout, len(each), *means, ratio))
    columns = {"mesh": "", "gangs": "d", "ring": ".0f", "re-rank": ".0f", "ours": ".0f", "ours to annealed": ".3f"}
    return Table("GB across leaves in a step", columns, lines)


def _cluster(rng: random.Random) -> tuple[Fabric, Room]:
    """Draw a fabric of four spines with eight leaves of eight hosts each, and its room: some hosts are taken, some
    leaves are empty.
    """
    entries = [(f"s{leaf // 8}", f"l{leaf}") for leaf in range(32) for _ in range(8)]
    fabric = build(MapEntry(f"n{at}", path, at + 1) for at, path in enumerate(entries))
    shares = [rng.choice((0.0, 0.2, 0.4, 0.6)) for _ in range(32)]
    return fabric, np.array([int(rng.random() >= shares[at // 8]) for at in range(256)], np.int32)
