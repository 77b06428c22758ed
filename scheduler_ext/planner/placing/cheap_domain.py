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
from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.placing.victims import GangLoss, MoveBudget, PreemptionCost, Victim, cheapest_hosts
from turnout.topology.distance import common_tier

_MAX_PRIORITIES = 8  # priorities that are tried one after the other


def cheap_hosts(
    view: ClusterView,
    member: Member,
    need: int,
    room: Rows,
    placed_hosts: Sequence[int],
    widest: int | None,
    wall_s: float,
) -> Rows | None:
    """Return how many pods each host may take, so that pods of a lower priority lose least; None for no opinion.

    room: pods that each host would hold if all of them left. placed_hosts: hosts of the gang's placed members; the
    domain contains them. widest: the widest tier allowed, None for any. wall_s: seconds since 1970; the run time of a
    pod counts from its creation. Pods of a higher priority are victims only if lower priorities do not suffice.
    """
    candidates = _candidate_domains(view, need, room, placed_hosts, widest)
    if len(candidates) < 1:
        return None
    victims = _victims_by_row(view, member, _requested_resources(view, member.shape)[0], wall_s)
    losses = {
        gang: _gang_loss(view, gang, wall_s)
        for gang in {victim.gang for row_victims in victims.values() for victim in row_victims}
    }
    priorities = sorted(
        {victim.priority for row_victims in victims.values() for victim in row_victims if not victim.terminating}
    )
    budget = MoveBudget()
    for max_priority in [*priorities[: _MAX_PRIORITIES - 1], *priorities[-1:]] or [0]:
        allowed_victims = {
            row: [victim for victim in row_victims if victim.terminating or victim.priority <= max_priority]
            for row, row_victims in victims.items()
        }
        best = _cheapest_domain(view, member, need, room, candidates, allowed_victims, losses, budget)
        if best is not None:
            return _limits_by_host(best, room)
    return None


def _cheapest_domain(
    view: ClusterView,
    member: Member,
    need: int,
    room: Rows,
    candidates: Sequence[tuple[int, int]],
    victims: Mapping[int, list[Victim]],
    losses: Mapping[GangKey, GangLoss],
    budget: MoveBudget,
) -> PreemptionCost | None:
    """Return the bill of the domain that costs least; None where these victims are not enough in any."""
    columns, wants = _requested_resources(view, member.shape)
    best: PreemptionCost | None = None
    best_pods, now = 0, view.snapshot.room(member.shape)
    min_loss = min(
        (victim.lost_gpu_s for row_victims in victims.values() for victim in row_victims if not victim.terminating),
        default=0,
    )
    for _, first, end in sorted((estimate_cost(need, room, victims, losses, *span), *span) for span in candidates):
        floor = min_loss if member.gpus and need > int(now[first:end].sum()) else 0  # a pod takes a GPU of somebody's
        if best is not None and (floor > best.lost_gpu_s or budget.left <= 0):
            continue
        rows = [row for row in range(first, end) if room[row] > 0]
        free = {row: [int(amount) for amount in view.snapshot.free_at(row)[columns]] for row in rows}
        cost = cheapest_hosts(
            need, wants, free, [victim for row in rows for victim in victims.get(row, ())], losses, budget
        )
        pods = int(room[first:end].sum())
        if cost is not None and (best is None or (cost.lost_gpu_s, pods) < (best.lost_gpu_s, best_pods)):
            best, best_pods = cost, pods
    return best


def _candidate_domains(
    view: ClusterView, need: int, room: Rows, placed_hosts: Sequence[int], widest: int | None
) -> list[tuple[int, int]]:
    fabric = view.fabric
    if any(host >= fabric.mapped_count for host in placed_hosts):
        return []
    top = fabric.tiers if widest is None else min(widest, fabric.tiers)
    for tier in range(max(1, common_tier(fabric, placed_hosts)), top + 1):
        fits = np.add.reduceat(room, fabric.starts[tier], dtype=np.int64) >= need
        if placed_hosts:
            only = int(fabric.switch_of[tier][placed_hosts[0]])
            fits[:only] = fits[only + 1 :] = False
        spans = [fabric.span(tier, switch) for switch in np.flatnonzero(fits).tolist()]
        spans = [span for span in spans if span[0] < fabric.mapped_count]
        if spans:
            return spans
    return []


