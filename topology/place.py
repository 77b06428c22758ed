"""Place a whole gang, at once or in multiples of pods a host: a pure function of fabric, room and request.

Preferences, most important first (docs/design.md 3):

1. never outside the widest tier allowed;
2. hosts of the map before others;
3. the lowest domain that holds the gang;
4. the fewest switches in this domain (packing.py);
5. room to grow to `PlacementRequest.max_pods`;
6. the domain with the least room;
7. the fewest hosts;
8. the hosts with the greatest `PlacementRequest.host_preferences`. The scheduler extender sets them: first the
   preferred node affinity of the pods and PreferNoSchedule taints, then the least free resources (tightest fit);
9. the least room of the switches above the domain;
10. fabric order, so the result is deterministic.

rank_order.py assigns the ranks. Pods that need not be near each other fill the smallest holes of all hosts.
A unit is `PlacementRequest.multiple` pods on one host. The rest of a gang is its pods that do not fill a whole unit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric, common_tier, with_only_tiers
from turnout.topology.model import DistanceRule, Placement, PlacementRequest, Refusal, RefusalReason
from turnout.topology.packing import DomainPacker, RoomByTier, Slots, choose_holes
from turnout.topology.rank_order import in_rank_order


def plan(fabric: Fabric, room: npt.NDArray[np.int32], request: PlacementRequest) -> Placement | Refusal:
    """Place a gang in whole multiples, or return the reason why not. Raises nothing.

    room: how many pods of the gang's shape each host id holds, 0 or more; the pods of the anchors are subtracted
    already. If a tier is required, unmapped hosts are not used. If `request.pods` fit nowhere, as many as fit are
    placed, but at least `request.min_pods` and one. Pods that do not fill a whole multiple are not placed.
    `request.layers` is not read.
    """
    required = request.widest_tier is not None
    anchors = [host for host, _ in request.anchors]
    refusal = anchors_refusal(fabric, request.widest_tier, anchors)
    if refusal is not None:
        return refusal
    units = room if request.multiple == 1 else room // request.multiple
    rooms = [_mapped_only(fabric, units)]
    if not required and fabric.mapped_count < len(fabric.hosts):
        rooms.append(units)
    slots = _search(*_by_distance_rule(fabric, request), rooms, request, anchors)
    if not slots:
        return _refusal(rooms[-1], request)
    slots = [(host, pods * request.multiple) for host, pods in slots]
    pods = sum(pods for _, pods in slots)
    tier = common_tier(fabric, [*anchors, *(host for host, _ in slots)])
    return Placement(in_rank_order(fabric, sorted(slots), request.anchors), tier, pods)


def anchors_refusal(fabric: Fabric, widest_tier: int | None, hosts: Sequence[int]) -> Refusal | None:
    """Return why the members on some hosts do not lie in one domain of a required tier; None if they do.

    widest_tier: the required tier; None if no tier is required, then the result is None. hosts: host ids of the
    members, in any order. A required tier is also refused if the map has no hosts.
    """
    if widest_tier is None:
        return None
    if not fabric.mapped_count:
        return Refusal(RefusalReason.NO_MAP, "a topology tier is required and the map names no host")
    if not hosts:
        return None
    if not fabric.mapped[hosts].all():
        return Refusal(RefusalReason.OFF_MAP, "members run on hosts that the map does not name")
    tier = common_tier(fabric, hosts)
    if tier > widest_tier:
        return Refusal(
            RefusalReason.OFF_MAP,
            f"the running members are only together under a switch of tier {tier}; the gang requires tier "
            f"{widest_tier} or lower",
        )
    return None


def _mapped_only(fabric: Fabric, units: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the room with 0 on hosts that are not in the map: a copy, or `units` itself if all hosts are.

    units: room of each host id, in units.
    """
    if fabric.mapped_count == len(fabric.hosts):
        return units
    units = units.copy()
    units[fabric.mapped_count :] = 0
    return units


def _by_distance_rule(fabric: Fabric, request: PlacementRequest) -> tuple[Fabric, int]:
    """Return (fabric with only the tiers that the request's distance rule distinguishes, widest tier allowed in this
    fabric).

    Under LEAF_ONLY these are leaves, the widest tier allowed and the top. Under ALL_TIERS it is `fabric` itself.
    """
    widest = fabric.tiers if request.widest_tier is None else min(request.widest_tier, fabric.tiers)
    if request.rule is DistanceRule.ALL_TIERS:
        return fabric, widest
    tiers = tuple(sorted({1, max(widest, 1), fabric.tiers}))
    return _with_tiers(fabric, tiers), tiers.index(widest) + 1 if widest else 0


