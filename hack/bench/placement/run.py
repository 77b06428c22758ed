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
    exact,
    instances,
    layered,
    many_streams,
    preemptions,
    streams,
    trickling,
)
from hack.bench.placement.baselines import Hosts, Room
from hack.bench.placement.mesh import gangs as meshes
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from turnout.topology.distance import cost
from turnout.topology.fabric import Fabric, build
from turnout.topology.model import Ask, Entry, Placement
from turnout.topology.place import plan

_CLOSES_S = 5.0  # CP-SAT's time for one instance
_CEILINGS = (0.85, 0.9, 0.95)


def run(scale: Scale) -> Outcome:
    """Measure single decisions, streams and speed."""
    single = _single(scale.pick(800, 80, 2))
    flowing = {full: _streams(full) for full in scale.pick(_CEILINGS, (streams.FULL,), (streams.FULL,))}
    trickled = trickling.measure(ours, scale.pick(streams.SEEDS, range(1, 4), range(1, 2)))
    inner = _within_and_beside(scale)
    speed = _speed(*scale.pick((31, 200), (9, 20), (1, 1)))
    worst = max(flowing[streams.FULL], key=lambda row: row.ours - row.best_fit)
    figures = {
        **single.figures(),
        **_stream_figures(flowing),
        **{f"trickle_{row.seed}_shuffled": row.shuffled for row in trickled},
        "trickle_seeds_worse": sum(max(row.in_order, row.shuffled) > row.together for row in trickled),
        "stream_worst_seed": worst.seed,
        "stream_worst_seed_ours_minus_best_fit": worst.ours - worst.best_fit,
        **inner.figures,
        **dict(speed),
    }
    worse = single.worse + sum(row.worse for rows in flowing.values() for row in rows)
    slowest = max(value for name, value in speed if name.startswith("p99_512_of_50000"))
    return Outcome(
        title="placement: rings that cross few switches",
        tables=(
            single.table(),
            *(_stream_table(full, rows) for full, rows in flowing.items()),
            trickling.table(trickled),
            *inner.tables,
            _speed_table(speed),
        ),
        figures=figures,
        targets=(
            Target("mean cost to exact optimum, where CP-SAT closed", single.ratio, "<=", 1.02),
            Target("instances on which best fit by level is cheaper", worse, "<=", 0),
            _of_streams(figures["stream_90_ours_to_best_fit"]),
            Target("seeds on which pods that trickle in cost a ring more", figures["trickle_seeds_worse"], "<=", 0),
            *inner.targets,
            Target("512 members on 50,000 hosts, slowest scene's p99 ms", slowest, "<=", 50.0),
        ),
        notes=_notes(single, worst),
    )


def _within_and_beside(scale: Scale) -> Outcome:
    """Measure what is within one gang, and gangs beside others."""
    meshed = meshes.measure(range(scale.pick(400, 60, 2)))
    runs = layered.measure(*scale.pick((500, 200), (60, 40), (2, 2)))
    many = many_streams.measure(many_streams.SEEDS[: scale.pick(None, 50, 2)])
    found = preemptions.measure(scale.pick(1_000, 60, 2))
    figures = {**meshes.figures(meshed), **runs.figures(), **many.figures(), **found.figures()}
    targets = (*meshes.targets(meshed), *runs.targets(), *many.targets(), *found.targets())
    return Outcome("within gangs and beside others", (meshes.table(meshed),), figures, targets)


def _of_streams(ratio: float) -> Target:
    return Target("streams: mean ring crossings to best fit's, 20 seeds", ratio, "<=", 0.97)


def _notes(single: _Single, worst: _Seed) -> tuple[str, ...]:
    return (
        f"CP-SAT proved {single.closed} of {single.count} instances, {_CLOSES_S:g} s each at most.",
        f"Worst of the 20 seeds for us: {worst.seed}, ours {worst.ours:.3f}, best fit {worst.best_fit:.3f} a gang.",
        f"Inputs: instances {single.digest}, streams {streams.digest(streams.committed().values())}.",
        "Ours planned every instance and gang twice and answered alike.",
    )


def ours(fabric: Fabric, room: Room, pods: int) -> Hosts | None:
    """Return our host per rank. Planned twice: an answer that differs breaks the run."""
    ask = Ask(pods, pods, pods)
    answer = plan(fabric, room, ask)
    if plan(fabric, room, ask) != answer:
        raise RuntimeError("two answers to one question")
    return [host for host, count in answer.slots for _ in range(count)] if isinstance(answer, Placement) else None


