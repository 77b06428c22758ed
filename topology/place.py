"""Place a whole gang, at once or in multiples of pods a host: a pure function of fabric, room and request.

Preferences, most important first (docs/design.md 3):

1. never outside the widest tier allowed;
2. hosts of the map before others;
3. the lowest domain that holds the gang;
4. the fewest switches in it (packing.py);
5. room to grow to the most;
6. the tightest such domain;
7. the fewest hosts;
8. the hosts with the greatest merits, where the asker gives some (before the switches above are compared in 6): the
   scheduler extender says which hosts the pods like, then which have least free beside whole pods;
9. fabric order.

rank_order.py assigns the ranks.

Pods that need not be near each other fill the smallest holes, wherever those are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric, common_tier, only_tiers
from turnout.topology.model import Ask, DistanceRule, Placement, Refusal, RefusalReason
from turnout.topology.packing import Slots, Spread, Sums, pick
from turnout.topology.rank_order import ranks


def plan(fabric: Fabric, room: npt.NDArray[np.int32], ask: Ask) -> Placement | Refusal:
    """Place a gang, or give the reason why not. Raises nothing.

    room: how many pods of the gang's shape each host id holds, 0 or more, with the anchors' pods already subtracted.

    A required tier counts mapped hosts only. Where `pods` fit nowhere, as many as fit are placed, if they are `least`
    and at least one. Pods that do not fill a whole multiple are left out.
    """
    required = ask.widest_tier is not None
    anchors = [host for host, _ in ask.anchors]
    wrong = beyond(fabric, ask.widest_tier, anchors)
    if wrong is not None:
        return wrong
    units = room if ask.multiple == 1 else room // ask.multiple
    rooms = [_mapped_only(fabric, units)]
    if not required and fabric.mapped_count < len(fabric.hosts):
        rooms.append(units)
    slots = _search(_by_distance_rule(fabric, ask), rooms, ask, anchors)
    if not slots:
        return _refusal(rooms[-1], ask)
    slots = [(host, pods * ask.multiple) for host, pods in slots]
    pods = sum(pods for _, pods in slots)
    tier = common_tier(fabric, [*anchors, *(host for host, _ in slots)])
    return Placement(ranks(fabric, sorted(slots), ask.anchors), tier, pods)


def beyond(fabric: Fabric, widest_tier: int | None, hosts: Sequence[int]) -> Refusal | None:
    """Return the reason why members on some hosts are in no domain of a required tier; None where they are in one.

    widest_tier: None where no tier is required.
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
            RefusalReason.OFF_MAP, f"members run under one tier {tier} switch, allowed is tier {widest_tier}"
        )
    return None


