"""Charges a queue and its ancestors, adds up trees of queues, and shares an amount by weight.

The use of a queue counts in its parent only beyond the amount that is guaranteed to the queue. So available() of Kueue
and a tree of Volcano are one rule: room = min(limit - used, max(0, guaranteed - used) + room of the parent).

Weighted fair sharing is water filling: a small claim is satisfied early and leaves the rest to others. The result has
for each claim its share, and the most that it could have if it alone requested everything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import floor, inf, isclose
from typing import NamedTuple, Protocol

from turnout.jobs.queues.model import NOTHING, Amounts


class Bound(Protocol):
    """The fields of a Share that this module reads."""

    @property
    def limit(self) -> Amounts:
        """Return the most that its pods may use."""

    @property
    def used(self) -> Amounts:
        """Return what its pods and its subtree use."""

    @property
    def guaranteed(self) -> Amounts:
        """Return what is reserved for it alone."""

    @property
    def parent_resources(self) -> Mapping[str, str]:
        """Return the names of the resources in the parent share."""

    @property
    def parent(self) -> str:
        """Return the name of the parent share, "" for none."""


Shares = Mapping[str, Bound]


def holds(
    shares: Shares, used: Mapping[str, Amounts], queue: str, needs: Iterable[tuple[str, int]], times: int = 1
) -> bool:
    """Return True if `times` such requests fit in the queue and all its ancestors. used: by share."""
    for resource, amount in needs:
        what, more, at, left = resource, amount * times, queue, 0
        while more > 0 and (share := shares.get(at)) is not None:
            now = used.get(at, NOTHING).get(what, 0)
            limit = share.limit.get(what)
            if limit is not None and more > left + limit - now:
                return False
            left += max(0, share.guaranteed.get(what, 0) - now)
            what, at = share.parent_resources.get(what, what), share.parent
    return True


def charge(
    shares: Shares, used: dict[str, dict[str, int]], queue: str, needs: Iterable[tuple[str, int]], times: int = 1
) -> None:
    """Charge a queue and its ancestors `times` times; a negative number gives back. Changes `used`."""
    for resource, amount in needs:
        what, more, at = resource, amount * times, queue
        while more and (share := shares.get(at)) is not None:
            mine = used.setdefault(at, {})
            before = mine.get(what, 0)
            mine[what] = before + more
            guaranteed = share.guaranteed.get(what, 0)
            more = max(0, before + more - guaranteed) - max(0, before - guaranteed)
            what, at = share.parent_resources.get(what, what), share.parent


def room(shares: Shares, queue: str, resource: str) -> int | None:
    """Return how much more of a resource fits; negative if too much is used; None without a limit."""
    what, at, left, found = resource, queue, 0, None
    while (share := shares.get(at)) is not None:
        used = share.used.get(what, 0)
        if (limit := share.limit.get(what)) is not None:
            remaining = left + limit - used
            found = remaining if found is None else min(found, remaining)
        left += max(0, share.guaranteed.get(what, 0) - used)
        what, at = share.parent_resources.get(what, what), share.parent
    return found


CIRCLE = "its parents go in a circle"


def top_down(parents: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """Return the names with each parent before its children, and the names that belong to a cycle.

    parents: by name; an unknown parent counts as none.
    """
    children: dict[str, list[str]] = {}
    order: list[str] = []
    for name, parent in parents.items():
        if parent in parents:
            children.setdefault(parent, []).append(name)
        else:
            order.append(name)
    for name in order:
        order.extend(children.get(name, ()))
    return order, parents.keys() - order


def sum_subtrees(order: Iterable[str], parents: Mapping[str, str], each: Mapping[str, Amounts]) -> dict[str, Amounts]:
    """Return for each queue the sum of its own amounts and those of its subtree. order: each parent before its
    children.
    """
    order = list(order)
    found: dict[str, Amounts] = {name: each.get(name, NOTHING) for name in order}
    own: dict[str, Counter[str]] = {}  # of those that have anybody below
    for name in reversed(order):
        parent = parents[name]
        if parent in found:
            if parent not in own:
                found[parent] = own[parent] = Counter(found[parent])
            own[parent].update(found[name])
    return found


class QueueClaim(NamedTuple):
    """A claim on a shared amount: at level L it has least + weight * (L - begins), from `begins` to `ends`."""

    least: int  # granted at any level
    weight: int  # >= 0
    begins: float  # the level from which it grows
    ends: float  # the level at which its request is satisfied
    own: int  # the amount up to `begins` if it requests everything: least, and what it leaves to others now

    def at(self, level: float) -> float:
        """Return the amount that the claim has at this level."""
        return self.least + self.weight * (min(max(level, self.begins), self.ends) - self.begins)


def share_by_weight(claims: Sequence[QueueClaim], total: int) -> list[tuple[int, int]]:
    """Return for each claim its share, and its share if it alone requested everything.

    Each `least` is granted even if the total is smaller.
    """
    bends = sorted(
        [(0.0, 0)]
        + [(each.begins, each.weight if each.ends > each.begins else 0) for each in claims]
        + [(each.ends, -each.weight) for each in claims if each.ends > each.begins]
    )
    levels = [level for level, _ in bends]
    slopes = list(accumulate(change for _, change in bends))
    sums = [float(sum(each.least for each in claims))]
    for before, after, slope in zip(levels, levels[1:], slopes, strict=False):
        sums.append(sums[-1] + slope * (after - before))
    level = _level(levels, slopes, sums, total)
    return [(_down(each.at(level)), _down(_most_of_claim(each, levels, slopes, sums, total, level))) for each in claims]


def _level(levels: Sequence[float], slopes: Sequence[int], sums: Sequence[float], total: int) -> float:
    """Return the level at which the total is used up."""
    last = bisect_right(sums, total) - 1
    if last < 0:
        return 0.0
    return levels[last] + (total - sums[last]) / slopes[last] if slopes[last] > 0 else inf


def _most_of_claim(
    claim: QueueClaim, levels: Sequence[float], slopes: Sequence[int], sums: Sequence[float], total: int, level: float
) -> float:
    """Return what a claim would get if it requested everything and the others what they request now.

    levels, slopes, sums: where the weighted sharing changes its slope. level: where the sharing ends.
    """
    least, weight, begins, ends, own = claim
    if level <= ends and own == least:
        return claim.at(level)  # it asks for more than it can have as it is
    dry = own - weight * begins
    more = dry - least - weight * (ends - begins)  # beyond what it asked for, which it has in full from `ends` on
    first = low = bisect_left(levels, ends)
    high = len(levels)
    while low < high:
        middle = (low + high) // 2
        if sums[middle] + more + weight * levels[middle] <= total:
            low = middle + 1
        else:
            high = middle
    last = low - 1
    if last < first or not weight:
        return own
    left = total - (sums[last] + more + weight * levels[last])
    return dry + weight * (levels[last] + left / (slopes[last] + weight))


def _down(amount: float) -> int:
    """Return the amount rounded down, but ignore floating-point errors. amount: >= 0."""
    nearest = round(amount)
    return nearest if isclose(nearest, amount, rel_tol=1e-9, abs_tol=1e-9) else floor(amount)
