"""Hold hosts for a gang that others have to leave: nobody of its priority or below is planned there meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.scheduler_ext.cache.gang import Gang


@dataclass(frozen=True, slots=True)
class _Reservation:
    rows: frozenset[int]
    priority: int


class HostReservations:
    """The hosts held, by gang. Clear them when rows change their meaning."""

    def __init__(self) -> None:
        self.release_count = 0  # raised whenever hosts are given back
        self._by_gang: dict[GangKey, _Reservation] = {}

    def reserve(self, gang: Gang, rows: Collection[int]) -> bool:
        """Hold these rows for a gang, and no others. True if that is new."""
        reservation = _Reservation(frozenset(rows), gang.priority)
        if self._by_gang.get(gang.key) == reservation:
            return False
        self.release(gang.key)
        self._by_gang[gang.key] = reservation
        return True

    def release(self, key: GangKey) -> None:
        """Hold nothing for a gang any more."""
        if self._by_gang.pop(key, None) is not None:
            self.release_count += 1

    def clear(self) -> None:
        """Hold nothing."""
        for key in list(self._by_gang):
            self.release(key)

    def rows_reserved_against(self, gang: Gang, rows: int) -> NDArray[np.bool_] | None:
        """Mark those of `rows` hosts that are held against a gang; None where there are none."""
        marks: NDArray[np.bool_] | None = None
        for key, reservation in self._by_gang.items():
            if key != gang.key and reservation.priority >= gang.priority:
                marks = np.zeros(rows, np.bool_) if marks is None else marks
                marks[list(reservation.rows)] = True
        return marks
