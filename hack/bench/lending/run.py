"""Measure what lending gives and whom it harms: traces replayed with the autoscaler's decisions and without.

The traces are read from the folder of TURNOUT_TRACES, else ../shared/traces; without them streams are drawn. What is
replayed, and what is assumed, is told in docs/replay.md.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from hack.bench.lending import scenes
from hack.bench.lending.scenes import CLUSTERS, SCENES, Result, Scene, Task, clusters, replayed
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from turnout.simulator.replay import trace_files

QUICK_JOBS, SEEDS = 700, 3
Results = Mapping[Scene, Sequence[Result]]


def run(scale: Scale) -> Outcome:
    """Replay every scene on every cluster, those that dice have labelled with several seeds."""
    quick, jobs = scale is not Scale.FULL, scale.pick(0, QUICK_JOBS, 8)
    names = clusters()
    tasks = [
        Task(name, scene, seed, jobs)
        for scene in SCENES
        for name in names
        for seed in range(SEEDS if scene.thrown and not quick else 1)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(replayed, tasks))
    of = {scene: [each for each in found if each.task.scene == scene] for scene in SCENES}
    return Outcome(
        "lending: what it gives, and whom it harms",
        tuple(_table(scene, rows) for scene, rows in of.items()),
        dict(_figures(of)),
        tuple(_targets(of)),
        tuple(_notes(names, of[scenes.ALL], quick)),
    )


def _table(scene: Scene, rows: Sequence[Result]) -> Table:
    columns = (
        "cluster",
        "jobs",
        "busy without",
        "busy",
        "faster",
        "of the oracle's gain",
        "late",
        "latest s",
        "p99 wait",
    )
    more = ("undisturbed", "harm", "> 60 s worse", "restarts a job", "looks/s")
    return Table(scene.name, (*columns, *more), [_row(each) for each in rows])


def _row(found: Result) -> tuple[str, ...]:
    name = f"{found.task.cluster} #{found.task.seed}" if found.task.scene.thrown else found.task.cluster
    return (
        name,
        f"{found.jobs:,}",
        f"{found.busy_before:.3f}",
        f"{found.busy:.3f}",
        f"{found.faster:.3f}",
        "" if found.capture is None else f"{found.capture:.3f}",
        f"{found.late}",
        f"{found.worst_s:.0f}",
        f"{found.p99_ratio:.3f}",
        f"{found.undisturbed:.3f}",
        f"{found.harm:.2f}",
        f"{found.worse:.2%}",
        f"{found.restarts:.2f}",
        f"{found.looks_per_s:.0f}",
    )


def _figures(of: Results) -> Iterator[tuple[str, float]]:
    for scene, rows in of.items():
        for each in rows:
            name = f"{scene.name} {each.task.cluster} #{each.task.seed}"
            yield f"{name} busy", each.busy
            yield f"{name} busy without", each.busy_before
            yield f"{name} faster", each.faster
            yield f"{name} late", each.late
            yield f"{name} harm", each.harm
            yield f"{name} worse", each.worse
            yield f"{name} restarts", each.restarts
            if each.capture is not None:
                yield f"{name} capture", each.capture


def _targets(of: Results) -> Iterator[Target]:
    strict = [each for scene, rows in of.items() if not (scene.backfill or scene.hpa) for each in rows]
    passing, held = of[scenes.BACKFILL], of[scenes.HEADROOM]
    share = sum(each.late for each in passing) / sum(each.jobs for each in passing)
    yield Target(
        "M1 jobs that start later than by a grace and a look, strict FIFO", sum(e.late for e in strict), "<=", 0
    )
    yield Target("M1 the same with backfill, share of jobs", share, "<=", 0.001)
    yield Target("M2 p99 wait beside that without, 1 % headroom, worst", max(e.p99_ratio for e in held), "<=", 1.0)
    yield Target("M2 starts for which nobody leaves, 1 % headroom, worst", min(e.undisturbed for e in held), ">=", 0.95)
    yield Target("M3 share of the oracle's gain, restart 60 s, worst", _worst(of[scenes.ALL]), ">=", 0.97)
    yield Target("M3 share of the oracle's gain, restart 250 s, worst", _worst(of[scenes.SLOW]), ">=", 0.93)
    yield Target("M4 share of the oracle's gain, measured curves, worst", _worst(of[scenes.MEASURED]), ">=", 0.9)
    for scene, cost in ((scenes.ALL, "60 s"), (scenes.SLOW, "250 s")):
        for each in of[scene]:
            what = f"jobs that end > 60 s later, restart {cost}, {each.task.cluster}"
            yield Target(f"M3 {what}, share", each.worse, "<=", 0.02)
    yield Target("M5 harm, restart 60 s, worst job", max(e.harm for e in of[scenes.ALL]), "<=", 1.0)
    yield Target("M5 harm, restart 250 s, worst job", max(e.harm for e in of[scenes.SLOW]), "<=", 1.0)
    pairs = list(zip(of[scenes.ALL], of[scenes.HPA], strict=True))
    restarts = max(ours.restarts / theirs.restarts for ours, theirs in pairs)
    yield Target("M6 restarts beside the HPA's, worst", restarts, "<=", 0.33)
    yield Target("M6 speed-up beside the HPA's, worst", min(a.faster / b.faster for a, b in pairs), ">=", 1.0)


def _worst(rows: Sequence[Result]) -> float:
    return min(each.capture for each in rows if each.capture is not None)


def _notes(names: Sequence[str], rows: Sequence[Result], quick: bool) -> Iterator[str]:
    missing = [name for name in CLUSTERS if name not in names]
    if missing:
        where = f"{trace_files.folder()} ({trace_files.VARIABLE} names another)"
        yield f"No traces of {', '.join(missing)} in {where}: not replayed."
    if not set(names) & set(CLUSTERS):
        yield "Streams drawn with a seed are replayed instead; the figures of traces do not follow from them."
    if not trace_files.speeds():
        yield f"No measured speeds in {trace_files.folder()}: measured curves are the usual power there."
    slice_ = f"the first {QUICK_JOBS:,} jobs of each" if quick else "all jobs of each"
    yield f"Replayed: {', '.join(f'{each.task.cluster} ({each.jobs:,})' for each in rows)}, {slice_}; # is a seed."
    median = statistics.median(each.looks_per_s for each in rows)
    yield f"Strict FIFO, grace 30 s, a look each 5 s; median {median:.0f} decisions a second of one core."
    yield "harm: seconds that a job ended later, beside two restarts and a grace. Traces: ElasticFlow (ASPLOS'23)."
