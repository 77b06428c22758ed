"""Applies events to the coordinator's state: returns the new state and the effects. A pure function. docs/design.md 5.

The table of states is in state.py. The members of a formed world do not change: its size is between min and max, and a
multiple of the unit. A member that comes later waits for the next round; the current round ends for it only if the
world can grow.
A process failure is charged once to the restart budget, and not at all if the loss of a member explains it. Source:
torchelastic and DLRover as docs/facts/launcher.md §1 and docs/facts/dlrover.md 2.1 have them.

Both sides of a connection also use the rules for silent peers that are here.
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
    wait_reason,
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
from turnout.launcher.rendezvous.form_world import form_granted, form_without_arbiter, gather, step_down_for_endpoint
from turnout.launcher.rendezvous.job_time_account import TRAINING_PHASES, account_time, adopt_totals
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
    GrantExpired,
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
    busy_members,
)

PAUSED_SHARE = 0.5  # of the silence limit: after such a pause between two checks, this process itself was stopped


def heartbeat_period_s(members: int, beat_s: float) -> float:
    """Return the seconds between a member's heartbeats: at least `beat_s`, and longer for many members, so that the
    coordinator gets at most 1,000 a second.
    """
    return max(beat_s, members / 1_000)


def silent_members(heard_s: Mapping[str, float], now_s: float, limit_s: float) -> tuple[str, ...]:
    """List the ids of the peers from which nothing came for more than `limit_s` seconds.

    heard_s: time of the last message, by peer id.
    """
    return tuple(id_ for id_, at_s in heard_s.items() if now_s - at_s > limit_s)


def excuse_silence(heard_s: MutableMapping[str, float], last_check_s: float, now_s: float, limit_s: float) -> bool:
    """Return True if this process itself was stopped since its last check, and set all times in `heard_s` to now.

    Then messages of the peers may still be unread, so no peer counts as silent. last_check_s: time of the last check.
    limit_s: the silence limit, seconds.
    """
    if now_s - last_check_s <= limit_s * PAUSED_SHARE:
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
    """Make the coordinator's state of a new job.

    me: the coordinator's own member. run: the job's id. worker_count: workers that the job was started with, 0 if
    unknown. granted: the round that the arbiter granted, None without an arbiter. sole_coordinator: nobody may succeed
    this coordinator.
    """
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
    granted_before: int = 0,
    old_world_until_s: float = 0.0,
    search_began_s: float | None = None,
) -> State:
    """Return the state of a job whose coordinator was lost, made from a new job's state.

    base: the last world that the new coordinator knows; round 0 for none, then the job counts as new. handed_over: the
    old coordinator handed over, and `base` no longer counts it. granted_before: the round in the arbiter's record
    before this claim, 0 for none. old_world_until_s: until then its holder, if alive, may train without the arbiter.
    search_began_s: when this member's search for a coordinator began. None: never search again. 0: all members look for
    this very coordinator, so it does not search before its first world.
    """
    if base.round or granted_before:
        old_world_until_s = max(old_world_until_s, state.cause.since_s + state.job.fence_s)
    state = replace(
        state,
        budget=budget,
        fencing=replace(state.fencing, granted_before=granted_before, old_world_until_s=old_world_until_s),
    )
    gathering = state.gathering
    if search_began_s is not None:
        gathering = replace(gathering, may_search=search_began_s > 0, search_began_s=search_began_s)
    if not base.round:
        return replace(state, gathering=gathering)
    expected = base.size if handed_over else max(base.size - 1, 1)
    return replace(
        state,
        round=max(state.round, base.round),
        cause=replace(state.cause, reason=Reason.COORDINATOR_LOST),
        fencing=replace(state.fencing, newest_round=base.round, newest_size=base.size),
        gathering=replace(gathering, expected=expected, last_call_s=state.job.regroup_s),
    )


def step(state: State, event: Event, now_s: float) -> tuple[State, tuple[Effect, ...]]:
    """Apply one event; return the new state and the effects."""
    return steps(state, (event,), now_s)


def steps(state: State, events: Iterable[Event], now_s: float) -> tuple[State, tuple[Effect, ...]]:
    """Apply events of one moment in their order, advance the phases once; return the new state and the effects.

    now_s: monotonic seconds of that moment. The effects are in the order in which they are to be carried out.
    """
    transition = Transition(state, now_s)
    for event in events:
        _apply(transition, event)
    _advance(transition)
    account_time(transition, state)
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
        case MessageSent(id=id_, message=message) if (member_state := transition.members.get(id_)) is not None:
            _handle_message(transition, id_, member_state, message)
        case Granted(round=round_) if transition.state.phase is Phase.CLAIMING and round_ == transition.state.round:
            form_granted(transition)
        case Unanswered(round=round_) if transition.state.phase is Phase.CLAIMING and round_ == transition.state.round:
            form_without_arbiter(transition)
        case Denied(holder=holder) if transition.state.phase not in (Phase.FINISHING, Phase.OVER):
            stop = Stop(transition.state.round, Reason.ROUND_LOST.value, 0.0)
            transition.send(busy_members(transition.members), stop)
            transition.state = replace(transition.state, phase=Phase.OVER)
            transition.log_event("stepped_down", Reason.ROUND_LOST, to=holder.coordinator, round=holder.round)
            transition.effects.append(StepDown(holder))
        case EndpointAnswered():
            step_down_for_endpoint(transition, event)
        case StacksMerged():
            act_on_merged(transition, event)
        case GrantExpired():
            _handle_grant_expired(transition)


def _handle_grant_expired(transition: Transition) -> None:
    """Stop training: the arbiter was unreachable for so long that another coordinator may lead by now."""
    transition.state = replace(transition.state, claiming=replace(transition.state.claiming, grant_expired=True))
    if transition.state.phase in TRAINING_PHASES:
        transition.stop(Reason.NO_ARBITER, "the arbiter was out of reach for too long")


def _advance(transition: Transition) -> None:
    """Advance through the phases as far as the state allows, and add the effects of each."""
    merge_when_complete(transition)
    if transition.state.phase is Phase.TRAINING:
        _check_training(transition)
    if transition.state.phase is Phase.DRAINING:
        drain(transition)
    if transition.state.phase is Phase.STOPPING and not busy_members(transition.members):
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

    An older member of the same name counts as lost. After the job's end, the member is only told how the job ended.
    """
    state, member = transition.state, event.member
    if state.phase in (Phase.FINISHING, Phase.OVER):
        _answer_late_join(transition, event)
        return
    if fault := _spec_difference(state.job.elastic_spec, event.elastic_spec):
        _refuse(transition, event, fault)
        return
    if (before := transition.id_of(member.name)) is not None and before != member.id and before in transition.members:
        transition.effects.append(Disconnect(before))  # its place was taken: one worker at a time has a name
        _handle_loss(transition, before, Reason.MEMBER_LOST)
    _add_member(transition, event)
    _answer_join(transition, member, event.base)


