"""The time until a hang is found, the ranks that are named, and false alarms.

The steps are real ones, recorded with evaluations, saves and recompilations among them, and watched meanwhile as an
agent watches. They are short; so that a limit has something to follow they are replayed with longer steps too.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from hack.bench.health.hanging_world import HangingWorld
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.support.percentiles import nearest_rank
from turnout.launcher.health.hang_detector import (
    BUCKETS,
    LIMIT_QUANTILE,
    RELIABLE_STEPS,
    HangLimits,
    Progress,
    ProgressWatch,
    bucket_of,
    hang_limit_s,
    observe,
)
from turnout.launcher.health.hang_monitor.progress import ProgressReporter, SharedCounters, StepCounters
from turnout.launcher.health.stack_traces.parse import read
from turnout.launcher.health.stack_traces.report import files, merge
from turnout.launcher.health.stack_traces.stack_tree import WorldStacks, rank_set_text

RANKS = 3
LONG_S = 4.0  # what the rarest thousandth of the steps takes at least in the replay
MERGED = 1_024
PLACES = ("fetch", "compute", "write")


def measure(scale: Scale) -> Outcome:
    """Measure false alarms, the time until a hang is found, and the merge of stacks. Return the tables and targets."""
    with tempfile.TemporaryDirectory(prefix="turnout-hangs-") as folder:
        return asyncio.run(_run(Path(folder), scale))


async def _run(folder: Path, scale: Scale) -> Outcome:
    """Measure false alarms in real training, then hangs in several places, then the merge of many stacks.

    folder: for files. Returns the tables and targets.
    """
    world = HangingWorld(folder, RANKS, HangLimits())
    quick_world = HangingWorld(folder, RANKS, HangLimits(floor_s=1.0))
    try:
        await world.warm()
        await world.train(scale.pick(34_000, 2_000, RELIABLE_STEPS + 100), limit_s=560)
        alarms = len(world.event_times("process_hung"))
        record = array("d", (folder / "record").read_bytes())
        figures = {"live_alarms": float(alarms)} | _step_figures(record)
        figures |= await _trials(quick_world, scale.pick(9, 2, 1))
        figures |= _replay_scaled(record) | _time_merge(quick_world.stacks) | _cost(folder)
    finally:
        await world.close()
        await quick_world.close()
    alarms_told = figures["live_alarms"] + figures["replay_alarms"]
    targets = [
        Target("hang found after, in steps as long as the rarest thousandth", figures["delay_of_rare_steps"], "<=", 3),
        Target("hangs told where there was none, in all recorded steps", alarms_told, "<=", 0),
        Target("hangs of which the right rank is named, of all", figures["named"], ">=", 1),
        Target(f"merge of the stacks of {MERGED} ranks, least of five, s", figures["merge_s"], "<=", 1),
    ]
    rows = [(f"hangs: {name.replace('_', ' ')}", value) for name, value in figures.items()]
    notes = [
        f"{RANKS} ranks in one machine, each watched for its {int(figures['steps'])} steps; rank 0's are replayed.",
        f"The delay is of a replay in which a rare step takes {LONG_S:g} s or more: no limit is below "
        f"{HangLimits().floor_s:g} s.",
        "In that replay what stalls a machine for a moment stalls it as much longer: its alarms are no target.",
    ]
    return Outcome("hangs", [Table("steps that never end", {"what": "", "": ".4g"}, rows)], targets, notes)


def _step_figures(record: Sequence[float]) -> dict[str, float]:
    """Return figures of the recorded steps by name: number, times, and the false alarms of a replay.

    record: as hanging_script.py writes it; it contains a step.
    """
    times_s = sorted(took_s for _, took_s, is_step in _spans(record) if is_step)
    return {
        "steps": float(len(times_s)),
        "median_step_s": nearest_rank(times_s, 0.5),
        "rare_step_s": nearest_rank(times_s, LIMIT_QUANTILE),
        "longest_step_s": times_s[-1],
        "replay_alarms": float(_alarms(record, 1.0)),
    }


def _spans(record: Sequence[float]) -> list[tuple[float, float, bool]]:
    """Return (seconds from the record's start to its end, seconds that it took, True for a step) for each step or phase
    of a record but the first.
    """
    ends = [abs(at_s) - abs(record[0]) for at_s in record]
    return [(end, end - start, at > 0) for (start, end), at in zip(itertools.pairwise(ends), record[1:], strict=True)]


def _alarms(record: Sequence[float], scale: float) -> int:
    """Replay the record and count false alarms, with a check as often as an agent does. scale: factor of all times."""
    limits, watch, alarms, counts, beats, turns, now_s, turn_s = (
        HangLimits(),
        ProgressWatch(),
        0,
        [0] * BUCKETS,
        1,
        0,
        0.0,
        0.0,
    )
    beat_s = 0.0
    for end_s, took_s, is_step in _spans(record):
        while now_s < end_s * scale:
            progress = Progress(beats, beat_s, "" if is_step else "phase", turns + (not is_step), turn_s, True, counts)
            watch, news = observe(watch, progress, limits, now_s)
            alarms += news is not None and watch.hangs
            now_s += limits.look_s
        if is_step:
            beats, beat_s = beats + 1, end_s * scale
            counts[bucket_of(took_s * scale)] += 1
        else:
            turns, turn_s = turns + 2, end_s * scale
    return alarms


async def _trials(world: HangingWorld, times: int) -> dict[str, float]:
    """Let one rank hang in each trial, in several places in turn. Return figures by name.

    They are: the share of trials that name the right rank, and the longest delays in seconds. times: number of trials.
    """
    rng, named, delays_s, stacks_s = random.Random(8), 0, list[float](), list[float]()
    for trial in range(times):
        rank, where = trial % RANKS, PLACES[trial // RANKS % len(PLACES)]
        last_s = await world.train(rng.randint(200, 400), rank, where, limit_s=120)
        named += _outlier_ranks(world.stacks) == str(rank)
        delays_s.append(world.event_times("process_hung")[0] - last_s)
        stacks_s.append(world.event_times("stacks_taken")[0] - world.event_times("process_hung")[0])
    return {"named": named / times, "found_after_s": max(delays_s), "stacks_taken_in_s": max(stacks_s)}


def _outlier_ranks(stacks: Path) -> str:
    stacks_by_rank = {int(path.name[:5]): read(path.read_bytes()) for path in stacks.glob("*.stacktrace")}
    return rank_set_text(merge(WorldStacks(RANKS, stacks_by_rank)).places.outlier_ranks)


def _replay_scaled(record: Sequence[float]) -> dict[str, float]:
    """Replay the recorded steps with all times scaled up, so that rare steps take LONG_S. Return figures by name.

    They are: the worst delay of a hang, in units of a rare step, and the number of false alarms.
    """
    times_s = [took_s for _, took_s, is_step in _spans(record) if is_step]
    rare_s = {at: nearest_rank(times_s[:at], LIMIT_QUANTILE) for at in range(RELIABLE_STEPS, len(times_s), 500)}
    scale = LONG_S / min(rare_s.values())
    counts, worst, limits = [0] * BUCKETS, 0.0, HangLimits()
    for at, took_s in enumerate(times_s, 1):
        counts[bucket_of(took_s * scale)] += 1
        if at in rare_s:
            found_s = hang_limit_s(Progress(at, marked=True, counts=counts), limits) + limits.look_s
            worst = max(worst, found_s / (rare_s[at] * scale))
    return {"delay_of_rare_steps": worst, "long_replay_alarms": float(_alarms(record, scale))}


def _time_merge(stacks: Path) -> dict[str, float]:
    """Time the merge of the stacks of MERGED ranks, one of which differs. Return the least of five times by name.

    stacks: folder of the last hang's stacks. Raises AssertionError if the merge names another rank.
    """
    found = [path.read_bytes() for path in sorted(stacks.glob("*.stacktrace"))]
    outlier_rank = int(_outlier_ranks(stacks) or 0)
    usual_stacks = found[(outlier_rank + 1) % RANKS]
    raw = {rank: found[outlier_rank] if rank == MERGED // 2 else usual_stacks for rank in range(MERGED)}
    took_s = list[float]()
    for _ in range(5):
        began_s = time.perf_counter()
        merged = merge(WorldStacks(MERGED, {rank: read(each) for rank, each in raw.items()}))
        file_names = files(merged)
        took_s.append(time.perf_counter() - began_s)
        assert rank_set_text(merged.places.outlier_ranks) == str(MERGED // 2), file_names["stacks.txt"].decode()[:500]
    return {"merge_s": min(took_s)}


def _cost(folder: Path) -> dict[str, float]:
    """Return {"beat_us": microseconds that it costs training to count one step}. folder: for the counters."""
    watched = StepCounters(folder, 1)
    beats, times = ProgressReporter(SharedCounters(watched.paths[0])), 20_000
    began_s = time.perf_counter()
    for _ in range(times):
        beats.count_step()
    took_s = time.perf_counter() - began_s
    watched.close()
    return {"beat_us": 1e6 * took_s / times}
