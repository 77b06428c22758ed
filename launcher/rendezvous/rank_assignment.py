"""Assigns group ranks to members, so that neighbours in rank are neighbours in the fabric.

The order of places is known in topology. A new or resized world is ranked anew; after a replacement the other members
keep their ranks. Members with unknown places come last and cross no switch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from turnout.launcher.model import MOST_MEMBERS, Member
from turnout.topology import rank_order
from turnout.topology.switch_paths import Key, natural_key, switch_numbers

Path = tuple[str, ...]
Index = tuple[int, Key, str]


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits the crossings that a replacement may leave: `times` the minimum plus `more`. Above it all are ranked anew.

    One member in a new place adds at most two crossings, so two are always allowed. Half as many again as the minimum
    cost less time than moving what is in memory.
    """

    times: float = 1.5
    more: int = 2

    def allows(self, crossings: int, least: int) -> bool:
        """Return True if `crossings` are within the limit."""
        return crossings <= self.times * least + self.more


LIMIT = Limit()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Members in the order of group rank, and the cost of that order."""

    members: tuple[Member, ...]
    crossings: int = 0  # edges of the ring that leave a leaf switch
    optimum: int = 0  # the fewest crossings of any order
    moved: int = 0  # former members whose group rank has changed
    is_new: bool = True  # True if no rank was kept

    @property
    def excess(self) -> int:
        """Return the crossings that another order would save."""
        return self.crossings - self.optimum


def rank_members(
    members: Sequence[Member], before: Sequence[Member] = (), limit: Limit = LIMIT, *, by_index: bool = False
) -> Ranking:
    """Give every member a group rank, independent of the order of `members`.

    by_index: ranks follow the workers' indexes, wherever they are. The job's mesh was placed so, or its owner knows
    better. before: the last world by group rank, () for none. A member is a former one if name and path are equal. One
    that came back elsewhere under its name is new, and gets its old rank if no other costs less.
    Source: docs/facts/launcher.md 9 row 18; pytorch#191190
    """
    least = optimum(members)
    members = sorted(members, key=_index)
    if by_index:
        return Ranking(tuple(members), crossings(members), least, _moved(members, before))
    stay = _staying_ranks(members, before) if len(members) == len(before) else {}
    if stay:
        ranked = _replace_missing(members, before, stay)
        crossed = crossings(ranked)
        if limit.allows(crossed, least):
            return Ranking(tuple(ranked), crossed, least, _moved(ranked, before), is_new=False)
    ranked = _sort_by_rank(members)
    return Ranking(tuple(ranked), crossings(ranked), least, _moved(ranked, before))


def crossings(members: Iterable[Member]) -> int:
    """Count the edges that leave a leaf switch, in the ring of members with known places."""
    paths = [member.path for member in members if member.path]
    return sum(path != after for path, after in zip(paths, [*paths[1:], *paths[:1]], strict=True))


def optimum(members: Iterable[Member]) -> int:
    """Return the fewest crossings of any order: one per leaf, or none if there is only one leaf."""
    leaves = len({member.path for member in members if member.path})
    return leaves if leaves > 1 else 0


def addresses_by_rank(members: Iterable[Member]) -> tuple[str, ...]:
    """Return the addresses by rank, for the log. Source: DL-107"""
    return tuple(member.address for member in members)


def _index(member: Member) -> Index:
    """Return the sort key among equal members: the worker's index, else its name in natural order (worker-2 before
    worker-10).
    """
    return (MOST_MEMBERS if member.index is None else member.index, natural_key(member.name), member.id)


def _moved(ranked: Sequence[Member], before: Sequence[Member]) -> int:
    """Count the members whose rank is not the one before; a new member counts as well."""
    was = {member.name: rank for rank, member in enumerate(before)}
    return sum(was.get(member.name, rank) != rank for rank, member in enumerate(ranked))


def _staying_ranks(members: Sequence[Member], before: Sequence[Member]) -> dict[int, Member]:
    """Map ranks to the members that have the same name and place as before."""
    was = {member.name: rank for rank, member in enumerate(before)}
    stay: dict[int, Member] = {}
    for member in members:
        rank = was.get(member.name)
        if rank is not None and before[rank].path == member.path:
            stay.setdefault(rank, member)
    return stay


def _sort_by_rank(members: Sequence[Member], others: Sequence[Member] = ()) -> list[Member]:
    """Sort members, given by index, into rank order.

    others: members that count when dense and sparse switches are told apart, but are not returned.
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
    """Keep the ranks of staying members and place new ones between them, in their old ranks if that costs no more."""
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
    """Assign the free ranks of before: by name, then by index, then in order."""
    by_name = {before[rank].name: rank for rank in free}
    by_order: dict[int | None, int] = {before[rank].index: rank for rank in free if before[rank].index is not None}
    preferences: tuple[Callable[[Member], int | None], ...] = (
        lambda member: by_name.get(member.name),
        lambda member: by_order.get(member.index),
    )
    seats: dict[int, Member] = {}
    for preferred_rank in preferences:
        left = []
        for member in new:
            rank = preferred_rank(member)
            if rank is None or seats.setdefault(rank, member) is not member:
                left.append(member)
        new = left
    return {**seats, **dict(zip((rank for rank in free if rank not in seats), new, strict=True))}


def _fill_by_fabric(pool: Sequence[Member], free: Sequence[int], stay: Mapping[int, Member]) -> dict[int, Member]:
    """Fill the free ranks so that few switches are crossed. A member with an unknown place counts as near to nobody."""
    known = {rank: member for rank, member in stay.items() if member.path}
    everybody = [*pool, *known.values()]
    row_of = switch_numbers(member.path for member in everybody if member.path)
    tiers = len(next(iter(row_of.values()), ()))
    hosts: dict[tuple[Path, str], int] = {}
    places: dict[int, tuple[int, ...]] = {}
    for at, member in enumerate(everybody):
        host = hosts.setdefault((member.path, member.host), len(hosts))
        places[at] = (host, *row_of[member.path], 0) if member.path else (-at - 1,) * (tiers + 1) + (0,)
    fixed_places = {rank: len(pool) + at for at, rank in enumerate(known)}
    given = rank_order.fill_gaps(places, range(len(pool)), free, fixed_places)
    return {rank: pool[at] for rank, at in given.items()}


def _keep_under_leaf(seats: Mapping[int, Member], before: Sequence[Member]) -> dict[int, Member]:
    """Exchange ranks among members under one leaf, so that as many as possible keep their own."""
    of_leaf: dict[Path, list[int]] = {}
    for rank in sorted(seats):
        of_leaf.setdefault(seats[rank].path, []).append(rank)
    found: dict[int, Member] = {}
    for ranks in of_leaf.values():
        found |= _former_ranks([seats[rank] for rank in ranks], before, ranks)
    return found


def _crossed_switches(ranked: Sequence[Member]) -> int:
    """Count the switches of every tier that edges of the ring cross."""
    ring = [member.path for member in ranked if member.path]
    row_of = switch_numbers(ring)
    edges = Counter(zip(ring, [*ring[1:], *ring[:1]], strict=True))
    return sum(
        times * sum(one != other for one, other in zip(row_of[a], row_of[b], strict=True))
        for (a, b), times in edges.items()
        if a != b
    )