def _answer_late_join(transition: Transition, event: Joined) -> None:
    """Tell a member that joins after this coordinator has ended how the job ended.

    It is told nothing if another coordinator leads the job, or if it ended since all nodes were faulty: then this
    member searches on, and may begin the job again.
    """
    state, member = transition.state, event.member
    transition.set_member(member.id, MemberState(member, event.base))
    exit_, why = state.ending.exit, state.cause.reason.value
    if exit_ is not None and exit_ is not Exit.FAULTY:  # otherwise this member begins the job again
        transition.send((member.id,), Finish(int(exit_), why, state.cause.detail, state.checkpoints.persist_step))


def _add_member(transition: Transition, event: Joined) -> None:
    """Record a member, and adopt what it knows of the job: last world, restart budget, number of workers, job time.

    A member that is known already is replaced. If the member knows the round that is being claimed, or a newer one,
    drop the claim and gather again.
    """
    state, member = transition.state, event.member
    new = member.id not in transition.members
    busy, former = event.base.round if event.base.busy else 0, transition.members.get(member.id)
    stored = former.stored_step if former is not None and busy == former.busy else None
    ready_s = transition.now_s + event.importing_s if event.importing_s else 0.0
    transition.set_member(
        member.id,
        MemberState(member, event.base, busy=busy, held_steps=event.held_steps, stored_step=stored, ready_s=ready_s),
    )
    fencing = _adopt_world(state.fencing, event.base)
    gathering = _expected_members(state, event, fencing)
    if new and not log_if_excluded(transition, member.id):
        gathering = replace(gathering, joined_s=transition.now_s)
    transition.state = replace(
        state,
        round=max(state.round, event.base.round),
        budget=state.budget.newer_of(event.budget),
        gathering=gathering,
        fencing=fencing,
        ledger=adopt_totals(state.ledger, event.job_time),
    )
    # The arbiter would refuse the claim of a round that is not newer.
    if state.phase is Phase.CLAIMING and event.base.round >= state.round:
        transition.state = replace(transition.state, phase=Phase.GATHERING, claiming=replace(state.claiming, chosen=()))
    transition.log_event("member_joined", state.cause.reason, member=member.name, members=len(transition.members))


