"""Place a gang in runs of consecutive ranks, and runs within runs, each under one switch of its tier.

From the outermost layer inwards: the switches of its tier are the hosts of a smaller problem, in which runs are
multiples. Then each switch takes its runs as a gang of its own, under that switch alone. A last run may be shorter.

Whole runs of a new gang are tried first, in room that is cut to whole runs. Where a used switch is not filled with
whole runs, its surplus pods are taken and placed elsewhere, a few times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric, above, cost, under
from turnout.topology.model import Ask, Placement, Refusal, RefusalReason
from turnout.topology.place import gathered, in_multiples, topped_up

Room = npt.NDArray[np.int32]
_MAX_HOSTS = 2_048  # looked at in a tier, each once a try: larger domains are left to `_shared`
_MAX_TRIES = 6  # times


def by_whole_runs(fabric: Fabric, room: Room, ask: Ask) -> Placement | None:
    """Place a gang without members so far, in the lowest domain; None where no such place was found.

    room: as for plan(). ask: with a layer at least. Of domains of one tier the one with the fewest switches is chosen.
    A domain that is no wider than the innermost layer, such as one host, keeps all runs by itself.
    """
    widest = fabric.tiers if ask.widest_tier is None else min(ask.widest_tier, fabric.tiers)
    innermost = min(ask.layers[-1][0], widest)
    inside_one = in_multiples(fabric, room, replace(ask, layers=(), widest_tier=innermost))
    if isinstance(inside_one, Placement) and inside_one.pods == ask.pods:
        return inside_one
    usable_room = _room_in_whole_runs(fabric, room, ask)
    for tier in range(innermost + 1, widest + 1):
        found: list[tuple[int, Placement]] = []
        left = _MAX_HOSTS
        for switch in _domains(fabric, usable_room, ask.pods, tier):
            first, end = fabric.span(tier, switch)
            tries = min(_MAX_TRIES, left // (end - first))
            if not tries:
                break
            left -= tries * (end - first)
            candidate = _runs_inside_switch(fabric, usable_room, ask, tier, switch, tries)
            if candidate is not None:
                found.append(candidate)
        if found:
            return min(found, key=lambda each: each[0])[1]
    return None


def _domains(fabric: Fabric, usable_room: Room, pods: int, tier: int) -> Iterator[int]:
    """Yield the switches of a tier that hold all pods, the tightest first."""
    sums = np.add.reduceat(usable_room, fabric.starts[tier], dtype=np.int64)
    fits = np.flatnonzero(sums >= pods)
    yield from (switch for switch in fits[np.argsort(sums[fits], kind="stable")].tolist()
                if fabric.starts[tier][switch] < fabric.mapped_count)  # fmt: skip


def _runs_inside_switch(
    fabric: Fabric, usable_room: Room, ask: Ask, tier: int, switch: int, tries: int
) -> tuple[int, Placement] | None:
    """Place the gang under this switch so that no run is cut. Return the number of switches used, and the placement.

    None if the gang does not fit, or if runs are still cut after `tries` repairs.
    """
    first, end = fabric.span(tier, switch)
    domain = fabric if tier == fabric.tiers else _under(fabric, tier, switch)
    merits = tuple(merit[first:end] for merit in ask.merits)
    inner = Ask(ask.pods, ask.pods, max(ask.most, ask.pods), ask.multiple, None, (), ask.rule, merits=merits)
    layers = [layer for layer in ask.layers if layer[0] < domain.tiers]
    left = usable_room[first:end].copy()
    for _ in range(tries):
        found = in_multiples(domain, left, inner)
        if isinstance(found, Refusal) or found.pods < ask.pods:
            return None
        counts = np.zeros(len(left), np.int32)
        for host, pods in found.slots:
            counts[host] = pods
        if not _limit_cut_runs(domain, left, counts, layers, ask.pods):
            slots = [(host + first, pods) for host, pods in found.slots]
            used = sum(len(np.unique(domain.switch_of[at][counts > 0])) for at in range(1, domain.tiers + 1))
            return used, gathered(fabric, slots, replace(ask, layers=()))
    return None


def _limit_cut_runs(domain: Fabric, left: Room, counts: Room, layers: list[tuple[int, int]], pods: int) -> bool:
    """Limit the room under each switch with an incomplete run to its whole runs.

    Return True if there was one. left: room per host, which is changed. counts: pods per host in the last attempt.
    layers: (tier, size of a run). If the gang's pods are no multiple of the size, one run may be short.
    """
    broken = False
    for tier, size in layers:
        sums = np.add.reduceat(counts, domain.starts[tier])
        odd = np.flatnonzero(sums % size)
        odd = odd[np.argsort(sums[odd] % size, kind="stable")][: len(odd) - (pods % size > 0)]
        if len(odd) and pods % size == 0 and len(odd) > 1:
            odd = odd[:-1]  # the one that lacks least may be completed by what the others lose
        for switch in odd.tolist():
            broken = True
            first, end = domain.span(tier, switch)
            left[first:end] = _limit_room(counts[first:end], int(sums[switch]) // size * size)
    return broken


def _limit_room(room: Room, most: int) -> Room:
    """Return the room of the first places, up to `most` pods."""
    before = np.cumsum(room) - room
    limited: Room = np.clip(most - before, 0, room).astype(np.int32)
    return limited


def _room_in_whole_runs(fabric: Fabric, room: Room, ask: Ask) -> Room:
    """Round the room down to the multiple of each host, and for each innermost switch to whole runs.

    If the gang has a short last run, the room is rounded to the multiple alone.
    """
    tier, size = ask.layers[-1]
    usable = room // ask.multiple * ask.multiple
    units = np.add.reduceat(usable, fabric.starts[tier]) // size
    for outer, run_size in reversed(ask.layers[:-1]):
        _cut(units, fabric.switch_of[tier][fabric.starts[outer]], run_size // size)
    if ask.pods % size:
        return usable  # the last run is short, and may be anywhere
    before_host = np.cumsum(usable, dtype=np.int64) - usable
    before = before_host - before_host[fabric.starts[tier]][fabric.switch_of[tier]]
    limited: Room = np.clip(units[fabric.switch_of[tier]].astype(np.int64) * size - before, 0, usable).astype(np.int32)
    return limited


def _cut(units: Room, starts: npt.NDArray[np.int32], multiple: int) -> None:
    """Take room away, the smallest holes first, until the switches from each start on hold a multiple of `multiple`."""
    over = np.add.reduceat(units, starts) % multiple
    for at in np.flatnonzero(over).tolist():
        end = int(starts[at + 1]) if at + 1 < len(starts) else len(units)
        switch_units, left = units[int(starts[at]) : end], int(over[at])
        for hole in np.argsort(switch_units, kind="stable").tolist():
            removed = min(left, int(switch_units[hole]))
            switch_units[hole] -= removed
            left -= removed


_under = lru_cache(maxsize=512)(under)


def in_layers(fabric: Fabric, room: Room, ask: Ask) -> Placement | Refusal:
    """Place a gang in its layers. If no domain takes all pods in whole layers, place the ask's least; else refuse.

    The least is rounded up to whole multiples.

    room: as for plan(). Runs that members have begun are completed first. Layers as wide as the gang's own domain, or
    as the fabric, ask for nothing. Of two ways the one in the lower domain is taken, of equals the cheaper ring.
    """
    ask = _narrower(fabric, ask)
    if not ask.layers:
        return in_multiples(fabric, room, ask)
    tier, size = ask.layers[0]
    answer: Placement | Refusal = Refusal(
        RefusalReason.NO_ROOM, f"no room in runs of {size} under a switch of tier {tier}"
    )
    least = -(-max(ask.least, 1) // ask.multiple) * ask.multiple
    for pods in dict.fromkeys((ask.pods, min(ask.pods, least))):
        candidates = list(_place_layers(fabric, room, replace(ask, pods=pods, least=pods)))
        placements = [each for each in candidates if isinstance(each, Placement)]
        if placements:
            return placements[0] if len(placements) == 1 else min(placements, key=lambda each: _price(fabric, each))
        answer = candidates[-1]
    return answer


def ways_of_layers(fabric: Fabric, room: Room, ask: Ask) -> Iterator[Placement]:
    """Yield the places that in_layers() chooses among, for who judges them by another price."""
    for each in _placements(fabric, room, ask):
        if isinstance(each, Placement):
            yield each


def capacity(fabric: Fabric, room: Room, ask: Ask) -> Room:
    """Return how many pods each switch of the outermost layer's tier holds in whole runs of the layers within it."""
    pods, at = room // ask.multiple * ask.multiple, 0
    for tier, size in reversed(ask.layers[1:]):
        pods = np.add.reduceat(pods, _starts(fabric, at, tier)) // size * size
        at = tier
    return np.add.reduceat(pods, _starts(fabric, at, ask.layers[0][0])).astype(np.int32)


