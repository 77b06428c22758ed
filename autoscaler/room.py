"""Room on nodes, as arrays: what is free, what a pod takes, and how many of a shape still fit.

A Room is charged and given back while one decision is made; `copied` before it, so that what was seen stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kube.shape import PodShape

Rows = NDArray[np.int64]
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

    def copied(self) -> Room:
        """The same room, to be charged."""
        return Room(self.names, self.free.copy(), self._takes, self._admits)

    def fits(self, shape: PodShape) -> Rows:
        """How many more pods of a shape each node holds."""
        takes = self._takes[shape]
        asked = takes > 0
        if not asked.any():
            return np.where(self._admits[shape], _NO_BOUND, 0)
        counts = (self.free[:, asked] // takes[asked]).min(axis=1)
        return np.where(self._admits[shape], np.maximum(counts, 0), 0)

    def take(self, shape: PodShape, pods: int) -> bool:
        """Charge so many pods, on the nodes that they fill best; False, and nothing charged, when they do not fit."""
        counts = self.fits(shape)
        if int(counts.sum()) < pods:
            return False
        takes, left = self._takes[shape], pods
        for row in np.argsort(np.where(counts > 0, counts, _NO_BOUND), kind="stable"):
            if not left:
                break
            here = min(left, int(counts[row]))
            self.free[row] -= takes * here
            left -= here
        return True

    def give(self, shape: PodShape, rows: Sequence[int]) -> None:
        """Give back what one pod took on each of these nodes."""
        for row in rows:
            self.free[row] += self._takes[shape]

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


def empty() -> Room:
    """No node at all."""
    return Room((), np.zeros((0, 0), dtype=np.int64), {}, {})
