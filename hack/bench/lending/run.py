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
from hack.bench.lending.scenes import CLUSTERS, SCENES, LendingScene, ReplayResult, ReplayTask, clusters, replay_task
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from turnout.simulator.replay import trace_files

QUICK_JOBS, SEEDS = 700, 3
MEASURES = (  # heading, field of a ReplayResult, format
    ("jobs", "jobs", ",d"),
    ("busy without", "busy_before", ".3f"),
    ("busy", "busy", ".3f"),
    ("faster", "faster", ".3f"),
    ("of the oracle's gain", "capture", ".3f"),
    ("late", "late", "d"),
    ("latest s", "worst_s", ".0f"),
    ("p99 wait", "p99_ratio", ".3f"),
    ("undisturbed", "undisturbed", ".3f"),
    ("harm", "harm", ".2f"),
    ("> 60 s worse", "worse", ".2%"),
    ("restarts a job", "restarts", ".2f"),
    ("looks/s", "looks_per_s", ".0f"),
)
COLUMNS = {"cluster": "", **{heading: form for heading, _, form in MEASURES}}
Results = Mapping[LendingScene, Sequence[ReplayResult]]


def run(scale: Scale) -> Outcome:
    """Replay every scene on every cluster and return the tables and the targets.

    Scenes whose elastic labels are random are replayed with several seeds.
    """
    quick, jobs = scale is not Scale.FULL, scale.pick(0, QUICK_JOBS, 8)
    names = clusters()
    tasks = [
        ReplayTask(name, scene, seed, jobs)
        for scene in SCENES
        for name in names
        for seed in range(SEEDS if scene.is_random and not quick else 1)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(replay_task, tasks))
    of = {scene: [each for each in found if each.task.scene == scene] for scene in SCENES}
    tables = [Table(scene.name, COLUMNS, [_row(each) for each in rows], f"{scene.name},") for scene, rows in of.items()]
    notes = list(_notes(names, of[scenes.ALL], quick))
    return Outcome("lending: what it gives, and whom it harms", tables, list(_targets(of)), notes)


def _row(found: ReplayResult) -> tuple[object, ...]:
    name = f"{found.task.cluster} #{found.task.seed}" if found.task.scene.is_random else found.task.cluster
    return (name, *(getattr(found, field) for _, field, _ in MEASURES))


def _targets(of: Results) -> Iterator[Target]:
    """Yield the targets on waiting jobs and on the gain in GPU use. of: results of all scenes."""
    strict = [each for scene, rows in of.items() if not (scene.backfill or scene.hpa) for each in rows]
    passing, headroom = of[scenes.BACKFILL], of[scenes.HEADROOM]
    share = sum(each.late for each in passing) / sum(each.jobs for each in passing)
    yield Target(
        "M1 jobs that start later than by a grace and a look, strict FIFO", sum(e.late for e in strict), "<=", 0
    )
    yield Target("M1 the same with backfill, share of jobs", share, "<=", 0.001)
    yield Target("M2 p99 wait beside that without, 1 % headroom, worst", max(e.p99_ratio for e in headroom), "<=", 1.0)
    yield Target(
        "M2 starts for which nobody leaves, 1 % headroom, worst", min(e.undisturbed for e in headroom), ">=", 0.95
    )
    yield Target("M3 share of the oracle's gain, restart 60 s, worst", _worst(of[scenes.ALL]), ">=", 0.97)
    yield Target("M3 share of the oracle's gain, restart 250 s, worst", _worst(of[scenes.SLOW]), ">=", 0.93)
    yield Target("M4 share of the oracle's gain, measured curves, worst", _worst(of[scenes.MEASURED]), ">=", 0.9)
    yield from _harm_targets(of)


def _harm_targets(results: Results) -> Iterator[Target]:
    """Yield the targets that limit how much a single job is slowed, and those that compare Turnout with the HPA.

    results: of all scenes.
    """
    for scene, cost in ((scenes.ALL, "60 s"), (scenes.SLOW, "250 s")):
        for each in results[scene]:
            what = f"jobs that end > 60 s later, restart {cost}, {each.task.cluster}"
            yield Target(f"M3 {what}, share", each.worse, "<=", 0.02)
    yield Target("M5 harm, restart 60 s, worst job", max(e.harm for e in results[scenes.ALL]), "<=", 1.0)
    yield Target("M5 harm, restart 250 s, worst job", max(e.harm for e in results[scenes.SLOW]), "<=", 1.0)
    pairs = list(zip(results[scenes.ALL], results[scenes.HPA], strict=True))
    restarts = max(ours.restarts / theirs.restarts for ours, theirs in pairs)
    yield Target("M6 restarts beside the HPA's, worst", restarts, "<=", 0.33)
    yield Target("M6 speed-up beside the HPA's, worst", min(a.faster / b.faster for a, b in pairs), ">=", 1.0)


def _worst(rows: Sequence[ReplayResult]) -> float:
    return min(each.capture for each in rows if each.capture is not None)


def _notes(names: Sequence[str], rows: Sequence[ReplayResult], quick: bool) -> Iterator[str]:
    """Yield the notes: which traces are missing, what was replayed, and the settings. names: of the replayed
    clusters. quick: only the first jobs of each were replayed.
    """
    missing = [name for name in CLUSTERS if name not in names]
    if missing:
        where = f"{trace_files.trace_folder()} ({trace_files.VARIABLE} names another)"
        yield f"No traces of {', '.join(missing)} in {where}: not replayed."
    if not set(names) & set(CLUSTERS):
        yield "Streams drawn with a seed are replayed instead; the figures of traces do not follow from them."
    if not trace_files.read_speed_tables():
        yield f"No measured speeds in {trace_files.trace_folder()}: measured curves are the usual power there."
    slice_ = f"the first {QUICK_JOBS:,} jobs of each" if quick else "all jobs of each"
    yield f"Replayed: {', '.join(f'{each.task.cluster} ({each.jobs:,})' for each in rows)}, {slice_}; # is a seed."
    median = statistics.median(each.looks_per_s for each in rows)
    yield f"Strict FIFO, grace 30 s, a look each 5 s; median {median:.0f} decisions a second of one core."
    yield "harm: seconds that a job ended later, beside two restarts and a grace. Traces: ElasticFlow (ASPLOS'23)."
