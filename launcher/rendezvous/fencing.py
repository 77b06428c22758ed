"""Decides which world may follow which: the rounds a member accepts, and the members a coordinator needs.

Without an arbiter the next world needs more than half of the last world's members, so that no other world can follow
it.
If the min is more than half of the max, only one world fits into the job. A member that returned in the place of a lost
one then counts too. The lost one has ended, since a name belongs to one worker at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnout.launcher.model import Member
from turnout.launcher.rendezvous.messages import Formed, LastWorld
from turnout.launcher.rendezvous.state import MemberState
from turnout.launcher.rendezvous.transition import Transition


def may_train(base: LastWorld, formed: Formed) -> bool:
    """True if a member with this last world may train in this round.

    A member takes part in rounds in increasing order, and only if they follow a world no older than its own. Of two
    worlds that follow the same one, at most one can train with a given member. docs/design.md 5
    """
    return formed.round > base.round and formed.base >= base.round


def was_in_last_world(transition: Transition, known: MemberState) -> bool:
    """True if the member was in the last world, in this life."""
    return known.base.inside and known.base.round == transition.state.fencing.base


def overlaps(transition: Transition, chosen: Sequence[MemberState]) -> bool:
    """True if more than half of the last world's members are in this one.

    No other world can then follow the last one without one of them.
    """
    return (
        transition.state.job.sole_coordinator
        or transition.state.fencing.base == 0
        or 2 * sum(was_in_last_world(transition, known) for known in chosen) > transition.state.fencing.base_size
    )


def has_enough_places(transition: Transition, chosen: Sequence[MemberState]) -> bool:
    """True if more than half of the last world's places are taken again.

    This needs a job in which only one world fits, and fewer started workers than twice the min. If a spare is here,
    there may be more workers, so one member that kept its place must be here.
    """
    at = transition.state
    if 2 * at.job.elastic_spec.min_nodes <= at.job.elastic_spec.max_nodes:
        return False
    if any(_spare(transition, known) for known in transition.members.values()) and not any(
        was_in_last_world(transition, each) for each in chosen
    ):
        return False
    return 2 * sum(has_former_place(transition, known) for known in chosen) > at.fencing.base_size


def has_former_place(transition: Transition, known: MemberState) -> bool:
    """True if the member has a place of the last world: its own, or a lost member's by name or index.

    If another coordinator formed that world, its names are unknown, and a new member is taken to have a place.
    """
    if was_in_last_world(transition, known):
        return True
    world = (
        transition.state.world
        if transition.state.world is not None and transition.state.world.round == transition.state.fencing.base
        else None
    )
    return not _spare(transition, known) and (
        world is None or any(_same_place(known.member, seat) for seat in world.members)
    )


def _spare(transition: Transition, known: MemberState) -> bool:
    """True if the member was present when the last world was formed, but not in it."""
    return known.base.round == transition.state.fencing.base and not known.base.inside


def _same_place(one: Member, other: Member) -> bool:
    return one.name == other.name or (one.index is not None and one.index == other.index)
