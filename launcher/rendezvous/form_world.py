"""Decides which members make the next world, when it is formed, and which world may follow which. docs/design.md 5.

A round waits only for members that can come, and a formed world only for members that are present. The first round
waits for the wanted number or the last call. Members of the last world come first, then the oldest.
A member that still imports is left out of a world that was stopped to grow. Otherwise nobody trains, so every present
member is taken.
Without an arbiter the next world needs more than half of the last world's members, so that no other world can follow
it. If the min is more than half of the max, only one world fits into the job. A member that returned in the place of a
lost one then counts too. The lost one has ended, since a name belongs to one worker at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from turnout.launcher.coordinator_messages import Formed, LastWorld, Successor, Waiting
from turnout.launcher.model import Exit, Member, Reason, RoundRecord, World
from turnout.launcher.rendezvous.diagnosis.node_check import checked_members
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
)


def may_train(base: LastWorld, formed: Formed) -> bool:
    """Return True if a member with this last world may train in this round.

    A member takes part in rounds in increasing order, and only if they follow a world no older than its own. Of two
    worlds that follow the same one, at most one can train with a given member. docs/design.md 5
    """
    return formed.round > base.round and formed.base >= base.round


def was_in_last_world(transition: Transition, known: MemberState) -> bool:
    """Return True if the member was in the last world, in this life."""
    return known.base.inside and known.base.round == transition.state.fencing.base


def overlaps(transition: Transition, chosen: Sequence[MemberState]) -> bool:
    """Return True if more than half of the last world's members are in this one.

    No other world can then follow the last one without one of them.
    """
    return (
        transition.state.job.sole_coordinator
        or transition.state.fencing.base == 0
        or 2 * sum(was_in_last_world(transition, known) for known in chosen) > transition.state.fencing.base_size
    )


def has_enough_places(transition: Transition, chosen: Sequence[MemberState]) -> bool:
    """Return True if more than half of the last world's places are taken again.

    This needs a job in which only one world fits, and fewer started workers than twice the min. If a spare is here,
    there may be more workers, so one member that kept its place must be here.
    """
    at = transition.state
    if 2 * at.job.elastic_spec.min_nodes <= at.job.elastic_spec.max_nodes:
        return False
    if any(has_no_rank(transition, known) for known in transition.members.values()) and not any(
        was_in_last_world(transition, each) for each in chosen
    ):
        return False
    return 2 * sum(has_former_place(transition, known) for known in chosen) > at.fencing.base_size


def has_former_place(transition: Transition, known: MemberState) -> bool:
    """Return True if the member has a place of the last world: its own, or a lost member's by name or index.

    If another coordinator formed that world, its names are unknown, and a new member is taken to have a place.
    """
    if was_in_last_world(transition, known):
        return True
    world = (
        transition.state.world
        if transition.state.world is not None and transition.state.world.round == transition.state.fencing.base
        else None
    )
    return not has_no_rank(transition, known) and (
        world is None or any(_same_place(known.member, former) for former in world.members)
    )


def has_no_rank(transition: Transition, known: MemberState) -> bool:
    """Return True if the member was present when the last world was formed, but not in it."""
    return known.base.round == transition.state.fencing.base and not known.base.inside


def _same_place(one: Member, other: Member) -> bool:
    return one.name == other.name or (one.index is not None and one.index == other.index)


RETRY_S = 1.0  # seconds between two requests to an arbiter that does not answer

LOG_PERIOD_S = 10.0  # seconds between two log lines about missing members

GRANT_VALID_S = 10.0  # seconds after which a grant is requested again: the process may have slept and lost it


def gather(transition: Transition) -> None:
    """Form a world if one can be formed now; otherwise set a timer."""
    at = transition.state
    if transition.now_s < at.claiming.retry_s:
        transition.wake(at.claiming.retry_s)
        return
    if (own := transition.members.get(at.job.member.id)) is not None and own.leave_s is not None:
        _hand_over(transition, own)
        return
    if _still_arriving(transition):
        _log_waiting(transition, Reason.LAST_CALL)
        return
    candidates = _candidates(transition)
    size = at.job.elastic_spec.world_size(len(candidates))
    if size == 0 or _may_be_second(transition):
        _log_waiting(transition, Reason.BELOW_MIN)
        _wait_for_min(transition, len(candidates))
        return
    last_call_over = transition.now_s >= at.gathering.joined_s + at.gathering.call_s
    if not last_call_over and len(candidates) < min(at.gathering.expected, at.job.elastic_spec.max_nodes):
        _log_waiting(transition, Reason.LAST_CALL)
        transition.wake(at.gathering.joined_s + at.gathering.call_s)
        return
    busy = sum(bool(known.busy) for known in transition.members.values())
    if at.job.elastic_spec.world_size(len(candidates) + busy) > size:
        return  # they were told to stop, and will report when they have
    if not _is_fenced(transition):
        transition.wake(at.fencing.fenced_s)
        return
    if (checked := checked_members(transition, candidates, size)) is not None:
        _claim_for(transition, checked, size)


def _claim_for(transition: Transition, checked: list[MemberState], size: int) -> None:
    """Claim a round for `size` of these members: those of the last world first, then the oldest.

    Without an arbiter it waits unless they prove that no other world can follow the last one.
    """

    def by_age(known: MemberState) -> tuple[bool, tuple[float, int, str, str]]:
        return not was_in_last_world(transition, known), known.member.age

    def by_place(known: MemberState) -> tuple[bool, bool, tuple[float, int, str, str]]:
        return not was_in_last_world(transition, known), not has_former_place(transition, known), known.member.age

    chosen = sorted(checked, key=by_age)[:size]
    if not transition.state.job.has_arbiter and not overlaps(transition, chosen):
        chosen = sorted(checked, key=by_place)[:size]
        if not has_enough_places(transition, chosen):
            _wait_for_majority(transition)
            return
    _claim(transition, tuple(known.member for known in chosen))


def _candidates(transition: Transition) -> list[MemberState]:
    """List the members that may be in the next world.

    A world that was stopped to grow does not wait for members that still import, unless it needs them. Excluded nodes
    are tested early only if too few others are present.
    """
    present = [known for known in transition.members.values() if not known.busy and known.leave_s is None]
    not_excluded = [known for known in present if transition.exclusion(known.member.id) is None]
    present = not_excluded if transition.state.job.elastic_spec.world_size(len(not_excluded)) else present
    ready = [known for known in present if transition.is_ready(known.member.id)]
    return (
        ready
        if transition.state.cause.reason is Reason.MEMBER_JOINED
        and transition.state.job.elastic_spec.world_size(len(ready))
        else present
    )


def _log_waiting(transition: Transition, reason: Reason) -> None:
    """Log every TELL_S seconds which members are missing, where they are awaited, and for how long.

    Names are known only for members of the last world. For others there is only a number.
    """
    at = transition.state
    if transition.now_s < at.gathering.logged_s + LOG_PERIOD_S:
        return
    names = {known.member.name for known in transition.members.values()}
    missing = [member.name for member in (at.world.members if at.world else ()) if member.name not in names]
    needed = (
        min(at.gathering.expected, at.job.elastic_spec.max_nodes)
        if reason is Reason.LAST_CALL
        else at.job.elastic_spec.smallest_world
    )
    transition.state = replace(at, gathering=replace(at.gathering, logged_s=transition.now_s))
    needed = max(needed, at.job.elastic_spec.smallest_world)
    fields: dict[str, object] = {"members": len(names), "wanted": needed, "missing": missing[:16]}
    fields["at"] = f"{at.job.member.address}:{at.job.member.port}"
    fields["gives_up_in_s"] = max(round(_gives_up_s(at) - transition.now_s), 0)
    transition.log_event("round_waits", reason, waited_s=round(transition.now_s - at.cause.since_s, 3), **fields)


def _gives_up_s(at: State) -> float:
    """Return the time at which the coordinator gives up waiting for enough members."""
    return (at.gathering.sought_s or at.cause.since_s) + at.job.elastic_spec.join_timeout_s


def _still_arriving(transition: Transition) -> bool:
    """Return True if the first members are still arriving. Members are then not examined at each arrival."""
    at = transition.state
    until_s = min(at.gathering.joined_s + at.gathering.call_s, _gives_up_s(at))
    if (
        at.fencing.base
        or at.fencing.before
        or at.gathering.searches
        or len(transition.members) >= min(at.gathering.expected, at.job.elastic_spec.max_nodes)
        or transition.now_s >= until_s
    ):
        return False
    transition.wake(until_s)
    return True


def _hand_over(transition: Transition, own: MemberState) -> None:
    """Hand over to the oldest other member, since the coordinator itself leaves."""
    at = transition.state
    for next_ in [each for each in transition.successors() if each.id != at.job.member.id][:1]:
        transition.state = replace(at, phase=Phase.OVER)
        transition.log_event("handed_over", Reason.MEMBER_LEFT, to=next_.id, round=at.round + 1)
        record = RoundRecord(at.job.run, at.round + 1, next_.id, next_.address, next_.port, at.budget)
        transition.effects.append(
            StepDown(record, handover=True, size=at.fencing.base_size - int(was_in_last_world(transition, own)))
        )


def _may_be_second(transition: Transition) -> bool:
    """Return True if an earlier coordinator may have formed the first world without telling anybody here.

    This coordinator took over before it heard of a world, and no member here was in one, so a majority cannot tell. If
    the min is more than half of the max, two worlds do not fit into the job.
    """
    at = transition.state
    return (
        at.fencing.base == 0
        and not at.job.has_arbiter
        and bool(at.gathering.searches)
        and (at.job.sole_coordinator or 2 * at.job.elastic_spec.min_nodes <= at.job.elastic_spec.max_nodes)
    )


def _is_fenced(transition: Transition) -> bool:
    """Return True if no older world can still be training, as far as anybody can know.

    A world trains only with all its members, so this coordinator's own world is over when one has ended its
    processes. For an earlier coordinator's world, half of its members must be here. Otherwise time has to pass until
    members that do not hear from a coordinator have fenced themselves.
    """
    at = transition.state
    idle_veterans = sum(
        was_in_last_world(transition, known) and not known.busy for known in transition.members.values()
    )
    ours = 0 < at.fencing.base == transition.world_round == at.fencing.ended
    return (
        ours
        or (0 < at.fencing.base >= at.fencing.before and 2 * idle_veterans >= at.fencing.base_size)
        or transition.now_s >= at.fencing.fenced_s
    )


def _wait_for_min(transition: Transition, present: int) -> None:
    """Wait for more members until the join timeout, then end the job."""
    at = transition.state
    until_s = _gives_up_s(at)
    if transition.now_s < until_s:
        transition.wake(until_s)
        if _may_join_another(at):
            _ask_endpoint(transition)
            _step_down_for_search(transition)
        return
    names = ", ".join(sorted(known.member.name for known in transition.members.values())[:16])
    spec = at.job.elastic_spec
    detail = f"{present} of at least {spec.smallest_world} workers came within {spec.join_timeout_s:g} s: {names}"
    transition.finish(Exit.FAILED, Reason.JOIN_TIMEOUT, detail)


def _may_join_another(at: State) -> bool:
    return (
        bool(at.gathering.searches) and not at.job.has_arbiter and (not at.job.sole_coordinator or at.fencing.base == 0)
    )


def _ask_endpoint(transition: Transition) -> None:
    """Ask at the endpoint each `ask_s` seconds: the lost coordinator, or its replacement, comes back there."""
    at = transition.state
    if not at.job.ask_s:
        return
    next_s = max(at.gathering.endpoint_s, at.cause.since_s) + at.job.ask_s
    if transition.now_s >= next_s:
        transition.state = replace(at, gathering=replace(at.gathering, endpoint_s=transition.now_s))
        transition.effects.append(AskEndpoint())
        next_s = transition.now_s + at.job.ask_s
    transition.wake(next_s)


def go_to_endpoint(transition: Transition, answer: EndpointAnswered) -> None:
    """Step down in favour of the agent at the endpoint if this coordinator has too few members, and that agent is none
    of them.
    """
    at = transition.state
    known = any(
        (each.member.address, each.member.port) == (answer.address, answer.port) for each in transition.members.values()
    )
    few = at.job.elastic_spec.world_size(len(_candidates(transition))) == 0 or _may_be_second(transition)
    if at.phase is not Phase.GATHERING or known or not few or not _may_join_another(at):
        return
    transition.state = replace(at, phase=Phase.OVER)
    transition.log_event("stepped_down", Reason.BELOW_MIN, round=at.round, at=f"{answer.address}:{answer.port}")
    transition.effects.append(StepDown(RoundRecord(at.job.run, at.round, "", answer.address, answer.port)))


def _step_down_for_search(transition: Transition) -> None:
    """Step down after a while with too few members, so that everybody searches again for another coordinator.

    A coordinator with more members waits longer, plus a varying time. So one is still there when the other's members
    come.
    """
    at = transition.state
    factor = crc32(f"{at.job.member.id} {at.cause.since_s}".encode()) / 2**31  # 0 to 2
    until_s = at.cause.since_s + at.job.roam_s * (1 + len(transition.members) + factor)
    if transition.now_s < until_s:
        transition.wake(until_s)
        return
    transition.state = replace(at, phase=Phase.OVER)
    transition.log_event("stepped_down", Reason.BELOW_MIN, round=at.round)
    transition.effects.append(StepDown(RoundRecord(at.job.run, at.round, "")))


def _wait_for_majority(transition: Transition) -> None:
    """Wait for members of the last world, then end the job: others may train elsewhere."""
    at = transition.state
    until_s = at.cause.since_s + at.job.alone_s
    if transition.now_s < until_s:
        transition.wake(until_s)
        return
    remaining = sum(was_in_last_world(transition, known) for known in transition.members.values())
    detail = (
        f"{remaining} of the {at.fencing.base_size} workers of round {at.fencing.base} are left: "
        f"without a Lease or a round folder a world, a multiple of {at.job.elastic_spec.node_unit}, "
        "needs more than half of them, since the others may still train"
    )
    transition.finish(Exit.FAILED, Reason.NO_ARBITER, detail)


def _claim(transition: Transition, chosen: tuple[Member, ...]) -> None:
    """Choose the members of the next round, and ask the arbiter to grant the round.

    Without an arbiter, or with a grant that is still valid, the world is formed at once.
    """
    at = transition.state
    ours = (
        at.claiming.granted >= at.round
        and transition.now_s <= at.claiming.asked_s + GRANT_VALID_S
        and at.claiming.granted > 0
    )
    round_ = at.claiming.granted if ours else at.round + 1
    claiming = replace(at.claiming, chosen=chosen, granted=0)
    transition.state = replace(at, phase=Phase.CLAIMING, round=round_, claiming=claiming)
    if at.job.has_arbiter and not ours:
        transition.state = replace(transition.state, claiming=replace(claiming, asked_s=transition.now_s))
        me = at.job.member
        transition.effects.append(Claim(RoundRecord(at.job.run, round_, me.id, me.address, me.port, at.budget)))
    else:
        form(transition)


def form_granted(transition: Transition) -> None:
    """Form the world of a granted round, unless the grant is too old. The host may have slept, and another member may
    have the round.
    """
    if transition.now_s > transition.state.claiming.asked_s + GRANT_VALID_S:
        _unclaim(transition)
        return
    transition.state = replace(transition.state, claiming=replace(transition.state.claiming, unfenced=False))
    form(transition)


def _unclaim(transition: Transition) -> None:
    """Return to gathering, so that the next world's members are chosen again."""
    transition.state = replace(
        transition.state, phase=Phase.GATHERING, claiming=replace(transition.state.claiming, chosen=())
    )


