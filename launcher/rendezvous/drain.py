"""Ends a round in agreement: all ranks stop after the same step and save, and the next world continues with other
members. It also charges a process failure to the restart budget, max_restarts.

The proposed stop step is STEPS_AHEAD after the farthest rank. Ranks that reach it wait until all members have answered
that they have not passed it. If a rank has passed it, a later step is proposed. Processes that report no steps get
SIGTERM, so that their own hook saves. A world grows the same way, but not for members that cannot start processes yet,
since training would wait for them. Before leaving members end, members that stay fetch the shards that only leavers
hold. A shard that is not fetched in time is lost unless the leaver has written it to storage by then. Source:
docs/design.md 5; XD-06
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from turnout.launcher.coordinator_messages import ALL, MAX_LOCATIONS, AdoptShards, Finish, Handover, Heartbeat, StopAt
from turnout.launcher.model import Exit, Member, Reason, World
from turnout.launcher.rendezvous.diagnosis.node_check import ready_time_s
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
from turnout.launcher.rendezvous.state import HandoverState, MemberState, Phase, Transition, busy_members

STEPS_AHEAD = 2  # steps between the farthest one known and the one at which all stop
GROWTH_GRACE_S = 60.0  # seconds for a growing world to reach its stop step and save
STEP_SHARE = 0.8  # of the remaining time, for the agreed stop; the rest is for killing processes
HANDOVER_SHARE = 0.8  # of what remains then, for handing shards over; the rest is for leavers to exit
_STOP_PHASES = (Phase.DRAINING, Phase.STOPPING, Phase.HANDING)
_MAX_ENDPOINTS = 4  # daemons named to a member that adopts a shard


def mark_leaving(transition: Transition, id_: str, member_state: MemberState, grace_s: float) -> None:
    """Record that a member was asked to leave within `grace_s` seconds, and tell it to finish if it need not wait.

    A second request changes nothing. A member that trains or holds shards of the world first drains and hands over.
    """
    if member_state.leave_s is not None:
        return
    transition.set_member(id_, replace(member_state, leave_s=transition.now_s + grace_s))
    transition.log_event("member_leaving", Reason.DRAINED, member=member_state.member.name, grace_s=grace_s)
    phase = transition.state.phase
    if phase is Phase.GATHERING and member_state.held_steps and transition.state.is_in_world(id_):
        transition.state = replace(transition.state, phase=Phase.HANDING)
    elif not member_state.busy and not (phase in _STOP_PHASES and transition.state.is_in_world(id_)):
        transition.send(
            (id_,), Finish(int(Exit.DRAINED), Reason.DRAINED.value, "", transition.state.checkpoints.persist_step)
        )
        return
    # Plan the handover anew, with this member among the leavers.
    transition.state = replace(transition.state, checkpoints=replace(transition.state.checkpoints, handover=None))
    if phase is Phase.DRAINING:
        until_s = min(transition.state.ending.until_s, transition.now_s + grace_s * STEP_SHARE)
        transition.state = replace(transition.state, ending=replace(transition.state.ending, until_s=until_s))


def finish_message(transition: Transition, id_: str) -> Finish:
    """Make the Finish message of a member that leaves: exit code FAULTY if its node was excluded, else DRAINED."""
    if (why := transition.state.hanging.excluded.get(id_)) is not None:
        return Finish(int(Exit.FAULTY), Reason.NODE_FAULTY.value, why, transition.state.checkpoints.persist_step)
    return Finish(int(Exit.DRAINED), Reason.DRAINED.value, "", transition.state.checkpoints.persist_step)


def drain_reason(transition: Transition) -> tuple[Reason, str] | None:
    """Return (reason, detail) if the training world should drain now: a member leaves, or the world can grow.

    Else return None, also without a world. If the world may grow later, a Wake effect is added for that time.
    """
    state = transition.state
    if state.world is None:
        return None
    leavers = [
        member_state
        for id_ in state.world.assignments
        if (member_state := transition.members.get(id_)) and member_state.leave_s is not None
    ]
    if leavers:
        return Reason.MEMBER_LEFT, ", ".join(member_state.member.name for member_state in leavers)
    return _growth_reason(transition, state.world)


def _growth_reason(transition: Transition, world: World) -> tuple[Reason, str] | None:
    """Return (reason, detail) if the world can grow now, else None. Add a Wake effect if it may grow later.

    If more workers are expected, the growth waits `settle_s` after the last worker joined or became ready, so that one
    restart serves all.
    """
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
    """Return the times since which present members outside the world have been ready to start processes.

    Adds a Wake effect for the time when the next one will be ready. Members that leave are omitted.
    """
    new_s = [
        ready_time_s(transition, id_)
        for id_, member_state in transition.members.items()
        if member_state.leave_s is None and not transition.state.is_in_world(id_)
    ]
    ready_s = [at_s for at_s in new_s if at_s <= transition.now_s]
    if len(ready_s) < len(new_s):
        transition.wake(min(at_s for at_s in new_s if at_s > transition.now_s))
    return ready_s


def record_heartbeat(transition: Transition, id_: str, member_state: MemberState, beat: Heartbeat) -> None:
    """Record a heartbeat: the member's step, the newest saved step, rank 0's progress, and whether it can start
    processes. A newer saved step refills the restart budget.
    """
    state = transition.state
    ready = not beat.importing_s and member_state.ready_s > transition.now_s
    if ready or beat.step != member_state.step:
        transition.set_member(
            id_, replace(member_state, step=beat.step, ready_s=transition.now_s if ready else member_state.ready_s)
        )
    if beat.rank_zero is not None:
        transition.state = state = replace(state, rank_zero=beat.rank_zero)
    if ready and state.phase is Phase.TRAINING and not transition.state.is_in_world(id_):
        transition.log_event("member_ready", Reason.MEMBER_JOINED, member=member_state.member.name)
    if beat.saved > state.budget.saved_step:
        transition.state = replace(state, budget=state.budget.refill(beat.saved))


def drain(transition: Transition) -> None:
    """Advance the drain: propose a stop step, confirm it, or end the processes if time is up.

    Once no member of the world has processes, the drain ends.
    """
    state = transition.state
    if not any(transition.state.is_in_world(id_) for id_ in busy_members(transition.members)):
        _end_drain(transition)
    elif state.ending.stop_step is None:
        _propose_first_stop_step(transition)
    elif transition.now_s >= state.ending.until_s:
        transition.log_event("stop_step_missed", state.cause.reason, round=state.round, step=state.ending.stop_step)
        transition.end_processes(_remaining_s(transition))
    else:
        transition.wake(state.ending.until_s)
        _confirm_stop_step(transition, state.ending.stop_step)


def _end_drain(transition: Transition) -> None:
    """Finish the job if every rank has ended its training by itself before a stop step was confirmed, else enter
    STOPPING.
    """
    state = transition.state
    if state.world is not None and not state.ending.confirmed and state.ending.done >= state.world.assignments.keys():
        transition.finish(Exit.DONE, Reason.ALL_DONE, f"round {state.round}")
    else:
        transition.state = replace(state, phase=Phase.STOPPING)


def _confirm_stop_step(transition: Transition, stop_step: int) -> None:
    """Once all busy members have answered, confirm the stop step, or propose a later one if a member has passed it."""
    answers = [
        member_state.reached
        for id_, member_state in transition.members.items()
        if member_state.busy and transition.state.is_in_world(id_)
    ]
    if transition.state.ending.confirmed or any(answer is None for answer in answers):
        return
    farthest = max(answer for answer in answers if answer is not None)
    if farthest > stop_step:
        _propose_stop_step(transition, farthest + STEPS_AHEAD)
    else:
        transition.state = replace(transition.state, ending=replace(transition.state.ending, confirmed=True))
        transition.send(busy_members(transition.members), StopAt(transition.state.world_round, stop_step, True))


def _propose_first_stop_step(transition: Transition) -> None:
    """Propose a stop step STEPS_AHEAD after the farthest member, and set the deadline of the drain.

    If no member reports steps, end the processes now, with the remaining time to save.
    """
    farthest = max(
        (member_state.step for id_, member_state in transition.members.items() if transition.state.is_in_world(id_)),
        default=-1,
    )
    left_s = _remaining_s(transition)
    if farthest < 0:
        transition.end_processes(left_s)  # no steps are reported: SIGTERM lets the job's own hook save
        return
    transition.state = replace(
        transition.state, ending=replace(transition.state.ending, until_s=transition.now_s + left_s * STEP_SHARE)
    )
    _propose_stop_step(transition, farthest + STEPS_AHEAD)
    transition.wake(transition.state.ending.until_s)


def _propose_stop_step(transition: Transition, step: int) -> None:
    """Propose a stop step to all busy members, and discard their answers to an earlier proposal."""
    for id_, member_state in transition.members.items():
        if member_state.reached is not None:
            transition.set_member(id_, replace(member_state, reached=None))
    transition.state = replace(
        transition.state, ending=replace(transition.state.ending, stop_step=step, confirmed=False)
    )
    transition.send(busy_members(transition.members), StopAt(transition.state.world_round, step, False))


def _remaining_s(transition: Transition) -> float:
    """Return the seconds until the first busy leaver has to end, >= 0; GROWTH_GRACE_S if no busy member leaves."""
    remaining_s = [
        member_state.leave_s - transition.now_s
        for member_state in transition.members.values()
        if member_state.leave_s is not None and member_state.busy
    ]
    return max(min(remaining_s, default=GROWTH_GRACE_S), 0.0)


def record_reached(transition: Transition, id_: str, member_state: MemberState, step: int) -> None:
    """Record a member's answer to the proposed stop step: the farthest step that its processes have begun."""
    transition.set_member(id_, replace(member_state, reached=step))


