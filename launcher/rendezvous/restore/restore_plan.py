"""Chooses the step that a new world restores, from memory or storage, and who fetches what from whom.

No collective is needed. A shard belongs to the rank that saved it, wherever that rank runs now. What
torch.distributed.checkpoint saved can be read by a world of any size: each rank reads its parts of these shards.
All members read one stored step, named when every member has reported what it sees. This is also done if memory is of
an older round, since storage may have a newer step. What a lost worker's daemon commits later is for the next round.
Source: docs/design.md 5; docs/facts/launcher.md 5; DL-60, DL-108
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from turnout.launcher.coordinator_messages import (
    ALL,
    FETCH_DISABLED,
    MOST_LOCATIONS,
    DaemonEndpoint,
    HeldStep,
    ShardLocation,
    StoredStepReport,
)
from turnout.launcher.model import Member, World
from turnout.launcher.rendezvous.state import MemberState, Transition

_MOST_GIVERS = 4

_MOST_OF_A_RUN = 2  # givers named for each part of a shard

SavedState = tuple[int, int, int]  # step, round, ranks


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The step that all ranks restore from memory."""

    step: int = -1  # -1: none
    round: int = 0  # in which it was saved
    replicated: bool = False  # it is the same on all ranks
    # by member without its shards: who can give them, the nearest first
    fetch_from: Mapping[str, tuple[DaemonEndpoint, ...]] = field(default_factory=dict)
    saved_by: int = 0  # ranks that saved it, if each rank reads parts; else 0
    # by member: where these shards are
    locations: Mapping[str, tuple[ShardLocation, ...]] = field(default_factory=dict)

    def is_older(self, last_round: int) -> bool:
        """Return True if storage has to be read first, since others may have trained on and committed a newer step.

        last_round: the newest round granted to anybody, 0 if unknown. Source: hack.chaos, seed 6
        """
        return self.step >= 0 and (self.round < last_round or last_round == 0)


@dataclass(frozen=True, slots=True)
class ShardRun:
    """The shards of consecutive ranks of one state, in the memory of one member. own: that member saved them itself."""

    first_rank: int
    count: int
    id: str
    own: bool
    reshardable: bool

    @property
    def ranks(self) -> range:
        """Return the ranks whose shards these are."""
        return range(self.first_rank, self.first_rank + self.count)


def choose_restore(
    world: World, held_steps: Mapping[str, tuple[HeldStep, ...]], members: Mapping[str, Member] | None = None
) -> RestorePoint:
    """Choose the newest step of which a living member's memory has every part.

    held_steps: by id. members: all that are present, in this world or not. A member's own memory is preferred to that
    of others.
    Shards of one step from two rounds are different states, since a round may have trained the step again. A step of a
    world of another size counts if it can be read in parts.
    """
    members = members or {}
    own, givers = _holders(world, held_steps, members)
    for state in saved_states(held_steps):
        if (
            state[2] in (ALL, world.ranks)
            and (fetch := _plan_fetch(world, state, own, givers[state], held_steps)) is not None
        ):
            return RestorePoint(state[0], state[1], state[2] == ALL, fetch)
        if state[2] != ALL and (locations := _locate_parts(world, state, held_steps, members)) is not None:
            return RestorePoint(state[0], state[1], saved_by=state[2], locations=locations)
    return RestorePoint()


def saved_states(held_steps: Mapping[str, tuple[HeldStep, ...]]) -> list[SavedState]:
    """List the states of which anyone has a part, the newest first."""
    states = {(each.step, each.round, each.ranks) for holds in held_steps.values() for each in holds if each.step >= 0}
    return sorted(states, reverse=True)


def _holders(
    world: World, held_steps: Mapping[str, tuple[HeldStep, ...]], members: Mapping[str, Member]
) -> tuple[dict[str, set[SavedState]], dict[SavedState, dict[int, list[tuple[int, DaemonEndpoint]]]]]:
    """Find which states each member has itself, and who can give which runs of ranks of each state."""
    own: dict[str, set[SavedState]] = {}
    endpoints = endpoints_of(members.values())
    givers: dict[SavedState, dict[int, list[tuple[int, DaemonEndpoint]]]] = defaultdict(lambda: defaultdict(list))
    for id_, holds in sorted(held_steps.items()):
        assignment = world.assignments.get(id_)
        own_states = own.setdefault(id_, set())
        endpoint = endpoints.get(id_)
        for each in holds:
            if each.step < 0:
                continue
            state = (each.step, each.round, each.ranks)
            if assignment and not each.count and (each.ranks == ALL or each.first_rank == assignment.first_rank):
                own_states.add(state)
            if endpoint is not None and (each.count or each.ranks != ALL):
                givers[state][each.first_rank].append((each.count or members[id_].processes, endpoint))
    return own, givers