def form_unanswered(transition: Transition) -> None:
    """Continue without an answer of the arbiter: form the world if it has more than half of the last one, else ask
    again later.
    """
    at, claiming = transition.state, transition.state.claiming
    chosen = [transition.members[member.id] for member in claiming.chosen if member.id in transition.members]
    if (
        at.fencing.base
        and not claiming.unfenced
        and len(chosen) == len(claiming.chosen)
        and overlaps(transition, chosen)
    ):
        form(transition)
        return
    transition.state = replace(
        at, phase=Phase.GATHERING, claiming=replace(claiming, retry_s=transition.now_s + RETRY_S)
    )


def form(transition: Transition) -> None:
    """Fix the world of this round, and tell each member its place."""
    at = transition.state
    chosen = at.claiming.chosen
    if not all(
        (known := transition.members.get(one.id)) and not known.busy and known.leave_s is None for one in chosen
    ):
        _unclaim(transition)
        return
    before = at.world.members if at.world else ()
    ranking = rank_members(chosen, before, by_index=at.job.elastic_spec.keeps_order)
    world, base = World.of(at.round, ranking.members), at.fencing.base
    roams = None if at.gathering.searches is None else True
    transition.state = replace(
        at,
        phase=Phase.TRAINING,
        world=world,
        ending=Ending(),
        cause=replace(at.cause, since_s=transition.now_s, fault="", lost=False),
        fencing=replace(at.fencing, base=at.round, base_size=len(world.members)),
        gathering=replace(at.gathering, expected=0, call_s=0.0, sought_s=0.0, searches=roams),
        claiming=replace(at.claiming, chosen=()),
        checking=at.checking and replace(at.checking, passed=frozenset()),
    )
    _send_assignments(transition, world, base)
    fields: dict[str, object] = {"round": world.round, "members": len(world.members), "ranks": world.ranks}
    fields |= {"waited_s": round(transition.now_s - at.cause.since_s, 3)}
    fields |= {"detail": at.cause.detail, "restarts": at.budget.total}
    fields |= {"crossings": ranking.crossings, "excess": ranking.excess, "moved": ranking.moved, "anew": ranking.is_new}
    fields |= {"ips": addresses_by_rank(world.members)}
    transition.log_event("world_formed", at.cause.reason, **fields)


