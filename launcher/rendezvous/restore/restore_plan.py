"""Chooses the step that a new world restores, from memory or storage, and which member fetches which shard from whom.

No collective is needed. A shard belongs to the rank that saved it, independent of the worker of that rank. A step that
torch.distributed.checkpoint saved can be read by a world of any size: each rank reads its parts of the shards. All
members read the same step of storage, which is chosen when every member has reported what it sees. This is also done if
the step in memory is of an older round, since storage may have a newer one. A step that a lost worker's daemon commits
later counts only in the next round. Source: docs/design.md 5; docs/facts/launcher.md 5; DL-60, DL-108
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from turnout.launcher.coordinator_messages import (
    ALL,
    FETCH_DISABLED,
    MAX_LOCATIONS,
    DaemonEndpoint,
    HeldStep,
    ShardLocation,
    StoredStepReport,
)
from turnout.launcher.model import Member, World
from turnout.launcher.rendezvous.state import MemberState, Transition

_MAX_GIVERS = 4  # daemons from which a member may fetch its shards
_MAX_GIVERS_OF_RUN = 2  # daemons named for each run of ranks, if members read parts of shards

SavedState = tuple[int, int, int]  # step, round, ranks


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The step that all ranks restore from memory."""

    step: int = -1  # -1: none
    round: int = 0  # in which it was saved
    replicated: bool = False  # it is the same on all ranks
    # By id of a member that does not hold its shards: the daemons to try in this order.
    fetch_from: Mapping[str, tuple[DaemonEndpoint, ...]] = field(default_factory=dict)
    saved_by: int = 0  # ranks that saved it, if each rank reads parts of their shards; else 0
    # By member id: the daemons of other members that hold these shards, in the order to try.
    locations: Mapping[str, tuple[ShardLocation, ...]] = field(default_factory=dict)

    def is_older(self, last_round: int) -> bool:
        """Return True if storage may have a newer step: this one was saved before the last round.

        last_round: the newest round granted to anybody; 0 if unknown, then the answer is True for any step.
        Source: hack.chaos, seed 6
        """
        return self.step >= 0 and (self.round < last_round or last_round == 0)


@dataclass(frozen=True, slots=True)
class ShardRun:
    """The shards of consecutive ranks of one state, in the memory of one member."""

    first_rank: int
    count: int  # ranks
    id: str  # of the member
    own: bool  # its own processes saved them; False: it keeps them for another member
    reshardable: bool  # a world of any size can read them

    @property
    def ranks(self) -> range:
        """Return the ranks whose shards these are."""
        return range(self.first_rank, self.first_rank + self.count)


def choose_restore(
    world: World, held_steps: Mapping[str, tuple[HeldStep, ...]], members: Mapping[str, Member] | None = None
) -> RestorePoint:
    """Choose the newest step of which the memories of present members have every shard; step -1 if there is none.

    held_steps: by member id. members: all present members by id, in this world or not; None: only the shards count that
    a member has in its own memory, since nothing can be fetched. A member's own memory is preferred to that of others.
    The same step saved in two rounds counts as two states, since a round may have trained the step again. A step of a
    world of another size counts if it can be read in parts.
    """
    members = members or {}
    own, givers = _index_holders(world, held_steps, members)
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
    """List the states of which any member holds a shard, the newest step first. held_steps: by member id."""
    states = {(each.step, each.round, each.ranks) for holds in held_steps.values() for each in holds if each.step >= 0}
    return sorted(states, reverse=True)


def _index_holders(
    world: World, held_steps: Mapping[str, tuple[HeldStep, ...]], members: Mapping[str, Member]
) -> tuple[dict[str, set[SavedState]], dict[SavedState, dict[int, list[tuple[int, DaemonEndpoint]]]]]:
    """Return the states whose shards each member of the world holds itself, by id; and the daemons that can give
    shards, by state and first rank, as (number of ranks, endpoint).
    """
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
    """Return, by id of a member that lacks its shards of this state, the daemons to fetch from.

    None if some needed shard has no giver, or if a member that needs one has disabled fetching (FETCH_DISABLED). Also
    None for a world without members. own, givers: as returned by `_index_holders`, givers for this state.
    """
    fetch_from: dict[str, tuple[DaemonEndpoint, ...]] = {}
    for id_, assignment in world.assignments.items():
        if state in own.get(id_, ()):
            continue
        first, count = (0, 1) if state[2] == ALL else (assignment.first_rank, assignment.processes)
        endpoints = tuple(endpoint for has, endpoint in givers.get(first, ()) if has == count and endpoint.id != id_)
        if not endpoints or FETCH_DISABLED in held_steps.get(id_, ()):
            return None
        turn = assignment.group_rank % len(endpoints)  # spread the requests over the givers
        fetch_from[id_] = (*endpoints[turn:], *endpoints[:turn])[:_MAX_GIVERS]
    return fetch_from if world.assignments else None


