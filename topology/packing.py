"""Spread a number of pods over one domain so that the fewest switches are used, all tiers counted.

The price of a placement is the number of switches that it uses, because a ring of ranks leaves each used switch once.
Under a spine that is the number of leaves. Above the spines, leaves and spines are counted together: fewer leaves in
more spines can cost the ring more. Switches that hold members of the gang already cost nothing, so the other pods are
placed near them. The room of a tier is summed on first use. `place.py` chooses the domain.

A hole is the free room of a child of a switch: of a host under a leaf, or of a leaf under a spine. Few holes are used,
so that large holes stay free. Holes of equal room are compared further: by the number of hosts that the pods use, then
by the preferences of the PlacementRequest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from turnout.topology.fabric import Fabric

Counts = npt.NDArray[np.signedinteger]  # whole numbers: amounts of pods or hosts, or the numbers that name switches


class RoomByTier:
    """The free room of every host and switch, in pods of one shape. The room of a tier is summed on first use."""

    __slots__ = ("_has_hosts_for_two_pods", "_host_preferences", "_preferences", "_tiers", "fabric")

    def __init__(self, fabric: Fabric, room: Counts, preferences: Sequence[Counts] = ()) -> None:
        """Take the free room of each host id, in pods, and the preferences of a PlacementRequest, which decide among
        equal switches.
        """
        self.fabric = fabric
        self._host_preferences = preferences
        self._preferences: list[list[Counts]] | None = None  # by table and tier, made when they first decide
        self._tiers: list[Counts] = [room]
        self._has_hosts_for_two_pods: bool | None = None

    def at_tier(self, tier: int) -> Counts:
        """Return the room of every switch of a tier, in pods, by switch number. Tier 0 are the hosts."""
        while len(self._tiers) <= tier:
            lower_room = self._tiers[-1]
            room: Counts = np.add.reduceat(lower_room, self.fabric.first_child[len(self._tiers)])
            self._tiers.append(room)
        return self._tiers[tier]

    def preferences(self, tier: int) -> list[Counts]:
        """Return the tables of preferences for the switches of a tier, the more important table first; [] without
        preferences.

        Each table has one number for each switch, summed over its hosts with room; a larger number is better.
        """
        if self._preferences is None:
            room = self._tiers[0]
            self._preferences = [[np.where(room > 0, preference, 0)] for preference in self._host_preferences]
        for sums in self._preferences:
            while len(sums) <= tier:
                preference: Counts = np.add.reduceat(sums[-1], self.fabric.first_child[len(sums)])
                sums.append(preference)
        return [sums[tier] for sums in self._preferences]

    @property
    def has_hosts_for_two_pods(self) -> bool:
        """True if some host has room for two pods or more: then equal plans may differ in the number of hosts."""
        if self._has_hosts_for_two_pods is None:
            self._has_hosts_for_two_pods = bool(self._tiers[0].max(initial=0) > 1)
        return self._has_hosts_for_two_pods

    def children(self, tier: int, switch: int) -> tuple[int, int]:
        """Return (first child, last child + 1) of a switch, given by its tier, >= 1, and its number.

        Children are numbers of switches of the tier below, or host ids for a leaf.
        """
        first = self.fabric.first_child[tier]
        below = self.fabric.starts[tier - 1]
        return int(first[switch]), int(first[switch + 1]) if switch + 1 < len(first) else len(below)

    def under_switch(self, tier: int, switch: int, lower_tier: int) -> Counts:
        """Return the room of every switch of `lower_tier` under a switch, in pods, in fabric order.

        tier, switch: the tier and the number of the switch above. lower_tier: 0..tier.
        """
        start, end = self.fabric.span(tier, switch)
        row = self.fabric.switch_of[lower_tier]
        return self.at_tier(lower_tier)[row[start] : row[end - 1] + 1]

    def ancestors(self, tier: int, switches: Counts, higher_tier: int) -> Counts:
        """Return, for each of some switches of a tier, the number of the switch of `higher_tier` above it.

        switches: numbers. higher_tier: >= tier; for the tier itself `switches` is returned.
        """
        if higher_tier == tier:
            return switches
        higher_switches: Counts = self.fabric.switch_of[higher_tier][self.fabric.starts[tier][switches]]
        return higher_switches

    def tightest_domain(self, tier: int, domains: Counts, need: int, max_pods: int) -> int:
        """Return the best fit of some switches of a tier, each of which holds a gang of `need` pods at the same price.

        domains: numbers of switches, at least one; for tier 0 host ids. need: pods of the gang. max_pods: pods that it
        may grow to. The criteria, each among the domains that are equal by those before:

        1. Room for `max_pods` pods in the domain; if no domain has it, in its parent switch; if none has it there, one
           tier higher, and so on.
        2. The least room.
        3. For leaves: `need` pods use the fewest hosts.
        4. The greatest preferences.
        5. The parent switch has the least room, then the grandparent, and so on.
        6. The first one.
        """
        for higher_tier in range(tier, self.fabric.tiers + 1):
            growable = domains[self.at_tier(higher_tier)[self.ancestors(tier, domains, higher_tier)] >= max_pods]
            if len(growable):
                domains = growable
                break
        room = self.at_tier(tier)[domains]
        domains = domains[room == room.min()]
        if tier == 1 and len(domains) > 1 and self.has_hosts_for_two_pods:
            domains = self._leaves_with_fewest_hosts(domains, need)
        for preference in self.preferences(tier) if len(domains) > 1 else ():
            domains = domains[preference[domains] == preference[domains].max()]
        parents = self.ancestors(tier, domains, tier)
        for higher_tier in range(tier, self.fabric.tiers):
            room = self.at_tier(higher_tier)[parents]
            has_least_room = room == room.min()
            domains, parents = domains[has_least_room], parents[has_least_room]
            if len(domains) == 1:
                break
            # Domains under the same switch are equal from here on: only the first one of each switch is kept.
            parents = self.ancestors(higher_tier, parents, higher_tier + 1)
            first_of_parent = np.flatnonzero(np.diff(parents, prepend=-1))
            domains, parents = domains[first_of_parent], parents[first_of_parent]
        return int(domains[0])

    def _leaves_with_fewest_hosts(self, leaves: Counts, need: int) -> Counts:
        """Return those of some leaves, of equal room, in which `need` pods use the fewest hosts.

        leaves: numbers of leaves.
        """
        capacity = np.cumsum(self.rooms_of_hosts(leaves)[:, ::-1], axis=1)  # pods on the 1, 2, ... largest hosts
        used = (capacity < need).sum(axis=1)
        fewest: Counts = leaves[used == used.min()]
        return fewest

    def rooms_of_hosts(self, leaves: Counts) -> Counts:
        """Return the room of each host under each of some leaves, in pods: shape (leaves, hosts of the largest leaf).

        leaves: numbers of leaves. Each row is ascending; 0 stands for a host without room, and fills rows of leaves
        with fewer hosts.
        """
        starts = self.fabric.starts[1]
        first = starts[leaves]
        ends = np.append(starts, len(self.fabric.hosts))[leaves + 1]
        rows = first[:, None] + np.arange(int((ends - first).max()))
        room = self.at_tier(0)
        rooms: Counts = np.where(rows < ends[:, None], room[np.minimum(rows, len(room) - 1)], 0)
        rooms.sort(axis=1)
        return rooms


Share = tuple[int, int]  # (index of a hole, pods placed in it)
_MAX_CELLS = 400_000  # of the table of _best_set_by_table; for more, some of the largest holes are used without it


def choose_holes(holes: Sequence[int], need: int) -> list[Share]:
    """Return (index of a hole, pods placed in it) for each hole that is used; a partly used hole comes last.

    holes: the room of each hole, in pods, 0 or more; their sum is at least `need`. need: pods to place, 0 or more; the
    result is [] for 0. The fewest holes are used. Among such sets, the one that leaves the largest sum of squares of
    free room is chosen, because this keeps large holes whole. If there are too many sets to compare (_MAX_CELLS), the
    choice may miss the largest sum. Ties go to the first holes.
    """
    if need <= 0:
        return []
    single = _tightest_hole(holes, need)
    if single is not None:
        return [(single, need)]
    order = sorted(range(len(holes)), key=lambda index: (-holes[index], index))
    chosen: list[int] = []
    remaining, fewest = need, 0
    for index in order:
        remaining -= holes[index]
        fewest += 1
        if remaining <= 0:
            break
    if remaining == 0 or fewest == len(order) or holes[order[0]] == holes[order[fewest - 1]] == holes[order[-1]]:
        chosen = order[:fewest]  # no other set is possible, or all sets are equal
    else:
        chosen = _best_set(holes, order, need, fewest)
    return _fill_holes(holes, chosen, need)


def _tightest_hole(holes: Sequence[int], need: int) -> int | None:
    """Return the index of the smallest hole that takes `need` pods; None if no hole does."""
    best = None
    for index, hole in enumerate(holes):
        if hole >= need and (best is None or hole < holes[best]):
            best = index
    return best


def _fill_holes(holes: Sequence[int], chosen: list[int], need: int) -> list[Share]:
    """Return (index, pods) for the chosen holes, filled from the largest on, so that only the last one keeps free room.

    chosen: indexes of holes, which hold `need` pods together. need: pods to place.
    """
    shares = []
    for index in sorted(chosen, key=lambda index: (-holes[index], index)):
        take = min(holes[index], need)
        shares.append((index, take))
        need -= take
    return shares


def _best_set(holes: Sequence[int], order: list[int], need: int, count: int) -> list[int]:
    """Return the indexes of `count` holes that together hold `need` pods, so that the sum of squares of free room
    is largest.

    order: the indexes of all holes, the largest first. count: the least number of holes that can hold the pods, >= 2.
    If the table of all sets would be too large, some of the largest holes are used without a search.
    """
    searched = 2  # the holes of the set that the table finds
    while searched < count and len(order) * (searched + 1) * (searched + 2) * holes[order[0]] <= _MAX_CELLS:
        searched += 1
    fixed_holes, other_holes = order[: count - searched], order[count - searched :]
    need -= sum(holes[index] for index in fixed_holes)
    candidates = _useful_holes(holes, other_holes, searched)
    return fixed_holes + _best_set_by_table(holes, candidates, need, searched)


def _useful_holes(holes: Sequence[int], order: list[int], count: int) -> list[int]:
    """Return the indexes in `order` without empty holes, and with at most `count` holes of each size."""
    copies: dict[int, int] = {}
    useful = []
    for index in order:
        copies[holes[index]] = copies.get(holes[index], 0) + 1
        if holes[index] and copies[holes[index]] <= count:
            useful.append(index)
    return useful


def _best_set_by_table(holes: Sequence[int], candidates: list[int], need: int, count: int) -> list[int]:
    """Return `count` of the candidates that together hold `need` pods, so that the sum of squares of free room is
    largest.

    candidates: indexes of holes, the largest first. count: the fewest candidates that can hold the pods; no other
    number works. The table has the least sum of squares of the used holes for each (number of holes, sum of their
    room).
    """
    width = need + holes[candidates[0]]  # a set of the fewest holes has less surplus than its largest hole
    worst = np.iinfo(np.int64).max // 2
    loss = np.full((count + 1, width), worst, np.int64)
    loss[0, 0] = 0
    uses_item = np.zeros((len(candidates), count + 1, width), np.bool_)
    for row, index in enumerate(candidates):
        hole = holes[index]
        with_it = loss[:-1, : width - hole] + hole * hole
        better = with_it < loss[1:, hole:]
        uses_item[row, 1:, hole:] = better
        loss[1:, hole:][better] = with_it[better]
    surplus = np.arange(width - need, dtype=np.int64)
    total = need + int(np.argmin(loss[count, need:] - surplus * surplus))
    chosen = []
    for row in range(len(candidates) - 1, -1, -1):
        if uses_item[row, count, total]:
            chosen.append(candidates[row])
            total -= holes[candidates[row]]
            count -= 1
    return chosen


Slots = list[tuple[int, int]]  # (host id, pods)
_Table = list[tuple[int, Counts, Counts]]  # the result of DomainPacker._table


class DomainPacker:
    """A search for the domains of one fabric in which pods need the fewest switches. The room is never changed."""

    __slots__ = ("_anchored", "_room")

    def __init__(self, room: RoomByTier, anchors: Iterable[int] = ()) -> None:
        """Take the free room, and the host ids of members of the gang that are placed already."""
        fabric = room.fabric
        ids = sorted(set(anchors))
        self._room = room
        self._anchored = [set(fabric.switch_of[tier][ids].tolist()) if ids else set() for tier in range(fabric.tiers)]

    def cheapest_domains(self, tier: int, switches: Counts, need: int) -> Counts:
        """Return those of some switches of a tier in which `need` pods of a new gang use the fewest switches.

        switches: numbers; each must have room for `need` pods. For tier 0 and 1 all are returned, as no switch lies
        below. For tier 2 the result has the order of `switches`; from tier 3 on it is ascending.
        """
        if tier <= 1 or len(switches) == 1:
            return switches
        lower_bounds = {switch: _min_switches(self._room, tier, switch, need) for switch in switches.tolist()}
        if tier == 2:  # one tier to pay for: the floor is the price
            lowest = min(lower_bounds.values())
            return np.array([switch for switch, floor in lower_bounds.items() if floor == lowest])
        best: float = inf
        cheapest: list[int] = []
        for switch in sorted(lower_bounds, key=lambda switch: (lower_bounds[switch], switch)):
            if lower_bounds[switch] > best:
                break
            price = self._fewest_switches(tier, switch, need)
            if price < best:
                best, cheapest = price, []
            if price == best:
                cheapest.append(switch)
        return np.array(sorted(cheapest))

    def _fewest_switches(self, tier: int, switch: int, need: int) -> int:
        """Return the fewest switches below a switch, of all tiers together, that hold `need` pods.

        tier, switch: the tier, 2 or more, and the number of the switch, which has room for the pods. Switches that hold
        anchors do not count.
        """
        most_pods_by_price = self._most_pods_by_price(tier, switch, _max_switches(self._room, tier, switch, need))
        return int(np.searchsorted(most_pods_by_price, need))

    def fill(self, tier: int, switch: int, need: int) -> Slots:
        """Return (host id, pods) for `need` pods in a domain that has room for them, in any order; [] for no pods.

        tier, switch: the tier and the number of the domain; tier 0 is a host.
        """
        if need <= 0:
            return []
        if tier == 0:
            return [(switch, need)]
        if tier <= 2:
            shares = self._divide_among_children(tier, switch, need)
        else:
            shares = self._divide_by_price(tier, switch, need)
        return [slot for child, pods in shares for slot in self.fill(tier - 1, child, pods)]

    def _divide_among_children(self, tier: int, switch: int, need: int) -> list[tuple[int, int]]:
        """Divide `need` pods among the children of a leaf or a spine, all of which have the same price.

        Return (child, pods) for each child that gets pods, first for those that hold anchors. tier, switch: the tier, 1
        or 2, and the number of the switch, which has room for the pods. Children are host ids or numbers of leaves.
        """
        first, end = self._room.children(tier, switch)
        room = self._room.at_tier(tier - 1)[first:end]
        if need == int(room.sum()):
            return [(first + position, int(room[position])) for position in np.flatnonzero(room).tolist()]
        order = self._preference_order(tier, first, end)
        anchored = (
            [position for position in order if first + position in self._anchored[tier - 1]]
            if self._anchored[tier - 1]
            else []
        )
        other_children = [position for position in order if position not in anchored] if anchored else order
        holes, counts_hosts = room.tolist(), tier == 2 and self._room.has_hosts_for_two_pods
        shares: list[tuple[int, int]] = []
        for children in (anchored, other_children):
            pods = min(need, sum(holes[position] for position in children))
            group_shares = [
                (children[position], share)
                for position, share in choose_holes([holes[position] for position in children], pods)
            ]
            shares += self._use_fewer_hosts(first, holes, children, group_shares) if counts_hosts else group_shares
            need -= pods
        return [(first + position, pods) for position, pods in shares]

    def _preference_order(self, tier: int, first: int, end: int) -> list[int]:
        """Return the children of a switch as positions after `first`.

        Of children with equal room the one with the fewest hosts comes first (tier 2), then the one with the greatest
        preferences. tier: of the switch, >= 1. first, end: its first child and its last child + 1. Children of
        different room keep their order.
        """
        preferences = [preference[first:end] for preference in self._room.preferences(tier - 1)]
        if tier == 2 and self._room.has_hosts_for_two_pods:
            host_counts = (self._room.rooms_of_hosts(np.arange(first, end)) > 0).sum(axis=1)
            preferences = [-host_counts, *preferences]
        if not preferences:
            return list(range(end - first))
        room = self._room.at_tier(tier - 1)[first:end]
        order = np.empty(len(room), np.intp)
        # Children of different room keep their places: choose_holes() decides among them.
        order[np.argsort(room, kind="stable")] = np.lexsort(
            [*(-preference for preference in reversed(preferences)), room]
        )
        positions: list[int] = order.tolist()
        return positions

    def _use_fewer_hosts(
        self, first: int, holes: Sequence[int], children: Sequence[int], shares: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return shares that use fewer hosts: the free room of the partly used leaf is moved to another leaf, if that
        saves hosts.

        The same amounts of room stay free. first: the first leaf under the spine. holes: the room of each leaf.
        children: the leaves that may be used, as positions after `first`; of equal leaves the one with the fewest hosts
        comes first. shares: (position, pods); only the last is less than its leaf's room. They are returned unchanged
        if all leaves are full or no other leaf saves a host. Any used leaf, or an unused leaf of the same room, may
        become the partly used leaf: the one that saves most hosts is chosen.
        """
        free_rest = holes[shares[-1][0]] - shares[-1][1] if shares else 0
        if not free_rest:
            return shares
        hosts, unused_hosts = _hosts_of_leaves(self._room, first, len(holes), free_rest)
        used_leaves = [position for position, _ in shares]
        last_of_size = {holes[position]: position for position in sorted(used_leaves, key=children.index)}
        best, replaced, fewest = used_leaves[-1], used_leaves[-1], -int(unused_hosts[used_leaves[-1]])
        for position in children:
            replaceable = position if position in used_leaves else last_of_size.get(holes[position])
            if replaceable is None:
                continue
            extra_hosts = int(hosts[position] - unused_hosts[position]) - int(hosts[replaceable])
            if extra_hosts < fewest:
                best, replaced, fewest = position, replaceable, extra_hosts
        full = [position for position in used_leaves if position != replaced]
        return [*((position, holes[position]) for position in full), (best, holes[best] - free_rest)]

    def _divide_by_price(self, tier: int, switch: int, need: int) -> list[tuple[int, int]]:
        """Divide `need` pods, at least 1, among the children of a switch above the spines, on the fewest switches.

        Return (child, pods) for each child that gets pods, first for those that hold anchors. tier, switch: the tier, 3
        or more, and the number of the switch, which has room for the pods. Children are numbers of switches of the tier
        below. The prices and pods of each child come from `_table`; a child that holds anchors costs nothing itself.
        """
        price = self._fewest_switches(tier, switch, need)
        table = self._table(tier, switch, price)
        purchases: list[tuple[int, int, int]] = []  # (pods, child, price)
        budget = price
        for position in range(len(table) - 1, -1, -1):
            child, pods_by_price, pods_so_far = table[position]
            pods_before = table[position - 1][2] if position else np.zeros_like(pods_so_far)
            cost = next(
                c for c in range(budget + 1) if pods_before[budget - c] + pods_by_price[c] == pods_so_far[budget]
            )
            budget -= cost
            if pods_by_price[cost]:
                purchases.append((int(pods_by_price[cost]), child, cost))
        purchases.reverse()  # of equal children the first one of the table comes first
        purchases.sort(key=lambda item: (item[1] not in self._anchored[tier - 1], -item[0]))
        shares: list[tuple[int, int]] = []
        for child_pods, child, cost in purchases:
            if need <= child_pods:
                used_children = {child for child, _ in shares}
                return [*shares, (self._last_child(tier, table, used_children, child, cost, need), need)]
            shares.append((child, child_pods))
            need -= child_pods
        return shares

    def _last_child(self, tier: int, table: _Table, used: set[int], child: int, cost: int, need: int) -> int:
        """Return the child that takes the last `need` pods: the unused child with the least room that holds them for
        the price of `child`.

        tier: of the parent. table: of _table(). used: children that have pods already. child, cost: the child and its
        price that the table chose. A child that holds anchors is kept.
        """
        if child in self._anchored[tier - 1]:
            return child
        room = self._room.at_tier(tier - 1)
        candidates = [other for other, pods_by_price, _ in table if other not in used and pods_by_price[cost] >= need]
        return min(candidates, key=lambda other: int(room[other]))  # of equal children the first one of the table

    def _table(self, tier: int, switch: int, budget: int) -> _Table:
        """Return (child, pods_by_price, pods_so_far) for each child of a switch that has room for a pod within the
        budget, in preference order.

        tier, switch: the tier, 3 or more, and the number of the switch. pods_by_price[b], for b from 0 to `budget`: the
        most pods that the child holds if they use b switches, the child itself included unless it holds anchors.
        pods_so_far[b]: the same for this child and all before it together.
        """
        first, end = self._room.children(tier, switch)
        pods_so_far = np.zeros(budget + 1, np.int64)
        table = []
        for child in (first + position for position in self._preference_order(tier, first, end)):
            pods_by_price = self._most_pods_of_child(tier - 1, child, budget)
            if pods_by_price[-1]:
                pods_so_far = _join_tables(pods_so_far, pods_by_price)
                table.append((child, pods_by_price, pods_so_far))
        return table

    def _most_pods_by_price(self, tier: int, switch: int, budget: int) -> Counts:
        """Return budget + 1 numbers: number b is the most pods that can be placed under a switch for the price b.

        The price is the number of switches below it that the pods use, those of all lower tiers counted together.
        Switches that hold anchors are not counted. tier, switch: the tier, 2 or more, and the number of the switch.
        budget: the largest price, >= 0.
        """
        if tier > 2:
            table = self._table(tier, switch, budget)
            return table[-1][2] if table else np.zeros(budget + 1, np.int64)
        first, end = self._room.children(tier, switch)
        holes = self._room.at_tier(1)[first:end]
        anchored_leaves = [leaf - first for leaf in self._anchored[1] if first <= leaf < end]
        base = int(holes[anchored_leaves].sum()) if anchored_leaves else 0
        if anchored_leaves:
            holes = np.delete(holes, anchored_leaves)
        most_pods_by_price = np.full(budget + 1, base, np.int64)
        largest = -np.sort(-holes)[:budget]
        most_pods_by_price[1 : len(largest) + 1] += np.cumsum(largest)
        most_pods_by_price[len(largest) + 1 :] = most_pods_by_price[len(largest)]
        return most_pods_by_price

    def _most_pods_of_child(self, tier: int, switch: int, budget: int) -> Counts:
        """Return the most pods that a switch holds for a price of 0, 1, ..., budget, its own price of 1 included.

        tier, switch: the tier, 2 or more, and the number of the switch. A switch that holds anchors has no price
        itself.
        """
        pods_below = self._most_pods_by_price(tier, switch, budget)
        if switch in self._anchored[tier]:
            return pods_below
        return np.concatenate([np.zeros(1, np.int64), pods_below[:-1]])


