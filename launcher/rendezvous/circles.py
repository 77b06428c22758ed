"""Whom a member's keeper has to know in a world: the one that leads the copies, and those that keep its own."""

from __future__ import annotations

from launcher.checkpoint.buddies import buddies
from launcher.keeping import MOST_COPIES, Circle
from launcher.model import World
from launcher.rendezvous.held import door_of


def circles(world: World) -> dict[str, Circle]:
    """By member id; nobody where there is one member only, or one whose keeper takes no copies."""
    doors = {member.id: door for member in world.members if (door := door_of(member)) is not None}
    if len(doors) < max(len(world.members), 2):
        return {}
    places = [(member.id, member.path) for member in world.members]
    kept = [buddies(places, copies) for copies in range(1, min(MOST_COPIES, len(places) - 1) + 1)]
    first, size = doors[world.members[0].id], len(places)
    return {
        id_: Circle(first, size, tuple(tuple(doors[other] for other in each[id_]) for each in kept)) for id_ in doors
    }
