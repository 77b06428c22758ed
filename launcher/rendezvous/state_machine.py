"""Decides what one event changes in the coordinator's state, and what it asks for. A pure function. docs/design.md 5.

The table of states is in state.py. A formed world is frozen: its size is between min and max, and a multiple of the
unit. A late member waits for the next round, and ends the current one only if the world can grow.
A fault is charged once to the restart budget, and not at all if the loss of a member explains it. Source: torchelastic
and DLRover as docs/facts/launcher.md §1 and docs/facts/dlrover.md 2.1 have them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from turnout.launcher.health.messages import Hung, Probed, Stacks
from turnout.launcher.health.stack_traces.hang_state import Merged
from turnout.launcher.model import ElasticSpec, Exit, Member, Reason, RestartBudget
from turnout.launcher.rendezvous.checkpoint_messages import ShardsAdopted
from turnout.launcher.rendezvous.diagnosis.hang_collection import came_back, gathered, hung, merged, shown
from turnout.launcher.rendezvous.diagnosis.node_check import came_again, check, connected, probed, spared
from turnout.launcher.rendezvous.drain import beats, drain, hand, leaving, reached, stopped, wants_drain
from turnout.launcher.rendezvous.form_world import gather, go_to_endpoint, granted, unanswered
from turnout.launcher.rendezvous.messages import (
    Failed,
    Finish,
    Heartbeat,
    LastWorld,
    Leaving,
    Reached,
    Ready,
    Refused,
    Stop,
    StopAt,
    Stored,
    Succeeded,
)
from turnout.launcher.rendezvous.restore.stored_step import saw
from turnout.launcher.rendezvous.state import (
    Cause,
    Claiming,
    Denied,
    Drop,
    Effect,
    EndpointAnswered,
    Event,
    Fencing,
    Gathering,
    Granted,
    Job,
    Joined,
    Lost,
    MemberState,
    Over,
    Phase,
    Said,
    State,
    StepDown,
    Unanswered,
    Unfenced,
)
from turnout.launcher.rendezvous.transition import Transition

TRAINS = (Phase.TRAINING, Phase.DRAINING)


def begin(
    me: Member,
    run: str,
    terms: ElasticSpec,
    now_s: float,
    *,
    wanted: int = 0,
    granted: int | None = None,
    only: bool = False,
) -> State:
    """Make the state of a new job. granted: the round that the arbiter gave, None without an arbiter."""
    return State(
        Job(me, run, terms, granted is not None, only),
        round=granted or 0,
        cause=Cause(since_s=now_s),
        gathering=Gathering(wanted, wanted or terms.most, terms.last_call_s, now_s),
        claiming=Claiming(granted or 0, asked_s=now_s),
    )


def succeed(
    state: State,
    base: LastWorld,
    budget: RestartBudget,
    *,
    handed: bool = False,
    before: int = 0,
    fenced_s: float = 0.0,
    sought_s: float | None = None,
) -> State:
    """Make the state of a job whose coordinator was lost, from a new job's state: members get time to regroup.

    handed: the old coordinator left in peace, and the base no longer counts it.
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
        gathering = replace(gathering, roams=sought_s > 0, sought_s=sought_s)
    if not base.round:
        return replace(state, gathering=gathering)
    expected = base.size if handed else max(base.size - 1, 1)
    return replace(
        state,
        round=max(state.round, base.round),
        cause=replace(state.cause, why=Reason.COORDINATOR_LOST),
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
        _take(transition, event)
    _decide(transition)
    return transition.ended()


def _take(transition: Transition, event: Event) -> None:
    match event:
        case Joined():
            _joined(transition, event)
        case Lost(id=id_, reason=reason):
            _lost(transition, id_, reason)
        case Said(id=id_, message=message) if (known := transition.members.get(id_)) is not None:
            _said(transition, id_, known, message)
        case Granted(round=round_) if transition.at.phase is Phase.CLAIMING and round_ == transition.at.round:
            granted(transition)
        case Unanswered(round=round_) if transition.at.phase is Phase.CLAIMING and round_ == transition.at.round:
            unanswered(transition)
        case Denied(holder=holder) if transition.at.phase not in (Phase.FINISHING, Phase.OVER):
            transition.tell(transition.busy(), Stop(transition.at.round, Reason.ROUND_LOST.value, 0.0))
            transition.at = replace(transition.at, phase=Phase.OVER)
            transition.told("stepped_down", Reason.ROUND_LOST, to=holder.coordinator, round=holder.round)
            transition.effects.append(StepDown(holder))
        case EndpointAnswered():
            go_to_endpoint(transition, event)
        case Merged():
            merged(transition, event)
        case Unfenced():
            transition.at = replace(transition.at, claiming=replace(transition.at.claiming, unfenced=True))
            if transition.at.phase in TRAINS:
                transition.stop(Reason.NO_ARBITER, "the arbiter was out of reach for too long")


def _decide(transition: Transition) -> None:
    """Advance through the phases as far as the state allows."""
    gathered(transition)
    if transition.at.phase is Phase.TRAINING:
        _train(transition)
    if transition.at.phase is Phase.DRAINING:
        drain(transition)
    if transition.at.phase is Phase.STOPPING and not transition.busy():
        stopped(transition)
    if transition.at.phase is Phase.HANDING:
        hand(transition)
    if transition.at.phase is Phase.CHECKING:
        check(transition)
    if transition.at.phase is Phase.GATHERING:
        gather(transition)
    if transition.at.phase is Phase.FINISHING:
        others = transition.members.keys() - {transition.at.job.me.id}
        if not others or transition.now_s >= transition.at.ending.until_s:
            transition.at = replace(transition.at, phase=Phase.OVER)
            transition.effects.append(
                Over(transition.at.ending.exit or Exit.DONE, transition.at.cause.why, transition.at.cause.detail)
            )


def _joined(transition: Transition, event: Joined) -> None:
    at, member = transition.at, event.member
    if at.phase in (Phase.FINISHING, Phase.OVER):
        transition.know(member.id, MemberState(member, event.base))
        exit_, why = at.ending.exit, at.cause.why.value
        if exit_ is not None and exit_ is not Exit.FAULTY:  # else others decide, or nobody: the job starts over
            transition.tell((member.id,), Finish(int(exit_), why, at.cause.detail, at.checkpoints.carry))
        return
    if fault := _differs(at.job.terms, event.terms):
        _refuse(transition, event, fault)
        return
    if (before := transition.named(member.name)) is not None and before != member.id and before in transition.members:
        transition.effects.append(Drop(before))  # its place was taken: one worker at a time has a name
        _lost(transition, before, Reason.MEMBER_LOST)
    at = transition.at
    new = member.id not in transition.members
    busy, told = event.base.round if event.base.busy else 0, transition.members.get(member.id)
    stored = told.stored if told is not None and busy == told.busy else None
    ready_s = transition.now_s + event.importing_s if event.importing_s else 0.0
    transition.know(
        member.id, MemberState(member, event.base, busy=busy, held=event.held, stored=stored, ready_s=ready_s)
    )
    fencing = _newest(at.fencing, event.base)
    gathering = _expected(at, event, fencing)
    if new and not came_again(transition, member.id):
        gathering = replace(gathering, joined_s=transition.now_s)
    transition.at = replace(
        at,
        round=max(at.round, event.base.round),
        budget=at.budget.newer(event.budget),
        gathering=gathering,
        fencing=fencing,
    )
    # This arbiter would not grant the round that is asked for.
    if at.phase is Phase.CLAIMING and event.base.round >= at.round:
        transition.at = replace(transition.at, phase=Phase.GATHERING, claiming=replace(at.claiming, chosen=()))
    transition.told("member_joined", at.cause.why, member=member.name, members=len(transition.members))
    _placed(transition, member, event.base)


def _expected(at: State, event: Joined, fencing: Fencing) -> Gathering:
    """Adopt the number of members that a member reports: the job's, or those of a world that has survivors."""
    gathering = replace(at.gathering, wanted=event.wanted or at.gathering.wanted)
    if at.fencing.base == at.fencing.before == 0 < fencing.base:  # this coordinator is new, and knew of no world
        return replace(gathering, expected=fencing.base_size, call_s=at.job.regroup_s)
    return replace(gathering, expected=event.wanted) if event.wanted and at.fencing.base == 0 else gathering


def _refuse(transition: Transition, event: Joined, fault: str) -> None:
    """Turn a member away whose terms differ from the job's."""
    member = event.member
    transition.know(member.id, MemberState(member, event.base))
    transition.tell((member.id,), Refused(Reason.REFUSED.value, fault))
    transition.effects.append(Drop(member.id))
    del transition.members[member.id]
    transition.told("member_refused", Reason.REFUSED, member=member.name, detail=fault)


def _newest(fencing: Fencing, told: LastWorld) -> Fencing:
    """Adopt the world that a member reports, unless a newer one is known. Of two sizes the smaller counts, since it
    knows who left.
    """
    if not told.inside or told.round < fencing.base:
        return fencing
    size = min(fencing.base_size, told.size) if told.round == fencing.base else told.size
    return replace(fencing, base=told.round, base_size=size)


def _placed(transition: Transition, member: Member, base: LastWorld) -> None:
    """Tell a new member to stop, wait or continue. If it has a seat but no processes, its world ends."""
    connected(transition, member.id)
    at, seat = transition.at, transition.at.phase in TRAINS and transition.inside(member.id)
    if seat and base.busy and base.round == transition.world_round:
        if at.ending.stop_step is not None:
            transition.tell((member.id,), StopAt(transition.world_round, at.ending.stop_step, at.ending.sure))
        if at.checkpoints.named is not None:
            transition.tell((member.id,), at.checkpoints.named)
        came_back(transition, member.id)
        return
    if base.busy:
        transition.tell((member.id,), Stop(base.round, at.cause.why.value, 0.0))
    elif base.round == transition.world_round and transition.inside(member.id):
        transition.at = replace(at, fencing=replace(at.fencing, ended=base.round))
    if seat and member.id not in at.ending.done:
        transition.stop(Reason.MEMBER_LOST, f"{member.name} has come back without its processes")
    elif at.phase in TRAINS and not seat and not base.busy:
        transition.wait(member.id, *spared(transition, member.id))


def _differs(ours: ElasticSpec, theirs: ElasticSpec) -> str:
    one, other = (f"{each.least}:{each.most}, unit {each.unit}" for each in (ours, theirs))
    return "" if one == other else f"the job's world is {one}, this worker's command line says {other}"


def _lost(transition: Transition, id_: str, reason: Reason) -> None:
    known = transition.members.pop(id_, None)
    if known is None:
        return
    transition.told("member_lost", reason, member=known.member.name, members=len(transition.members))
    if known.busy:
        fenced_s = max(transition.at.fencing.fenced_s, transition.now_s + transition.at.job.fence_s)
        transition.at = replace(transition.at, fencing=replace(transition.at.fencing, fenced_s=fenced_s))
    if (
        known.leave_s is not None
        and not known.busy
        and known.base.inside
        and known.base.round == transition.at.fencing.base
    ):
        left = replace(
            transition.at.fencing, base_size=transition.at.fencing.base_size - 1
        )  # it has left for good, and reports that
        transition.at = replace(transition.at, fencing=left)
    if not transition.inside(id_) or id_ in transition.at.ending.done:
        return
    if transition.at.phase in TRAINS:
        leaves = known.leave_s is not None
        why = Reason.MEMBER_LEFT if leaves and not known.busy else reason
        if known.busy or not leaves:
            transition.stop(why, known.member.name)
    if known.busy:
        transition.at = replace(transition.at, cause=replace(transition.at.cause, lost=True))


def _said(transition: Transition, id_: str, known: MemberState, message: object) -> None:
    at = transition.at
    match message:
        case Heartbeat():
            beats(transition, id_, known, message)
        case Ready(round=round_, master_port=port, path=path, held=held) if round_ >= known.busy:
            at_home = replace(known.member, master_port=port, path=path)
            transition.know(id_, replace(known, busy=0, member=at_home, held=held))
            if known.busy == transition.world_round and transition.inside(id_):
                transition.at = replace(at, fencing=replace(at.fencing, ended=transition.world_round))
                if at.phase in TRAINS:
                    transition.stop(Reason.MEMBER_LOST, f"{known.member.name} has ended its processes")
        case Failed(round=round_, local_rank=rank, detail=detail) if known.busy == round_ == transition.world_round:
            if at.phase in TRAINS:
                fault = f"{known.member.name}, local rank {rank}: {detail}"
                transition.stop(Reason.PROCESS_FAILED, fault)
                transition.at = replace(transition.at, cause=replace(transition.at.cause, fault=fault))
        case ShardsAdopted(held=held):
            transition.know(id_, replace(known, held=held))
            if (handing := at.checkpoints.handing) is not None:
                handing = replace(handing, awaits=handing.awaits - {id_})
                transition.at = replace(at, checkpoints=replace(at.checkpoints, handing=handing))
        case Succeeded(round=round_, held=held) if known.busy == round_:
            transition.know(id_, replace(known, busy=0, held=held))
            if round_ == transition.world_round and transition.inside(id_):
                transition.at = replace(at, fencing=replace(at.fencing, ended=round_))
                if at.phase in TRAINS:
                    transition.at = replace(transition.at, ending=replace(at.ending, done=at.ending.done | {id_}))
        case Leaving(grace_s=grace_s):
            leaving(transition, id_, known, grace_s)
        case Reached(round=round_, step=step_) if known.busy == round_ == transition.world_round:
            reached(transition, id_, known, step_)
        case Stored(round=round_) if known.busy == round_ == transition.world_round:
            saw(transition, id_, known, message)
        case Probed():
            probed(transition, id_, known, message)
        case Hung():
            hung(transition, id_, known, message)
        case Stacks():
            shown(transition, id_, message)


def _train(transition: Transition) -> None:
    """End the round if all are done, or if a member leaves or the world can grow."""
    at = transition.at
    if at.world is not None and at.ending.done and at.ending.done >= at.world.seats.keys():
        transition.finish(Exit.DONE, Reason.ALL_DONE, f"round {at.round}")
    elif at.ending.done:
        return
    elif why := wants_drain(transition):
        reason, detail = why
        transition.told("round_ended", reason, round=at.round, detail=detail)
        cause = replace(at.cause, why=reason, detail=detail, since_s=transition.now_s)
        transition.at = replace(at, phase=Phase.DRAINING, cause=cause)
