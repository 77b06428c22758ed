"""Handles a hang in the coordinator: asks all members for stack traces, has them merged, and applies the policy.

It handles one hang at a time and applies the policy once. A hang lasts from the first process that hangs until all
processes continue or the round ends. Members that do not answer within GATHER_S are omitted. If the coordinator is
lost, the request is lost too, but the files that each agent wrote stay. Source: DL-110, DL-111
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
MAX_BYTES = 256 * 1024  # of one rank, compressed
MAX_NAMES = 16  # workers named in a log line
MAX_WORLD_BYTES = 256 << 20  # of all ranks together: the coordinator holds them in memory for a moment
_TRAINING_PHASES = (Phase.TRAINING, Phase.DRAINING)


def record_hang(transition: Transition, id_: str, member_state: MemberState, message: Hung) -> None:
    """Record that a member's process hangs (message.why), or that it has resumed (no why).

    If no hang is being handled, the stacks of all members are requested. Messages of another round, or from a member
    that does not train, are ignored.
    """
    state, world = transition.state, transition.state.world
    if state.phase not in _TRAINING_PHASES or world is None or not member_state.busy == message.round == world.round:
        return
    hanging = _hang_of_round(transition, world.round)
    if message.why:
        transition.state = replace(
            state, hanging=replace(hanging, hanging=hanging.hanging | {(id_, message.local_rank)})
        )
        if hanging.stage is HangStage.QUIET:
            rank = world.assignments[id_].first_rank + message.local_rank
            _request_stacks(transition, world, f"{member_state.member.name}, rank {rank}: {message.why}")
    else:
        _set_hanging(transition, hanging.hanging - {(id_, message.local_rank)})


def _hang_of_round(transition: Transition, round_: int) -> HangState:
    """Return the state of the hang in this round; a fresh one if the last hang was in another round."""
    hanging = transition.state.hanging
    return hanging if hanging.round == round_ else HangState(hanging.act, round=round_, number=hanging.number)


def _set_hanging(transition: Transition, hanging_processes: frozenset[tuple[str, int]]) -> None:
    """Set the processes that hang now, as (member id, local rank). Log the end of a hang that was handled."""
    hanging = transition.state.hanging
    if not hanging_processes and hanging.stage is HangStage.HANDLED:
        transition.log_event("hang_over", Reason.PROCESS_HUNG, round=hanging.round)
        hanging = replace(hanging, stage=HangStage.QUIET)
    transition.state = replace(transition.state, hanging=replace(hanging, hanging=hanging_processes))


def _request_stacks(transition: Transition, world: World, first: str) -> None:
    """Ask all members that train for the stacks of their processes. first: the first hanging process, in words."""
    hanging = transition.state.hanging
    members = frozenset(
        id_
        for id_, member_state in transition.members.items()
        if member_state.busy == world.round and transition.state.is_in_world(id_)
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
    transition.send(sorted(members), ShowStacks(number, world.round, max_stack_bytes(world.ranks)))
    transition.wake(transition.state.hanging.until_s)


def max_stack_bytes(ranks: int) -> int:
    """Return the largest compressed size of one rank's stacks, so that all ranks fit into the coordinator's memory."""
    return min(MAX_BYTES, MAX_WORLD_BYTES // max(ranks, 1))


def handle_reconnect(transition: Transition, id_: str) -> None:
    """Handle a new connection of a member that trains: drop its reported hangs, which it reports again, and repeat an
    open request for stacks.
    """
    hanging, world = transition.state.hanging, transition.state.world
    if world is None or hanging.round != world.round:
        return
    _set_hanging(transition, frozenset(each for each in hanging.hanging if each[0] != id_))
    if hanging.stage is HangStage.ASKED and id_ in hanging.awaited_members:
        transition.send((id_,), ShowStacks(hanging.number, world.round, max_stack_bytes(world.ranks)))


def record_stacks(transition: Transition, id_: str, message: Stacks) -> None:
    """Record the stacks that a member has sent for one process, in place of earlier ones of that process.

    Ignore an answer to a request that is closed or not the current one. Ignore an answer of a member that is not
    awaited, an answer for a process that the member does not have, and an answer that is too large.
    """
    hanging, world = transition.state.hanging, transition.state.world
    if (
        hanging.stage is not HangStage.ASKED
        or message.number != hanging.number
        or id_ not in hanging.awaited_members
        or world is None
    ):
        return
    assignment = world.assignments[id_]
    if message.local_rank < assignment.processes and len(message.packed) <= max_stack_bytes(world.ranks):
        stacks = {**hanging.stacks, assignment.first_rank + message.local_rank: message}
        transition.state = replace(transition.state, hanging=replace(hanging, stacks=stacks))


def merge_when_complete(transition: Transition) -> None:
    """Add the MergeStacks effect once all stacks have arrived, GATHER_S has passed or the round has ended.

    If a newer world has formed, the stacks are dropped.
    """
    hanging, world = transition.state.hanging, transition.state.world
    if hanging.stage is not HangStage.ASKED or world is None:
        return
    still_trains = transition.state.phase in _TRAINING_PHASES and world.round == hanging.round
    missing = {rank for id_ in hanging.awaited_members for rank in _ranks_of(world, id_)} - hanging.stacks.keys()
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
    """Return, by rank, why its stack is missing; ranks with a stack are omitted.

    missing: ranks that did not answer. packed: ranks with a stack.
    """
    why = dict.fromkeys(range(world.ranks), "its processes have ended") | dict.fromkeys(missing, "it did not answer")
    why |= {rank: each.why for rank, each in hanging.stacks.items()}
    return {rank: reason for rank, reason in why.items() if rank not in packed}


def _ranks_of(world: World, id_: str) -> range:
    """Return the ranks of a member of the world."""
    assignment = world.assignments[id_]
    return range(assignment.first_rank, assignment.first_rank + assignment.processes)


def act_on_merged(transition: Transition, event: StacksMerged) -> None:
    """Apply the hang policy to the suspect ranks: report them, restart the round, or also exclude their members.

    Does nothing if the round has ended; if all processes continue by now, only logs the end of the hang. With a
    restart, the hang is charged like a process failure. No member is excluded if all members are suspect.
    """
    hanging, world = transition.state.hanging, transition.state.world
    if hanging.stage is not HangStage.MERGED or event.number != hanging.number:
        return
    transition.state = replace(transition.state, hanging=replace(hanging, stage=HangStage.HANDLED))
    if world is None or world.round != hanging.round or transition.state.phase not in _TRAINING_PHASES:
        return
    if not hanging.hanging:
        _set_hanging(transition, frozenset())
        return
    culprits = tuple(id_ for id_ in world.assignments if not set(_ranks_of(world, id_)).isdisjoint(event.suspects))
    detail = f"{hanging.first}; {event.verdict}"[:1_000]
    if hanging.act is HangAction.ASK:
        transition.log_event(
            "hang_asked", Reason.PROCESS_HUNG, round=world.round, workers=_member_names(world, culprits), detail=detail
        )
        return
    transition.stop(Reason.PROCESS_HUNG, detail, grace_s=0.0)  # none of them would react to SIGTERM
    transition.state = replace(transition.state, cause=replace(transition.state.cause, fault=detail))
    if hanging.act is HangAction.REPLACE and len(culprits) < len(world.assignments):
        _exclude_members(transition, world, culprits, event.verdict[:1_000])


def _exclude_members(transition: Transition, world: World, culprits: tuple[str, ...], detail: str) -> None:
    """Make these members leave as faulty nodes. The next world has the other members and replacements.

    culprits: member ids. detail: the verdict on their stacks.
    """
    for id_ in culprits:
        if (member_state := transition.members.get(id_)) is not None:
            transition.set_member(id_, replace(member_state, leave_s=transition.now_s))
            transition.log_event("node_left_out", Reason.NODE_FAULTY, member=member_state.member.name, detail=detail)
    transition.state = replace(
        transition.state, hanging=replace(transition.state.hanging, excluded=dict.fromkeys(culprits, detail))
    )


def _member_names(world: World, ids: Iterable[str]) -> list[str]:
    """Return the workers' names of these members by group rank, at most MAX_NAMES."""
    chosen = set(ids)
    return [member.name for member in world.members if member.id in chosen][:MAX_NAMES]
