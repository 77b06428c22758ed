"""Who makes the next world, and when it is formed. docs/design.md 5.

A round waits for nobody who cannot come: once formed, only for members that are there. The first one waits for the
wanted number, else for the last call. Members of the last world come before others, then the oldest. Who still imports
is left out where a world was stopped to grow by others; else nobody trains anyway, and whoever is there is taken.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from turnout.launcher.health.rounds import proven
from turnout.launcher.model import Exit, Member, Reason, Record, World
from turnout.launcher.ranks import ips, seated
from turnout.launcher.rendezvous.circles import circles
from turnout.launcher.rendezvous.follow import overlaps, restored, returned, veteran
from turnout.launcher.rendezvous.held import restorable
from turnout.launcher.rendezvous.state import Claim, Known, Phase, State, StepDown
from turnout.launcher.rendezvous.turn import Turn
from turnout.launcher.wire import Base, Formed, Waiting

RETRY_S = 1.0  # between two asks of an arbiter that does not answer
TELL_S = 10.0  # between two words about who is missing
FRESH_S = 10.0  # a grant that was asked for longer ago is asked for again: we may have slept, and lost it


def gather(turn: Turn) -> None:
    """Form a world if one can be formed now, else see to it that somebody looks again."""
    at = turn.at
    if turn.now_s < at.retry_s:
        turn.wake(at.retry_s)
        return
    if (own := turn.members.get(at.me.id)) is not None and own.leave_s is not None:
        _hand_over(turn, own)
        return
    if _comes(turn):
        _tell_waiting(turn, Reason.LAST_CALL)
        return
    there = _there(turn)
    size = at.terms.size(len(there))
    if size == 0 or _second(turn):
        _tell_waiting(turn, Reason.BELOW_MIN)
        _below_min(turn, len(there))
        return
    called = turn.now_s >= at.joined_s + at.call_s
    if not called and len(there) < min(at.expected, at.terms.most):
        _tell_waiting(turn, Reason.LAST_CALL)
        turn.wake(at.joined_s + at.call_s)
        return
    if at.terms.size(len(there) + sum(bool(known.busy) for known in turn.members.values())) > size:
        return  # they were told to stop, and say when they have
    if not _alone(turn):
        turn.wake(at.fenced_s)
        return
    if (fit := proven(turn, there, size)) is None:
        return
    chosen = sorted(fit, key=lambda known: (not veteran(turn, known), known.member.age))[:size]
    if not at.arbiter and not overlaps(turn, chosen):
        by_place = sorted(fit, key=lambda each: (not veteran(turn, each), not returned(turn, each), each.member.age))
        chosen = by_place[:size]
        if not restored(turn, chosen):
            _no_arbiter(turn)
            return
    _claim(turn, tuple(known.member for known in chosen))


def _there(turn: Turn) -> list[Known]:
    """Who may be in the next world. One that was stopped to grow waits for nobody who still imports, if it need not.

    Who was left out by a check is not tested again before its time, unless too few are there without it.
    """
    there = [known for known in turn.members.values() if not known.busy and known.leave_s is None]
    well = [known for known in there if turn.kept_out(known.member.id) is None]
    there = well if turn.at.terms.size(len(well)) else there
    ready = [known for known in there if turn.ready(known.member.id)]
    return ready if turn.at.why is Reason.MEMBER_JOINED and turn.at.terms.size(len(ready)) else there


def _tell_waiting(turn: Turn, reason: Reason) -> None:
    """Tell now and then who is missing, and where and for how long it is waited for.

    Names are known of members of the last world only. Of others a number is all there is.
    """
    at = turn.at
    if turn.now_s < at.told_s + TELL_S:
        return
    here = {known.member.name for known in turn.members.values()}
    missing = [member.name for member in (at.world.members if at.world else ()) if member.name not in here]
    wanted = min(at.expected, at.terms.most) if reason is Reason.LAST_CALL else at.terms.floor
    turn.at = replace(at, told_s=turn.now_s)
    fields: dict[str, object] = {"members": len(here), "wanted": max(wanted, at.terms.floor), "missing": missing[:16]}
    fields |= {"at": f"{at.me.address}:{at.me.port}", "gives_up_in_s": max(round(_gives_up_s(at) - turn.now_s), 0)}
    turn.told("round_waits", reason, waited_s=round(turn.now_s - at.since_s, 3), **fields)


def _gives_up_s(at: State) -> float:
    """When too few are no longer waited for."""
    return (at.sought_s or at.since_s) + at.terms.join_timeout_s


def _comes(turn: Turn) -> bool:
    """Is a first crowd still on its way? Then nobody looks at every member each time that one more has come."""
    at = turn.at
    until_s = min(at.joined_s + at.call_s, _gives_up_s(at))
    if (
        at.base
        or at.before
        or at.roams
        or len(turn.members) >= min(at.expected, at.terms.most)
        or turn.now_s >= until_s
    ):
        return False
    turn.wake(until_s)
    return True


def _hand_over(turn: Turn, own: Known) -> None:
    """The coordinator itself leaves: the oldest of the others goes on."""
    at = turn.at
    for next_ in [each for each in turn.successors() if each.id != at.me.id][:1]:
        turn.at = replace(at, phase=Phase.OVER)
        turn.told("handed_over", Reason.MEMBER_LEFT, to=next_.id, round=at.round + 1)
        record = Record(at.run, at.round + 1, next_.id, next_.address, next_.port, at.budget)
        turn.effects.append(StepDown(record, handover=True, size=at.base_size - int(veteran(turn, own))))


def _second(turn: Turn) -> bool:
    """Has the first coordinator perhaps formed the first world, without a word to anybody here?

    We took its place before we heard of a world. Nobody here has been in one, so no majority tells; but when the min is
    more than half of the max, and nobody has started more workers than that, two worlds do not fit into one job.
    """
    at = turn.at
    return at.base == 0 and not at.arbiter and bool(at.roams) and (at.only or 2 * at.terms.least <= at.terms.most)


def _alone(turn: Turn) -> bool:
    """Does no older world train any more, for all that anybody can know?

    A world trains with all its seats only. So ours is over when one of them has ended. Of a world of somebody before us
    half its members have to be here: then no other can have more than half of it. Else time has to pass, until those
    who do not hear from us have fenced themselves.
    """
    at = turn.at
    here = sum(veteran(turn, known) and not known.busy for known in turn.members.values())
    ours = 0 < at.base == turn.world_round == at.ended
    return ours or (0 < at.base >= at.before and 2 * here >= at.base_size) or turn.now_s >= at.fenced_s


def _below_min(turn: Turn, there: int) -> None:
    at = turn.at
    until_s = _gives_up_s(at)
    if turn.now_s < until_s:
        turn.wake(until_s)
        if at.roams and not at.arbiter and (not at.only or at.base == 0):
            _look_around(turn)
        return
    names = ", ".join(sorted(known.member.name for known in turn.members.values())[:16])
    detail = f"{there} of at least {at.terms.floor} workers came within {at.terms.join_timeout_s:g} s: {names}"
    turn.finish(Exit.FAILED, Reason.JOIN_TIMEOUT, detail)


def _look_around(turn: Turn) -> None:
    """The others may have a coordinator of their own, whom nobody names to us: everybody searches again, we too.

    Who has more members stays longer, and each time for another while: so that one is there when the other comes.
    """
    at = turn.at
    while_ = crc32(f"{at.me.id} {at.since_s}".encode()) / 2**31  # 0 to 2
    until_s = at.since_s + at.roam_s * (1 + len(turn.members) + while_)
    if turn.now_s < until_s:
        turn.wake(until_s)
        return
    turn.at = replace(at, phase=Phase.OVER)
    turn.told("stepped_down", Reason.BELOW_MIN, round=at.round)
    turn.effects.append(StepDown(Record(at.run, at.round, "")))


def _no_arbiter(turn: Turn) -> None:
    at = turn.at
    until_s = at.since_s + at.alone_s
    if turn.now_s < until_s:
        turn.wake(until_s)
        return
    here = sum(veteran(turn, known) for known in turn.members.values())
    detail = (
        f"{here} of the {at.base_size} workers of round {at.base} are left: without a Lease or a round folder "
        f"a world, a multiple of {at.terms.unit}, needs more than half of them, since the others may still train"
    )
    turn.finish(Exit.FAILED, Reason.NO_ARBITER, detail)


def _claim(turn: Turn, chosen: tuple[Member, ...]) -> None:
    at = turn.at
    ours = at.granted >= at.round and turn.now_s <= at.asked_s + FRESH_S and at.granted > 0
    round_ = at.granted if ours else at.round + 1
    turn.at = replace(at, phase=Phase.CLAIMING, round=round_, chosen=chosen, granted=0)
    if at.arbiter and not ours:
        turn.at = replace(turn.at, asked_s=turn.now_s)
        me = at.me
        turn.effects.append(Claim(Record(at.run, round_, me.id, me.address, me.port, at.budget)))
    else:
        form(turn)


def granted(turn: Turn) -> None:
    """The arbiter has granted the round. We may have slept since we asked: then somebody else may have had it since."""
    if turn.now_s > turn.at.asked_s + FRESH_S:
        turn.at = replace(turn.at, phase=Phase.GATHERING, chosen=())
        return
    turn.at = replace(turn.at, unfenced=False)
    form(turn)


def unanswered(turn: Turn) -> None:
    """The arbiter does not answer: more than half of the last world may go on without it, others ask again."""
    chosen = [turn.members[member.id] for member in turn.at.chosen if member.id in turn.members]
    if turn.at.base and not turn.at.unfenced and len(chosen) == len(turn.at.chosen) and overlaps(turn, chosen):
        form(turn)
        return
    turn.at = replace(turn.at, phase=Phase.GATHERING, retry_s=turn.now_s + RETRY_S)


def form(turn: Turn) -> None:
    """The round is ours: freeze its world and tell everybody their own place in it."""
    at = turn.at
    if not all(
        (known := turn.members.get(member.id)) and not known.busy and known.leave_s is None for member in at.chosen
    ):
        turn.at = replace(at, phase=Phase.GATHERING, chosen=())
        return
    before = at.world.members if at.world else ()
    ranking = seated(at.chosen, before)
    world, base = World.of(at.round, ranking.members), at.base
    turn.at = replace(
        at, phase=Phase.TRAINING, world=world, base=at.round, base_size=len(world.members), chosen=(), done=frozenset(),
        expected=0, call_s=0.0, since_s=turn.now_s, sought_s=0.0, fault="",
        roams=None if at.roams is None else True, lost=False, stop_step=None, sure=False,
        checking=at.checking and replace(at.checking, passed=frozenset()),
    )  # fmt: skip
    _tell_places(turn, world, base)
    fields: dict[str, object] = {"round": world.round, "members": len(world.members), "ranks": world.ranks}
    fields |= {"waited_s": round(turn.now_s - at.since_s, 3), "detail": at.detail, "restarts": at.budget.total}
    fields |= {"crossings": ranking.crossings, "excess": ranking.excess, "moved": ranking.moved, "anew": ranking.anew}
    fields |= {"ips": ips(world.members)}
    turn.told("world_formed", at.why, **fields)


def _tell_places(turn: Turn, world: World, base: int) -> None:
    size, ranks, successors, host = len(world.members), world.ranks, turn.successors(), world.members[0]
    there = {id_: known for id_, known in turn.members.items() if known.leave_s is None}
    choice = restorable(
        world, {id_: known.held for id_, known in there.items()}, {id_: known.member for id_, known in there.items()}
    )
    around, rings = circles(world, turn.at.rings)
    carry, look = turn.at.carry, choice.is_older(max(base, turn.at.before))
    turn.at = replace(turn.at, rings=rings, named=None, unnamed=size, carry=-1)
    for member in world.members:
        seat, known = world.seats[member.id], turn.members[member.id]
        turn.know(
            member.id,
            replace(known, base=Base(world.round, size, True), busy=world.round, step=-1, reached=None, stored=None),
        )
        turn.tell(
            (member.id,),
            Formed(
                world.round, base, seat.group_rank, size, seat.first_rank, ranks, host.address, host.master_port,
                turn.at.why.value, turn.at.budget, successors, choice.step, choice.round, choice.alike,
                choice.fetch.get(member.id, ()), around.get(member.id), carry,
                choice.saved_by, choice.lies.get(member.id, ()), look,
            ),
        )  # fmt: skip
    spares = [id_ for id_ in turn.members if id_ not in world.seats]
    for id_ in spares:
        turn.know(id_, replace(turn.members[id_], base=Base(world.round, size, False)))
    out = {id_: left for id_ in spares if (left := turn.kept_out(id_)) is not None}
    for id_, left in out.items():
        turn.tell((id_,), Waiting(world.round, size, left.reason.value, left.says(turn.now_s), successors))
    why = f"the world of round {world.round} is {size}"
    turn.tell(
        [id_ for id_ in spares if id_ not in out], Waiting(world.round, size, Reason.SPARE.value, why, successors)
    )
