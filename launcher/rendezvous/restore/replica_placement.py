"""Chooses which members keep whose replicas, and which members adopt the shards of leavers.

Replicas are placed as far apart in the fabric as an even load allows. All members form a ring in the order of their
paths, so each switch of any tier is one arc. The copies of a shard are spaced evenly around the ring.
All copies of a shard are under one switch only if that cannot be avoided. So no other choice with the same load loses
fewer shards when a switch or host fails. A single replica is half a ring away. Source: DL-60; docs/facts/dlrover.md
6.6, defects 1 and 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from turnout.launcher.coordinator_messages import MAX_REPLICAS, ReplicaGroup
from turnout.launcher.errors import BadMember
from turnout.launcher.model import World
from turnout.launcher.rendezvous.restore.restore_plan import endpoints_of
from turnout.launcher.rendezvous.state import Rings

Path = tuple[str, ...]  # switches from the root to above the host, then the host; () if unknown
Place = tuple[str, Path]  # a member's id and path


def replica_holders(
    members: Sequence[Place], replicas: int, before: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return, by member id in the order of the ring, the ids of the members that keep its replicas, the farthest first.

    members: (id, path) of each, by group rank. Members with unknown paths are neighbours. replicas: how many replicas
    of its shards each member has, and of how many others it keeps one; fewer if there are fewer other members; empty
    tuples if it is below 1. before: the result for the last world, None for none. If it has as many members, a new
    member gets the place of one that is gone, unless the failure of some switch would then lose more shards than in the
    best placement. Else a new ring is made. Raises BadMember for a duplicate id.
    """
    path_of = dict(members)
    if len(path_of) < len(members):
        twice = next(id_ for id_, times in Counter(id_ for id_, _ in members).items() if times > 1)
        raise BadMember(twice, "two members have this id")
    copies = max(0, min(replicas, len(members) - 1)) + 1
    ring = _replace_missing(path_of, list(before or ()))
    if not ring or lost_shards(_holders_on_ring(ring, copies), path_of) != _unavoidable_losses(path_of, copies):
        ring = sorted(path_of, key=lambda id_: path_of[id_])  # a stable sort: by group rank where paths are equal
    return {
        id_: tuple(sorted(others, key=lambda other: _shared_depth([path_of[id_], path_of[other]])))
        for id_, others in _holders_on_ring(ring, copies).items()
    }


def assign_heirs(leavers: Sequence[Place], stayers: Sequence[Place]) -> dict[str, str]:
    """Return, by a leaver's id, the id of the member that adopts its shards; {} if nobody stays.

    Each staying member adopts the shards of equally many leavers, plus or minus one. Among members with the least load
    the nearest is chosen, then the first. Both lists are by group rank.
    """
    load, heir_of = dict.fromkeys((id_ for id_, _ in stayers), 0), dict[str, str]()
    for id_, path in leavers if stayers else ():
        nearest = min(stayers, key=lambda other: (load[other[0]], -_shared_depth([path, other[1]])))[0]
        load[nearest] += 1
        heir_of[id_] = nearest
    return heir_of


def lost_shards(holders_of: Mapping[str, Iterable[str]], path_of: Mapping[str, Path]) -> Counter[Path]:
    """Count, by the path of a switch or host, the shards that lose all copies if it fails. Zeros are omitted.

    holders_of: ids of the replica holders, by id of the shard's owner.
    """
    losses = Counter[Path]()
    for id_, others in holders_of.items():
        paths = [path_of[id_], *(path_of[other] for other in others)]
        for depth in range(1, _shared_depth(paths) + 1):
            losses[paths[0][:depth]] += 1
    return losses


def _unavoidable_losses(path_of: Mapping[str, Path], copies: int) -> Counter[Path]:
    """Count, by the path of a switch or host, the shards that its failure loses in any placement.

    Each member outside keeps the replicas of only `copies - 1` shards. Zeros are omitted.
    """
    under = Counter(path[:depth] for path in path_of.values() for depth in range(1, len(path) + 1))
    unavoidable = {path: size - (copies - 1) * (len(path_of) - size) for path, size in under.items()}
    return Counter({path: count for path, count in unavoidable.items() if count > 0})


def _holders_on_ring(ring: Sequence[str], copies: int) -> dict[str, tuple[str, ...]]:
    """Return, by id, the `copies - 1` members that divide the ring into equal arcs together with that member."""
    size = len(ring)
    steps = [index * size // copies for index in range(1, copies)]
    return {id_: tuple(ring[(index + step) % size] for step in steps) for index, id_ in enumerate(ring)}


def _replace_missing(path_of: Mapping[str, Path], before: Sequence[str]) -> list[str]:
    """Return the former ring with new members in the places of missing ones; [] if the number of members differs.

    before: names of the former ring, in its order.
    """
    if len(before) != len(path_of):
        return []
    former = {*before}
    new = iter([id_ for id_ in path_of if id_ not in former])
    return [id_ if id_ in path_of else next(new) for id_ in before]


def _shared_depth(paths: Sequence[Path]) -> int:
    """Return how many leading entries (switches, then the host) all these paths have in common."""
    lowest, highest = min(paths), max(paths)
    depth = 0
    for switch, other_switch in zip(lowest, highest, strict=False):
        if switch != other_switch:
            break
        depth += 1
    return depth


def replica_groups(world: World, before: Rings = ()) -> tuple[dict[str, ReplicaGroup], Rings]:
    """Return the replica groups by member id, and the rings for the next call.

    Both are empty if the world has one member, or a member without a daemon that keeps replicas. before: the rings of
    the last world, so that after a replacement few replica holders change.
    """
    endpoints = endpoints_of(world.members)
    if len(endpoints) < max(len(world.members), 2):
        return {}, ()
    places = [(member.id, member.path) for member in world.members]
    counts = range(1, min(MAX_REPLICAS, len(places) - 1) + 1)
    rings = tuple(
        replica_holders(places, replicas, before[replicas - 1] if replicas <= len(before) else None)
        for replicas in counts
    )
    first, size = endpoints[world.members[0].id], len(places)
    groups = {
        id_: ReplicaGroup(first, size, tuple(tuple(endpoints[other] for other in each[id_]) for each in rings))
        for id_ in endpoints
    }
    return groups, rings
