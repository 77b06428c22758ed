"""Handles a hang in the coordinator: it asks all members for stack traces, has them merged, and acts by policy.

It handles one hang at a time and acts once. A hang lasts from the first process that hangs until all continue or the
round ends. Members that do not answer in time are left out.
If the coordinator is lost, its round ends too; the traces that each member wrote itself stay. Source: DL-110, DL-111
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from zlib import crc32

from turnout.launcher.health.hang_detector import HangAction
from turnout.launcher.health.messages import Hung, ShowStacks, Stacks
from turnout.launcher.health.stack_traces.hang_state import HangState, Merge, Merged, Stage
from turnout.launcher.model import Reason, World
from turnout.launcher.rendezvous.state import MemberState, Phase
from turnout.launcher.rendezvous.transition import Transition

GATHER_S = 45.0  # seconds for all stacks: 1 for calls, 30 for py-spy or 40 in two attempts, 3 for a process to answer
MOST_BYTES = 256 * 1024  # of one rank, compressed
MOST_NAMES = 16  # workers named in a log line
MOST_WORLD_BYTES = 256 << 20  # of all ranks together: the coordinator holds them in memory for a moment
_TRAINS = (Phase.TRAINING, Phase.DRAINING)


def hung(transition: Transition, id_: str, known: MemberState, said: Hung) -> None:
    """Record that a member's process hangs, or that it continues."""
    at, world = transition.at, transition.at.world
    if at.phase not in _TRAINS or world is None or not known.busy == said.round == world.round:
        return
    hanging = _of_round(transition, world.round)
    if said.why:
        transition.at = replace(at, hanging=replace(hanging, hung=hanging.hung | {(id_, said.local_rank)}))
        if hanging.stage is Stage.QUIET:
            rank = world.seats[id_].first_rank + said.local_rank
            _ask(transition, world, f"{known.member.name}, rank {rank}: {said.why}")
    else:
        _moves(transition, hanging.hung - {(id_, said.local_rank)})


def _of_round(transition: Transition, round_: int) -> HangState:
    """Return the hang state of this round, empty for a new round."""
    hanging = transition.at.hanging
    return hanging if hanging.round == round_ else HangState(hanging.act, round=round_, number=hanging.number)


def _moves(transition: Transition, left: frozenset[tuple[str, int]]) -> None:
    hanging = transition.at.hanging
    if not left and hanging.stage is Stage.TOLD:
        transition.told("hang_over", Reason.PROCESS_HUNG, round=hanging.round)
        hanging = replace(hanging, stage=Stage.QUIET)
    transition.at = replace(transition.at, hanging=replace(hanging, hung=left))


def _ask(transition: Transition, world: World, first: str) -> None:
    hanging = transition.at.hanging
    asked = frozenset(
        id_ for id_, known in transition.members.items() if known.busy == world.round and transition.inside(id_)
    )
    number = (
        hanging.number or crc32(transition.at.job.me.id.encode())
    ) + 1  # differs by coordinator, so that answers to another one are ignored
    transition.at = replace(
        transition.at,
        hanging=replace(
            hanging,
            stage=Stage.ASKED,
            number=number,
            first=first,
            asked=asked,
            stacks={},
            until_s=transition.now_s + GATHER_S,
        ),
    )
    transition.told("stacks_asked", Reason.PROCESS_HUNG, round=world.round, members=len(asked), detail=first)
    transition.tell(sorted(asked), ShowStacks(number, world.round, most_bytes(world.ranks)))
    transition.wake(transition.at.hanging.until_s)