def _expected_members(state: State, event: Joined, fencing: Fencing) -> Gathering:
    """Return the gathering with the number of members to expect, as far as the new member knows it.

    fencing: with the world that this member reports. Before the first world it is the job's number of workers. For a
    new coordinator that knew no world, it is the size of the reported world.
    """
    gathering = replace(state.gathering, worker_count=event.worker_count or state.gathering.worker_count)
    known_round = state.fencing.newest_round
    if known_round == state.fencing.granted_before == 0 < fencing.newest_round:  # a new coordinator that knew no world
        return replace(gathering, expected=fencing.newest_size, last_call_s=state.job.regroup_s)
    return replace(gathering, expected=event.worker_count) if event.worker_count and known_round == 0 else gathering


def _refuse(transition: Transition, event: Joined, fault: str) -> None:
    """Refuse a member whose elastic spec differs from the job's, and close its connection. fault: the difference."""
    member = event.member
    transition.set_member(member.id, MemberState(member, event.base))
    transition.send((member.id,), Refused(Reason.REFUSED.value, fault))
    transition.effects.append(Disconnect(member.id))
    del transition.members[member.id]
    transition.log_event("member_refused", Reason.REFUSED, member=member.name, detail=fault)


def _adopt_world(fencing: Fencing, last_world: LastWorld) -> Fencing:
    """Return the fencing with the last world that a member was in, unless a newer world is known.

    If two members report different sizes of one world, the smaller counts: its reporter knows who has left.
    """
    if not last_world.inside or last_world.round < fencing.newest_round:
        return fencing
    size = min(fencing.newest_size, last_world.size) if last_world.round == fencing.newest_round else last_world.size
    return replace(fencing, newest_round=last_world.round, newest_size=size)


def _answer_join(transition: Transition, member: Member, base: LastWorld) -> None:
    """Tell a new member to stop its processes, wait, or continue to train. base: the last world that it reported.

    If the member is in the world that trains but has no processes of it and is not done, the round ends.
    """
    restart_check(transition, member.id)
    state = transition.state
    is_inside = state.phase in TRAINING_PHASES and state.is_in_world(member.id)
    if is_inside and base.busy and base.round == state.world_round:
        _continue_member(transition, member.id)
        return
    if base.busy:
        transition.send((member.id,), Stop(base.round, state.cause.reason.value, 0.0))
    elif base.round == state.world_round and state.is_in_world(member.id):
        transition.state = replace(state, fencing=replace(state.fencing, ended_round=base.round))
    if is_inside:
        if member.id not in state.ending.done:
            transition.stop(Reason.MEMBER_LOST, f"{member.name} has come back without its processes")
    elif state.phase in TRAINING_PHASES and not base.busy:
        transition.wait(member.id, *wait_reason(transition, member.id))


def _continue_member(transition: Transition, id_: str) -> None:
    """Send a member that trains and has reconnected the messages that it may have missed."""
    state = transition.state
    if state.ending.stop_step is not None:
        transition.send((id_,), StopAt(transition.state.world_round, state.ending.stop_step, state.ending.confirmed))
    if state.checkpoints.stored_step is not None:
        transition.send((id_,), state.checkpoints.stored_step)
    handle_reconnect(transition, id_)


def _spec_difference(own: ElasticSpec, other_spec: ElasticSpec) -> str:
    """Describe how another worker's min, max or unit differ from ours, "" if they are equal."""
    own_text, other_text = (f"{each.min_nodes}:{each.max_nodes}, unit {each.node_unit}" for each in (own, other_spec))
    return (
        "" if own_text == other_text else f"the job's world is {own_text}, this worker's command line says {other_text}"
    )


def _handle_loss(transition: Transition, id_: str, reason: Reason) -> None:
    """Remove a lost member. If its world trains, stop the round; the loss then explains failures of other processes.

    The round continues if the member is done, or was leaving and has no processes. reason: MEMBER_LOST or
    MEMBER_SILENT. Does nothing for an unknown member.
    """
    member_state = transition.members.pop(id_, None)
    if member_state is None:
        return
    transition.log_event("member_lost", reason, member=member_state.member.name, members=len(transition.members))
    transition.state = replace(transition.state, fencing=_fence_loss(transition, member_state))
    if not transition.state.is_in_world(id_) or id_ in transition.state.ending.done:
        return
    if transition.state.phase in TRAINING_PHASES:
        leaves = member_state.leave_s is not None
        why = Reason.MEMBER_LEFT if leaves and not member_state.busy else reason
        if member_state.busy or not leaves:
            transition.stop(why, member_state.member.name)
    if member_state.busy:
        transition.state = replace(transition.state, cause=replace(transition.state.cause, lost=True))


def _fence_loss(transition: Transition, member_state: MemberState) -> Fencing:
    """Return the fencing after the loss of a member.

    Its processes may train for `fence_s` more. An idle member that was leaving no longer counts in the last world.
    """
    fencing = transition.state.fencing
    if member_state.busy:
        return replace(
            fencing, old_world_until_s=max(fencing.old_world_until_s, transition.now_s + transition.state.job.fence_s)
        )
    if (
        member_state.leave_s is not None
        and member_state.base.inside
        and member_state.base.round == fencing.newest_round
    ):
        return replace(fencing, newest_size=fencing.newest_size - 1)
    return fencing


