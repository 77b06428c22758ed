"""Assigns group ranks to members, so that neighbours in rank are neighbours in the fabric.

topology/ knows the order of places. A new or resized world gets new ranks; after a replacement the other members keep
their ranks. Members with an unknown path come last, and their edges count as no crossing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from turnout.launcher.model import MAX_MEMBERS, Member
from turnout.topology import rank_order
from turnout.topology.switch_paths import Key, natural_key, switch_numbers

Path = tuple[str, ...]  # switches from the root to above a host
Index = tuple[int, Key, str]  # sort key of equal members


@dataclass(frozen=True, slots=True)
class CrossingLimit:
    """The most crossings that members may have after a replacement: `factor` times the minimum plus `extra`.

    Above it all members get new ranks. One member in a new place adds at most two crossings, so two are always allowed.
    Up to 1.5 times the minimum, the extra crossings cost less time than moving memory checkpoints to other ranks.
    """

    factor: float = 1.5  # times the minimum
    extra: int = 2  # crossings

    def allows(self, crossings: int, min_crossings: int) -> bool:
        """Return True if `crossings` are within the limit. min_crossings: the fewest of any order."""
        return crossings <= self.factor * min_crossings + self.extra


LIMIT = CrossingLimit()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Members in the order of group rank, and the cost of that order."""

    members: tuple[Member, ...]
    crossings: int = 0  # edges of the ring that leave a leaf switch
    optimum: int = 0  # the fewest crossings of any order
    moved: int = 0  # former members whose group rank has changed
    is_new: bool = True  # False: after a replacement, the other members kept their ranks

    @property
    def excess(self) -> int:
        """Return the number of crossings above the optimum."""
        return self.crossings - self.optimum


def rank_members(
    members: Sequence[Member], before: Sequence[Member] = (), limit: CrossingLimit = LIMIT, *, by_index: bool = False
) -> Ranking:
    """Give every member a group rank. The order of `members` makes no difference.

    before: the last world by group rank, () for none. If the size is the same, members with the same name and path keep
    their rank, as long as `limit` allows the crossings. A member that returned elsewhere is new, and gets its old rank
    if no other rank costs less. by_index: ranks follow the workers' indexes instead, independent of their places, as a
    mesh needs it. Source: docs/facts/launcher.md 9 row 18; pytorch#191190
    """
    min_crossings = optimum(members)
    members = sorted(members, key=_index_key)
    if by_index:
        return Ranking(tuple(members), crossings(members), min_crossings, _count_moved(members, before))
    stay = _staying_ranks(members, before) if len(members) == len(before) else {}
    if stay:
        ranked = _replace_missing(members, before, stay)
        crossed = crossings(ranked)
        if limit.allows(crossed, min_crossings):
            return Ranking(tuple(ranked), crossed, min_crossings, _count_moved(ranked, before), is_new=False)
    ranked = _sort_by_rank(members)
    return Ranking(tuple(ranked), crossings(ranked), min_crossings, _count_moved(ranked, before))


def crossings(members: Iterable[Member]) -> int:
    """Count the edges that leave a leaf switch, in the ring of members with known places."""
    paths = [member.path for member in members if member.path]
    return sum(path != after for path, after in zip(paths, [*paths[1:], *paths[:1]], strict=True))


def optimum(members: Iterable[Member]) -> int:
    """Return the fewest crossings of any order: one per leaf, or none if there is only one leaf."""
    leaves = len({member.path for member in members if member.path})
    return leaves if leaves > 1 else 0


def addresses_by_rank(members: Iterable[Member]) -> tuple[str, ...]:
    """Return the members' addresses in their order, which is that of group ranks, for the log. Source: DL-107"""
    return tuple(member.address for member in members)


def _index_key(member: Member) -> Index:
    """Return the sort key among equal members: the worker's index, else its name in natural order (worker-2 before
    worker-10).
    """
    return (MAX_MEMBERS if member.index is None else member.index, natural_key(member.name), member.id)


def _count_moved(ranked: Sequence[Member], before: Sequence[Member]) -> int:
    """Count the former members, by name, whose group rank has changed. before: the last world by group rank."""
    former_rank = {member.name: rank for rank, member in enumerate(before)}
    return sum(former_rank.get(member.name, rank) != rank for rank, member in enumerate(ranked))


def _staying_ranks(members: Sequence[Member], before: Sequence[Member]) -> dict[int, Member]:
    """Return the members that have the same name and path as before, by their former rank."""
    former_rank = {member.name: rank for rank, member in enumerate(before)}
    stay: dict[int, Member] = {}
    for member in members:
        rank = former_rank.get(member.name)
        if rank is not None and before[rank].path == member.path:
            stay.setdefault(rank, member)
    return stay


