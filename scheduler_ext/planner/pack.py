"""Cut a gang into batches and find the domains and switches that hold them.

The room of each shape is known by itself. A domain with enough room for each shape may still fail, because the shapes
use the same hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import GangGroup
from turnout.scheduler_ext.cluster.levels import LabelDomains
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.planner.request import GangRequest, PodBatch, PodsOnRows, RoomOf, counts_for_tier
from turnout.scheduler_ext.planner.seat_units import gaps_of_multiples
from turnout.topology.fabric import Fabric, common_tier
from turnout.topology.place import anchors_refusal


def split_into_batches(request: GangRequest) -> list[PodBatch]:
    """Return the batches of a request in the order in which they are placed.

    First come groups with a host on which a multiple of pods (`Gang.multiple`) is not full yet, then groups of which a
    member holds a host, then large groups. Within a group, shapes with more GPUs per pod come first, after a shape that
    lacks pods of a multiple. Missing members of the request are added to the first batch; growth seats are not
    included. [] if no member waits and none is missing, or if no shape is known.
    """
    groups_by_uid = request.gang.groups_by_uid()
    by_key: dict[tuple[GangGroup | None, PodShape], list[GangMember]] = {}
    for member in request.waiting:
        by_key.setdefault((groups_by_uid.get(member.uid), member.shape), []).append(member)
    gpus = {m.shape: m.gpus for m in (*request.waiting, *(m for m, _ in request.placed_members))}
    if not by_key and request.absent.missing and gpus:
        by_key = {(None, max(gpus, key=lambda s: (gpus[s], s.requests))): []}
    missing = request.absent.missing
    if len(by_key) == 1:
        (((gang_group, shape), members),) = by_key.items()
        return [PodBatch(shape, tuple(members), missing, gang_group, max(gpus[shape], 1))]
    size = Counter[GangGroup | None]()
    for (gang_group, shape), members in by_key.items():
        size[gang_group] += max(gpus[shape], 1) * len(members) if gang_group is not None else 0
    begun, odd = _begun_group_shapes(request, groups_by_uid)

    def turn(key: tuple[GangGroup | None, PodShape]) -> tuple[object, ...]:
        """Return the sort key of a batch: groups with a multiple that is not full, then groups that have begun, then
        large groups, then shapes with many GPUs.
        """
        gang_group, shape = key
        return (
            all(gang_group != other for other, _ in odd),
            key not in odd,
            gang_group not in begun,
            -size[gang_group],
            repr(gang_group),
            key not in odd,
            -gpus[shape],
            -len(by_key[key]),
            shape.requests,
        )

    return [
        PodBatch(shape, tuple(by_key[gang_group, shape]), 0 if at else missing, gang_group, max(gpus[shape], 1))
        for at, (gang_group, shape) in enumerate(sorted(by_key, key=turn))
    ]


def _begun_group_shapes(
    request: GangRequest, groups_by_uid: Mapping[str, GangGroup]
) -> tuple[set[GangGroup], set[tuple[GangGroup | None, PodShape]]]:
    """Return (groups of which a member runs, pairs (group, shape) that lack pods of a multiple on a host).

    groups_by_uid: uid -> group.
    """
    of_members = (groups_by_uid.get(member.uid) for member, _ in request.placed_members)
    begun = {gang_group for gang_group in of_members if gang_group is not None}
    gaps = gaps_of_multiples(request.gang, request.placed_members, groups_by_uid)
    return begun, {(gang_group, shape) for shape, gang_group, _ in gaps}


def nominations_leave_level(fabric: Fabric, request: GangRequest) -> bool:
    """Return True if nominated and placed members together are not in one domain of the gang's level, or of a group's
    level.

    The level or the map may have changed after the nominations were written.
    """
    gang, groups_by_uid = request.gang, request.gang.groups_by_uid()
    hosts = {member.uid: host for member, host in request.placed_members if counts_for_tier(member, gang)} | dict(
        request.nominated_hosts
    )
    of_part: dict[GangGroup, list[int]] = {}
    for uid, host in hosts.items():
        if (gang_group := groups_by_uid.get(uid)) is not None:
            of_part.setdefault(gang_group, []).append(host)
    return anchors_refusal(fabric, gang.tier, list(hosts.values())) is not None or any(
        anchors_refusal(fabric, gang_group.tier, theirs) is not None for gang_group, theirs in of_part.items()
    )


def keep_nominated_hosts(request: GangRequest, batch: PodBatch, room: Rows) -> dict[str, int]:
    """Return uid -> host id of the members of a batch that keep their host: the nominated host, or the host of the last
    plan, if it has room.

    room: by host id. One pod for each returned member is subtracted from it, in place.
    """
    nominated: dict[str, int] = {}
    for member in batch.members:
        host = request.nominated_hosts.get(member.uid)
        if host is not None and room[host] > 0:
            room[host] -= 1
            nominated[member.uid] = host
    return nominated


MAX_TABLE_CELLS = 16_384  # of the table that shares one domain: hosts times pods
MAX_PODS_PER_HOST = 16  # pods of the first shape
_NONE = -(1 << 40)


def domains_with_room(
    fabric: Fabric,
    rooms: Sequence[Rows],
    counts: Sequence[int],
    placed_hosts: Sequence[int],
    widest: int,
    free_sizes: NDArray[np.int64] | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield the host ids [first, end) of the domains with room for each shape by itself.

    The lowest tier comes first, then the tightest domain for the first shape, then the domain with the least free
    amounts on the hosts that have room. rooms: for each shape, pods that each host takes. counts: pods of each shape.
    placed_hosts: hosts of placed members; the domain contains them. widest: the highest tier that is tried. free_sizes:
    how much each host has free; None if unknown. Nothing without a map, or if a placed host is off the map.
    """
    if not fabric.mapped_count or any(host >= fabric.mapped_count for host in placed_hosts):
        return
    free = np.zeros(len(rooms[0]), np.int64) if free_sizes is None else np.where(rooms[0] > 0, free_sizes, 0)
    for tier in range(max(min(1, widest), common_tier(fabric, placed_hosts)), widest + 1):
        starts = fabric.starts[tier]
        sums = [np.add.reduceat(room, starts, dtype=np.int64) for room in rooms]
        fits = np.logical_and.reduce([total >= count for total, count in zip(sums, counts, strict=True)])
        if placed_hosts:
            only = int(fabric.switch_of[tier][placed_hosts[0]])
            fits[:only] = fits[only + 1 :] = False
        at = np.flatnonzero(fits)
        for switch in at[np.lexsort((np.add.reduceat(free, starts)[at], sums[0][at]))].tolist():
            first, end = fabric.span(tier, switch)
            if first < fabric.mapped_count:
                yield first, end


