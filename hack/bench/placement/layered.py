"""Layered asks against the exact optimum, and their speed: runs of ranks under a leaf within runs under a spine."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import numpy as np

from hack.bench.placement import exact
from hack.bench.placement.baselines import Room
from hack.bench.support.outcome import Outcome, Target
from turnout.topology.fabric import Fabric, build, ring_cost
from turnout.topology.layers import place_in_layers
from turnout.topology.mesh import hosts_of
from turnout.topology.model import MapEntry, Placement, PlacementRequest

_CLOSES_S = 5.0
_SIZES = ((2, 1), (4, 2), (6, 2), (6, 3), (8, 4), (12, 4))  # of a spine's runs, and of a leaf's within
_DEEP = ((2, 64), (1, 8))  # of 512 pods


def measure(count: int, repeats: int) -> Outcome:
    """Place one gang in two layers for each of `count` seeds, and compare with the optimum where CP-SAT proved it.

    repeats: how often a large gang is timed. Raises RuntimeError if a placement violates the request, and ValueError if
    no gang is both placed and proved.
    """
    paid: list[tuple[int, int]] = []
    missed = 0
    for seed in range(count):
        fabric, room, pods, layers = draw_instance(seed)
        minimum = exact.optimum(fabric, room, pods, _CLOSES_S, layers)
        found = place_in_layers(fabric, room, PlacementRequest(pods, pods, pods, layers=layers))
        if isinstance(found, Placement):
            _check(fabric, room, found, pods, layers)
        if minimum is None:
            continue
        if not isinstance(found, Placement):
            missed += 1
            continue
        paid.append((ring_cost(fabric, hosts_of(found)).total, minimum))
    ours, optimum = (sum(column) for column in zip(*paid, strict=True))
    worst, p99_ms = max(((ours + 1) / (minimum + 1) for ours, minimum in paid), default=1.0), _p99_ms(repeats)
    return Outcome(
        "layers",
        (),
        [
            Target("layered asks: cost to exact optimum", ours / max(optimum, 1), "<=", 1.02),
            Target("layered asks that fit and are refused", missed, "<=", 0),
            Target("512 members in two layers on 50,000 hosts, p99 ms", p99_ms, "<=", 50.0),
        ],
        more={"layered asks, closed": len(paid), "layered asks, worst to optimum": worst},
    )


def draw_instance(seed: int) -> tuple[Fabric, Room, int, tuple[tuple[int, int], ...]]:
    """Draw (fabric, room, pods, layers): a fabric of cores, spines and leaves, the pods that each host holds, by host
    ID, and the pods of a gang, which may not fit.

    layers: (tier, size) of the spines, then of the leaves: the number of the gang's pods under each switch of the tier
    is a multiple of the size. The same seed gives the same instance.
    """
    rng = random.Random(seed)
    paths = [
        (f"c{core}", f"s{spine}", f"l{leaf}")
        for core in range(rng.randint(1, 3))
        for spine in range(rng.randint(1, 4))
        for leaf in range(rng.randint(1, 6))
    ]
    hosts = [path for path in paths for _ in range(rng.randint(2, 10))]
    fabric = build(MapEntry(f"n{at}", path, at + 1) for at, path in enumerate(hosts))
    room = np.array([rng.choice((0, 0, 1, 1, 2)) for _ in hosts], np.int32)
    outer, inner = rng.choice(_SIZES)
    maximum = max(1, int(room.sum()) // outer // 2)
    return fabric, room, outer * rng.randint(1, maximum), ((2, outer), (1, inner))


def _check(fabric: Fabric, room: Room, found: Placement, pods: int, layers: Sequence[tuple[int, int]]) -> None:
    """Raise RuntimeError if a placement has the wrong number of pods, exceeds the room or violates a layer."""
    counts = np.bincount(hosts_of(found), minlength=len(room))
    is_whole = all((np.add.reduceat(counts, fabric.starts[tier]) % size == 0).all() for tier, size in layers)
    if found.pods != pods or (counts > room).any() or not is_whole:
        raise RuntimeError("a placement violates its request")


def _p99_ms(repeats: int) -> float:
    """Return the 99th percentile of the time, in ms, to place 512 pods on 50,000 hosts. Each of the `repeats` calls
    has a new room.
    """
    places = [(f"c{c}", f"s{s}", f"l{leaf}") for c in range(10) for s in range(25) for leaf in range(25)]
    fabric = build(MapEntry(f"gpu{at * 8 + of}", path, 1) for at, path in enumerate(places) for of in range(8))
    times_ms = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        room = (rng.random(len(fabric.hosts)) < 0.3 + 0.6 * rng.random()).astype(np.int32) * 8
        if seed % 2:
            room = rng.integers(0, 4, len(fabric.hosts)).astype(np.int32)
        begun = time.perf_counter()
        place_in_layers(fabric, room, PlacementRequest(512, 512, 512, layers=_DEEP))
        times_ms.append((time.perf_counter() - begun) * 1e3)
    return float(np.percentile(times_ms, 99))