_with_tiers = lru_cache(maxsize=2)(with_only_tiers)


def _search(
    fabric: Fabric,
    widest: int,
    rooms: list[npt.NDArray[np.int32]],
    request: PlacementRequest,
    anchors: list[int],
) -> Slots:
    """Return (host id, units) of all whole units of the request, in the lowest domain that holds them.

    If none does and the request allows it, all units are placed on any hosts, also unmapped ones. If that fails, too,
    the result has as many units as the roomiest domain of the widest tier holds (with anchors: as their domain holds).
    [] if these are fewer than `request.min_pods` needs. fabric, widest: as _by_distance_rule() returns them. rooms:
    units of each host id, first on mapped hosts only, then on all hosts if the request allows them. anchors: host ids
    of placed members.
    """
    units, min_units, max_units = (
        request.pods // request.multiple,
        -(-request.min_pods // request.multiple),
        -(-request.max_pods // request.multiple),
    )
    if not len(fabric.hosts) or not 0 < units >= min_units:
        return []
    room_by_tier = RoomByTier(fabric, rooms[0], request.host_preferences)
    slots = _place_all(room_by_tier, units, max_units, widest, anchors)
    if slots is None and len(rooms) > 1:
        room_by_tier = RoomByTier(fabric, rooms[1], request.host_preferences)
        slots = _place_on_unmapped_hosts(room_by_tier, units, max_units, anchors)
    if slots is not None:
        return slots
    domain_room = room_by_tier.at_tier(widest)
    fitting_units = int(domain_room[fabric.switch_of[widest][anchors[0]]] if anchors else domain_room.max())
    return (
        (_place_all(room_by_tier, fitting_units, max_units, widest, anchors) or [])
        if fitting_units >= max(min_units, 1)
        else []
    )


def _place_all(room_by_tier: RoomByTier, units: int, max_units: int, widest: int, anchors: list[int]) -> Slots | None:
    """Return (host id, units) for all units in the lowest domain that holds them; None if no domain does.

    units: to place, >= 1. max_units: units that the gang may grow to, which decides between equal domains. widest:
    the highest tier tried. anchors: host ids of placed members, which the domain has to contain.
    """
    if anchors:
        return _place_near_anchors(room_by_tier, units, widest, anchors)
    for tier in range(widest + 1):
        room = room_by_tier.at_tier(tier)
        domains = np.flatnonzero(room >= units)
        if not len(domains):
            continue
        packer = DomainPacker(room_by_tier)
        domains = packer.cheapest_domains(tier, domains, units)
        return packer.fill(tier, room_by_tier.tightest_domain(tier, domains, units, max_units), units)
    return None


def _place_near_anchors(room_by_tier: RoomByTier, units: int, widest: int, anchors: list[int]) -> Slots | None:
    """Return (host id, units) under the lowest switch that covers all anchors and has room.

    None if none up to `widest` has. units: to place. widest: the highest tier tried. anchors: host ids of placed
    members, at least one.
    """
    fabric = room_by_tier.fabric
    for tier in range(common_tier(fabric, anchors), widest + 1):
        switch = int(fabric.switch_of[tier][anchors[0]])
        if room_by_tier.at_tier(tier)[switch] >= units:
            return DomainPacker(room_by_tier, anchors).fill(tier, switch, units)
    return None


def _place_on_unmapped_hosts(room_by_tier: RoomByTier, units: int, max_units: int, anchors: list[int]) -> Slots | None:
    """Return (host id, units) for all units on any hosts, also those off the map; None if the room is too small.

    Called only if no tier is required. units: to place. max_units: units that the gang may grow to. anchors: host ids
    of placed members. One host takes all units if it can; with anchors it must be their only host. Otherwise the map's
    hosts take all that they hold, and the fewest hosts off the map take the rest, the anchors' hosts first.
    """
    fabric, mapped_count = room_by_tier.fabric, room_by_tier.fabric.mapped_count
    room = room_by_tier.at_tier(0)
    if anchors:
        if len(set(anchors)) == 1 and room[anchors[0]] >= units:
            return [(anchors[0], units)]
    elif len(single_hosts := np.flatnonzero(room >= units)):
        return [(room_by_tier.tightest_domain(0, single_hosts, units, max_units), units)]
    remaining = units - int(room[:mapped_count].sum())
    if int(room[mapped_count:].sum()) < remaining:
        return None
    slots = [(host, int(room[host])) for host in np.flatnonzero(room[:mapped_count]).tolist()]
    anchor_hosts = sorted({host for host in anchors if host >= mapped_count})
    other_hosts = [host for host in range(mapped_count, len(fabric.hosts)) if host not in anchor_hosts]
    preferences = room_by_tier.preferences(0)
    for hosts in (anchor_hosts, other_hosts):
        hosts.sort(key=lambda host: [-int(preference[host]) for preference in preferences])
        holes = room[hosts].tolist()
        share = min(remaining, sum(holes))
        slots += [(hosts[index], pods_taken) for index, pods_taken in choose_holes(holes, share)]
        remaining -= share
    return slots


def _refusal(units: npt.NDArray[np.int32], request: PlacementRequest) -> Refusal:
    """Return why plan() found no place.

    TIER_TOO_NARROW if a tier is required and all hosts together have room for `request.min_pods` pods in whole
    multiples; else NO_ROOM: they have too little, or the whole multiples in `request.pods` are fewer than
    `request.min_pods`. units: room of each host id, in units.
    """
    min_pods = max(request.min_pods, 1)
    total = int(units.sum()) * request.multiple
    multiples_text = f" in multiples of {request.multiple}" if request.multiple > 1 else ""
    if (
        request.widest_tier is not None
        and total >= min_pods
        and request.pods // request.multiple * request.multiple >= min_pods
    ):
        where = f"no switch of tier {request.widest_tier} or below holds {min_pods} pods{multiples_text}"
        return Refusal(RefusalReason.TIER_TOO_NARROW, where, total)
    return Refusal(
        RefusalReason.NO_ROOM, f"{min_pods} pods must start together{multiples_text}, {total} find room", total
    )


def place_in_smallest_holes(
    fabric: Fabric, room: npt.NDArray[np.int32], request: PlacementRequest
) -> Placement | Refusal:
    """Place as many pods as fit, at least `request.min_pods` and one, on the hosts with the least room, at any
    distance.

    room: as for plan(). Each host gets whole multiples. If all multiples fit, the remainder of the pods, which does not
    fill a multiple, is placed too, all on one host, which may have whole multiples, too. `request.widest_tier` and
    `request.layers` are not read. The slots are in order of host ids. Return a Refusal if fewer fit.
    """
    rest = request.pods % request.multiple
    usable = room // request.multiple * request.multiple
    pods_of_host: dict[int, int] = {}
    remaining = request.pods - rest
    for host in _smallest_holes(usable, 1, request) if remaining else ():
        pods_of_host[host] = min(remaining, int(usable[host]))
        remaining -= pods_of_host[host]
        if not remaining:
            break
    if rest and not remaining:
        left = room.copy()
        for host, count in pods_of_host.items():
            left[host] -= count
        for host in _smallest_holes(left, rest, request)[:1]:
            pods_of_host[host] = pods_of_host.get(host, 0) + rest
    pods = sum(pods_of_host.values())
    if pods < max(request.min_pods, 1):
        return Refusal(
            RefusalReason.NO_ROOM, f"{max(request.min_pods, 1)} pods must start together, {pods} find room", pods
        )
    tier = common_tier(fabric, [*(host for host, _ in request.anchors), *pods_of_host])
    return Placement(tuple(sorted(pods_of_host.items())), tier, pods)


def _smallest_holes(room: npt.NDArray[np.int32], pods: int, request: PlacementRequest) -> list[int]:
    """Return the host ids with room for so many pods, the least room first, then by the preferences of the request.

    room: as for plan(). pods: >= 1.
    """
    order = np.lexsort([*(-preference for preference in reversed(request.host_preferences)), room])
    return list(order[np.searchsorted(room[order], pods) :].tolist())


Room = npt.NDArray[np.int32]  # pods that each host id, or each switch, has room for
_MAX_DOMAINS = 64  # of one tier, tried for a place that holds whole multiples and the rest


def place_in_multiples(fabric: Fabric, room: Room, request: PlacementRequest) -> Placement | Refusal:
    """Place a gang as plan() does. The pods that do not fill a multiple are placed too, all on one host.

    That host may have whole multiples, too. room: as for plan(). If all pods fit nowhere, plan() places fewer, in whole
    multiples only, or returns the Refusal. `request.layers` is not read.
    """
    rest = request.pods % request.multiple
    if not rest:
        return plan(fabric, room, request)
    candidates = [
        each
        for each in (
            _place_with_short_last_host(fabric, room, request, rest),
            _place_rest_near(fabric, room, request, rest),
        )
        if each
    ]
    if not candidates:
        return plan(fabric, room, request)
    return min(candidates, key=lambda each: (each.tier, *_switches_used(fabric, request, each)[::-1], len(each.slots)))


def complete_multiples(member_hosts: Iterable[int], multiple: int, pods: int, room: Room) -> list[int]:
    """Return the host ids of pods that complete the multiples that members have begun, one entry for each pod.

    member_hosts: the host id of each member that has a host. multiple: pods of one multiple, >= 1. pods: the largest
    number of entries. room: as for plan(); it is changed: the pods of the result are subtracted.
    """
    hosts: list[int] = []
    for host, count in sorted(Counter(member_hosts).items()):
        missing = min(-count % multiple, pods - len(hosts), int(room[host]))
        room[host] -= missing
        hosts += [host] * missing
    return hosts


def _place_with_short_last_host(fabric: Fabric, room: Room, request: PlacementRequest, rest: int) -> Placement | None:
    """Plan with the pods rounded up to whole multiples, then remove the added pods from the last host in rank order.

    room: as for plan(). rest: the pods that do not fill a multiple, >= 1. None if the rounded-up number of pods does
    not fit.
    """
    surplus = request.multiple - rest
    pods = request.pods + surplus
    placement = plan(fabric, room, replace(request, pods=pods, min_pods=pods, max_pods=max(request.max_pods, pods)))
    if isinstance(placement, Refusal):
        return None
    host, count = placement.slots[-1]
    return placement_of(fabric, [*placement.slots[:-1], (host, count - surplus)], request)


def _place_rest_near(fabric: Fabric, room: Room, request: PlacementRequest, rest: int) -> Placement | None:
    """Place the whole multiples, and then all pods of the rest on one host near them, in the lowest domain in which
    that succeeds.

    The host of the rest may have whole multiples, too. Of each tier the _MAX_DOMAINS domains with the least room are
    tried, then all hosts as one domain. None if nothing fits. room: as for plan(). rest: the pods that do not fill a
    multiple, >= 1.
    """
    for first, end in _domains_with_rest(fabric, room, request):
        domain_room = np.zeros_like(room)
        domain_room[first:end] = room[first:end]
        if (placement := _place_rest(fabric, domain_room, request, rest)) is not None:
            return placement
    return _place_rest(fabric, room, request, rest)


def _domains_with_rest(fabric: Fabric, room: Room, request: PlacementRequest) -> Iterator[tuple[int, int]]:
    """Yield (first host id, last host id + 1) of each domain with room for the request, up to the widest tier allowed.

    It has room for all pods, and room for the whole multiples of the request when the room of each host is rounded down
    to whole multiples.

    room: as for plan(). Lower tiers come first; of one tier, the domains with the least room, at most _MAX_DOMAINS.
    Only domains that contain all anchors are yielded; nothing if an anchor is off the map.
    """
    anchor_hosts = [host for host, _ in request.anchors]
    widest = fabric.tiers if request.widest_tier is None else min(request.widest_tier, fabric.tiers)
    if not len(fabric.hosts) or any(host >= fabric.mapped_count for host in anchor_hosts):
        return
    for tier in range(common_tier(fabric, anchor_hosts), widest + 1):
        units, total = (np.add.reduceat(each, fabric.starts[tier]) for each in (room // request.multiple, room))
        fits = np.flatnonzero((units >= request.pods // request.multiple) & (total >= request.pods))
        if anchor_hosts:
            fits = fits[fits == fabric.switch_of[tier][anchor_hosts[0]]]
        for switch in fits[np.argsort(total[fits], kind="stable")][:_MAX_DOMAINS].tolist():
            yield fabric.span(tier, switch)


def _place_rest(fabric: Fabric, room: Room, request: PlacementRequest, rest: int) -> Placement | None:
    """Place the multiples first, then the rest on the nearest host that has room for it, which may have multiples, too.

    None if one of the two does not fit. room: as for plan(). rest: the pods that do not fill a multiple, >= 1.
    """
    whole_pods = request.pods - rest
    slots: tuple[tuple[int, int], ...] = ()
    room_left = room.copy()
    if whole_pods:
        placement = plan(fabric, room, replace(request, pods=whole_pods, min_pods=whole_pods))
        if isinstance(placement, Refusal):
            return None
        slots = placement.slots
        for host, pods in slots:
            room_left[host] -= pods
    members = tuple(sorted((Counter(dict(request.anchors)) + Counter(dict(slots))).items()))
    rest_placement = plan(
        fabric,
        (room_left // rest).clip(0, 1),
        PlacementRequest(
            1, 1, 1, 1, request.widest_tier, members, request.rule, host_preferences=request.host_preferences
        ),
    )
    if isinstance(rest_placement, Refusal):
        return None
    return placement_of(fabric, [*slots, (rest_placement.slots[0][0], rest)], request)


def placement_of(fabric: Fabric, slots: Iterable[tuple[int, int]], request: PlacementRequest) -> Placement:
    """Return the placement of pods on hosts, in rank order.

    slots: (host id, pods); a host may occur several times, and one with 0 pods is left out. request: its anchors count
    in the tier and in the rank order.
    """
    total = Counter[int]()
    for host, pods in slots:
        total[host] += pods
    counts = sorted((+total).items())
    tier = common_tier(fabric, [*(host for host, _ in request.anchors), *(host for host, _ in counts)])
    return Placement(in_rank_order(fabric, counts, request.anchors), tier, sum(total.values()))


_SHARE_TRIES = 8  # shares tried for one gang; if more are possible, equally spaced ones are tried


def place_balanced(fabric: Fabric, room: Room, request: PlacementRequest) -> Placement | Refusal:
    """Place a gang; if it needs several leaves, keep the largest number of its pods under one leaf as small as
    possible.

    room: as for plan(). The pods of anchors count in their leaf. The gang uses no more leaves, and no more switches of
    all tiers, than the placement without balance, which is the result if no other is found. Of domains of one tier, the
    one that allows the smallest such number is chosen; of equal ones, the domain that the unbalanced placement uses.
    """
    unbalanced = place_in_multiples(fabric, room, request)
    if isinstance(unbalanced, Refusal) or unbalanced.tier < 2:
        return unbalanced
    most_leaves, most_switches = _switches_used(fabric, request, unbalanced)
    span = fabric.span(unbalanced.tier, int(fabric.switch_of[unbalanced.tier][unbalanced.slots[0][0]]))
    max_pods = max(request.max_pods, unbalanced.pods)
    exact_request = replace(request, pods=unbalanced.pods, min_pods=unbalanced.pods, max_pods=max_pods)
    for max_pods_of_leaf in _leaf_limits_to_try(fabric, room, exact_request, unbalanced, most_leaves):
        for first, end in dict.fromkeys((span, (0, len(room)))):
            limited_room = np.zeros_like(room)
            limited_room[first:end] = _limit_leaves(fabric, room, exact_request, max_pods_of_leaf)[first:end]
            balanced_placement = place_in_multiples(fabric, limited_room, exact_request)
            if isinstance(balanced_placement, Refusal) or (balanced_placement.pods, balanced_placement.tier) != (
                unbalanced.pods,
                unbalanced.tier,
            ):
                continue
            leaves, switches = _switches_used(fabric, exact_request, balanced_placement)
            if leaves <= most_leaves and switches <= most_switches:
                return _on_fewest_hosts(fabric, room, exact_request, balanced_placement)
    return unbalanced


def _on_fewest_hosts(fabric: Fabric, room: Room, request: PlacementRequest, placement: Placement) -> Placement:
    """Return a placement with the same number of pods under each leaf, on as few hosts as possible.

    room: as for plan(), with the pods of `placement` not subtracted. Under a leaf whose number of pods is no multiple
    of `request.multiple`, nothing changes.
    """
    pods_under = Counter[int]()
    for host, pods in placement.slots:
        pods_under[int(fabric.switch_of[1][host])] += pods
    packer = DomainPacker(
        RoomByTier(fabric, room // request.multiple, request.host_preferences), [host for host, _ in request.anchors]
    )
    slots = [
        (host, pods) for host, pods in placement.slots if pods_under[int(fabric.switch_of[1][host])] % request.multiple
    ]
    for leaf, pods in sorted(pods_under.items()):
        if pods % request.multiple == 0:
            slots += [
                (host, units * request.multiple) for host, units in packer.fill(1, leaf, pods // request.multiple)
            ]
    return placement_of(fabric, slots, request)


def _pods_by_host(hosts: int, slots: Iterable[tuple[int, int]]) -> npt.NDArray[np.int32]:
    """Return the number of pods on each host id, added up over the slots.

    hosts: the number of hosts. slots: (host id, pods).
    """
    pods_by_host = np.zeros(hosts, np.int32)
    for host, pods in slots:
        pods_by_host[host] += pods
    return pods_by_host


def _switches_used(fabric: Fabric, request: PlacementRequest, placement: Placement) -> tuple[int, int]:
    """Return (leaves, switches of all tiers) that the gang uses, its anchors included."""
    hosts = [host for host, _ in (*request.anchors, *placement.slots)]
    used_switches = [len(np.unique(fabric.switch_of[tier][hosts])) for tier in range(1, fabric.tiers + 1)]
    return used_switches[0], sum(used_switches)


def _leaf_limits_to_try(
    fabric: Fabric, room: Room, request: PlacementRequest, unbalanced: Placement, most_leaves: int
) -> list[int]:
    """Return limits to try, ascending: each is the most pods of the gang that any leaf may get, anchors included.

    The first limit is the least one that some domain allows, the last is below the largest number of pods under a leaf
    in `unbalanced`, the placement without balance. Of many limits about _SHARE_TRIES, equally spaced,
    are returned. [] if no lower limit is possible. room: as for plan(). most_leaves: leaves that the gang may use.
    """
    unit = request.multiple
    anchored = np.add.reduceat(_pods_by_host(len(room), request.anchors), fabric.starts[1])
    planned_pods = np.add.reduceat(_pods_by_host(len(room), unbalanced.slots), fabric.starts[1])
    free = np.add.reduceat(room if request.pods % unit else room // unit * unit, fabric.starts[1])
    largest = int((anchored + planned_pods)[planned_pods > 0].max())
    new_leaves = most_leaves - int((anchored > 0).sum())
    switch_of_leaf = fabric.switch_of[unbalanced.tier][fabric.starts[1]]
    anchor_switch = None if not request.anchors else int(fabric.switch_of[unbalanced.tier][request.anchors[0][0]])
    shares = [share for share in range(1, largest) if share % unit in (0, request.pods % unit)]

    def is_possible(share: int) -> bool:
        """Return True if some domain holds all pods with at most `share` pods of the gang under each leaf.

        Besides the leaves of anchors at most `new_leaves` leaves may be used.
        """
        limited_room = np.minimum(free, (share - anchored).clip(0))
        for switch in np.unique(switch_of_leaf).tolist() if anchor_switch is None else [anchor_switch]:
            is_under = switch_of_leaf == switch
            largest_new = -np.sort(-limited_room[is_under & (anchored == 0)])[:new_leaves]
            if int(largest_new.sum() + limited_room[is_under & (anchored > 0)].sum()) >= request.pods:
                return True
        return False

    possible = shares[bisect_left(shares, True, key=is_possible) :]
    return possible[:: -(-len(possible) // _SHARE_TRIES) or 1]


def _limit_leaves(fabric: Fabric, room: Room, request: PlacementRequest, max_pods_of_leaf: int) -> Room:
    """Return the room in which no leaf can get more pods of the gang than `max_pods_of_leaf`, its anchors included.

    room: as for plan(). The result is a new array. The room of each host is rounded down to whole units. If there is a
    rest, one host of each leaf gets room for it in addition, where room and limit allow.
    """
    unit, rest, leaf_of = request.multiple, request.pods % request.multiple, fabric.switch_of[1]
    anchored = np.add.reduceat(_pods_by_host(len(room), request.anchors), fabric.starts[1])
    max_pods = (max_pods_of_leaf - anchored).clip(0)
    usable = room // unit * unit
    room_before = np.cumsum(usable, dtype=np.int64) - usable
    room_before -= room_before[fabric.starts[1]][leaf_of]
    limited_room: Room = np.clip((max_pods // unit * unit)[leaf_of] - room_before, 0, usable).astype(np.int32)
    if rest:
        pods_left = max_pods - np.add.reduceat(limited_room, fabric.starts[1])
        rest_hosts = np.flatnonzero((room - limited_room >= rest) & (pods_left[leaf_of] >= rest))
        limited_room[rest_hosts[np.unique(leaf_of[rest_hosts], return_index=True)[1]]] += rest
    return limited_room
