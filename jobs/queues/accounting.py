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
    """The limits and the use of one queue at one moment: the fields of a QueueShare that this module reads."""

    @property
    def limit(self) -> Amounts:
        """Return the most that its pods may use."""

    @property
    def used(self) -> Amounts:
        """Return the use of its pods and its subtree, by resource."""

    @property
    def guaranteed(self) -> Amounts:
        """Return the amounts that are reserved for it alone, by resource."""

    @property
    def parent_resources(self) -> Mapping[str, str]:
        """Return resource -> its name in the parent share. A resource with the same name there may be absent."""

    @property
    def parent(self) -> str:
        """Return the name of the parent share, "" for none."""


Shares = Mapping[str, Bound]  # by the name of the queue, or of the cohort or pool above it


def holds(
    shares: Shares, used: Mapping[str, Amounts], queue: str, needs: Iterable[tuple[str, int]], times: int = 1
) -> bool:
    """Return True if `times` such requests fit in the queue and in all its ancestors, for every resource.

    An ancestor is charged only with the part above what is guaranteed to the queues below it, and under its own name of
    the resource. An amount of 0 always fits. shares: by the name of the queue; a queue that is absent has no limit.
    used: the use of each share by its name. It is read instead of `used` of the shares, and a share that is absent in
    it uses nothing. needs: (resource, amount) of one request.
    """
    for resource, amount in needs:
        name, extra, share_name, own_room = resource, amount * times, queue, 0
        while extra > 0 and (share := shares.get(share_name)) is not None:
            current_use = used.get(share_name, NOTHING).get(name, 0)
            limit = share.limit.get(name)
            if limit is not None and extra > own_room + limit - current_use:
                return False
            own_room += max(0, share.guaranteed.get(name, 0) - current_use)
            name, share_name = share.parent_resources.get(name, name), share.parent
    return True


def charge(
    shares: Shares, used: dict[str, dict[str, int]], queue: str, needs: Iterable[tuple[str, int]], times: int = 1
) -> None:
    """Charge a queue and its ancestors with `times` such requests; a negative `times` gives back. Changes `used`.

    An ancestor is charged only with the part beyond the amount that is guaranteed to the queue below it. shares: by the
    name of the queue; a queue that is absent is not charged. used: the use of each share by its name. needs: (resource,
    amount) of one request.
    """
    for resource, amount in needs:
        name, extra, share_name = resource, amount * times, queue
        while extra and (share := shares.get(share_name)) is not None:
            share_used = used.setdefault(share_name, {})
            before = share_used.get(name, 0)
            share_used[name] = before + extra
            guaranteed = share.guaranteed.get(name, 0)
            extra = max(0, before + extra - guaranteed) - max(0, before - guaranteed)
            name, share_name = share.parent_resources.get(name, name), share.parent


def room(shares: Shares, queue: str, resource: str) -> int | None:
    """Return how much more of a resource fits in a queue and in all its ancestors, by the `used` of the shares.

    shares: by the name of the queue; a queue that is absent has no limit. Negative if more is used than is allowed;
    None if no limit applies.
    """
    name, share_name, own_room, smallest_room = resource, queue, 0, None
    while (share := shares.get(share_name)) is not None:
        used = share.used.get(name, 0)
        if (limit := share.limit.get(name)) is not None:
            remaining = own_room + limit - used
            smallest_room = remaining if smallest_room is None else min(smallest_room, remaining)
        own_room += max(0, share.guaranteed.get(name, 0) - used)
        name, share_name = share.parent_resources.get(name, name), share.parent
    return smallest_room


CYCLE = "its parents go in a circle"  # the fault of a queue that is its own ancestor


