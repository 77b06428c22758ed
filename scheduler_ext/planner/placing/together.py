"""Find the domains that may hold every shape of a gang, and share one between two shapes.

The room of each shape is known for itself, so a domain that has it may still fail: the shapes use the same hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.planner.node_reservations import PodsOnRows
from turnout.topology.distance import common_tier
from turnout.topology.fabric import Fabric
from turnout.topology.plan import beyond

MAX_TABLE_CELLS = 16_384  # of the table that shares one domain: hosts times pods
MAX_PODS_PER_HOST = 16  # pods of the first shape
_NONE = -(1 << 40)


def domains_with_room(
    fabric: Fabric, rooms: Sequence[Rows], counts: Sequence[int], placed_hosts: Sequence[int], widest: int
) -> Iterator[tuple[int, int]]:
    """Yield the host ids [first, end) of domains with room for each shape by itself, the lowest and tightest first.

    rooms: of each shape, by host id. counts: pods of each shape. placed_hosts: hosts of placed members; the domain
    contains them.
    """
    if not fabric.mapped_count or any(host >= fabric.mapped_count for host in placed_hosts):
        return
    for tier in range(max(1, common_tier(fabric, placed_hosts)), widest + 1):
        starts = fabric.starts[tier]
        sums = [np.add.reduceat(room, starts, dtype=np.int64) for room in rooms]
        fits = np.logical_and.reduce([total >= count for total, count in zip(sums, counts, strict=True)])
        if placed_hosts:
            only = int(fabric.switch_of[tier][placed_hosts[0]])
            fits[:only] = fits[only + 1 :] = False
        at = np.flatnonzero(fits)
        for switch in at[np.argsort(sums[0][at], kind="stable")].tolist():
            first, end = fabric.span(tier, switch)
            if first < fabric.mapped_count:
                yield first, end


def domains_of_level(
    fabric: Fabric, tier: int, placed_hosts: Sequence[int], room: NDArray[np.int64], min_pods: int
) -> Iterator[tuple[int, int]]:
    """Yield the host ids [first, end) of a level's domains with room for `min_pods` pods, those with most room first.

    placed_hosts: hosts of members, which the domain contains.
    """
    if beyond(fabric, tier, placed_hosts) is not None:
        return
    tier = min(tier, fabric.tiers)
    sums = np.add.reduceat(room, fabric.starts[tier], dtype=np.int64)
    switches = np.flatnonzero(sums >= min_pods)
    switches = switches[np.argsort(-sums[switches], kind="stable")]
    for switch in switches.tolist():
        first, end = fabric.span(tier, switch)
        if first < fabric.mapped_count and all(first <= host < end for host in placed_hosts):
            yield first, end


def share_domain(
    shapes: Sequence[PodShape],
    counts: Sequence[int],
    rooms: Sequence[Rows],
    room_of: Callable[[PodShape, PodsOnRows], Rows],
    span: tuple[int, int],
) -> Rows | None:
    """Return how many pods of the first of two shapes each host takes, so that all of the second fit; else None.

    None also for more shapes, and for a domain that is too large to try every way.
    """
    first, end = span
    if len(shapes) != 2 or (end - first) * counts[0] > MAX_TABLE_CELLS:
        return None
    own = np.minimum(rooms[0][first:end], counts[0])
    if own.max(initial=0) > MAX_PODS_PER_HOST:
        return None
    rest_room = [
        room_of(
            shapes[1], [(first + at, shapes[0]) for at in np.flatnonzero(own >= pods).tolist() for _ in range(pods)]
        )
        for pods in range(int(own.max(initial=0)) + 1)
    ]
    split = _split_hosts(own, [room[first:end].astype(np.int64) for room in rest_room], counts[0], counts[1])
    if split is None:
        return None
    limits = np.zeros_like(rooms[0])
    limits[first:end] = split
    return limits


def _split_hosts(own: Rows, rest_room: Sequence[NDArray[np.int64]], count: int, rest: int) -> list[int] | None:
    """Return how many of `count` pods each host takes, so that the others' room is largest; None if that is too small.

    own: the most that each host may take. beside[k]: the others' room on each host beside k pods.
    """
    best = np.full(count + 1, _NONE, np.int64)
    best[0] = 0
    steps: list[NDArray[np.int64]] = []
    for host, most in enumerate(own.tolist()):
        ways = np.full((most + 1, count + 1), _NONE, np.int64)
        for pods in range(most + 1):
            ways[pods, pods:] = best[: count + 1 - pods] + rest_room[pods][host]
        steps.append(ways.argmax(axis=0))
        best = ways.max(axis=0)
    if best[count] < rest:
        return None
    split, left = [], count
    for step in reversed(steps):
        split.append(int(step[left]))
        left -= split[-1]
    return split[::-1]
