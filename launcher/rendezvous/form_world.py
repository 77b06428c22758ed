"""Decides which members make the next world, and when it is formed. docs/design.md 5.

A round waits only for members that can come, and a formed world only for members that are present. The first round
waits for the wanted number or the last call. Members of the last world come first, then the oldest.
A member that still imports is left out of a world that was stopped to grow. Otherwise nobody trains, so every present
member is taken.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from turnout.launcher.model import Exit, Member, Reason, Record, World
from turnout.launcher.rendezvous.diagnosis.node_check import proven
from turnout.launcher.rendezvous.fencing import overlaps, restored, returned, veteran
from turnout.launcher.rendezvous.messages import Formed, LastWorld, Successor, Waiting
from turnout.launcher.rendezvous.rank_assignment import ips, seated
from turnout.launcher.rendezvous.restore.replica_groups import replica_groups
from turnout.launcher.rendezvous.restore.restore_plan import restorable
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
)
from turnout.launcher.rendezvous.transition import Transition

RETRY_S = 1.0  # seconds between two requests to an arbiter that does not answer
TELL_S = 10.0  # seconds between two log lines about missing members
FRESH_S = 10.0  # seconds after which a grant is requested again: the process may have slept and lost it


def gather(transition: Transition) -> None:
    """Form a world if one can be formed now; otherwise set a timer."""
    at = transition.at
    if transition.now_s < at.claiming.retry_s:
        transition.wake(at.claiming.retry_s)
        return
    if (own := transition.members.get(at.job.me.id)) is not None and own.leave_s is not None:
        _hand_over(transition, own)
        return
    if _comes(transition):
        _tell_waiting(transition, Reason.LAST_CALL)
        return
    there = _there(transition)
    size = at.job.terms.size(len(there))
    if size == 0 or _second(transition):
        _tell_waiting(transition, Reason.BELOW_MIN)
        _below_min(transition, len(there))
        return
    called = transition.now_s >= at.gathering.joined_s + at.gathering.call_s
    if not called and len(there) < min(at.gathering.expected, at.job.terms.most):
        _tell_waiting(transition, Reason.LAST_CALL)
        transition.wake(at.gathering.joined_s + at.gathering.call_s)
        return
    if at.job.terms.size(len(there) + sum(bool(known.busy) for known in transition.members.values())) > size:
        return  # they were told to stop, and will report when they have
    if not _alone(transition):
        transition.wake(at.fencing.fenced_s)
        return
    if (fit := proven(transition, there, size)) is None:
        return
    chosen = sorted(fit, key=lambda known: (not veteran(transition, known), known.member.age))[:size]
    if not at.job.arbiter and not overlaps(transition, chosen):
        by_place = sorted(
            fit, key=lambda each: (not veteran(transition, each), not returned(transition, each), each.member.age)
        )
        chosen = by_place[:size]
        if not restored(transition, chosen):
            _no_arbiter(transition)
            return
    _claim(transition, tuple(known.member for known in chosen))


def _there(transition: Transition) -> list[MemberState]:
    """List the members that may be in the next world.

    A world that was stopped to grow does not wait for members that still import, unless it needs them. Excluded nodes
    are tested early only if too few others are present.
    """
    there = [known for known in transition.members.values() if not known.busy and known.leave_s is None]
    well = [known for known in there if transition.kept_out(known.member.id) is None]
    there = well if transition.at.job.terms.size(len(well)) else there
    ready = [known for known in there if transition.ready(known.member.id)]
    return (
        ready if transition.at.cause.why is Reason.MEMBER_JOINED and transition.at.job.terms.size(len(ready)) else there
    )


def _tell_waiting(transition: Transition, reason: Reason) -> None:
    """Log every TELL_S seconds which members are missing, where they are awaited, and for how long.

    Names are known only for members of the last world. For others there is only a number.
    """
    at = transition.at
    if transition.now_s < at.gathering.told_s + TELL_S:
        return
    here = {known.member.name for known in transition.members.values()}
    missing = [member.name for member in (at.world.members if at.world else ()) if member.name not in here]
    wanted = min(at.gathering.expected, at.job.terms.most) if reason is Reason.LAST_CALL else at.job.terms.floor
    transition.at = replace(at, gathering=replace(at.gathering, told_s=transition.now_s))
    wanted = max(wanted, at.job.terms.floor)
    fields: dict[str, object] = {"members": len(here), "wanted": wanted, "missing": missing[:16]}
    fields["at"] = f"{at.job.me.address}:{at.job.me.port}"
    fields["gives_up_in_s"] = max(round(_gives_up_s(at) - transition.now_s), 0)
    transition.told("round_waits", reason, waited_s=round(transition.now_s - at.cause.since_s, 3), **fields)


def _gives_up_s(at: State) -> float:
    """Return the time at which the coordinator gives up waiting for enough members."""
    return (at.gathering.sought_s or at.cause.since_s) + at.job.terms.join_timeout_s


def _comes(transition: Transition) -> bool:
    """True if the first members are still arriving. Members are then not examined at each arrival."""
    at = transition.at
    until_s = min(at.gathering.joined_s + at.gathering.call_s, _gives_up_s(at))
    if (
        at.fencing.base
        or at.fencing.before
        or at.gathering.roams
        or len(transition.members) >= min(at.gathering.expected, at.job.terms.most)
        or transition.now_s >= until_s
    ):
        return False
    transition.wake(until_s)
    return True


def _hand_over(transition: Transition, own: MemberState) -> None:
    """Hand over to the oldest other member, since the coordinator itself leaves."""
    at = transition.at
    for next_ in [each for each in transition.successors() if each.id != at.job.me.id][:1]:
        transition.at = replace(at, phase=Phase.OVER)
        transition.told("handed_over", Reason.MEMBER_LEFT, to=next_.id, round=at.round + 1)
        record = Record(at.job.run, at.round + 1, next_.id, next_.address, next_.port, at.budget)
        transition.effects.append(
            StepDown(record, handover=True, size=at.fencing.base_size - int(veteran(transition, own)))
        )


def _second(transition: Transition) -> bool:
    """True if an earlier coordinator may have formed the first world without telling anybody here.

    This coordinator took over before it heard of a world, and no member here was in one, so a majority cannot tell. If
    the min is more than half of the max, two worlds do not fit into the job.
    """
    at = transition.at
    return (
        at.fencing.base == 0
        and not at.job.arbiter
        and bool(at.gathering.roams)
        and (at.job.only or 2 * at.job.terms.least <= at.job.terms.most)
    )


def _alone(transition: Transition) -> bool:
    """True if no older world can still be training, as far as anybody can know.

    A world trains only with all its seats, so this coordinator's own world is over when one seat has ended. For an
    earlier coordinator's world, half of its members must be here. Otherwise time has to pass until members that do not
    hear from a coordinator have fenced themselves.
    """
    at = transition.at
    here = sum(veteran(transition, known) and not known.busy for known in transition.members.values())
    ours = 0 < at.fencing.base == transition.world_round == at.fencing.ended
    return (
        ours
        or (0 < at.fencing.base >= at.fencing.before and 2 * here >= at.fencing.base_size)
        or transition.now_s >= at.fencing.fenced_s
    )


def _below_min(transition: Transition, there: int) -> None:
    at = transition.at
    until_s = _gives_up_s(at)
    if transition.now_s < until_s:
        transition.wake(until_s)
        if _roams(at):
            _ask_endpoint(transition)
            _look_around(transition)
        return
    names = ", ".join(sorted(known.member.name for known in transition.members.values())[:16])
    detail = f"{there} of at least {at.job.terms.floor} workers came within {at.job.terms.join_timeout_s:g} s: {names}"
    transition.finish(Exit.FAILED, Reason.JOIN_TIMEOUT, detail)


def _roams(at: State) -> bool:
    return bool(at.gathering.roams) and not at.job.arbiter and (not at.job.only or at.fencing.base == 0)


def _ask_endpoint(transition: Transition) -> None:
    """Ask at the endpoint each `ask_s` seconds: the lost coordinator, or its replacement, comes back there."""
    at = transition.at
    if not at.job.ask_s:
        return
    next_s = max(at.gathering.endpoint_s, at.cause.since_s) + at.job.ask_s
    if transition.now_s >= next_s:
        transition.at = replace(at, gathering=replace(at.gathering, endpoint_s=transition.now_s))
        transition.effects.append(AskEndpoint())
        next_s = transition.now_s + at.job.ask_s
    transition.wake(next_s)


def go_to_endpoint(transition: Transition, answer: EndpointAnswered) -> None:
    """Step down in favour of the agent at the endpoint if this coordinator has too few members, and that agent is none
    of them.
    """
    at = transition.at
    known = any(
        (each.member.address, each.member.port) == (answer.address, answer.port) for each in transition.members.values()
    )
    few = at.job.terms.size(len(_there(transition))) == 0 or _second(transition)
    if at.phase is not Phase.GATHERING or known or not few or not _roams(at):
        return
    transition.at = replace(at, phase=Phase.OVER)
    transition.told("stepped_down", Reason.BELOW_MIN, round=at.round, at=f"{answer.address}:{answer.port}")
    transition.effects.append(StepDown(Record(at.job.run, at.round, "", answer.address, answer.port)))


def _look_around(transition: Transition) -> None:
    """Step down after a while with too few members, so that everybody searches again for another coordinator.

    A coordinator with more members waits longer, plus a varying time. So one is still there when the other's members
    come.
    """
    at = transition.at
    while_ = crc32(f"{at.job.me.id} {at.cause.since_s}".encode()) / 2**31  # 0 to 2
    until_s = at.cause.since_s + at.job.roam_s * (1 + len(transition.members) + while_)
    if transition.now_s < until_s:
        transition.wake(until_s)
        return
    transition.at = replace(at, phase=Phase.OVER)
    transition.told("stepped_down", Reason.BELOW_MIN, round=at.round)
    transition.effects.append(StepDown(Record(at.job.run, at.round, "")))


def _no_arbiter(transition: Transition) -> None:
    at = transition.at
    until_s = at.cause.since_s + at.job.alone_s
    if transition.now_s < until_s:
        transition.wake(until_s)
        return
    here = sum(veteran(transition, known) for known in transition.members.values())
    detail = (
        f"{here} of the {at.fencing.base_size} workers of round {at.fencing.base} are left: "
        f"without a Lease or a round folder a world, a multiple of {at.job.terms.unit}, "
        "needs more than half of them, since the others may still train"
    )
    transition.finish(Exit.FAILED, Reason.NO_ARBITER, detail)


def _claim(transition: Transition, chosen: tuple[Member, ...]) -> None:
    at = transition.at
    ours = (
        at.claiming.granted >= at.round
        and transition.now_s <= at.claiming.asked_s + FRESH_S
        and at.claiming.granted > 0
    )
    round_ = at.claiming.granted if ours else at.round + 1
    claiming = replace(at.claiming, chosen=chosen, granted=0)
    transition.at = replace(at, phase=Phase.CLAIMING, round=round_, claiming=claiming)
    if at.job.arbiter and not ours:
        transition.at = replace(transition.at, claiming=replace(claiming, asked_s=transition.now_s))
        me = at.job.me
        transition.effects.append(Claim(Record(at.job.run, round_, me.id, me.address, me.port, at.budget)))
    else:
        form(transition)


def granted(transition: Transition) -> None:
    """Form the world of a granted round, unless the grant is too old. The host may have slept, and another member may
    have the round.
    """
    if transition.now_s > transition.at.claiming.asked_s + FRESH_S:
        _unclaim(transition)
        return
    transition.at = replace(transition.at, claiming=replace(transition.at.claiming, unfenced=False))
    form(transition)


def _unclaim(transition: Transition) -> None:
    """Return to gathering, so that the next world's members are chosen again."""
    transition.at = replace(transition.at, phase=Phase.GATHERING, claiming=replace(transition.at.claiming, chosen=()))


