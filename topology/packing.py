"""Spread a number of pods over one domain so that the fewest switches are used, all tiers counted.

A ring pays that count, because it leaves each used switch once. Under a spine the count is the number of leaves. Higher
up, leaves and spines are counted together: fewer leaves in more spines can cost the ring more. Switches that hold
members of the gang cost nothing, so the other pods are placed near them. Capacities are computed once per tier, and
only for the tiers that a plan needs. `place.py` chooses the domain.

A hole is the free room of a host of a leaf, or of a leaf of a spine. Few holes are used, so that large holes stay free.

Holes of equal room are compared further: by the number of hosts that the pods use, then by the merits that the asker
gives to the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from turnout.topology.fabric import Fabric

Counts = npt.NDArray[np.signedinteger]


class Sums:
    """The capacity per switch of each tier, computed when first asked for."""

    __slots__ = ("_has_deep_hosts", "_merits", "_tiers", "fabric")

    def __init__(self, fabric: Fabric, room: Counts, merits: Iterable[Counts] = ()) -> None:
        """Take the capacity of each host in pods, and the tables of an Ask that decide among equals."""
        self.fabric = fabric
        self._merits: list[list[Counts]] = [[np.where(room > 0, merit, 0)] for merit in merits]  # by table and tier
        self._tiers: list[Counts] = [room]
        self._has_deep_hosts: bool | None = None

    def of(self, tier: int) -> Counts:
        """Return the capacity of every switch of a tier, in pods. Tier 0 are the hosts."""
        while len(self._tiers) <= tier:
            below = self._tiers[-1]
            above: Counts = np.add.reduceat(below, self.fabric.first_child[len(self._tiers)])
            self._tiers.append(above)
        return self._tiers[tier]

    def merits(self, tier: int) -> list[Counts]:
        """Return the tables that decide among switches of equal room, the more important table first.

        Each has one number a switch, summed over the hosts with room; the larger is the better.
        """
        for sums in self._merits:
            while len(sums) <= tier:
                above: Counts = np.add.reduceat(sums[-1], self.fabric.first_child[len(sums)])
                sums.append(above)
        return [sums[tier] for sums in self._merits]

    @property
    def has_deep_hosts(self) -> bool:
        """True if some host holds more than one pod: then the number of hosts may differ between equal plans."""
        if self._has_deep_hosts is None:
            self._has_deep_hosts = bool(self._tiers[0].max(initial=0) > 1)
        return self._has_deep_hosts

    def children(self, tier: int, switch: int) -> tuple[int, int]:
        """Return the first switch directly below a switch and the one after the last."""
        first = self.fabric.first_child[tier]
        below = self.fabric.starts[tier - 1]
        return int(first[switch]), int(first[switch + 1]) if switch + 1 < len(first) else len(below)

    def under(self, tier: int, switch: int, below: int) -> Counts:
        """Return the capacity of every switch of tier `below` under a switch."""
        start, end = self.fabric.span(tier, switch)
        row = self.fabric.switch_of[below]
        return self.of(below)[row[start] : row[end - 1] + 1]

    def ancestors(self, tier: int, switches: Counts, above: int) -> Counts:
        """Return, for each of some switches of a tier, the switch of tier `above` over it."""
        if above == tier:
            return switches
        found: Counts = self.fabric.switch_of[above][self.fabric.starts[tier][switches]]
        return found

    def tightest(self, tier: int, domains: Counts, need: int, most: int) -> int:
        """Return the best of some domains that hold a gang of `need` pods at the same cost.

        The domain whose lowest enclosing switch with room for `most` pods is lowest comes first. Ties go to the least
        room in the domain, then to the fewest hosts under a leaf, then to the greatest merits. Further ties go to the
        least room in each switch above it, from below, then to the first domain.
        """
        for above in range(tier, self.fabric.tiers + 1):
            grown = domains[self.of(above)[self.ancestors(tier, domains, above)] >= most]
            if len(grown):
                domains = grown
                break
        room = self.of(tier)[domains]
        domains = domains[room == room.min()]
        if tier == 1 and len(domains) > 1 and self.has_deep_hosts:
            domains = self._with_fewest_hosts(domains, need)
        for merit in self.merits(tier) if len(domains) > 1 else ():
            domains = domains[merit[domains] == merit[domains].max()]
        over = self.ancestors(tier, domains, tier)
        for above in range(tier, self.fabric.tiers):
            room = self.of(above)[over]
            least = room == room.min()
            domains, over = domains[least], over[least]
            if len(domains) == 1:
                break
            # Of those under one switch the first is as good as any: from here on only that switch counts.
            over = self.ancestors(above, over, above + 1)
            first = np.flatnonzero(np.diff(over, prepend=-1))
            domains, over = domains[first], over[first]
        return int(domains[0])

    def _with_fewest_hosts(self, leaves: Counts, need: int) -> Counts:
        """Return those of some leaves of equal room in which `need` pods use the fewest hosts."""
        capacity = np.cumsum(self.rooms_of_hosts(leaves)[:, ::-1], axis=1)  # by the largest hosts
        used = (capacity < need).sum(axis=1)
        fewest: Counts = leaves[used == used.min()]
        return fewest

    def rooms_of_hosts(self, leaves: Counts) -> Counts:
        """Return the capacity of the hosts under each of some leaves, ascending: [leaves, hosts], 0 for no host."""
        starts = self.fabric.starts[1]
        first = starts[leaves]
        ends = np.append(starts, len(self.fabric.hosts))[leaves + 1]
        rows = first[:, None] + np.arange(int((ends - first).max()))
        room = self.of(0)
        rooms: Counts = np.where(rows < ends[:, None], room[np.minimum(rows, len(room) - 1)], 0)
        rooms.sort(axis=1)
        return rooms


Share = tuple[int, int]  # which hole, how many pods go there
_CELLS = 400_000  # of the table below; past that the first holes are the largest, unseen


def pick(holes: Sequence[int], need: int) -> list[Share]:
    """Return which holes are used and how far; a partly used hole comes last.

    holes: the room of each, 0 or more; their sum is at least `need`. need: pods, 0 or more.

    Among the sets with the fewest holes, the one that leaves the largest sum of squares of free room is chosen. So
    small holes are filled before a large one is touched. Ties go to the first holes.
    """
    if need <= 0:
        return []
    single = _tightest(holes, need)
    if single is not None:
        return [(single, need)]
    order = sorted(range(len(holes)), key=lambda at: (-holes[at], at))
    chosen: list[int] = []
    left, fewest = need, 0
    for at in order:
        left -= holes[at]
        fewest += 1
        if left <= 0:
            break
    if left == 0 or fewest == len(order) or holes[order[0]] == holes[order[fewest - 1]] == holes[order[-1]]:
        chosen = order[:fewest]  # no other set is possible, or none differs
    else:
        chosen = _best_set(holes, order, need, fewest)
    return _filled(holes, chosen, need)


def _tightest(holes: Sequence[int], need: int) -> int | None:
    """Return the index of the smallest hole that takes `need` pods; None if no hole does."""
    best = None
    for at, hole in enumerate(holes):
        if hole >= need and (best is None or hole < holes[best]):
            best = at
    return best


def _filled(holes: Sequence[int], chosen: list[int], need: int) -> list[Share]:
    """Fill the chosen holes, the largest first. The free rest is in the last one."""
    shares = []
    for at in sorted(chosen, key=lambda at: (-holes[at], at)):
        take = min(holes[at], need)
        shares.append((at, take))
        need -= take
    return shares


def _best_set(holes: Sequence[int], order: list[int], need: int, fewest: int) -> list[int]:
    """Return the `fewest` holes that reach `need` and lose the least sum of squares, by a table over (holes, sum)."""
    free = 2
    while free < fewest and len(order) * (free + 1) * (free + 2) * holes[order[0]] <= _CELLS:
        free += 1
    fixed, rest = order[: fewest - free], order[fewest - free :]
    need -= sum(holes[at] for at in fixed)
    items = _useful(holes, rest, free)
    return fixed + _by_table(holes, items, need, free)


def _useful(holes: Sequence[int], order: list[int], free: int) -> list[int]:
    """Return the holes without those that repeat a size which is there `free` times already."""
    copies: dict[int, int] = {}
    useful = []
    for at in order:
        copies[holes[at]] = copies.get(holes[at], 0) + 1
        if holes[at] and copies[holes[at]] <= free:
            useful.append(at)
    return useful


def _by_table(holes: Sequence[int], items: list[int], need: int, free: int) -> list[int]:
    """Return items that use exactly `free` holes more, cover the need and leave the largest holes."""
    width = need + holes[items[0]]  # with the fewest holes no set overshoots by a whole hole
    worst = np.iinfo(np.int64).max // 2
    loss = np.full((free + 1, width), worst, np.int64)
    loss[0, 0] = 0
    uses_item = np.zeros((len(items), free + 1, width), np.bool_)
    for row, at in enumerate(items):
        hole = holes[at]
        with_it = loss[:-1, : width - hole] + hole * hole
        better = with_it < loss[1:, hole:]
        uses_item[row, 1:, hole:] = better
        loss[1:, hole:][better] = with_it[better]
    over = np.arange(width - need, dtype=np.int64)
    total = need + int(np.argmin(loss[free, need:] - over * over))
    chosen = []
    for row in range(len(items) - 1, -1, -1):
        if uses_item[row, free, total]:
            chosen.append(items[row])
            total -= holes[items[row]]
            free -= 1
    return chosen


Slots = list[tuple[int, int]]
_Table = list[tuple[int, Counts, Counts]]  # child, its capacities, the best of all children up to it


class Spread:
    """Spreads pods over the domains of one capacity table."""

    __slots__ = ("_anchored", "_sums")

    def __init__(self, sums: Sums, anchors: Iterable[int] = ()) -> None:
        fabric = sums.fabric
        ids = sorted(set(anchors))
        self._sums = sums
        self._anchored = [set(fabric.switch_of[tier][ids].tolist()) if ids else set() for tier in range(fabric.tiers)]

    def cheapest(self, tier: int, switches: Counts, need: int) -> Counts:
        """Return those of some domains in which `need` pods of a new gang use the fewest switches.

        Each of the domains must hold `need` pods.
        """
        if tier <= 1 or len(switches) == 1:
            return switches
        floors = {switch: self._floor(tier, switch, need) for switch in switches.tolist()}
        if tier == 2:  # one tier to pay for: the floor is the price
            lowest = min(floors.values())
            return np.array([switch for switch, floor in floors.items() if floor == lowest])
        best: float = inf
        cheapest: list[int] = []
        for switch in sorted(floors, key=lambda switch: (floors[switch], switch)):
            if floors[switch] > best:
                break
            price = self._price(tier, switch, need)
            if price < best:
                best, cheapest = price, []
            if price == best:
                cheapest.append(switch)
        return np.array(sorted(cheapest))

    def _floor(self, tier: int, switch: int, need: int) -> int:
        """Return a lower bound of the price: at every tier the fewest switches, each tier taken alone."""
        price = 0
        for below in range(1, tier):
            largest = np.cumsum(-np.sort(-self._sums.under(tier, switch, below)))
            price += int(np.searchsorted(largest, need)) + 1
        return price

    def _ceiling(self, tier: int, switch: int, need: int) -> int:
        """Return a price that is enough: the price of the largest leaves, wherever they are."""
        fabric = self._sums.fabric
        start, _ = fabric.span(tier, switch)
        leaf_room = self._sums.under(tier, switch, 1)
        largest = np.argsort(-leaf_room, kind="stable")
        count = int(np.searchsorted(np.cumsum(leaf_room[largest]), need)) + 1
        hosts = fabric.starts[1][largest[:count] + fabric.switch_of[1, start]]
        return count + sum(len(np.unique(fabric.switch_of[above, hosts])) for above in range(2, tier))

    def _price(self, tier: int, switch: int, need: int) -> int:
        reach = self._pods_by_price(tier, switch, self._ceiling(tier, switch, need))
        return int(np.searchsorted(reach, need))

    def fill(self, tier: int, switch: int, need: int) -> Slots:
        """Return (host, pods) for `need` pods in a domain that holds them, in any order."""
        if need <= 0:
            return []
        if tier == 0:
            return [(switch, need)]
        if tier <= 2:
            shares = self._shares(tier, switch, need)
        else:
            shares = self._shares_by_price(tier, switch, need)
        return [slot for child, pods in shares for slot in self.fill(tier - 1, child, pods)]

    def _shares(self, tier: int, switch: int, need: int) -> list[tuple[int, int]]:
        """Return (child, pods) under a leaf or a spine, where every child costs the same."""
        first, end = self._sums.children(tier, switch)
        room = self._sums.of(tier - 1)[first:end]
        if need == int(room.sum()):
            return [(first + at, int(room[at])) for at in np.flatnonzero(room).tolist()]
        order = self._order(tier, first, end)
        anchored = [at for at in order if first + at in self._anchored[tier - 1]] if self._anchored[tier - 1] else []
        others = [at for at in order if at not in anchored] if anchored else order
        holes, counts_hosts = room.tolist(), tier == 2 and self._sums.has_deep_hosts
        shares: list[tuple[int, int]] = []
        for children in (anchored, others):
            pods = min(need, sum(holes[at] for at in children))
            own = [(children[at], share) for at, share in pick([holes[at] for at in children], pods)]
            shares += self._with_fewer_hosts(first, holes, children, own) if counts_hosts else own
            need -= pods
        return [(first + at, pods) for at, pods in shares]

    def _order(self, tier: int, first: int, end: int) -> list[int]:
        """Return the children of a switch as positions after `first`, so that of equal children the best is first."""
        merits = [merit[first:end] for merit in self._sums.merits(tier - 1)]
        if tier == 2 and self._sums.has_deep_hosts:
            used = (self._sums.rooms_of_hosts(np.arange(first, end)) > 0).sum(axis=1)
            merits = [-used, *merits]
        if not merits:
            return list(range(end - first))
        room = self._sums.of(tier - 1)[first:end]
        order = np.empty(len(room), np.intp)
        # Children of different room keep their places: pick() decides among them.
        order[np.argsort(room, kind="stable")] = np.lexsort([*(-merit for merit in reversed(merits)), room])
        positions: list[int] = order.tolist()
        return positions

    def _with_fewer_hosts(
        self, first: int, holes: Sequence[int], children: Sequence[int], shares: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return shares of leaves that leave the same holes, on as few hosts as possible.

        first: the first leaf under the spine. holes: the room of each leaf. children: the leaves that may be used, as
        positions after `first`, of equal leaves the one with the fewest hosts first. shares: (position, pods); only the
        last is less than its leaf's room. Any used leaf, or an unused leaf of the same room, may be the partly used
        leaf: this is the leaf that does without most hosts.
        """
        rest = holes[shares[-1][0]] - shares[-1][1] if shares else 0
        if not rest:
            return shares
        hosts, spare = self._hosts_of_leaves(first, len(holes), rest)
        used = [at for at, _ in shares]
        last_of_size = {holes[at]: at for at in sorted(used, key=children.index)}
        best, replaced, fewest = used[-1], used[-1], -int(spare[used[-1]])
        for at in children:
            instead = at if at in used else last_of_size.get(holes[at])
            if instead is None:
                continue
            more = int(hosts[at] - spare[at]) - int(hosts[instead])
            if more < fewest:
                best, replaced, fewest = at, instead, more
        full = [at for at in used if at != replaced]
        return [*((at, holes[at]) for at in full), (best, holes[best] - rest)]

    def _hosts_of_leaves(self, first: int, count: int, rest: int) -> tuple[Counts, Counts]:
        """Return for each of some leaves the hosts with room, and how many of them `rest` pods of free room spare."""
        rooms = self._sums.rooms_of_hosts(np.arange(first, first + count))
        return (rooms > 0).sum(axis=1), ((rooms > 0) & (np.cumsum(rooms, axis=1) <= rest)).sum(axis=1)

    def _shares_by_price(self, tier: int, switch: int, need: int) -> list[tuple[int, int]]:
        """Return (child, pods) for a switch above the spines, so that the pods use the fewest switches.

        The prices and pods of each child come from `_table`; a child that holds anchors costs nothing itself.
        """
        price = self._price(tier, switch, need)
        table = self._table(tier, switch, price)
        paid: list[tuple[int, int, int]] = []  # what it reaches, child, price
        left = price
        for at in range(len(table) - 1, -1, -1):
            child, reach, best = table[at]
            before = table[at - 1][2] if at else np.zeros_like(best)
            cost = next(c for c in range(left + 1) if before[left - c] + reach[c] == best[left])
            left -= cost
            if reach[cost]:
                paid.append((int(reach[cost]), child, cost))
        paid.reverse()  # of equals the first of the table comes first
        paid.sort(key=lambda item: (item[1] not in self._anchored[tier - 1], -item[0]))
        shares: list[tuple[int, int]] = []
        for reached, child, cost in paid:
            if need <= reached:
                used = {child for child, _ in shares}
                return [*shares, (self._last_child(tier, table, used, child, cost, need), need)]
            shares.append((child, reached))
            need -= reached
        return shares

    def _last_child(self, tier: int, table: _Table, used: set[int], child: int, cost: int, need: int) -> int:
        """Return the child that takes the remaining pods: the tightest unused one that holds them for this price.

        A child that holds anchors is kept. child, cost: the child and price that the table chose.
        """
        if child in self._anchored[tier - 1]:
            return child
        room = self._sums.of(tier - 1)
        fits = [other for other, reach, _ in table if other not in used and reach[cost] >= need]
        return min(fits, key=lambda other: int(room[other]))  # of equals the first of the table

    def _table(self, tier: int, switch: int, budget: int) -> _Table:
        """Return (child, reach, best) for each child of a switch that holds a pod.

        reach[b]: the most pods that the child holds for a price of b switches. best[b]: the same for this child and all
        before it together.
        """
        first, end = self._sums.children(tier, switch)
        best = np.zeros(budget + 1, np.int64)
        table = []
        for child in (first + at for at in self._order(tier, first, end)):
            reach = self._reach(tier - 1, child, budget)
            if reach[-1]:
                best = _joined(best, reach)
                table.append((child, reach, best))
        return table

    def _pods_by_price(self, tier: int, switch: int, budget: int) -> Counts:
        """Return the most pods that 0..budget switches below this one hold."""
        if tier > 2:
            table = self._table(tier, switch, budget)
            return table[-1][2] if table else np.zeros(budget + 1, np.int64)
        first, end = self._sums.children(tier, switch)
        holes = self._sums.of(1)[first:end]
        free = [leaf - first for leaf in self._anchored[1] if first <= leaf < end]
        base = int(holes[free].sum()) if free else 0
        if free:
            holes = np.delete(holes, free)
        reach = np.full(budget + 1, base, np.int64)
        largest = -np.sort(-holes)[:budget]
        reach[1 : len(largest) + 1] += np.cumsum(largest)
        reach[len(largest) + 1 :] = reach[len(largest)]
        return reach

    def _reach(self, tier: int, switch: int, budget: int) -> Counts:
        """Return the most pods that a switch holds for a price of 0..budget, its own price included."""
        below = self._pods_by_price(tier, switch, budget)
        if switch in self._anchored[tier]:
            return below
        return np.concatenate([np.zeros(1, np.int64), below[:-1]])


def _joined(one: Counts, other: Counts) -> Counts:
    """Return, for each price, the most pods that two tables hold together."""
    steps = int(np.searchsorted(other, other[-1])) + 1  # a higher price buys nothing more of the other
    padded = np.concatenate([np.full(steps - 1, -(1 << 40), np.int64), one])
    best: Counts = (sliding_window_view(padded, steps) + other[:steps][::-1]).max(axis=1)
    return best
