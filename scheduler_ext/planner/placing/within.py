"""Find for each group of a gang the switch that takes it whole, where the largest first do not all fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from turnout.scheduler_ext.planner.placing.groups import Group
from turnout.scheduler_ext.planner.placing.model import Request, RoomOf
from turnout.topology.fabric import Fabric

MOST_STEPS = 20_000  # of the search, each a group tried under a switch


def arranged(
    sizes: Sequence[int], room: Sequence[int], fixed: Mapping[int, int], apart: Sequence[bool], steps: int = MOST_STEPS
) -> list[int] | None:
    """Return a switch for each group, all of them in the room there is; None where none was found.

    sizes: pods of each group. room: pods that each switch takes. fixed: group -> the switch where members of it are.
    apart: True for a group that shares its switch with no other. Up to eight groups every way is tried that differs.
    steps: how many times a group may be tried under a switch.
    """
    left = list(room)
    order = sorted(range(len(sizes)), key=lambda at: (at not in fixed, -sizes[at], at))
    chosen: dict[int, int] = {}

    def fits(group: int, switch: int) -> bool:
        there = [other for other, at in chosen.items() if at == switch]
        return left[switch] >= sizes[group] and not (there and any(apart[one] for one in (group, *there)))

    def search(at: int) -> bool:
        nonlocal steps
        if at == len(order):
            return True
        group, tried = order[at], set[tuple[int, bool]]()
        for switch in [fixed[group]] if group in fixed else sorted(range(len(left)), key=lambda one: (left[one], one)):
            alike = (left[switch], switch in chosen.values())  # of switches that are alike one is tried
            if alike in tried or not fits(group, switch):
                continue
            steps -= 1
            if steps < 0:
                return False
            tried.add(alike)
            chosen[group] = switch
            left[switch] -= sizes[group]
            if search(at + 1):
                return True
            left[switch] += sizes[group]
            del chosen[group]
        return False

    return [chosen[group] for group in range(len(sizes))] if search(0) else None


def fitted(
    fabric: Fabric, request: Request, groups: Sequence[Group], room_of: RoomOf, span: tuple[int, int]
) -> list[Group] | None:
    """Return the parts with a switch for each, so that all fit; None where no such choice was found.

    Parts of one shape and one tier alone are looked at: of others the room under a switch is no sum.
    """
    parts = [group.part for group in groups]
    tiers = {None if part is None else part.tier for part in parts}
    if len({group.shape for group in groups}) > 1 or len(set(parts)) < len(parts) or len(tiers) > 1:
        return None
    if (tier := tiers.pop()) is None or not 0 < tier < fabric.tiers:
        return None
    row, at = fabric.switch_of[tier], {part: index for index, part in enumerate(parts)}
    room, first = room_of(groups[0].shape, ()), int(row[span[0]])
    for rule in {part.rule for part in parts if part is not None} & request.outside.keys():
        room[request.outside[rule]] = 0
    held = [int(room[slice(*fabric.span(tier, switch))].sum()) for switch in range(first, int(row[span[1] - 1]) + 1)]
    theirs = request.gang.parts()
    fixed = {
        at[part]: int(row[host]) - first for member, host in request.held if (part := theirs.get(member.uid)) in at
    }
    if any(not 0 <= switch < len(held) for switch in fixed.values()):
        return None
    chosen = arranged([group.pods for group in groups], held, fixed, [bool(part and part.apart) for part in parts])
    if chosen is None:
        return None
    return [
        replace(group, span=fabric.span(tier, first + switch)) for group, switch in zip(groups, chosen, strict=True)
    ]