def _mapped_only(fabric: Fabric, units: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the room with 0 on hosts that are not in the map. units: pods per host."""
    if fabric.mapped_count == len(fabric.hosts):
        return units
    units = units.copy()
    units[fabric.mapped_count :] = 0
    return units


def _by_distance_rule(fabric: Fabric, ask: Ask) -> tuple[Fabric, int]:
    """Return the fabric as the rule sees it, and the widest tier of it that the gang may use."""
    widest = fabric.tiers if ask.widest_tier is None else min(ask.widest_tier, fabric.tiers)
    if ask.rule is DistanceRule.ALL_TIERS:
        return fabric, widest
    tiers = tuple(sorted({1, max(widest, 1), fabric.tiers}))
    return _with_tiers(fabric, tiers), tiers.index(widest) + 1 if widest else 0


_with_tiers = lru_cache(maxsize=2)(only_tiers)


def _search(
    ruled_fabric: tuple[Fabric, int], rooms: list[npt.NDArray[np.int32]], ask: Ask, anchors: list[int]
) -> Slots:
    """Return (host, pods) for all pods, else for as many as fit, else nothing.

    Pods are counted in multiples of `ask.multiple`. ruled_fabric: the fabric, and the widest tier allowed. rooms:
    multiples per host, first on mapped hosts only, then on all hosts if the ask allows them. anchors: hosts of placed
    members.
    """
    fabric, widest = ruled_fabric
    pods, least, most = ask.pods // ask.multiple, -(-ask.least // ask.multiple), -(-ask.most // ask.multiple)
    if not len(fabric.hosts) or not 0 < pods >= least:
        return []
    sums = Sums(fabric, rooms[0], ask.merits)
    found = _place_all(sums, pods, most, widest, anchors)
    if found is None and len(rooms) > 1:
        sums = Sums(fabric, rooms[1], ask.merits)
        found = _place_on_unmapped_hosts(sums, pods, most, anchors)
    if found is not None:
        return found
    domain_room = sums.of(widest)
    fitting = int(domain_room[fabric.switch_of[widest][anchors[0]]] if anchors else domain_room.max())
    return (_place_all(sums, fitting, most, widest, anchors) or []) if fitting >= max(least, 1) else []


def _place_all(sums: Sums, pods: int, most: int, widest: int, anchors: list[int]) -> Slots | None:
    """Return (host, pods) for all pods in the lowest domain that holds them; None if no domain does.

    most: pods that the gang may grow to, which decides between equal domains. widest: the highest tier tried. anchors:
    hosts of placed members, which the domain contains.
    """
    if anchors:
        return _place_near_anchors(sums, pods, widest, anchors)
    for tier in range(widest + 1):
        room = sums.of(tier)
        fits = np.flatnonzero(room >= pods)
        if not len(fits):
            continue
        spread = Spread(sums)
        fits = spread.cheapest(tier, fits, pods)
        return spread.fill(tier, sums.tightest(tier, fits, pods, most), pods)
    return None


def _place_near_anchors(sums: Sums, pods: int, widest: int, anchors: list[int]) -> Slots | None:
    """Place pods under the lowest switch that covers all anchors and has room.

    None if no switch up to tier `widest` has room. anchors: hosts of the members that are placed already.
    """
    fabric = sums.fabric
    for tier in range(common_tier(fabric, anchors), widest + 1):
        switch = int(fabric.switch_of[tier][anchors[0]])
        if sums.of(tier)[switch] >= pods:
            return Spread(sums, anchors).fill(tier, switch, pods)
    return None


def _place_on_unmapped_hosts(sums: Sums, pods: int, most: int, anchors: list[int]) -> Slots | None:
    """Return hosts for all pods where hosts off the map are used, too; None where the room is too small.

    One host off the map takes all pods if it can; with anchors it must be one of theirs. Otherwise the map's hosts take
    what they hold, and the fewest others take the rest, the anchors' hosts first.
    """
    fabric, known = sums.fabric, sums.fabric.mapped_count
    room = sums.of(0)
    if anchors:
        if len(set(anchors)) == 1 and room[anchors[0]] >= pods:
            return [(anchors[0], pods)]
    elif len(fits := np.flatnonzero(room >= pods)):
        return [(sums.tightest(0, fits, pods, most), pods)]
    rest = pods - int(room[:known].sum())
    if int(room[known:].sum()) < rest:
        return None
    slots = [(host, int(room[host])) for host in np.flatnonzero(room[:known]).tolist()]
    theirs = sorted({host for host in anchors if host >= known})
    others = [host for host in range(known, len(fabric.hosts)) if host not in theirs]
    merits = sums.merits(0)
    for hosts in (theirs, others):
        hosts.sort(key=lambda host: [-int(merit[host]) for merit in merits])
        holes = room[hosts].tolist()
        share = min(rest, sum(holes))
        slots += [(hosts[at], pods_taken) for at, pods_taken in pick(holes, share)]
        rest -= share
    return slots


def _refusal(units: npt.NDArray[np.int32], ask: Ask) -> Refusal:
    """Return why a gang has no place: no narrow enough switch has room, or all hosts together have too little.

    units: room of each host, in multiples.
    """
    least = max(ask.least, 1)
    total = int(units.sum()) * ask.multiple
    in_multiples = f" in multiples of {ask.multiple}" if ask.multiple > 1 else ""
    if ask.widest_tier is not None and total >= least and ask.pods // ask.multiple * ask.multiple >= least:
        where = f"no switch of tier {ask.widest_tier} or below holds {least} pods{in_multiples}"
        return Refusal(RefusalReason.TIER_TOO_NARROW, where, total)
    return Refusal(RefusalReason.NO_ROOM, f"{least} pods must start together{in_multiples}, {total} find room", total)


def smallest_holes(fabric: Fabric, room: npt.NDArray[np.int32], ask: Ask) -> Placement | Refusal:
    """Place as many pods as fit, at least `ask.least`, in the smallest holes of all hosts.

    `ask.multiple` counts; `ask.widest_tier` and `ask.layers` do not.
    """
    usable = room // ask.multiple * ask.multiple
    order = np.lexsort([*(-merit for merit in reversed(ask.merits)), usable])
    slots: list[tuple[int, int]] = []
    left = ask.pods
    for host in order[np.searchsorted(usable[order], 1) :].tolist():
        slots.append((host, min(left, int(usable[host]))))
        left -= slots[-1][1]
        if not left:
            break
    pods = ask.pods - left
    if pods < max(ask.least, 1):
        return Refusal(RefusalReason.NO_ROOM, f"{max(ask.least, 1)} pods must start together, {pods} find room", pods)
    hosts = [host for host, _ in slots]
    tier = common_tier(fabric, [*(host for host, _ in ask.anchors), *hosts])
    return Placement(tuple(sorted(slots)), tier, pods)


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
    if not found:
        return plan(fabric, room, ask)
    return min(found, key=lambda each: (each.tier, *_switches_used(fabric, ask, each)[::-1], len(each.slots)))


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
    """Place the multiples first, then the rest on the nearest host with room. None if one of the two does not fit."""
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
        fabric,
        (left // rest).clip(0, 1),
        Ask(1, 1, 1, 1, ask.widest_tier, members, ask.rule, merits=ask.merits),
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


_SHARE_TRIES = 8  # shares tried for one gang; of more possible shares every second, third ... is tried


def balanced(fabric: Fabric, room: Room, ask: Ask) -> Placement | Refusal:
    """Place a gang; where it needs several leaves, give none more than the least share that its switches allow.

    room: as for plan(). Members that hold a host count in the share of their leaf. No more leaves, and no more switches
    in all, are used than without equal shares. Of domains of one tier the one with the least share is chosen, then the
    domain without equal shares.
    """
    found = in_multiples(fabric, room, ask)
    if isinstance(found, Refusal) or found.tier < 2:
        return found
    most_leaves, most_switches = _switches_used(fabric, ask, found)
    span = fabric.span(found.tier, int(fabric.switch_of[found.tier][found.slots[0][0]]))
    request = replace(ask, pods=found.pods, least=found.pods, most=max(ask.most, found.pods))
    for share in _shares(fabric, room, request, found, most_leaves):
        for first, end in dict.fromkeys((span, (0, len(room)))):
            limited = np.zeros_like(room)
            limited[first:end] = _limit_leaves(fabric, room, request, share)[first:end]
            even = in_multiples(fabric, limited, request)
            if isinstance(even, Refusal) or (even.pods, even.tier) != (found.pods, found.tier):
                continue
            leaves, switches = _switches_used(fabric, ask, even)
            if leaves <= most_leaves and switches <= most_switches:
                return _on_fewest_hosts(fabric, room, request, even)
    return found


def _on_fewest_hosts(fabric: Fabric, room: Room, ask: Ask, placement: Placement) -> Placement:
    """Choose the hosts of a placement again, with the same number of pods under each leaf. room: as for plan()."""
    pods_under = Counter[int]()
    for host, pods in placement.slots:
        pods_under[int(fabric.switch_of[1][host])] += pods
    spread = Spread(Sums(fabric, room // ask.multiple, ask.merits), [host for host, _ in ask.anchors])
    slots = [
        (host, pods) for host, pods in placement.slots if pods_under[int(fabric.switch_of[1][host])] % ask.multiple
    ]
    for leaf, pods in sorted(pods_under.items()):
        if pods % ask.multiple == 0:
            slots += [(host, units * ask.multiple) for host, units in spread.fill(1, leaf, pods // ask.multiple)]
    return gathered(fabric, slots, ask)


def _pods_by_host(hosts: int, slots: Iterable[tuple[int, int]]) -> Room:
    """Return the pods of each host id. slots: (host, pods)."""
    pods_by_host = np.zeros(hosts, np.int32)
    for host, pods in slots:
        pods_by_host[host] += pods
    return pods_by_host


def _switches_used(fabric: Fabric, ask: Ask, placement: Placement) -> tuple[int, int]:
    """Return how many leaves, and how many switches of all tiers, the gang uses with its anchors."""
    hosts = [host for host, _ in (*ask.anchors, *placement.slots)]
    used = [len(np.unique(fabric.switch_of[tier][hosts])) for tier in range(1, fabric.tiers + 1)]
    return used[0], sum(used)


def _shares(fabric: Fabric, room: Room, ask: Ask, found: Placement, most_leaves: int) -> list[int]:
    """Return the shares of a leaf to try, ascending: from the least that some domain allows, below that of `found`."""
    unit = ask.multiple
    anchored = np.add.reduceat(_pods_by_host(len(room), ask.anchors), fabric.starts[1])
    planned_pods = np.add.reduceat(_pods_by_host(len(room), found.slots), fabric.starts[1])
    free = np.add.reduceat(room if ask.pods % unit else room // unit * unit, fabric.starts[1])
    largest = int((anchored + planned_pods)[planned_pods > 0].max())
    new_leaves = most_leaves - int((anchored > 0).sum())
    switch_of_leaf = fabric.switch_of[found.tier][fabric.starts[1]]
    anchor_switch = None if not ask.anchors else int(fabric.switch_of[found.tier][ask.anchors[0][0]])
    shares = [share for share in range(1, largest) if share % unit in (0, ask.pods % unit)]

    def is_possible(share: int) -> bool:
        """Return True if some domain holds all pods on so many leaves, each with this share at most."""
        limited = np.minimum(free, (share - anchored).clip(0))
        for switch in np.unique(switch_of_leaf).tolist() if anchor_switch is None else [anchor_switch]:
            own = switch_of_leaf == switch
            largest_new = -np.sort(-limited[own & (anchored == 0)])[:new_leaves]
            if int(largest_new.sum() + limited[own & (anchored > 0)].sum()) >= ask.pods:
                return True
        return False

    possible = shares[bisect_left(shares, True, key=is_possible) :]
    return possible[:: -(-len(possible) // _SHARE_TRIES) or 1]


def _limit_leaves(fabric: Fabric, room: Room, ask: Ask, share: int) -> Room:
    """Return the room in which no leaf has more pods than a share, the anchors' pods included.

    Beside whole multiples there is room for the gang's rest on one host of each leaf, as far as the share allows.
    """
    unit, rest, leaf_of = ask.multiple, ask.pods % ask.multiple, fabric.switch_of[1]
    anchored = np.add.reduceat(_pods_by_host(len(room), ask.anchors), fabric.starts[1])
    most = (share - anchored).clip(0)
    usable = room // unit * unit
    before = np.cumsum(usable, dtype=np.int64) - usable
    before -= before[fabric.starts[1]][leaf_of]
    limited: Room = np.clip((most // unit * unit)[leaf_of] - before, 0, usable).astype(np.int32)
    if rest:
        left = most - np.add.reduceat(limited, fabric.starts[1])
        wide = np.flatnonzero((room - limited >= rest) & (left[leaf_of] >= rest))
        limited[wide[np.unique(leaf_of[wide], return_index=True)[1]]] += rest
    return limited
