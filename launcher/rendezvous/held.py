"""Which step a new world can take from memory, by what its members hold, and who fetches what from whom.

Nobody has to agree on it in a collective. A shard belongs to the rank that saved it, wherever that rank runs now.
Source: DESIGN §5; facts/launcher.md §5; DL-60, DL-108
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.keeping import ALL, BARRED, Door, Held
from launcher.model import Member, World

_MOST_GIVERS = 4
_State = tuple[int, int, int]  # step, round, ranks


@dataclass(frozen=True, slots=True)
class Choice:
    """What all go on from: a step that was trained in this round, -1 for none.

    alike: it is the same on all ranks. fetch: who does not hold its part, and who does, the nearest first.
    """

    step: int = -1
    round: int = 0
    alike: bool = False
    fetch: Mapping[str, tuple[Door, ...]] = field(default_factory=dict)


def restorable(
    world: World, held: Mapping[str, tuple[Held, ...]], members: Mapping[str, Member] | None = None
) -> Choice:
    """The newest step whose every part is in the memory of somebody who lives.

    held: by id, as told; members: all that are there, whether in this world or not. What was saved in a world of
    another size is no part of this one, and shards of a step that two rounds have trained are none of one state: a
    round may have lost the step, and trained it anew. Own memory comes before that of others.
    """
    members = members or {}
    own: dict[str, set[_State]] = {}
    givers: dict[_State, dict[int, list[tuple[int, Door]]]] = defaultdict(lambda: defaultdict(list))
    states, ranks = set[_State](), world.ranks
    for id_, holds in sorted(held.items()):
        seat = world.seats.get(id_)
        mine = own.setdefault(id_, set())
        door = door_of(members.get(id_))
        for each in holds:
            if each.step < 0 or each.ranks not in (ALL, ranks):
                continue
            state = (each.step, each.round, each.ranks)
            states.add(state)
            if seat and not each.count and (each.ranks == ALL or each.first_rank == seat.first_rank):
                mine.add(state)
            if door is not None and (each.count or each.ranks != ALL):
                givers[state][each.first_rank].append((each.count or members[id_].processes, door))
    for state in sorted(states, reverse=True):
        fetch = _fetched(world, state, own, givers[state], held)
        if fetch is not None:
            return Choice(state[0], state[1], state[2] == ALL, fetch)
    return Choice()


def _fetched(
    world: World,
    state: _State,
    own: Mapping[str, set[_State]],
    givers: Mapping[int, list[tuple[int, Door]]],
    held: Mapping[str, tuple[Held, ...]],
) -> dict[str, tuple[Door, ...]] | None:
    """Who fetches from whom to have this state; None where a part of it is nowhere."""
    found: dict[str, tuple[Door, ...]] = {}
    for id_, seat in world.seats.items():
        if state in own.get(id_, ()):
            continue
        first, count = (0, 1) if state[2] == ALL else (seat.first_rank, seat.processes)
        doors = tuple(door for has, door in givers.get(first, ()) if has == count and door.id != id_)
        if not doors or BARRED in held.get(id_, ()):
            return None
        turn = seat.group_rank % len(doors)  # of many givers not all ask the same one
        found[id_] = (*doors[turn:], *doors[:turn])[:_MOST_GIVERS]
    return found if world.seats else None


def door_of(member: Member | None) -> Door | None:
    """Where its keeper listens, None where it does not."""
    if member is None or not member.keeper:
        return None
    return Door(member.id, member.name, member.address, member.keeper)
