"""The quality of placements, compared with best fit by level, the default spread and the exact optimum, and their
speed.

A gang's cost is its ring: every edge that leaves a leaf, plus every one that leaves a spine, and so on. Inputs come
from this folder; nothing here was used to choose between rules: that was done on other seeds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from hack.bench.placement import (
    baselines,
    churn,
    exact,
    instances,
    layered,
    many_streams,
    mixed_sizes,
    preemptions,
    streams,
    trickling,
)
from hack.bench.placement.baselines import Hosts, Room
from hack.bench.placement.mesh import gangs as meshes
from hack.bench.support.measure import ratio
from hack.bench.support.outcome import Outcome, Scale, Table, Target, combine
from turnout.topology.fabric import Fabric, build, ring_cost
from turnout.topology.model import MapEntry, Placement, PlacementRequest
from turnout.topology.place import plan

_CLOSES_S = 5.0  # CP-SAT's time for one instance
_CEILINGS = (0.85, 0.9, 0.95)


def run(scale: Scale) -> Outcome:
    """Measure single decisions, streams and speed, and return the outcome of all parts."""
    single = _compare_decisions(scale.pick(800, 80, 2))
    by_ceiling = {full: _replay_streams(full) for full in scale.pick(_CEILINGS, (streams.FULL,), (streams.FULL,))}
    trickle_costs = trickling.measure(our_hosts, scale.pick(streams.SEEDS, range(1, 4), range(1, 2)))
    speed = _placement_times(*scale.pick((31, 200), (9, 20), (1, 1)))
    rows = by_ceiling[streams.FULL]
    worst = max(rows, key=lambda row: row.ours[0] - row.best_fit[0])
    worse = single.worse + sum(row.worse for some in by_ceiling.values() for row in some)
    slowest = max(p99 for name, _, p99 in speed if p99 is not None)
    trickled_worse = sum(max(row.in_order, row.shuffled) > row.together for row in trickle_costs)
    to_best_fit = _mean(row.ours[0] for row in rows) / _mean(row.best_fit[0] for row in rows)
    columns = {"one plan, members of hosts": "", "median ms": ".3f", "p99 ms": ".3f"}
    return combine(
        "placement: rings that cross few switches",
        Outcome(
            "whole gangs",
            (single.table(), *(_stream_table(full, some) for full, some in by_ceiling.items()),
             trickling.table(trickle_costs), Table("speed", columns, speed)),
            (
                Target("mean cost to exact optimum, where CP-SAT closed", single.ratio, "<=", 1.02),
                Target("instances on which best fit by level is cheaper", worse, "<=", 0),
                Target("streams: mean ring crossings to best fit's, 20 seeds", to_best_fit, "<=", 0.97),
                Target("seeds on which pods that trickle in cost a ring more", trickled_worse, "<=", 0),
                Target("512 members on 50,000 hosts, slowest scene's p99 ms", slowest, "<=", 50.0),
            ),
            _notes(single, worst),
        ),
        meshes.outcome(meshes.measure(range(scale.pick(400, 60, 2)))),
        layered.measure(*scale.pick((500, 200), (60, 40), (2, 2))),
        many_streams.measure(many_streams.SEEDS[: scale.pick(None, 50, 2)]),
        preemptions.measure(scale.pick(1_000, 60, 2)),
        churn.measure(*scale.pick((churn.SEEDS, churn.GANGS), (churn.SEEDS[:1], 300), (churn.SEEDS[:1], 100)),
                      scale.pick(churn.HOSTS, churn.HOSTS[:2], churn.HOSTS[:1])),
        mixed_sizes.measure(*scale.pick((range(10), 2_000), (range(4), 2_000), (range(1), 300))),
    )  # fmt: skip


def _notes(single: _DecisionCosts, worst: _SeedCosts) -> tuple[str, ...]:
    """Return the notes about proved instances, the worst seed and the digests of the inputs."""
    return (
        f"CP-SAT proved {single.closed} of {single.count} instances, {_CLOSES_S:g} s each at most.",
        f"Worst of the 20 seeds for us: {worst.seed}, {worst.ours[0]:.3f} a gang, best fit {worst.best_fit[0]:.3f}.",
        f"Inputs: instances {single.digest}, streams {streams.digest(streams.read_committed().values())}.",
        "Ours planned every instance and gang twice and answered alike.",
    )


def our_hosts(fabric: Fabric, room: Room, pods: int) -> Hosts | None:
    """Return our host of each pod; None if the gang does not fit. pods: of the gang.

    Raises RuntimeError if a second plan differs.
    """
    shape_request = PlacementRequest(pods, pods, pods)
    answer = plan(fabric, room, shape_request)
    if plan(fabric, room, shape_request) != answer:
        raise RuntimeError("two answers to one question")
    return [host for host, count in answer.slots for _ in range(count)] if isinstance(answer, Placement) else None


@dataclass(slots=True)
class _DecisionCosts:
    """Single decisions that CP-SAT closed, by kind of fabric.

    costs: ring crossings of (ours, best fit, spread, optimum) of each. leaves: those of leaves alone, without optimum.
    """

    count: int
    closed: int
    worse: int
    ratio: float
    digest: str
    costs: dict[str, list[tuple[int, ...]]]
    leaves: dict[str, list[tuple[int, ...]]]

    def table(self) -> Table:
        """Return the table of mean ring crossings by kind of fabric."""
        rows = []
        costs, leaves = dict(sorted(self.costs.items())), dict(self.leaves)
        for every in (costs, leaves):
            every["all"] = [row for part in every.values() for row in part]
        for kind in costs:
            means = np.mean(costs[kind], axis=0).tolist()
            in_leaves = "/".join(f"{value:.2f}" for value in np.mean(leaves[kind], axis=0))
            rows.append((kind, len(costs[kind]), *means, ratio(means[0], means[3]), in_leaves))
        columns = {"fabric": "", "n": "d", **dict.fromkeys(("ours", "fit", "spread", "opt"), ".2f"), "ours/opt": ".4f"}
        title = "mean ring crossings of one gang on a fragmented fabric (fit: best fit by level; opt: exact optimum)"
        return Table(title, {**columns, "leaf: ours/fit/spread": ""}, rows)


def _compare_decisions(count: int) -> _DecisionCosts:
    """Place one gang on each of `count` drawn instances by three policies, and compare with the proved optimum.

    Instances without a proof within _CLOSES_S are counted and not compared. Raises RuntimeError if an answer costs less
    than the optimum, or is illegal.
    """
    costs: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    leaves: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    worse = 0
    drawn = [instances.draw(seed) for seed in range(count)]
    for seed, one in enumerate(drawn):
        answers = (
            our_hosts(one.fabric, one.room, one.pods),
            baselines.best_fit(one.fabric, one.room, one.pods),
            baselines.spread(one.fabric, one.room, one.pods, random.Random(seed)),
        )
        paid = [ring_cost(one.fabric, _legal(one, hosts)) for hosts in answers]
        worse += paid[0].total > paid[1].total
        minimum = exact.optimum(one.fabric, one.room, one.pods, _CLOSES_S)
        if minimum is None:
            continue
        if minimum > min(each.total for each in paid):
            raise RuntimeError(f"instance {seed}: an answer costs less than the optimum {minimum}")
        costs[one.kind].append((*(each.total for each in paid), minimum))
        leaves[one.kind].append(tuple(each.crossings[0] for each in paid))
    closed = [row for rows in costs.values() for row in rows]
    ratio = sum(row[0] for row in closed) / max(1, sum(row[3] for row in closed))
    return _DecisionCosts(count, len(closed), worse, ratio, instances.digest(drawn), costs, leaves)


def _legal(one: instances.PlacementInstance, hosts: Hosts | None) -> Hosts:
    if hosts is None or len(hosts) != one.pods or (np.bincount(hosts, minlength=len(one.room)) > one.room).any():
        raise RuntimeError(f"an answer that breaks the rules on a {one.kind} fabric")
    return hosts


@dataclass(frozen=True, slots=True)
class _SeedCosts:
    """One stream: mean crossings a gang of each policy, of all switches and of leaves alone."""

    seed: int
    full: float
    worse: int  # how often best fit had a cheaper answer for the same room, or ours or best fit had none
    ours: tuple[float, float]
    best_fit: tuple[float, float]
    spread: tuple[float, float]


def _replay_streams(full: float) -> list[_SeedCosts]:
    """Replay all streams under three policies. full: highest share of taken nodes. Return the figures of each seed."""
    tree = streams.fabric()
    instances = (
        streams.read_committed() if full == streams.FULL else {s: streams.generate(s, full) for s in streams.SEEDS}
    )
    rows = []
    for seed, events in instances.items():
        worse = [0]
        rng = random.Random(seed)

        def ours_beside_best_fit(fabric: Fabric, room: Room, pods: int, worse: list[int] = worse) -> Hosts | None:
            """Return our hosts. Count in `worse` if best fit has a cheaper answer, or if one of both has none."""
            mine, theirs = our_hosts(fabric, room, pods), baselines.best_fit(fabric, room, pods)
            worse[0] += (
                mine is None or theirs is None or ring_cost(fabric, mine).total > ring_cost(fabric, theirs).total
            )
            return mine

        def spread(fabric: Fabric, room: Room, pods: int, rng: random.Random = rng) -> Hosts | None:
            return baselines.spread(fabric, room, pods, rng)

        runs = [streams.replay(tree, events, policy) for policy in (ours_beside_best_fit, baselines.best_fit, spread)]
        rows.append(_SeedCosts(seed, runs[0].full, worse[0], *((_mean(run.total), _mean(run.leaf)) for run in runs)))
    return rows


def _stream_table(full: float, rows: list[_SeedCosts]) -> Table:
    """Return the table of ring crossings in streams: a row for each seed and one with the means.

    full: highest share of taken nodes, named in the title.
    """
    of_each = [(str(row.seed), *row.ours, *row.best_fit, *row.spread, row.full) for row in rows]
    means = ("mean", *np.mean([row[1:] for row in of_each], axis=0).tolist())
    lines = [
        (name, ours_, fit, spread, ours_ / fit, f"{ours_leaf:.2f}/{fit_leaf:.2f}/{spread_leaf:.2f}", taken_share)
        for name, ours_, ours_leaf, fit, fit_leaf, spread, spread_leaf, taken_share in (*of_each, means)
    ]
    columns = {"seed": "", **dict.fromkeys(("ours", "fit", "spread", "ours/fit"), ".3f")}
    title = f"ring crossings a gang, {streams.GANGS} gangs on {streams.NODES} nodes, at most {full:.0%} taken"
    columns |= {"leaf: ours/fit/spread": "", "taken": ".0%"}
    return Table(title, columns, lines, key=f"stream, {full:.0%}, seed")


def _placement_times(repeats: int, often: int) -> list[tuple[str, float, float | None]]:
    """Return (name, median ms, p99 ms) of each scene. The sums of room are computed again in each call.

    repeats: calls of a scene. often: calls of the largest scenes, 512 pods on 50,000 hosts; only these have a p99, the
    others None.
    """
    found: list[tuple[str, float, float | None]] = []
    for fabric, hosts in ((_tree(1, 25, 25), 5_000), (_tree(10, 25, 25), 50_000)):
        rng = np.random.default_rng(hosts)
        empty = np.full(hosts, 8, np.int32)
        crumbs = np.where(rng.random(hosts) < 0.5, 0, rng.integers(0, 4, hosts)).astype(np.int32)
        nodes = (rng.random(hosts) < 0.3).astype(np.int32)
        few = [("empty", empty, 8), ("crumbs", crumbs, 8)]
        scenes = [*few, ("empty", empty, 512), ("crumbs", crumbs, 512), ("whole nodes", nodes, 512)]
        for scene, room, pods in scenes:
            large = (pods, hosts) == (512, 50_000)
            times_ms = _times_ms(
                partial(plan, fabric, room, PlacementRequest(pods, pods, pods)), often if large else repeats
            )
            p99 = float(np.percentile(times_ms, 99)) if large else None
            found.append((f"{pods} of {hosts:,}, {scene}", statistics.median(times_ms), p99))
    return found


def _tree(cores: int, spines: int, leaves: int) -> Fabric:
    places = [(f"c{c}", f"s{s}", f"l{leaf}") for c in range(cores) for s in range(spines) for leaf in range(leaves)]
    return build(MapEntry(f"gpu{at * 8 + of}", path, 1) for at, path in enumerate(places) for of in range(8))


def _times_ms(call: Callable[[], object], repeats: int) -> list[float]:
    """Call `call` once untimed, then `repeats` times. Return the time of each timed call in ms."""
    call()
    times_ms = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times_ms.append((time.perf_counter() - begun) * 1e3)
    return times_ms


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
