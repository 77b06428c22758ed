"""A thousand streams of forty gangs each, of fresh seeds: what our choice among equals leaves for the next gangs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hack.bench.placement import baselines, streams
from hack.bench.placement.baselines import Hosts, Room
from hack.bench.support.outcome import Target
from turnout.topology.fabric import Fabric
from turnout.topology.model import Ask, Placement
from turnout.topology.place import plan

SEEDS = range(1_001, 2_001)  # none of those of streams.txt
_GANGS = 40


@dataclass(frozen=True, slots=True)
class Many:
    """Mean ring crossings a gang, and the streams on which ours cost more."""

    streams: int
    ours: float
    best_fit: float
    worse: int

    def figures(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {
            "many_streams": self.streams,
            "many_ours": self.ours,
            "many_best_fit": self.best_fit,
            "many_ours_to_best_fit": self.ours / self.best_fit,
            "many_worse": self.worse,
        }

    def targets(self) -> tuple[Target, ...]:
        """Return what the figures have to reach."""
        name = f"{self.streams} streams of {_GANGS} gangs: mean ring crossings to best fit's"
        return (Target(name, self.ours / self.best_fit, "<=", 0.97),)


def measure(seeds: Iterable[int]) -> Many:
    """Replay each stream twice."""
    tree, paid = streams.fabric(), []
    for seed in seeds:
        events = streams.generate(seed, gangs=_GANGS)
        paid.append([sum(streams.replay(tree, events, policy).total) for policy in (_ours, baselines.best_fit)])
    mine, theirs = (sum(column) / len(paid) / _GANGS for column in zip(*paid, strict=True))
    return Many(len(paid), mine, theirs, sum(one > other for one, other in paid))


def _ours(fabric: Fabric, room: Room, pods: int) -> Hosts | None:
    answer = plan(fabric, room, Ask(pods, pods, pods))
    return [host for host, count in answer.slots for _ in range(count)] if isinstance(answer, Placement) else None
