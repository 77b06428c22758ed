"""Find for each group of a gang the switch that takes it whole, where the largest first do not all fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from turnout.scheduler_ext.planner.placing.groups import PodBatch
from turnout.scheduler_ext.planner.placing.model import GangRequest, RoomOf
from turnout.topology.fabric import Fabric

MAX_SEARCH_STEPS = 20_000  # of the search, each a group tried under a switch


def assign_switches(
    sizes: Sequence[int],
    room: Sequence[int],
    fixed: Mapping[int, int],
    exclusive: Sequence[bool],
    steps: int = MAX_SEARCH_STEPS,
) -> list[int] | None:
    """Return a switch for each group so that all groups fit; None if the search finds no such assignment.

    sizes: pods of each group. room: pods that each switch takes. fixed: group -> the switch of its placed members.
    exclusive: True for a group that shares its switch with no other group. steps: how many times a group may be tried
    under a switch. Up to eight groups, every distinct assignment is tried.
    """
    left = list(room)
    order = sorted(range(len(sizes)), key=lambda at: (at not in fixed, -sizes[at], at))
    chosen: dict[int, int] = {}

    def fits(group: int, switch: int) -> bool:
        neighbours = [other for other, at in chosen.items() if at == switch]
        return left[switch] >= sizes[group] and not (
            neighbours and any(exclusive[index] for index in (group, *neighbours))
        )

    def search(at: int) -> bool:
        nonlocal steps
        if at == len(order):
            return True
        group, tried_states = order[at], set[tuple[int, bool]]()
        for switch in (
            [fixed[group]] if group in fixed else sorted(range(len(left)), key=lambda index: (left[index], index))
        ):
            state = (left[switch], switch in chosen.values())  # of switches that are alike one is tried
            if state in tried_states or not fits(group, switch):
                continue
            steps -= 1
            if steps < 0:
                return False
            tried_states.add(state)
            chosen[group] = switch
            left[switch] -= sizes[group]
            if search(at + 1):
                return True
            left[switch] += sizes[group]
            del chosen[group]
        return False

    return [chosen[group] for group in range(len(sizes))] if search(0) else None


def fit_batches(
    fabric: Fabric, request: GangRequest, groups: Sequence[PodBatch], room_of: RoomOf, span: tuple[int, int]
) -> list[PodBatch] | None:
    """Return the parts with a switch for each, so that all fit; None where no such choice was found.

    Parts of one shape and one tier alone are looked at: of others the room under a switch is no sum.
    """
    parts = [group.gang_group for group in groups]
    tiers = {None if part is None else part.tier for part in parts}
    if len({group.shape for group in groups}) > 1 or len(set(parts)) < len(parts) or len(tiers) > 1:
        return None
    if (tier := tiers.pop()) is None or not 0 < tier < fabric.tiers:
        return None
    row, at = fabric.switch_of[tier], {part: index for index, part in enumerate(parts)}
    room, first = room_of(groups[0].shape, ()), int(row[span[0]])
    for rule in {part.rule for part in parts if part is not None} & request.rows_outside_level.keys():
        room[request.rows_outside_level[rule]] = 0
    rooms = [int(room[slice(*fabric.span(tier, switch))].sum()) for switch in range(first, int(row[span[1] - 1]) + 1)]
    group_of = request.gang.groups_by_uid()
    fixed = {
        at[part]: int(row[host]) - first
        for member, host in request.placed_members
        if (part := group_of.get(member.uid)) in at
    }
    if any(not 0 <= switch < len(rooms) for switch in fixed.values()):
        return None
    chosen = assign_switches(
        [group.pods for group in groups], rooms, fixed, [bool(part and part.exclusive) for part in parts]
    )
    if chosen is None:
        return None
    return [
        replace(group, span=fabric.span(tier, first + switch)) for group, switch in zip(groups, chosen, strict=True)
    ]
