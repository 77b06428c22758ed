"""Other placement rules, restated: best fit by level, and kube-scheduler's default spread.

Best fit by level is what Kueue's topology-aware scheduling does (docs/facts/schedulers.md 5): the lowest level at which
one domain holds the gang, the tightest such domain; downward, the tightest child that holds the rest, else the
largest child first. Its ranks walk the fabric, so its ring is as good as its hosts allow.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric
from turnout.topology.packing import RoomByTier

Room = npt.NDArray[np.int32]
Hosts = list[int]  # a host id per rank


def best_fit(fabric: Fabric, room: Room, pods: int) -> Hosts | None:
    """Return the host of each rank by best fit on every tier: the tightest switch that holds the gang, down to the
    host.

    Returns None if the gang does not fit. room: pods that each host holds, by host ID. pods: of the gang.
    """
    sums = RoomByTier(fabric, room)
    for tier in range(fabric.tiers + 1):
        domain_room = sums.at_tier(tier)
        fits = np.flatnonzero(domain_room >= pods)
        if len(fits):
            slots = _fill(sums, tier, int(fits[np.argmin(domain_room[fits])]), pods)
            return [host for host, count in sorted(slots) for _ in range(count)]
    return None


def _fill(sums: RoomByTier, tier: int, switch: int, pods: int) -> list[tuple[int, int]]:
    """Return (host, pods) below a switch: the tightest child that holds the rest, else the largest child first.

    sums: free slots of each switch. tier, switch: the switch's tier, 0 for a host, and its index there. pods: at most
    the free slots of the switch.
    """
    if tier == 0:
        return [(switch, pods)]
    first, end = sums.children(tier, switch)
    domain_room = sums.at_tier(tier - 1)
    left = set(range(first, end))
    slots: list[tuple[int, int]] = []
    while pods:
        fits = [child for child in left if domain_room[child] >= pods]
        if fits:
            child = min(fits, key=lambda child: (domain_room[child], child))
        else:
            child = min(left, key=lambda child: (-domain_room[child], child))
        take = min(pods, int(domain_room[child]))
        slots += _fill(sums, tier - 1, child, take)
        left.remove(child)
        pods -= take
    return slots


def spread(fabric: Fabric, room: Room, pods: int, rng: random.Random) -> Hosts | None:
    """Return the host of each rank as a scheduler that spreads pods places them one by one.

    Each pod gets the host with the most free slots; `rng` chooses among equal hosts. Returns None if the gang does not
    fit.
    """
    left = room.copy()
    chosen: Hosts = []
    for _ in range(pods):
        maximum = int(left.max(initial=0))
        if maximum <= 0:
            return None
        equal = np.flatnonzero(left == maximum)
        host = int(equal[int(rng.random() * len(equal))])
        left[host] -= 1
        chosen.append(host)
    return chosen


def kueue(fabric: Fabric, room: Room, pods: int) -> Hosts | None:
    """Return a host per rank by the rule of Kueue 0.16 for a preferred leaf; None where the gang does not fit.

    The rule chooses the lowest level at which one domain holds the gang, and the tightest such domain. On each level
    below, the children of all chosen domains form one list. The largest children come first; the last child is the
    tightest that holds the rest.
    Source: pkg/cache/scheduler/tas_flavor_snapshot.go, `findLevelWithFitDomains` and `updateCountsToMinimum`.
    """
    sums = RoomByTier(fabric, room)
    for tier in range(1, fabric.tiers + 1):
        domain_room = sums.at_tier(tier)
        fits = np.flatnonzero(domain_room >= pods)
        if len(fits):
            chosen = [int(fits[np.argmin(domain_room[fits])])]
            for lower in range(tier - 1, -1, -1):
                below = [child for one in chosen for child in range(*sums.children(lower + 1, one))]
                counts = _count_by_domain(sums.at_tier(lower), below, pods)
                chosen = sorted(counts)
            return [host for host in chosen for _ in range(counts[host])]
    return None


def _count_by_domain(domain_room: Room, domains: list[int], pods: int) -> dict[int, int]:
    """Return how many pods each domain gets, as {domain: pods}, so that as few domains as possible get pods.

    domain_room: pods that each domain can hold; together at least `pods`. The largest domains come first; the last is
    the tightest that holds the rest.
    """
    counts: dict[int, int] = {}
    descending = sorted(domains, key=lambda domain: (-domain_room[domain], domain))
    for at, domain in enumerate(descending):
        if domain_room[domain] >= pods:
            last = min(descending[at:], key=lambda other: (domain_room[other] < pods, domain_room[other], other))
            counts[last] = pods
            return counts
        counts[domain] = int(domain_room[domain])
        pods -= counts[domain]
    return counts
