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
from turnout.launcher.rendezvous.messages import Formed, LastWorld, Waiting
from turnout.launcher.rendezvous.rank_assignment import ips, seated
from turnout.launcher.rendezvous.restore.replica_groups import replica_groups
from turnout.launcher.rendezvous.restore.restore_plan import restorable
from turnout.launcher.rendezvous.state import Checkpoints, Claim, Ending, MemberState, Phase, State, StepDown
from turnout.launcher.rendezvous.transition import Transition

RETRY_S = 1.0  # between two asks of an arbiter that does not answer
TELL_S = 10.0  # between two words about who is missing
FRESH_S = 10.0  # a grant that was asked for longer ago is asked for again: we may have slept, and lost it


def gather(turn: Transition) -> None:
    """Form a world if one can be formed now; otherwise set a timer."""
    at = turn.at
    if turn.now_s < at.claiming.retry_s:
        turn.wake(at.claiming.retry_s)
        return
    if (own := turn.members.get(at.job.me.id)) is not None and own.leave_s is not None:
        _hand_over(turn, own)
        return
    if _comes(turn):
        _tell_waiting(turn, Reason.LAST_CALL)
        return
    there = _there(turn)
    size = at.job.terms.size(len(there))
    if size == 0 or _second(turn):
        _tell_waiting(turn, Reason.BELOW_MIN)
        _below_min(turn, len(there))
        return
    called = turn.now_s >= at.gathering.joined_s + at.gathering.call_s
    if not called and len(there) < min(at.gathering.expected, at.job.terms.most):
        _tell_waiting(turn, Reason.LAST_CALL)
        turn.wake(at.gathering.joined_s + at.gathering.call_s)
        return
    if at.job.terms.size(len(there) + sum(bool(known.busy) for known in turn.members.values())) > size:
        return  # they were told to stop, and say when they have
    if not _alone(turn):
        turn.wake(at.fencing.fenced_s)
        return
    if (fit := proven(turn, there, size)) is None:
        return
    chosen = sorted(fit, key=lambda known: (not veteran(turn, known), known.member.age))[:size]
    if not at.job.arbiter and not overlaps(turn, chosen):
        by_place = sorted(fit, key=lambda each: (not veteran(turn, each), not returned(turn, each), each.member.age))
        chosen = by_place[:size]
        if not restored(turn, chosen):
            _no_arbiter(turn)
            return
    _claim(turn, tuple(known.member for known in chosen))


def _there(turn: Transition) -> list[MemberState]:
    """List the members that may be in the next world.

    A world that was stopped to grow does not wait for members that still import, unless it needs them. Excluded nodes
    are tested early only if too few others are present.
    """
    there = [known for known in turn.members.values() if not known.busy and known.leave_s is None]
    well = [known for known in there if turn.kept_out(known.member.id) is None]
    there = well if turn.at.job.terms.size(len(well)) else there
    ready = [known for known in there if turn.ready(known.member.id)]
    return ready if turn.at.cause.why is Reason.MEMBER_JOINED and turn.at.job.terms.size(len(ready)) else there


def _tell_waiting(turn: Transition, reason: Reason) -> None:
    """Log every TELL_S seconds which members are missing, where they are awaited, and for how long.

    Names are known only for members of the last world. For others there is only a number.
    """
    at = turn.at
    if turn.now_s < at.gathering.told_s + TELL_S:
        return
    here = {known.member.name for known in turn.members.values()}
    missing = [member.name for member in (at.world.members if at.world else ()) if member.name not in here]
    wanted = min(at.gathering.expected, at.job.terms.most) if reason is Reason.LAST_CALL else at.job.terms.floor
    turn.at = replace(at, gathering=replace(at.gathering, told_s=turn.now_s))
    wanted = max(wanted, at.job.terms.floor)
    fields: dict[str, object] = {"members": len(here), "wanted": wanted, "missing": missing[:16]}
    fields["at"] = f"{at.job.me.address}:{at.job.me.port}"
    fields["gives_up_in_s"] = max(round(_gives_up_s(at) - turn.now_s), 0)
    turn.told("round_waits", reason, waited_s=round(turn.now_s - at.cause.since_s, 3), **fields)


def _gives_up_s(at: State) -> float:
    """Return the time at which the coordinator gives up waiting for enough members."""
    return (at.gathering.sought_s or at.cause.since_s) + at.job.terms.join_timeout_s


def _comes(turn: Transition) -> bool:
    """True if the first members are still arriving. Members are then not examined at each arrival."""
    at = turn.at
    until_s = min(at.gathering.joined_s + at.gathering.call_s, _gives_up_s(at))
    if (
        at.fencing.base
        or at.fencing.before
        or at.gathering.roams
        or len(turn.members) >= min(at.gathering.expected, at.job.terms.most)
        or turn.now_s >= until_s
    ):
        return False
    turn.wake(until_s)
    return True


