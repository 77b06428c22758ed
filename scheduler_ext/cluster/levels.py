"""Which tier of the map a level means, and the domains of a level that only a node label knows.

A level is a number, a word, or the key of a node label. The tier of a label is the highest tier of which each switch
has nodes of one value alone. A label may know wider domains than such a switch: a zone of several spines, or a part of
a leaf. No switch of the map has exactly the hosts of such a domain, so the domain is a set of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.wishes.model import Level, tier_of_word
from turnout.kube import labels
from turnout.kube.node_capacity import ClusterSnapshot
from turnout.topology.fabric import Fabric, common_tier

MAX_LEVELS = 256


def tier_of_label(fabric: Fabric, values: Mapping[int, str | None]) -> int | None:
    """Return the highest tier (1: leaf) at which all hosts under each switch have the same label value.

    Return 0 if no tier qualifies, and None if no host has a value. values: host id -> label value, for hosts of the map
    that have a node. Hosts with None are ignored.
    """
    values = {host: value for host, value in values.items() if value is not None}
    if not values:
        return None
    for tier in range(fabric.tiers, 0, -1):
        row = fabric.switch_of[tier]
        value_of_switch: dict[int, str | None] = {}
        if all(value_of_switch.setdefault(int(row[host]), value) == value for host, value in values.items()):
            return tier
    return 0


@dataclass(frozen=True, slots=True)
class LabelDomains:
    """The domains of required levels that are wider than the switches in which all nodes have one value."""

    levels: tuple[Level, ...]  # node labels
    tiers: Mapping[Level, int]  # level -> the lowest tier at which each domain is under one switch
    row_domains: NDArray[np.int32]  # by row: the number of its domain; -1 for a row in no domain

    def number_of(self, rows: Sequence[int]) -> int:
        """Return the number of the domain that contains all of `rows`; -1 if no domain does. rows: at least one."""
        numbers = set(self.row_domains[list(rows)].tolist())
        return numbers.pop() if len(numbers) == 1 else -1


def domains_of_label(fabric: Fabric, level: str, tier: int, values: Mapping[int, str | None]) -> LabelDomains | None:
    """Return the domains of a node label, one for each value; None if the hosts of each value are under one switch of
    `tier`.

    tier: as tier_of_label() returns it, not None. values: host id -> label value, for hosts of the map that have a
    node. Hosts with None are in no domain. level: the key of the label.
    """
    hosts_by_value: dict[str, list[int]] = {}
    for host, value in values.items():
        if value is not None:
            hosts_by_value.setdefault(value, []).append(host)
    domains = [sorted(hosts_by_value[value]) for value in sorted(hosts_by_value)]
    widest = max(common_tier(fabric, hosts) for hosts in domains)
    if widest <= tier:
        return None
    row_domains = np.full(len(fabric.hosts), -1, np.int32)
    for number, hosts in enumerate(domains):
        row_domains[hosts] = number
    return LabelDomains((level,), {level: widest}, row_domains)


class Levels:
    """The tiers of levels, as nodes and the map are now."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        """Start without a map: `use` sets it. snapshot: the nodes whose labels are read, also later."""
        self._snapshot = snapshot
        self._fabric: Fabric | None = None
        self._offer_version = -1
        self._tiers: dict[str, int | None] = {}
        # Marks of rows that lack a label; None for no row.
        self._unlabelled_rows: dict[str, NDArray[np.bool_] | None] = {}
        self._label_domains: dict[str, LabelDomains] = {}  # of labels whose domains are wider than a switch

    def use(self, fabric: Fabric) -> None:
        """Use this map from now on. Forgets every tier that was computed for the map before."""
        self._fabric = fabric
        self._forget()

    def tier_of(self, level: Level) -> int | None:
        """Return the tier of a level: 0 for one host, 1 for a leaf.

        A number is returned as it is, even above the tiers of the map. A label that a mapped node has comes before a
        word of the same text; the tier of a word is at most that of the map. None for any other level, and without a
        map for every level but a number and the host name.
        """
        if isinstance(level, int):
            return level
        if level == labels.HOSTNAME:
            return 0
        self._look_up(level)
        return self._tiers[level]

    def rows_outside(self, levels: Iterable[Level]) -> NDArray[np.bool_] | None:
        """Return a mask of the rows of mapped nodes that lack the label of at least one of these levels; None if no
        node lacks one.

        Numbers, the host name, and labels that no mapped node has are ignored. The mask may be cached: do not change
        it.
        """
        found: NDArray[np.bool_] | None = None
        for level in levels:
            if isinstance(level, int) or level == labels.HOSTNAME:
                continue
            self._look_up(level)
            if (mask := self._unlabelled_rows[level]) is not None:
                found = mask if found is None else found | mask
        return found

    def label_domains(self, levels: Iterable[Level]) -> LabelDomains | None:
        """Return the domains of those levels that are node labels and whose domains are not switches of the map; None
        if no level is such a label.

        The nodes with one value of such a label lie under more than one switch of the label's tier.
        With several such levels, a domain is the set of rows with equal values of all of them. The result may be
        cached: do not change it.
        """
        found: list[LabelDomains] = []
        for level in levels:
            if isinstance(level, str) and level != labels.HOSTNAME:
                self._look_up(level)
                found += [self._label_domains[level]] if level in self._label_domains else []
        if len(found) < 2:
            return found[0] if found else None
        table = np.stack([each.row_domains for each in found])
        numbers = np.unique(table, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int32)
        numbers[(table < 0).any(axis=0)] = -1
        tiers = {level: tier for each in found for level, tier in each.tiers.items()}
        return LabelDomains(tuple(tiers), tiers, numbers)

    def _look_up(self, level: str) -> None:
        """Compute and store the tier of a node label, unless it is stored for the nodes as they are now.

        At most MAX_LEVELS are stored; the oldest is dropped first. level: the key of a label, or a word.
        """
        if self._offer_version != self._snapshot.offer_version:
            self._offer_version = self._snapshot.offer_version
            self._forget()
        if level not in self._tiers:
            while len(self._tiers) >= MAX_LEVELS:
                oldest = next(iter(self._tiers))
                del self._tiers[oldest], self._unlabelled_rows[oldest]
                self._label_domains.pop(oldest, None)
            self._tiers[level] = self._compute_tier(level)

    def _forget(self) -> None:
        self._tiers.clear()
        self._unlabelled_rows.clear()
        self._label_domains.clear()

    def _compute_tier(self, level: str) -> int | None:
        """Return the highest tier whose switches each have nodes of one value of a label; None if no mapped node has
        the label.

        A word such as `leaf` gives its own tier then. Also stores which rows lack the label, and domains wider than a
        switch. level: the key of a label, or a word.
        """
        self._unlabelled_rows[level] = None
        if self._fabric is None:
            return None
        rows, mapped = self._snapshot.row_of, self._fabric.mapped_count
        nodes = ((rows.get(name, mapped), node) for name, node in self._snapshot.nodes.items())
        values = {row: (node.metadata.labels or {}).get(level) for row, node in nodes if row < mapped}
        tier = tier_of_label(self._fabric, values)
        if tier is not None and (lacking := [row for row, value in values.items() if value is None]):
            mask = np.zeros(len(self._fabric.hosts), np.bool_)
            mask[lacking] = True
            self._unlabelled_rows[level] = mask
        if tier is not None and (wider := domains_of_label(self._fabric, level, tier, values)) is not None:
            self._label_domains[level] = wider
        if tier is None and (word := tier_of_word(level)) is not None:
            return min(word, self._fabric.tiers)
        return tier
