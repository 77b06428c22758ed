"""Decides which members form the next world, when it is formed, and which world may follow which. docs/design.md 5.

The first round waits for the expected number of members or for the end of the last call. A later round waits only for
members that are known to return. Members of the last world are chosen first, then the oldest. If the last world was
stopped in order to grow, members that are still importing are not chosen. In all other cases they may be, since nobody
trains. Without an arbiter the next world needs more than half of the last world's members, so that no other world can
follow it. If the min is more than half of the max, only one world fits into the job. Then a member with the name or
index of a lost one counts as that one: two workers never have the same name, so the lost one has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from turnout.launcher.coordinator_messages import Formed, LastWorld, Successor, Waiting
from turnout.launcher.model import Exit, Member, Reason, RoundRecord, World
from turnout.launcher.rendezvous.diagnosis.node_check import checked_members, exclusion_of, is_ready
from turnout.launcher.rendezvous.rank_assignment import addresses_by_rank, rank_members
from turnout.launcher.rendezvous.restore.replica_placement import replica_groups
from turnout.launcher.rendezvous.restore.restore_plan import choose_restore
from turnout.launcher.rendezvous.state import (
    AskEndpoint,
    Checkpoints,
    Claim,
    Ending,
    EndpointAnswered,
    MemberState,
    Phase,
    State,
    StepDown,
    Transition,
    successors_of,
)


def may_train(base: LastWorld, formed: Formed) -> bool:
    """Return True if a member may train in the round of `formed`. base: the last world that the member knows.

    The round must be newer than `base`, and the world that it follows must be `base` or a newer one. So of two worlds
    that follow the same one, a member trains in at most one. docs/design.md 5
    """
    return formed.round > base.round and formed.base >= base.round


def was_in_last_world(transition: Transition, member_state: MemberState) -> bool:
    """Return True if this process of the agent was a member of the newest world that is known."""
    return member_state.base.inside and member_state.base.round == transition.state.fencing.newest_round


def overlaps(transition: Transition, chosen: Sequence[MemberState]) -> bool:
    """Return True if more than half of the last world's members are in `chosen`, so that no other world can follow it.

    Also True before the first world, and if nobody may succeed this coordinator.
    """
    return (
        transition.state.job.sole_coordinator
        or transition.state.fencing.newest_round == 0
        or 2 * sum(was_in_last_world(transition, member_state) for member_state in chosen)
        > transition.state.fencing.newest_size
    )


def has_enough_places(transition: Transition, chosen: Sequence[MemberState]) -> bool:
    """Return True if the chosen members have more than half of the last world's places, their own or those of lost
    ones.

    This is a proof only if the min is more than half of the max; else the result is False. If a spare member is
    present, more workers may exist, so at least one chosen member must have been in the last world.
    """
    state = transition.state
    if 2 * state.job.elastic_spec.min_nodes <= state.job.elastic_spec.max_nodes:
        return False
    if any(is_spare(transition, member_state) for member_state in transition.members.values()) and not any(
        was_in_last_world(transition, each) for each in chosen
    ):
        return False
    return 2 * sum(has_former_place(transition, member_state) for member_state in chosen) > state.fencing.newest_size


def has_former_place(transition: Transition, member_state: MemberState) -> bool:
    """Return True if the member has a place of the last world: its own, or that of a lost member with its name or
    index.

    If another coordinator formed that world, its names are unknown, and every member that is not a spare has a place.
    """
    if was_in_last_world(transition, member_state):
        return True
    world = (
        transition.state.world
        if transition.state.world is not None and transition.state.world.round == transition.state.fencing.newest_round
        else None
    )
    return not is_spare(transition, member_state) and (
        world is None or any(_same_place(member_state.member, former) for former in world.members)
    )


def is_spare(transition: Transition, member_state: MemberState) -> bool:
    """Return True if the member was present when the last world was formed, but is not in that world.

    Before the first world this is True for every member.
    """
    return member_state.base.round == transition.state.fencing.newest_round and not member_state.base.inside


def _same_place(member: Member, other_member: Member) -> bool:
    """Return True if both members are the same worker, by name or by index."""
    return member.name == other_member.name or (member.index is not None and member.index == other_member.index)


RETRY_S = 1.0  # seconds between two requests to an arbiter that does not answer

LOG_PERIOD_S = 10.0  # seconds between two log lines about missing members

GRANT_VALID_S = 10.0  # seconds after which a grant is requested again: the process may have slept and lost it


def gather(transition: Transition) -> None:
    """Claim a round if a world can be formed now; else wait, in most cases with a Wake effect for the end of the wait.

    If this coordinator's own member leaves, hand over instead. If too few members came in time, finish the job.
    """
    state = transition.state
    if transition.now_s < state.claiming.retry_s:
        transition.wake(state.claiming.retry_s)
        return
    if (own := transition.members.get(state.job.member.id)) is not None and own.leave_s is not None:
        _hand_over(transition, own)
        return
    if _waits_for_first_members(transition):
        _log_waiting(transition, Reason.LAST_CALL)
        return
    candidates = _candidates(transition)
    size = state.job.elastic_spec.world_size(len(candidates))
    if size == 0 or _may_follow_unknown_world(transition):
        _log_waiting(transition, Reason.BELOW_MIN)
        _wait_for_min(transition, len(candidates))
        return
    if _is_last_call(transition, len(candidates)):
        _log_waiting(transition, Reason.LAST_CALL)
        transition.wake(state.gathering.joined_s + state.gathering.last_call_s)
        return
    busy = sum(bool(member_state.busy) for member_state in transition.members.values())
    if state.job.elastic_spec.world_size(len(candidates) + busy) > size:
        return  # busy members were ordered to stop, and report the end of their processes
    if not _old_world_is_over(transition):
        transition.wake(state.fencing.old_world_until_s)
        return
    if (checked := checked_members(transition, candidates, size)) is not None:
        _claim_for(transition, checked, size)


def _is_last_call(transition: Transition, candidates: int) -> bool:
    """Return True while more members are expected. candidates: the number of members that may be chosen now."""
    gathering, elastic_spec = transition.state.gathering, transition.state.job.elastic_spec
    is_over = transition.now_s >= gathering.joined_s + gathering.last_call_s
    return not is_over and candidates < min(gathering.expected, elastic_spec.max_nodes)


def _claim_for(transition: Transition, checked: list[MemberState], size: int) -> None:
    """Claim a round for `size` of these members: those of the last world first, then the oldest.

    Without an arbiter the chosen members must prove that no other world can follow the last one; else
    `_wait_for_majority` waits or finishes the job.
    """

    def by_age(member_state: MemberState) -> tuple[bool, tuple[float, int, str, str]]:
        """Return the sort key: members of the last world first, then the oldest."""
        return not was_in_last_world(transition, member_state), member_state.member.age

    def by_place(member_state: MemberState) -> tuple[bool, bool, tuple[float, int, str, str]]:
        """Return the sort key of a member: members of the last world first, then those with a former place, then the
        oldest.
        """
        return (
            not was_in_last_world(transition, member_state),
            not has_former_place(transition, member_state),
            member_state.member.age,
        )

    chosen = sorted(checked, key=by_age)[:size]
    if not transition.state.job.has_arbiter and not overlaps(transition, chosen):
        chosen = sorted(checked, key=by_place)[:size]
        if not has_enough_places(transition, chosen):
            _wait_for_majority(transition)
            return
    _claim(transition, tuple(member_state.member for member_state in chosen))


def _candidates(transition: Transition) -> list[MemberState]:
    """List the members that may be in the next world: those that stay and have no processes.

    Members on nodes that a node check has excluded are omitted if the others are enough for a world. If the last world
    was stopped because a member joined, members that still import are omitted, too, if the ready ones are enough for a
    world.
    """
    present = [
        member_state
        for member_state in transition.members.values()
        if not member_state.busy and member_state.leave_s is None
    ]
    not_excluded = [each for each in present if exclusion_of(transition, each.member.id) is None]
    present = not_excluded if transition.state.job.elastic_spec.world_size(len(not_excluded)) else present
    ready = [member_state for member_state in present if is_ready(transition, member_state.member.id)]
    return (
        ready
        if transition.state.cause.reason is Reason.MEMBER_JOINED
        and transition.state.job.elastic_spec.world_size(len(ready))
        else present
    )


def _log_waiting(transition: Transition, reason: Reason) -> None:
    """Log how many members are missing, and until when the round waits. Skipped within LOG_PERIOD_S of the last log.

    reason: LAST_CALL or BELOW_MIN. Missing members of the last world are named; others are unknown.
    """
    state = transition.state
    if transition.now_s < state.gathering.logged_s + LOG_PERIOD_S:
        return
    names = {member_state.member.name for member_state in transition.members.values()}
    missing = [member.name for member in (state.world.members if state.world else ()) if member.name not in names]
    needed = (
        min(state.gathering.expected, state.job.elastic_spec.max_nodes)
        if reason is Reason.LAST_CALL
        else state.job.elastic_spec.smallest_world
    )
    transition.state = replace(state, gathering=replace(state.gathering, logged_s=transition.now_s))
    needed = max(needed, state.job.elastic_spec.smallest_world)
    fields: dict[str, object] = {"members": len(names), "wanted": needed, "missing": missing[:16]}
    fields["at"] = f"{state.job.member.address}:{state.job.member.port}"
    fields["gives_up_in_s"] = max(round(_deadline_s(state) - transition.now_s), 0)
    transition.log_event("round_waits", reason, waited_s=round(transition.now_s - state.cause.since_s, 3), **fields)


def _deadline_s(state: State) -> float:
    """Return the time at which the coordinator gives up the job if members are still too few."""
    return (state.gathering.search_began_s or state.cause.since_s) + state.job.elastic_spec.join_timeout_s


def _waits_for_first_members(transition: Transition) -> bool:
    """Return True during the last call of a new job's first round, while fewer members are present than expected.

    Then also add a Wake effect for its end, which is the join timeout at the latest. False if an earlier world or an
    earlier coordinator's grant is known, or if this coordinator may search for another one.
    """
    state = transition.state
    until_s = min(state.gathering.joined_s + state.gathering.last_call_s, _deadline_s(state))
    if (
        state.fencing.newest_round
        or state.fencing.granted_before
        or state.gathering.may_search
        or len(transition.members) >= min(state.gathering.expected, state.job.elastic_spec.max_nodes)
        or transition.now_s >= until_s
    ):
        return False
    transition.wake(until_s)
    return True


def _hand_over(transition: Transition, own: MemberState) -> None:
    """Hand the coordination over to the oldest other member, since this coordinator's own member leaves.

    Does nothing if no other member stays.
    """
    state = transition.state
    for next_ in [each for each in successors_of(transition.members) if each.id != state.job.member.id][:1]:
        transition.state = replace(state, phase=Phase.OVER)
        transition.log_event("handed_over", Reason.MEMBER_LEFT, to=next_.id, round=state.round + 1)
        record = RoundRecord(state.job.run, state.round + 1, next_.id, next_.address, next_.port, state.budget)
        transition.effects.append(
            StepDown(record, handover=True, size=state.fencing.newest_size - int(was_in_last_world(transition, own)))
        )


def _may_follow_unknown_world(transition: Transition) -> bool:
    """Return True if an earlier coordinator may have formed a first world of which no member here knows.

    That is so if this coordinator succeeded another one without an arbiter and no member has been in a world: then no
    majority can prove anything. False if two worlds do not fit into the job, since the min is more than half of the
    max.
    """
    state = transition.state
    return (
        state.fencing.newest_round == 0
        and not state.job.has_arbiter
        and bool(state.gathering.may_search)
        and (state.job.sole_coordinator or 2 * state.job.elastic_spec.min_nodes <= state.job.elastic_spec.max_nodes)
    )


def _old_world_is_over(transition: Transition) -> bool:
    """Return True if no older world can still be training: in one of three cases.

    1. A member of the world that this coordinator formed has ended its processes: a world trains only with all members.
    2. At least half of the members of the newest known world are present and run no process, and no earlier
    coordinator was granted a newer round. Members that left for good do not count.
    3. `old_world_until_s` has passed: by then every member without a coordinator has stopped its processes.
    """
    state = transition.state
    idle_members = sum(
        was_in_last_world(transition, member_state) and not member_state.busy
        for member_state in transition.members.values()
    )
    half_is_idle = 2 * idle_members >= state.fencing.newest_size
    own_world_ended = 0 < state.fencing.newest_round == transition.state.world_round == state.fencing.ended_round
    return (
        own_world_ended
        or (half_is_idle and 0 < state.fencing.newest_round >= state.fencing.granted_before)
        or transition.now_s >= state.fencing.old_world_until_s
    )


def _wait_for_min(transition: Transition, present: int) -> None:
    """Wait for more members until the join timeout, then finish the job as failed. present: number of candidates.

    Meanwhile, if the members may belong to another coordinator, ask the endpoint and later step down for a search.
    """
    state = transition.state
    until_s = _deadline_s(state)
    if transition.now_s < until_s:
        transition.wake(until_s)
        if _may_join_another(state):
            _ask_endpoint(transition)
            _step_down_for_search(transition)
        return
    names = ", ".join(sorted(member_state.member.name for member_state in transition.members.values())[:16])
    spec = state.job.elastic_spec
    detail = f"{present} of at least {spec.smallest_world} workers came within {spec.join_timeout_s:g} s: {names}"
    transition.finish(Exit.FAILED, Reason.JOIN_TIMEOUT, detail)


def _may_join_another(state: State) -> bool:
    """Return True if this coordinator may step down, so that its members join another coordinator.

    That requires a job without an arbiter, and a coordinator that may search again (`gathering.may_search`). A sole
    coordinator may step down only before the first round.
    """
    return (
        bool(state.gathering.may_search)
        and not state.job.has_arbiter
        and (not state.job.sole_coordinator or state.fencing.newest_round == 0)
    )


def _ask_endpoint(transition: Transition) -> None:
    """Add an AskEndpoint effect each `job.ask_s` seconds: it asks whether another agent listens at the endpoint.

    The lost coordinator, or its replacement, listens there again. Adds a Wake effect for the next time. Does nothing if
    `job.ask_s` is 0.
    """
    state = transition.state
    if not state.job.ask_s:
        return
    next_s = max(state.gathering.endpoint_s, state.cause.since_s) + state.job.ask_s
    if transition.now_s >= next_s:
        transition.state = replace(state, gathering=replace(state.gathering, endpoint_s=transition.now_s))
        transition.effects.append(AskEndpoint())
        next_s = transition.now_s + state.job.ask_s
    transition.wake(next_s)


def step_down_for_endpoint(transition: Transition, answer: EndpointAnswered) -> None:
    """Step down and send all members to the agent that listens at the endpoint.

    Only while GATHERING with too few members for a world, if that agent is not one of them and `_may_join_another`
    allows it.
    """
    state = transition.state
    is_member = any(
        (each.member.address, each.member.port) == (answer.address, answer.port) for each in transition.members.values()
    )
    has_too_few = state.job.elastic_spec.world_size(len(_candidates(transition))) == 0 or _may_follow_unknown_world(
        transition
    )
    if state.phase is not Phase.GATHERING or is_member or not has_too_few or not _may_join_another(state):
        return
    transition.state = replace(state, phase=Phase.OVER)
    transition.log_event("stepped_down", Reason.BELOW_MIN, round=state.round, at=f"{answer.address}:{answer.port}")
    transition.effects.append(StepDown(RoundRecord(state.job.run, state.round, "", answer.address, answer.port)))


def _step_down_for_search(transition: Transition) -> None:
    """Step down after some time with too few members, so that all its members search for another coordinator.

    The time grows with the number of members and has a varying part, so that of two coordinators one is still leading
    when the members of the other arrive. Adds a Wake effect until then.
    """
    state = transition.state
    factor = crc32(f"{state.job.member.id} {state.cause.since_s}".encode()) / 2**31  # 0 to 2
    until_s = state.cause.since_s + state.job.search_period_s * (1 + len(transition.members) + factor)
    if transition.now_s < until_s:
        transition.wake(until_s)
        return
    transition.state = replace(state, phase=Phase.OVER)
    transition.log_event("stepped_down", Reason.BELOW_MIN, round=state.round)
    transition.effects.append(StepDown(RoundRecord(state.job.run, state.round, "")))


def _wait_for_majority(transition: Transition) -> None:
    """Wait `job.alone_s` seconds for a majority of the last world, then finish the job as failed: the other members may
    train elsewhere.
    """
    state = transition.state
    until_s = state.cause.since_s + state.job.alone_s
    if transition.now_s < until_s:
        transition.wake(until_s)
        return
    remaining = sum(was_in_last_world(transition, member_state) for member_state in transition.members.values())
    detail = (
        f"{remaining} of the {state.fencing.newest_size} workers of round {state.fencing.newest_round} are left: "
        f"without a Lease or a round folder a world, a multiple of {state.job.elastic_spec.node_unit}, "
        "needs more than half of them, since the others may still train"
    )
    transition.finish(Exit.FAILED, Reason.NO_ARBITER, detail)


def _claim(transition: Transition, chosen: tuple[Member, ...]) -> None:
    """Fix the members of the next round, and add a Claim effect, which asks the arbiter to grant the round.

    Without an arbiter, or with a grant that is still valid, form the world at once.
    """
    state = transition.state
    has_grant = (
        state.claiming.granted >= state.round
        and transition.now_s <= state.claiming.asked_s + GRANT_VALID_S
        and state.claiming.granted > 0
    )
    round_ = state.claiming.granted if has_grant else state.round + 1
    claiming = replace(state.claiming, chosen=chosen, granted=0)
    transition.state = replace(state, phase=Phase.CLAIMING, round=round_, claiming=claiming)
    if state.job.has_arbiter and not has_grant:
        transition.state = replace(transition.state, claiming=replace(claiming, asked_s=transition.now_s))
        me = state.job.member
        transition.effects.append(Claim(RoundRecord(state.job.run, round_, me.id, me.address, me.port, state.budget)))
    else:
        form(transition)


def form_granted(transition: Transition) -> None:
    """Form the world of a granted round. If the grant is older than GRANT_VALID_S, gather again: this process may have
    been suspended, and another member may have the round now.
    """
    if transition.now_s > transition.state.claiming.asked_s + GRANT_VALID_S:
        _drop_claim(transition)
        return
    transition.state = replace(transition.state, claiming=replace(transition.state.claiming, grant_expired=False))
    form(transition)


def _drop_claim(transition: Transition) -> None:
    """Return to gathering, so that the next world's members are chosen again."""
    transition.state = replace(
        transition.state, phase=Phase.GATHERING, claiming=replace(transition.state.claiming, chosen=())
    )


