"""The tree of switches as read-only numpy tables, built and checked once with networkx; distances between hosts.

A host's id is its position in fabric order: depth first, with names in natural order. So every switch covers one run of
host ids at every tier. Tiers count from below: a leaf is tier 1, however deep its branch.

Three rules make the tree regular. A switch that holds hosts beside switches gets a leaf of its own for those hosts. A
short branch is repeated up to the tier below its parent switch. Several roots get one switch above them. `distance`
defines what a distance means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from turnout.topology.model import BadFabric, Cost, DistanceRule, Entry, Fault
from turnout.topology.switch_paths import Key, Path, heights, natural, row, top

if TYPE_CHECKING:
    import networkx as nx

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """The tables of one map. Two fabrics are equal only if they are the same object: a new map is a new fabric.

    H is the number of hosts and T the number of tiers of switches, 1 or more.
    """

    hosts: tuple[str, ...]  # names in fabric order, position = host id; hosts that the map does not know come last
    mapped: npt.NDArray[np.bool_]  # by host id: True if the map knows the host; the first `mapped_count` are True
    mapped_count: int
    index: Mapping[str, int]  # name -> host id
    tiers: int  # T; the only switch of tier T holds every host
    # shape (T+1, H): row t has the id of each host's switch of tier t, ascending; row 0 has the host ids
    switch_of: Ids
    starts: tuple[Ids, ...]  # by tier 0..T: the first host id of each switch
    first_child: tuple[Ids, ...]  # by tier 0..T: the first switch one tier below each switch
    names: tuple[tuple[Path, ...], ...]  # by tier 0..T: the path of each switch
    paths: Mapping[str, Path] = field(repr=False)  # as the map wrote them, mapped hosts only

    def tier_between(self, one: int, other: int) -> int:
        """Return the tier of the lowest switch above two hosts; 0 for a host and itself."""
        rows = self.switch_of
        for tier in range(self.tiers):
            if rows[tier, one] == rows[tier, other]:
                return tier
        return self.tiers

    def span(self, tier: int, switch: int) -> tuple[int, int]:
        """Return the first host id of a switch and the id after its last."""
        first = self.starts[tier]
        end = int(first[switch + 1]) if switch + 1 < len(first) else len(self.hosts)
        return int(first[switch]), end


def build(entries: Iterable[Entry]) -> Fabric:
    """Build the tables of a map. The order of the entries makes no difference.

    Raises BadFabric for hosts that are named twice or have no switch, with one fault each.
    """
    entries = tuple(entries)
    tree = _tree(entries)
    tier_of = heights(tree.nodes)
    tiers = top(tier_of, tree.out_degree(()))
    paths = {entry.host: entry.path for entry in entries}
    rows = [(row(path, tier_of, tiers), host) for host, path in paths.items()]
    keys: dict[str, Key] = {}
    rows.sort(key=lambda each: [_natural_once(name, keys) for name in (*each[0][-1], each[1])])
    return _tables([host for _, host in rows], [chain for chain, _ in rows], len(rows), tiers, paths)


def with_unmapped_hosts(fabric: Fabric, names: Iterable[str]) -> Fabric:
    """Return the fabric with additional hosts that its map does not know, placed after all others.

    Each of them has a branch of its own up to the old top. So its distance from every host exceeds that of any two
    mapped hosts. Names that the fabric has already are ignored. Without a new name the same fabric is returned.
    """
    strange = sorted({name for name in names if name not in fabric.index}, key=natural)
    if not strange:
        return fabric
    old, count = len(fabric.hosts), len(strange)
    tiers = fabric.tiers + 1 if fabric.mapped_count == old else fabric.tiers
    rows, starts, names_of = [], [], []
    for tier in range(tiers):
        own = len(fabric.starts[tier])
        rows.append(np.concatenate([fabric.switch_of[tier], np.arange(own, own + count, dtype=np.int32)]))
        starts.append(np.concatenate([fabric.starts[tier], np.arange(old, old + count, dtype=np.int32)]))
        names_of.append(fabric.names[tier] + tuple((name,) for name in strange))
    rows.append(np.zeros(old + count, np.int32))
    starts.append(np.zeros(1, np.int32))
    names_of.append(((),))
    hosts = fabric.hosts + tuple(strange)
    index = {**fabric.index, **{name: old + at for at, name in enumerate(strange)}}
    return _frozen(hosts, fabric.mapped_count, index, rows, starts, names_of, fabric.paths)


def only_tiers(fabric: Fabric, tiers: Sequence[int]) -> Fabric:
    """Return the fabric with some tiers of switches only.

    tiers: ascending; the last one is the top tier.
    """
    kept_tiers = (0, *tiers)
    return _frozen(
        fabric.hosts,
        fabric.mapped_count,
        fabric.index,
        [fabric.switch_of[tier] for tier in kept_tiers],
        [fabric.starts[tier] for tier in kept_tiers],
        [fabric.names[tier] for tier in kept_tiers],
        fabric.paths,
    )


def above(fabric: Fabric, tier: int) -> Fabric:
    """Return the fabric whose hosts are the switches of a tier, named by number. tier: below the top.

    Each is alone under a switch of tier 1, for what is counted are switches: a gang costs more on two of them than on
    one. Tiers above are the fabric's own, from tier 2 on.
    """
    first, tiers = fabric.starts[tier], [tier, *range(tier, fabric.tiers + 1)]
    mapped = int(np.searchsorted(first, fabric.mapped_count))
    hosts = tuple(map(str, range(len(first))))
    return _frozen(
        hosts,
        mapped,
        {host: at for at, host in enumerate(hosts)},
        [fabric.switch_of[up][first] for up in tiers],
        [fabric.switch_of[tier][fabric.starts[up]] for up in tiers],
        [fabric.names[up] for up in tiers],
        fabric.paths,
    )


def under(fabric: Fabric, tier: int, switch: int) -> Fabric:
    """Return the fabric under one switch, without names: its host ids count from the switch's first host."""
    first, end = fabric.span(tier, switch)
    rows = fabric.switch_of[: tier + 1, first:end]
    starts = [fabric.starts[at][rows[at, 0] : rows[at, -1] + 1] - np.int32(first) for at in range(tier + 1)]
    known = min(max(fabric.mapped_count - first, 0), end - first)
    hosts = fabric.hosts[first:end]
    return _frozen(hosts, known, {}, list(rows - rows[:, :1]), starts, [()] * (tier + 1), {})


