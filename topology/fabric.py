"""The tree of switches as read-only numpy tables, built and checked once with networkx; distances between hosts.

A host's id is its position in fabric order: depth first, with names in natural order. So the hosts of every switch have
contiguous ids at every tier. Tiers count from below: a leaf, the access switch of hosts, is tier 1, however deep its
branch.

Three rules make the tree regular. If a switch holds both hosts and switches, the hosts get a leaf of their own below
it. In a short branch, the leaf also counts as the switch of each missing tier below its parent switch. Several roots
get one switch above them. `distance` defines what a distance means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from turnout.topology.model import BadFabric, Cost, DistanceRule, MapEntry, MapFault
from turnout.topology.switch_paths import Key, Path, natural_key, switches_above, tiers_of_switches, top_tier

if TYPE_CHECKING:
    import networkx as nx

Ids = npt.NDArray[np.int32]  # ids of hosts, or numbers of switches of one tier


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """The tables of one map. Two fabrics are equal only if they are the same object: a new map is a new fabric.

    H is the number of hosts and T the number of tiers of switches, 1 or more. Switches are numbered from 0 in each
    tier, in fabric order. Tier 0 are the hosts themselves.
    """

    hosts: tuple[str, ...]  # names by host id; hosts that the map does not know come last
    mapped: npt.NDArray[np.bool_]  # by host id: True if the map knows the host; the first `mapped_count` are True
    mapped_count: int  # the number of hosts that the map knows
    id_of_host: Mapping[str, int]  # host ids by name
    tiers: int  # T; the only switch of tier T holds every host
    # Shape (T+1, H): row t has the number of each host's switch of tier t, ascending; row 0 has the host ids.
    switch_of: Ids
    starts: tuple[Ids, ...]  # by tier 0..T: the first host id of each switch
    first_child: tuple[Ids, ...]  # by tier 0..T: the first switch one tier below each switch; for tier 0 itself
    names: tuple[tuple[Path, ...], ...]  # by tier 0..T: the path of each switch, for tier 0 the name of the host alone
    paths: Mapping[str, Path] = field(repr=False)  # the path of each mapped host, as the map has it

    def tier_between(self, host: int, other_host: int) -> int:
        """Return the tier of the lowest switch above two hosts, given by their ids; 0 if both are the same host."""
        rows = self.switch_of
        for tier in range(self.tiers):
            if rows[tier, host] == rows[tier, other_host]:
                return tier
        return self.tiers

    def span(self, tier: int, switch: int) -> tuple[int, int]:
        """Return (first host id, last host id + 1) of the hosts under a switch, given by its tier and its number."""
        first = self.starts[tier]
        end = int(first[switch + 1]) if switch + 1 < len(first) else len(self.hosts)
        return int(first[switch]), end


def build(entries: Iterable[MapEntry]) -> Fabric:
    """Build the tables of a map. The order of the entries makes no difference.

    Raises BadFabric with one fault for each host that is named several times, and for each entry whose path is empty or
    has an empty name.
    """
    entries = tuple(entries)
    tree = _tree(entries)
    tier_of = tiers_of_switches(tree.nodes)
    tiers = top_tier(tier_of, tree.out_degree(()))
    paths = {entry.host: entry.path for entry in entries}
    rows = [(switches_above(path, tier_of, tiers), host) for host, path in paths.items()]
    sort_keys: dict[str, Key] = {}
    rows.sort(key=lambda each: [_cached_natural_key(name, sort_keys) for name in (*each[0][-1], each[1])])
    return _fabric_of_rows([host for _, host in rows], [chain for chain, _ in rows], len(rows), tiers, paths)


def with_unmapped_hosts(fabric: Fabric, names: Iterable[str]) -> Fabric:
    """Return the fabric with additional hosts that its map does not know, placed after all others.

    Each of them has a branch of its own up to a new top. So its distance from every host exceeds the distance of any
    two mapped hosts. Names that the fabric has already are ignored. Without a new name `fabric` itself is returned.
    """
    new_names = sorted({name for name in names if name not in fabric.id_of_host}, key=natural_key)
    if not new_names:
        return fabric
    old, count = len(fabric.hosts), len(new_names)
    tiers = fabric.tiers + 1 if fabric.mapped_count == old else fabric.tiers
    rows, starts, names_of = [], [], []
    for tier in range(tiers):
        number = len(fabric.starts[tier])
        rows.append(np.concatenate([fabric.switch_of[tier], np.arange(number, number + count, dtype=np.int32)]))
        starts.append(np.concatenate([fabric.starts[tier], np.arange(old, old + count, dtype=np.int32)]))
        names_of.append(fabric.names[tier] + tuple((name,) for name in new_names))
    rows.append(np.zeros(old + count, np.int32))
    starts.append(np.zeros(1, np.int32))
    names_of.append(((),))
    hosts = fabric.hosts + tuple(new_names)
    id_of_host = {**fabric.id_of_host, **{name: old + position for position, name in enumerate(new_names)}}
    return _fabric_of_tables(hosts, fabric.mapped_count, id_of_host, rows, starts, names_of, fabric.paths)


def with_only_tiers(fabric: Fabric, tiers: Sequence[int]) -> Fabric:
    """Return the fabric with some tiers of switches only, renumbered from 1. Hosts and their ids stay.

    tiers: tiers of `fabric` to keep, ascending, at least one; the last one must be its top tier.
    """
    selected_tiers = (0, *tiers)
    return _fabric_of_tables(
        fabric.hosts,
        fabric.mapped_count,
        fabric.id_of_host,
        [fabric.switch_of[tier] for tier in selected_tiers],
        [fabric.starts[tier] for tier in selected_tiers],
        [fabric.names[tier] for tier in selected_tiers],
        fabric.paths,
    )


def fabric_of_switches(fabric: Fabric, tier: int) -> Fabric:
    """Return the fabric whose hosts are the switches of a tier. A host's id is the switch's number, its name that
    number.

    tier: of `fabric`, below its top. Each such host has a switch of tier 1 for itself, because switches are counted: a
    gang costs more on two of them than on one. Tiers from 2 on are those of `fabric` above `tier`.
    """
    first, tiers = fabric.starts[tier], [tier, *range(tier, fabric.tiers + 1)]
    mapped = int(np.searchsorted(first, fabric.mapped_count))
    hosts = tuple(map(str, range(len(first))))
    return _fabric_of_tables(
        hosts,
        mapped,
        {host: number for number, host in enumerate(hosts)},
        [fabric.switch_of[upper_tier][first] for upper_tier in tiers],
        [fabric.switch_of[tier][fabric.starts[upper_tier]] for upper_tier in tiers],
        [fabric.names[upper_tier] for upper_tier in tiers],
        fabric.paths,
    )


def fabric_under(fabric: Fabric, tier: int, switch: int) -> Fabric:
    """Return the fabric under one switch. Host ids count from the switch's first host.

    tier, switch: the tier and the number of the switch. The result has the tiers 0..`tier` and the names in
    `hosts`; `names`, `id_of_host` and `paths` are empty.
    """
    first, end = fabric.span(tier, switch)
    rows = fabric.switch_of[: tier + 1, first:end]
    starts = [
        fabric.starts[lower_tier][rows[lower_tier, 0] : rows[lower_tier, -1] + 1] - np.int32(first)
        for lower_tier in range(tier + 1)
    ]
    mapped_count = min(max(fabric.mapped_count - first, 0), end - first)
    hosts = fabric.hosts[first:end]
    return _fabric_of_tables(hosts, mapped_count, {}, list(rows - rows[:, :1]), starts, [()] * (tier + 1), {})


def moved_share(old: Fabric, new: Fabric) -> float:
    """Return the share, 0..1, of the old map's hosts that the new map lacks or puts under other switches.

    A switch that only has another name is the same switch: the pairs of an old and a new path with the most hosts are
    taken first, and of two such pairs one with equal names. 0 if the old map has no hosts.
    """
    if not old.paths:
        return 0.0
    both = [(path, new.paths[host]) for host, path in old.paths.items() if len(new.paths.get(host, ())) == len(path)]
    counts = Counter((before[:depth], after[:depth]) for before, after in both for depth in range(1, len(before) + 1))
    new_path: dict[Path, Path] = {}  # by the old path of a switch
    used_paths: set[Path] = set()
    for before, after in sorted(counts, key=lambda pair: (-counts[pair], pair[0] != pair[1])):
        if before not in new_path and after not in used_paths:
            new_path[before] = after
            used_paths.add(after)
    stay = sum(
        all(new_path.get(before[:depth]) == after[:depth] for depth in range(1, len(before) + 1))
        for before, after in both
    )
    return (len(old.paths) - stay) / len(old.paths)


def _tree(entries: Sequence[MapEntry]) -> nx.DiGraph[Path]:
    """Return the switches of a map as a tree of their paths, whose root is the empty path.

    Raises BadFabric with every fault of the entries: a host without a switch, and a host that is named several times.
    If there is no such fault and the switches do not form a tree, this is the fault.
    """
    import networkx as nx  # its import takes a tenth of a second, which programs without a map need not spend

    tree: nx.DiGraph[Path] = nx.DiGraph()
    tree.add_node(())
    lines: dict[str, list[int]] = {}
    faults = []
    for entry in entries:
        lines.setdefault(entry.host, []).append(entry.line)
        if not entry.path or "" in entry.path:
            faults.append(MapFault(entry.line, f"host {entry.host} has no switch above it"))
            continue
        for depth in range(len(entry.path), 0, -1):
            path = entry.path[:depth]
            parent_exists = path[:-1] in tree
            tree.add_edge(path[:-1], path)
            if parent_exists:
                break
    faults += [
        MapFault(sorted(numbers)[1], f"host {host} is named {len(numbers)} times")
        for host, numbers in lines.items()
        if len(numbers) > 1
    ]
    if faults:
        raise BadFabric(sorted(faults, key=lambda fault: (fault.line, fault.text)))
    if not nx.is_arborescence(tree):
        raise BadFabric([MapFault(0, "the switches do not form a tree")])
    return tree


def _cached_natural_key(name: str, keys: dict[str, Key]) -> Key:
    """Return the natural sort key of a name, and remember it in `keys`, which is changed."""
    if name not in keys:
        keys[name] = natural_key(name)
    return keys[name]


def _fabric_of_rows(
    hosts: list[str], rows: list[tuple[Path, ...]], mapped_count: int, tiers: int, paths: Mapping[str, Path]
) -> Fabric:
    """Return the fabric of hosts in fabric order.

    hosts: their names. rows: for each host the paths of its switches of tier T, T-1, ..., 1; hosts of one switch are
    neighbours. mapped_count: the number of hosts that the map knows, which come first. tiers: T. paths: the path of
    each mapped host, as the map has it.
    """
    count = len(hosts)
    switch_of = [np.arange(count, dtype=np.int32)]
    starts = [np.arange(count, dtype=np.int32)]
    names: list[tuple[Path, ...]] = [tuple((host,) for host in hosts)]
    for tier in range(1, tiers + 1):
        column = [chain[tiers - tier] for chain in rows]
        first = [position for position in range(count) if position == 0 or column[position] != column[position - 1]]
        starts.append(np.array(first, np.int32))
        names.append(tuple(column[position] for position in first))
        switch_of.append(np.repeat(np.arange(len(first), dtype=np.int32), np.diff([*first, count])))
    id_of_host = {host: position for position, host in enumerate(hosts)}
    return _fabric_of_tables(tuple(hosts), mapped_count, id_of_host, switch_of, starts, names, paths)


def _fabric_of_tables(
    hosts: tuple[str, ...],
    mapped_count: int,
    id_of_host: Mapping[str, int],
    rows: Sequence[Ids],
    starts: Sequence[Ids],
    names: Sequence[tuple[Path, ...]],
    paths: Mapping[str, Path],
) -> Fabric:
    """Return the fabric of these tables, which become read-only.

    rows: by tier 0..T, the number of each host's switch. starts: by tier, the first host id of each switch. names: by
    tier, the path of each switch. The other arguments are the fields of Fabric.
    """
    switch_of = np.stack(rows).astype(np.int32)
    first_child = [starts[0]] + [switch_of[tier - 1][starts[tier]] for tier in range(1, len(rows))]
    mapped = np.arange(len(hosts)) < mapped_count
    for array in (switch_of, mapped, *starts, *first_child):
        array.setflags(write=False)
    return Fabric(
        hosts=hosts,
        mapped=mapped,
        mapped_count=mapped_count,
        id_of_host=id_of_host,
        tiers=len(rows) - 1,
        switch_of=switch_of,
        starts=tuple(starts),
        first_child=tuple(first_child),
        names=tuple(names),
        paths=paths,
    )


EMPTY = _fabric_of_rows([], [], 0, 1, {})  # the same as build(()), without the import of networkx


def distance(fabric: Fabric, host: int, other_host: int, rule: DistanceRule = DistanceRule.ALL_TIERS) -> int:
    """Return the distance of two hosts by a rule, 0..T: the tier of the lowest switch above both, 0 for the same host.

    host, other_host: host ids. Under LEAF_ONLY, hosts of different leaves all have distance T.
    """
    tier = fabric.tier_between(host, other_host)
    return fabric.tiers if rule is DistanceRule.LEAF_ONLY and tier > 1 else tier


def distances_from(fabric: Fabric, host: int, rule: DistanceRule = DistanceRule.ALL_TIERS) -> npt.NDArray[np.int8]:
    """Return the distance of every host from one host, by host id. host: a host id."""
    return distances_from_nearest(fabric, (host,), rule)


def distances_from_nearest(
    fabric: Fabric, hosts: Iterable[int], rule: DistanceRule = DistanceRule.ALL_TIERS
) -> npt.NDArray[np.int8]:
    """Return the distance of every host, by host id, from the nearest of some hosts.

    T + 1 everywhere if `hosts` is empty. hosts: host ids. rule: as for distance().
    """
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
    """Return the tier of the lowest switch above all of some hosts; 0 for one host or none.

    hosts: host ids, in any order.
    """
    ids = sorted(set(hosts))
    if len(ids) < 2:
        return 0
    return fabric.tier_between(
        ids[0], ids[-1]
    )  # ids are in fabric order, so the switch above the first and the last covers all


def ring_cost(fabric: Fabric, hosts_by_rank: Sequence[int]) -> Cost:
    """Return the cost of a ring in which rank i talks to rank i + 1 and the last rank to the first.

    hosts_by_rank: the host id of each rank; if it is empty every cost is 0. An edge that leaves both a leaf and its
    spine counts once at each of the two tiers.
    """
    if not hosts_by_rank:
        return Cost((0,) * fabric.tiers, (0,) * fabric.tiers)
    rows = fabric.switch_of[1:, np.asarray(hosts_by_rank, np.int32)]
    crossings = tuple((rows != np.roll(rows, 1, axis=1)).sum(axis=1).tolist())
    switches = tuple(len(np.unique(row)) for row in rows)
    return Cost(crossings, switches, sum(crossings))


TOP = 10  # the largest score: kube-scheduler's MaxExtenderPriority


def scores(
    fabric: Fabric,
    planned_hosts: Iterable[int],
    anchors: Iterable[int] = (),
    rule: DistanceRule = DistanceRule.ALL_TIERS,
) -> npt.NDArray[np.int8]:
    """Return a score 0..10 for each host id: 10 for a planned host, less with every tier to the nearest member.

    A member is a planned host or an anchor; the host of an anchor that is not planned gets 9. planned_hosts: host ids
    of the plan. anchors: host ids of members that are placed already. rule: as for distance(). Up to nine tiers, a
    higher tier always gives a lower score; with more tiers, far tiers share the score 1. Other hosts get 0 if they are
    off the map, or under no common switch with a member but the top one. Without planned hosts and anchors every score
    is 0.
    """
    planned = np.fromiter(planned_hosts, np.int32)
    distances = distances_from_nearest(fabric, [*planned.tolist(), *anchors], rule)
    result = _score_by_distance(fabric.tiers)[distances]
    result[~fabric.mapped] = 0
    result[planned] = TOP
    return result


def _score_by_distance(tiers: int) -> npt.NDArray[np.int8]:
    """Return the score, 0..9, of a host that the plan does not use, by its distance 0..T+1 from the nearest member.

    tiers: T. If T is at most 9, a greater distance below T always has a lower score; if T is larger, all distances from
    8 to T-1 have the score 1. The distances T and T+1 have the score 0.
    """
    largest = TOP - 1
    if tiers <= largest:
        steps = [largest - (largest * tier) // tiers for tier in range(tiers)]
    else:
        steps = [max(largest - tier, 1) for tier in range(tiers)]
    return np.array([*steps, 0, 0], np.int8)
