"""The tier of the map that a level means: by number, by the key of a node label, or by a word such as "rack".

The key of a label means the highest tier of which each switch has nodes of one value only. So a gang that stays under
one such switch also stays in one domain of the label. A node without the label is in no domain of the label: a gang
that requires the level does not use that node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.wishes.model import Level, by_word
from turnout.kube import labels
from turnout.kube.node_capacity import ClusterSnapshot
from turnout.topology.fabric import Fabric

MAX_LEVELS = 256


def tier_of_label(fabric: Fabric, values: Mapping[int, str | None]) -> int | None:
    """Return the highest tier of which each switch has hosts of one value only; None when no host has a value.

    values: of mapped hosts with a node, by host id. A host without a value is ignored.
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


class Levels:
    """The tiers of levels, as nodes and the map are now."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._fabric: Fabric | None = None
        self._offer_version = -1
        self._tiers: dict[str, int | None] = {}
        self._unlabelled_rows: dict[
            str, NDArray[np.bool_] | None
        ] = {}  # marks of rows that lack a label; None for no row

    def use(self, fabric: Fabric) -> None:
        """Use this map from now on."""
        self._fabric = fabric
        self._forget()

    def tier_of(self, level: Level) -> int | None:
        """Return the tier of a level; None for one that is not there."""
        if isinstance(level, int):
            return level
        if level == labels.HOSTNAME:
            return 0
        self._look_up(level)
        return self._tiers[level]

    def rows_outside(self, levels: Iterable[Level]) -> NDArray[np.bool_] | None:
        """Mark the rows of nodes that are in no domain of at least one of the levels; None if there is no such node.

        Only a level that is a node label has such nodes.
        """
        found: NDArray[np.bool_] | None = None
        for level in levels:
            if isinstance(level, int) or level == labels.HOSTNAME:
                continue
            self._look_up(level)
            if (marks := self._unlabelled_rows[level]) is not None:
                found = marks if found is None else found | marks
        return found

    def _look_up(self, level: str) -> None:
        if self._offer_version != self._snapshot.offer_version:
            self._offer_version = self._snapshot.offer_version
            self._forget()
        if level not in self._tiers:
            while len(self._tiers) >= MAX_LEVELS:
                oldest = next(iter(self._tiers))
                del self._tiers[oldest], self._unlabelled_rows[oldest]
            self._tiers[level] = self._compute_tier(level)

    def _forget(self) -> None:
        self._tiers.clear()
        self._unlabelled_rows.clear()

    def _compute_tier(self, level: str) -> int | None:
        self._unlabelled_rows[level] = None
        if self._fabric is None:
            return None
        rows, mapped = self._snapshot.row_of, self._fabric.mapped_count
        nodes = ((rows.get(name, mapped), node) for name, node in self._snapshot.nodes.items())
        values = {row: (node.metadata.labels or {}).get(level) for row, node in nodes if row < mapped}
        tier = tier_of_label(self._fabric, values)
        if tier is not None and (lacking := [row for row, value in values.items() if value is None]):
            marks = np.zeros(len(self._fabric.hosts), np.bool_)
            marks[lacking] = True
            self._unlabelled_rows[level] = marks
        if tier is None and (word := by_word(level)) is not None:
            return min(word, self._fabric.tiers)
        return tier
