"""Which step a new world can take from memory, by what its members hold. Nobody has to agree on it in a collective."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.model import World
from launcher.wire import Held

ALL = 0  # Held.ranks of a state that is the same on every rank


def restorable(world: World, held: Mapping[str, tuple[Held, ...]]) -> int:
    """The newest step that every member of this world holds, each for the ranks that are its own now. -1: none.

    What was saved as other ranks, or of a world of another size, is no part of this one. Source: DL-108
    """
    steps: set[int] | None = None
    for id_, seat in world.seats.items():
        ours = {
            each.step
            for each in held.get(id_, ())
            if each.ranks == ALL or (each.ranks == world.ranks and each.first_rank == seat.first_rank)
        }
        steps = ours if steps is None else steps & ours
        if not steps:
            return -1
    return max(steps or (-1,))
