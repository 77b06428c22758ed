"""Which step a new world can take from memory, by what its members hold, and who fetches what from whom.

Nobody has to agree on it in a collective. A shard belongs to the rank that saved it, wherever that rank runs now; what
torch.distributed.checkpoint has saved is read by a world of any size, each rank its parts of these shards.
Source: docs/design.md 5; docs/facts/launcher.md 5; DL-60, DL-108
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from turnout.launcher.keeping import ALL, BARRED, MOST_LIES, Door, Held, Lies
from turnout.launcher.model import Member, World

_MOST_GIVERS = 4
_MOST_OF_A_RUN = 2  # who are named to whom the parts of a shard are wanted from
SavedState = tuple[int, int, int]  # step, round, ranks


@dataclass(frozen=True, slots=True)
class Choice:
    """What all go on from: a step that was trained in this round, -1 for none.

    alike: it is the same on all ranks. fetch: who does not hold its part, and who does, the nearest first. saved_by: by
    how many ranks it was saved, where each rank takes its parts of their shards, else 0; lies: where these are, as each
    member has to know it.
    """

    step: int = -1
    round: int = 0
    alike: bool = False
    fetch: Mapping[str, tuple[Door, ...]] = field(default_factory=dict)
    saved_by: int = 0
    lies: Mapping[str, tuple[Lies, ...]] = field(default_factory=dict)

    def is_older(self, last_round: int) -> bool:
        """May others have trained on since, and committed a newer step? Then storage is looked at before it is taken.

        last_round: the newest that anybody was granted, 0 where nobody knows one. Source: hack.chaos, seed 6
        """
        return self.step >= 0 and (self.round < last_round or last_round == 0)


@dataclass(frozen=True, slots=True)
class Run:
    """The shards of so many ranks of a state, from this one on, in the memory of one member. own: it has saved them."""

    first_rank: int
    count: int
    id: str
    own: bool
    parts: bool

    @property
    def ranks(self) -> range:
        """Whose they are."""
        return range(self.first_rank, self.first_rank + self.count)


def restorable(
    world: World, held: Mapping[str, tuple[Held, ...]], members: Mapping[str, Member] | None = None
) -> Choice:
    """The newest step whose every part is in the memory of somebody who lives.

    held: by id, as told; members: all that are there, whether in this world or not. Shards of a step that two rounds
    have trained are none of one state: a round may have lost the step, and trained it anew. Own memory comes before
    that of others. What was saved in a world of another size, or by workers of other sizes, counts where it can be read
    in parts.
    """
    members = members or {}
    own: dict[str, set[SavedState]] = {}
    givers: dict[SavedState, dict[int, list[tuple[int, Door]]]] = defaultdict(lambda: defaultdict(list))
    states = set[SavedState]()
    for id_, holds in sorted(held.items()):
        seat = world.seats.get(id_)
        mine = own.setdefault(id_, set())
        door = door_of(members.get(id_))
        for each in holds:
            if each.step < 0:
                continue
            state = (each.step, each.round, each.ranks)
            states.add(state)
            if seat and not each.count and (each.ranks == ALL or each.first_rank == seat.first_rank):
                mine.add(state)
            if door is not None and (each.count or each.ranks != ALL):
                givers[state][each.first_rank].append((each.count or members[id_].processes, door))
    for state in sorted(states, reverse=True):
        if state[2] in (ALL, world.ranks) and (fetch := _fetched(world, state, own, givers[state], held)) is not None:
            return Choice(state[0], state[1], state[2] == ALL, fetch)
        if state[2] != ALL and (lies := _in_parts(world, state, held, members)) is not None:
            return Choice(state[0], state[1], saved_by=state[2], lies=lies)
    return Choice()


def _fetched(
    world: World,
    state: SavedState,
    own: Mapping[str, set[SavedState]],
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


def runs_of(state: SavedState, held: Mapping[str, tuple[Held, ...]], members: Mapping[str, Member]) -> tuple[Run, ...]:
    """Who has which shards of it, by rank, what a member has saved itself before what it keeps for others."""
    found = [
        Run(each.first_rank, each.count or members[id_].processes, id_, not each.count, each.parts)
        for id_, holds in held.items()
        if id_ in members
        for each in holds
        if (each.step, each.round, each.ranks) == state
    ]
    return tuple(sorted(found, key=lambda run: (run.first_rank, run.count, not run.own, run.id)))


def ranks_in(runs: Iterable[Run]) -> set[int]:
    """Whose shards these are."""
    return {rank for run in runs for rank in run.ranks}


def _in_parts(
    world: World, state: SavedState, held: Mapping[str, tuple[Held, ...]], members: Mapping[str, Member]
) -> dict[str, tuple[Lies, ...]] | None:
    """Where each member finds the shards of this state; None where one is nowhere, or they cannot be read in parts.

    Who could not fetch before fetches nothing now. More than MOST_LIES places are told to nobody.
    """
    runs = runs_of(state, held, members)
    doors = {run.id: door for run in runs if (door := door_of(members[run.id])) is not None}
    mine: dict[str, set[int]] = {
        id_: ranks_in(run for run in runs if run.id == id_) for id_ in {run.id for run in runs}
    }
    wanted = set(range(state[2]))
    nowhere = wanted - ranks_in(run for run in runs if run.id in doors)
    if not world.seats or not all(run.parts for run in runs):
        return None
    for id_ in world.seats:
        have = mine.get(id_, set[int]())
        if not nowhere <= have or (BARRED in held.get(id_, ()) and not wanted <= have):
            return None
    places = _places(runs, doors)
    if len(places) > MOST_LIES:
        return None
    return {
        id_: tuple(each for each in (places[:: -1 if seat.group_rank % 2 else 1]) if each.door.id != id_)
        for id_, seat in world.seats.items()
    }


def _places(runs: Iterable[Run], doors: Mapping[str, Door]) -> list[Lies]:
    """Where they lie; of those who have the same ones a few."""
    found: dict[tuple[int, int], list[Lies]] = defaultdict(list)
    for run in runs:
        if run.id in doors:
            found[run.first_rank, run.count].append(Lies(run.first_rank, run.count, doors[run.id]))
    return [each for same in found.values() for each in same[:_MOST_OF_A_RUN]]


def door_of(member: Member | None) -> Door | None:
    """Where its keeper listens, None where it does not."""
    if member is None or not member.keeper:
        return None
    return Door(member.id, member.name, member.address, member.keeper)