def _handle_message(transition: Transition, id_: str, member_state: MemberState, message: object) -> None:
    """Handle a message of a present member. Ignore a message that does not fit the round of the member's processes."""
    match message:
        case Heartbeat():
            record_heartbeat(transition, id_, member_state, message)
        case Ready(round=round_) if round_ >= member_state.busy:
            _record_ready(transition, id_, member_state, message)
        case ProcessFailed() | Reached() | StoredStepReport() if (
            member_state.busy == message.round == transition.state.world_round
        ):
            _handle_training_message(transition, id_, member_state, message)
        case ShardsAdopted():
            _record_adopted(transition, id_, member_state, message)
        case Succeeded(round=round_) if member_state.busy == round_:
            _record_success(transition, id_, member_state, message)
        case Leaving(grace_s=grace_s):
            mark_leaving(transition, id_, member_state, grace_s)
        case Probed():
            record_probe(transition, id_, member_state, message)
        case Hung():
            record_hang(transition, id_, member_state, message)
        case Stacks():
            record_stacks(transition, id_, message)


def _handle_training_message(
    transition: Transition, id_: str, member_state: MemberState, message: ProcessFailed | Reached | StoredStepReport
) -> None:
    """Handle a message about the newest world's round, from a member that has processes of that round."""
    match message:
        case ProcessFailed():
            _record_failure(transition, member_state, message)
        case Reached(step=step):
            record_reached(transition, id_, member_state, step)
        case StoredStepReport():
            record_stored(transition, id_, member_state, message)


def _record_ready(transition: Transition, id_: str, member_state: MemberState, message: Ready) -> None:
    """Record that a member has no process, with its free port, path and held steps. If its world trains, the round
    ends.
    """
    state, member = transition.state, replace(member_state.member, master_port=message.master_port, path=message.path)
    transition.set_member(id_, replace(member_state, busy=0, member=member, held_steps=message.held_steps))
    if member_state.busy == transition.state.world_round and transition.state.is_in_world(id_):
        transition.state = replace(state, fencing=replace(state.fencing, ended_round=transition.state.world_round))
        if state.phase in TRAINING_PHASES:
            transition.stop(Reason.MEMBER_LOST, f"{member_state.member.name} has ended its processes")


def _record_failure(transition: Transition, member_state: MemberState, message: ProcessFailed) -> None:
    """End the round, since a process has failed. `end_training` charges the restart budget when all have stopped."""
    if transition.state.phase in TRAINING_PHASES:
        fault = f"{member_state.member.name}, local rank {message.local_rank}: {message.detail}"
        transition.stop(Reason.PROCESS_FAILED, fault)
        transition.state = replace(transition.state, cause=replace(transition.state.cause, fault=fault))


def _record_adopted(transition: Transition, id_: str, member_state: MemberState, message: ShardsAdopted) -> None:
    """Record the shards that a member holds after a handover, and no longer await its answer."""
    transition.set_member(id_, replace(member_state, held_steps=message.held_steps))
    checkpoints = transition.state.checkpoints
    if (handover := checkpoints.handover) is not None:
        handover = replace(handover, awaits=handover.awaits - {id_})
        transition.state = replace(transition.state, checkpoints=replace(checkpoints, handover=handover))


def _record_success(transition: Transition, id_: str, member_state: MemberState, message: Succeeded) -> None:
    """Record that all processes of a member have succeeded; `_check_training` ends the job after the last one."""
    state = transition.state
    transition.set_member(id_, replace(member_state, busy=0, held_steps=message.held_steps))
    if message.round == transition.state.world_round and transition.state.is_in_world(id_):
        transition.state = replace(state, fencing=replace(state.fencing, ended_round=message.round))
        if state.phase in TRAINING_PHASES:
            transition.state = replace(transition.state, ending=replace(state.ending, done=state.ending.done | {id_}))


def _check_training(transition: Transition) -> None:
    """Finish the job if all members are done; begin to drain if a member leaves or the world can grow.

    Once a member is done, the round is not drained any more.
    """
    state = transition.state
    if state.world is not None and state.ending.done and state.ending.done >= state.world.assignments.keys():
        transition.finish(Exit.DONE, Reason.ALL_DONE, f"round {state.round}")
    elif state.ending.done:
        return
    elif why := drain_reason(transition):
        reason, detail = why
        transition.log_event("round_ended", reason, round=state.round, detail=detail)
        cause = replace(state.cause, reason=reason, detail=detail, since_s=transition.now_s)
        transition.state = replace(state, phase=Phase.DRAINING, cause=cause)
