"""Decides what one event changes in the coordinator's state, and what it asks for. A pure function. docs/design.md 5.

The table of states is in state.py. A formed world is frozen: its size is between min and max, and a multiple of the
unit. A late member waits for the next round, and ends the current one only if the world can grow.
A fault is charged once to the restart budget, and not at all if the loss of a member explains it. Source: torchelastic
and DLRover as docs/facts/launcher.md §1 and docs/facts/dlrover.md 2.1 have them.
Peers that are silent for too long are found here too, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace

from turnout.launcher.coordinator_messages import (
    Finish,
    Heartbeat,
    Hung,
    LastWorld,
    Leaving,
    Probed,
    ProcessFailed,
    Reached,
    Ready,
    Refused,
    ShardsAdopted,
    Stacks,
    Stop,
    StopAt,
    StoredStepReport,
    Succeeded,
)
from turnout.launcher.model import ElasticSpec, Exit, Member, Reason, RestartBudget
from turnout.launcher.rendezvous.diagnosis.hang_collection import (
    act_on_merged,
    handle_reconnect,
    merge_when_complete,
    record_hang,
    record_stacks,
)
from turnout.launcher.rendezvous.diagnosis.node_check import (
    continue_check,
    log_if_excluded,
    record_probe,
    restart_check,
    spare_reason,
)
from turnout.launcher.rendezvous.drain import (
    drain,
    drain_reason,
    end_training,
    hand_over,
    mark_leaving,
    record_heartbeat,
    record_reached,
)
from turnout.launcher.rendezvous.form_world import form_granted, form_unanswered, gather, go_to_endpoint
from turnout.launcher.rendezvous.job_time_account import TRAINS, account, adopt
from turnout.launcher.rendezvous.restore.restore_plan import record_stored
from turnout.launcher.rendezvous.state import (
    Claiming,
    Denied,
    Disconnect,
    Effect,
    EndpointAnswered,
    Event,
    Fencing,
    Gathering,
    Granted,
    JobFacts,
    JobOver,
    Joined,
    Lost,
    MemberState,
    MessageSent,
    Phase,
    RoundCause,
    StacksMerged,
    State,
    StepDown,
    Transition,
    Unanswered,
    Unfenced,
)

PAUSED_SHARE = 0.5  # of the limit: a process that slept this long has not listened itself


def heartbeat_period_s(members: int, beat_s: float) -> float:
    """Return the seconds between a member's heartbeats: longer for many members, so the coordinator gets at most 1,000
    a second.
    """
    return max(beat_s, members / 1_000)


def silent_members(heard_s: Mapping[str, float], now_s: float, limit_s: float) -> tuple[str, ...]:
    """List the peers from which nothing came within the limit."""
    return tuple(id_ for id_, at_s in heard_s.items() if now_s - at_s > limit_s)


def excuse_silence(heard_s: MutableMapping[str, float], looked_s: float, now_s: float, limit_s: float) -> bool:
    """Return True if this process itself was stopped since its last look; all peers then count as heard now.

    Their messages may still be unread, so none of them was silent.
    """
    if now_s - looked_s <= limit_s * PAUSED_SHARE:
        return False
    for id_ in heard_s:
        heard_s[id_] = now_s
    return True


def begin(
    me: Member,
    run: str,
    elastic_spec: ElasticSpec,
    now_s: float,
    *,
    worker_count: int = 0,
    granted: int | None = None,
    sole_coordinator: bool = False,
) -> State:
    """Make the state of a new job. granted: the round that the arbiter gave, None without an arbiter."""
    return State(
        JobFacts(me, run, elastic_spec, granted is not None, sole_coordinator),
        round=granted or 0,
        cause=RoundCause(since_s=now_s),
        gathering=Gathering(worker_count, worker_count or elastic_spec.max_nodes, elastic_spec.last_call_s, now_s),
        claiming=Claiming(granted or 0, asked_s=now_s),
    )


def replace_coordinator(
    state: State,
    base: LastWorld,
    budget: RestartBudget,
    *,
    handed_over: bool = False,
    before: int = 0,
    fenced_s: float = 0.0,
    sought_s: float | None = None,
) -> State:
    """Make the state of a job whose coordinator was lost, from a new job's state: members get time to regroup.

    handed_over: the old coordinator left in peace, and the base no longer counts it.
    before: the round in the arbiter's record before this claim, 0 for none. fenced_s: until then its holder, if alive,
    may train without the arbiter.
    sought_s: when the search began; None: never search. 0: all members search for this coordinator, so it does not
    search before its first world.
    """
    if base.round or before:
        fenced_s = max(fenced_s, state.cause.since_s + state.job.fence_s)
    state = replace(state, budget=budget, fencing=replace(state.fencing, before=before, fenced_s=fenced_s))
    gathering = state.gathering
    if sought_s is not None:
        gathering = replace(gathering, searches=sought_s > 0, sought_s=sought_s)
    if not base.round:
        return replace(state, gathering=gathering)
    expected = base.size if handed_over else max(base.size - 1, 1)
    return replace(
        state,
        round=max(state.round, base.round),
        cause=replace(state.cause, reason=Reason.COORDINATOR_LOST),
        fencing=replace(state.fencing, base=base.round, base_size=base.size),
        gathering=replace(gathering, expected=expected, call_s=state.job.regroup_s),
    )


def step(state: State, event: Event, now_s: float) -> tuple[State, tuple[Effect, ...]]:
    """Apply one event; return the new state and the effects."""
    return steps(state, (event,), now_s)


def steps(state: State, events: Iterable[Event], now_s: float) -> tuple[State, tuple[Effect, ...]]:
    """Apply several events of one moment in their order; return the new state and the effects."""
    transition = Transition(state, now_s)
    for event in events:
        _apply(transition, event)
    _advance(transition)
    account(transition, state)
    return transition.result()


def _apply(transition: Transition, event: Event) -> None:
    """Apply one event to the transition: change its state, and add effects.

    An event that no longer fits the phase or round is ignored.
    """
    match event:
        case Joined():
            _handle_join(transition, event)
        case Lost(id=id_, reason=reason):
            _handle_loss(transition, id_, reason)
        case MessageSent(id=id_, message=message) if (known := transition.members.get(id_)) is not None:
            _handle_message(transition, id_, known, message)
        case Granted(round=round_) if transition.state.phase is Phase.CLAIMING and round_ == transition.state.round:
            form_granted(transition)
        case Unanswered(round=round_) if transition.state.phase is Phase.CLAIMING and round_ == transition.state.round:
            form_unanswered(transition)
        case Denied(holder=holder) if transition.state.phase not in (Phase.FINISHING, Phase.OVER):
            transition.send(transition.busy_members(), Stop(transition.state.round, Reason.ROUND_LOST.value, 0.0))
            transition.state = replace(transition.state, phase=Phase.OVER)
            transition.log_event("stepped_down", Reason.ROUND_LOST, to=holder.coordinator, round=holder.round)
            transition.effects.append(StepDown(holder))
        case EndpointAnswered():
            go_to_endpoint(transition, event)
        case StacksMerged():
            act_on_merged(transition, event)
        case Unfenced():
            _handle_unfenced(transition)


def _handle_unfenced(transition: Transition) -> None:
    """Stop training, since without the arbiter this coordinator cannot know whether another leads."""
    transition.state = replace(transition.state, claiming=replace(transition.state.claiming, unfenced=True))
    if transition.state.phase in TRAINS:
        transition.stop(Reason.NO_ARBITER, "the arbiter was out of reach for too long")


def _advance(transition: Transition) -> None:
    """Advance through the phases as far as the state allows."""
    merge_when_complete(transition)
    if transition.state.phase is Phase.TRAINING:
        _check_training(transition)
    if transition.state.phase is Phase.DRAINING:
        drain(transition)
    if transition.state.phase is Phase.STOPPING and not transition.busy_members():
        end_training(transition)
    if transition.state.phase is Phase.HANDING:
        hand_over(transition)
    if transition.state.phase is Phase.CHECKING:
        continue_check(transition)
    if transition.state.phase is Phase.GATHERING:
        gather(transition)
    if transition.state.phase is Phase.FINISHING:
        others = transition.members.keys() - {transition.state.job.member.id}
        if not others or transition.now_s >= transition.state.ending.until_s:
            transition.state = replace(transition.state, phase=Phase.OVER)
            transition.effects.append(
                JobOver(
                    transition.state.ending.exit or Exit.DONE,
                    transition.state.cause.reason,
                    transition.state.cause.detail,
                )
            )


def _handle_join(transition: Transition, event: Joined) -> None:
    """Add a member that asks to join, or refuse it if its elastic spec differs from the job's.

    An older member of the same name counts as lost. After the job's end, the answer says that it is over.
    """
    at, member = transition.state, event.member
    if at.phase in (Phase.FINISHING, Phase.OVER):
        _answer_late_join(transition, event)
        return
    if fault := _spec_difference(at.job.elastic_spec, event.elastic_spec):
        _refuse(transition, event, fault)
        return
    if (before := transition.id_of(member.name)) is not None and before != member.id and before in transition.members:
        transition.effects.append(Disconnect(before))  # its place was taken: one worker at a time has a name
        _handle_loss(transition, before, Reason.MEMBER_LOST)
    _add_member(transition, event)
    _answer_join(transition, member, event.base)


def _answer_late_join(transition: Transition, event: Joined) -> None:
    """Tell a member that joins a job which is over how the job ended."""
    at, member = transition.state, event.member
    transition.set_member(member.id, MemberState(member, event.base))
    exit_, why = at.ending.exit, at.cause.reason.value
    if exit_ is not None and exit_ is not Exit.FAULTY:  # else others decide, or nobody: the job starts over
        transition.send((member.id,), Finish(int(exit_), why, at.cause.detail, at.checkpoints.persist_step))


def _add_member(transition: Transition, event: Joined) -> None:
    """Record a member and what it reports of the job: its last world, its restart budget, the number of members."""
    at, member = transition.state, event.member
    new = member.id not in transition.members
    busy, former = event.base.round if event.base.busy else 0, transition.members.get(member.id)
    stored = former.stored_step if former is not None and busy == former.busy else None
    ready_s = transition.now_s + event.importing_s if event.importing_s else 0.0
    transition.set_member(
        member.id,
        MemberState(member, event.base, busy=busy, held_steps=event.held_steps, stored_step=stored, ready_s=ready_s),
    )
    fencing = _newer_world(at.fencing, event.base)
    gathering = _expected_members(at, event, fencing)
    if new and not log_if_excluded(transition, member.id):
        gathering = replace(gathering, joined_s=transition.now_s)
    transition.state = replace(
        at,
        round=max(at.round, event.base.round),
        budget=at.budget.newer(event.budget),
        gathering=gathering,
        fencing=fencing,
        ledger=adopt(at.ledger, event.job_time),
    )
    # This arbiter would not grant the round that is asked for.
    if at.phase is Phase.CLAIMING and event.base.round >= at.round:
        transition.state = replace(transition.state, phase=Phase.GATHERING, claiming=replace(at.claiming, chosen=()))
    transition.log_event("member_joined", at.cause.reason, member=member.name, members=len(transition.members))


def _expected_members(at: State, event: Joined, fencing: Fencing) -> Gathering:
    """Adopt the number of members that a member reports: the job's, or those of a world that has survivors."""
    gathering = replace(at.gathering, worker_count=event.worker_count or at.gathering.worker_count)
    if at.fencing.base == at.fencing.before == 0 < fencing.base:  # this coordinator is new, and knew of no world
        return replace(gathering, expected=fencing.base_size, call_s=at.job.regroup_s)
    return replace(gathering, expected=event.worker_count) if event.worker_count and at.fencing.base == 0 else gathering


