"""Room on nodes, as arrays: what is free, what a pod takes, and how many of a shape still fit.

A Room is charged and given back while one decision is made; `copied` before it, so that what was seen stays. How many
of a shape fit is counted once for all nodes and then kept for the nodes that change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kube.shape import PodShape

Rows = NDArray[np.int64]
Charges = list[tuple[int, int]]  # (row, pods)
_NO_BOUND = 1 << 40


class Room:
    """free: nodes x resources, named by `names`. takes: shape -> what one pod of it takes.

    admits: shape -> which nodes let it in.
    """

    def __init__(
        self,
        names: Sequence[str],
        free: Rows,
        takes: Mapping[PodShape, Rows],
        admits: Mapping[PodShape, NDArray[np.bool_]],
    ) -> None:
        self.names, self.free, self._takes, self._admits = names, free, takes, admits
        self._counts: dict[PodShape, Rows] = {}
        self._totals: dict[PodShape, int] = {}
        self._order: dict[PodShape, list[int]] = {}  # rows to be filled, the fullest first
        self._at: dict[PodShape, int] = {}  # how many of them have been filled

    def copied(self) -> Room:
        """The same room, to be charged."""
        other = Room(self.names, self.free.copy(), self._takes, self._admits)
        other._counts = {shape: counts.copy() for shape, counts in self._counts.items()}
        other._totals = dict(self._totals)
        return other

    def fits(self, shape: PodShape) -> Rows:
        """How many more pods of a shape each node holds. Read only."""
        known = self._counts.get(shape)
        if known is None:
            takes = self._takes[shape]
            asked = takes > 0
            counts = (
                (self.free[:, asked] // takes[asked]).min(axis=1) if asked.any() else np.full(len(self.free), _NO_BOUND)
            )
            known = self._counts[shape] = np.where(self._admits[shape], np.maximum(counts, 0), 0)
            self._totals[shape] = int(known.sum())
        return known

    def total(self, shape: PodShape) -> int:
        """How many more pods of a shape all nodes hold together."""
        self.fits(shape)
        return self._totals[shape]

    def take(self, shape: PodShape, pods: int) -> Charges | None:
        """Charge so many pods, on the fullest nodes first; None, and nothing charged, when they do not fit."""
        if self.total(shape) < pods:
            return None
        if shape not in self._order:
            counts = self._counts[shape]
            rows = np.flatnonzero(counts)
            self._order[shape] = rows[np.argsort(counts[rows], kind="stable")].tolist()
            self._at[shape] = 0
        order, counts, charged, left = self._order[shape], self._counts[shape], [], pods
        while left:
            row = order[self._at[shape]]
            here = min(left, int(counts[row]))
            if here:
                self._charge(row, shape, here)
                charged.append((row, here))
                left -= here
            if not counts[row]:
                self._at[shape] += 1
        return charged

    def undo(self, shape: PodShape, charges: Charges) -> None:
        """Take back what `take` has charged."""
        for row, pods in charges:
            self._charge(row, shape, -pods)

    def give(self, shape: PodShape, rows: Sequence[int], sign: int = 1) -> None:
        """Give back what one pod took on each of these nodes, or with sign=-1 take it."""
        for row in rows:
            self._charge(row, shape, -sign)

    def keep(self, amounts: Mapping[str, int]) -> None:
        """Keep amounts free, on the nodes that have most of each: a headroom."""
        for name, amount in amounts.items():
            if name not in self.names:
                continue
            column, left = self.names.index(name), amount
            for row in np.argsort(-self.free[:, column], kind="stable"):
                here = min(left, max(0, int(self.free[row, column])))
                self.free[row, column] -= here
                left -= here
                if left <= 0:
                    break
        for known in (self._counts, self._totals, self._order, self._at):
            known.clear()

    def _charge(self, row: int, shape: PodShape, pods: int) -> None:
        self.free[row] -= self._takes[shape] * pods
        left = self.free[row].tolist()
        for other, counts in self._counts.items():
            if not self._admits[other][row]:
                continue
            fits = min((left[c] // t for c, t in enumerate(self._takes[other].tolist()) if t > 0), default=_NO_BOUND)
            before, now = int(counts[row]), max(fits, 0)
            if now != before:
                counts[row] = now
                self._totals[other] += now - before
                if now > before and other in self._order:
                    self._order[other].append(row)  # it may have been passed already
