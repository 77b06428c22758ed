"""Measure what the measurement of goodput costs: a training process per step, its agent, and the coordinator.

A training process writes its steps and phases to a real shared file, as under an agent. Nothing trains: a step is
empty, so that only the cost is measured. The share is that of a step of STEP_S.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hack.bench.support.outcome import Outcome, Scale, Table, Target
from turnout.launcher.coordinator_messages import Heartbeat, encode
from turnout.launcher.elastic.steps import Steps
from turnout.launcher.goodput import ledger as ledgers
from turnout.launcher.goodput.job_time import NS, RankZero
from turnout.launcher.health.hang_monitor.progress import PROGRESS, StepCounters
from turnout.launcher.settings import Timing

STEP_S = 0.1  # seconds of a short step of a large model
READS_S = 0.2  # seconds between two looks of an agent at the counters (launcher/agent/agent.py)
LIMIT = 0.001  # share of the step time
TRIALS = 9


def run(scale: Scale) -> Outcome:
    """Measure each part. Return the medians of TRIALS trials, and the targets."""
    count = scale.pick(100_000, 20_000, 100)
    with tempfile.TemporaryDirectory() as folder:
        counters = StepCounters(Path(folder), 1)
        os.environ[PROGRESS] = str(counters.paths[0])
        steps = Steps()
        costs_us = {
            "training process: done": _cost_us(lambda number: steps.done(number), count),
            "training process: done, and a phase": _cost_us(lambda number: _step_with_phase(steps, number), count),
            "agent: read rank 0": _cost_us(lambda _: counters.rank_zero(1), count // 10),
            "coordinator: count a report, encode the totals": _cost_us(_coordinator(), count // 10),
        }
        del os.environ[PROGRESS]
        counters.close()
    done_us, phase_us, agent_us, coordinator_us = costs_us.values()
    agent, coordinator = agent_us / 1e6 / READS_S, coordinator_us / 1e6 / Timing().heartbeat_s
    shares = (done_us / 1e6 / STEP_S, phase_us / 1e6 / STEP_S, agent, coordinator)
    rows = [(name, cost_us, share) for (name, cost_us), share in zip(costs_us.items(), shares, strict=True)]
    return Outcome(
        "goodput: what the measurement costs",
        [Table("cost of each part", {"part": "", "us": ".2f", "share": ".5%"}, rows)],
        [
            Target(f"share of a step of {STEP_S:g} s, with a phase in each step", shares[1], "<=", LIMIT),
            Target("share of one core, agent", agent, "<=", LIMIT),
            Target("share of one core, coordinator", coordinator, "<=", LIMIT),
        ],
        [f"The agent reads every {READS_S:g} s, and the coordinator counts at each heartbeat. One process, no GPU."],
    )


def _step_with_phase(steps: Steps, number: int) -> None:
    with steps.phase("data"):
        pass
    steps.done(number)


def _coordinator() -> Callable[[int], object]:
    """Return a function that does what a coordinator does at one heartbeat of rank 0. Its argument is the step."""
    ledger = ledgers.form(ledgers.new_ledger("bench/1", time.time_ns(), 0), 8)

    def count(number: int) -> bytes:
        """Apply one heartbeat of rank 0, and return the coordinator's heartbeat with the new totals, encoded.

        number: of the step.
        """
        nonlocal ledger
        report = RankZero(1, number, save_ns=number * NS // 100, since_step_ns=1_000, first=0)
        ledger = ledgers.begin_steps(ledgers.count_training(ledger, (number + 1) * NS, report), report.first)
        ledger = ledgers.preserve(ledgers.advance(ledger, report.step, report.since_step_ns), number - 2)
        return encode(Heartbeat(job_time=ledgers.record_of(ledger)))

    return count


def _cost_us(work: Callable[[int], object], count: int) -> float:
    """Return the median time of one call in microseconds, over TRIALS trials of `count` calls.

    work: gets the number of the call, from 0 on over all trials.
    """
    found = []
    for trial in range(TRIALS):
        begun_ns = time.perf_counter_ns()
        for number in range(trial * count, (trial + 1) * count):
            work(number)
        found.append((time.perf_counter_ns() - begun_ns) / count / 1e3)
    return statistics.median(found)
