"""Limit how much is planned for one question, in steps: the same count on every machine, fast, slow or busy.

plan_cache.py decides whose gangs are planned within the limit; place_gang.py counts the steps of one gang.
"""

from __future__ import annotations

from dataclasses import dataclass

QUESTION_STEPS = 15_000  # for gangs ahead of the one that is asked about, and HOST_STEPS more for each host
HOST_STEPS = 4
GANG_STEPS = 50_000  # for one gang, past which no further domain and no further shape of it is tried
SHAPES_STEPS = 20_000  # past which no further domain is tried for more shapes than are always looked at
ALL_STEPS = 1 << 60


@dataclass(slots=True)
class Work:
    """A number of steps to spend, each of about a microsecond. A begun part is finished, so it may be exceeded."""

    max_steps: int = GANG_STEPS
    spent_steps: int = 0

    def limit(self, most: int) -> None:
        """Allow no more steps than this in all."""
        self.max_steps = min(self.max_steps, most)

    def spend(self, steps: int) -> None:
        """Count some steps that were taken."""
        self.spent_steps += steps

    @property
    def steps_left(self) -> int:
        """The number of steps that may still be taken; at 0 or less no further part begins."""
        return self.max_steps - self.spent_steps