def top_down(parents: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """Return (the names with each parent before its children, the names that have no such order).

    The second result contains the members of a cycle and all names below a cycle. parents: the parent of each name; a
    parent that is not a name itself counts as none.
    """
    children: dict[str, list[str]] = {}
    parents_first: list[str] = []
    for name, parent in parents.items():
        if parent in parents:
            children.setdefault(parent, []).append(name)
        else:
            parents_first.append(name)
    for name in parents_first:
        parents_first.extend(children.get(name, ()))
    return parents_first, parents.keys() - parents_first


def sum_subtrees(
    parents_first: Iterable[str], parents: Mapping[str, str], each: Mapping[str, Amounts]
) -> dict[str, Amounts]:
    """Return for each queue the sum of its own amounts and of all amounts in its subtree.

    parents_first: the names, each parent before its children. parents: the parent of each name, any other text for
    none. each: the own amounts of each queue by name; a queue that is absent has none.
    """
    parents_first = list(parents_first)
    totals: dict[str, Amounts] = {name: each.get(name, NOTHING) for name in parents_first}
    counters: dict[str, Counter[str]] = {}  # the entries of `totals` that have children
    for name in reversed(parents_first):
        parent = parents[name]
        if parent in totals:
            if parent not in counters:
                totals[parent] = counters[parent] = Counter(totals[parent])
            counters[parent].update(totals[name])
    return totals


class QueueClaim(NamedTuple):
    """A claim on a shared amount, by the water level of weighted sharing.

    Between the levels `begins` and `ends` the claim gets minimum + weight * (level - begins).
    """

    minimum: int  # the amount at every level up to `begins`, >= 0
    weight: int  # the amount that it gains with each unit of the level, >= 0
    begins: float  # the level from which it grows, >= 0
    ends: float  # the level at which its request is satisfied, >= begins
    # Its amount at `begins` if it requested everything; above `minimum` if it leaves a part to other claims now.
    entitled: int

    def at(self, level: float) -> float:
        """Return the amount that the claim has at this water level."""
        return self.minimum + self.weight * (min(max(level, self.begins), self.ends) - self.begins)


def share_by_weight(claims: Sequence[QueueClaim], total: int) -> list[tuple[int, int]]:
    """Return for each claim (its share, the share that it would have if it requested everything), rounded down.

    For the second number all other claims request what they request now. claims: of one resource. total: the amount to
    divide, >= 0. The `minimum` of each claim is granted even if the total is smaller.
    """
    bends = sorted(
        [(0.0, 0)]
        + [(each.begins, each.weight if each.ends > each.begins else 0) for each in claims]
        + [(each.ends, -each.weight) for each in claims if each.ends > each.begins]
    )
    levels = [level for level, _ in bends]
    slopes = list(accumulate(change for _, change in bends))
    sums = [float(sum(each.minimum for each in claims))]
    for before, after, slope in zip(levels, levels[1:], slopes, strict=False):
        sums.append(sums[-1] + slope * (after - before))
    level = _level(levels, slopes, sums, total)
    return [
        (_round_down(each.at(level)), _round_down(_max_share(each, levels, slopes, sums, total, level)))
        for each in claims
    ]


def _level(levels: Sequence[float], slopes: Sequence[int], sums: Sequence[float], total: int) -> float:
    """Return the water level at which the total is used up, inf if all claims together request no more than the total.

    levels: the levels at which some claim starts or stops growing, ascending. slopes: for each of them, the sum of the
    weights of the claims that grow between it and the next one. sums: for each, the sum of all claims at this level.
    total: the amount to divide. 0 if it is less than the first of `sums`.
    """
    last = bisect_right(sums, total) - 1
    if last < 0:
        return 0.0
    return levels[last] + (total - sums[last]) / slopes[last] if slopes[last] > 0 else inf


def _max_share(
    claim: QueueClaim, levels: Sequence[float], slopes: Sequence[int], sums: Sequence[float], total: int, level: float
) -> float:
    """Return the share of a claim if it requested everything and all others requested what they request now.

    levels: the levels at which some claim starts or stops growing, ascending. slopes: for each of them, the sum of the
    weights of the claims that grow between it and the next one. sums: for each, the sum of all claims at this level.
    total: the amount to divide. level: the result of _level(), inf if the claims together request no more than the
    total.
    """
    minimum, weight, begins, ends, entitled = claim
    if level <= ends and entitled == minimum:
        return claim.at(level)  # its request is not satisfied now, so a larger one changes nothing
    offset = entitled - weight * begins
    extra_at_0 = offset - minimum - weight * (ends - begins)  # from `ends` on it has all that it requests now
    first = low = bisect_left(levels, ends)
    high = len(levels)
    while low < high:
        middle = (low + high) // 2
        if sums[middle] + extra_at_0 + weight * levels[middle] <= total:
            low = middle + 1
        else:
            high = middle
    last = low - 1
    if last < first or not weight:
        return entitled
    rest = total - (sums[last] + extra_at_0 + weight * levels[last])
    return offset + weight * (levels[last] + rest / (slopes[last] + weight))


def _round_down(amount: float) -> int:
    """Return the amount rounded down to a whole number, but ignore floating-point errors. amount: >= 0."""
    nearest = round(amount)
    return nearest if isclose(nearest, amount, rel_tol=1e-9, abs_tol=1e-9) else floor(amount)
