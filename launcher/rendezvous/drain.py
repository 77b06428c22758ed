"""Ends a round in agreement: all ranks stop after the same step and save, and the next world goes on with other
members.

The stop step is ahead of the farthest rank. Ranks that reach it wait until all have answered that they have not passed
it. If one has, a later step is agreed. Processes that report no steps get SIGTERM, so that their own hook saves.
A world grows the same way, but not for members that cannot start processes yet, since training would wait for them.
docs/design.md 5
Before leavers go, members that stay fetch the shards that only leavers hold. What does not come in time is in storage
if that was fast enough, and lost otherwise. Source: XD-06
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from turnout.launcher.coordinator_messages import ALL, MOST_LOCATIONS, AdoptShards, Finish, Handover, Heartbeat, StopAt
from turnout.launcher.model import Exit, Member, Reason, World
from turnout.launcher.rendezvous.restore.replica_placement import assign_heirs
from turnout.launcher.rendezvous.restore.restore_plan import (
    SavedState,
    ShardRun,
    endpoints_of,
    ranks_in,
    runs_of,
    saved_states,
    step_to_persist,
)
from turnout.launcher.rendezvous.state import HandoverState, MemberState, Phase, Transition

STEPS_AHEAD = 2  # steps between the farthest one known and the one at which all stop
GROWTH_GRACE_S = 60.0  # seconds for a growing world to reach its stop step and save
STEP_SHARE = 0.8  # of the remaining time, for the agreed stop; the rest is for killing processes
HANDOVER_SHARE = 0.8  # of what remains then, for handing shards over; the rest is for leavers to exit
_STOPS = (Phase.DRAINING, Phase.STOPPING, Phase.HANDING)
_MOST_ENDPOINTS = 4


def mark_leaving(transition: Transition, id_: str, known: MemberState, grace_s: float) -> None:
    """Record that a member was asked to leave within `grace_s` seconds."""
    if known.leave_s is not None:
        return
    transition.set_member(id_, replace(known, leave_s=transition.now_s + grace_s))
    transition.log_event("member_leaving", Reason.DRAINED, member=known.member.name, grace_s=grace_s)
    phase = transition.state.phase
    if phase is Phase.GATHERING and known.held_steps and transition.is_in_world(id_):
        transition.state = replace(transition.state, phase=Phase.HANDING)
    elif not known.busy and not (phase in _STOPS and transition.is_in_world(id_)):
        transition.send(
            (id_,), Finish(int(Exit.DRAINED), Reason.DRAINED.value, "", transition.state.checkpoints.persist_step)
        )
        return
    # Its shards go to those who stay, together with those of other leavers.
    transition.state = replace(transition.state, checkpoints=replace(transition.state.checkpoints, handover=None))
    if phase is Phase.DRAINING:
        until_s = min(transition.state.ending.until_s, transition.now_s + grace_s * STEP_SHARE)
        transition.state = replace(transition.state, ending=replace(transition.state.ending, until_s=until_s))


def finish_message(transition: Transition, id_: str) -> Finish:
    """Make the message for a member that leaves after training has stopped: drained, or faulty."""
    if (why := transition.state.hanging.excluded.get(id_)) is not None:
        return Finish(int(Exit.FAULTY), Reason.NODE_FAULTY.value, why, transition.state.checkpoints.persist_step)
    return Finish(int(Exit.DRAINED), Reason.DRAINED.value, "", transition.state.checkpoints.persist_step)


def drain_reason(transition: Transition) -> tuple[Reason, str] | None:
    """Return why a healthy world should end its round: a member leaves, or it can grow; else None.

    Wakes the transition up when it may grow later.
    """
    at = transition.state
    if at.world is None:
        return None
    leavers = [
        known for id_ in at.world.assignments if (known := transition.members.get(id_)) and known.leave_s is not None
    ]
    if leavers:
        return Reason.MEMBER_LEFT, ", ".join(known.member.name for known in leavers)
    return _growth_reason(transition, at.world)


def _growth_reason(transition: Transition, world: World) -> tuple[Reason, str] | None:
    """Return the reason to end the round of a world that can grow now, or None. Wake up if it may grow later."""
    gathering, spec = transition.state.gathering, transition.state.job.elastic_spec
    ready_s = _ready_newcomers(transition)
    present = sum(id_ in transition.members for id_ in world.assignments) + len(ready_s)
    size = spec.world_size(present)
    if size <= len(world.members):
        return None
    settled_s = max(gathering.joined_s, *ready_s) + spec.settle_s
    if transition.now_s < settled_s and present < min(spec.max_nodes, gathering.worker_count or spec.max_nodes):
        transition.wake(settled_s)
        return None
    return Reason.MEMBER_JOINED, f"{len(world.members)} to {size} workers"


def _ready_newcomers(transition: Transition) -> list[float]:
    """List since when each newcomer has been ready to start processes. Wake up when the next one will be ready."""
    new_s = [
        transition.ready_s(id_)
        for id_, known in transition.members.items()
        if known.leave_s is None and not transition.is_in_world(id_)
    ]
    ready_s = [at_s for at_s in new_s if at_s <= transition.now_s]
    if len(ready_s) < len(new_s):
        transition.wake(min(at_s for at_s in new_s if at_s > transition.now_s))
    return ready_s


def record_heartbeat(transition: Transition, id_: str, known: MemberState, beat: Heartbeat) -> None:
    """Record a heartbeat: the member's step, the newest saved step, and whether it can start processes."""
    at = transition.state
    ready = not beat.importing_s and known.ready_s > transition.now_s
    if ready or beat.step != known.step:
        transition.set_member(id_, replace(known, step=beat.step, ready_s=transition.now_s if ready else known.ready_s))
    if beat.rank_zero is not None:
        transition.state = at = replace(at, rank_zero=beat.rank_zero)
    if ready and at.phase is Phase.TRAINING and not transition.is_in_world(id_):
        transition.log_event("member_ready", Reason.MEMBER_JOINED, member=known.member.name)
    if beat.saved > at.budget.saved_step:
        transition.state = replace(at, budget=at.budget.saved(beat.saved))


