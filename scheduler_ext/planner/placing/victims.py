"""Find the hosts of one domain on which a gang costs others the least: in GPUs times the time they ran, gangs whole.

A gang that loses more members than it has above its min stops, so it costs what all of its pods have done, wherever
they are. One that loses fewer costs theirs alone. Pods that are being deleted cost nothing. Of equal prices the lowest
priority goes, then the newest pods. Which pods of a host leave in the end is the scheduler's choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey

MAX_MOVES = 1_500  # looked at for one question, each some 50 microseconds
_EXACT_ITEMS = 24  # so many gangs and members above a min are tried in every combination

Mask = NDArray[np.bool_]  # one mark a victim


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that may have to leave. takes: of the resources that the new pods ask for."""

    host: int
    amounts: tuple[int, ...]
    lost_gpu_s: int  # its GPUs, times the seconds it ran
    gang: GangKey
    priority: int = 0
    created: str = ""  # RFC 3339
    terminating: bool = False  # it leaves anyway


@dataclass(frozen=True, slots=True)
class GangLoss:
    """A gang that may lose members: what all its pods have done, and how many pods it has above its min."""

    lost_gpu_s: int
    above_min: int


@dataclass(frozen=True, slots=True)
class PreemptionCost:
    """The loss of others, and how many pods each host then holds."""

    lost_gpu_s: int
    hosts: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class MoveBudget:
    """How many moves may still be looked at."""

    left: int = MAX_MOVES


def cheapest_hosts(
    need: int,
    wants: Sequence[int],
    free: Mapping[int, Sequence[int]],
    victims: Sequence[Victim],
    losses: Mapping[GangKey, GangLoss],
    moves: MoveBudget | None = None,
) -> PreemptionCost | None:
    """Return the hosts of one domain that hold `need` pods at the least price found; None where they cannot.

    wants: what one pod asks for, each above 0. free: by host, in the same resources. Few gangs are tried in every
    combination while moves are left, so that the price is the least; of many, or without moves, it is near it.
    """
    search = _Search(need, wants, free, victims, losses, moves or MoveBudget())
    everybody = np.ones(len(search.gang), np.bool_)
    if search.count_pods(everybody) < need:
        return None
    best = search.search_all(search.improve(everybody))
    fits = search.pods_by_host(best).tolist()
    return PreemptionCost(search.price(best), {host: pods for host, pods in zip(free, fits, strict=True) if pods})


