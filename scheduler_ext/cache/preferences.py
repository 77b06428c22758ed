"""How gladly pods go to each node, by what they only prefer: soft node affinity, and taints that prefer no pods."""

from __future__ import annotations

import numpy as np

from turnout.kube.node_capacity import ClusterSnapshot, Rows
from turnout.kube.pod_shape import Term, admission_view, preference
from turnout.scheduler_ext.cache.pod_info import Member

MAX_TABLES = 64  # tables kept ready

_TableKey = tuple[tuple[tuple[str, str, str, str], ...], tuple[tuple[int, Term], ...]]


class Preferences:
    """One table for all pods that prefer the same, made when it is first asked for after a node changed."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._offer_version = -1
        self._tables: dict[_TableKey, Rows] = {}

    def of(self, member: Member) -> Rows | None:
        """Return a number for each row, the larger the gladder; None when all are alike to the pod."""
        if not member.preferred_terms and not self._snapshot.soft_tainted:
            return None
        if self._offer_version != self._snapshot.offer_version:
            self._offer_version = self._snapshot.offer_version
            self._tables.clear()
        key = (member.shape.tolerations, member.preferred_terms)
        table = self._tables.get(key)
        if table is None:
            while len(self._tables) >= MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            table = self._tables[key] = self._table(*key)
        return table

    def _table(self, tolerations: tuple[tuple[str, str, str, str], ...], wishes: tuple[tuple[int, Term], ...]) -> Rows:
        table = np.zeros(len(self._snapshot.order), np.int32)
        keys = sorted({key for _, (on_labels, _) in wishes for key, _, _ in on_labels})
        by_name = any(on_fields for _, (_, on_fields) in wishes)
        scores: dict[object, int] = {}  # nodes that look alike are judged once
        for name in self._snapshot.nodes if wishes else self._snapshot.soft_tainted:
            if (row := self._snapshot.row_of.get(name)) is None:
                continue
            node = self._snapshot.nodes[name]
            features = admission_view(node, keys, by_name)
            if features not in scores:
                scores[features] = preference(node, tolerations, wishes)
            table[row] = scores[features]
        return table
