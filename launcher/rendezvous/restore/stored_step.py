"""Decides which step is written to storage between two rounds, and which stored step a round reads.

All members read one step, named when every member has told what it sees. This is also done if memory is of an older
round, since storage may have a newer step. What a lost worker's daemon commits later is for the next round. Source:
docs/facts/launcher.md 5
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from turnout.launcher.rendezvous.messages import StoredStepReport
from turnout.launcher.rendezvous.restore.restore_plan import choose_restore
from turnout.launcher.rendezvous.state import MemberState
from turnout.launcher.rendezvous.transition import Transition


def record_stored(transition: Transition, id_: str, known: MemberState, report: StoredStepReport) -> None:
    """Record the stored step that a member of the training world sees. After the last one, name the step for all."""
    world = transition.state.world
    if known.stored_step is not None or transition.state.checkpoints.stored_step is not None or world is None:
        return
    transition.set_member(id_, replace(known, stored_step=report))
    checkpoints = replace(transition.state.checkpoints, unreported=transition.state.checkpoints.unreported - 1)
    transition.state = replace(transition.state, checkpoints=checkpoints)
    if transition.state.checkpoints.unreported == 0:
        states = (transition.members.get(member.id) for member in world.members)
        named = choose_stored(report.round, (each.stored_step for each in states if each is not None))
        transition.state = replace(transition.state, checkpoints=replace(checkpoints, stored_step=named))
        transition.send(world.assignments, named)


def step_to_persist(transition: Transition) -> int:
    """Return the step to write to storage: the newest that every rank of the last world holds, or -1 for none.

    Ranks may differ by one save, since they were stopped at any moment.
    """
    if transition.state.world is None:
        return -1
    return choose_restore(
        transition.state.world, {id_: known.held_steps for id_, known in transition.members.items()}
    ).step


def choose_stored(round_: int, reports: Iterable[StoredStepReport | None]) -> StoredStepReport:
    """Name the newest stored step that any member sees, since it is committed even if others do not see it yet.

    reports: by group rank. The first known folder counts if they differ. If nobody knows a folder, each member finds
    out for itself.
    """
    known = [each for each in reports if each is not None and each.target]
    if not known:
        return StoredStepReport(round_)
    target = known[0].target
    return StoredStepReport(round_, target, max(each.step for each in known if each.target == target))
