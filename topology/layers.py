"""Place a gang in layers: runs of consecutive ranks, and runs within runs, each run under one switch of its tier.

A layer is (tier, size of a run in pods), as in `PlacementRequest.layers`. From the outermost layer inwards, the
switches of its tier are the hosts of a smaller problem, in which runs are multiples. Then each switch takes its runs as
a gang of its own, under that switch alone. The last run may be shorter.

For a new gang, room that is rounded down to whole runs is tried first. If a switch then holds an incomplete run, its
surplus pods are placed elsewhere; this is repeated at most _MAX_TRIES times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric, fabric_of_switches, fabric_under, ring_cost
from turnout.topology.model import Placement, PlacementRequest, Refusal, RefusalReason
from turnout.topology.place import complete_multiples, place_in_multiples, placement_of

Room = npt.NDArray[np.int32]  # pods that each host id, or each switch, has room for
_MAX_HOSTS = 2_048  # hosts of all tries in one tier; larger domains are left to `_place_by_switch`
_MAX_TRIES = 6  # for one domain


def place_in_whole_runs(fabric: Fabric, room: Room, request: PlacementRequest) -> Placement | None:
    """Place all pods of a gang without anchors in whole runs, in the lowest domain; None if no such place is found.

    room: as for plan(). request: with at least one layer that has an effect, and without anchors. Domains up to the
    innermost layer's tier are tried first: in them every run is under one switch anyway. Then higher tiers, up to the
    widest allowed; of one tier, the domain in which the gang uses the fewest switches is chosen.
    """
    widest = fabric.tiers if request.widest_tier is None else min(request.widest_tier, fabric.tiers)
    innermost = min(request.layers[-1][0], widest)
    inside_one = place_in_multiples(fabric, room, replace(request, layers=(), widest_tier=innermost))
    if isinstance(inside_one, Placement) and inside_one.pods == request.pods:
        return inside_one
    usable_room = _room_of_hosts_in_whole_runs(fabric, room, request)
    for tier in range(innermost + 1, widest + 1):
        candidates: list[tuple[int, Placement]] = []
        hosts_left = _MAX_HOSTS
        for switch in _fitting_switches(fabric, usable_room, request.pods, tier):
            first, end = fabric.span(tier, switch)
            tries = min(_MAX_TRIES, hosts_left // (end - first))
            if not tries:
                break
            hosts_left -= tries * (end - first)
            candidate = _place_whole_runs_under(fabric, usable_room, request, tier, switch, tries)
            if candidate is not None:
                candidates.append(candidate)
        if candidates:
            return min(candidates, key=lambda each: each[0])[1]
    return None


def _fitting_switches(fabric: Fabric, usable_room: Room, pods: int, tier: int) -> Iterator[int]:
    """Yield the numbers of the switches of a tier that hold all pods, the one with the least room first.

    Switches without mapped hosts are left out.
    """
    switch_room = np.add.reduceat(usable_room, fabric.starts[tier], dtype=np.int64)
    fitting = np.flatnonzero(switch_room >= pods)
    yield from (switch for switch in fitting[np.argsort(switch_room[fitting], kind="stable")].tolist()
                if fabric.starts[tier][switch] < fabric.mapped_count)  # fmt: skip


def _place_whole_runs_under(
    fabric: Fabric, usable_room: Room, request: PlacementRequest, tier: int, switch: int, tries: int
) -> tuple[int, Placement] | None:
    """Place the whole gang under one switch so that no run is split between switches of its layer.

    Return (number of switches used, all tiers up to `tier` together; placement), or None if the gang does not fit or a
    run is still split after `tries` tries. usable_room: pods that each host id has room for, rounded down to whole
    runs. tier, switch: the tier and the number of the switch.
    """
    first, end = fabric.span(tier, switch)
    domain = fabric if tier == fabric.tiers else _subfabric_under(fabric, tier, switch)
    preferences = tuple(preference[first:end] for preference in request.host_preferences)
    inner_request = PlacementRequest(
        request.pods,
        request.pods,
        max(request.max_pods, request.pods),
        request.multiple,
        None,
        (),
        request.rule,
        host_preferences=preferences,
    )
    layers = [layer for layer in request.layers if layer[0] < domain.tiers]
    room_left = usable_room[first:end].copy()
    for _ in range(tries):
        placement = place_in_multiples(domain, room_left, inner_request)
        if isinstance(placement, Refusal) or placement.pods < request.pods:
            return None
        counts = np.zeros(len(room_left), np.int32)
        for host, pods in placement.slots:
            counts[host] = pods
        if not _limit_cut_runs(domain, room_left, counts, layers, request.pods):
            slots = [(host + first, pods) for host, pods in placement.slots]
            used = sum(
                len(np.unique(domain.switch_of[lower_tier][counts > 0])) for lower_tier in range(1, domain.tiers + 1)
            )
            return used, placement_of(fabric, slots, replace(request, layers=()))
    return None


def _limit_cut_runs(domain: Fabric, room_left: Room, counts: Room, layers: list[tuple[int, int]], pods: int) -> bool:
    """For switches whose pods are not whole runs, reduce the room to the whole runs that they have now.

    The switch with the most pods in its incomplete run keeps its room in two cases: the gang's last run may be short;
    or another switch gives up pods, which may complete this run. Return True if any room was reduced.

    room_left: the room of each host of the domain, which is changed. counts: pods of each host in the last attempt.
    layers: (tier, size of a run). pods: of the gang; if they are no multiple of the size, one run may be short.
    """
    is_changed = False
    for tier, size in layers:
        switch_pods = np.add.reduceat(counts, domain.starts[tier])
        incomplete = np.flatnonzero(switch_pods % size)
        incomplete = incomplete[np.argsort(switch_pods[incomplete] % size, kind="stable")][
            : len(incomplete) - (pods % size > 0)
        ]
        if len(incomplete) and pods % size == 0 and len(incomplete) > 1:
            incomplete = incomplete[:-1]  # pods removed from the others may complete the last one
        for switch in incomplete.tolist():
            is_changed = True
            first, end = domain.span(tier, switch)
            room_left[first:end] = _limit_room(counts[first:end], int(switch_pods[switch]) // size * size)
    return is_changed


def _limit_room(room: Room, max_pods: int) -> Room:
    """Return the room of the first places, `max_pods` pods together, and 0 for the places after them: a new array.

    room: of each place (host or switch), in pods.
    """
    before = np.cumsum(room) - room
    limited: Room = np.clip(max_pods - before, 0, room).astype(np.int32)
    return limited


def _room_of_hosts_in_whole_runs(fabric: Fabric, room: Room, request: PlacementRequest) -> Room:
    """Return a new array with the room of each host, reduced to whole multiples and whole runs.

    The room of a host is whole multiples. The room of a switch of a layer's tier is whole runs of that layer.

    room: as for plan(). request: with at least one layer. If the pods of the gang do not fill whole runs of the
    innermost layer, only the room of each host is reduced.
    """
    tier, size = request.layers[-1]
    usable = room // request.multiple * request.multiple
    units = np.add.reduceat(usable, fabric.starts[tier]) // size
    for outer, run_size in reversed(request.layers[:-1]):
        _round_down_groups(units, fabric.switch_of[tier][fabric.starts[outer]], run_size // size)
    if request.pods % size:
        return usable  # the last run is short, and may be anywhere
    before_host = np.cumsum(usable, dtype=np.int64) - usable
    before = before_host - before_host[fabric.starts[tier]][fabric.switch_of[tier]]
    limited: Room = np.clip(units[fabric.switch_of[tier]].astype(np.int64) * size - before, 0, usable).astype(np.int32)
    return limited


def _round_down_groups(units: Room, starts: npt.NDArray[np.int32], multiple: int) -> None:
    """Remove room, from the smallest holes first, until each group has a multiple of `multiple` runs. Changes `units`.

    units: the room of each switch, in runs. starts: the first switch of each group, ascending.
    """
    surplus = np.add.reduceat(units, starts) % multiple
    for group in np.flatnonzero(surplus).tolist():
        end = int(starts[group + 1]) if group + 1 < len(starts) else len(units)
        switch_units, to_remove = units[int(starts[group]) : end], int(surplus[group])
        for hole in np.argsort(switch_units, kind="stable").tolist():
            removed = min(to_remove, int(switch_units[hole]))
            switch_units[hole] -= removed
            to_remove -= removed


_subfabric_under = lru_cache(maxsize=512)(fabric_under)


def place_in_layers(fabric: Fabric, room: Room, request: PlacementRequest) -> Placement | Refusal:
    """Place a gang so that each run of each of its layers is under one switch.

    Place all pods, else exactly `request.min_pods` of them, else return a Refusal. `request.min_pods`, at least 1, is
    rounded up to a multiple of `request.multiple`, but not above `request.pods`. The last run may be shorter if the
    pods do not fill it. room: as for plan(). A layer of tier 0, or of a tier that is not below the widest tier allowed,
    has no effect; without any other layer the gang is placed by place_in_multiples(). Runs that members have begun are
    completed first. Several ways are tried; of their placements the one in the lowest domain is returned, then the one
    with the cheapest ring.
    """
    request = _with_effective_layers(fabric, request)
    if not request.layers:
        return place_in_multiples(fabric, room, request)
    tier, size = request.layers[0]
    answer: Placement | Refusal = Refusal(
        RefusalReason.NO_ROOM, f"no room in runs of {size} under a switch of tier {tier}"
    )
    min_pods = -(-max(request.min_pods, 1) // request.multiple) * request.multiple
    for pods in dict.fromkeys((request.pods, min(request.pods, min_pods))):
        candidates = list(_place_layers(fabric, room, replace(request, pods=pods, min_pods=pods)))
        placements = [each for each in candidates if isinstance(each, Placement)]
        if placements:
            return (
                placements[0]
                if len(placements) == 1
                else min(placements, key=lambda each: _placement_sort_key(fabric, each))
            )
        answer = candidates[-1]
    return answer


def placements_in_layers(fabric: Fabric, room: Room, request: PlacementRequest) -> Iterator[Placement]:
    """Yield the placements among which place_in_layers() chooses, for a caller that compares them by another price.

    room: as for plan(). They place all of `request.pods`, or fewer if no layer of the request has an effect; nothing is
    yielded if the gang finds no place.
    """
    for each in _results_of_all_ways(fabric, room, request):
        if isinstance(each, Placement):
            yield each


def room_of_outer_switches(fabric: Fabric, room: Room, request: PlacementRequest) -> Room:
    """Return how many pods each switch of the outermost layer's tier holds, by switch number.

    Only whole multiples on each host and whole runs of the inner layers, if there are any, are counted; an incomplete
    last multiple or run is not. room: as for plan(). request: with at least one layer that has an effect.
    """
    pods, lower_tier = room // request.multiple * request.multiple, 0
    for tier, size in reversed(request.layers[1:]):
        pods = np.add.reduceat(pods, _starts(fabric, lower_tier, tier)) // size * size
        lower_tier = tier
    return np.add.reduceat(pods, _starts(fabric, lower_tier, request.layers[0][0])).astype(np.int32)


def _starts(fabric: Fabric, lower_tier: int, tier: int) -> npt.NDArray[np.int32]:
    """Return the number of the first switch of `lower_tier` under each switch of `tier`."""
    first: npt.NDArray[np.int32] = fabric.switch_of[lower_tier][fabric.starts[tier]]
    return first


def _with_effective_layers(fabric: Fabric, request: PlacementRequest) -> PlacementRequest:
    """Return the request with only those layers whose tier is at least 1 and below the widest tier allowed."""
    widest = fabric.tiers if request.widest_tier is None else min(request.widest_tier, fabric.tiers)
    return replace(request, layers=tuple(layer for layer in request.layers if 0 < layer[0] < widest))


def _results_of_all_ways(fabric: Fabric, room: Room, request: PlacementRequest) -> Iterator[Placement | Refusal]:
    """Yield the result, a Placement or a Refusal, of each way to place a gang: in those of its layers that have an
    effect, or in multiples if there are none.

    room: as for plan(). At least one result is yielded.
    """
    request = _with_effective_layers(fabric, request)
    if request.layers:
        yield from _place_layers(fabric, room, request)
    else:
        yield place_in_multiples(fabric, room, request)


def _place_layers(fabric: Fabric, room: Room, request: PlacementRequest) -> Iterator[Placement | Refusal]:
    """Yield the result, a Placement or a Refusal, of each way to place a gang in layers.

    room: as for plan(). request: with at least one layer that has an effect. The ways are whole runs, and shares of
    switches from the outermost layer inwards. If neither succeeds, shares with incomplete inner runs are tried, too.
    The last result may be a Refusal.
    """
    by_runs = None if request.anchors else place_in_whole_runs(fabric, room, request)
    if by_runs is not None:
        yield by_runs
    shared = _place_by_switch(fabric, room, request, room_of_outer_switches(fabric, room, request))
    yield shared
    inner_sizes = [request.multiple, *(size for _, size in request.layers[1:])]
    if by_runs is None and isinstance(shared, Refusal) and any(request.pods % size for size in inner_sizes):
        switch_room = np.add.reduceat(room, fabric.starts[request.layers[0][0]]).astype(np.int32)
        yield _place_by_switch(fabric, room, request, switch_room)


def _placement_sort_key(fabric: Fabric, placement: Placement) -> tuple[int, int, int]:
    """Return the sort key of a placement, the best first: most pods, lowest domain, cheapest ring."""
    return -placement.pods, placement.tier, ring_cost(fabric, [host for host, _ in placement.slots]).total


def _place_by_switch(fabric: Fabric, room: Room, request: PlacementRequest, switch_room: Room) -> Placement | Refusal:
    """Share the pods among the switches of the outermost layer, then place each share under its switch.

    room: as for plan(). switch_room: pods that each switch of that layer holds, in whole runs if incomplete inner runs
    are not allowed. Return a Refusal if the shares, or the pods under one of the switches, find no room.
    """
    tier, size = request.layers[0]
    anchored = Counter[int]()
    for host, pods in request.anchors:
        anchored[int(fabric.switch_of[tier][host])] += pods
    switch_room = switch_room.copy()
    counts = Counter(complete_multiples(anchored.elements(), size, request.pods, switch_room))
    pods = request.pods - counts.total()
    if pods:
        widest = None if request.widest_tier is None else request.widest_tier - tier + 1
        starts = fabric.starts[tier]
        preferences = tuple(
            np.add.reduceat(np.where(room > 0, preference, 0), starts) for preference in request.host_preferences
        )
        members = tuple(sorted((anchored + counts).items()))
        outer_request = PlacementRequest(
            pods, pods, max(pods, request.max_pods), size, widest, members, host_preferences=preferences
        )
        outer_placement = place_in_multiples(_fabric_of_switches(fabric, tier), switch_room, outer_request)
        if isinstance(outer_placement, Refusal):
            return outer_placement
        counts.update(dict(outer_placement.slots))
    if _switches_with_short_run(anchored + counts, size) > max(1, _switches_with_short_run(anchored, size)):
        return Refusal(RefusalReason.NO_ROOM, f"a begun run of {size} finds no room under its switch of tier {tier}")
    slots: list[tuple[int, int]] = []
    for switch, count in sorted(counts.items()):
        part = _place_inside_switch(fabric, room, request, tier, switch, count)
        if isinstance(part, Refusal):
            return part
        slots += part
    return placement_of(fabric, slots, request)


def _switches_with_short_run(pods: Counter[int], size: int) -> int:
    """Return the number of switches whose pods are not whole runs. pods: by switch. size: pods of a run.

    A gang may have one such switch: for its last run, or for a run that members have begun.
    """
    return sum(count % size != 0 for count in pods.values())


def _place_inside_switch(
    fabric: Fabric, room: Room, request: PlacementRequest, tier: int, switch: int, pods: int
) -> list[tuple[int, int]] | Refusal:
    """Place `pods` pods under one switch, with all layers of `request` but the outermost one.

    room: as for plan(). tier, switch: the tier of the outermost layer and the number of the switch. Return (host id of
    the whole fabric, pods), or a Refusal. The first way that succeeds is taken.
    """
    first, end = fabric.span(tier, switch)
    inner_anchors = tuple((host - first, count) for host, count in request.anchors if first <= host < end)
    preferences = tuple(preference[first:end] for preference in request.host_preferences)
    inner_request = PlacementRequest(
        pods, pods, pods, request.multiple, None, inner_anchors, request.rule, request.layers[1:], preferences
    )
    # Inside a switch the first way that succeeds is good enough; trying all ways for many switches is slow.
    answer: Placement | Refusal = Refusal(RefusalReason.NO_ROOM)
    for answer in _results_of_all_ways(_subfabric_under(fabric, tier, switch), room[first:end], inner_request):
        if isinstance(answer, Placement):
            break
    return answer if isinstance(answer, Refusal) else [(host + first, count) for host, count in answer.slots]


_fabric_of_switches = lru_cache(maxsize=8)(fabric_of_switches)
