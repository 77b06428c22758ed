"""Whom a member's keeper has to know in a world: the one that leads the copies, and those that keep its own."""

from __future__ import annotations

from turnout.launcher.checkpoint.buddies import buddies
from turnout.launcher.keeping import MOST_COPIES, Circle
from turnout.launcher.model import World
from turnout.launcher.rendezvous.held import door_of
from turnout.launcher.rendezvous.state import Rings


def circles(world: World, before: Rings = ()) -> tuple[dict[str, Circle], Rings]:
    """By member id; nobody where there is one member only, or one whose keeper takes no copies. And who keeps whose.

    before: that of the last world: after a replacement as few buddies as can be change.
    """
    doors = {member.id: door for member in world.members if (door := door_of(member)) is not None}
    if len(doors) < max(len(world.members), 2):
        return {}, ()
    places = [(member.id, member.path) for member in world.members]
    counts = range(1, min(MOST_COPIES, len(places) - 1) + 1)
    rings = tuple(buddies(places, copies, before[copies - 1] if copies <= len(before) else None) for copies in counts)
    first, size = doors[world.members[0].id], len(places)
    around = {
        id_: Circle(first, size, tuple(tuple(doors[other] for other in each[id_]) for each in rings)) for id_ in doors
    }
    return around, rings
