"""Search all assignments of a small gang's pods to hosts, where placing batch after batch has found none.

Placing batch after batch never takes a place back, so it may refuse a gang that has a place: pods of several shapes,
runs of ranks, groups, or multiples on a host. This search takes places back. It ends at the first assignment that keeps
every hard term, or when its steps are spent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import Gang, GangGroup
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.planner.batches import (
    Progress,
    Work,
    count_needed,
    finished_plan,
    separating_tier,
    start_progress,
)
from turnout.scheduler_ext.planner.pack import domains_of_level, domains_with_room
from turnout.scheduler_ext.planner.ranks import missing_ranks, ranks_of
from turnout.scheduler_ext.planner.refusals import refuse_too_few_groups
from turnout.scheduler_ext.planner.request import GangPlan, GangRequest, PodBatch, RoomOf, Seat
from turnout.topology.fabric import Fabric

MAX_PODS = 16  # of a gang that is searched
MAX_HOSTS = 64  # with room for at least one pod, in a domain that is searched
SEARCH_STEPS = 20_000  # steps of work for all domains of one gang
_NODE_STEPS = 40  # for one pod for which hosts are tried
_ROOM_STEPS = 60  # for the room of one shape beside some pods, on all hosts

Key = tuple[str, int, object]  # (kind, tier, which): pods of one key are under one switch of the tier
_RUN, _GROUP = "run", "group"
GroupShape = tuple[GangGroup | None, int]  # (group, index of the shape): pods that are counted together for multiples


@dataclass(frozen=True, slots=True)
class _Pod:
    """A pod that needs a host."""

    member: GangMember | None  # None for a member that does not exist yet
    rank: int  # in the gang
    shape: int  # the index of its shape
    group: GangGroup | None  # None without a group
    keys: tuple[Key, ...]  # of its group's level and its runs of ranks

    def is_like(self, other: _Pod) -> bool:
        """Return True if the two pods may change places."""
        return (self.shape, self.group, self.keys) == (other.shape, other.group, other.keys)


@dataclass(slots=True)
class _Assignment:
    """The hosts of the pods that were placed so far, and what is on each host."""

    shape_count: int  # the number of different shapes
    chosen: list[int | None] = field(default_factory=list)  # the host of each pod so far; None: it has no place
    shapes_on_host: dict[int, tuple[int, ...]] = field(default_factory=dict)  # host -> pods of each shape
    # key -> hosts of its pods, and of members that hold hosts already
    hosts_of_key: dict[Key, list[int]] = field(default_factory=dict)
    hosts_of_group: dict[GangGroup, list[int]] = field(default_factory=dict)  # the same by group

    def clear(self) -> None:
        """Forget the pods that were placed. Members that hold hosts already stay."""
        self.chosen.clear()
        self.shapes_on_host.clear()

    def put(self, pod: _Pod, host: int) -> None:
        """Store that the next pod has this host."""
        self.chosen.append(host)
        counts = list(self.shapes_on_host.get(host, (0,) * self.shape_count))
        counts[pod.shape] += 1
        self.shapes_on_host[host] = tuple(counts)
        for key in pod.keys:
            self.hosts_of_key.setdefault(key, []).append(host)
        if pod.group is not None:
            self.hosts_of_group.setdefault(pod.group, []).append(host)

    def take_back(self, pod: _Pod, host: int) -> None:
        """Undo `put` for the pod that was placed last."""
        self.chosen.pop()
        counts = list(self.shapes_on_host[host])
        counts[pod.shape] -= 1
        if any(counts):
            self.shapes_on_host[host] = tuple(counts)
        else:
            del self.shapes_on_host[host]
        for key in pod.keys:
            self.hosts_of_key[key].pop()
        if pod.group is not None:
            self.hosts_of_group[pod.group].pop()


@dataclass(slots=True)
class _PlaceSearch:
    """A search, with the facts that it has computed."""

    fabric: Fabric
    request: GangRequest
    batches: Sequence[PodBatch]
    room_of: RoomOf
    work: Work
    needed_pods: int  # that must find a host
    shapes: list[PodShape]  # the different shapes of the batches
    assignment: _Assignment
    pods: list[_Pod] = field(default_factory=list)
    hosts: list[int] = field(default_factory=list)  # candidates, in host order
    rooms: dict[tuple[int, tuple[int, ...]], NDArray[np.int32]] = field(default_factory=dict)
    failed_states: set[object] = field(default_factory=set)
    keys_of_remaining: list[tuple[Key, ...]] = field(default_factory=list)  # the keys of the pods from each position on
    running_pods: Counter[tuple[GangGroup | None, int, int]] = field(default_factory=Counter)  # (group, shape, host)
    every_choice_counts: bool = False  # True if a term is about the sum of pods that have a place

    def run(self, hosts: Sequence[int]) -> bool:
        """Search places on these host ids, and store them in `assignment`.

        Return False if there are none, or the work is spent.
        """
        self.hosts = list(hosts)
        self.assignment.clear()
        self.rooms.clear()
        self.failed_states.clear()
        return self._assign(0)

    def _assign(self, placed_pods: int) -> bool:
        """Find hosts for all pods from the next one on, and store them in `assignment`.

        False if there are none, or no step is left.

        placed_pods: how many pods before the next one have a host.
        """
        at = len(self.assignment.chosen)
        if placed_pods + len(self.pods) - at < self.needed_pods or self.work.steps_left <= 0:
            return False
        if at == len(self.pods):
            return self._keeps_terms_of_totals()
        if (state := self._state(placed_pods)) in self.failed_states:
            return False
        pod = self.pods[at]
        self.work.spend(_NODE_STEPS)
        for host in self._hosts_for(pod):
            self.assignment.put(pod, host)
            if self._assign(placed_pods + 1):
                return True
            self.assignment.take_back(pod, host)
        if self._may_be_left_out(pod):
            self.assignment.chosen.append(None)
            if self._assign(placed_pods):
                return True
            self.assignment.chosen.pop()
        self.failed_states.add(state)
        return False

    def _state(self, placed_pods: int) -> object:
        """Return a key of the search state: with equal keys the remaining pods find hosts in both states or in none.

        placed_pods: how many pods have a host so far.
        """
        chosen, on_hosts = self.assignment.chosen, frozenset(self.assignment.shapes_on_host.items())
        at = len(chosen)
        switches = tuple(self._switch_of(key) for key in self.keys_of_remaining[at])
        last = chosen[-1] if at and self.pods[at].is_like(self.pods[at - 1]) else -1
        left_out = at > 0 and chosen[-1] is None and self.pods[at].group == self.pods[at - 1].group
        every_choice = tuple(chosen) if self.every_choice_counts else ()
        return at, placed_pods, on_hosts, switches, last, left_out, every_choice

    def _hosts_for(self, pod: _Pod) -> Iterator[int]:
        """Yield the host ids that may take a pod, ascending. Of like pods the later one has no earlier host."""
        chosen = self.assignment.chosen
        at = len(chosen)
        before = self.pods[at - 1] if at else None
        is_like_before = before is not None and pod.is_like(before)
        is_begun = before is not None and before.group == pod.group and pod.group is not None
        is_bound = is_like_before or (is_begun and pod.group is not None and pod.group.all_or_nothing)
        if is_bound and chosen[-1] is None:  # like pods, and those of a whole group, stay without a host, too
            return
        first = (chosen[-1] or 0) if is_like_before else 0
        switches = [(self.fabric.switch_of[key[1]], self._switch_of(key)) for key in pod.keys]
        mask = None if pod.group is None else self.request.rows_outside_level.get(pod.group.rule)
        for host in self.hosts:
            if host < first or any(switch is not None and row[host] != switch for row, switch in switches):
                continue
            if (mask is None or not mask[host]) and self._room(host, pod.shape) > 0 and self._is_apart(pod, host):
                yield host

    def _room(self, host: int, shape: int) -> int:
        """Return how many more pods of a shape a host takes beside the pods placed so far. shape: index.

        Counts steps of work.
        """
        counts = self.assignment.shapes_on_host.get(host, (0,) * len(self.shapes))
        if (rows := self.rooms.get((shape, counts))) is None:
            self.work.spend(_ROOM_STEPS + 2 * len(self.hosts) * sum(counts))
            present_pods = [
                (each, self.shapes[at]) for at, pods in enumerate(counts) for each in self.hosts for _ in range(pods)
            ]
            rows = self.rooms[shape, counts] = self.room_of(self.shapes[shape], present_pods)
        return int(rows[host])

    def _switch_of(self, key: Key) -> int | None:
        hosts = self.assignment.hosts_of_key.get(key)
        return int(self.fabric.switch_of[key[1]][hosts[0]]) if hosts else None

    def _is_apart(self, pod: _Pod, host: int) -> bool:
        """Return True if no exclusive group shares its switch with another group, once the pod is on the host.

        True also for a pod without a group.
        """
        group = pod.group
        if group is None or not any(each.exclusive for each in (group, *self.assignment.hosts_of_group)):
            return True
        for other, hosts in self.assignment.hosts_of_group.items():
            if other != group and hosts and (group.exclusive or other.exclusive):
                row = self.fabric.switch_of[min(separating_tier(group, other), self.fabric.tiers)]
                if int(row[host]) in {int(row[each]) for each in hosts}:
                    return False
        return True

    def _may_be_left_out(self, pod: _Pod) -> bool:
        """Return True if a pod may stay without a host. The pods of a whole group do so together."""
        chosen = self.assignment.chosen
        at = len(chosen)
        if pod.group is None or not pod.group.all_or_nothing:
            return True
        is_first = at == 0 or self.pods[at - 1].group != pod.group
        return is_first or chosen[-1] is None

    def _keeps_terms_of_totals(self) -> bool:
        """Return True if the complete assignment keeps the terms about totals: min by role, multiples, and groups."""
        gang, chosen = self.request.gang, self.assignment.chosen
        return (
            reaches_min_by_role(gang, self.pods, chosen)
            and keeps_multiples(gang.multiple, self.pods, chosen, self.running_pods)
            and self._reaches_groups()
        )

    def _reaches_groups(self) -> bool:
        """Return True if as many groups of each rule have a place for all pods as must start."""
        with_place, pods = Counter[object](), Counter[object]()
        for pod, host in zip(self.pods, self.assignment.chosen, strict=True):
            pods[pod.group, pod.shape] += 1
            with_place[pod.group, pod.shape] += host is not None
        full: Counter[GangGroup | None] = Counter()
        for group, shape in {(pod.group, pod.shape) for pod in self.pods}:
            full[group] += with_place[group, shape] == pods[group, shape]
        return refuse_too_few_groups(self.request, self.batches, full) is None


def reaches_min_by_role(gang: Gang, pods: Sequence[_Pod], chosen: Sequence[int | None]) -> bool:
    """Return True if of each role enough pods run or have a place: its min, or all its existing pods if there are
    fewer.

    Members that do not exist do not count. True for a gang without mins by role. chosen: the host of each pod; None: it
    has no place.
    """
    min_by_role = gang.min_by_role
    if not min_by_role:
        return True
    without = Counter(
        pod.member.membership.role
        for pod, host in zip(pods, chosen, strict=True)
        if pod.member is not None and host is None
    )
    present = Counter(member.membership.role for member in gang.living())
    return all(present[role] - without[role] >= min(min_pods, present[role]) for role, min_pods in min_by_role)


def keeps_multiples(
    multiple: int,
    pods: Sequence[_Pod],
    chosen: Sequence[int | None],
    running_pods: Counter[tuple[GangGroup | None, int, int]],
) -> bool:
    """Return True if, for each shape and group, all hosts but one take a multiple of pods.

    The one host may take the remainder of all its pods. If running members already occupy several hosts without a
    full multiple, as many such hosts may stay. multiple: of pods on one host, >= 1. chosen: the host of each pod; None:
    it has no place. running_pods: (group, shape, host) -> members that hold hosts already.
    """
    if multiple == 1:
        return True
    total, counts = Counter[GroupShape](), running_pods.copy()
    for pod, host in zip(pods, chosen, strict=True):
        total[pod.group, pod.shape] += 1
        if host is not None:
            counts[pod.group, pod.shape, host] += 1
    odd_hosts, odd_before, with_place = Counter[GroupShape](), Counter[GroupShape](), Counter[GroupShape]()
    for (group, shape, host), count in counts.items():
        running = running_pods[group, shape, host]
        odd_hosts[group, shape] += count % multiple != 0
        odd_before[group, shape] += running % multiple != 0
        with_place[group, shape] += count
        total[group, shape] += running
    return all(
        odd_hosts[group_shape] <= max(total[group_shape] % multiple != 0, odd_before[group_shape])
        and with_place[group_shape] % multiple in (0, total[group_shape] % multiple)
        for group_shape in total
    )


def search_places(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan | None:
    """Search a plan that keeps every hard term, and return it; None if there is none.

    None, too, if neither the gang's min nor a min of a role needs a further pod, if more than MAX_PODS pods are to be
    placed, or if the steps are spent. Domains with more than MAX_HOSTS usable hosts are not searched. A gang of one
    shape without runs of ranks, groups or multiples is not searched: placing batch after batch is enough for it.
    batches: as split_into_batches() returns them. room_of: the room that the gang may use. work: limits the steps, and
    counts them.
    """
    gang, pods = request.gang, sum(batch.pods for batch in batches)
    needed_pods = count_needed(request, batches)
    progress = start_progress(request)
    needs_no_search = len(batches) == 1 and gang.multiple == 1 and not gang.layers and not gang.terms.group_rules
    needs_roles = any(progress.roles[role] < min_pods for role, min_pods in gang.min_by_role)
    if needs_no_search or not (needed_pods or needs_roles) or pods > MAX_PODS:
        return None
    own_work = Work(min(SEARCH_STEPS, max(0, work.steps_left)))
    shapes = list(dict.fromkeys(batch.shape for batch in batches))
    assignment = _Assignment(len(shapes))
    search = _PlaceSearch(fabric, request, batches, room_of, own_work, needed_pods, shapes, assignment)
    ranks, bases = ranks_of([*request.waiting, *(member for member, _ in request.placed_members)])
    search.pods = _pods(request, batches, ranks, shapes, fabric.tiers)
    search.keys_of_remaining = [
        tuple(dict.fromkeys(key for pod in search.pods[at:] for key in pod.keys)) for at in range(len(search.pods))
    ]
    has_sums = any(rule.min_groups or rule.exclusive for rule in gang.terms.group_rules)
    search.every_choice_counts = gang.multiple > 1 or bool(gang.min_by_role) or has_sums
    _put_placed_members(search, ranks)
    rooms = [room_of(shape, ()) for shape in shapes]
    own_work.spend(len(rooms) * _ROOM_STEPS)
    is_found = any(search.run(hosts) for hosts in _hosts_of_domains(search, rooms))
    work.spend(own_work.spent_steps)  # so that a tenant's gangs pay for it
    if not is_found:
        return None
    _seat(search, progress)
    return finished_plan(fabric, request, progress, ranks, bases)


def _hosts_of_domains(search: _PlaceSearch, rooms: Sequence[NDArray[np.int32]]) -> Iterator[list[int]]:
    """Yield the ids of the usable hosts of each domain with at most MAX_HOSTS of them.

    A host is usable if a pod of any shape fits. rooms: for each shape, how many pods fit on each host.
    """
    usable = np.logical_or.reduce([room > 0 for room in rooms])
    for first, end in _domains(search, rooms):
        hosts = np.flatnonzero(usable[first:end]) + first
        if len(hosts) <= MAX_HOSTS:
            yield hosts.tolist()


def _pods(
    request: GangRequest, batches: Sequence[PodBatch], ranks: dict[str, int], shapes: Sequence[PodShape], tiers: int
) -> list[_Pod]:
    """Return the pods that need a host, members that do not exist yet included.

    They are sorted by group (in the order of the batches), in a group by run of ranks, in a run by shape. ranks: uid ->
    rank. shapes: the different shapes of the batches. tiers: number of tiers of the fabric; a group or run with a
    higher tier counts as one of this tier.
    """
    found: list[_Pod] = []
    layers = () if request.gang.terms.group_rules else request.gang.layers
    order: dict[GangGroup | None, int] = {}
    for batch in batches:
        group, shape = batch.gang_group, shapes.index(batch.shape)
        order.setdefault(group, len(order))
        level: tuple[Key, ...] = ()
        if group is not None and group.tier is not None:
            level = ((_GROUP, min(group.tier, tiers), group),)
        missing = missing_ranks(ranks, batch.missing_pods)
        for member, rank in [*((member, ranks[member.uid]) for member in batch.members), *((None, r) for r in missing)]:
            runs: tuple[Key, ...] = tuple((_RUN, min(tier, tiers), (size, rank // size)) for tier, size in layers)
            found.append(_Pod(member, rank, shape, group, level + runs))
    return sorted(found, key=lambda pod: (order[pod.group], *(key[2] for key in pod.keys if key[0] == _RUN), pod.shape))


def _put_placed_members(search: _PlaceSearch, ranks: dict[str, int]) -> None:
    """Store which switch each group and run of ranks must use, because members of it hold hosts there.

    ranks: uid -> rank.
    """
    request, fabric, assignment = search.request, search.fabric, search.assignment
    group_of = request.gang.groups_by_uid()
    layers = () if request.gang.terms.group_rules else request.gang.layers
    for member, host in request.placed_members:
        group = group_of.get(member.uid)
        if member.shape in search.shapes:
            search.running_pods[group, search.shapes.index(member.shape), host] += 1
        if group is not None:
            assignment.hosts_of_group.setdefault(group, []).append(host)
            if group.tier is not None:
                assignment.hosts_of_key.setdefault((_GROUP, min(group.tier, fabric.tiers), group), []).append(host)
        for tier, size in layers:
            key = (_RUN, min(tier, fabric.tiers), (size, ranks[member.uid] // size))
            assignment.hosts_of_key.setdefault(key, []).append(host)


def _domains(search: _PlaceSearch, rooms: Sequence[NDArray[np.int32]]) -> Iterator[tuple[int, int]]:
    """Yield the host ids [first, end) of the domains to search.

    With a level: the domains of the level. Without a level: domains with room, the lowest first, then all hosts. rooms:
    for each shape, how many pods fit on each host.
    """
    fabric, request = search.fabric, search.request
    placed_hosts = [host for _, host in request.placed_members]
    if request.gang.tier is not None:
        total: NDArray[np.int64] = np.stack(rooms).sum(axis=0, dtype=np.int64)
        yield from domains_of_level(fabric, request.gang.tier, placed_hosts, total, search.needed_pods)
        return
    counts = [sum(batch.pods for batch in search.batches if batch.shape == shape) for shape in search.shapes]
    yield from domains_with_room(fabric, rooms, counts, placed_hosts, fabric.tiers)
    yield 0, len(fabric.hosts)


def _seat(search: _PlaceSearch, progress: Progress) -> None:
    """Add the places that the search has found to `progress`."""
    for pod, host in zip(search.pods, search.assignment.chosen, strict=True):
        if host is None:
            continue
        progress.placed_hosts.append(host)
        if pod.member is None:
            progress.open_seats.append(Seat(host, search.shapes[pod.shape], pod.rank))
        else:
            progress.hosts[pod.member.uid] = host
