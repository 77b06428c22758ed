"""Who keeps whose replicas, and who takes over from those that leave.

Copies stand as far apart in the fabric as an even load allows.

All members stand on a ring in the order of their paths, so that each switch, of whatever tier, is one arc of it. The
copies of a shard stand evenly around it. An arc then holds all copies of a shard only if it must: whichever switch or
host is lost, no other choice with the same load loses fewer shards. Half a ring is the distance of a single buddy.
Source: DL-60; docs/facts/dlrover.md 6.6, defects 1 and 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from turnout.launcher.errors import BadMember

Path = tuple[str, ...]
Place = tuple[str, Path]


def buddies(
    members: Sequence[Place], replicas: int, before: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Choose for each member those that keep its replicas, the farthest first: id -> ids, in the order of the ring.

    members: (id, path) by group rank; path: the switches from the root down, and then the host, () when nobody knows.
    Members of an unknown path stand together. replicas: how many each has, and how many each keeps; fewer where there
    are fewer others. before: what this gave for the last world: a replacement then takes the place of whom it
    replaces, as long as no loss of a switch gets any worse by that, and only those who had to do with it change.
    Raises BadMember for an id that is told twice.
    """
    path_of = dict(members)
    if len(path_of) < len(members):
        twice = next(id_ for id_, times in Counter(id_ for id_, _ in members).items() if times > 1)
        raise BadMember(twice, "this id is told twice")
    copies = max(0, min(replicas, len(members) - 1)) + 1
    ring = _refilled(path_of, list(before or ()))
    if not ring or lost(_around(ring, copies), path_of) != _least(path_of, copies):
        ring = sorted(path_of, key=lambda id_: path_of[id_])  # stable: by group rank where paths are equal
    return {
        id_: tuple(sorted(others, key=lambda other: _shared([path_of[id_], path_of[other]])))
        for id_, others in _around(ring, copies).items()
    }


def heirs(leavers: Sequence[Place], stayers: Sequence[Place]) -> dict[str, str]:
    """Choose for each that leaves who takes over what only it has: id -> id; nobody where nobody stays.

    Each gets as many as the others, or one more; of those with the fewest the nearest, since there is little time, and
    the first of these. Both by group rank, as in `buddies`.
    """
    load, found = dict.fromkeys((id_ for id_, _ in stayers), 0), dict[str, str]()
    for id_, path in leavers if stayers else ():
        nearest = min(stayers, key=lambda other: (load[other[0]], -_shared([path, other[1]])))[0]
        load[nearest] += 1
        found[id_] = nearest
    return found


def lost(kept: Mapping[str, Iterable[str]], path_of: Mapping[str, Path]) -> Counter[Path]:
    """Count the shards of which no copy is left when a switch or a host is lost: by its path, those of 0 left out.

    kept: id -> who keeps replicas of its shard.
    """
    found = Counter[Path]()
    for id_, others in kept.items():
        paths = [path_of[id_], *(path_of[other] for other in others)]
        for depth in range(1, _shared(paths) + 1):
            found[paths[0][:depth]] += 1
    return found


def _least(path_of: Mapping[str, Path], copies: int) -> Counter[Path]:
    """What is lost at the least: who stands elsewhere keeps `copies - 1` shards each, and no more."""
    under = Counter(path[:depth] for path in path_of.values() for depth in range(1, len(path) + 1))
    least = {path: held - (copies - 1) * (len(path_of) - held) for path, held in under.items()}
    return Counter({path: count for path, count in least.items() if count > 0})


def _around(ring: Sequence[str], copies: int) -> dict[str, tuple[str, ...]]:
    """Give each those that stand at equal distances around the ring."""
    size = len(ring)
    steps = [at * size // copies for at in range(1, copies)]
    return {id_: tuple(ring[(at + step) % size] for step in steps) for at, id_ in enumerate(ring)}


def _refilled(path_of: Mapping[str, Path], before: Sequence[str]) -> list[str]:
    """The ring of before with new members in the places of those that are gone; [] if it has another size."""
    if len(before) != len(path_of):
        return []
    there = {*before}
    new = iter([id_ for id_ in path_of if id_ not in there])
    return [id_ if id_ in path_of else next(new) for id_ in before]


def _shared(paths: Sequence[Path]) -> int:
    """How many switches, from the root down, all these paths have in common."""
    lowest, highest = min(paths), max(paths)
    depth = 0
    for one, other in zip(lowest, highest, strict=False):
        if one != other:
            break
        depth += 1
    return depth
