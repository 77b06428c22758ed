"""Choose the domain in which a gang preempts: of those of the lowest tier that can hold it, the one that costs least.

What a domain costs is settled in victims.py, host by host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import unix_s
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.placing.victims import Bill, Moves, Victim, Worth, cheapest
from turnout.topology.distance import common_tier

_MOST_CLASSES = 8  # priorities that are tried one after the other


def cheap_hosts(
    view: GangView, member: Member, need: int, room: Rows, held: Sequence[int], widest: int | None, wall_s: float
) -> Rows | None:
    """Return how many pods each host may take, so that pods of a lower priority lose least; None for no opinion.

    room: what each host would hold if all of them left. held: hosts of the gang's members, whose domain is kept.
    widest: the widest tier allowed, None for any. wall_s: the time, in seconds since 1970; a pod's time runs from its
    creation. The higher priorities lose nobody as long as the lower ones suffice.
    """
    candidates = _candidates(view, need, room, held, widest)
    if len(candidates) < 1:
        return None
    victims = _victims(view, member, _resources(view, member.shape)[0], wall_s)
    worth = {gang: _worth(view, gang, wall_s) for gang in {each.gang for here in victims.values() for each in here}}
    priorities = sorted({each.priority for here in victims.values() for each in here if not each.sunk})
    moves = Moves()
    for most in [*priorities[: _MOST_CLASSES - 1], *priorities[-1:]] or [0]:
        able = {row: [each for each in here if each.sunk or each.priority <= most] for row, here in victims.items()}
        best = _cheapest(view, member, need, room, candidates, able, worth, moves)
        if best is not None:
            return _limits(best, room)
    return None


def _cheapest(
    view: GangView,
    member: Member,
    need: int,
    room: Rows,
    candidates: Sequence[tuple[int, int]],
    victims: Mapping[int, list[Victim]],
    worth: Mapping[GangKey, Worth],
    moves: Moves,
) -> Bill | None:
    """Return the bill of the domain that costs least; None where these victims are not enough in any."""
    columns, wants = _resources(view, member.shape)
    best: Bill | None = None
    tightest, now = 0, view.snapshot.room(member.shape)
    least = min((each.lost_gpu_s for here in victims.values() for each in here if not each.sunk), default=0)
    for _, first, end in sorted((estimate(need, room, victims, worth, *span), *span) for span in candidates):
        floor = least if member.gpus and need > int(now[first:end].sum()) else 0  # a pod takes a GPU of somebody's
        if best is not None and (floor > best.lost_gpu_s or moves.left <= 0):
            continue
        rows = [row for row in range(first, end) if room[row] > 0]
        free = {row: [int(amount) for amount in view.snapshot.free_at(row)[columns]] for row in rows}
        bill = cheapest(need, wants, free, [each for row in rows for each in victims.get(row, ())], worth, moves)
        tight = int(room[first:end].sum())
        if bill is not None and (best is None or (bill.lost_gpu_s, tight) < (best.lost_gpu_s, tightest)):
            best, tightest = bill, tight
    return best


def _candidates(
    view: GangView, need: int, room: Rows, held: Sequence[int], widest: int | None
) -> list[tuple[int, int]]:
    fabric = view.fabric
    if any(host >= fabric.mapped_count for host in held):
        return []
    top = fabric.tiers if widest is None else min(widest, fabric.tiers)
    for tier in range(max(1, common_tier(fabric, held)), top + 1):
        fits = np.add.reduceat(room, fabric.starts[tier], dtype=np.int64) >= need
        if held:
            only = int(fabric.switch_of[tier][held[0]])
            fits[:only] = fits[only + 1 :] = False
        spans = [fabric.span(tier, switch) for switch in np.flatnonzero(fits).tolist()]
        spans = [span for span in spans if span[0] < fabric.mapped_count]
        if spans:
            return spans
    return []


def _resources(view: GangView, shape: PodShape) -> tuple[list[int], list[int]]:
    at = {name: column for column, name in enumerate(view.snapshot.columns)}
    asked = [(at[name], amount) for name, amount in shape.requests if name in at]
    return [column for column, _ in asked], [amount for _, amount in asked]


def _victims(view: GangView, member: Member, columns: Sequence[int], wall_s: float) -> dict[int, list[Victim]]:
    """Return the pods of a lower priority, by row."""
    found: dict[int, list[Victim]] = {}
    takes: dict[PodShape, tuple[int, ...]] = {}
    for uid, charge in view.snapshot.charges.items():
        row, pod = view.snapshot.row_of.get(charge.node), view.pods.get(uid)
        if row is None or pod is None or charge.priority >= member.priority:
            continue
        if charge.shape not in takes:
            takes[charge.shape] = tuple(view.snapshot.vector(charge.shape)[columns].tolist())
        gang = pod.belongs.key if pod.belongs.key in view.gangs else GangKey(pod.namespace, uid, Dialect.ALONE.value)
        lost = pod.gpus * _ran_s(pod, wall_s)
        victim = Victim(row, takes[charge.shape], lost, gang, pod.priority, pod.created, pod.leaving)
        found.setdefault(row, []).append(victim)
    return found


def _ran_s(pod: Member, wall_s: float) -> int:
    """Return how long a pod has been there, 1 second at least."""
    return max(1, int(wall_s - (unix_s(pod.created) or wall_s)))


def _worth(view: GangView, key: GangKey, wall_s: float) -> Worth:
    """Return what a gang loses when it stops, and how many of its pods it can lose before.

    Pods that start one by one, without a min, can all be lost by themselves.
    """
    gang = view.gangs.get(key)
    if gang is None:
        return Worth(0, 1 << 30)
    placed = [member for member in gang.members.values() if view.place_of(member)]
    return Worth(sum(member.gpus * _ran_s(member, wall_s) for member in placed), max(0, len(placed) - gang.least))


def estimate(
    need: int, room: Rows, victims: Mapping[int, list[Victim]], worth: Mapping[GangKey, Worth], first: int, end: int
) -> float:
    """Return about what the domain of rows [first, end) costs: its cheapest hosts, a gang's price shared by its pods.

    room: by row, what each host would hold if all victims left. Domains are searched in this order.
    """
    there = Counter[GangKey]()
    for row in range(first, end):
        for each in victims.get(row, ()):
            there[each.gang] += 1
    prices = []
    for row in np.flatnonzero(room[first:end]).tolist():
        here = [each for each in victims.get(first + row, ()) if not each.sunk]
        alone = (worth[each.gang].above_min > 0 for each in here)
        shares = (
            each.lost_gpu_s if one else worth[each.gang].lost_gpu_s / there[each.gang]
            for each, one in zip(here, alone, strict=True)
        )
        prices.append((sum(shares) / int(room[first + row]), int(room[first + row])))
    total, left = 0.0, need
    for price, pods in sorted(prices):
        total += price * min(pods, left)
        left -= min(pods, left)
    return total


def _limits(bill: Bill, room: Rows) -> Rows:
    limits = np.zeros_like(room)
    for host, pods in bill.hosts.items():
        limits[host] = pods
    return limits