def end_training(transition: Transition) -> None:
    """Handle the end of all processes of a round: charge a process failure to the restart budget, then start HANDING.

    A failure that the loss of a member explains is not charged. If the budget is used up, the job finishes instead.
    """
    state = transition.state = replace(
        transition.state, checkpoints=replace(transition.state.checkpoints, persist_step=step_to_persist(transition))
    )
    if state.cause.fault and not state.cause.lost:
        if state.budget.used >= state.job.elastic_spec.max_restarts:
            detail = (
                f"{state.budget.used} of {state.job.elastic_spec.max_restarts} restarts are used; {state.cause.fault}"
            )
            transition.finish(Exit.FAILED, Reason.BUDGET_SPENT, detail)
            return
        state = replace(state, budget=state.budget.add_restart())
    staying = sum(member_state.leave_s is None for member_state in transition.members.values())
    expected, last_call_s = (
        (0, 0.0)
        if state.job.elastic_spec.world_size(staying)
        else (state.fencing.newest_size, state.job.elastic_spec.settle_s)
    )
    transition.state = replace(
        state,
        phase=Phase.HANDING,
        cause=replace(state.cause, fault="", lost=False, since_s=transition.now_s),
        gathering=replace(state.gathering, expected=expected, last_call_s=last_call_s),
        checkpoints=replace(state.checkpoints, handover=None),
    )


