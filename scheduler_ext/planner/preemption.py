"""Choose the domain in which a gang preempts, at the least loss for other gangs. `victims.py` chooses who leaves there.

The loss counts GPUs times their run time. A gang that loses more members than it has above its min stops, so its loss
is the loss of all its pods, wherever they run. A gang that loses fewer members loses only those. Pods that are being
deleted cost nothing. Of equal losses the lowest priority goes first, then the newest pods. For the `preempt` verb the
scheduler chooses the victims on each host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.planner.victims import run_time_s
from turnout.topology.fabric import common_tier

MAX_MOVES = 1_500  # for one question, about 50 microseconds each
_EXACT_ITEMS = 24  # gangs and members above a min of which every combination is tried

Mask = NDArray[np.bool_]  # one mark a victim


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that may have to leave."""

    host: int  # id of its host
    amounts: tuple[int, ...]  # of the resources that the new pods request
    lost_gpu_s: int  # its GPUs times its run time in seconds
    gang: GangKey
    priority: int = 0
    created: str = ""  # RFC 3339
    terminating: bool = False  # it is being deleted


@dataclass(frozen=True, slots=True)
class GangLoss:
    """The loss of a gang that stops, and the number of pods that it can lose before it stops."""

    lost_gpu_s: int  # GPU seconds that the gang has run
    above_min: int  # pods, >= 0


@dataclass(frozen=True, slots=True)
class PreemptionCost:
    """The loss of other gangs, and the pods that each host then holds."""

    lost_gpu_s: int  # GPU seconds
    hosts: Mapping[int, int] = field(default_factory=dict)  # host id -> pods; hosts without room are absent


@dataclass(slots=True)
class MoveBudget:
    """The number of moves that may still be tried."""

    left: int = MAX_MOVES


def cheapest_hosts(
    need: int,
    wants: Sequence[int],
    free: Mapping[int, Sequence[int]],
    victims: Sequence[Victim],
    losses: Mapping[GangKey, GangLoss],
    moves: MoveBudget | None = None,
) -> PreemptionCost | None:
    """Return the hosts of one domain that hold `need` pods at the least loss found; None if no victims are enough.

    wants: the request of one pod, each amount above 0. free: host -> free amounts of the same resources. victims: pods
    that may leave. losses: of each gang of a victim. moves: counted down; None for MAX_MOVES. For few gangs every
    combination is tried while moves are left, so that the loss is the least. For many gangs, or without moves, the loss
    is near the least. The hosts of the result may hold more than `need` pods together; hosts without room are absent.
    """
    tables = _VictimTables(wants, free, victims, losses)
    everybody = np.ones(len(tables.gang), np.bool_)
    if tables.count_pods(everybody) < need:
        return None
    search = _VictimSearch(tables, need, moves or MoveBudget())
    best = search.search_all(search.improve(everybody))
    fits = tables.pods_by_host(best).tolist()
    return PreemptionCost(tables.price(best), {host: pods for host, pods in zip(free, fits, strict=True) if pods})


