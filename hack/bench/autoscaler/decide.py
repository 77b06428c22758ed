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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from hack.bench.autoscaler import cluster, feeder
from hack.bench.support.outcome import Outcome, Scale, Table, Target, combine
from hack.bench.support.percentiles import interpolated_percentile
from turnout.autoscaler.__main__ import freeze_objects
from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import ORDER, JobState, Observation, Policy, Worker
from turnout.jobs.model import Bounds, Job, JobKey, JobLifecycle
from turnout.jobs.queues.model import QueueShare
from turnout.kube.pod_shape import PodShape

GPU = "nvidia.com/gpu"
NODES, PER_NODE, JOBS, QUEUES, RUNS = 12_500, 8, 10_000, 50, 40
WAITERS = 3
NOW_S = 1_000_000.0
MS = {"p50": ".1f", "p99": ".1f"}
FED_TIMES = {"observation_s": "what was seen", "decision_s": "the decision", "look_s": "a look as a whole"}
SCENES = ("at rest", "a hundred wait", "a tenth is free")


def measure(scale: Scale) -> Outcome:
    """Time decisions on clusters of several seeds; then time an autoscaler that reads changes. Return tables and
    targets.
    """
    rows = []
    for scene in SCENES:
        times, steps = zip(*_time_decisions(scene, scale.pick(RUNS, 10, 1)), strict=True)
        rows.append((scene, *_ms(times), len(times), statistics.mean(steps)))
    columns = {"cluster": "", **MS, "times": "d", "jobs changed": ".0f"}
    slowest_ms = max(row[2] for row in rows)
    jobs, nodes = scale.pick((JOBS, NODES), (JOBS, NODES), (20, 25))
    return combine(
        "decide",
        Outcome(
            "a full decision",
            [Table("milliseconds a decision", columns, rows)],
            [Target("p99 of a full decision, ms, worst scene", slowest_ms, "<=", 50)],
            [f"{JOBS:,} jobs, {NODES * PER_NODE:,} GPUs on {NODES:,} nodes, {QUEUES} queues."],
        ),
        _time_changes(jobs, nodes, scale.pick(40_000, 12_000, 4_000)),
    )


def _ms(times_s: Sequence[float]) -> tuple[float, float]:
    """Return (median, 99th percentile) of the times in milliseconds. times_s: at least one, in seconds."""
    return statistics.median(times_s) * 1e3, interpolated_percentile(times_s, 0.99) * 1e3


def _time_changes(jobs: int, nodes: int, changes: int) -> Outcome:
    """Run an autoscaler in its own process, which reads `changes` changes of a full cluster in which a few jobs always
    wait. Return its times and memory as an outcome.
    """
    rng = random.Random(1)
    full = cluster.build(jobs, nodes, rng, WAITERS)
    with tempfile.TemporaryDirectory() as folder:
        feeder.write_input(Path(folder), full, islice(cluster.changes(full, rng), changes))
        measured = feeder.run_fed_autoscaler(Path(folder))
    rate = measured["changes"] / measured["took_s"]
    rows = [(word, *_ms(measured[name]), len(measured[name])) for name, word in FED_TIMES.items()]
    more = {
        "changes a second": rate,
        **{f"fed {name}": measured[name] for name in ("start_s", "mib", "peak_mib", "pods")},
    }
    return Outcome(
        "fed",
        [Table("an autoscaler that is fed: milliseconds of CPU time", {"part": "", **MS, "times": "d"}, rows)],
        [
            Target("changes a second, a look after each burst", rate, ">=", 1000),
            Target("peak MiB of the process", measured["peak_mib"], "<=", 400),
        ],
        [
            f"Fed: {measured['jobs']:,} jobs, {measured['pods']:,} pods, {measured['nodes']:,} nodes, taken in within "
            f"{measured['start_s']:.1f} s; then {measured['changes']:,} changes in {measured['took_s']:.1f} s; "
            f"{measured['peak_mib']:.0f} MiB at most, of which {measured['before_mib']:.0f} before the first list."
        ],
        more=more,
    )


def _time_decisions(scene: str, runs: int) -> Iterator[tuple[float, int]]:
    """Yield (seconds, number of changed jobs) of each of `runs` decisions. Every fourth decision gets a new cluster.

    scene: one of SCENES.
    """
    policy = Policy()
    for number in range(runs):
        if number % 4 == 0:
            observed = _cluster(scene, random.Random(number))
            decide(observed, policy, NOW_S)  # not timed: the later decisions repeat what this one ordered
            freeze_objects()
        observed = replace(observed, room=_without_cached_counts(observed.room))
        began = time.perf_counter()
        steps = decide(observed, policy, NOW_S)
        yield time.perf_counter() - began, sum(step.changes for step in steps)
        assert len(steps) == len(observed.jobs)


