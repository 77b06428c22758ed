"""Chooses which members keep whose replicas, and which take over the shards of leavers.

Replicas are placed as far apart in the fabric as an even load allows. All members form a ring in the order of their
paths, so each switch of any tier is one arc. The copies of a shard are spaced evenly around the ring.
An arc holds all copies of a shard only if that cannot be avoided. So no other choice with the same load loses fewer
shards when a switch or host fails. A single replica is half a ring away. Source: DL-60; docs/facts/dlrover.md 6.6,
defects 1 and 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from turnout.launcher.coordinator_messages import MOST_COPIES, ReplicaGroup
from turnout.launcher.errors import BadMember
from turnout.launcher.model import World
from turnout.launcher.rendezvous.restore.restore_plan import endpoints_of
from turnout.launcher.rendezvous.state import Rings

Path = tuple[str, ...]

Place = tuple[str, Path]


def replica_holders(
    members: Sequence[Place], replicas: int, before: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Choose the replica holders of each member, the farthest first: a map from id to ids, in the order of the ring.

    members: (id, path) by group rank. A path has the switches from the root, then the host; () if unknown. Members with
    unknown paths are neighbours.
    replicas: how many each member has and keeps; fewer if there are fewer other members.
    before: the result for the last world. A new member then takes the place of the one it replaces, if no switch
    failure loses more by that.
    Raises BadMember for an id given twice.
    """
    path_of = dict(members)
    if len(path_of) < len(members):
        twice = next(id_ for id_, times in Counter(id_ for id_, _ in members).items() if times > 1)
        raise BadMember(twice, "this id is told twice")
    copies = max(0, min(replicas, len(members) - 1)) + 1
    ring = _replace_missing(path_of, list(before or ()))
    if not ring or lost_shards(_holders_on_ring(ring, copies), path_of) != _unavoidable_losses(path_of, copies):
        ring = sorted(path_of, key=lambda id_: path_of[id_])  # a stable sort: by group rank where paths are equal
    return {
        id_: tuple(sorted(others, key=lambda other: _shared([path_of[id_], path_of[other]])))
        for id_, others in _holders_on_ring(ring, copies).items()
    }


def assign_heirs(leavers: Sequence[Place], stayers: Sequence[Place]) -> dict[str, str]:
    """Choose for each leaver the member that takes over its shards: a map from id to id, empty if nobody stays.

    Loads differ by at most one. Among the least loaded the nearest is chosen, since time is short, then the first. Both
    lists are by group rank.
    """
    load, found = dict.fromkeys((id_ for id_, _ in stayers), 0), dict[str, str]()
    for id_, path in leavers if stayers else ():
        nearest = min(stayers, key=lambda other: (load[other[0]], -_shared([path, other[1]])))[0]
        load[nearest] += 1
        found[id_] = nearest
    return found


def lost_shards(holders_of: Mapping[str, Iterable[str]], path_of: Mapping[str, Path]) -> Counter[Path]:
    """Count the shards that lose all copies when a switch or host fails, by its path. Zeros are left out.

    holders_of: replica holders by id.
    """
    found = Counter[Path]()
    for id_, others in holders_of.items():
        paths = [path_of[id_], *(path_of[other] for other in others)]
        for depth in range(1, _shared(paths) + 1):
            found[paths[0][:depth]] += 1
    return found


def _unavoidable_losses(path_of: Mapping[str, Path], copies: int) -> Counter[Path]:
    """Count the shards that must be lost at least: each member elsewhere keeps only `copies - 1` shards."""
    under = Counter(path[:depth] for path in path_of.values() for depth in range(1, len(path) + 1))
    least = {path: size - (copies - 1) * (len(path_of) - size) for path, size in under.items()}
    return Counter({path: count for path, count in least.items() if count > 0})


def _holders_on_ring(ring: Sequence[str], copies: int) -> dict[str, tuple[str, ...]]:
    """Choose for each member the ones at equal distances around the ring."""
    size = len(ring)
    steps = [at * size // copies for at in range(1, copies)]
    return {id_: tuple(ring[(at + step) % size] for step in steps) for at, id_ in enumerate(ring)}


def _replace_missing(path_of: Mapping[str, Path], before: Sequence[str]) -> list[str]:
    """Return the former ring with new members in the places of missing ones; [] if its size differs."""
    if len(before) != len(path_of):
        return []
    former = {*before}
    new = iter([id_ for id_ in path_of if id_ not in former])
    return [id_ if id_ in path_of else next(new) for id_ in before]


def _shared(paths: Sequence[Path]) -> int:
    """Count the switches, from the root down, that all these paths have in common."""
    lowest, highest = min(paths), max(paths)
    depth = 0
    for one, other in zip(lowest, highest, strict=False):
        if one != other:
            break
        depth += 1
    return depth


def replica_groups(world: World, before: Rings = ()) -> tuple[dict[str, ReplicaGroup], Rings]:
    """Return the replica groups by member id, and the rings that say who keeps whose replicas.

    Empty if the world has one member, or one whose daemon takes no replicas. before: rings of the last world; after a
    replacement as few replica holders as possible change.
    """
    endpoints = endpoints_of(world.members)
    if len(endpoints) < max(len(world.members), 2):
        return {}, ()
    places = [(member.id, member.path) for member in world.members]
    counts = range(1, min(MOST_COPIES, len(places) - 1) + 1)
    rings = tuple(
        replica_holders(places, copies, before[copies - 1] if copies <= len(before) else None) for copies in counts
    )
    first, size = endpoints[world.members[0].id], len(places)
    groups = {
        id_: ReplicaGroup(first, size, tuple(tuple(endpoints[other] for other in each[id_]) for each in rings))
        for id_ in endpoints
    }
    return groups, rings
