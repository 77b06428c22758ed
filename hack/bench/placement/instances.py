"""Single decisions to compare on: fabrics of any make, partly taken, and one gang that fits.

Made by a seeded generator that only uses random(), which Python keeps stable; the digest of all inputs is printed, so
two runs that print the same one measured the same.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from hack.bench.placement.baselines import Room
from turnout.topology.fabric import Fabric, build
from turnout.topology.model import MapEntry


@dataclass(frozen=True, slots=True)
class PlacementInstance:
    """One fabric, the room of its hosts, and the gang's pods."""

    kind: str
    fabric: Fabric
    room: Room
    pods: int


def draw(seed: int) -> PlacementInstance:
    """Draw the instance of a seed. The kinds of fabric take turns with the seeds. The same seed always gives the
    same instance.
    """
    rng = random.Random(seed)
    kind, shape = _KINDS[seed % len(_KINDS)]
    fabric = build(shape(rng))
    room = _room(rng, fabric)
    total = int(room.sum())
    maximum = min(total, 4 + int(rng.random() ** 2 * total))
    return PlacementInstance(kind, fabric, room, 1 + int(rng.random() * maximum))


def digest(drawn: Iterable[PlacementInstance]) -> str:
    """Return a digest of the instances: two runs with the same digest had the same input."""
    checksum = hashlib.sha256()
    for one in drawn:
        checksum.update(repr((one.fabric.names, one.room.tolist(), one.pods)).encode())
    return checksum.hexdigest()[:16]


def _random_between(rng: random.Random, low: int, high: int) -> int:
    return low + int(rng.random() * (high - low + 1))


def _room(rng: random.Random, fabric: Fabric) -> Room:
    """Draw the free slots of each host: whole nodes or single GPUs, some leaves nearly empty, some nearly full."""
    slots = 1 if rng.random() < 0.5 else 8
    fullness = rng.random()
    of_leaf = [min(1.0, max(0.0, fullness + rng.random() - 0.5)) for _ in fabric.starts[1]]
    free = [
        sum(rng.random() >= of_leaf[leaf] for _ in range(slots))
        if rng.random() < 0.7
        else slots * (rng.random() >= of_leaf[leaf])
        for leaf in fabric.switch_of[1].tolist()
    ]
    free[0] = max(free[0], 1)
    return np.array(free, np.int32)


def _regular(rng: random.Random) -> list[MapEntry]:
    leaves, hosts = _random_between(rng, 2, 8), _random_between(rng, 2, 16)
    paths = [(f"s{s}", f"l{leaf}") for s in range(_random_between(rng, 2, 6)) for leaf in range(leaves)]
    return _entries([(path, hosts) for path in paths])


def _irregular(rng: random.Random) -> list[MapEntry]:
    paths = [
        (f"s{s}", f"l{leaf}") for s in range(_random_between(rng, 2, 7)) for leaf in range(_random_between(rng, 1, 9))
    ]
    return _entries([(path, _random_between(rng, 1, 20)) for path in paths])


def _multi_tier(rng: random.Random) -> list[MapEntry]:
    """Draw the map entries of a fabric with three tiers of switches: 2 to 10 hosts under each leaf."""
    paths = [
        (f"c{c}", f"s{s}", f"l{leaf}")
        for c in range(_random_between(rng, 2, 4))
        for s in range(_random_between(rng, 1, 4))
        for leaf in range(_random_between(rng, 1, 5))
    ]
    return _entries([(path, _random_between(rng, 2, 10)) for path in paths])


def _random(rng: random.Random) -> list[MapEntry]:
    """Draw a fabric whose branches have any depth: hosts beside switches, short branches, single leaves."""
    paths = [
        tuple(f"n{_random_between(rng, 0, 3)}" for _ in range(_random_between(rng, 1, 4)))
        for _ in range(_random_between(rng, 8, 40))
    ]
    return _entries([(path, _random_between(rng, 1, 8)) for path in sorted(set(paths))])


def _entries(leaves: list[tuple[tuple[str, ...], int]]) -> list[MapEntry]:
    hosts = [path for path, count in leaves for _ in range(count)]
    return [MapEntry(f"gpu{at}", path, at + 1) for at, path in enumerate(hosts)]


_KINDS: list[tuple[str, Callable[[random.Random], list[MapEntry]]]] = [
    ("regular", _regular),
    ("irregular", _irregular),
    ("multi-tier", _multi_tier),
    ("random", _random),
]