def _hand_over(turn: Transition, own: MemberState) -> None:
    """Hand over to the oldest other member, since the coordinator itself leaves."""
    at = turn.at
    for next_ in [each for each in turn.successors() if each.id != at.job.me.id][:1]:
        turn.at = replace(at, phase=Phase.OVER)
        turn.told("handed_over", Reason.MEMBER_LEFT, to=next_.id, round=at.round + 1)
        record = Record(at.job.run, at.round + 1, next_.id, next_.address, next_.port, at.budget)
        turn.effects.append(StepDown(record, handover=True, size=at.fencing.base_size - int(veteran(turn, own))))


def _second(turn: Transition) -> bool:
    """True if an earlier coordinator may have formed the first world without telling anybody here.

    This coordinator took over before it heard of a world, and no member here was in one, so a majority cannot tell. If
    the min is more than half of the max, two worlds do not fit into the job.
    """
    at = turn.at
    return (
        at.fencing.base == 0
        and not at.job.arbiter
        and bool(at.gathering.roams)
        and (at.job.only or 2 * at.job.terms.least <= at.job.terms.most)
    )


def _alone(turn: Transition) -> bool:
    """True if no older world can still be training, as far as anybody can know.

    A world trains only with all its seats, so this coordinator's own world is over when one seat has ended. For an
    earlier coordinator's world, half of its members must be here. Otherwise time has to pass until members that do not
    hear from a coordinator have fenced themselves.
    """
    at = turn.at
    here = sum(veteran(turn, known) and not known.busy for known in turn.members.values())
    ours = 0 < at.fencing.base == turn.world_round == at.fencing.ended
    return (
        ours
        or (0 < at.fencing.base >= at.fencing.before and 2 * here >= at.fencing.base_size)
        or turn.now_s >= at.fencing.fenced_s
    )


def _below_min(turn: Transition, there: int) -> None:
    at = turn.at
    until_s = _gives_up_s(at)
    if turn.now_s < until_s:
        turn.wake(until_s)
        if at.gathering.roams and not at.job.arbiter and (not at.job.only or at.fencing.base == 0):
            _look_around(turn)
        return
    names = ", ".join(sorted(known.member.name for known in turn.members.values())[:16])
    detail = f"{there} of at least {at.job.terms.floor} workers came within {at.job.terms.join_timeout_s:g} s: {names}"
    turn.finish(Exit.FAILED, Reason.JOIN_TIMEOUT, detail)


def _look_around(turn: Transition) -> None:
    """Step down after a while with too few members, so that everybody searches again for another coordinator.

    A coordinator with more members waits longer, plus a varying time. So one is still there when the other's members
    come.
    """
    at = turn.at
    while_ = crc32(f"{at.job.me.id} {at.cause.since_s}".encode()) / 2**31  # 0 to 2
    until_s = at.cause.since_s + at.job.roam_s * (1 + len(turn.members) + while_)
    if turn.now_s < until_s:
        turn.wake(until_s)
        return
    turn.at = replace(at, phase=Phase.OVER)
    turn.told("stepped_down", Reason.BELOW_MIN, round=at.round)
    turn.effects.append(StepDown(Record(at.job.run, at.round, "")))


def _no_arbiter(turn: Transition) -> None:
    at = turn.at
    until_s = at.cause.since_s + at.job.alone_s
    if turn.now_s < until_s:
        turn.wake(until_s)
        return
    here = sum(veteran(turn, known) for known in turn.members.values())
    detail = (
        f"{here} of the {at.fencing.base_size} workers of round {at.fencing.base} are left: "
        f"without a Lease or a round folder a world, a multiple of {at.job.terms.unit}, "
        "needs more than half of them, since the others may still train"
    )
    turn.finish(Exit.FAILED, Reason.NO_ARBITER, detail)


def _claim(turn: Transition, chosen: tuple[Member, ...]) -> None:
    at = turn.at
    ours = at.claiming.granted >= at.round and turn.now_s <= at.claiming.asked_s + FRESH_S and at.claiming.granted > 0
    round_ = at.claiming.granted if ours else at.round + 1
    claiming = replace(at.claiming, chosen=chosen, granted=0)
    turn.at = replace(at, phase=Phase.CLAIMING, round=round_, claiming=claiming)
    if at.job.arbiter and not ours:
        turn.at = replace(turn.at, claiming=replace(claiming, asked_s=turn.now_s))
        me = at.job.me
        turn.effects.append(Claim(Record(at.job.run, round_, me.id, me.address, me.port, at.budget)))
    else:
        form(turn)