def hand_over(transition: Transition) -> None:
    """Begin the handover of the leavers' shards, or wait for it until its deadline.

    Then tell the leavers to finish and enter GATHERING. Without leavers, or shards to hand over, do this at once.
    """
    leavers = {
        id_: member_state for id_, member_state in transition.members.items() if member_state.leave_s is not None
    }
    handover = transition.state.checkpoints.handover
    if leavers and handover is None:
        left_s = min(
            member_state.leave_s - transition.now_s
            for member_state in leavers.values()
            if member_state.leave_s is not None
        )
        handover = _begin_handover(transition, leavers, transition.now_s + HANDOVER_SHARE * left_s)
        transition.state = replace(
            transition.state, checkpoints=replace(transition.state.checkpoints, handover=handover)
        )
    if handover is not None and handover.awaits & transition.members.keys() and transition.now_s < handover.until_s:
        transition.wake(handover.until_s)
        return
    for id_ in leavers:
        transition.send((id_,), finish_message(transition, id_))
    transition.state = replace(
        transition.state, phase=Phase.GATHERING, checkpoints=replace(transition.state.checkpoints, handover=None)
    )


def _begin_handover(transition: Transition, leavers: Mapping[str, MemberState], until_s: float) -> HandoverState:
    """Order staying members to adopt the leavers' shards, and leavers to write their shards to storage.

    leavers: by member id. until_s: deadline of the handover. Returns the members whose answers are awaited. If there is
    no shard to adopt or no time, nothing is sent, and the result awaits nobody.
    """
    state, saved_state, adoptions = transition.state, *plan_handover(transition)
    left_s = until_s - transition.now_s
    if saved_state is None or not adoptions or left_s <= 0:
        return HandoverState()
    step, origin, ranks = saved_state
    for id_ in sorted(leavers.keys() | adoptions.keys()):
        transition.send((id_,), Handover(state.round, step, origin, ranks, left_s, adoptions.get(id_, ())))
    names = {transition.members[id_].member.name: len(adoptions[id_]) for id_ in sorted(adoptions)}
    transition.log_event("shards_handed_over", Reason.MEMBER_LEFT, round=state.round, step=step, ranks=ranks, to=names)
    return HandoverState(frozenset(adoptions), until_s)


