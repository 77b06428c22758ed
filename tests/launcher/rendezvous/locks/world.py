"""Helpers of the tests of round locks: records, and a clock that only a test moves."""

from turnout.launcher.model import RestartBudget, RoundRecord
from turnout.launcher.rendezvous.arbiter import HeldRound


def record(round_=1, coordinator="anna", run="bert", budget=None, **more):
    """Build a record; its budget is that of a job which has seen two faults."""
    return RoundRecord(run, round_, coordinator, budget=budget or RestartBudget(1, 2, 100), **more)


def held(of=None, unrenewed_s=0.0, newest_round=0):
    """Build what an arbiter holds."""
    return HeldRound(of, "t", unrenewed_s, newest_round)


class Clock:
    """Monotonic time and the wall clock, which have nothing to do with one another."""

    def __init__(self, now_s=1000.0, wall_s=1_800_000_000.0):
        self.now_s, self.wall_s = now_s, wall_s

    def monotonic(self):
        return self.now_s

    def wall(self):
        return self.wall_s
