"""Whether an answer given before would be given again, told without planning again.

"Yes" is certain, "no" only means: plan again. The planner asks this for every waiting gang when a few hosts change,
so it works on those hosts and the switches over them alone. It mirrors the order of wishes of plan.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from topology.fabric import Fabric
from topology.model import Ask, Placement, Reason, Refusal, Rule

_Move = tuple[int, int, int]  # host id, multiples it held then, multiples it holds now


def still_stands(
    fabric: Fabric,
    room: npt.NDArray[np.int32],
    ask: Ask,
    answer: Placement | Refusal,
    changed: Sequence[tuple[int, int]],
) -> bool:
    """Return whether plan() would certainly give this answer again; of a refusal the same reason.

    room: as it is now. changed: (host id, its room when the answer was given) of every host that differs, or may,
    each host once. Fabric and ask are the answer's own.
    """
    units = ask.multiple
    moves = [(host, then // units, int(room[host]) // units) for host, then in changed if then != room[host]]
    moves = [move for move in moves if move[1] != move[2]]
    if not moves:
        return True
    if isinstance(answer, Refusal):
        return _refused_still(fabric, room, ask, answer, moves)
    return _placed_still(fabric, room, ask, answer, moves)


def _refused_still(fabric: Fabric, room: npt.NDArray[np.int32], ask: Ask, answer: Refusal, moves: list[_Move]) -> bool:
    if answer.reason in (Reason.NO_MAP, Reason.OFF_MAP) or ask.pods // ask.multiple * ask.multiple < ask.least:
        return True  # no room changes that
    if ask.widest_tier is not None:
        moves = [move for move in moves if move[0] < fabric.mapped_count]
    least = max(ask.least, 1)
    total = answer.room + ask.multiple * sum(now - then for _, then, now in moves)
    if answer.reason is Reason.NO_ROOM:
        return total < least
    if total < least or ask.widest_tier is None:
        return False
    widest = min(ask.widest_tier, fabric.tiers)
    return all(
        now < then or _sum_over(fabric, room, ask.multiple, widest, host) * ask.multiple < least
        for host, then, now in moves
    )


def _placed_still(fabric: Fabric, room: npt.NDArray[np.int32], ask: Ask, answer: Placement, moves: list[_Move]) -> bool:
    """Tell a whole, fresh gang in one host or leaf that has room to grow: the common case, and the only one judged."""
    units, tier = ask.multiple, answer.tier
    first = answer.slots[0][0]
    if tier > 1 or ask.anchors or ask.rule is not Rule.ALL_TIERS or first >= fabric.mapped_count:
        return False
    pods, most = ask.pods // units, -(-ask.most // units)
    if answer.placed != pods * units:
        return False
    moves = [move for move in moves if move[0] < fabric.mapped_count]  # others are not asked while the map serves
    top = fabric.tiers - (fabric.mapped_count < len(fabric.hosts))
    shared = [fabric.tier_between(host, first) for host, _, _ in moves]
    if min(shared, default=top) <= tier:
        return False  # the domain itself changed
    own = [_sum_over(fabric, room, units, above, first) for above in range(tier, top)]
    if own[0] < most:
        return False
    falls = any(now < then for _, then, now in moves)
    for (host, then, now), meet in zip(moves, shared, strict=True):
        if (now > then and meet < top) or (tier and now >= pods):
            return False  # the switches over the domain got looser, or one host may now hold the gang
        if most <= _sum_over(fabric, room, units, tier, host) <= own[0]:
            return False  # a domain as tight as ours, or tighter
        # Domains equal to ours were beaten by looser switches over them; these must be looser still.
        if falls and any(
            _sum_over(fabric, room, units, above, host) <= own[above - tier] for above in range(tier + 1, meet)
        ):
            return False
    return True


def _sum_over(fabric: Fabric, room: npt.NDArray[np.int32], units: int, tier: int, host: int) -> int:
    """Return the multiples that the switch of a tier over a host holds."""
    if tier == 0:
        return int(room[host]) // units
    start, end = fabric.span(tier, int(fabric.switch_of[tier, host]))
    held = room[start:end]
    return int(held.sum() if units == 1 else (held // units).sum())
