"""Decides which step is written to storage between two rounds, and which stored step a round reads.

All members read one step, named when every member has told what it sees. This is also done if memory is of an older
round, since storage may have a newer step. What a lost worker's daemon commits later is for the next round. Source:
docs/facts/launcher.md 5
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from turnout.launcher.rendezvous.messages import Stored
from turnout.launcher.rendezvous.restore.restore_plan import restorable
from turnout.launcher.rendezvous.state import MemberState
from turnout.launcher.rendezvous.transition import Transition


def saw(transition: Transition, id_: str, known: MemberState, seen: Stored) -> None:
    """Record the stored step that a member of the training world sees. After the last one, name the step for all."""
    world = transition.at.world
    if known.stored is not None or transition.at.checkpoints.named is not None or world is None:
        return
    transition.know(id_, replace(known, stored=seen))
    checkpoints = replace(transition.at.checkpoints, unnamed=transition.at.checkpoints.unnamed - 1)
    transition.at = replace(transition.at, checkpoints=checkpoints)
    if transition.at.checkpoints.unnamed == 0:
        here = (transition.members.get(member.id) for member in world.members)
        named = name(seen.round, (each.stored for each in here if each is not None))
        transition.at = replace(transition.at, checkpoints=replace(checkpoints, named=named))
        transition.tell(world.seats, named)


def carried(transition: Transition) -> int:
    """Return the step to write to storage: the newest that every rank of the last world holds, or -1 for none.

    Ranks may differ by one save, since they were stopped at any moment.
    """
    if transition.at.world is None:
        return -1
    return restorable(transition.at.world, {id_: known.held for id_, known in transition.members.items()}).step


def name(round_: int, seen: Iterable[Stored | None]) -> Stored:
    """Name the newest stored step that any member sees, since it is committed even if others do not see it yet.

    seen: by group rank. The first known folder counts if they differ. If nobody knows a folder, each member finds out
    for itself.
    """
    known = [each for each in seen if each is not None and each.target]
    if not known:
        return Stored(round_)
    target = known[0].target
    return Stored(round_, target, max(each.step for each in known if each.target == target))
