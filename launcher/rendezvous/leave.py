"""A shrink is agreed, not suffered: who leaves makes everybody stop after one step, save, and go on without it.

The stop step lies ahead of the farthest rank. Until all have answered that they have not passed it, ranks that reach
it wait there; was it passed, a later one is agreed. A job that tells no steps gets SIGTERM instead: its own hook saves.
Growth goes the same way, but for nobody who could not start processes yet: the world would stand still meanwhile. Those
who are ready grow it without him. docs/design.md 5

Before they go, what only they hold in memory goes to members that stay. A leaver says nothing for it: who stays fetches
it, as it would fetch a shard that it has lost. What does not come in time is in storage, if that took it in time, and
else lost: nothing waits for it. Source: XD-06
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from turnout.launcher.checkpoint.buddies import heirs
from turnout.launcher.keeping import ALL, MOST_LIES, Take
from turnout.launcher.model import Exit, Reason
from turnout.launcher.rendezvous.held import Run, SavedState, door_of, ranks_in, runs_of
from turnout.launcher.rendezvous.naming import carried
from turnout.launcher.rendezvous.state import Handing, Known, Phase
from turnout.launcher.rendezvous.turn import Turn
from turnout.launcher.wire import Beat, Finish, Handover, StopAt

AHEAD = 2  # steps between the farthest one known and the one at which all stop
GROWTH_GRACE_S = 60.0  # for a world that grows to reach its stop step and save
STEP_SHARE = 0.8  # of the time that is left, for the agreed stop; the rest is for ending processes by force
HAND_SHARE = 0.8  # of what is left then, for shards to be handed over; the rest is for leavers to end
_STOPS = (Phase.DRAINING, Phase.STOPPING, Phase.HANDING)
_MOST_DOORS = 4


def leaving(turn: Turn, id_: str, known: Known, grace_s: float) -> None:
    """A member was asked to go within this time."""
    if known.leave_s is not None:
        return
    turn.know(id_, replace(known, leave_s=turn.now_s + grace_s))
    turn.told("member_leaving", Reason.DRAINED, member=known.member.name, grace_s=grace_s)
    phase = turn.at.phase
    if phase is Phase.GATHERING and known.held and turn.inside(id_):
        turn.at = replace(turn.at, phase=Phase.HANDING)
    elif not known.busy and not (phase in _STOPS and turn.inside(id_)):
        turn.tell((id_,), Finish(int(Exit.DRAINED), Reason.DRAINED.value, "", turn.at.checkpoints.carry))
        return
    # What it holds goes to those who stay, together with what others who leave hold.
    turn.at = replace(turn.at, checkpoints=replace(turn.at.checkpoints, handing=None))
    if phase is Phase.DRAINING:
        until_s = min(turn.at.ending.until_s, turn.now_s + grace_s * STEP_SHARE)
        turn.at = replace(turn.at, ending=replace(turn.at.ending, until_s=until_s))


def farewell(turn: Turn, id_: str) -> Finish:
    """What is told to one who leaves now that nobody trains: it was asked to, or is at fault."""
    if (why := turn.at.hanging.leaves.get(id_)) is not None:
        return Finish(int(Exit.FAULTY), Reason.NODE_FAULTY.value, why, turn.at.checkpoints.carry)
    return Finish(int(Exit.DRAINED), Reason.DRAINED.value, "", turn.at.checkpoints.carry)


def wants_drain(turn: Turn) -> tuple[Reason, str] | None:
    """Why a world that trains well should end its round, if it should."""
    at = turn.at
    if at.world is None:
        return None
    leavers = [known for id_ in at.world.seats if (known := turn.members.get(id_)) and known.leave_s is not None]
    if leavers:
        return Reason.MEMBER_LEFT, ", ".join(known.member.name for known in leavers)
    new = [id_ for id_, known in turn.members.items() if known.leave_s is None and not turn.inside(id_)]
    new_s = [turn.ready_s(id_) for id_ in new]
    ready_s = [at_s for at_s in new_s if at_s <= turn.now_s]
    if len(ready_s) < len(new_s):
        turn.wake(min(at_s for at_s in new_s if at_s > turn.now_s))
    there = sum(id_ in turn.members for id_ in at.world.seats) + len(ready_s)
    if at.job.terms.size(there) <= len(at.world.members):
        return None
    settled_s = max(at.gathering.joined_s, *ready_s) + at.job.terms.settle_s
    if turn.now_s < settled_s and there < min(at.job.terms.most, at.gathering.wanted or at.job.terms.most):
        turn.wake(settled_s)
        return None
    return Reason.MEMBER_JOINED, f"{len(at.world.members)} to {at.job.terms.size(there)} workers"


def beats(turn: Turn, id_: str, known: Known, beat: Beat) -> None:
    """What a heartbeat tells: how far a member is, what is saved, and that it can start processes now."""
    at = turn.at
    ready = not beat.importing_s and known.ready_s > turn.now_s
    if ready or beat.step != known.step:
        turn.know(id_, replace(known, step=beat.step, ready_s=turn.now_s if ready else known.ready_s))
    if ready and at.phase is Phase.TRAINING and not turn.inside(id_):
        turn.told("member_ready", Reason.MEMBER_JOINED, member=known.member.name)
    if beat.saved > at.budget.saved_step:
        turn.at = replace(at, budget=at.budget.saved(beat.saved))


def drain(turn: Turn) -> None:
    """Bring about that all stop after the same step; when time is up, or nobody tells steps, end the processes."""
    at = turn.at
    if not any(turn.inside(id_) for id_ in turn.busy()):  # others have been told to stop, and agree on no step
        if at.world is not None and not at.ending.sure and at.ending.done >= at.world.seats.keys():
            turn.finish(Exit.DONE, Reason.ALL_DONE, f"round {at.round}")  # nobody was made to stop: they have finished
            return
        turn.at = replace(at, phase=Phase.STOPPING)
        return
    if at.ending.stop_step is None:
        _propose_first(turn)
        return
    if turn.now_s >= at.ending.until_s:
        turn.told("stop_step_missed", at.cause.why, round=at.round, step=at.ending.stop_step)
        turn.end_processes(_left_s(turn))
        return
    turn.wake(at.ending.until_s)
    answers = [known.reached for id_, known in turn.members.items() if known.busy and turn.inside(id_)]
    if at.ending.sure or any(answer is None for answer in answers):
        return
    farthest = max(answer for answer in answers if answer is not None)
    if farthest > at.ending.stop_step:
        _propose(turn, farthest + AHEAD)
    else:
        turn.at = replace(at, ending=replace(at.ending, sure=True))
        turn.tell(turn.busy(), StopAt(turn.world_round, at.ending.stop_step, True))


def _propose_first(turn: Turn) -> None:
    farthest = max((known.step for id_, known in turn.members.items() if turn.inside(id_)), default=-1)
    left_s = _left_s(turn)
    if farthest < 0:
        turn.end_processes(left_s)  # nobody tells steps: SIGTERM lets the job's own hook save
        return
    turn.at = replace(turn.at, ending=replace(turn.at.ending, until_s=turn.now_s + left_s * STEP_SHARE))
    _propose(turn, farthest + AHEAD)
    turn.wake(turn.at.ending.until_s)


def _propose(turn: Turn, step: int) -> None:
    for id_, known in turn.members.items():
        if known.reached is not None:
            turn.know(id_, replace(known, reached=None))
    turn.at = replace(turn.at, ending=replace(turn.at.ending, stop_step=step, sure=False))
    turn.tell(turn.busy(), StopAt(turn.world_round, step, False))


def _left_s(turn: Turn) -> float:
    """How much time the most hurried leaver has."""
    left = [known.leave_s - turn.now_s for known in turn.members.values() if known.leave_s is not None and known.busy]
    return max(min(left, default=GROWTH_GRACE_S), 0.0)


def reached(turn: Turn, id_: str, known: Known, step: int) -> None:
    """How far the processes of one member are."""
    turn.know(id_, replace(known, reached=step))


def stopped(turn: Turn) -> None:
    """Nobody trains any more: the fault is charged, and those who want to leave may soon go."""
    at = turn.at = replace(turn.at, checkpoints=replace(turn.at.checkpoints, carry=carried(turn)))
    if at.cause.fault and not at.cause.lost:
        if at.budget.used >= at.job.terms.max_restarts:
            detail = f"{at.budget.used} of {at.job.terms.max_restarts} restarts are used; {at.cause.fault}"
            turn.finish(Exit.FAILED, Reason.BUDGET_SPENT, detail)
            return
        at = replace(at, budget=at.budget.charged())
    staying = sum(known.leave_s is None for known in turn.members.values())
    expected, call_s = (0, 0.0) if at.job.terms.size(staying) else (at.fencing.base_size, at.job.terms.settle_s)
    turn.at = replace(
        at, phase=Phase.HANDING, cause=replace(at.cause, fault="", lost=False, since_s=turn.now_s),
        gathering=replace(at.gathering, expected=expected, call_s=call_s),
        checkpoints=replace(at.checkpoints, handing=None),
    )  # fmt: skip


def hand(turn: Turn) -> None:
    """Have it done, then let those who leave go. The next world is made at once where there is nothing to hand over."""
    leavers = {id_: known for id_, known in turn.members.items() if known.leave_s is not None}
    handing = turn.at.checkpoints.handing
    if leavers and handing is None:
        left_s = min(known.leave_s - turn.now_s for known in leavers.values() if known.leave_s is not None)
        handing = _begun(turn, leavers, turn.now_s + HAND_SHARE * left_s)
        turn.at = replace(turn.at, checkpoints=replace(turn.at.checkpoints, handing=handing))
    if handing is not None and handing.awaits & turn.members.keys() and turn.now_s < handing.until_s:
        turn.wake(handing.until_s)
        return
    for id_ in leavers:
        turn.tell((id_,), farewell(turn, id_))
    turn.at = replace(turn.at, phase=Phase.GATHERING, checkpoints=replace(turn.at.checkpoints, handing=None))


def _begun(turn: Turn, leavers: Mapping[str, Known], until_s: float) -> Handing:
    """Tell who takes what, and have those who leave write theirs meanwhile. Where it is nothing nobody is awaited."""
    at, state, takes = turn.at, *handed(turn)
    left_s = until_s - turn.now_s
    if state is None or not takes or left_s <= 0:
        return Handing()
    step, origin, ranks = state
    for id_ in sorted(leavers.keys() | takes.keys()):
        turn.tell((id_,), Handover(at.round, step, origin, ranks, left_s, takes.get(id_, ())))
    names = {turn.members[id_].member.name: len(takes[id_]) for id_ in sorted(takes)}
    turn.told("shards_handed_over", Reason.MEMBER_LEFT, round=at.round, step=step, ranks=ranks, to=names)
    return Handing(frozenset(takes), until_s)


def handed(turn: Turn) -> tuple[SavedState | None, dict[str, tuple[Take, ...]]]:
    """The newest step that can be had whole, and which shards of it who stays has to take from those who leave.

    What can be read by no other world than one of its size is handed over only if that may be the next one.
    """
    members = {id_: known.member for id_, known in turn.members.items()}
    held = {id_: known.held for id_, known in turn.members.items()}
    staying = [id_ for id_, known in turn.members.items() if known.leave_s is None and not known.busy]
    for state in sorted(
        {(each.step, each.round, each.ranks) for holds in held.values() for each in holds}, reverse=True
    ):
        runs = runs_of(state, held, members)
        if state[0] < 0:
            break
        if state[2] == ALL:
            if any(run.id in staying for run in runs):
                break  # each has all of it
            continue
        if ranks_in(runs) < set(range(state[2])):
            continue
        if not all(run.parts for run in runs) and _shrinks(turn, len(staying)):
            break
        return state, _takes(turn, runs, staying)
    return None, {}


def _shrinks(turn: Turn, staying: int) -> bool:
    """Will the next world be smaller than the last?"""
    size = turn.at.job.terms.size(staying)
    return turn.at.world is not None and 0 < size < len(turn.at.world.members)


def _takes(turn: Turn, runs: tuple[Run, ...], staying: list[str]) -> dict[str, tuple[Take, ...]]:
    """By member that stays: what it takes."""
    doors = {run.id: door for run in runs if (door := door_of(turn.members[run.id].member)) is not None}
    there, theirs = ranks_in(run for run in runs if run.id in staying), dict[str, Run]()
    for number, run in enumerate(run for run in runs if run.id not in staying and run.id in doors):
        if not there.issuperset(run.ranks):
            there |= {*run.ranks}
            theirs[f"{number}"] = run
    takers = [(id_, turn.members[id_].member.path) for id_ in staying if turn.members[id_].member.keeper]
    chosen = heirs([(key, turn.members[run.id].member.path) for key, run in theirs.items()], takers)
    found: dict[str, list[Take]] = defaultdict(list)
    for key, heir in chosen.items():
        run = theirs[key]
        givers = [doors[each.id] for each in runs if each.ranks == run.ranks and each.id in doors]
        owner = turn.members[run.id].member.name if run.own else f"ranks {run.first_rank} and {run.count - 1} more"
        found[heir].append(Take(owner, run.first_rank, run.count, tuple(givers[:_MOST_DOORS])))
    return {id_: tuple(takes[:MOST_LIES]) for id_, takes in found.items()}
