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

MOST_MOVES = 1_500  # looked at for one question, each some 50 microseconds
_EXACT_ITEMS = 24  # so many gangs and members above a min are tried in every combination

Mask = NDArray[np.bool_]  # one mark a victim


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that may have to leave. takes: of the resources that the new pods ask for."""

    host: int
    takes: tuple[int, ...]
    lost_gpu_s: int  # its GPUs, times the seconds it ran
    gang: GangKey
    priority: int = 0
    created: str = ""  # RFC 3339
    sunk: bool = False  # it leaves anyway


@dataclass(frozen=True, slots=True)
class Worth:
    """A gang that may lose members: what all its pods have done, and how many pods it has above its min."""

    lost_gpu_s: int
    above_min: int


@dataclass(frozen=True, slots=True)
class Bill:
    """The loss of others, and how many pods each host then holds."""

    lost_gpu_s: int
    hosts: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Moves:
    """How many moves may still be looked at."""

    left: int = MOST_MOVES


def cheapest(
    need: int,
    wants: Sequence[int],
    free: Mapping[int, Sequence[int]],
    victims: Sequence[Victim],
    worth: Mapping[GangKey, Worth],
    moves: Moves | None = None,
) -> Bill | None:
    """Return the hosts of one domain that hold `need` pods at the least price found; None where they cannot.

    wants: what one pod asks for, each above 0. free: by host, in the same resources. Few gangs are tried in every
    combination while moves are left, so that the price is the least; of many, or without moves, it is near it.
    """
    search = _Search(need, wants, free, victims, worth, moves or Moves())
    everybody = np.ones(len(search.gang), np.bool_)
    if search.fit(everybody) < need:
        return None
    best = search.exact(search.improved(everybody))
    fits = search.fits(best).tolist()
    return Bill(search.price(best), {host: pods for host, pods in zip(free, fits, strict=True) if pods})


class _Search:
    """Victims and gangs as rows of tables, the first to leave of equals first. A set of victims is a mask of them."""

    def __init__(
        self,
        need: int,
        wants: Sequence[int],
        free: Mapping[int, Sequence[int]],
        victims: Sequence[Victim],
        worth: Mapping[GangKey, Worth],
        moves: Moves,
    ) -> None:
        victims = sorted(victims, key=lambda each: each.gang)
        victims = sorted(sorted(victims, key=lambda each: each.created, reverse=True), key=lambda each: each.priority)
        hosts = {host: at for at, host in enumerate(free)}
        gangs = {gang: at for at, gang in enumerate(dict.fromkeys(each.gang for each in victims))}
        self.need, self.moves = need, moves
        self.wants = np.array(wants, np.int64)
        self.free = np.array([list(free[host]) for host in free], np.int64).reshape(len(free), len(wants))
        self.host = np.array([hosts[each.host] for each in victims], np.intp)
        self.takes = np.array([each.takes for each in victims], np.int64).reshape(len(victims), len(wants))
        self.gang = np.array([gangs[each.gang] for each in victims], np.intp)
        self.sunk = np.array([each.sunk for each in victims], np.bool_)
        self.gpus = np.array([0 if each.sunk else each.lost_gpu_s for each in victims], np.int64)
        self.above = np.array([worth[gang].above_min for gang in gangs], np.int64)
        stopped = np.bincount(self.gang[self.sunk], minlength=len(gangs)) > self.above
        self.whole = np.where(stopped, 0, np.array([worth[gang].lost_gpu_s for gang in gangs], np.int64))

    # One set of victims.

    def fits(self, out: Mask) -> NDArray[np.int64]:
        """Return how many pods each host holds once these are out."""
        have = self.free.copy()
        np.add.at(have, self.host[out], self.takes[out])
        found: NDArray[np.int64] = (have // self.wants).min(axis=1).clip(0)
        return found

    def fit(self, out: Mask) -> int:
        """Return how many pods all hosts hold."""
        return int(self.fits(out).sum())

    def price(self, out: Mask) -> int:
        """Return what others lose, in GPU seconds."""
        return int(np.where(self._lost(out) > self.above, self.whole, self._spent(out)).sum())

    def closed(self, out: Mask) -> Mask:
        """Return the set with all pods of the gangs that cannot go on."""
        closed: Mask = out | (self._lost(out) > self.above)[self.gang]
        return closed

    def _lost(self, out: Mask) -> NDArray[np.intp]:
        return np.bincount(self.gang[out], minlength=len(self.above))

    def _spent(self, out: Mask) -> NDArray[np.int64]:
        spent = np.zeros(len(self.above), np.int64)
        np.add.at(spent, self.gang[out], self.gpus[out])
        return spent

    # Searching.

    def improved(self, everybody: Mask) -> Mask:
        """Find a set, then do without each of its gangs in turn for as long as that makes it cheaper."""
        start = self.closed(self.sunk.copy())
        found = self._enough(start, -1)
        best = self._spared(everybody if found is None else found)
        better = True
        while better and self.moves.left > 0:
            better = False
            for gang in np.unique(self.gang[best & ~self.sunk]).tolist():
                found = self._enough(best & ((self.gang != gang) | self.sunk), gang)
                if found is not None and self.price(found := self._spared(found)) < self.price(best):
                    best, better = found, True
        return best

    def _enough(self, out: Mask, spare: int) -> Mask | None:
        """Add the best move until enough pods fit; None where no move is left. The gang `spare` loses nobody."""
        best: Mask | None = None
        while (fit := self.fit(out)) < self.need:
            found = self._best_move(out, fit, spare)
            if found is None:
                return best
            out, last = found
            if last is not None and (best is None or self.price(last) < self.price(best)):
                best = last
        return out if best is None or self.price(out) < self.price(best) else best

    def _best_move(self, out: Mask, fit: int, spare: int) -> tuple[Mask, Mask | None] | None:
        """Return who is out after the move of the best price for a pod, and after the cheapest that is enough."""
        before, best, last = self.price(out), None, None
        best_key, last_price = (0.0, 0), 0
        for move in self._moves_from(out):
            if self.moves.left <= 0:
                return None
            self.moves.left -= 1
            after = self.closed(out | move)
            gain = self.fit(after) - fit
            if gain <= 0 or (spare >= 0 and (after & ~out & (self.gang == spare)).any()):
                continue
            price = self.price(after)
            key = ((price - before) / min(gain, self.need - fit), -gain)
            if best is None or key < best_key:
                best, best_key = after, key
            if fit + gain >= self.need and (last is None or price < last_price):
                last, last_price = after, price
        return None if best is None else (best, last)

    def _moves_from(self, out: Mask) -> Iterator[Mask]:
        """Yield the pods of one gang, and of each host those that make room for one pod more."""
        for gang in np.unique(self.gang[~out]).tolist():
            yield (self.gang == gang) & ~out
        lost, spent = self._lost(out), self._spent(out)
        stops = lost + 1 > self.above
        alone = np.where(stops[self.gang], (self.whole - spent)[self.gang], self.gpus)
        for host in range(len(self.free)):
            move = self._one_more(host, out, alone)
            if move is not None:
                yield move

    def _one_more(self, host: int, out: Mask, alone: NDArray[np.int64]) -> Mask | None:
        here = np.flatnonzero((self.host == host) & ~out)
        if not len(here):
            return None
        have = self.free[host] + self.takes[(self.host == host) & out].sum(axis=0)
        wanted = (max(0, int((have // self.wants).min())) + 1) * self.wants
        chosen: list[int] = []
        for at in here[np.argsort(alone[here], kind="stable")].tolist():
            chosen.append(at)
            have = have + self.takes[at]
            if (have >= wanted).all():
                break
        else:
            return None
        for at in reversed(chosen[:-1]):
            if (have - self.takes[at] >= wanted).all():
                chosen.remove(at)
                have = have - self.takes[at]
        move = np.zeros(len(out), np.bool_)
        move[chosen] = True
        return move

    def _spared(self, out: Mask) -> Mask:
        """Take back whom the others make unnecessary: whole gangs first, the dearest first, then single pods."""
        gangs = np.unique(self.gang[out & ~self.sunk])[::-1]  # of equals first who leaves last
        for gang in gangs[np.argsort(-self.whole[gangs], kind="stable")].tolist():
            less = out & ((self.gang != gang) | self.sunk)
            if self.fit(less) >= self.need:
                out = less
        single = np.flatnonzero(out & ~self.sunk & (self._lost(out) <= self.above)[self.gang])
        for at in reversed(single.tolist()):
            out[at] = False
            out[at] = self.fit(out) < self.need
        return out

    # Every combination.

    def exact(self, best: Mask) -> Mask:
        """Try every combination of gangs, and of members above a min, that is cheaper than the best so far."""
        items: list[tuple[int, int, Mask]] = []  # price, gang, who leaves
        pods = np.arange(len(self.gang))
        for gang in range(len(self.above)):
            items.append((int(self.whole[gang]), gang, self.gang == gang))
            single = pods[self.gang == gang].tolist() if self.above[gang] > 0 else []
            items += [(int(self.gpus[at]), gang, pods == at) for at in single]
        if len(items) > _EXACT_ITEMS:
            return best
        items.sort(key=lambda item: (-item[0], item[1]))
        found, bound = best, self.price(best)
        left = self.moves.left
        stack = [(0, self.closed(self.sunk.copy()))]
        while stack and left > 0:
            at, out = stack.pop()
            left -= 1
            price = self.price(out)
            if price >= bound:
                continue
            if self.fit(out) >= self.need:
                found, bound = out, price
                continue
            if self.fit(np.logical_or.reduce([out, *(each for _, _, each in items[at:])])) < self.need:
                continue
            stack.append((at + 1, out))
            stack.append((at + 1, self.closed(out | items[at][2])))
        return found