def moved_share(old: Fabric, new: Fabric) -> float:
    """Return the share, 0..1, of the old map's hosts that the new map lacks or puts under other switches."""
    if not old.paths:
        return 0.0
    return sum(new.paths.get(host) != path for host, path in old.paths.items()) / len(old.paths)


def _tree(entries: Sequence[Entry]) -> nx.DiGraph[Path]:
    """Return the switches as a tree whose root is the empty path. Raises BadFabric."""
    import networkx as nx  # which takes a tenth of a second, for programs that never see a map

    tree: nx.DiGraph[Path] = nx.DiGraph()
    tree.add_node(())
    lines: dict[str, list[int]] = {}
    faults = []
    for entry in entries:
        lines.setdefault(entry.host, []).append(entry.line)
        if not entry.path or "" in entry.path:
            faults.append(Fault(entry.line, f"host {entry.host} hangs from no switch"))
            continue
        for depth in range(len(entry.path), 0, -1):
            path = entry.path[:depth]
            hangs = path[:-1] in tree
            tree.add_edge(path[:-1], path)
            if hangs:
                break
    faults += [
        Fault(sorted(at)[1], f"host {host} is named {len(at)} times") for host, at in lines.items() if len(at) > 1
    ]
    if faults:
        raise BadFabric(sorted(faults, key=lambda fault: (fault.line, fault.text)))
    if not nx.is_arborescence(tree):
        raise BadFabric([Fault(0, "the switches make no tree")])
    return tree


def _natural_once(name: str, keys: dict[str, Key]) -> Key:
    if name not in keys:
        keys[name] = natural(name)
    return keys[name]


def _tables(
    hosts: list[str], rows: list[tuple[Path, ...]], mapped: int, tiers: int, paths: Mapping[str, Path]
) -> Fabric:
    """Return the fabric of hosts in map order.

    rows: each host's switch path at every tier; hosts of one switch are neighbours.
    """
    count = len(hosts)
    switch_of = [np.arange(count, dtype=np.int32)]
    starts = [np.arange(count, dtype=np.int32)]
    names: list[tuple[Path, ...]] = [tuple((host,) for host in hosts)]
    for tier in range(1, tiers + 1):
        column = [row[tiers - tier] for row in rows]
        first = [at for at in range(count) if at == 0 or column[at] != column[at - 1]]
        starts.append(np.array(first, np.int32))
        names.append(tuple(column[at] for at in first))
        switch_of.append(np.repeat(np.arange(len(first), dtype=np.int32), np.diff([*first, count])))
    index = {host: at for at, host in enumerate(hosts)}
    return _frozen(tuple(hosts), mapped, index, switch_of, starts, names, paths)


