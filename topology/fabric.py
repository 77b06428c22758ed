"""The switch tree as frozen numpy tables: built and checked once by networkx, asked without a walk.

A host's id is its place in fabric order: depth first, names in natural order, so every switch is one run of ids at
every tier. Tiers count from below: a leaf is tier 1, however deep its branch. A switch that holds hosts beside
switches gets a leaf of its own for them; a short branch is repeated up to the tier below the switch it hangs from.
Several roots get one switch above them. What a distance means is in distance.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import numpy.typing as npt

from turnout.topology.errors import BadFabric
from turnout.topology.model import Entry, Fault
from turnout.topology.switch_paths import Key, Path, heights, natural, row, top

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """The tables. Compared by identity: a new map is a new fabric.

    hosts: names in fabric order, id = position; those the map does not know come last. mapped: per host id, whether
    the map knows it; the first `mapped_count` are. index: name -> id. tiers: T >= 1, its only switch holds
    everything. switch_of: (T+1, H), row t = id of each host's switch of tier t, ascending; row 0 = the host ids.
    starts: per tier 0..T the first host id of each switch; first_child: the first switch one tier below it.
    names: per tier 0..T the path of each switch.
    """

    hosts: tuple[str, ...]
    mapped: npt.NDArray[np.bool_]
    mapped_count: int
    index: Mapping[str, int]
    tiers: int
    switch_of: Ids
    starts: tuple[Ids, ...]
    first_child: tuple[Ids, ...]
    names: tuple[tuple[Path, ...], ...]
    paths: Mapping[str, Path] = field(repr=False)  # as the map wrote them, mapped hosts only

    def tier_between(self, one: int, other: int) -> int:
        """Return the tier of the lowest switch over two hosts, 0 for a host and itself."""
        rows = self.switch_of
        for tier in range(self.tiers):
            if rows[tier, one] == rows[tier, other]:
                return tier
        return self.tiers

    def span(self, tier: int, switch: int) -> tuple[int, int]:
        """Return the first host id of a switch and the one past its last."""
        first = self.starts[tier]
        end = int(first[switch + 1]) if switch + 1 < len(first) else len(self.hosts)
        return int(first[switch]), end


def build(entries: Iterable[Entry]) -> Fabric:
    """Build the tables of a map. The order of entries has no influence.

    Raises BadFabric for hosts named twice or without a switch, told once each.
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


def with_strangers(fabric: Fabric, names: Iterable[str]) -> Fabric:
    """Return the fabric with hosts that its map does not know, after all others.

    Each stands alone up to the old top, so it is farther from everything than two mapped hosts ever are. Names that
    the fabric already has are passed over; without a new one the fabric itself is returned.
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
    """Return the fabric with only these tiers of switches, ascending, the highest being the top one."""
    kept = (0, *tiers)
    return _frozen(
        fabric.hosts,
        fabric.mapped_count,
        fabric.index,
        [fabric.switch_of[tier] for tier in kept],
        [fabric.starts[tier] for tier in kept],
        [fabric.names[tier] for tier in kept],
        fabric.paths,
    )


def moved_share(old: Fabric, new: Fabric) -> float:
    """Return the share 0..1 of the old map's hosts that the new one lacks or puts under other switches."""
    if not old.paths:
        return 0.0
    return sum(new.paths.get(host) != path for host, path in old.paths.items()) / len(old.paths)


def _tree(entries: Sequence[Entry]) -> nx.DiGraph[Path]:
    """Return the switches as a tree under the empty path."""
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


EMPTY = build(())