def runs_of(
    state: SavedState, held_steps: Mapping[str, tuple[HeldStep, ...]], members: Mapping[str, Member]
) -> tuple[ShardRun, ...]:
    """List the runs of shards of a state that members hold, by first rank; own shards come before replicas."""
    runs = [
        ShardRun(each.first_rank, each.count or members[id_].processes, id_, not each.count, each.reshardable)
        for id_, holds in held_steps.items()
        if id_ in members
        for each in holds
        if (each.step, each.round, each.ranks) == state
    ]
    return tuple(sorted(runs, key=lambda run: (run.first_rank, run.count, not run.own, run.id)))


def ranks_in(runs: Iterable[ShardRun]) -> set[int]:
    """Return the ranks whose shards are in these runs."""
    return {rank for run in runs for rank in run.ranks}


def _locate_parts(
    world: World, state: SavedState, held_steps: Mapping[str, tuple[HeldStep, ...]], members: Mapping[str, Member]
) -> dict[str, tuple[ShardLocation, ...]] | None:
    """Return, by member id, the daemons of other members that hold shards of this state, in the order to try.

    None if a shard is missing, if the shards cannot be read in parts, or if there are more than MAX_LOCATIONS places. A
    member whose last fetch failed must hold all shards itself.
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
    return None if len(places) > MAX_LOCATIONS else _order_by_member(world, places)


def _order_by_member(world: World, places: list[ShardLocation]) -> dict[str, tuple[ShardLocation, ...]]:
    """Return, by member id, the locations of other members, reversed for every second member to spread the load."""
    return {
        id_: tuple(each for each in places[:: -1 if assignment.group_rank % 2 else 1] if each.endpoint.id != id_)
        for id_, assignment in world.assignments.items()
    }


def _locations(runs: Iterable[ShardRun], endpoints: Mapping[str, DaemonEndpoint]) -> list[ShardLocation]:
    """List the locations of the shards, at most _MAX_GIVERS_OF_RUN for each run of ranks. endpoints: by member id."""
    locations_of_run: dict[tuple[int, int], list[ShardLocation]] = defaultdict(list)
    for run in runs:
        if run.id in endpoints:
            locations_of_run[run.first_rank, run.count].append(
                ShardLocation(run.first_rank, run.count, endpoints[run.id])
            )
    return [each for same in locations_of_run.values() for each in same[:_MAX_GIVERS_OF_RUN]]


def endpoints_of(members: Iterable[Member]) -> dict[str, DaemonEndpoint]:
    """Return the daemons' endpoints by member id. A member without a daemon is omitted."""
    return {
        each.id: DaemonEndpoint(each.id, each.name, each.address, each.daemon_port)
        for each in members
        if each.daemon_port
    }


def record_stored(transition: Transition, id_: str, member_state: MemberState, report: StoredStepReport) -> None:
    """Record the step in storage that a member of the training world sees. After the last report, send all members the
    step to read.
    """
    world = transition.state.world
    if member_state.stored_step is not None or transition.state.checkpoints.stored_step is not None or world is None:
        return
    transition.set_member(id_, replace(member_state, stored_step=report))
    checkpoints = replace(transition.state.checkpoints, unreported=transition.state.checkpoints.unreported - 1)
    transition.state = replace(transition.state, checkpoints=checkpoints)
    if transition.state.checkpoints.unreported == 0:
        states = (transition.members.get(member.id) for member in world.members)
        named = choose_stored(report.round, (each.stored_step for each in states if each is not None))
        transition.state = replace(transition.state, checkpoints=replace(checkpoints, stored_step=named))
        transition.send(world.assignments, named)


def step_to_persist(transition: Transition) -> int:
    """Return the step to write to storage; -1 if there is none, or no last world.

    It is the newest step whose shards all members of the last world still have in their own memory. Copies in the
    memory of others do not count. The newest steps of two ranks may differ by one save, since the ranks were stopped at
    different moments.
    """
    if transition.state.world is None:
        return -1
    return choose_restore(
        transition.state.world, {id_: member_state.held_steps for id_, member_state in transition.members.items()}
    ).step


def choose_stored(round_: int, reports: Iterable[StoredStepReport | None]) -> StoredStepReport:
    """Return the step in storage that all members have to read: the newest that any member sees.

    A step that one member sees is committed, even if other members do not see it yet. reports: by group rank, None for
    a member that was lost. If their folders differ, the first one counts. If nobody knows a folder, the result names
    no step, and each member decides for itself.
    """
    reports_with_folder = [each for each in reports if each is not None and each.target]
    if not reports_with_folder:
        return StoredStepReport(round_)
    target = reports_with_folder[0].target
    return StoredStepReport(round_, target, max(each.step for each in reports_with_folder if each.target == target))