def _frozen(
    hosts: tuple[str, ...],
    mapped_count: int,
    index: Mapping[str, int],
    rows: Sequence[Ids],
    starts: Sequence[Ids],
    names: Sequence[tuple[Path, ...]],
    paths: Mapping[str, Path],
) -> Fabric:
    """Return the fabric of these tables, which become read-only. rows: by tier, the switch above each host."""
    switch_of = np.stack(rows).astype(np.int32)
    first_child = [starts[0]] + [switch_of[tier - 1][starts[tier]] for tier in range(1, len(rows))]
    mapped = np.arange(len(hosts)) < mapped_count
    for array in (switch_of, mapped, *starts, *first_child):
        array.setflags(write=False)
    return Fabric(
        hosts=hosts,
        mapped=mapped,
        mapped_count=mapped_count,
        index=index,
        tiers=len(rows) - 1,
        switch_of=switch_of,
        starts=tuple(starts),
        first_child=tuple(first_child),
        names=tuple(names),
        paths=paths,
    )


EMPTY = _tables([], [], 0, 1, {})  # as build makes it of no entries, without networkx


def distance(fabric: Fabric, one: int, other: int, rule: DistanceRule = DistanceRule.ALL_TIERS) -> int:
    """Return the distance of two hosts, 0..T.

    Under LEAF_ONLY, hosts of different leaves all have distance T.
    """
    tier = fabric.tier_between(one, other)
    return fabric.tiers if rule is DistanceRule.LEAF_ONLY and tier > 1 else tier


def to_all(fabric: Fabric, host: int, rule: DistanceRule = DistanceRule.ALL_TIERS) -> npt.NDArray[np.int8]:
    """Return the distance of every host from one host."""
    return to_nearest(fabric, (host,), rule)


def to_nearest(
    fabric: Fabric, hosts: Iterable[int], rule: DistanceRule = DistanceRule.ALL_TIERS
) -> npt.NDArray[np.int8]:
    """Return the distance of every host from the nearest of some hosts, or T + 1 everywhere when none is given."""
    ids = np.fromiter(hosts, np.int32)
    distances = np.full(len(fabric.hosts), fabric.tiers + (not len(ids)), np.int8)
    if not len(ids):
        return distances
    tiers = (1, 0) if rule is DistanceRule.LEAF_ONLY else range(fabric.tiers - 1, -1, -1)
    for tier in tiers:
        marked_switches = np.zeros(len(fabric.starts[tier]), np.bool_)
        marked_switches[fabric.switch_of[tier][ids]] = True
        distances[marked_switches[fabric.switch_of[tier]]] = tier
    return distances


def common_tier(fabric: Fabric, hosts: Iterable[int]) -> int:
    """Return the tier of the lowest switch above all of some hosts; 0 for one host or none."""
    ids = sorted(set(hosts))
    if len(ids) < 2:
        return 0
    return fabric.tier_between(ids[0], ids[-1])  # ids run in fabric order, so the ends span the rest


def cost(fabric: Fabric, hosts_by_rank: Sequence[int]) -> Cost:
    """Return the cost of a ring in which rank i talks to rank i + 1 and the last rank to the first.

    hosts_by_rank: one host id per rank. An edge that leaves both a leaf and its spine counts once at each of the two
    tiers.
    """
    if not hosts_by_rank:
        return Cost((0,) * fabric.tiers, (0,) * fabric.tiers)
    rows = fabric.switch_of[1:, np.asarray(hosts_by_rank, np.int32)]
    crossings = tuple((rows != np.roll(rows, 1, axis=1)).sum(axis=1).tolist())
    switches = tuple(len(np.unique(row)) for row in rows)
    return Cost(crossings, switches, sum(crossings))


TOP = 10  # kube-scheduler's MaxExtenderPriority; it multiplies by the extender's weight


def scores(
    fabric: Fabric,
    planned_hosts: Iterable[int],
    anchors: Iterable[int] = (),
    rule: DistanceRule = DistanceRule.ALL_TIERS,
) -> npt.NDArray[np.int8]:
    """Return one score per host id: 10 for a planned host, and less with every tier to the nearest member.

    planned_hosts: their ids. anchors: host ids of members that are already placed.

    Scores fall strictly with the tier as far as eleven values allow. Hosts no nearer than the top switch and hosts off
    the map get 0. Without planned hosts and anchors every score is 0.
    """
    planned = np.fromiter(planned_hosts, np.int32)
    distances = to_nearest(fabric, [*planned.tolist(), *anchors], rule)
    result = _steps(fabric.tiers)[distances]
    result[~fabric.mapped] = 0
    result[planned] = TOP
    return result


def _steps(tiers: int) -> npt.NDArray[np.int8]:
    """Return the score of a host that is not planned, for each distance 0..T+1; at most 9."""
    lowest = TOP - 1
    if tiers <= lowest:
        steps = [lowest - (lowest * tier) // tiers for tier in range(tiers)]
    else:
        steps = [max(lowest - tier, 1) for tier in range(tiers)]
    return np.array([*steps, 0, 0], np.int8)