def plan_handover(transition: Transition) -> tuple[SavedState | None, dict[str, tuple[AdoptShards, ...]]]:
    """Choose the newest step that is complete in memory, and the leavers' shards that each staying member adopts.

    Returns (None, {}) if no such step needs a handover. A step that only a world of the same size can read is not
    handed over if the next world is smaller.
    """
    members = {id_: member_state.member for id_, member_state in transition.members.items()}
    held_steps = {id_: member_state.held_steps for id_, member_state in transition.members.items()}
    staying = _idle_staying_members(transition)
    for saved_state in saved_states(held_steps):
        runs = runs_of(saved_state, held_steps, members)
        if saved_state[2] == ALL:
            if any(run.id in staying for run in runs):
                break  # a staying member has the whole state, which is the same on all ranks
            continue
        if ranks_in(runs) < set(range(saved_state[2])):
            continue
        if _will_shrink(transition, len(staying)) and not all(run.reshardable for run in runs):
            break
        return saved_state, _assign_shards(members, runs, staying)
    return None, {}


def _idle_staying_members(transition: Transition) -> list[str]:
    """Return the ids of the members that do not leave and have no running process."""
    return [
        id_
        for id_, member_state in transition.members.items()
        if member_state.leave_s is None and not member_state.busy
    ]


def _will_shrink(transition: Transition, staying: int) -> bool:
    """Return True if `staying` members form a world that is smaller than the last one."""
    size = transition.state.job.elastic_spec.world_size(staying)
    return transition.state.world is not None and 0 < size < len(transition.state.world.members)


def _assign_shards(
    members: Mapping[str, Member], runs: tuple[ShardRun, ...], staying: list[str]
) -> dict[str, tuple[AdoptShards, ...]]:
    """Return, by member id, the leavers' shards that a staying member adopts: those that no staying member holds.

    Members that adopt nothing are omitted. Only members whose daemon can be reached give or adopt shards; each adopts
    at most MAX_LOCATIONS runs. runs: who holds which shards of the state. staying: ids of the members that stay.
    """
    endpoints = endpoints_of(members.values())
    leaver_runs = _leaver_runs(runs, staying, endpoints)
    adopters = [(id_, members[id_].path) for id_ in staying if id_ in endpoints]
    chosen = assign_heirs([(key, members[run.id].path) for key, run in leaver_runs.items()], adopters)
    adoptions_of: dict[str, list[AdoptShards]] = defaultdict(list)
    for key, heir in chosen.items():
        run = leaver_runs[key]
        sources = [endpoints[each.id] for each in runs if each.ranks == run.ranks and each.id in endpoints]
        owner = members[run.id].name if run.own else f"ranks {run.first_rank} and {run.count - 1} more"
        adoptions_of[heir].append(AdoptShards(owner, run.first_rank, run.count, tuple(sources[:_MAX_ENDPOINTS])))
    return {id_: tuple(adoptions[:MAX_LOCATIONS]) for id_, adoptions in adoptions_of.items()}


def _leaver_runs(runs: Sequence[ShardRun], staying: Collection[str], sources: Collection[str]) -> dict[str, ShardRun]:
    """Return key -> run of a leaver: together these runs have the shards that no staying member holds.

    Shards without a leaver in `sources` are omitted. The keys have no meaning. sources: ids of the members whose
    daemon can be asked.
    """
    held_ranks, chosen_runs = ranks_in(run for run in runs if run.id in staying), dict[str, ShardRun]()
    for number, run in enumerate(run for run in runs if run.id in sources and run.id not in staying):
        if not held_ranks.issuperset(run.ranks):
            held_ranks |= {*run.ranks}
            chosen_runs[f"{number}"] = run
    return chosen_runs