def _send_assignments(transition: Transition, world: World, base: int) -> None:
    """Send the members of the new world their ranks and the step to restore. base: round before it, 0 for none."""
    size, successors, host = len(world.members), transition.successors(), world.members[0]
    staying = {id_: known for id_, known in transition.members.items() if known.leave_s is None}
    held_steps = {id_: known.held_steps for id_, known in staying.items()}
    choice = choose_restore(world, held_steps, {id_: known.member for id_, known in staying.items()})
    around, rings = replica_groups(world, transition.state.checkpoints.rings)
    carry, look = transition.state.checkpoints.persist_step, choice.is_older(max(base, transition.state.fencing.before))
    checkpoints = Checkpoints(size, rings=rings, handover=transition.state.checkpoints.handover)
    transition.state = replace(transition.state, checkpoints=checkpoints)
    for member in world.members:
        assignment, known = world.assignments[member.id], transition.members[member.id]
        known = replace(known, base=LastWorld(world.round, size, True), busy=world.round)
        transition.set_member(member.id, replace(known, step=-1, reached=None, stored_step=None))
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
            around.get(member.id),
            carry,
            choice.saved_by,
            choice.locations.get(member.id, ()),
            look,
        )
        transition.send((member.id,), formed)
    _send_spares(transition, world, successors)


def _send_spares(transition: Transition, world: World, successors: tuple[Successor, ...]) -> None:
    """Tell those who are not in the world why they wait, and for whom to look should the coordinator end."""
    size = len(world.members)
    spares = [id_ for id_ in transition.members if id_ not in world.assignments]
    for id_ in spares:
        transition.set_member(id_, replace(transition.members[id_], base=LastWorld(world.round, size, False)))
    out = {id_: left for id_ in spares if (left := transition.exclusion(id_)) is not None}
    for id_, left in out.items():
        transition.send(
            (id_,), Waiting(world.round, size, left.reason.value, left.describe(transition.now_s), successors)
        )
    why = f"the world of round {world.round} is {size}"
    transition.send(
        [id_ for id_ in spares if id_ not in out], Waiting(world.round, size, Reason.SPARE.value, why, successors)
    )