def _refuse(transition: Transition, event: Joined, fault: str) -> None:
    """Turn a member away whose terms differ from the job's."""
    member = event.member
    transition.set_member(member.id, MemberState(member, event.base))
    transition.send((member.id,), Refused(Reason.REFUSED.value, fault))
    transition.effects.append(Disconnect(member.id))
    del transition.members[member.id]
    transition.log_event("member_refused", Reason.REFUSED, member=member.name, detail=fault)


def _newer_world(fencing: Fencing, last_world: LastWorld) -> Fencing:
    """Adopt the world that a member reports, unless a newer one is known. Of two sizes the smaller counts, since it
    knows who left.
    """
    if not last_world.inside or last_world.round < fencing.base:
        return fencing
    size = min(fencing.base_size, last_world.size) if last_world.round == fencing.base else last_world.size
    return replace(fencing, base=last_world.round, base_size=size)


def _answer_join(transition: Transition, member: Member, base: LastWorld) -> None:
    """Tell a new member to stop, wait or continue. If it is in the world but has no processes, its world ends."""
    restart_check(transition, member.id)
    at, is_inside = transition.state, transition.state.phase in TRAINS and transition.is_in_world(member.id)
    if is_inside and base.busy and base.round == transition.world_round:
        _continue_member(transition, member.id)
        return
    if base.busy:
        transition.send((member.id,), Stop(base.round, at.cause.reason.value, 0.0))
    elif base.round == transition.world_round and transition.is_in_world(member.id):
        transition.state = replace(at, fencing=replace(at.fencing, ended=base.round))
    if is_inside:
        if member.id not in at.ending.done:
            transition.stop(Reason.MEMBER_LOST, f"{member.name} has come back without its processes")
    elif at.phase in TRAINS and not base.busy:
        transition.wait(member.id, *spare_reason(transition, member.id))