def drain(transition: Transition) -> None:
    """Bring all ranks to stop after the same step. End the processes if time is up or if they report no steps."""
    at = transition.state
    if not any(transition.is_in_world(id_) for id_ in transition.busy_members()):
        _end_drain(transition)
    elif at.ending.stop_step is None:
        _propose_first(transition)
    elif transition.now_s >= at.ending.until_s:
        transition.log_event("stop_step_missed", at.cause.reason, round=at.round, step=at.ending.stop_step)
        transition.end_processes(_left_s(transition))
    else:
        transition.wake(at.ending.until_s)
        _agree(transition, at.ending.stop_step)


def _end_drain(transition: Transition) -> None:
    """End the job if every rank has finished by itself, else stop the members that agree on no step."""
    at = transition.state
    if at.world is not None and not at.ending.confirmed and at.ending.done >= at.world.assignments.keys():
        transition.finish(Exit.DONE, Reason.ALL_DONE, f"round {at.round}")
    else:
        transition.state = replace(at, phase=Phase.STOPPING)


def _agree(transition: Transition, stop_step: int) -> None:
    """Confirm the step to stop after, once all have answered. If one has passed it, propose a later step."""
    answers = [known.reached for id_, known in transition.members.items() if known.busy and transition.is_in_world(id_)]
    if transition.state.ending.confirmed or any(answer is None for answer in answers):
        return
    farthest = max(answer for answer in answers if answer is not None)
    if farthest > stop_step:
        _propose(transition, farthest + STEPS_AHEAD)
    else:
        transition.state = replace(transition.state, ending=replace(transition.state.ending, confirmed=True))
        transition.send(transition.busy_members(), StopAt(transition.world_round, stop_step, True))


