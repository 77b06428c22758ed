"""Compare two replays of the same jobs: what lending gained, and which jobs paid for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnout.simulator.replay.model import Ran, Tape

WORSE_S = 60.0  # nobody minds less
_SLACK_S = 0.001  # what floats may be off by


@dataclass(frozen=True, slots=True)
class Compared:
    """A replay with the autoscaler beside the same one without it, job by job."""

    without: Tape
    lent: Tape

    @property
    def patience_s(self) -> float:
        """How much later a job may start: one grace of leaving workers, and one look."""
        return self.lent.rules.grace_s + self.lent.rules.tick_s

    @property
    def delays_s(self) -> list[float]:
        """How much later each job started than without the autoscaler, in seconds."""
        return [after.started_s - before.started_s for before, after in self._pairs()]

    @property
    def late(self) -> int:
        """The number of jobs that started later than they may."""
        return sum(delay_s > self.patience_s + _SLACK_S for delay_s in self.delays_s)

    @property
    def faster(self) -> float:
        """The mean completion time without the autoscaler over that with it."""
        return self.without.mean_took_s / self.lent.mean_took_s

    @property
    def harm(self) -> float:
        """The loss of the job that lost most, in units of two restarts and a grace."""
        most_s = 2 * self.lent.rules.restart_s + self.lent.rules.grace_s
        return max(self.losses_s) / most_s if most_s else 0.0

    @property
    def worse(self) -> float:
        """The share of jobs that ended more than a minute later."""
        losses_s = self.losses_s
        return sum(loss_s > WORSE_S for loss_s in losses_s) / len(losses_s)

    @property
    def losses_s(self) -> list[float]:
        """How much later each job ended, in seconds."""
        return [after.ended_s - before.ended_s for before, after in self._pairs()]

    @property
    def undisturbed(self) -> float:
        """The share of jobs for which no other job had to give up workers."""
        helped = {eviction.for_ for eviction in self.lent.evictions}
        return 1 - len(helped) / len(self.lent.ran)

    def capture(self, oracle: Tape) -> float:
        """The share of an oracle's gain in mean completion time; 1 where there is nothing to gain."""
        most_s = self.without.mean_took_s - oracle.mean_took_s
        return (self.without.mean_took_s - self.lent.mean_took_s) / most_s if most_s > _SLACK_S else 1.0

    def _pairs(self) -> list[tuple[Ran, Ran]]:
        return list(zip(self.without.ran, self.lent.ran, strict=True))


def p99(values: Sequence[float]) -> float:
    """Return the value that 99 of 100 do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