def _min_switches(room: RoomByTier, tier: int, switch: int, need: int) -> int:
    """Return a lower bound of the number of switches below a switch that `need` pods use: the sum, over all tiers below
    it, of the fewest switches of that tier alone.

    tier, switch: the tier and the number of the switch, which has room for the pods.
    """
    price = 0
    for lower_tier in range(1, tier):
        largest = np.cumsum(-np.sort(-room.under_switch(tier, switch, lower_tier)))
        price += int(np.searchsorted(largest, need)) + 1
    return price


def _hosts_of_leaves(room: RoomByTier, first: int, count: int, free_rest: int) -> tuple[Counts, Counts]:
    """Return, for each of `count` consecutive leaves, its hosts with room, and how many of them stay empty if the leaf
    is filled up to a free room of `free_rest` pods.

    The result is two arrays. first: the number of the first leaf.
    """
    rooms = room.rooms_of_hosts(np.arange(first, first + count))
    return (rooms > 0).sum(axis=1), ((rooms > 0) & (np.cumsum(rooms, axis=1) <= free_rest)).sum(axis=1)


def _max_switches(room: RoomByTier, tier: int, switch: int, need: int) -> int:
    """Return how many switches below a switch, of all tiers together, `need` pods use if the leaves with the most room
    are filled first.

    The best placement uses this number or fewer. tier, switch: the tier, 2 or more, and the number of the switch, which
    has room for the pods.
    """
    fabric = room.fabric
    start, _ = fabric.span(tier, switch)
    leaf_room = room.under_switch(tier, switch, 1)
    largest = np.argsort(-leaf_room, kind="stable")
    count = int(np.searchsorted(np.cumsum(leaf_room[largest]), need)) + 1
    hosts = fabric.starts[1][largest[:count] + fabric.switch_of[1, start]]
    return count + sum(len(np.unique(fabric.switch_of[higher_tier, hosts])) for higher_tier in range(2, tier))


def _join_tables(table: Counts, other_table: Counts) -> Counts:
    """Return, for each price, the most pods that two children or groups of children hold together.

    table, other_table: the most pods of each for a price of 0, 1, ...; both have the same length and never fall.
    """
    steps = int(np.searchsorted(other_table, other_table[-1])) + 1  # a higher price adds no pods of `other_table`
    padded = np.concatenate([np.full(steps - 1, -(1 << 40), np.int64), table])
    best: Counts = (sliding_window_view(padded, steps) + other_table[:steps][::-1]).max(axis=1)
    return best
