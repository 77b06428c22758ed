"""Hold hosts for a gang that others have to leave: nobody of its priority or below is planned there meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.scheduler_ext.cache.gang import Gang


@dataclass(frozen=True, slots=True)
class _Held:
    rows: frozenset[int]
    priority: int


class HeldHosts:
    """The hosts held, by gang. Clear them when rows change their meaning."""

    def __init__(self) -> None:
        self.changes = 0  # raised whenever hosts are given back
        self._held: dict[GangKey, _Held] = {}

    def hold(self, gang: Gang, rows: Collection[int]) -> bool:
        """Hold these rows for a gang, and no others. True if that is new."""
        held = _Held(frozenset(rows), gang.priority)
        if self._held.get(gang.key) == held:
            return False
        self.release(gang.key)
        self._held[gang.key] = held
        return True

    def release(self, key: GangKey) -> None:
        """Hold nothing for a gang any more."""
        if self._held.pop(key, None) is not None:
            self.changes += 1

    def clear(self) -> None:
        """Hold nothing."""
        for key in list(self._held):
            self.release(key)

    def against(self, gang: Gang, rows: int) -> NDArray[np.bool_] | None:
        """Mark those of `rows` hosts that are held against a gang; None where there are none."""
        marks: NDArray[np.bool_] | None = None
        for key, held in self._held.items():
            if key != gang.key and held.priority >= gang.priority:
                marks = np.zeros(rows, np.bool_) if marks is None else marks
                marks[list(held.rows)] = True
        return marks