def unanswered(transition: Transition) -> None:
    """Continue without an answer of the arbiter: form the world if it has more than half of the last one, else ask
    again later.
    """
    at, claiming = transition.at, transition.at.claiming
    chosen = [transition.members[member.id] for member in claiming.chosen if member.id in transition.members]
    if (
        at.fencing.base
        and not claiming.unfenced
        and len(chosen) == len(claiming.chosen)
        and overlaps(transition, chosen)
    ):
        form(transition)
        return
    transition.at = replace(at, phase=Phase.GATHERING, claiming=replace(claiming, retry_s=transition.now_s + RETRY_S))


def form(transition: Transition) -> None:
    """Fix the world of this round, and tell each member its place."""
    at = transition.at
    chosen = at.claiming.chosen
    if not all(
        (known := transition.members.get(one.id)) and not known.busy and known.leave_s is None for one in chosen
    ):
        _unclaim(transition)
        return
    before = at.world.members if at.world else ()
    ranking = seated(chosen, before, by_index=at.job.terms.keeps_order)
    world, base = World.of(at.round, ranking.members), at.fencing.base
    roams = None if at.gathering.roams is None else True
    transition.at = replace(
        at,
        phase=Phase.TRAINING,
        world=world,
        ending=Ending(),
        cause=replace(at.cause, since_s=transition.now_s, fault="", lost=False),
        fencing=replace(at.fencing, base=at.round, base_size=len(world.members)),
        gathering=replace(at.gathering, expected=0, call_s=0.0, sought_s=0.0, roams=roams),
        claiming=replace(at.claiming, chosen=()),
        checking=at.checking and replace(at.checking, passed=frozenset()),
    )
    _tell_places(transition, world, base)
    fields: dict[str, object] = {"round": world.round, "members": len(world.members), "ranks": world.ranks}
    fields |= {"waited_s": round(transition.now_s - at.cause.since_s, 3)}
    fields |= {"detail": at.cause.detail, "restarts": at.budget.total}
    fields |= {"crossings": ranking.crossings, "excess": ranking.excess, "moved": ranking.moved, "anew": ranking.anew}
    fields |= {"ips": ips(world.members)}
    transition.told("world_formed", at.cause.why, **fields)


