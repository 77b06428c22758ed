"""Handles a hang in the coordinator: it asks all members for stack traces, has them merged, and acts by policy.

It handles one hang at a time and acts once. A hang lasts from the first process that hangs until all continue or the
round ends. Members that do not answer in time are left out.
If the coordinator is lost, its round ends too; the traces that each member wrote itself stay. Source: DL-110, DL-111
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from zlib import crc32

from turnout.launcher.coordinator_messages import Hung, ShowStacks, Stacks
from turnout.launcher.health.hang_detector import HangAction
from turnout.launcher.model import Reason, World
from turnout.launcher.rendezvous.state import (
    HangStage,
    HangState,
    MemberState,
    MergeStacks,
    Phase,
    StacksMerged,
    Transition,
)

GATHER_S = 45.0  # seconds for all stacks: 1 for calls, 30 for py-spy or 40 in two attempts, 3 for a process to answer
MOST_BYTES = 256 * 1024  # of one rank, compressed
MOST_NAMES = 16  # workers named in a log line
MOST_WORLD_BYTES = 256 << 20  # of all ranks together: the coordinator holds them in memory for a moment
_TRAINS = (Phase.TRAINING, Phase.DRAINING)


def record_hang(transition: Transition, id_: str, known: MemberState, message: Hung) -> None:
    """Record that a member's process hangs, or that it continues."""
    at, world = transition.state, transition.state.world
    if at.phase not in _TRAINS or world is None or not known.busy == message.round == world.round:
        return
    hanging = _hang_of_round(transition, world.round)
    if message.why:
        transition.state = replace(at, hanging=replace(hanging, hanging=hanging.hanging | {(id_, message.local_rank)}))
        if hanging.stage is HangStage.QUIET:
            rank = world.assignments[id_].first_rank + message.local_rank
            _request_stacks(transition, world, f"{known.member.name}, rank {rank}: {message.why}")
    else:
        _set_hanging(transition, hanging.hanging - {(id_, message.local_rank)})


def _hang_of_round(transition: Transition, round_: int) -> HangState:
    """Return the hang state of this round, empty for a new round."""
    hanging = transition.state.hanging
    return hanging if hanging.round == round_ else HangState(hanging.act, round=round_, number=hanging.number)


def _set_hanging(transition: Transition, left: frozenset[tuple[str, int]]) -> None:
    """Set which processes still hang. The end of a reported hang is logged once. left: (member id, local rank)."""
    hanging = transition.state.hanging
    if not left and hanging.stage is HangStage.TOLD:
        transition.log_event("hang_over", Reason.PROCESS_HUNG, round=hanging.round)
        hanging = replace(hanging, stage=HangStage.QUIET)
    transition.state = replace(transition.state, hanging=replace(hanging, hanging=left))


def _request_stacks(transition: Transition, world: World, first: str) -> None:
    """Ask all members that train for the stacks of their processes."""
    hanging = transition.state.hanging
    members = frozenset(
        id_ for id_, known in transition.members.items() if known.busy == world.round and transition.is_in_world(id_)
    )
    number = (
        hanging.number or crc32(transition.state.job.member.id.encode())
    ) + 1  # differs by coordinator, so that answers to another one are ignored
    transition.state = replace(
        transition.state,
        hanging=replace(
            hanging,
            stage=HangStage.ASKED,
            number=number,
            first=first,
            awaited_members=members,
            stacks={},
            until_s=transition.now_s + GATHER_S,
        ),
    )
    transition.log_event("stacks_asked", Reason.PROCESS_HUNG, round=world.round, members=len(members), detail=first)
    transition.send(sorted(members), ShowStacks(number, world.round, most_bytes(world.ranks)))
    transition.wake(transition.state.hanging.until_s)