def _without_cached_counts(room: Capacity) -> Capacity:
    """Return the capacity without its cached counts, as at each look."""
    return Capacity(room.names, room.free, room.pod_requests, room.admitting_nodes, room.switches)


def _cluster(scene: str, rng: random.Random) -> Observation:
    """Return a full cluster of elastic jobs, changed as the scene, one of SCENES, requires. rng: draws the jobs."""
    shapes = [PodShape(requests=((GPU, gpus), ("pods", 1))) for gpus in (1, 2, 4, 8)]
    takes = {shape: np.array([dict(shape.requests)[GPU], 1], dtype=np.int64) for shape in shapes}
    free = np.full((NODES, 2), (PER_NODE, 110), dtype=np.int64)
    next_free = _filler(free, takes)
    jobs = [_job(number, rng, shapes, next_free) for number in range(JOBS)]
    if scene == "a tenth is free":
        jobs = [_shrink_job(each, takes, free) if rng.random() < 0.1 else each for each in jobs]
    if scene == "a hundred wait":
        jobs[:100] = [_without_workers(each) for each in jobs[:100]]
        free[:, 0] = 0
    admits = {shape: np.ones(NODES, dtype=bool) for shape in shapes}
    used: dict[str, int] = {}
    for each in jobs:
        gpus = dict(each.job.shape.requests)[GPU]
        used[each.job.queue] = used.get(each.job.queue, 0) + gpus * each.bound_workers
    spare = 0 if scene == "at rest" else 500
    queues = {name: QueueShare({GPU: count + spare}, {GPU: count}, {GPU: count}) for name, count in used.items()}
    jobs.sort(key=ORDER)  # as the autoscaler's view keeps them
    return Observation(tuple(jobs), queues, Capacity((GPU, "pods"), free, takes, admits), is_sorted=True)


def _filler(free: np.ndarray, takes: dict[PodShape, np.ndarray]) -> Callable[[PodShape], int | None]:
    """Return a function that returns the row of the next node with room for a pod and takes the room.

    It returns None once all nodes are full for the shape. free: free amounts of each node, which the function changes.
    takes: amounts that a pod of each shape takes.
    """
    at = dict.fromkeys(takes, 0)

    def next_free(shape: PodShape) -> int | None:
        """Return the row of the next node with room for a pod of this shape, and take the room; None without any."""
        while at[shape] < len(free):
            row = at[shape]
            if (free[row] >= takes[shape]).all():
                free[row] -= takes[shape]
                return row
            at[shape] += 1
        return None

    return next_free


def _job(
    number: int, rng: random.Random, shapes: list[PodShape], next_free: Callable[[PodShape], int | None]
) -> JobState:
    """Return a random elastic job with as many workers as find a node; a job without any is suspended.

    number: of the job, part of its name. next_free: as `_filler` returns it. shapes: one is drawn.
    """
    shape, minimum = rng.choice(shapes), rng.randint(1, 2)
    size = minimum + rng.randint(0, 2)
    rows = [row for row in (next_free(shape) for _ in range(size)) if row is not None]
    key = JobKey("Job", f"team-{number % QUEUES}", f"job-{number:05d}")
    created = f"2026-01-{1 + number % 28:02}T00:00:00Z"
    lifecycle = JobLifecycle.LIVE if rows else JobLifecycle.SUSPENDED  # the cluster was full before its turn came
    bounds = Bounds(min(minimum, max(1, len(rows))), size + rng.randint(0, 4))
    job = Job(
        key,
        str(number),
        "1",
        f"q{number % QUEUES}",
        max(1, len(rows)),
        bounds,
        shape,
        created=created,
        lifecycle=lifecycle,
    )
    return JobState(job, tuple(Worker(index, row) for index, row in enumerate(rows)))


def _shrink_job(job_state: JobState, takes: dict[PodShape, np.ndarray], free: np.ndarray) -> JobState:
    """Return a job shrunk to its minimum; add the amounts of the workers that left to `free`.

    takes: amounts that a pod of each shape takes. free: free amounts of each node, which are changed in place.
    """
    remaining = job_state.workers[: job_state.job.bounds.minimum]
    for worker in job_state.workers[len(remaining) :]:
        free[worker.row] += takes[job_state.job.shape]
    return replace(job_state, job=replace(job_state.job, replicas=max(1, len(remaining))), workers=remaining)


def _without_workers(job_state: JobState) -> JobState:
    """Return the job without workers, so that it waits for its minimum."""
    minimum = job_state.job.bounds.minimum
    return replace(job_state, job=replace(job_state.job, replicas=minimum), workers=())
