"""Learn which hosts the scheduler leaves out for a gang, though they have room: another of its filters refuses them.

A host may also be missing because a member that another replica of ours placed is on its way there, which the watch
shows within a moment. So a host is believed to be refused only when it is missing twice, SURE_S apart. It is believed
so until the scheduler names it again, or for FORGET_S after it was last seen missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.kube.pod_shape import PodShape

SURE_S = 1.0
FORGET_S = 300.0
MOST_KEPT = 256  # gangs and shapes of which hosts are remembered; past that the oldest is forgotten

Marks = NDArray[np.bool_]  # one mark a row


@dataclass(slots=True)
class _Seen:
    """The rows that were missing for the pods of one gang and shape."""

    since_s: float
    last_s: float
    missing: Marks
    believed: Marks


class LeftOut:
    """The hosts left out, by gang and shape. Clear them when rows change their meaning."""

    def __init__(self) -> None:
        self._seen: dict[tuple[GangKey, PodShape], _Seen] = {}

    def of(self, key: GangKey) -> Mapping[PodShape, Marks]:
        """Return the rows that are believed to be refused for a gang, by shape."""
        return {
            shape: seen.believed for (gang, shape), seen in self._seen.items() if gang == key and seen.believed.any()
        }

    def note(self, key: GangKey, shape: PodShape, missing: Marks, now_s: float) -> Marks:
        """Note which rows with room the scheduler did not name, and return those that are believed to be refused."""
        seen = self._seen.pop((key, shape), None)
        if seen is None:
            seen = _Seen(now_s, now_s, missing, np.zeros_like(missing))
        elif now_s - seen.since_s >= SURE_S:
            seen.believed = (seen.believed | seen.missing) & missing
            seen.since_s, seen.missing = now_s, missing
        seen.last_s = now_s
        self._seen[key, shape] = seen
        while len(self._seen) > MOST_KEPT:
            del self._seen[next(iter(self._seen))]
        return seen.believed

    def offered(self, key: GangKey, shape: PodShape, rows: list[int]) -> bool:
        """Believe of no row that the scheduler names that it is refused. True if one of them was."""
        seen = self._seen.get((key, shape))
        if seen is None:
            return False
        back = bool(seen.believed[rows].any())
        seen.believed[rows] = seen.missing[rows] = False
        if not seen.missing.any():
            del self._seen[key, shape]
        return back

    def knows(self, key: GangKey, shape: PodShape) -> bool:
        """True if a host was left out for such a pod."""
        return (key, shape) in self._seen

    def expire(self, now_s: float) -> list[GangKey]:
        """Forget what was not seen for FORGET_S, and return the gangs of which that was believed."""
        old = [each for each, seen in self._seen.items() if now_s - seen.last_s >= FORGET_S]
        return [each[0] for each in old if self._seen.pop(each).believed.any()]

    def drop(self, key: GangKey) -> None:
        """Forget a gang that is gone."""
        for each in [each for each in self._seen if each[0] == key]:
            del self._seen[each]

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()
