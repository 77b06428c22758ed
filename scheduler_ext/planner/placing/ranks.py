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
        if member.membership.rank is not None:
            top[member.membership.role] = max(top[member.membership.role], member.membership.rank + 1)
    bases: dict[str, int] = {}
    for role in sorted(top):
        bases[role] = sum(top[other] for other in bases)
    own = {(m.membership.role, m.membership.rank) for m in members if m.membership.rank is not None}
    if len(own) == len(members):
        return {m.uid: bases[m.membership.role] + (m.membership.rank or 0) for m in members}, bases
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


def seating_order(
    members: Sequence[Member], min_by_role: Sequence[tuple[str, int]], present: Iterable[Member]
) -> list[Member]:
    """Return members in the order in which they get seats: of each role first as many as must start, then by rank.

    present: members that have a place, which count in their roles.
    """
    min_pods, counts = dict(min_by_role), Counter(member.membership.role for member in present)
    first: list[Member] = []
    rest: list[Member] = []
    for member in sorted(members, key=rank_order):
        role = member.membership.role
        counts[role] += 1
        (first if counts[role] <= min_pods.get(role, 0) else rest).append(member)
    return [*first, *rest]
