"""Streams of gangs that come and go on 128 whole nodes: 4 spines of 4 leaves of 8.

Sizes 2 to 24, small ones more often (a size's share falls as 1/size). There is always a next gang; it comes as soon as
it leaves the cluster no fuller than the limit, 90 % unless said, and each leaves after a lifetime of its own. Whether a
gang fits does not depend on where the others sit, so every policy meets the same arrivals and departures. Those of
90 % are kept in streams.txt, one seed a line: "+12" a gang of 12 comes, "-3" the fourth gang that came leaves.
`python -m hack.bench.placement.streams` rewrites it.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hack.bench.placement.baselines import Hosts, Room
from turnout.topology.fabric import Fabric, build, ring_cost
from turnout.topology.model import MapEntry

NODES = 128
SEEDS = range(1, 21)
GANGS = 300
FULL = 0.9
_FILE = Path(__file__).with_name("streams.txt")

Policy = Callable[[Fabric, Room, int], Hosts | None]


@dataclass(frozen=True, slots=True)
class StreamCost:
    """The cost of one policy over one stream."""

    total: tuple[int, ...]  # ring crossings of each gang, over all tiers
    leaf: tuple[int, ...]  # ring crossings of leaves, of each gang
    full: float  # mean share of nodes taken after an arrival


def fabric() -> Fabric:
    """Return the fabric of all streams. The names of its nodes are shuffled, so that no policy profits from the
    order of names.
    """
    names = sorted(range(NODES), key=lambda at: hashlib.sha256(str(at).encode()).digest())
    return build(
        MapEntry(f"node{name}", (f"spine{at // 32}", f"leaf{at // 8 % 4}"), at + 1) for at, name in enumerate(names)
    )


def generate(seed: int, full: float = FULL, gangs: int = GANGS) -> list[int]:
    """Draw the events of a seed: n > 0 means a gang of n pods comes, n <= 0 means that gang number -n leaves.

    full: highest share of taken nodes. gangs: their number.
    """
    rng = random.Random(seed)
    weights = [1 / size for size in range(2, 25)]
    events: list[int] = []
    running: list[tuple[float, int, int]] = []  # end, number, size
    sizes = 0
    now = 0.0
    used = 0
    while sizes < gangs:
        size, mark = 2, rng.random() * sum(weights)
        while mark > weights[size - 2] and size < 24:
            mark -= weights[size - 2]
            size += 1
        while used + size > full * NODES:
            now, number, released = heapq.heappop(running)
            used -= released
            events.append(-number)
        heapq.heappush(running, (now - math.log(1 - rng.random()), sizes, size))
        events.append(size)
        sizes += 1
        used += size
    return events


def read_committed() -> dict[int, list[int]]:
    """Return the events of every seed as the repository keeps them."""
    return {seed: _read(line) for seed, line in zip(SEEDS, _FILE.read_text().splitlines(), strict=True)}


def first_gangs(events: Sequence[int], gangs: int) -> list[int]:
    """Return the beginning of a stream: its first `gangs` gangs, and the departures before the next gang comes.

    events: as `generate` returns them.
    """
    found: list[int] = []
    for event in events:
        gangs -= event > 0
        if gangs < 0:
            break
        found.append(event)
    return found


def digest(events: Iterable[Sequence[int]]) -> str:
    """Return a digest of the streams: two runs with the same digest had the same input."""
    return hashlib.sha256("\n".join(map(_write, events)).encode()).hexdigest()[:16]


def replay(tree: Fabric, events: Sequence[int], policy: Policy) -> StreamCost:
    """Replay a stream under a policy on the empty fabric `tree`, and return its ring costs.

    Every gang of a stream fits. Raises RuntimeError if the policy finds no place, or an invalid one. events: as
    `generate` returns them.
    """
    room = np.ones(NODES, np.int32)
    placements: list[Hosts] = []
    total, leaf, full = [], [], []
    for event in events:
        if event <= 0:
            room[placements[-event]] += 1
            continue
        hosts = policy(tree, room, event)
        if hosts is None or len(hosts) != event or len(set(hosts)) != event or (room[hosts] != 1).any():
            raise RuntimeError(f"a policy places a gang of {event} wrongly or not at all")
        room[hosts] -= 1
        full.append(1 - int(room.sum()) / NODES)
        placements.append(hosts)
        paid = ring_cost(tree, hosts)
        total.append(paid.total)
        leaf.append(paid.crossings[0])
    return StreamCost(tuple(total), tuple(leaf), sum(full) / len(full))


def _write(events: Sequence[int]) -> str:
    return " ".join(f"+{event}" if event > 0 else f"-{-event}" for event in events)


def _read(line: str) -> list[int]:
    return [int(word) for word in line.split()]


if __name__ == "__main__":
    _FILE.write_text("".join(_write(generate(seed)) + "\n" for seed in SEEDS))