@dataclass(slots=True)
class _Single:
    """Single decisions, summed by kind of fabric: (ours, best fit, spread, optimum) of those that closed."""

    count: int
    closed: int
    worse: int
    ratio: float
    digest: str
    costs: dict[str, list[tuple[int, ...]]]
    leaves: dict[str, list[tuple[int, ...]]]

    def figures(self) -> dict[str, float]:
        ours_, best_fit, spread, least = np.mean([row for rows in self.costs.values() for row in rows], axis=0)
        return {
            "instances": self.count,
            "closed": self.closed,
            "instances_best_fit_cheaper": self.worse,
            "cost_ours": ours_,
            "cost_best_fit": best_fit,
            "cost_spread": spread,
            "cost_optimum": least,
            "cost_ours_to_optimum": self.ratio,
            "cost_best_fit_to_optimum": best_fit / least,
        }

    def table(self) -> Table:
        rows = []
        for kind, costs in [
            *sorted(self.costs.items()),
            ("all", [row for part in self.costs.values() for row in part]),
        ]:
            leaf = self.leaves.get(kind) or [row for part in self.leaves.values() for row in part]
            means = np.mean(costs, axis=0)
            rows.append(
                (
                    kind,
                    str(len(costs)),
                    *(f"{value:.2f}" for value in means),
                    f"{means[0] / means[3]:.4f}",
                    "/".join(f"{value:.2f}" for value in np.mean(leaf, axis=0)),
                )
            )
        columns = ("fabric", "n", "ours", "fit", "spread", "opt", "ours/opt", "leaf: ours/fit/spread")
        return Table(
            "mean ring crossings of one gang on a fragmented fabric (fit: best fit by level; opt: exact optimum)",
            columns,
            rows,
        )


def _single(count: int) -> _Single:
    costs: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    leaves: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    worse = 0
    drawn = [instances.draw(seed) for seed in range(count)]
    for seed, one in enumerate(drawn):
        answers = (
            ours(one.fabric, one.room, one.pods),
            baselines.best_fit(one.fabric, one.room, one.pods),
            baselines.spread(one.fabric, one.room, one.pods, random.Random(seed)),
        )
        paid = [cost(one.fabric, _legal(one, hosts)) for hosts in answers]
        worse += paid[0].total > paid[1].total
        least = exact.optimum(one.fabric, one.room, one.pods, _CLOSES_S)
        if least is None:
            continue
        if least > min(each.total for each in paid):
            raise RuntimeError(f"instance {seed}: an answer costs less than the optimum {least}")
        costs[one.kind].append((*(each.total for each in paid), least))
        leaves[one.kind].append(tuple(each.crossings[0] for each in paid))
    closed = [row for rows in costs.values() for row in rows]
    ratio = sum(row[0] for row in closed) / max(1, sum(row[3] for row in closed))
    return _Single(count, len(closed), worse, ratio, instances.digest(drawn), costs, leaves)


def _legal(one: instances.Instance, hosts: Hosts | None) -> Hosts:
    if hosts is None or len(hosts) != one.pods or (np.bincount(hosts, minlength=len(one.room)) > one.room).any():
        raise RuntimeError(f"an answer that breaks the rules on a {one.kind} fabric")
    return hosts


@dataclass(frozen=True, slots=True)
class _Seed:
    """One stream: mean crossings a gang, those of leaves alone in *_leaf.

    worse: how often best fit, asked from our very state, had the cheaper answer.
    """

    seed: int
    full: float
    worse: int
    ours: float
    best_fit: float
    spread: float
    ours_leaf: float
    best_fit_leaf: float
    spread_leaf: float


def _streams(full: float) -> list[_Seed]:
    tree = streams.fabric()
    kept = streams.committed() if full == streams.FULL else {s: streams.generate(s, full) for s in streams.SEEDS}
    rows = []
    for seed, events in kept.items():
        worse = [0]
        dice = random.Random(seed)

        def ours_beside_best_fit(fabric: Fabric, room: Room, pods: int, worse: list[int] = worse) -> Hosts | None:
            mine, theirs = ours(fabric, room, pods), baselines.best_fit(fabric, room, pods)
            worse[0] += mine is None or theirs is None or cost(fabric, mine).total > cost(fabric, theirs).total
            return mine

        def spread(fabric: Fabric, room: Room, pods: int, dice: random.Random = dice) -> Hosts | None:
            return baselines.spread(fabric, room, pods, dice)

        mine, theirs, default = (
            streams.replay(tree, events, policy) for policy in (ours_beside_best_fit, baselines.best_fit, spread)
        )
        found = [_mean(run.total) for run in (mine, theirs, default)] + [
            _mean(run.leaf) for run in (mine, theirs, default)
        ]
        rows.append(_Seed(seed, mine.full, worse[0], *found))
    return rows


