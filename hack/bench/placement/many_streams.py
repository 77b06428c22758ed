"""A thousand streams of forty gangs each, of fresh seeds: what our choice among equals leaves for the next gangs."""

from __future__ import annotations

from collections.abc import Iterable

from hack.bench.placement import baselines, streams
from hack.bench.placement.baselines import Hosts, Room
from hack.bench.support.outcome import Outcome, Target
from turnout.topology.fabric import Fabric
from turnout.topology.model import Placement, PlacementRequest
from turnout.topology.place import plan

SEEDS = range(1_001, 2_001)  # none of those of streams.txt
_GANGS = 40


def measure(seeds: Iterable[int]) -> Outcome:
    """Replay the stream of each seed by our rule and by best fit. Return the ratio of their ring crossings as a target.

    seeds: at least one. There is no table; `more` has the two means and the number of seeds on which ours cost more.
    """
    tree, paid = streams.fabric(), []
    for seed in seeds:
        events = streams.generate(seed, gangs=_GANGS)
        paid.append([sum(streams.replay(tree, events, policy).total) for policy in (_ours, baselines.best_fit)])
    mine, theirs = (sum(column) / len(paid) / _GANGS for column in zip(*paid, strict=True))
    name = f"{len(paid)} streams of {_GANGS} gangs: mean ring crossings to best fit's"
    more = {"many streams, ours": mine, "many streams, best fit": theirs}
    more["many streams, on which ours cost more"] = sum(one > other for one, other in paid)
    return Outcome("many streams", (), [Target(name, mine / theirs, "<=", 0.97)], more=more)


def _ours(fabric: Fabric, room: Room, pods: int) -> Hosts | None:
    answer = plan(fabric, room, PlacementRequest(pods, pods, pods))
    return [host for host, count in answer.slots for _ in range(count)] if isinstance(answer, Placement) else None