def _continue_member(transition: Transition, id_: str) -> None:
    """Send a member that trains and has reconnected the messages that it may have missed."""
    at = transition.state
    if at.ending.stop_step is not None:
        transition.send((id_,), StopAt(transition.world_round, at.ending.stop_step, at.ending.confirmed))
    if at.checkpoints.stored_step is not None:
        transition.send((id_,), at.checkpoints.stored_step)
    handle_reconnect(transition, id_)


def _spec_difference(own: ElasticSpec, other_spec: ElasticSpec) -> str:
    one, other = (f"{each.min_nodes}:{each.max_nodes}, unit {each.node_unit}" for each in (own, other_spec))
    return "" if one == other else f"the job's world is {one}, this worker's command line says {other}"


def _handle_loss(transition: Transition, id_: str, reason: Reason) -> None:
    """Remove a lost member. If its world trains, stop the round and note the loss as its cause."""
    known = transition.members.pop(id_, None)
    if known is None:
        return
    transition.log_event("member_lost", reason, member=known.member.name, members=len(transition.members))
    transition.state = replace(transition.state, fencing=_fence_loss(transition, known))
    if not transition.is_in_world(id_) or id_ in transition.state.ending.done:
        return
    if transition.state.phase in TRAINS:
        leaves = known.leave_s is not None
        why = Reason.MEMBER_LEFT if leaves and not known.busy else reason
        if known.busy or not leaves:
            transition.stop(why, known.member.name)
    if known.busy:
        transition.state = replace(transition.state, cause=replace(transition.state.cause, lost=True))