def domains_of_level(
    fabric: Fabric, tier: int, placed_hosts: Sequence[int], room: NDArray[np.int64], min_pods: int
) -> Iterator[tuple[int, int]]:
    """Yield the host ids [first, end) of a level's domains with room for `min_pods` pods, those with most room first.

    placed_hosts: hosts of placed members; the domain contains them. room: pods that each host takes. Nothing if the
    placed members are not in one domain. tier: of the level; a tier above the map counts as its highest.
    """
    if anchors_refusal(fabric, tier, placed_hosts) is not None:
        return
    tier = min(tier, fabric.tiers)
    sums = np.add.reduceat(room, fabric.starts[tier], dtype=np.int64)
    switches = np.flatnonzero(sums >= min_pods)
    switches = switches[np.argsort(-sums[switches], kind="stable")]
    for switch in switches.tolist():
        first, end = fabric.span(tier, switch)
        if first < fabric.mapped_count and all(first <= host < end for host in placed_hosts):
            yield first, end


def label_domains_with_room(request: GangRequest, domains: LabelDomains, room_of: RoomOf) -> list[int]:
    """Return the numbers of the domains with room for at least one pod of the first batch.

    Domains with room for that whole batch come first; in both parts the domain with the least room comes first. If
    members that count for the level hold hosts, only the domain of all these hosts counts. [] if no domain counts, none
    has room, or nothing is to be placed. room_of: the room that the gang may use.
    """
    hosts = [host for member, host in request.placed_members if counts_for_tier(member, request.gang)]
    batches = split_into_batches(request)
    if not batches or not (domains.row_domains >= 0).any():
        return []
    room = np.where(domains.row_domains < 0, 0, room_of(batches[0].shape, ()))
    sums = np.bincount(domains.row_domains.clip(0), weights=room).astype(np.int64)
    if hosts:
        number = domains.number_of(hosts)
        return [number] if number >= 0 and sums[number] else []
    numbers = np.flatnonzero(sums > 0).tolist()
    return sorted(numbers, key=lambda number: (sums[number] < batches[0].pods, sums[number], number))