def _starts(fabric: Fabric, below: int, tier: int) -> npt.NDArray[np.int32]:
    """Return the first switch of tier `below` under each switch of a tier."""
    first: npt.NDArray[np.int32] = fabric.switch_of[below][fabric.starts[tier]]
    return first


def _narrower(fabric: Fabric, ask: Ask) -> Ask:
    widest = fabric.tiers if ask.widest_tier is None else min(ask.widest_tier, fabric.tiers)
    return replace(ask, layers=tuple(layer for layer in ask.layers if 0 < layer[0] < widest))


def _placements(fabric: Fabric, room: Room, ask: Ask) -> Iterator[Placement | Refusal]:
    """Yield the result of each way to place a gang: by its layers if it has any, else in multiples."""
    ask = _narrower(fabric, ask)
    if ask.layers:
        yield from _place_layers(fabric, room, ask)
    else:
        yield in_multiples(fabric, room, ask)


def _place_layers(fabric: Fabric, room: Room, ask: Ask) -> Iterator[Placement | Refusal]:
    """Yield what two ways come to: in room that is cut to whole runs, and shared from the top down.

    A run that is cut short may fit where whole ones do not. The last is a refusal where no way led to a place.
    """
    by_runs = None if ask.anchors else by_whole_runs(fabric, room, ask)
    if by_runs is not None:
        yield by_runs
    shared = _place_by_shares(fabric, room, ask, capacity(fabric, room, ask))
    yield shared
    inner = [ask.multiple, *(size for _, size in ask.layers[1:])]
    if by_runs is None and isinstance(shared, Refusal) and any(ask.pods % size for size in inner):
        switch_room = np.add.reduceat(room, fabric.starts[ask.layers[0][0]]).astype(np.int32)
        yield _place_by_shares(fabric, room, ask, switch_room)


