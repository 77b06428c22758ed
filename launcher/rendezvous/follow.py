"""Which world may follow which: what a member believes of a coordinator, and whom a coordinator has to have with it.

Where no arbiter settles it, more than half of the last world has to be in the next one, so that no other can follow it.
A member counts that was in it. Where the least workers are more than half of the most, two worlds do not fit into one
job, and who has come back in the place of a lost member counts as well: the lost one has ended, since a name is given
to one worker at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnout.launcher.model import Member
from turnout.launcher.rendezvous.state import Known
from turnout.launcher.rendezvous.turn import Turn
from turnout.launcher.wire import Base, Formed


def accepts(base: Base, formed: Formed) -> bool:
    """May a member with this base train in this round?

    It takes part in rounds in their order, and in none that follows a world older than its own: so of two worlds that
    follow the same one, and share a member with it, one at most can train. docs/design.md 5
    """
    return formed.round > base.round and formed.base >= base.round


def veteran(turn: Turn, known: Known) -> bool:
    """Tell whether it was in the last world, in this life."""
    return known.base.inside and known.base.round == turn.at.fencing.base


def overlaps(turn: Turn, chosen: Sequence[Known]) -> bool:
    """Are more than half of the last world in this one? Then no other world can follow it without one of them."""
    return (
        turn.at.job.only
        or turn.at.fencing.base == 0
        or 2 * sum(veteran(turn, known) for known in chosen) > turn.at.fencing.base_size
    )


def restored(turn: Turn, chosen: Sequence[Known]) -> bool:
    """Are more than half of the last world's places taken again?

    This holds in a job of which only one world fits, and while fewer workers are started than twice the least. Where a
    spare is here there may be more, so that one has to be here who has kept its place.
    """
    at = turn.at
    if 2 * at.job.terms.least <= at.job.terms.most:
        return False
    if any(_spare(turn, known) for known in turn.members.values()) and not any(veteran(turn, each) for each in chosen):
        return False
    return 2 * sum(returned(turn, known) for known in chosen) > at.fencing.base_size


def returned(turn: Turn, known: Known) -> bool:
    """Tell whether it has a place of the last world: its own, or a lost member's by name or index.

    Where another coordinator formed that world its names are not known: then who comes new is taken to have one.
    """
    if veteran(turn, known):
        return True
    world = turn.at.world if turn.at.world is not None and turn.at.world.round == turn.at.fencing.base else None
    return not _spare(turn, known) and (world is None or any(_same_place(known.member, seat) for seat in world.members))


def _spare(turn: Turn, known: Known) -> bool:
    """Tell whether it was there when the last world was formed, and not in it."""
    return known.base.round == turn.at.fencing.base and not known.base.inside


def _same_place(one: Member, other: Member) -> bool:
    return one.name == other.name or (one.order is not None and one.order == other.order)
