"""A shrink is agreed, not suffered: who leaves makes everybody stop after one step, save, and go on without it.

The stop step lies ahead of the farthest rank. Until all have answered that they have not passed it, ranks that reach
it wait there; was it passed, a later one is agreed. A job that tells no steps gets SIGTERM instead: its own hook saves.
Growth goes the same way. DESIGN §5
"""

from __future__ import annotations

from dataclasses import replace

from launcher.model import Exit, Reason
from launcher.rendezvous.state import Known, Phase
from launcher.rendezvous.turn import Turn
from launcher.wire import Finish, StopAt

AHEAD = 2  # steps between the farthest one known and the one at which all stop
GROWTH_GRACE_S = 60.0  # for a world that grows to reach its stop step and save
STEP_SHARE = 0.8  # of the time that is left, for the agreed stop; the rest is for ending processes by force


def leaving(turn: Turn, id_: str, known: Known, grace_s: float) -> None:
    """A member was asked to go within this time."""
    if known.leave_s is not None:
        return
    turn.know(id_, replace(known, leave_s=turn.now_s + grace_s))
    turn.told("member_leaving", Reason.DRAINED, member=known.member.name, grace_s=grace_s)
    if not known.busy:
        turn.tell((id_,), Finish(int(Exit.DRAINED), Reason.DRAINED.value, "", turn.at.carry))
    elif turn.at.phase is Phase.DRAINING:
        turn.at = replace(turn.at, until_s=min(turn.at.until_s, turn.now_s + grace_s * STEP_SHARE))


def wants_drain(turn: Turn) -> tuple[Reason, str] | None:
    """Why a world that trains well should end its round, if it should."""
    at = turn.at
    if at.world is None:
        return None
    leavers = [known for id_ in at.world.seats if (known := turn.members.get(id_)) and known.leave_s is not None]
    if leavers:
        return Reason.MEMBER_LEFT, ", ".join(known.member.name for known in leavers)
    staying = sum(known.leave_s is None for known in turn.members.values())
    if at.terms.size(staying) <= len(at.world.members):
        return None
    settled_s = at.joined_s + at.terms.settle_s
    if turn.now_s < settled_s and staying < min(at.terms.most, at.wanted or at.terms.most):
        turn.wake(settled_s)
        return None
    return Reason.MEMBER_JOINED, f"{len(at.world.members)} to {at.terms.size(staying)} workers"


def drain(turn: Turn) -> None:
    """Bring about that all stop after the same step; when time is up, or nobody tells steps, end the processes."""
    at = turn.at
    if not turn.busy():
        if at.world is not None and not at.sure and at.done >= at.world.seats.keys():
            turn.finish(Exit.DONE, Reason.ALL_DONE, f"round {at.round}")  # nobody was made to stop: they have finished
            return
        turn.at = replace(at, phase=Phase.STOPPING)
        return
    if at.stop_step is None:
        _propose_first(turn)
        return
    if turn.now_s >= at.until_s:
        turn.told("stop_step_missed", at.why, round=at.round, step=at.stop_step)
        turn.end_processes(_left_s(turn))
        return
    turn.wake(at.until_s)
    answers = [known.reached for id_, known in turn.members.items() if known.busy and turn.inside(id_)]
    if at.sure or any(answer is None for answer in answers):
        return
    farthest = max(answer for answer in answers if answer is not None)
    if farthest > at.stop_step:
        _propose(turn, farthest + AHEAD)
    else:
        turn.at = replace(at, sure=True)
        turn.tell(turn.busy(), StopAt(turn.world_round, at.stop_step, True))


def _propose_first(turn: Turn) -> None:
    farthest = max((known.step for id_, known in turn.members.items() if turn.inside(id_)), default=-1)
    left_s = _left_s(turn)
    if farthest < 0:
        turn.end_processes(left_s)  # nobody tells steps: SIGTERM lets the job's own hook save
        return
    turn.at = replace(turn.at, until_s=turn.now_s + left_s * STEP_SHARE)
    _propose(turn, farthest + AHEAD)
    turn.wake(turn.at.until_s)


def _propose(turn: Turn, step: int) -> None:
    for id_, known in turn.members.items():
        if known.reached is not None:
            turn.know(id_, replace(known, reached=None))
    turn.at = replace(turn.at, stop_step=step, sure=False)
    turn.tell(turn.busy(), StopAt(turn.world_round, step, False))


def _left_s(turn: Turn) -> float:
    """How much time the most hurried leaver has."""
    left = [known.leave_s - turn.now_s for known in turn.members.values() if known.leave_s is not None and known.busy]
    return max(min(left, default=GROWTH_GRACE_S), 0.0)


def reached(turn: Turn, id_: str, known: Known, step: int) -> None:
    """How far the processes of one member are."""
    turn.know(id_, replace(known, reached=step))
