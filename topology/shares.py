"""Place pods in multiples per host, or in even shares per leaf.

The number of pods need not be a multiple: the rest shares one host. Six pods in fours are four and two. The rest goes
beside a multiple, or takes the place of a whole multiple, whichever keeps the gang together. Even shares are 12 and 12
rather than 16 and 8, in the domain that the gang would have without that preference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from turnout.topology.distance import common_tier
from turnout.topology.fabric import Fabric
from turnout.topology.model import Ask, Placement, Refusal
from turnout.topology.packing import Spread, Sums
from turnout.topology.place import plan
from turnout.topology.rank_order import ranks

Room = npt.NDArray[np.int32]
_DOMAINS = 64  # of one tier, tried for a place that holds whole multiples and the rest


def in_multiples(fabric: Fabric, room: Room, ask: Ask) -> Placement | Refusal:
    """Place a gang as plan() does, its rest on one host. Where all pods fit nowhere, whole multiples alone are placed.

    room: as for plan().
    """
    rest = ask.pods % ask.multiple
    if not rest:
        return plan(fabric, room, ask)
    found = [
        each for each in (_short_last(fabric, room, ask, rest), _with_rest_on_host(fabric, room, ask, rest)) if each
    ]
    return min(found, key=lambda each: (each.tier, len(each.slots))) if found else plan(fabric, room, ask)


def topped_up(member_hosts: Iterable[int], multiple: int, pods: int, room: Room) -> list[int]:
    """Return the hosts of pods that complete the multiples which members have begun, one entry a pod.

    member_hosts: a host for each member that has one. Takes their room from `room`, which it changes.
    """
    found: list[int] = []
    for host, count in sorted(Counter(member_hosts).items()):
        more = min(-count % multiple, pods - len(found), int(room[host]))
        room[host] -= more
        found += [host] * more
    return found


def _short_last(fabric: Fabric, room: Room, ask: Ask, rest: int) -> Placement | None:
    """Place one multiple more than there are, and take the surplus from the host that is last in rank order."""
    surplus = ask.multiple - rest
    pods = ask.pods + surplus
    found = plan(fabric, room, replace(ask, pods=pods, least=pods, most=max(ask.most, pods)))
    if isinstance(found, Refusal):
        return None
    host, count = found.slots[-1]
    return gathered(fabric, [*found.slots[:-1], (host, count - surplus)], ask)


def _with_rest_on_host(fabric: Fabric, room: Room, ask: Ask, rest: int) -> Placement | None:
    """Place the whole multiples, and the rest on another host, in the lowest domain that holds both."""
    for first, end in _domains(fabric, room, ask):
        inside = np.zeros_like(room)
        inside[first:end] = room[first:end]
        if (found := _place_rest(fabric, inside, ask, rest)) is not None:
            return found
    return _place_rest(fabric, room, ask, rest)


def _domains(fabric: Fabric, room: Room, ask: Ask) -> Iterator[tuple[int, int]]:
    """Yield the domains with room for the whole multiples, and for all pods, the lowest and tightest first."""
    anchor_hosts = [host for host, _ in ask.anchors]
    widest = fabric.tiers if ask.widest_tier is None else min(ask.widest_tier, fabric.tiers)
    if not len(fabric.hosts) or any(host >= fabric.mapped_count for host in anchor_hosts):
        return
    for tier in range(common_tier(fabric, anchor_hosts), widest + 1):
        units, total = (np.add.reduceat(each, fabric.starts[tier]) for each in (room // ask.multiple, room))
        fits = np.flatnonzero((units >= ask.pods // ask.multiple) & (total >= ask.pods))
        fits = fits[np.argsort(total[fits], kind="stable")][:_DOMAINS]
        for switch in fits.tolist():
            first, end = fabric.span(tier, switch)
            if all(first <= host < end for host in anchor_hosts):
                yield first, end


def _place_rest(fabric: Fabric, room: Room, ask: Ask, rest: int) -> Placement | None:
    whole_pods = ask.pods - rest
    slots: tuple[tuple[int, int], ...] = ()
    left = room.copy()
    if whole_pods:
        found = plan(fabric, room, replace(ask, pods=whole_pods, least=whole_pods))
        if isinstance(found, Refusal):
            return None
        slots = found.slots
        for host, pods in slots:
            left[host] -= pods
    members = tuple(sorted((Counter(dict(ask.anchors)) + Counter(dict(slots))).items()))
    last = plan(
        fabric, (left // rest).clip(0, 1), Ask(1, 1, 1, 1, ask.widest_tier, members, ask.rule, liking=ask.liking)
    )
    if isinstance(last, Refusal):
        return None
    return gathered(fabric, [*slots, (last.slots[0][0], rest)], ask)


def gathered(fabric: Fabric, slots: Iterable[tuple[int, int]], ask: Ask) -> Placement:
    """Return the placement of pods on some hosts, which may be named several times."""
    total = Counter[int]()
    for host, pods in slots:
        total[host] += pods
    counts = sorted((+total).items())
    tier = common_tier(fabric, [*(host for host, _ in ask.anchors), *total])
    return Placement(ranks(fabric, counts, ask.anchors), tier, sum(total.values()))


def balanced(fabric: Fabric, room: Room, ask: Ask) -> Placement | Refusal:
    """Place a gang; where it needs several leaves, give none more than its share if the fewest leaves allow that.

    room: as for plan(). Members that hold a host count in the share of their leaf.
    """
    found = in_multiples(fabric, room, ask)
    if isinstance(found, Refusal) or found.tier < 2:
        return found
    hosts = [host for host, _ in (*ask.anchors, *found.slots)]
    first, end = fabric.span(found.tier, int(fabric.switch_of[found.tier][hosts[0]]))
    unit = ask.multiple
    starts = fabric.starts[1][fabric.switch_of[1][first] : fabric.switch_of[1][end - 1] + 1]
    anchored_pods = np.zeros(len(room), np.int32)
    for host, pods in ask.anchors:
        anchored_pods[host] += pods
    free = np.add.reduceat(room[first:end] // unit * unit, starts - first)
    leaf_anchored = np.add.reduceat(anchored_pods[first:end], starts - first)
    share = _share(free, leaf_anchored, found.pods + int(leaf_anchored.sum()), unit)
    even = np.zeros_like(room)
    sums = Sums(fabric, room // unit, ask.liking)
    spread = Spread(sums, [host for host, _ in ask.anchors])
    for at, leaf in enumerate(range(int(fabric.switch_of[1][first]), int(fabric.switch_of[1][end - 1]) + 1)):
        most = min(int(free[at]), max(0, share - int(leaf_anchored[at]))) // unit
        for host, pods in spread.fill(1, leaf, most):
            even[host] += pods * unit
    even_placement = in_multiples(fabric, even, replace(ask, pods=found.pods, least=min(ask.least, found.pods)))
    return even_placement if isinstance(even_placement, Placement) and even_placement.pods == found.pods else found


def _share(free: Room, leaf_anchored: Room, pods: int, unit: int) -> int:
    """Return the least share of a leaf with which as few leaves as possible hold all pods."""
    most = np.sort(free + leaf_anchored)[::-1]
    fewest = int(np.searchsorted(np.cumsum(most), pods)) + 1
    share = -(-pods // (fewest * unit)) * unit
    while int(np.minimum(most[:fewest], share).sum()) < pods and share < pods:
        share += unit
    return share
