"""Which step a new world can take from memory, by what its members hold. Nobody has to agree on it in a collective."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.model import World
from launcher.wire import Held

ALL = 0  # Held.ranks of a state that is the same on every rank


def restorable(world: World, held: Mapping[str, tuple[Held, ...]]) -> int:
    """The newest step that every member of this world holds, each for the ranks that are its own now. -1: none.

    What was saved as other ranks, or of a world of another size, is no part of this one, and shards of a step that
    two rounds have trained are none of one state: a round may have lost the step, and trained it anew. Source: DL-108
    """
    states: set[tuple[int, int]] | None = None
    for id_, seat in world.seats.items():
        ours = {
            (each.step, each.round)
            for each in held.get(id_, ())
            if each.ranks == ALL or (each.ranks == world.ranks and each.first_rank == seat.first_rank)
        }
        states = ours if states is None else states & ours
        if not states:
            return -1
    return max(states)[0] if states else -1
