"""One cell of the benchmark's table: a way to place gangs, a spacing of their pods, all seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from hack.bench.gates.stream import Sent
from hack.bench.support.percentiles import nearest_rank


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of one spacing, over all seeds."""

    way: str
    apart: str
    kubernetes: str  # of the scheduler's binary
    sent: tuple[Sent, ...]

    @property
    def crossings(self) -> float:
        """The mean over gangs."""
        return _mean(each for one in self.sent for each in one.crossings)

    def of_seed(self, at: int) -> float:
        """The mean over the gangs of one seed, the first is 0."""
        return _mean(self.sent[at].crossings)

    def bound_s(self, share: float) -> float:
        """A percentile of the time from a gang's last pod to its last binding."""
        return nearest_rank([each for one in self.sent for each in one.bound_s], share)

    @property
    def failed(self) -> int:
        """The gangs that were not bound in time."""
        return sum(one.failed for one in self.sent)

    @property
    def obeyed(self) -> float:
        """The share of nominations that the scheduler took."""
        placed = sum(one.placed for one in self.sent)
        return sum(one.obeyed for one in self.sent) / placed if placed else float("nan")

    @property
    def patches(self) -> float:
        """The patches of a pod, by whomever."""
        return sum(one.patches for one in self.sent) / max(1, sum(one.pods for one in self.sent))

    def first(self, seeds: int) -> Self:
        """Give the cell over its first seeds alone."""
        return replace(self, sent=self.sent[:seeds])


def _mean(values: Iterable[int]) -> float:
    """Return NaN for no values: every gang failed."""
    found = list(values)
    return statistics.fmean(found) if found else float("nan")