def most_bytes(ranks: int) -> int:
    """Return the largest packed size of one rank's traces, so that those of all ranks fit into the coordinator's
    memory.
    """
    return min(MOST_BYTES, MOST_WORLD_BYTES // max(ranks, 1))


def came_back(transition: Transition, id_: str) -> None:
    """Handle a member's new connection: forget its reported hangs, which it repeats, and repeat the request
    for traces.
    """
    hanging, world = transition.at.hanging, transition.at.world
    if world is None or hanging.round != world.round:
        return
    _moves(transition, frozenset(each for each in hanging.hung if each[0] != id_))
    if hanging.stage is Stage.ASKED and id_ in hanging.asked:
        transition.tell((id_,), ShowStacks(hanging.number, world.round, most_bytes(world.ranks)))


def shown(transition: Transition, id_: str, said: Stacks) -> None:
    """Record the stack traces of one process."""
    hanging, world = transition.at.hanging, transition.at.world
    if hanging.stage is not Stage.ASKED or said.number != hanging.number or id_ not in hanging.asked or world is None:
        return
    seat = world.seats[id_]
    if said.local_rank < seat.processes and len(said.packed) <= most_bytes(world.ranks):
        stacks = {**hanging.stacks, seat.first_rank + said.local_rank: said}
        transition.at = replace(transition.at, hanging=replace(hanging, stacks=stacks))


def gathered(transition: Transition) -> None:
    """Merge the traces once all have come or GATHER_S has passed. After the round has ended, merge those that have
    come.

    Nothing is merged if a newer world has formed.
    """
    hanging, world = transition.at.hanging, transition.at.world
    if hanging.stage is not Stage.ASKED or world is None:
        return
    goes_on = transition.at.phase in _TRAINS and world.round == hanging.round
    missing = {rank for id_ in hanging.asked for rank in _ranks(world, id_)} - hanging.stacks.keys()
    if goes_on and missing and transition.now_s < hanging.until_s:
        transition.wake(hanging.until_s)
        return
    transition.at = replace(transition.at, hanging=replace(hanging, stage=Stage.MERGED, stacks={}))
    if world.round != hanging.round:
        return
    why = dict.fromkeys(range(world.ranks), "its processes have ended") | dict.fromkeys(missing, "it did not answer")
    for rank, each in hanging.stacks.items():
        why[rank] = each.why
    packed = {rank: each.packed for rank, each in hanging.stacks.items() if each.packed}
    transition.effects.append(
        Merge(hanging.number, world.ranks, packed, {rank: said for rank, said in why.items() if rank not in packed})
    )


def _ranks(world: World, id_: str) -> range:
    seat = world.seats[id_]
    return range(seat.first_rank, seat.first_rank + seat.processes)


def merged(transition: Transition, event: Merged) -> None:
    """Act on the ranks that the merged traces show as suspect, unless all processes continue or the round has ended."""
    hanging, world = transition.at.hanging, transition.at.world
    if hanging.stage is not Stage.MERGED or event.number != hanging.number:
        return
    transition.at = replace(transition.at, hanging=replace(hanging, stage=Stage.TOLD))
    if world is None or world.round != hanging.round or transition.at.phase not in _TRAINS:
        return
    if not hanging.hung:
        _moves(transition, frozenset())
        return
    culprits = tuple(id_ for id_ in world.seats if not set(_ranks(world, id_)).isdisjoint(event.apart))
    detail = f"{hanging.first}; {event.said}"[:1_000]
    if hanging.act is HangAction.ASK:
        transition.told(
            "hang_asked", Reason.PROCESS_HUNG, round=world.round, workers=_names(world, culprits), detail=detail
        )
        return
    transition.stop(Reason.PROCESS_HUNG, detail, grace_s=0.0)  # none of them would react to SIGTERM
    transition.at = replace(transition.at, cause=replace(transition.at.cause, fault=detail))
    if hanging.act is HangAction.REPLACE and len(culprits) < len(world.seats):
        _leave(transition, world, culprits, event.said[:1_000])


def _leave(transition: Transition, world: World, culprits: tuple[str, ...], said: str) -> None:
    """Remove these members from the job. The next world is formed of the others and of replacements."""
    for id_ in culprits:
        if (known := transition.members.get(id_)) is not None:
            transition.know(id_, replace(known, leave_s=transition.now_s))
            transition.told("node_left_out", Reason.NODE_FAULTY, member=known.member.name, detail=said)
    transition.at = replace(transition.at, hanging=replace(transition.at.hanging, leaves=dict.fromkeys(culprits, said)))


def _names(world: World, ids: Iterable[str]) -> list[str]:
    chosen = set(ids)
    return [member.name for member in world.members if member.id in chosen][:MOST_NAMES]
