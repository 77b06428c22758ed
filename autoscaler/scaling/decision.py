"""The state that the phases of a decision hand on: what is decided, who is left, and the room that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from turnout.autoscaler.model import JobState, Step
from turnout.autoscaler.scaling.reservations import Reservations

Steps = Mapping[object, Step]  # by the token of a JobState


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision after a phase. A phase makes the next one; only the two reservations are charged in place.

    waiting and running are in the order of the queues. A job in `running` has no step of its own yet; one that
    preempt makes smaller is taken out.
    """

    steps: Steps  # of the jobs that are decided
    waiting: Sequence[JobState]  # jobs that lack pods to their min
    running: Sequence[JobState]  # jobs that may grow
    free: Reservations  # what nobody holds now
    expected: Reservations  # `free` with what leaving workers give back; the same object where nobody leaves

    def with_steps(self, steps: Steps) -> Decision:
        """Return the decision with these steps added; a later phase has the last word on a job."""
        return replace(self, steps={**self.steps, **steps}) if steps else self
