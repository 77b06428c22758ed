"""What goes to storage between two rounds, and which step of it is read by a round that takes none from memory.

That is one for all, named when every member has told its own; so it is where memory is of an older round, and what
storage has may be newer.

What is committed after that, by the keeper of a worker that is lost, is for the next round. Source:
docs/facts/launcher.md 5
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from turnout.launcher.rendezvous.held import restorable
from turnout.launcher.rendezvous.state import Known
from turnout.launcher.rendezvous.turn import Turn
from turnout.launcher.wire import Stored


def saw(turn: Turn, id_: str, known: Known, seen: Stored) -> None:
    """A member of the world that trains tells what it sees. The last one to do so has the step named."""
    world = turn.at.world
    if known.stored is not None or turn.at.checkpoints.named is not None or world is None:
        return
    turn.know(id_, replace(known, stored=seen))
    checkpoints = replace(turn.at.checkpoints, unnamed=turn.at.checkpoints.unnamed - 1)
    turn.at = replace(turn.at, checkpoints=checkpoints)
    if turn.at.checkpoints.unnamed == 0:
        here = (turn.members.get(member.id) for member in world.members)
        named = name(seen.round, (each.stored for each in here if each is not None))
        turn.at = replace(turn.at, checkpoints=replace(checkpoints, named=named))
        turn.tell(world.seats, named)


def carried(turn: Turn) -> int:
    """What is worth being carried to storage: the newest step that every rank of the last world holds. -1: none.

    Ranks may differ by a save: they were stopped at any moment.
    """
    if turn.at.world is None:
        return -1
    return restorable(turn.at.world, {id_: known.held for id_, known in turn.members.items()}).step


def name(round_: int, seen: Iterable[Stored | None]) -> Stored:
    """The newest that anybody sees: it is committed, whoever does not see it yet. seen: by group rank.

    Of several folders that of the first who knows one counts. Where nobody does, each finds out for itself.
    """
    known = [each for each in seen if each is not None and each.target]
    if not known:
        return Stored(round_)
    target = known[0].target
    return Stored(round_, target, max(each.step for each in known if each.target == target))
