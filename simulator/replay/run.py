"""Replay jobs from the first submission to the last end: events, the scheduler, and the autoscaler's looks between
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Observation, Policy, Reason, Step
from turnout.autoscaler.observe.room_history import IdleRoom
from turnout.simulator.replay.cluster import ReplayWorld
from turnout.simulator.replay.job_run import EPOCH_S
from turnout.simulator.replay.model import JobResult, ReplayOutcome, ReplayRules, Submission

Decide = Callable[[Observation, Policy, float], list[Step]]
Watch = Callable[[ReplayWorld], None]
_INSTANT_S = 0.001
_BUDGET_LOOK_S = 60.0  # a bank fills slowly
_MAX_LOOKS = 1000  # at one instant: a plan that is never done is a fault


def replay(
    submissions: Sequence[Submission],
    rules: ReplayRules,
    policy: Policy | None = None,
    decides: Decide = decide,
    watch: Watch | None = None,
) -> ReplayOutcome:
    """Replay all submissions to the last end, and return the results.

    submissions: at least one, with different names. policy: of the autoscaler; None leaves the autoscaler out, and
    every job keeps its min. decides: makes the decisions. watch: called after the events of each moment, and after each
    decision. The autoscaler decides at the first tick after an event, again after a change, and when a pause of a job
    is over. Between these moments its observation could not have changed. Raises ValueError for a job that an empty
    cluster cannot hold, and for no submissions.
    """
    world = ReplayWorld(submissions, rules)
    look_s, decisions = math.inf, 0
    idle = IdleRoom(policy.idle_before_growth_s if policy is not None else 0.0)
    while (event_s := world.next_s()) is not None or look_s < math.inf:
        if event_s is not None and event_s <= look_s:
            world.advance(event_s)
            if policy is not None:
                look_s = min(look_s, _tick(world.now_s, rules.tick_s))
        else:
            world.now_s = look_s
            look_s, decisions = _decide_and_carry_out(world, policy or Policy(), decides, idle), decisions + 1
        if watch is not None:
            watch(world)
    results = tuple(world.ended[each.name] for each in submissions)
    return ReplayOutcome(rules, results, tuple(world.evictions), world.worked_gpu_s, decisions)


def _decide_and_carry_out(world: ReplayWorld, policy: Policy, decides: Decide, idle: IdleRoom) -> float:
    """Let the autoscaler decide, and carry out its steps. If tick_s is 0, repeat this until nothing changes.

    Return the time at which it has to decide again if nothing happens before, in seconds since the begin of the replay;
    inf for never. idle: the history of idle room, which is updated. After _MAX_LOOKS repetitions the rest is left to
    the next decision.
    """
    tick_s, now_s = world.rules.tick_s, world.now_s + EPOCH_S
    steps = decides(idle.update(world.observation(), now_s), policy, now_s)
    changed = world.carry_out(steps, policy)
    for _ in range(_MAX_LOOKS if tick_s == 0 and changed else 0):
        steps = decides(idle.update(world.observation(), now_s), policy, now_s)
        if not world.carry_out(steps, policy):
            break
    if changed and tick_s:
        return world.now_s + tick_s
    return _due_s(world, policy, steps, idle)


def _due_s(world: ReplayWorld, policy: Policy, steps: Sequence[Step], idle: IdleRoom) -> float:
    """Return the time of the autoscaler's next decision, for the jobs that only a pause or cooldown delays.

    steps: of its last decision. In seconds since the begin of the replay; inf if there is no such job.
    """
    due = math.inf
    for step in steps:
        if step.reason is Reason.ROOM_SETTLES:
            due = min(due, idle.due_s(world.now_s + EPOCH_S) - EPOCH_S)
        if step.reason is Reason.COOLDOWN:
            due = min(due, world.running[step.key.name].resize_budget.resized_s - EPOCH_S + policy.cooldown_s)
        elif step.reason is Reason.BUDGET_SPENT:
            due = min(due, world.now_s + _BUDGET_LOOK_S)
        elif step.reason is Reason.NOT_READY:
            since_s = [pod.since_s for pod in world.running[step.key.name].pods if pod.row is None]
            due = min([due, *(at_s + policy.pending_s + _INSTANT_S for at_s in since_s)])
    tick_s = world.rules.tick_s
    return max(_tick(due, tick_s), world.now_s + (tick_s or _INSTANT_S)) if due < math.inf else due


def _tick(at_s: float, tick_s: float) -> float:
    """Return the time of the first decision that is not before `at_s`, in seconds since the begin of the replay.

    tick_s: seconds between decisions; 0 to decide at any time.
    """
    return max(at_s, math.ceil(round(at_s / tick_s, 6)) * tick_s) if tick_s else at_s


WORSE_S = 60.0  # nobody minds less
_SLACK_S = 0.001  # what floats may be off by


@dataclass(frozen=True, slots=True)
class Comparison:
    """A replay with the autoscaler beside the same one without it, job by job."""

    without: ReplayOutcome  # without the autoscaler
    lent: ReplayOutcome  # with the autoscaler

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
        unit_s = 2 * self.lent.rules.restart_s + self.lent.rules.grace_s
        return max(self.losses_s) / unit_s if unit_s else 0.0

    @property
    def worse(self) -> float:
        """The share of jobs that ended more than a minute later than without the autoscaler."""
        delays_s = self.losses_s
        return sum(delay_s > WORSE_S for delay_s in delays_s) / len(delays_s)

    @property
    def losses_s(self) -> list[float]:
        """How much later each job ended than without the autoscaler, in seconds; negative if it ended sooner."""
        return [after.ended_s - before.ended_s for before, after in self._pairs()]

    @property
    def undisturbed(self) -> float:
        """The share of jobs for which no other job had to give up workers."""
        helped = {eviction.beneficiary for eviction in self.lent.evictions}
        return 1 - len(helped) / len(self.lent.results)

    def capture(self, oracle: ReplayOutcome) -> float:
        """Return the gain in mean completion time as a share of an oracle's gain; 1 if the oracle gains nothing."""
        unit_s = self.without.mean_took_s - oracle.mean_took_s
        return (self.without.mean_took_s - self.lent.mean_took_s) / unit_s if unit_s > _SLACK_S else 1.0

    def _pairs(self) -> list[tuple[JobResult, JobResult]]:
        """Return (result without the autoscaler, result with it) of each job, in the order of submissions."""
        return list(zip(self.without.results, self.lent.results, strict=True))


def p99(values: Sequence[float]) -> float:
    """Return the value that 99 of 100 values do not exceed, one of the values. values: at least one, in any order."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