def _fence_loss(transition: Transition, known: MemberState) -> Fencing:
    """Wait for the end of a lost member's processes. One that has left for good no longer counts in the last world."""
    fencing = transition.state.fencing
    if known.busy:
        return replace(fencing, fenced_s=max(fencing.fenced_s, transition.now_s + transition.state.job.fence_s))
    if known.leave_s is not None and known.base.inside and known.base.round == fencing.base:
        return replace(fencing, base_size=fencing.base_size - 1)
    return fencing


def _handle_message(transition: Transition, id_: str, known: MemberState, message: object) -> None:
    """Handle a message of a known member. Messages about a round that the member is not busy with are ignored."""
    match message:
        case Heartbeat():
            record_heartbeat(transition, id_, known, message)
        case Ready(round=round_) if round_ >= known.busy:
            _record_ready(transition, id_, known, message)
        case ProcessFailed() | Reached() | StoredStepReport() if known.busy == message.round == transition.world_round:
            _handle_training_message(transition, id_, known, message)
        case ShardsAdopted():
            _record_adopted(transition, id_, known, message)
        case Succeeded(round=round_) if known.busy == round_:
            _record_success(transition, id_, known, message)
        case Leaving(grace_s=grace_s):
            mark_leaving(transition, id_, known, grace_s)
        case Probed():
            record_probe(transition, id_, known, message)
        case Hung():
            record_hang(transition, id_, known, message)
        case Stacks():
            record_stacks(transition, id_, message)


