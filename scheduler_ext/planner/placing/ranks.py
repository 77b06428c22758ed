"""Number the members of a gang, so that neighbours in the ring have neighbouring ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from turnout.scheduler_ext.cache.gang import rank_order
from turnout.scheduler_ext.cache.pod_info import Member


def ranks_of(members: Sequence[Member]) -> tuple[dict[str, int], dict[str, int]]:
    """Return uid -> rank in the whole gang, and role -> the rank of its index 0.

    A member's rank is its own index after all indexes of the roles before its own. Where an index is unknown or given
    twice, the rank is the place in rank order, and no role has a base.
    """
    top = Counter[str]()
    for member in members:
        if member.belongs.rank is not None:
            top[member.belongs.role] = max(top[member.belongs.role], member.belongs.rank + 1)
    bases: dict[str, int] = {}
    for role in sorted(top):
        bases[role] = sum(top[other] for other in bases)
    own = {(m.belongs.role, m.belongs.rank) for m in members if m.belongs.rank is not None}
    if len(own) == len(members):
        return {m.uid: bases[m.belongs.role] + (m.belongs.rank or 0) for m in members}, bases
    return {m.uid: at for at, m in enumerate(sorted(members, key=rank_order))}, {}


def missing_ranks(ranks: Mapping[str, int], missing: int) -> list[int]:
    """Return the lowest ranks that no member has: those of the members still to be created."""
    had = set(ranks.values())
    found: list[int] = []
    at = 0
    while len(found) < missing:
        if at not in had:
            found.append(at)
        at += 1
    return found


def in_turn(members: Sequence[Member], least_of: Sequence[tuple[str, int]], there: Iterable[Member]) -> list[Member]:
    """Return members in the order in which they get seats: of each role first as many as must start, then by rank.

    there: members that have a place, which count in their roles.
    """
    least, seen = dict(least_of), Counter(member.belongs.role for member in there)
    first: list[Member] = []
    rest: list[Member] = []
    for member in sorted(members, key=rank_order):
        role = member.belongs.role
        seen[role] += 1
        (first if seen[role] <= least.get(role, 0) else rest).append(member)
    return [*first, *rest]