def granted(turn: Transition) -> None:
    """Form the world of a granted round, unless the grant is too old. The host may have slept, and another member may
    have the round.
    """
    if turn.now_s > turn.at.claiming.asked_s + FRESH_S:
        _unclaim(turn)
        return
    turn.at = replace(turn.at, claiming=replace(turn.at.claiming, unfenced=False))
    form(turn)


def _unclaim(turn: Transition) -> None:
    """Return to gathering, so that the next world's members are chosen again."""
    turn.at = replace(turn.at, phase=Phase.GATHERING, claiming=replace(turn.at.claiming, chosen=()))


def unanswered(turn: Transition) -> None:
    """Continue without an answer of the arbiter: form the world if it has more than half of the last one, else ask
    again later.
    """
    at, claiming = turn.at, turn.at.claiming
    chosen = [turn.members[member.id] for member in claiming.chosen if member.id in turn.members]
    if at.fencing.base and not claiming.unfenced and len(chosen) == len(claiming.chosen) and overlaps(turn, chosen):
        form(turn)
        return
    turn.at = replace(at, phase=Phase.GATHERING, claiming=replace(claiming, retry_s=turn.now_s + RETRY_S))


def form(turn: Transition) -> None:
    """Fix the world of this round, and tell each member its place."""
    at = turn.at
    chosen = at.claiming.chosen
    if not all((known := turn.members.get(one.id)) and not known.busy and known.leave_s is None for one in chosen):
        _unclaim(turn)
        return
    before = at.world.members if at.world else ()
    ranking = seated(chosen, before)
    world, base = World.of(at.round, ranking.members), at.fencing.base
    roams = None if at.gathering.roams is None else True
    turn.at = replace(
        at, phase=Phase.TRAINING, world=world, ending=Ending(),
        cause=replace(at.cause, since_s=turn.now_s, fault="", lost=False),
        fencing=replace(at.fencing, base=at.round, base_size=len(world.members)),
        gathering=replace(at.gathering, expected=0, call_s=0.0, sought_s=0.0, roams=roams),
        claiming=replace(at.claiming, chosen=()),
        checking=at.checking and replace(at.checking, passed=frozenset()),
    )  # fmt: skip
    _tell_places(turn, world, base)
    fields: dict[str, object] = {"round": world.round, "members": len(world.members), "ranks": world.ranks}
    fields |= {"waited_s": round(turn.now_s - at.cause.since_s, 3)}
    fields |= {"detail": at.cause.detail, "restarts": at.budget.total}
    fields |= {"crossings": ranking.crossings, "excess": ranking.excess, "moved": ranking.moved, "anew": ranking.anew}
    fields |= {"ips": ips(world.members)}
    turn.told("world_formed", at.cause.why, **fields)


def _tell_places(turn: Transition, world: World, base: int) -> None:
    size, ranks, successors, host = len(world.members), world.ranks, turn.successors(), world.members[0]
    there = {id_: known for id_, known in turn.members.items() if known.leave_s is None}
    choice = restorable(
        world, {id_: known.held for id_, known in there.items()}, {id_: known.member for id_, known in there.items()}
    )
    around, rings = replica_groups(world, turn.at.checkpoints.rings)
    carry, look = turn.at.checkpoints.carry, choice.is_older(max(base, turn.at.fencing.before))
    turn.at = replace(turn.at, checkpoints=Checkpoints(size, rings=rings, handing=turn.at.checkpoints.handing))
    for member in world.members:
        seat, known = world.seats[member.id], turn.members[member.id]
        turn.know(
            member.id,
            replace(
                known, base=LastWorld(world.round, size, True), busy=world.round, step=-1, reached=None, stored=None
            ),
        )
        turn.tell(
            (member.id,),
            Formed(
                world.round, base, seat.group_rank, size, seat.first_rank, ranks, host.address, host.master_port,
                turn.at.cause.why.value, turn.at.budget, successors, choice.step, choice.round, choice.alike,
                choice.fetch.get(member.id, ()), around.get(member.id), carry,
                choice.saved_by, choice.locations.get(member.id, ()), look,
            ),
        )  # fmt: skip
    spares = [id_ for id_ in turn.members if id_ not in world.seats]
    for id_ in spares:
        turn.know(id_, replace(turn.members[id_], base=LastWorld(world.round, size, False)))
    out = {id_: left for id_ in spares if (left := turn.kept_out(id_)) is not None}
    for id_, left in out.items():
        turn.tell((id_,), Waiting(world.round, size, left.reason.value, left.says(turn.now_s), successors))
    why = f"the world of round {world.round} is {size}"
    turn.tell(
        [id_ for id_ in spares if id_ not in out], Waiting(world.round, size, Reason.SPARE.value, why, successors)
    )