def share_domain(
    shapes: Sequence[PodShape],
    counts: Sequence[int],
    rooms: Sequence[Rows],
    room_of: Callable[[PodShape, PodsOnRows], Rows],
    span: tuple[int, int],
) -> Rows | None:
    """Return how many pods of the first of two shapes each host takes, so that all pods of both shapes fit.

    None if no such numbers exist, for another number of shapes, for a domain that is too large to try every way, and if
    a host takes more than MAX_PODS_PER_HOST pods of the first shape. counts: pods of each shape. rooms: for each shape,
    the pods that each host takes. room_of: the room beside given pods. span: host ids [first, end) of the domain.
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
    """Return how many of `count` pods each host takes, so that the other shape has the most room.

    None if that room is smaller than `rest`, or if the hosts do not take `count` pods. own: the most pods that each
    host may take, at most `count`. rest_room[k]: the room of the other shape on each host beside k pods. rest: pods of
    the other shape that need room.
    """
    best = np.full(count + 1, _NONE, np.int64)
    best[0] = 0
    steps: list[NDArray[np.int64]] = []
    for host, max_pods in enumerate(own.tolist()):
        ways = np.full((max_pods + 1, count + 1), _NONE, np.int64)
        for pods in range(max_pods + 1):
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


MAX_WAYS = 256  # ways to fill one host with all shapes but the last
_ROOM_STEPS = 40  # to look up the room of a shape beside some pods; add 1 for each host and each of those pods
_TABLE_STEPS = 6  # to take one way of one host into the table; add 1 for every _CELLS_A_STEP cells
_CELLS_A_STEP = 256


@dataclass(frozen=True, slots=True)
class HostFilling:
    """One way to fill a host: how many pods of each shape but the last, and how many of the last fit beside them."""

    pods: tuple[int, ...]  # of each shape but the last
    last_pods: NDArray[np.int64]  # of the last shape, by host of the domain; _NONE on a host that cannot take `pods`


def share_hosts(
    shapes: Sequence[PodShape],
    counts: Sequence[int],
    room_of: RoomOf,
    span: tuple[int, int],
    spend: Callable[[int], None],
    max_steps: int,
) -> list[Rows] | None:
    """Return for each of several shapes how many pods each host takes at most, so that all pods of all shapes fit.

    None if no such numbers exist, if there are more than MAX_WAYS ways to fill a host, or if the search would take more
    than `max_steps`. Otherwise the search is exact: it tries every number of pods of each shape on each host of the
    domain. counts: pods of each shape. room_of: the room beside given pods. span: host ids [first, end) of the domain.
    spend: called with the steps of work.
    """
    first, end = span
    order = sorted(range(len(shapes)), key=lambda at: (counts[at], at))  # the shape with most pods is the last
    ways = _host_fillings([shapes[at] for at in order], [counts[at] for at in order], room_of, span, spend, max_steps)
    cells = prod(counts[at] + 1 for at in order[:-1])
    steps = (_TABLE_STEPS + cells // _CELLS_A_STEP) * len(ways) * (end - first)
    if not ways or steps > max_steps:
        return None
    spend(steps)
    chosen = _choose_fillings(ways, [counts[at] for at in order], end - first)
    if chosen is None:
        return None
    limits = [np.zeros_like(room_of(shape, ())) for shape in shapes]
    for host, way in enumerate(chosen):
        for at, pods in zip(order, (*way.pods, int(way.last_pods[host])), strict=True):
            limits[at][first + host] = pods
    return limits


def _host_fillings(
    shapes: Sequence[PodShape],
    counts: Sequence[int],
    room_of: RoomOf,
    span: tuple[int, int],
    spend: Callable[[int], None],
    max_steps: int,
) -> list[HostFilling]:
    """Return every way to fill a host of the domain: numbers of pods of all shapes but the last, and the hosts that
    take them.

    [] if that takes more than `max_steps`, or if there are more than MAX_WAYS. counts: pods of each shape. room_of: the
    room beside given pods. span: host ids [first, end) of the domain. spend: called with the steps of work.
    """
    first, end = span
    ways: list[HostFilling] = []
    pending: list[tuple[tuple[int, ...], NDArray[np.intp]]] = [((), np.arange(first, end))]
    while pending:
        pods, hosts = pending.pop()
        other_pods = [shape for shape, count in zip(shapes, pods, strict=False) for _ in range(count)]
        steps = _ROOM_STEPS + len(hosts) * (1 + len(other_pods))
        max_steps -= steps
        if max_steps < 0 or len(ways) == MAX_WAYS:
            return []
        spend(steps)
        room = room_of(shapes[len(pods)], [(host, shape) for host in hosts.tolist() for shape in other_pods])
        room = np.minimum(room[hosts], counts[len(pods)])
        if len(pods) < len(shapes) - 1:
            pending += [((*pods, more), hosts[room >= more]) for more in range(int(room.max(initial=0)) + 1)]
            continue
        last_pods = np.full(end - first, _NONE, np.int64)
        last_pods[hosts - first] = room
        ways.append(HostFilling(pods, last_pods))
    return ways


def _choose_fillings(ways: Sequence[HostFilling], counts: Sequence[int], hosts: int) -> list[HostFilling] | None:
    """Return one way for each host so that all pods fit; None if that is not possible.

    counts: pods of each shape. hosts: number of hosts. The table holds, for each number of pods of the first shapes
    placed so far, the most room of the last shape. ways: the ways to fill a host.
    """
    table = np.full([count + 1 for count in counts[:-1]], _NONE, np.int64)
    table[(0,) * table.ndim] = 0
    choices: list[NDArray[np.int16]] = []
    for host in range(hosts):
        best = np.full_like(table, _NONE)
        choice = np.zeros(table.shape, np.int16)
        for at, way in enumerate(ways):
            if way.last_pods[host] < 0:
                continue
            after = tuple(slice(pods, None) for pods in way.pods)
            before = tuple(slice(0, size - pods) for size, pods in zip(table.shape, way.pods, strict=True))
            room = table[before] + way.last_pods[host]
            is_better = room > best[after]
            best[after][is_better] = room[is_better]
            choice[after][is_better] = at
        table = best
        choices.append(choice)
    if table[tuple(counts[:-1])] < counts[-1]:
        return None
    chosen, left = [], tuple(counts[:-1])
    for choice in reversed(choices):
        chosen.append(ways[choice[left]])
        left = tuple(count - pods for count, pods in zip(left, chosen[-1].pods, strict=True))
    return chosen[::-1]


MAX_SEARCH_STEPS = 20_000  # of the search, each a group tried under a switch


def assign_switches(
    sizes: Sequence[int],
    room: Sequence[int],
    fixed: Mapping[int, int],
    exclusive: Sequence[bool],
    steps: int = MAX_SEARCH_STEPS,
) -> list[int] | None:
    """Return a switch for each group so that all groups fit; None if the search finds no such assignment.

    sizes: pods of each group. room: pods that each switch takes. fixed: group -> the switch of its placed members.
    exclusive: True for a group that shares its switch with no other group. steps: how many times a group may be tried
    under a switch. Up to eight groups, every distinct assignment is tried. Groups and switches are indexes.
    """
    search = _SwitchSearch(sizes, list(room), fixed, exclusive, steps)
    return [search.chosen[group] for group in range(len(sizes))] if search.assign(0) else None


class _SwitchSearch:
    """A search with backtracking for a switch of each group: groups with a fixed switch first, then large groups."""

    def __init__(
        self, sizes: Sequence[int], room: list[int], fixed: Mapping[int, int], exclusive: Sequence[bool], steps: int
    ) -> None:
        """Prepare a search. The arguments are those of `assign_switches`; `room` is changed."""
        self.chosen: dict[int, int] = {}  # group -> switch
        self._sizes, self._room, self._fixed, self._exclusive, self._steps = sizes, room, fixed, exclusive, steps
        self._order = sorted(range(len(sizes)), key=lambda group: (group not in fixed, -sizes[group], group))

    def assign(self, position: int) -> bool:
        """Assign the groups from a position in the order on, and store them in `chosen`.

        False if they do not fit, or no step is left; then `chosen` is as before.
        """
        if position == len(self._order):
            return True
        group, tried_states = self._order[position], set[tuple[int, bool]]()
        for switch in self._candidates(group):
            state = (self._room[switch], switch in self.chosen.values())  # of equal switches only one is tried
            if state in tried_states or not self._fits(group, switch):
                continue
            self._steps -= 1
            if self._steps < 0:
                return False
            tried_states.add(state)
            self.chosen[group] = switch
            self._room[switch] -= self._sizes[group]
            if self.assign(position + 1):
                return True
            self._room[switch] += self._sizes[group]
            del self.chosen[group]
        return False

    def _candidates(self, group: int) -> list[int]:
        """Return the switches for a group, the tightest first; only its own switch for a group with a fixed one."""
        if group in self._fixed:
            return [self._fixed[group]]
        return sorted(range(len(self._room)), key=lambda switch: (self._room[switch], switch))

    def _fits(self, group: int, switch: int) -> bool:
        neighbours = [other for other, chosen in self.chosen.items() if chosen == switch]
        is_shared = neighbours and any(self._exclusive[each] for each in (group, *neighbours))
        return self._room[switch] >= self._sizes[group] and not is_shared


def fit_batches(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, span: tuple[int, int]
) -> list[PodBatch] | None:
    """Return the batches, each limited to one switch, so that all fit; None if no such choice was found.

    None also if the batches have several shapes or tiers, because the room of different shapes must not be added.
    room_of: the room that the gang may use. span: host ids [first, end) of the domain.
    """
    groups = [batch.gang_group for batch in batches]
    tier = _common_level(batches)
    if tier is None or not 0 < tier < fabric.tiers:
        return None
    row = fabric.switch_of[tier]
    room, first = room_of(batches[0].shape, ()), int(row[span[0]])
    for rule in {group.rule for group in groups if group is not None} & request.rows_outside_level.keys():
        room[request.rows_outside_level[rule]] = 0
    rooms = [int(room[slice(*fabric.span(tier, switch))].sum()) for switch in range(first, int(row[span[1] - 1]) + 1)]
    index_of, group_of = {group: index for index, group in enumerate(groups)}, request.gang.groups_by_uid()
    fixed = {
        index_of[group]: int(row[host]) - first
        for member, host in request.placed_members
        if (group := group_of.get(member.uid)) in index_of
    }
    if any(not 0 <= switch < len(rooms) for switch in fixed.values()):
        return None
    exclusive = [bool(group and group.exclusive) for group in groups]
    chosen = assign_switches([batch.pods for batch in batches], rooms, fixed, exclusive)
    if chosen is None:
        return None
    return [
        replace(batch, span=fabric.span(tier, first + switch)) for batch, switch in zip(batches, chosen, strict=True)
    ]


def _common_level(batches: Sequence[PodBatch]) -> int | None:
    """Return the tier that all groups require, or None if they require none.

    None also if their tiers or shapes differ, or if a group has several batches.
    """
    groups = [batch.gang_group for batch in batches]
    tiers = {None if group is None else group.tier for group in groups}
    has_one_shape = len({batch.shape for batch in batches}) == 1
    return tiers.pop() if has_one_shape and len(set(groups)) == len(groups) and len(tiers) == 1 else None
