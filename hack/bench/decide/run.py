"""How long the autoscaler takes to decide: one full decision with a reason for each of 10,000 jobs on 100,000 GPUs.

Three scenes: a cluster at rest, whose queues are full; one in which a hundred jobs wait and elastic workers have to
leave for them; and one that has just lost a tenth of its pods, and hundreds of jobs grow. Then a whole autoscaler of
that size, in a process of its own and with the shipped program's settings of the garbage collector, which is fed with
twice the changes that it has to bear: how many a second it takes in, what its looks take, and what memory it holds.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from hack.bench.decide import cluster, feeder
from hack.bench.decide.results import Results
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.support.percentiles import interpolated
from turnout.autoscaler.__main__ import freeze_objects
from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import ORDER, JobState, Observation, Policy, Worker
from turnout.jobs.model import Bounds, Job, JobKey, Life
from turnout.jobs.queues.model import Queue
from turnout.kube.pod_shape import PodShape

GPU = "nvidia.com/gpu"
NODES, PER_NODE, JOBS, QUEUES, RUNS = 12_500, 8, 10_000, 50, 40
WAITERS = 3
NOW_S = 1_000_000.0
SCENES = ("at rest", "a hundred wait", "a tenth is free")


def run(scale: Scale) -> Outcome:
    """Decide many times on clusters of several seeds."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}
    p99s: list[float] = []
    for scene in SCENES:
        times, steps = zip(*_timed(scene, scale.pick(RUNS, 10, 1)), strict=True)
        p50, p99 = statistics.median(times) * 1e3, interpolated(times, 0.99) * 1e3
        p99s.append(p99)
        name = scene.replace(" ", "_")
        figures |= {f"{name}_p50_ms": p50, f"{name}_p99_ms": p99, f"{name}_changes": statistics.mean(steps)}
        rows.append((scene, f"{p50:.1f}", f"{p99:.1f}", f"{statistics.mean(steps):.0f}"))
    table = Table("milliseconds a decision", ("cluster", "p50", "p99", "jobs changed"), rows)
    targets = [Target("p99 of a full decision, ms, worst scene", max(p99s), "<=", 50)]
    note = (
        f"{JOBS:,} jobs, {NODES * PER_NODE:,} GPUs on {NODES:,} nodes, {QUEUES} queues, {len(times)} decisions a scene."
    )
    jobs, nodes = scale.pick((JOBS, NODES), (JOBS, NODES), (20, 25))
    fed = _fed(jobs, nodes, scale.pick(40_000, 12_000, 4_000))
    figures |= fed.figures()
    targets += fed.targets()
    return Outcome("decide: time to decide", (table, fed.table()), figures, targets, (note, fed.note()))


def _fed(jobs: int, nodes: int, changes: int) -> Results:
    """Run an autoscaler that reads this many changes of a full cluster in which a few jobs always wait."""
    dice = random.Random(1)
    full = cluster.built(jobs, nodes, dice, WAITERS)
    with tempfile.TemporaryDirectory() as folder:
        feeder.write(Path(folder), full, islice(cluster.changes(full, dice), changes))
        return Results.of(feeder.told(Path(folder)))


def _timed(scene: str, runs: int) -> Iterator[tuple[float, int]]:
    """Give (seconds, jobs changed) of each decision; each fourth one has a new cluster."""
    policy = Policy()
    for number in range(runs):
        if number % 4 == 0:
            seen = _cluster(scene, random.Random(number))
            decide(seen, policy, NOW_S)  # what a job was told before is told again, look by look
            freeze_objects()
        seen = replace(seen, room=_as_seen_anew(seen.room))
        began = time.perf_counter()
        steps = decide(seen, policy, NOW_S)
        yield time.perf_counter() - began, sum(step.changes for step in steps)
        assert len(steps) == len(seen.jobs)


def _as_seen_anew(room: Capacity) -> Capacity:
    """Copy the capacity without its cached counts, as at each look."""
    return Capacity(room.names, room.free, room.takes, room.admits, room.switches)


def _cluster(scene: str, dice: random.Random) -> Observation:
    """Make a full cluster of elastic jobs, changed as the scene requires."""
    shapes = [PodShape(requests=((GPU, gpus), ("pods", 1))) for gpus in (1, 2, 4, 8)]
    takes = {shape: np.array([dict(shape.requests)[GPU], 1], dtype=np.int64) for shape in shapes}
    free = np.full((NODES, 2), (PER_NODE, 110), dtype=np.int64)
    next_free = _filler(free, takes)
    jobs = [_job(number, dice, shapes, next_free) for number in range(JOBS)]
    if scene == "a tenth is free":
        jobs = [_smaller(each, takes, free) if dice.random() < 0.1 else each for each in jobs]
    if scene == "a hundred wait":
        jobs[:100] = [_waiting(each) for each in jobs[:100]]
        free[:, 0] = 0
    admits = {shape: np.ones(NODES, dtype=bool) for shape in shapes}
    used: dict[str, int] = {}
    for each in jobs:
        gpus = dict(each.job.shape.requests)[GPU]
        used[each.job.queue] = used.get(each.job.queue, 0) + gpus * each.bound_workers
    spare = 0 if scene == "at rest" else 500
    queues = {name: Queue({GPU: count + spare}, {GPU: count}, {GPU: count}) for name, count in used.items()}
    jobs.sort(key=ORDER)  # as the autoscaler's view keeps them
    return Observation(tuple(jobs), queues, Capacity((GPU, "pods"), free, takes, admits), is_sorted=True)


def _filler(free: np.ndarray, takes: dict[PodShape, np.ndarray]) -> Callable[[PodShape], int | None]:
    """Return a function that gives the next node for a pod of a shape and charges it; None once all are full."""
    at = dict.fromkeys(takes, 0)

    def next_free(shape: PodShape) -> int | None:
        while at[shape] < len(free):
            row = at[shape]
            if (free[row] >= takes[shape]).all():
                free[row] -= takes[shape]
                return row
            at[shape] += 1
        return None

    return next_free


def _job(
    number: int, dice: random.Random, shapes: list[PodShape], next_free: Callable[[PodShape], int | None]
) -> JobState:
    shape, least = dice.choice(shapes), dice.randint(1, 2)
    size = least + dice.randint(0, 2)
    rows = [row for row in (next_free(shape) for _ in range(size)) if row is not None]
    key = JobKey("Job", f"team-{number % QUEUES}", f"job-{number:05d}")
    created = f"2026-01-{1 + number % 28:02}T00:00:00Z"
    life = Life.LIVE if rows else Life.SUSPENDED  # the cluster was full before its turn came
    bounds = Bounds(min(least, max(1, len(rows))), size + dice.randint(0, 4))
    job = Job(
        key, str(number), "1", f"q{number % QUEUES}", max(1, len(rows)), bounds, shape, created=created, life=life
    )
    return JobState(job, tuple(Worker(index, row) for index, row in enumerate(rows)))


def _smaller(seen: JobState, takes: dict[PodShape, np.ndarray], free: np.ndarray) -> JobState:
    """Shrink a job to its min, and free its capacity."""
    kept = seen.workers[: seen.job.bounds.least]
    for worker in seen.workers[len(kept) :]:
        free[worker.row] += takes[seen.job.shape]
    return replace(seen, job=replace(seen.job, replicas=max(1, len(kept))), workers=kept)


def _waiting(seen: JobState) -> JobState:
    """Make a job wait: none of it runs, and another job has the capacity."""
    least = seen.job.bounds.least
    return replace(seen, job=replace(seen.job, replicas=least), workers=())