def _requested_resources(view: ClusterView, shape: PodShape) -> tuple[list[int], list[int]]:
    column_of = {name: column for column, name in enumerate(view.snapshot.columns)}
    requested = [(column_of[name], amount) for name, amount in shape.requests if name in column_of]
    return [column for column, _ in requested], [amount for _, amount in requested]


def _victims_by_row(
    view: ClusterView, member: Member, columns: Sequence[int], wall_s: float
) -> dict[int, list[Victim]]:
    """Return the pods of a lower priority, by row."""
    found: dict[int, list[Victim]] = {}
    takes: dict[PodShape, tuple[int, ...]] = {}
    for uid, charge in view.snapshot.charges.items():
        row, pod = view.snapshot.row_of.get(charge.node), view.pods.get(uid)
        if row is None or pod is None or charge.priority >= member.priority:
            continue
        if charge.shape not in takes:
            takes[charge.shape] = tuple(view.snapshot.vector(charge.shape)[columns].tolist())
        gang = (
            pod.membership.key if pod.membership.key in view.gangs else GangKey(pod.namespace, uid, Dialect.ALONE.value)
        )
        lost = pod.gpus * _ran_s(pod, wall_s)
        victim = Victim(row, takes[charge.shape], lost, gang, pod.priority, pod.created, pod.terminating)
        found.setdefault(row, []).append(victim)
    return found


def _ran_s(pod: Member, wall_s: float) -> int:
    """Return how long a pod has been there, 1 second at least."""
    return max(1, int(wall_s - (unix_s(pod.created) or wall_s)))


def _gang_loss(view: ClusterView, key: GangKey, wall_s: float) -> GangLoss:
    """Return what a gang loses when it stops, and how many of its pods it can lose before.

    Pods that start one by one, without a min, can all be lost by themselves.
    """
    gang = view.gangs.get(key)
    if gang is None:
        return GangLoss(0, 1 << 30)
    placed_members = [member for member in gang.members.values() if view.node_of(member)]
    return GangLoss(
        sum(member.gpus * _ran_s(member, wall_s) for member in placed_members),
        max(0, len(placed_members) - gang.min_pods),
    )


def estimate_cost(
    need: int, room: Rows, victims: Mapping[int, list[Victim]], losses: Mapping[GangKey, GangLoss], first: int, end: int
) -> float:
    """Return about what the domain of rows [first, end) costs: its cheapest hosts, a gang's price shared by its pods.

    room: by row, what each host would hold if all victims left. Domains are searched in this order.
    """
    pods_of_gang = Counter[GangKey]()
    for row in range(first, end):
        for victim in victims.get(row, ()):
            pods_of_gang[victim.gang] += 1
    prices = []
    for row in np.flatnonzero(room[first:end]).tolist():
        row_victims = [victim for victim in victims.get(first + row, ()) if not victim.terminating]
        can_lose_one = (losses[victim.gang].above_min > 0 for victim in row_victims)
        shares = (
            victim.lost_gpu_s if single else losses[victim.gang].lost_gpu_s / pods_of_gang[victim.gang]
            for victim, single in zip(row_victims, can_lose_one, strict=True)
        )
        prices.append((sum(shares) / int(room[first + row]), int(room[first + row])))
    total, left = 0.0, need
    for price, pods in sorted(prices):
        total += price * min(pods, left)
        left -= min(pods, left)
    return total


def _limits_by_host(cost: PreemptionCost, room: Rows) -> Rows:
    limits = np.zeros_like(room)
    for host, pods in cost.hosts.items():
        limits[host] = pods
    return limits