def _propose_first(transition: Transition) -> None:
    """Propose the step at which all members save and stop: a few steps after the farthest one.

    Without reported steps, the processes are ended at once with the time that is left.
    """
    farthest = max((known.step for id_, known in transition.members.items() if transition.is_in_world(id_)), default=-1)
    left_s = _left_s(transition)
    if farthest < 0:
        transition.end_processes(left_s)  # no steps are reported: SIGTERM lets the job's own hook save
        return
    transition.state = replace(
        transition.state, ending=replace(transition.state.ending, until_s=transition.now_s + left_s * STEP_SHARE)
    )
    _propose(transition, farthest + STEPS_AHEAD)
    transition.wake(transition.state.ending.until_s)


def _propose(transition: Transition, step: int) -> None:
    """Propose a stop step to all members that train; what they reached before no longer counts."""
    for id_, known in transition.members.items():
        if known.reached is not None:
            transition.set_member(id_, replace(known, reached=None))
    transition.state = replace(
        transition.state, ending=replace(transition.state.ending, stop_step=step, confirmed=False)
    )
    transition.send(transition.busy_members(), StopAt(transition.world_round, step, False))


def _left_s(transition: Transition) -> float:
    """Return the seconds left to the leaver with the least time, or GROWTH_GRACE_S if none leaves."""
    left = [
        known.leave_s - transition.now_s
        for known in transition.members.values()
        if known.leave_s is not None and known.busy
    ]
    return max(min(left, default=GROWTH_GRACE_S), 0.0)


def record_reached(transition: Transition, id_: str, known: MemberState, step: int) -> None:
    """Record the step that one member's processes have reached."""
    transition.set_member(id_, replace(known, reached=step))


def end_training(transition: Transition) -> None:
    """Handle the end of training: charge a fault to the restart budget, then start the handover."""
    at = transition.state = replace(
        transition.state, checkpoints=replace(transition.state.checkpoints, persist_step=step_to_persist(transition))
    )
    if at.cause.fault and not at.cause.lost:
        if at.budget.used >= at.job.elastic_spec.max_restarts:
            detail = f"{at.budget.used} of {at.job.elastic_spec.max_restarts} restarts are used; {at.cause.fault}"
            transition.finish(Exit.FAILED, Reason.BUDGET_SPENT, detail)
            return
        at = replace(at, budget=at.budget.charged())
    staying = sum(known.leave_s is None for known in transition.members.values())
    expected, call_s = (
        (0, 0.0) if at.job.elastic_spec.world_size(staying) else (at.fencing.base_size, at.job.elastic_spec.settle_s)
    )
    transition.state = replace(
        at,
        phase=Phase.HANDING,
        cause=replace(at.cause, fault="", lost=False, since_s=transition.now_s),
        gathering=replace(at.gathering, expected=expected, call_s=call_s),
        checkpoints=replace(at.checkpoints, handover=None),
    )


def hand_over(transition: Transition) -> None:
    """Run the handover, then dismiss the leavers and gather the next world, at once if nothing is to be handed over."""
    leavers = {id_: known for id_, known in transition.members.items() if known.leave_s is not None}
    handing = transition.state.checkpoints.handover
    if leavers and handing is None:
        left_s = min(known.leave_s - transition.now_s for known in leavers.values() if known.leave_s is not None)
        handing = _begin_handover(transition, leavers, transition.now_s + HANDOVER_SHARE * left_s)
        transition.state = replace(
            transition.state, checkpoints=replace(transition.state.checkpoints, handover=handing)
        )
    if handing is not None and handing.awaits & transition.members.keys() and transition.now_s < handing.until_s:
        transition.wake(handing.until_s)
        return
    for id_ in leavers:
        transition.send((id_,), finish_message(transition, id_))
    transition.state = replace(
        transition.state, phase=Phase.GATHERING, checkpoints=replace(transition.state.checkpoints, handover=None)
    )