def _price(fabric: Fabric, placement: Placement) -> tuple[int, int, int]:
    return -placement.pods, placement.tier, cost(fabric, [host for host, _ in placement.slots]).total


def _place_by_shares(fabric: Fabric, room: Room, ask: Ask, switch_room: Room) -> Placement | Refusal:
    """Share the pods among the switches of the outermost layer, then place each share under its switch.

    switch_room: pods that each switch of that layer holds, in whole runs if cut runs are not allowed.
    """
    tier, size = ask.layers[0]
    anchored = Counter[int]()
    for host, pods in ask.anchors:
        anchored[int(fabric.switch_of[tier][host])] += pods
    switch_room = switch_room.copy()
    counts = Counter(topped_up(anchored.elements(), size, ask.pods, switch_room))
    pods = ask.pods - counts.total()
    if pods:
        widest = None if ask.widest_tier is None else ask.widest_tier - tier + 1
        starts = fabric.starts[tier]
        merits = tuple(np.add.reduceat(np.where(room > 0, merit, 0), starts) for merit in ask.merits)
        members = tuple(sorted((anchored + counts).items()))
        outer_ask = Ask(pods, pods, max(pods, ask.most), size, widest, members, merits=merits)
        found = in_multiples(_above(fabric, tier), switch_room, outer_ask)
        if isinstance(found, Refusal):
            return found
        counts.update(dict(found.slots))
    if _short_runs(anchored + counts, size) > max(1, _short_runs(anchored, size)):
        return Refusal(RefusalReason.NO_ROOM, f"a begun run of {size} finds no room under its switch of tier {tier}")
    slots: list[tuple[int, int]] = []
    for switch, count in sorted(counts.items()):
        part = _place_inside_switch(fabric, room, ask, tier, switch, count)
        if isinstance(part, Refusal):
            return part
        slots += part
    return gathered(fabric, slots, ask)


def _short_runs(pods: Counter[int], size: int) -> int:
    """Count the switches whose pods are no whole runs. A gang has one at most: its last run, or one that is begun."""
    return sum(count % size != 0 for count in pods.values())


def _place_inside_switch(
    fabric: Fabric, room: Room, ask: Ask, tier: int, switch: int, pods: int
) -> list[tuple[int, int]] | Refusal:
    """Place some pods under one switch, in the layers within the outermost one."""
    first, end = fabric.span(tier, switch)
    inner_anchors = tuple((host - first, count) for host, count in ask.anchors if first <= host < end)
    merits = tuple(merit[first:end] for merit in ask.merits)
    inner = Ask(pods, pods, pods, ask.multiple, None, inner_anchors, ask.rule, ask.layers[1:], merits)
    # Within a switch the first way is as good, and both would be tried for each of many.
    found: Placement | Refusal = Refusal(RefusalReason.NO_ROOM)
    for found in _placements(_under(fabric, tier, switch), room[first:end], inner):
        if isinstance(found, Placement):
            break
    return found if isinstance(found, Refusal) else [(host + first, count) for host, count in found.slots]


_above = lru_cache(maxsize=8)(above)