def _handle_training_message(
    transition: Transition, id_: str, known: MemberState, message: ProcessFailed | Reached | StoredStepReport
) -> None:
    """Handle a message about the round that trains, from a member of its world."""
    match message:
        case ProcessFailed():
            _record_failure(transition, known, message)
        case Reached(step=step):
            record_reached(transition, id_, known, step)
        case StoredStepReport():
            record_stored(transition, id_, known, message)


def _record_ready(transition: Transition, id_: str, known: MemberState, message: Ready) -> None:
    """Record that a member has no process. If it is in the world that trains, the round ends."""
    at, member = transition.state, replace(known.member, master_port=message.master_port, path=message.path)
    transition.set_member(id_, replace(known, busy=0, member=member, held_steps=message.held_steps))
    if known.busy == transition.world_round and transition.is_in_world(id_):
        transition.state = replace(at, fencing=replace(at.fencing, ended=transition.world_round))
        if at.phase in TRAINS:
            transition.stop(Reason.MEMBER_LOST, f"{known.member.name} has ended its processes")


def _record_failure(transition: Transition, known: MemberState, message: ProcessFailed) -> None:
    """End the round, since a process has failed; the fault is charged when all have stopped."""
    if transition.state.phase in TRAINS:
        fault = f"{known.member.name}, local rank {message.local_rank}: {message.detail}"
        transition.stop(Reason.PROCESS_FAILED, fault)
        transition.state = replace(transition.state, cause=replace(transition.state.cause, fault=fault))


def _record_adopted(transition: Transition, id_: str, known: MemberState, message: ShardsAdopted) -> None:
    """Record that a member has adopted its shards of the handover."""
    transition.set_member(id_, replace(known, held_steps=message.held_steps))
    checkpoints = transition.state.checkpoints
    if (handover := checkpoints.handover) is not None:
        handover = replace(handover, awaits=handover.awaits - {id_})
        transition.state = replace(transition.state, checkpoints=replace(checkpoints, handover=handover))


def _record_success(transition: Transition, id_: str, known: MemberState, message: Succeeded) -> None:
    """Record that all processes of a member have succeeded."""
    at = transition.state
    transition.set_member(id_, replace(known, busy=0, held_steps=message.held_steps))
    if message.round == transition.world_round and transition.is_in_world(id_):
        transition.state = replace(at, fencing=replace(at.fencing, ended=message.round))
        if at.phase in TRAINS:
            transition.state = replace(transition.state, ending=replace(at.ending, done=at.ending.done | {id_}))


def _check_training(transition: Transition) -> None:
    """End the round if all are done, or if a member leaves or the world can grow."""
    at = transition.state
    if at.world is not None and at.ending.done and at.ending.done >= at.world.assignments.keys():
        transition.finish(Exit.DONE, Reason.ALL_DONE, f"round {at.round}")
    elif at.ending.done:
        return
    elif why := drain_reason(transition):
        reason, detail = why
        transition.log_event("round_ended", reason, round=at.round, detail=detail)
        cause = replace(at.cause, reason=reason, detail=detail, since_s=transition.now_s)
        transition.state = replace(at, phase=Phase.DRAINING, cause=cause)