def form_without_arbiter(transition: Transition) -> None:
    """Handle a claim that the arbiter did not answer: form the world if it has more than half of the last world.

    Else, and if the arbiter was unreachable for too long, gather again after RETRY_S.
    """
    state, claiming = transition.state, transition.state.claiming
    chosen = [transition.members[member.id] for member in claiming.chosen if member.id in transition.members]
    if (
        state.fencing.newest_round
        and not claiming.grant_expired
        and len(chosen) == len(claiming.chosen)
        and overlaps(transition, chosen)
    ):
        form(transition)
        return
    transition.state = replace(
        state, phase=Phase.GATHERING, claiming=replace(claiming, retry_s=transition.now_s + RETRY_S)
    )


def form(transition: Transition) -> None:
    """Form the world of the members that the granted claim names: assign ranks, send each its place, enter TRAINING.

    If one of these members is lost, busy or leaving by now, drop the claim and return to GATHERING instead.
    """
    state = transition.state
    chosen = state.claiming.chosen
    if not all(
        (member_state := transition.members.get(member.id)) and not member_state.busy and member_state.leave_s is None
        for member in chosen
    ):
        _drop_claim(transition)
        return
    before = state.world.members if state.world else ()
    ranking = rank_members(chosen, before, by_index=state.job.elastic_spec.keeps_order)
    world, base = World.of(state.round, ranking.members), state.fencing.newest_round
    may_search = None if state.gathering.may_search is None else True
    transition.state = replace(
        state,
        phase=Phase.TRAINING,
        world=world,
        ending=Ending(),
        cause=replace(state.cause, since_s=transition.now_s, fault="", lost=False),
        fencing=replace(state.fencing, newest_round=state.round, newest_size=len(world.members)),
        gathering=replace(state.gathering, expected=0, last_call_s=0.0, search_began_s=0.0, may_search=may_search),
        claiming=replace(state.claiming, chosen=()),
        checking=state.checking and replace(state.checking, passed=frozenset()),
    )
    _send_assignments(transition, world, base)
    fields: dict[str, object] = {"round": world.round, "members": len(world.members), "ranks": world.ranks}
    fields |= {"waited_s": round(transition.now_s - state.cause.since_s, 3)}
    fields |= {"detail": state.cause.detail, "restarts": state.budget.total}
    fields |= {"crossings": ranking.crossings, "excess": ranking.excess, "moved": ranking.moved, "anew": ranking.is_new}
    fields |= {"ips": addresses_by_rank(world.members)}
    transition.log_event("world_formed", state.cause.reason, **fields)