def _plan_fetch(
    world: World,
    state: SavedState,
    own: Mapping[str, set[SavedState]],
    givers: Mapping[int, list[tuple[int, DaemonEndpoint]]],
    held_steps: Mapping[str, tuple[HeldStep, ...]],
) -> dict[str, tuple[DaemonEndpoint, ...]] | None:
    """Choose who fetches this state from whom. None if a part of it is missing."""
    found: dict[str, tuple[DaemonEndpoint, ...]] = {}
    for id_, assignment in world.assignments.items():
        if state in own.get(id_, ()):
            continue
        first, count = (0, 1) if state[2] == ALL else (assignment.first_rank, assignment.processes)
        endpoints = tuple(endpoint for has, endpoint in givers.get(first, ()) if has == count and endpoint.id != id_)
        if not endpoints or FETCH_DISABLED in held_steps.get(id_, ()):
            return None
        turn = assignment.group_rank % len(endpoints)  # spread the requests over the givers
        found[id_] = (*endpoints[turn:], *endpoints[:turn])[:_MOST_GIVERS]
    return found if world.assignments else None


def runs_of(
    state: SavedState, held_steps: Mapping[str, tuple[HeldStep, ...]], members: Mapping[str, Member]
) -> tuple[ShardRun, ...]:
    """List who has which shards of a state, by rank, a member's own before those it keeps for others."""
    found = [
        ShardRun(each.first_rank, each.count or members[id_].processes, id_, not each.count, each.reshardable)
        for id_, holds in held_steps.items()
        if id_ in members
        for each in holds
        if (each.step, each.round, each.ranks) == state
    ]
    return tuple(sorted(found, key=lambda run: (run.first_rank, run.count, not run.own, run.id)))


def ranks_in(runs: Iterable[ShardRun]) -> set[int]:
    """Collect the ranks whose shards these are."""
    return {rank for run in runs for rank in run.ranks}


def _locate_parts(
    world: World, state: SavedState, held_steps: Mapping[str, tuple[HeldStep, ...]], members: Mapping[str, Member]
) -> dict[str, tuple[ShardLocation, ...]] | None:
    """Locate the shards of this state for each member. None if one is missing, or if they cannot be read in parts.

    A member that failed to fetch before fetches nothing now. None too if there are more than MOST_LOCATIONS places.
    """
    runs = runs_of(state, held_steps, members)
    endpoints = endpoints_of(members.values())
    if not world.assignments or not all(run.reshardable for run in runs):
        return None
    fetchable = ranks_in(run for run in runs if run.id in endpoints)
    for id_ in world.assignments:
        own = ranks_in(run for run in runs if run.id == id_)
        if not set(range(state[2])) <= (own if FETCH_DISABLED in held_steps.get(id_, ()) else own | fetchable):
            return None
    places = _locations(runs, endpoints)
    return None if len(places) > MOST_LOCATIONS else _by_member(world, places)


def _by_member(world: World, places: list[ShardLocation]) -> dict[str, tuple[ShardLocation, ...]]:
    """Choose for each member the order in which it tries the locations of the others."""
    return {
        id_: tuple(each for each in places[:: -1 if assignment.group_rank % 2 else 1] if each.endpoint.id != id_)
        for id_, assignment in world.assignments.items()
    }


def _locations(runs: Iterable[ShardRun], endpoints: Mapping[str, DaemonEndpoint]) -> list[ShardLocation]:
    """List the locations of the shards, at most _MOST_OF_A_RUN for each run."""
    found: dict[tuple[int, int], list[ShardLocation]] = defaultdict(list)
    for run in runs:
        if run.id in endpoints:
            found[run.first_rank, run.count].append(ShardLocation(run.first_rank, run.count, endpoints[run.id]))
    return [each for same in found.values() for each in same[:_MOST_OF_A_RUN]]


def endpoints_of(members: Iterable[Member]) -> dict[str, DaemonEndpoint]:
    """Return the endpoints of the members' daemons by the member's id. A member without a daemon has none."""
    return {
        each.id: DaemonEndpoint(each.id, each.name, each.address, each.daemon_port)
        for each in members
        if each.daemon_port
    }


def record_stored(transition: Transition, id_: str, known: MemberState, report: StoredStepReport) -> None:
    """Record the stored step that a member of the training world sees. After the last one, name the step for all."""
    world = transition.state.world
    if known.stored_step is not None or transition.state.checkpoints.stored_step is not None or world is None:
        return
    transition.set_member(id_, replace(known, stored_step=report))
    checkpoints = replace(transition.state.checkpoints, unreported=transition.state.checkpoints.unreported - 1)
    transition.state = replace(transition.state, checkpoints=checkpoints)
    if transition.state.checkpoints.unreported == 0:
        states = (transition.members.get(member.id) for member in world.members)
        named = choose_stored(report.round, (each.stored_step for each in states if each is not None))
        transition.state = replace(transition.state, checkpoints=replace(checkpoints, stored_step=named))
        transition.send(world.assignments, named)


def step_to_persist(transition: Transition) -> int:
    """Return the step to write to storage: the newest that every rank of the last world holds, or -1 for none.

    Ranks may differ by one save, since they were stopped at any moment.
    """
    if transition.state.world is None:
        return -1
    return choose_restore(
        transition.state.world, {id_: known.held_steps for id_, known in transition.members.items()}
    ).step


def choose_stored(round_: int, reports: Iterable[StoredStepReport | None]) -> StoredStepReport:
    """Name the newest stored step that any member sees, since it is committed even if others do not see it yet.

    reports: by group rank. The first known folder counts if they differ. If nobody knows a folder, each member finds
    out for itself.
    """
    known = [each for each in reports if each is not None and each.target]
    if not known:
        return StoredStepReport(round_)
    target = known[0].target
    return StoredStepReport(round_, target, max(each.step for each in known if each.target == target))
