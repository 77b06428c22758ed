"""Replay jobs from the first submission to the last end: events, the scheduler, and the autoscaler's looks between
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Observation, Policy, Reason, Step
from turnout.autoscaler.observe.room_history import IdleRoom
from turnout.simulator.replay.cluster import World
from turnout.simulator.replay.job_run import EPOCH_S
from turnout.simulator.replay.model import Rules, Submission, Tape

Decide = Callable[[Observation, Policy, float], list[Step]]
Watch = Callable[[World], None]
_INSTANT_S = 0.001
_BUDGET_LOOK_S = 60.0  # a bank fills slowly
_MOST_LOOKS = 1000  # at one instant: a plan that is never done is a fault


def replay(
    submissions: Sequence[Submission],
    rules: Rules,
    policy: Policy | None = None,
    decides: Decide = decide,
    watch: Watch | None = None,
) -> Tape:
    """Replay all submissions. Raises ValueError for a job that an empty cluster cannot hold.

    policy: None leaves the autoscaler out, and every job keeps its min. watch: called at each event.

    The autoscaler looks at the first tick after an event, again after a change, and when a job's time has come. Between
    these moments its observation could not have changed.
    """
    world = World(submissions, rules)
    look_s, decisions = math.inf, 0
    idle = IdleRoom(policy.settle_s if policy is not None else 0.0)
    while (event_s := world.next_s()) is not None or look_s < math.inf:
        if event_s is not None and event_s <= look_s:
            world.advance(event_s)
            if policy is not None:
                look_s = min(look_s, _tick(world.now_s, rules.tick_s))
        else:
            world.now_s = look_s
            look_s, decisions = _look(world, policy or Policy(), decides, idle), decisions + 1
        if watch is not None:
            watch(world)
    ran = tuple(world.ended[each.name] for each in submissions)
    return Tape(rules, ran, tuple(world.evictions), world.worked_gpu_s, decisions)


def _look(world: World, policy: Policy, decides: Decide, idle: IdleRoom) -> float:
    """Decide and carry out. Returns when to look again if nothing happens.

    idle: the room seen so far.
    """
    tick_s, now_s = world.rules.tick_s, world.now_s + EPOCH_S
    steps = decides(idle.update(world.shown(), now_s), policy, now_s)
    changed = world.obey(steps, policy)
    for _ in range(_MOST_LOOKS if tick_s == 0 and changed else 0):
        steps = decides(idle.update(world.shown(), now_s), policy, now_s)
        if not world.obey(steps, policy):
            break
    if changed and tick_s:
        return world.now_s + tick_s
    return _due_s(world, policy, steps, idle)


def _due_s(world: World, policy: Policy, steps: Sequence[Step], idle: IdleRoom) -> float:
    """Return when a job may be resized that only time holds back."""
    due = math.inf
    for step in steps:
        if step.reason is Reason.ROOM_SETTLES:
            due = min(due, idle.due_s(world.now_s + EPOCH_S) - EPOCH_S)
        if step.reason is Reason.COOLDOWN:
            due = min(due, world.running[step.key.name].bank.resized_s - EPOCH_S + policy.cooldown_s)
        elif step.reason is Reason.BUDGET_SPENT:
            due = min(due, world.now_s + _BUDGET_LOOK_S)
        elif step.reason is Reason.NOT_READY:
            since_s = [pod.since_s for pod in world.running[step.key.name].pods if pod.row is None]
            due = min([due, *(at_s + policy.pending_s + _INSTANT_S for at_s in since_s)])
    tick_s = world.rules.tick_s
    return max(_tick(due, tick_s), world.now_s + (tick_s or _INSTANT_S)) if due < math.inf else due


def _tick(at_s: float, tick_s: float) -> float:
    """Return the first look that is not before a moment."""
    return max(at_s, math.ceil(round(at_s / tick_s, 6)) * tick_s) if tick_s else at_s