def _send_assignments(transition: Transition, world: World, base: int) -> None:
    """Send all members their place in the new world, or why they wait. base: round of the world before it, or 0."""
    size, successors, host = len(world.members), successors_of(transition.members), world.members[0]
    staying = {id_: member_state for id_, member_state in transition.members.items() if member_state.leave_s is None}
    held_steps = {id_: member_state.held_steps for id_, member_state in staying.items()}
    choice = choose_restore(world, held_steps, {id_: member_state.member for id_, member_state in staying.items()})
    groups, rings = replica_groups(world, transition.state.checkpoints.rings)
    persist_step = transition.state.checkpoints.persist_step
    check_storage = choice.is_older(max(base, transition.state.fencing.granted_before))
    checkpoints = Checkpoints(size, rings=rings, handover=transition.state.checkpoints.handover)
    transition.state = replace(transition.state, checkpoints=checkpoints)
    for member in world.members:
        assignment, member_state = world.assignments[member.id], transition.members[member.id]
        member_state = replace(member_state, base=LastWorld(world.round, size, True), busy=world.round)
        transition.set_member(member.id, replace(member_state, step=-1, reached=None, stored_step=None))
        formed = Formed(
            world.round,
            base,
            assignment.group_rank,
            size,
            assignment.first_rank,
            world.ranks,
            host.address,
            host.master_port,
            transition.state.cause.reason.value,
            transition.state.budget,
            successors,
            choice.step,
            choice.round,
            choice.replicated,
            choice.fetch_from.get(member.id, ()),
            groups.get(member.id),
            persist_step,
            choice.saved_by,
            choice.locations.get(member.id, ()),
            check_storage,
        )
        transition.send((member.id,), formed)
    _send_spares(transition, world, successors)


def _send_spares(transition: Transition, world: World, successors: tuple[Successor, ...]) -> None:
    """Send each member outside the world why it waits, and the successors to contact if the coordinator is lost."""
    size = len(world.members)
    spares = [id_ for id_ in transition.members if id_ not in world.assignments]
    for id_ in spares:
        transition.set_member(id_, replace(transition.members[id_], base=LastWorld(world.round, size, False)))
    excluded = {id_: exclusion for id_ in spares if (exclusion := exclusion_of(transition, id_)) is not None}
    for id_, exclusion in excluded.items():
        transition.send(
            (id_,), Waiting(world.round, size, exclusion.reason.value, exclusion.describe(transition.now_s), successors)
        )
    why = f"the world of round {world.round} is {size}"
    transition.send(
        [id_ for id_ in spares if id_ not in excluded], Waiting(world.round, size, Reason.SPARE.value, why, successors)
    )