def _stream_figures(flowing: dict[float, list[_Seed]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for full, rows in flowing.items():
        for name in ("ours", "best_fit", "spread", "ours_leaf", "best_fit_leaf", "spread_leaf"):
            figures[f"stream_{full * 100:.0f}_{name}"] = _mean(getattr(row, name) for row in rows)
        mine, theirs = (_mean(getattr(row, name) for row in rows) for name in ("ours", "best_fit"))
        figures[f"stream_{full * 100:.0f}_ours_to_best_fit"] = mine / theirs
        figures[f"stream_{full * 100:.0f}_seeds_worse"] = sum(row.ours > row.best_fit for row in rows)
        figures[f"stream_{full * 100:.0f}_taken"] = _mean(row.full for row in rows)
    return figures


def _stream_table(full: float, rows: list[_Seed]) -> Table:
    columns = ("seed", "ours", "fit", "spread", "ours/fit", "leaf: ours/fit/spread", "taken")
    lines = [
        (
            str(row.seed),
            f"{row.ours:.3f}",
            f"{row.best_fit:.3f}",
            f"{row.spread:.3f}",
            f"{row.ours / row.best_fit:.3f}",
            f"{row.ours_leaf:.2f}/{row.best_fit_leaf:.2f}/{row.spread_leaf:.2f}",
            f"{row.full:.0%}",
        )
        for row in rows
    ]
    means = [_mean(getattr(row, name) for row in rows) for name in ("ours", "best_fit", "spread")]
    leaf = [_mean(getattr(row, name) for row in rows) for name in ("ours_leaf", "best_fit_leaf", "spread_leaf")]
    mine, theirs, default = (f"{value:.3f}" for value in means)
    in_leaves = "/".join(f"{value:.2f}" for value in leaf)
    taken = f"{_mean(row.full for row in rows):.0%}"
    lines.append(("mean", mine, theirs, default, f"{means[0] / means[1]:.3f}", in_leaves, taken))
    title = f"ring crossings a gang, {streams.GANGS} gangs on {streams.NODES} nodes, at most {full:.0%} taken"
    return Table(title, columns, lines)


def _speed(repeats: int, often: int) -> list[tuple[str, float]]:
    """Return (name, median ms) per scene, one view a call: sums of room are made anew each time, as in a request.

    often: repeats of the largest ask, whose 99th percentile is told, too.
    """
    few, many = _tree(1, 25, 25), _tree(10, 25, 25)
    found = []
    for name, fabric, hosts in (("5000", few, 5_000), ("50000", many, 50_000)):
        dice = np.random.default_rng(hosts)
        empty = np.full(hosts, 8, np.int32)
        crumbs = np.where(dice.random(hosts) < 0.5, 0, dice.integers(0, 4, hosts)).astype(np.int32)
        nodes = (dice.random(hosts) < 0.3).astype(np.int32)
        scenes: list[tuple[str, Room, int]] = [
            (f"plan_8_of_{name}_empty_ms", empty, 8),
            (f"plan_8_of_{name}_crumbs_ms", crumbs, 8),
            (f"plan_512_of_{name}_empty_ms", empty, 512),
            (f"plan_512_of_{name}_crumbs_ms", crumbs, 512),
            (f"plan_512_of_{name}_whole_nodes_ms", nodes, 512),
        ]
        for scene, room, pods in scenes:
            large = (pods, hosts) == (512, 50_000)
            taken = _times_ms(partial(plan, fabric, room, Ask(pods, pods, pods)), often if large else repeats)
            found.append((scene, statistics.median(taken)))
            if large:
                found.append((scene.replace("plan_", "p99_"), float(np.percentile(taken, 99))))
    return found


def _tree(cores: int, spines: int, leaves: int) -> Fabric:
    places = [(f"c{c}", f"s{s}", f"l{leaf}") for c in range(cores) for s in range(spines) for leaf in range(leaves)]
    return build(Entry(f"gpu{at * 8 + of}", path, 1) for at, path in enumerate(places) for of in range(8))


def _times_ms(call: Callable[[], object], repeats: int) -> list[float]:
    call()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1e3)
    return taken


def _speed_table(speed: list[tuple[str, float]]) -> Table:
    rows = [(name.removesuffix("_ms").replace("_", " "), f"{value:.3f}") for name, value in speed]
    return Table("one plan, median and 99th percentile ms", ("scene: members of hosts", "ms"), rows)


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