class _VictimTables:
    """Victims and gangs as rows of tables, the first to leave of equals first. A set of victims is a mask of them."""

    def __init__(
        self,
        wants: Sequence[int],
        free: Mapping[int, Sequence[int]],
        victims: Sequence[Victim],
        losses: Mapping[GangKey, GangLoss],
    ) -> None:
        """Prepare the tables. The arguments are those of `cheapest_hosts`."""
        victims = sorted(victims, key=lambda victim: victim.gang)
        victims = sorted(
            sorted(victims, key=lambda victim: victim.created, reverse=True), key=lambda victim: victim.priority
        )
        hosts = {host: at for at, host in enumerate(free)}
        gangs = {gang: at for at, gang in enumerate(dict.fromkeys(victim.gang for victim in victims))}
        self.wants = np.array(wants, np.int64)
        self.free = np.array([list(free[host]) for host in free], np.int64).reshape(len(free), len(wants))
        self.host = np.array([hosts[victim.host] for victim in victims], np.intp)
        self.amounts = np.array([victim.amounts for victim in victims], np.int64).reshape(len(victims), len(wants))
        self.gang = np.array([gangs[victim.gang] for victim in victims], np.intp)
        self.terminating = np.array([victim.terminating for victim in victims], np.bool_)
        self.gpus = np.array([0 if victim.terminating else victim.lost_gpu_s for victim in victims], np.int64)
        self.above_min = np.array([losses[gang].above_min for gang in gangs], np.int64)
        stopped = np.bincount(self.gang[self.terminating], minlength=len(gangs)) > self.above_min
        self.gang_loss = np.where(stopped, 0, np.array([losses[gang].lost_gpu_s for gang in gangs], np.int64))

    def pods_by_host(self, removed: Mask) -> NDArray[np.int64]:
        """Return how many pods each row of `free` holds once these victims are removed, in the order of the hosts."""
        have = self.free.copy()
        np.add.at(have, self.host[removed], self.amounts[removed])
        found: NDArray[np.int64] = (have // self.wants).min(axis=1).clip(0)
        return found

    def count_pods(self, removed: Mask) -> int:
        """Return how many pods all hosts hold once these victims are removed."""
        return int(self.pods_by_host(removed).sum())

    def price(self, removed: Mask) -> int:
        """Return the loss of other gangs if these victims are removed, in GPU seconds."""
        return int(np.where(self.lost_pods(removed) > self.above_min, self.gang_loss, self.lost_gpu_s(removed)).sum())

    def add_stopped_gangs(self, removed: Mask) -> Mask:
        """Return the set of victims with all pods of the gangs that it stops."""
        closed: Mask = removed | (self.lost_pods(removed) > self.above_min)[self.gang]
        return closed

    def lost_pods(self, removed: Mask) -> NDArray[np.intp]:
        """Return how many pods each gang loses if these victims are removed, by row of the gang."""
        return np.bincount(self.gang[removed], minlength=len(self.above_min))

    def lost_gpu_s(self, removed: Mask) -> NDArray[np.int64]:
        """Return the loss of the removed victims themselves, in GPU seconds by row of their gang."""
        spent = np.zeros(len(self.above_min), np.int64)
        np.add.at(spent, self.gang[removed], self.gpus[removed])
        return spent

    def moves_from(self, removed: Mask) -> Iterator[Mask]:
        """Yield the moves from a set: all further pods of each gang, and for each host the pods that make room for one
        more pod.

        removed: the set; a move contains none of its victims.
        """
        for gang in np.unique(self.gang[~removed]).tolist():
            yield (self.gang == gang) & ~removed
        lost, spent = self.lost_pods(removed), self.lost_gpu_s(removed)
        stops = lost + 1 > self.above_min
        single_loss = np.where(stops[self.gang], (self.gang_loss - spent)[self.gang], self.gpus)
        for host in range(len(self.free)):
            move = self._move_for_one_pod(host, removed, single_loss)
            if move is not None:
                yield move

    def _move_for_one_pod(self, host: int, removed: Mask, single_loss: NDArray[np.int64]) -> Mask | None:
        """Return victims on one host that make room for one more pod; None if all pods of the host are not enough.

        The cheapest are taken first, and those that turn out to be unnecessary are spared, so another choice may be
        cheaper. removed: pods that leave already. single_loss: by victim, the loss if it leaves, in GPU seconds.
        """
        candidates = np.flatnonzero((self.host == host) & ~removed)
        if not len(candidates):
            return None
        have = self.free[host] + self.amounts[(self.host == host) & removed].sum(axis=0)
        needed = (max(0, int((have // self.wants).min())) + 1) * self.wants
        chosen: list[int] = []
        for at in candidates[np.argsort(single_loss[candidates], kind="stable")].tolist():
            chosen.append(at)
            have = have + self.amounts[at]
            if (have >= needed).all():
                break
        else:
            return None
        for at in reversed(chosen[:-1]):
            if (have - self.amounts[at] >= needed).all():
                chosen.remove(at)
                have = have - self.amounts[at]
        move = np.zeros(len(removed), np.bool_)
        move[chosen] = True
        return move


class _VictimSearch:
    """The search for a set of victims that makes enough room at a small loss."""

    def __init__(self, victims: _VictimTables, need: int, moves: MoveBudget) -> None:
        """Start without a set. need: the pods that must fit, >= 1. moves: counted down."""
        self.victims, self.need, self.moves = victims, need, moves

    def improve(self, all_pods: Mask) -> Mask:
        """Find a set of victims that is enough, then leave out each of its gangs in turn while that makes the set
        cheaper.

        all_pods: the set of all victims, which is the start if the search finds nothing.
        """
        victims = self.victims
        start = victims.add_stopped_gangs(victims.terminating.copy())
        found = self._reach_need(start, -1)
        best = self._drop_unneeded(all_pods if found is None else found)
        better = True
        while better and self.moves.left > 0:
            better = False
            for gang in np.unique(victims.gang[best & ~victims.terminating]).tolist():
                found = self._reach_need(best & ((victims.gang != gang) | victims.terminating), gang)
                if found is not None and victims.price(found := self._drop_unneeded(found)) < victims.price(best):
                    best, better = found, True
        return best

    def _reach_need(self, removed: Mask, spare: int) -> Mask | None:
        """Add the best move to a set until enough pods fit, and return the cheapest set that is enough; None if none is
        found.

        removed: the set to start with. spare: row of a gang that loses no further pod; -1 for none.
        """
        victims = self.victims
        best: Mask | None = None
        while (fit := victims.count_pods(removed)) < self.need:
            found = self._best_move(removed, fit, spare)
            if found is None:
                return best
            removed, last = found
            if last is not None and (best is None or victims.price(last) < victims.price(best)):
                best = last
        return removed if best is None or victims.price(removed) < victims.price(best) else best

    def _best_move(self, removed: Mask, fit: int, spare: int) -> tuple[Mask, Mask | None] | None:
        """Return (set after the move with the least loss per pod, set after the cheapest move that is enough or None).

        None if no move makes room, or no moves are left. fit: pods that fit now. spare: row of a gang that loses no
        further pod; -1 for none. removed: the set.
        """
        victims = self.victims
        before, best, last = victims.price(removed), None, None
        best_key, last_price = (0.0, 0), 0
        for move in victims.moves_from(removed):
            if self.moves.left <= 0:
                return None
            self.moves.left -= 1
            after = victims.add_stopped_gangs(removed | move)
            gain = victims.count_pods(after) - fit
            if gain <= 0 or (spare >= 0 and (after & ~removed & (victims.gang == spare)).any()):
                continue
            price = victims.price(after)
            key = ((price - before) / min(gain, self.need - fit), -gain)
            if best is None or key < best_key:
                best, best_key = after, key
            if fit + gain >= self.need and (last is None or price < last_price):
                last, last_price = after, price
        return None if best is None else (best, last)

    def _drop_unneeded(self, removed: Mask) -> Mask:
        """Return a set of victims without those that are not needed: first whole gangs are dropped, the most expensive
        first, then single pods of gangs that keep their min.

        removed: the set; it may be changed in place.
        """
        victims = self.victims
        # Of equal losses the last to leave comes first.
        gangs = np.unique(victims.gang[removed & ~victims.terminating])[::-1]
        for gang in gangs[np.argsort(-victims.gang_loss[gangs], kind="stable")].tolist():
            less = removed & ((victims.gang != gang) | victims.terminating)
            if victims.count_pods(less) >= self.need:
                removed = less
        single = np.flatnonzero(
            removed & ~victims.terminating & (victims.lost_pods(removed) <= victims.above_min)[victims.gang]
        )
        for at in reversed(single.tolist()):
            removed[at] = False
            removed[at] = victims.count_pods(removed) < self.need
        return removed

    def search_all(self, best: Mask) -> Mask:
        """Return the cheapest combination of gangs and of members above a min that is enough; `best` if none is
        cheaper.

        Returns `best` also if there are more than _EXACT_ITEMS gangs and members to combine. Once the moves are spent,
        the cheapest combination found until then is returned.
        """
        victims = self.victims
        items: list[tuple[int, int, Mask]] = []  # loss, gang, pods that leave
        pods = np.arange(len(victims.gang))
        for gang in range(len(victims.above_min)):
            items.append((int(victims.gang_loss[gang]), gang, victims.gang == gang))
            single = pods[victims.gang == gang].tolist() if victims.above_min[gang] > 0 else []
            items += [(int(victims.gpus[at]), gang, pods == at) for at in single]
        if len(items) > _EXACT_ITEMS:
            return best
        items.sort(key=lambda item: (-item[0], item[1]))
        found, bound = best, victims.price(best)
        left = self.moves.left
        stack = [(0, victims.add_stopped_gangs(victims.terminating.copy()))]
        while stack and left > 0:
            at, removed = stack.pop()
            left -= 1
            price = victims.price(removed)
            if price >= bound:
                continue
            if victims.count_pods(removed) >= self.need:
                found, bound = removed, price
                continue
            if victims.count_pods(np.logical_or.reduce([removed, *(each for _, _, each in items[at:])])) < self.need:
                continue
            stack.append((at + 1, removed))
            stack.append((at + 1, victims.add_stopped_gangs(removed | items[at][2])))
        return found


_MAX_PRIORITIES = 8  # priorities that are tried one after the other


def cheap_hosts(
    view: ClusterView,
    member: GangMember,
    need: int,
    room: Rows,
    placed_hosts: Sequence[int],
    widest: int | None,
    wall_s: float,
    multiple: int = 1,
) -> Rows | None:
    """Return how many pods each row may take, so that pods of a lower priority lose least; None if no domain is enough.

    need: pods like `member` to place. room: pods that each row would hold if all of the lower priority left.
    placed_hosts: hosts of the gang's placed members; the domain contains them. widest: the widest tier allowed, None
    for any. wall_s: seconds since 1970; a pod runs since its creation. multiple: pods on one host come in multiples of
    this. Of pods below the gang's priority, those of the lowest priority leave first.
    """
    need, room = -(-need // multiple), room // multiple
    candidates = _candidate_domains(view, need, room, placed_hosts, widest)
    if not candidates:
        return None
    victims = _victims_by_row(view, member, _requested_resources(view, member.shape)[0], wall_s)
    every = [victim for row_victims in victims.values() for victim in row_victims]
    losses = {gang: gang_loss(view, gang, wall_s) for gang in {victim.gang for victim in every}}
    priorities = sorted({victim.priority for victim in every if not victim.terminating})
    budget = MoveBudget()
    for max_priority in [*priorities[: _MAX_PRIORITIES - 1], *priorities[-1:]] or [0]:
        allowed = _victims_up_to_priority(victims, max_priority)
        best = _cheapest_domain(view, member, need, room, candidates, allowed, losses, budget, multiple)
        if best is not None:
            limits = np.zeros_like(room)
            limits[list(best.hosts)] = list(best.hosts.values())
            return limits * multiple
    return None


def _victims_up_to_priority(victims: Mapping[int, Sequence[Victim]], max_priority: int) -> dict[int, list[Victim]]:
    """Return row -> victims up to a priority. Pods that are being deleted are included, whatever their priority."""
    return {
        row: [victim for victim in row_victims if victim.terminating or victim.priority <= max_priority]
        for row, row_victims in victims.items()
    }


def _cheapest_domain(
    view: ClusterView,
    member: GangMember,
    need: int,
    room: Rows,
    candidates: Sequence[tuple[int, int]],
    victims: Mapping[int, list[Victim]],
    losses: Mapping[GangKey, GangLoss],
    budget: MoveBudget,
    multiple: int,
) -> PreemptionCost | None:
    """Return the cost of the cheapest of the candidate domains; None if these victims are enough in no domain.

    need, room: in multiples of `multiple` pods. candidates: spans of host ids [first, end). victims: by row. losses: of
    each gang of a victim. budget: is counted down; once it is spent, the best domain found so far counts.
    """
    columns, wants = _requested_resources(view, member.shape, multiple)
    best, best_pods, now = None, 0, view.snapshot.room(member.shape) // multiple
    living = [victim for row_victims in victims.values() for victim in row_victims if not victim.terminating]
    min_loss = min((victim.lost_gpu_s for victim in living), default=0)
    ordered = sorted((estimate_cost(need, room, victims, losses, *span), *span) for span in candidates)
    for _, first, end in ordered:
        # A pod with a GPU takes the GPU of a victim where the free room does not suffice.
        floor = min_loss if member.gpus and need > int(now[first:end].sum()) else 0
        if best is not None and (floor > best.lost_gpu_s or budget.left <= 0):
            continue
        rows = [row for row in range(first, end) if room[row] > 0]
        free = {row: [int(amount) for amount in view.snapshot.resources.free_at(row)[columns]] for row in rows}
        leaving = [victim for row in rows for victim in victims.get(row, ())]
        cost = cheapest_hosts(need, wants, free, leaving, losses, budget)
        pods = int(room[first:end].sum())
        if cost is not None and (best is None or (cost.lost_gpu_s, pods) < (best.lost_gpu_s, best_pods)):
            best, best_pods = cost, pods
    return best


def _candidate_domains(
    view: ClusterView, need: int, room: Rows, placed_hosts: Sequence[int], widest: int | None
) -> list[tuple[int, int]]:
    """Return the domains of the lowest tier that hold all pods if every victim leaves, as spans of host ids [first,
    end).

    need: pods. room: pods that each row would hold then. placed_hosts: the domain contains them. widest: the widest
    tier allowed, None for any. [] if no domain is large enough, for tier 0, or if a placed host is off the map.
    """
    fabric = view.fabric
    if any(host >= fabric.mapped_count for host in placed_hosts):
        return []
    top = fabric.tiers if widest is None else min(widest, fabric.tiers)
    for tier in range(max(1, common_tier(fabric, placed_hosts)), top + 1):
        fits = np.add.reduceat(room, fabric.starts[tier], dtype=np.int64) >= need
        if placed_hosts:
            only = int(fabric.switch_of[tier][placed_hosts[0]])
            fits[:only] = fits[only + 1 :] = False
        fits &= fabric.starts[tier] < fabric.mapped_count
        if fits.any():
            return [fabric.span(tier, switch) for switch in np.flatnonzero(fits).tolist()]
    return []


def _requested_resources(view: ClusterView, shape: PodShape, pods: int = 1) -> tuple[list[int], list[int]]:
    """Return (columns of the resources that a shape requests, the amounts that `pods` such pods request).

    Resources that no node has are left out.
    """
    column_of = view.snapshot.resources.column_of
    requested = [(column_of[name], amount * pods) for name, amount in shape.requests if name in column_of]
    return [column for column, _ in requested], [amount for _, amount in requested]


def _victims_by_row(
    view: ClusterView, member: GangMember, columns: Sequence[int], wall_s: float
) -> dict[int, list[Victim]]:
    """Return row -> pods of a lower priority than `member`, terminating pods included.

    A pod of no known gang counts as a gang of its own. columns: of the resources that count. wall_s: seconds since
    1970.
    """
    found: dict[int, list[Victim]] = {}
    takes: dict[PodShape, tuple[int, ...]] = {}
    for uid, charge in view.snapshot.charges.items():
        row, pod = view.snapshot.row_of.get(charge.node), view.pods.get(uid)
        if row is None or pod is None or charge.priority >= member.priority:
            continue
        if charge.shape not in takes:
            takes[charge.shape] = tuple(view.snapshot.resources.pod_amounts(charge.shape)[columns].tolist())
        gang = (
            pod.membership.key if pod.membership.key in view.gangs else GangKey(pod.namespace, uid, Dialect.ALONE.value)
        )
        lost = pod.gpus * run_time_s(pod, wall_s)
        victim = Victim(row, takes[charge.shape], lost, gang, pod.priority, pod.created, pod.terminating)
        found.setdefault(row, []).append(victim)
    return found


def gang_loss(view: ClusterView, key: GangKey, wall_s: float) -> GangLoss:
    """Return the loss of a gang that stops, and how many pods it can lose before it stops.

    The loss counts all its members with a node. Pods of a gang without a min can all be lost singly, and so can pods of
    an unknown gang, whose own loss is 0. wall_s: seconds since 1970.
    """
    gang = view.gangs.get(key)
    if gang is None:
        return GangLoss(0, 1 << 30)
    placed_members = [member for member in gang.members.values() if view.node_of(member)]
    return GangLoss(
        sum(member.gpus * run_time_s(member, wall_s) for member in placed_members),
        max(0, len(placed_members) - gang.min_pods),
    )


def estimate_cost(
    need: int, room: Rows, victims: Mapping[int, list[Victim]], losses: Mapping[GangKey, GangLoss], first: int, end: int
) -> float:
    """Return the approximate loss in the domain of rows [first, end), in GPU seconds, as the sum of its cheapest hosts.

    A gang's loss is shared by its pods. need: pods to place. room: by row, pods that each host would hold if all
    victims left. victims: by row. losses: of each gang of a victim. Domains are searched in the order of the estimate.
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