def _tell_places(transition: Transition, world: World, base: int) -> None:
    size, successors, host = len(world.members), transition.successors(), world.members[0]
    there = {id_: known for id_, known in transition.members.items() if known.leave_s is None}
    held = {id_: known.held for id_, known in there.items()}
    choice = restorable(world, held, {id_: known.member for id_, known in there.items()})
    around, rings = replica_groups(world, transition.at.checkpoints.rings)
    carry, look = transition.at.checkpoints.carry, choice.is_older(max(base, transition.at.fencing.before))
    checkpoints = Checkpoints(size, rings=rings, handing=transition.at.checkpoints.handing)
    transition.at = replace(transition.at, checkpoints=checkpoints)
    for member in world.members:
        seat, known = world.seats[member.id], transition.members[member.id]
        base_now = LastWorld(world.round, size, True)
        transition.know(member.id, replace(known, base=base_now, busy=world.round, step=-1, reached=None, stored=None))
        formed = Formed(
            world.round,
            base,
            seat.group_rank,
            size,
            seat.first_rank,
            world.ranks,
            host.address,
            host.master_port,
            transition.at.cause.why.value,
            transition.at.budget,
            successors,
            choice.step,
            choice.round,
            choice.replicated,
            choice.fetch.get(member.id, ()),
            around.get(member.id),
            carry,
            choice.saved_by,
            choice.locations.get(member.id, ()),
            look,
        )
        transition.tell((member.id,), formed)
    _tell_spares(transition, world, successors)


def _tell_spares(transition: Transition, world: World, successors: tuple[Successor, ...]) -> None:
    """Tell those who are not in the world why they wait, and for whom to look should the coordinator end."""
    size = len(world.members)
    spares = [id_ for id_ in transition.members if id_ not in world.seats]
    for id_ in spares:
        transition.know(id_, replace(transition.members[id_], base=LastWorld(world.round, size, False)))
    out = {id_: left for id_ in spares if (left := transition.kept_out(id_)) is not None}
    for id_, left in out.items():
        transition.tell((id_,), Waiting(world.round, size, left.reason.value, left.says(transition.now_s), successors))
    why = f"the world of round {world.round} is {size}"
    transition.tell(
        [id_ for id_ in spares if id_ not in out], Waiting(world.round, size, Reason.SPARE.value, why, successors)
    )