def most_bytes(ranks: int) -> int:
    """Return the largest packed size of one rank's traces, so that those of all ranks fit into the coordinator's
    memory.
    """
    return min(MOST_BYTES, MOST_WORLD_BYTES // max(ranks, 1))


def handle_reconnect(transition: Transition, id_: str) -> None:
    """Handle a member's new connection: forget its reported hangs, which it repeats, and repeat the request
    for traces.
    """
    hanging, world = transition.state.hanging, transition.state.world
    if world is None or hanging.round != world.round:
        return
    _set_hanging(transition, frozenset(each for each in hanging.hanging if each[0] != id_))
    if hanging.stage is HangStage.ASKED and id_ in hanging.awaited_members:
        transition.send((id_,), ShowStacks(hanging.number, world.round, most_bytes(world.ranks)))


def record_stacks(transition: Transition, id_: str, message: Stacks) -> None:
    """Record the stack traces of one process."""
    hanging, world = transition.state.hanging, transition.state.world
    if (
        hanging.stage is not HangStage.ASKED
        or message.number != hanging.number
        or id_ not in hanging.awaited_members
        or world is None
    ):
        return
    assignment = world.assignments[id_]
    if message.local_rank < assignment.processes and len(message.packed) <= most_bytes(world.ranks):
        stacks = {**hanging.stacks, assignment.first_rank + message.local_rank: message}
        transition.state = replace(transition.state, hanging=replace(hanging, stacks=stacks))


def merge_when_complete(transition: Transition) -> None:
    """Merge the traces once all have come or GATHER_S has passed. After the round has ended, merge those that have
    come.

    Nothing is merged if a newer world has formed.
    """
    hanging, world = transition.state.hanging, transition.state.world
    if hanging.stage is not HangStage.ASKED or world is None:
        return
    still_trains = transition.state.phase in _TRAINS and world.round == hanging.round
    missing = {rank for id_ in hanging.awaited_members for rank in _ranks(world, id_)} - hanging.stacks.keys()
    if still_trains and missing and transition.now_s < hanging.until_s:
        transition.wake(hanging.until_s)
        return
    transition.state = replace(transition.state, hanging=replace(hanging, stage=HangStage.MERGED, stacks={}))
    if world.round != hanging.round:
        return
    packed = {rank: each.packed for rank, each in hanging.stacks.items() if each.packed}
    reasons = _missing_reasons(hanging, world, missing, packed)
    transition.effects.append(MergeStacks(hanging.number, world.ranks, packed, reasons))


def _missing_reasons(
    hanging: HangState, world: World, missing: Iterable[int], packed: Collection[int]
) -> dict[int, str]:
    """Explain why there is no trace of each rank of which there is none."""
    why = dict.fromkeys(range(world.ranks), "its processes have ended") | dict.fromkeys(missing, "it did not answer")
    why |= {rank: each.why for rank, each in hanging.stacks.items()}
    return {rank: reason for rank, reason in why.items() if rank not in packed}


def _ranks(world: World, id_: str) -> range:
    assignment = world.assignments[id_]
    return range(assignment.first_rank, assignment.first_rank + assignment.processes)


def act_on_merged(transition: Transition, event: StacksMerged) -> None:
    """Act on the ranks that the merged traces show as suspect, unless all processes continue or the round has ended."""
    hanging, world = transition.state.hanging, transition.state.world
    if hanging.stage is not HangStage.MERGED or event.number != hanging.number:
        return
    transition.state = replace(transition.state, hanging=replace(hanging, stage=HangStage.TOLD))
    if world is None or world.round != hanging.round or transition.state.phase not in _TRAINS:
        return
    if not hanging.hanging:
        _set_hanging(transition, frozenset())
        return
    culprits = tuple(id_ for id_ in world.assignments if not set(_ranks(world, id_)).isdisjoint(event.suspects))
    detail = f"{hanging.first}; {event.verdict}"[:1_000]
    if hanging.act is HangAction.ASK:
        transition.log_event(
            "hang_asked", Reason.PROCESS_HUNG, round=world.round, workers=_names(world, culprits), detail=detail
        )
        return
    transition.stop(Reason.PROCESS_HUNG, detail, grace_s=0.0)  # none of them would react to SIGTERM
    transition.state = replace(transition.state, cause=replace(transition.state.cause, fault=detail))
    if hanging.act is HangAction.REPLACE and len(culprits) < len(world.assignments):
        _exclude_members(transition, world, culprits, event.verdict[:1_000])


def _exclude_members(transition: Transition, world: World, culprits: tuple[str, ...], detail: str) -> None:
    """Remove these members from the job. The next world is formed of the others and of replacements."""
    for id_ in culprits:
        if (known := transition.members.get(id_)) is not None:
            transition.set_member(id_, replace(known, leave_s=transition.now_s))
            transition.log_event("node_left_out", Reason.NODE_FAULTY, member=known.member.name, detail=detail)
    transition.state = replace(
        transition.state, hanging=replace(transition.state.hanging, excluded=dict.fromkeys(culprits, detail))
    )


def _names(world: World, ids: Iterable[str]) -> list[str]:
    chosen = set(ids)
    return [member.name for member in world.members if member.id in chosen][:MOST_NAMES]