class _Search:
    """Victims and gangs as rows of tables, the first to leave of equals first. A set of victims is a mask of them."""

    def __init__(
        self,
        need: int,
        wants: Sequence[int],
        free: Mapping[int, Sequence[int]],
        victims: Sequence[Victim],
        losses: Mapping[GangKey, GangLoss],
        moves: MoveBudget,
    ) -> None:
        victims = sorted(victims, key=lambda victim: victim.gang)
        victims = sorted(
            sorted(victims, key=lambda victim: victim.created, reverse=True), key=lambda victim: victim.priority
        )
        hosts = {host: at for at, host in enumerate(free)}
        gangs = {gang: at for at, gang in enumerate(dict.fromkeys(victim.gang for victim in victims))}
        self.need, self.moves = need, moves
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

    # One set of victims.

    def pods_by_host(self, removed: Mask) -> NDArray[np.int64]:
        """Return how many pods each host holds once these are out."""
        have = self.free.copy()
        np.add.at(have, self.host[removed], self.amounts[removed])
        found: NDArray[np.int64] = (have // self.wants).min(axis=1).clip(0)
        return found

    def count_pods(self, removed: Mask) -> int:
        """Return how many pods all hosts hold."""
        return int(self.pods_by_host(removed).sum())

    def price(self, removed: Mask) -> int:
        """Return what others lose, in GPU seconds."""
        return int(np.where(self._lost_pods(removed) > self.above_min, self.gang_loss, self._lost_gpu_s(removed)).sum())

    def add_stopped_gangs(self, removed: Mask) -> Mask:
        """Return the set with all pods of the gangs that cannot go on."""
        closed: Mask = removed | (self._lost_pods(removed) > self.above_min)[self.gang]
        return closed

    def _lost_pods(self, removed: Mask) -> NDArray[np.intp]:
        return np.bincount(self.gang[removed], minlength=len(self.above_min))

    def _lost_gpu_s(self, removed: Mask) -> NDArray[np.int64]:
        spent = np.zeros(len(self.above_min), np.int64)
        np.add.at(spent, self.gang[removed], self.gpus[removed])
        return spent

    # Searching.

    def improve(self, everybody: Mask) -> Mask:
        """Find a set, then do without each of its gangs in turn for as long as that makes it cheaper."""
        start = self.add_stopped_gangs(self.terminating.copy())
        found = self._reach_need(start, -1)
        best = self._drop_unneeded(everybody if found is None else found)
        better = True
        while better and self.moves.left > 0:
            better = False
            for gang in np.unique(self.gang[best & ~self.terminating]).tolist():
                found = self._reach_need(best & ((self.gang != gang) | self.terminating), gang)
                if found is not None and self.price(found := self._drop_unneeded(found)) < self.price(best):
                    best, better = found, True
        return best

    def _reach_need(self, removed: Mask, spare: int) -> Mask | None:
        """Add the best move until enough pods fit; None where no move is left. The gang `spare` loses nobody."""
        best: Mask | None = None
        while (fit := self.count_pods(removed)) < self.need:
            found = self._best_move(removed, fit, spare)
            if found is None:
                return best
            removed, last = found
            if last is not None and (best is None or self.price(last) < self.price(best)):
                best = last
        return removed if best is None or self.price(removed) < self.price(best) else best

    def _best_move(self, removed: Mask, fit: int, spare: int) -> tuple[Mask, Mask | None] | None:
        """Return who is out after the move of the best price for a pod, and after the cheapest that is enough."""
        before, best, last = self.price(removed), None, None
        best_key, last_price = (0.0, 0), 0
        for move in self._moves_from(removed):
            if self.moves.left <= 0:
                return None
            self.moves.left -= 1
            after = self.add_stopped_gangs(removed | move)
            gain = self.count_pods(after) - fit
            if gain <= 0 or (spare >= 0 and (after & ~removed & (self.gang == spare)).any()):
                continue
            price = self.price(after)
            key = ((price - before) / min(gain, self.need - fit), -gain)
            if best is None or key < best_key:
                best, best_key = after, key
            if fit + gain >= self.need and (last is None or price < last_price):
                last, last_price = after, price
        return None if best is None else (best, last)

    def _moves_from(self, removed: Mask) -> Iterator[Mask]:
        """Yield the pods of one gang, and of each host those that make room for one pod more."""
        for gang in np.unique(self.gang[~removed]).tolist():
            yield (self.gang == gang) & ~removed
        lost, spent = self._lost_pods(removed), self._lost_gpu_s(removed)
        stops = lost + 1 > self.above_min
        single_loss = np.where(stops[self.gang], (self.gang_loss - spent)[self.gang], self.gpus)
        for host in range(len(self.free)):
            move = self._move_for_one_pod(host, removed, single_loss)
            if move is not None:
                yield move

    def _move_for_one_pod(self, host: int, removed: Mask, single_loss: NDArray[np.int64]) -> Mask | None:
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

    def _drop_unneeded(self, removed: Mask) -> Mask:
        """Take back whom the others make unnecessary: whole gangs first, the dearest first, then single pods."""
        gangs = np.unique(self.gang[removed & ~self.terminating])[::-1]  # of equals first who leaves last
        for gang in gangs[np.argsort(-self.gang_loss[gangs], kind="stable")].tolist():
            less = removed & ((self.gang != gang) | self.terminating)
            if self.count_pods(less) >= self.need:
                removed = less
        single = np.flatnonzero(removed & ~self.terminating & (self._lost_pods(removed) <= self.above_min)[self.gang])
        for at in reversed(single.tolist()):
            removed[at] = False
            removed[at] = self.count_pods(removed) < self.need
        return removed

    # Every combination.

    def search_all(self, best: Mask) -> Mask:
        """Try every combination of gangs, and of members above a min, that is cheaper than the best so far."""
        items: list[tuple[int, int, Mask]] = []  # price, gang, who leaves
        pods = np.arange(len(self.gang))
        for gang in range(len(self.above_min)):
            items.append((int(self.gang_loss[gang]), gang, self.gang == gang))
            single = pods[self.gang == gang].tolist() if self.above_min[gang] > 0 else []
            items += [(int(self.gpus[at]), gang, pods == at) for at in single]
        if len(items) > _EXACT_ITEMS:
            return best
        items.sort(key=lambda item: (-item[0], item[1]))
        found, bound = best, self.price(best)
        left = self.moves.left
        stack = [(0, self.add_stopped_gangs(self.terminating.copy()))]
        while stack and left > 0:
            at, removed = stack.pop()
            left -= 1
            price = self.price(removed)
            if price >= bound:
                continue
            if self.count_pods(removed) >= self.need:
                found, bound = removed, price
                continue
            if self.count_pods(np.logical_or.reduce([removed, *(each for _, _, each in items[at:])])) < self.need:
                continue
            stack.append((at + 1, removed))
            stack.append((at + 1, self.add_stopped_gangs(removed | items[at][2])))
        return found