def _begin_handover(transition: Transition, leavers: Mapping[str, MemberState], until_s: float) -> HandoverState:
    """If members that stay can adopt shards, order them to, and order the leavers to store theirs.

    Else send nothing, and wait for nobody.
    """
    at, state, takes = transition.state, *plan_handover(transition)
    left_s = until_s - transition.now_s
    if state is None or not takes or left_s <= 0:
        return HandoverState()
    step, origin, ranks = state
    for id_ in sorted(leavers.keys() | takes.keys()):
        transition.send((id_,), Handover(at.round, step, origin, ranks, left_s, takes.get(id_, ())))
    names = {transition.members[id_].member.name: len(takes[id_]) for id_ in sorted(takes)}
    transition.log_event("shards_handed_over", Reason.MEMBER_LEFT, round=at.round, step=step, ranks=ranks, to=names)
    return HandoverState(frozenset(takes), until_s)


def plan_handover(transition: Transition) -> tuple[SavedState | None, dict[str, tuple[AdoptShards, ...]]]:
    """Choose the newest step that is complete in memory, and which of the leavers' shards each staying member adopts.

    A step that only a world of its size can read is handed over only if the next world may have that size.
    """
    members = {id_: known.member for id_, known in transition.members.items()}
    held_steps = {id_: known.held_steps for id_, known in transition.members.items()}
    staying = _staying(transition)
    for state in saved_states(held_steps):
        runs = runs_of(state, held_steps, members)
        if state[2] == ALL:
            if any(run.id in staying for run in runs):
                break  # each daemon has all of it
            continue
        if ranks_in(runs) < set(range(state[2])):
            continue
        if _shrinks(transition, len(staying)) and not all(run.reshardable for run in runs):
            break
        return state, _assign_shards(members, runs, staying)
    return None, {}


def _staying(transition: Transition) -> list[str]:
    """List the members that stay and whose processes have ended."""
    return [id_ for id_, known in transition.members.items() if known.leave_s is None and not known.busy]


def _shrinks(transition: Transition, staying: int) -> bool:
    """Return True if the next world will be smaller than the last."""
    size = transition.state.job.elastic_spec.world_size(staying)
    return transition.state.world is not None and 0 < size < len(transition.state.world.members)


def _assign_shards(
    members: Mapping[str, Member], runs: tuple[ShardRun, ...], staying: list[str]
) -> dict[str, tuple[AdoptShards, ...]]:
    """Choose what each staying member adopts."""
    endpoints = endpoints_of(members.values())
    leaver_runs = _leaver_runs(runs, staying, endpoints)
    takers = [(id_, members[id_].path) for id_ in staying if id_ in endpoints]
    chosen = assign_heirs([(key, members[run.id].path) for key, run in leaver_runs.items()], takers)
    found: dict[str, list[AdoptShards]] = defaultdict(list)
    for key, heir in chosen.items():
        run = leaver_runs[key]
        givers = [endpoints[each.id] for each in runs if each.ranks == run.ranks and each.id in endpoints]
        owner = members[run.id].name if run.own else f"ranks {run.first_rank} and {run.count - 1} more"
        found[heir].append(AdoptShards(owner, run.first_rank, run.count, tuple(givers[:_MOST_ENDPOINTS])))
    return {id_: tuple(takes[:MOST_LOCATIONS]) for id_, takes in found.items()}


def _leaver_runs(runs: Sequence[ShardRun], staying: Collection[str], givers: Collection[str]) -> dict[str, ShardRun]:
    """Choose the runs of leavers among `givers` that together have each shard that no staying member has."""
    held_ranks, found = ranks_in(run for run in runs if run.id in staying), dict[str, ShardRun]()
    for number, run in enumerate(run for run in runs if run.id in givers and run.id not in staying):
        if not held_ranks.issuperset(run.ranks):
            held_ranks |= {*run.ranks}
            found[f"{number}"] = run
    return found