def _sort_by_rank(members: Sequence[Member], others: Sequence[Member] = ()) -> list[Member]:
    """Return members, given in the order of their indexes, in rank order: by fabric, those without a path last.

    others: members that are not returned, but count in the load of each switch, which the order depends on.
    """
    on_host: dict[tuple[Path, str], list[Member]] = {}
    for member in members:
        on_host.setdefault((member.path, member.host), []).append(member)
    counts = Counter(member.path for member in (*members, *others) if member.path)
    row_of = switch_numbers(counts)
    keys = rank_order.rank_order_keys([row_of[path] for path in counts], list(counts.values()))
    key_of = dict(zip(counts, keys, strict=True))
    hosts = sorted((host for host in on_host if host[0]), key=lambda host: (key_of[host[0]], -len(on_host[host])))
    return [*(member for host in hosts for member in on_host[host]), *(m for m in members if not m.path)]


def _replace_missing(members: Sequence[Member], before: Sequence[Member], stay: Mapping[int, Member]) -> list[Member]:
    """Return members in rank order, with staying members at their ranks (`stay`) and new ones at the free ranks.

    New members get the ranks of those they replace, unless an order by fabric crosses fewer switches.
    """
    staying = {member.id for member in stay.values()}
    new = [member for member in members if member.id not in staying]
    free = [rank for rank in range(len(members)) if rank not in stay]
    own = {**stay, **_former_ranks(new, before, free)}
    if len(new) < 2:
        return [own[rank] for rank in range(len(members))]
    pool = _sort_by_rank(new, tuple(stay.values()))
    by_fabric = {**stay, **_keep_under_leaf(_fill_by_fabric(pool, free, stay), before)}
    in_old, in_near = ([seats[rank] for rank in range(len(members))] for seats in (own, by_fabric))
    return min(in_old, in_near, key=_crossed_switches)


def _former_ranks(new: Sequence[Member], before: Sequence[Member], free: Sequence[int]) -> dict[int, Member]:
    """Assign each free rank to a new member: its former holder by name, then by index, then in order.

    new, free: of equal length. Returns the members by rank.
    """
    by_name = {before[rank].name: rank for rank in free}
    by_order: dict[int | None, int] = {before[rank].index: rank for rank in free if before[rank].index is not None}
    preferences: tuple[Callable[[Member], int | None], ...] = (
        lambda member: by_name.get(member.name),
        lambda member: by_order.get(member.index),
    )
    seats: dict[int, Member] = {}
    for preferred_rank in preferences:
        unassigned = []
        for member in new:
            rank = preferred_rank(member)
            if rank is None or seats.setdefault(rank, member) is not member:
                unassigned.append(member)
        new = unassigned
    return {**seats, **dict(zip((rank for rank in free if rank not in seats), new, strict=True))}


def _fill_by_fabric(pool: Sequence[Member], free: Sequence[int], stay: Mapping[int, Member]) -> dict[int, Member]:
    """Assign the free ranks so that edges between neighbours in rank cross few switches; return members by rank.

    pool: new members, as many as free ranks. stay: members whose ranks are fixed. A member without a path is far from
    all others.
    """
    known = {rank: member for rank, member in stay.items() if member.path}
    everybody = [*pool, *known.values()]
    row_of = switch_numbers(member.path for member in everybody if member.path)
    tiers = len(next(iter(row_of.values()), ()))
    hosts: dict[tuple[Path, str], int] = {}
    places: dict[int, tuple[int, ...]] = {}
    for index, member in enumerate(everybody):
        host = hosts.setdefault((member.path, member.host), len(hosts))
        places[index] = (host, *row_of[member.path], 0) if member.path else (-index - 1,) * (tiers + 1) + (0,)
    fixed_places = {rank: len(pool) + index for index, rank in enumerate(known)}
    index_of_rank = rank_order.fill_gaps(places, range(len(pool)), free, fixed_places)
    return {rank: pool[index] for rank, index in index_of_rank.items()}


def _keep_under_leaf(seats: Mapping[int, Member], before: Sequence[Member]) -> dict[int, Member]:
    """Exchange ranks among members under one leaf switch, so that as many as possible keep their former rank."""
    of_leaf: dict[Path, list[int]] = {}
    for rank in sorted(seats):
        of_leaf.setdefault(seats[rank].path, []).append(rank)
    new_seats: dict[int, Member] = {}
    for ranks in of_leaf.values():
        new_seats |= _former_ranks([seats[rank] for rank in ranks], before, ranks)
    return new_seats


def _crossed_switches(ranked: Sequence[Member]) -> int:
    """Count, over all tiers, the switch changes along the ring of ranks. Members without a path are skipped."""
    ring = [member.path for member in ranked if member.path]
    row_of = switch_numbers(ring)
    edges = Counter(zip(ring, [*ring[1:], *ring[:1]], strict=True))
    return sum(
        times * sum(switch != other_switch for switch, other_switch in zip(row_of[a], row_of[b], strict=True))
        for (a, b), times in edges.items()
        if a != b
    )
