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

CONFIRM_S = 1.0
FORGET_S = 300.0
MAX_OBSERVATIONS = 256  # gangs and shapes of which hosts are remembered; past that the oldest is forgotten

Marks = NDArray[np.bool_]  # one mark a row


@dataclass(slots=True)
class _Observation:
    """The rows that were missing for the pods of one gang and shape."""

    since_s: float
    last_s: float
    missing: Marks
    rejected: Marks


class RejectedHosts:
    """The hosts left out, by gang and shape. Clear them when rows change their meaning."""

    def __init__(self) -> None:
        self._observations: dict[tuple[GangKey, PodShape], _Observation] = {}

    def rows_by_shape(self, key: GangKey) -> Mapping[PodShape, Marks]:
        """Return the rows that are believed to be refused for a gang, by shape."""
        return {
            shape: observation.rejected
            for (gang, shape), observation in self._observations.items()
            if gang == key and observation.rejected.any()
        }

    def note_missing(self, key: GangKey, shape: PodShape, missing: Marks, now_s: float) -> Marks:
        """Note which rows with room the scheduler did not name, and return those that are believed to be refused."""
        observation = self._observations.pop((key, shape), None)
        if observation is None:
            observation = _Observation(now_s, now_s, missing, np.zeros_like(missing))
        elif now_s - observation.since_s >= CONFIRM_S:
            observation.rejected = (observation.rejected | observation.missing) & missing
            observation.since_s, observation.missing = now_s, missing
        observation.last_s = now_s
        self._observations[key, shape] = observation
        while len(self._observations) > MAX_OBSERVATIONS:
            del self._observations[next(iter(self._observations))]
        return observation.rejected

    def note_offered(self, key: GangKey, shape: PodShape, rows: list[int]) -> bool:
        """Believe of no row that the scheduler names that it is refused. True if one of them was."""
        observation = self._observations.get((key, shape))
        if observation is None:
            return False
        was_rejected = bool(observation.rejected[rows].any())
        observation.rejected[rows] = observation.missing[rows] = False
        if not observation.missing.any():
            del self._observations[key, shape]
        return was_rejected

    def has_observation(self, key: GangKey, shape: PodShape) -> bool:
        """True if a host was left out for such a pod."""
        return (key, shape) in self._observations

    def expire(self, now_s: float) -> list[GangKey]:
        """Forget what was not seen for FORGET_S, and return the gangs of which that was believed."""
        old = [entry for entry, observation in self._observations.items() if now_s - observation.last_s >= FORGET_S]
        return [entry[0] for entry in old if self._observations.pop(entry).rejected.any()]

    def drop(self, key: GangKey) -> None:
        """Forget a gang that is gone."""
        for each in [each for each in self._observations if each[0] == key]:
            del self._observations[each]

    def clear(self) -> None:
        """Forget everything."""
        self._observations.clear()
