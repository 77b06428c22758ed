"""The values of `turnout simulate`: what is replayed, and the figures of both runs.

The replay itself is simulator/replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from turnout.autoscaler.model import Policy
from turnout.cli.why import count, duration_text
from turnout.simulator.replay.cluster import ReplayWorld
from turnout.simulator.replay.job_run import GPU
from turnout.simulator.replay.model import ReplayOutcome, ReplayRules, Submission
from turnout.simulator.replay.run import Comparison, Watch, p99, replay
from turnout.simulator.replay.traces import JobProperties, TraceRow, submissions_of

USUAL_LOAD = 0.65  # of the cluster, if --nodes is not given


class BadSimulation(ValueError):
    """A replay is not possible. The message names the wrong option or line."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The user's choices."""

    nodes: tuple[int, ...] = ()  # GPUs of each; () for as many nodes of 8 GPUs as are busy to USUAL_LOAD
    elastic: float = 1.0  # share of jobs that are elastic
    factor: int = 4  # max of an elastic job divided by its min
    restart_s: float = 60.0  # that a resize costs a job
    headroom_gpus: int = 0  # GPUs that lending keeps free
    backfill: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.elastic <= 1:
            raise BadSimulation(f"--elastic is {self.elastic}: it must be from 0 to 1")
        if self.factor < 1 or self.restart_s < 0 or self.headroom_gpus < 0:
            raise BadSimulation("--factor must be at least 1, --restart-s and --headroom-gpus not negative")


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of both runs, without lending and with it. Times in seconds, shares from 0 to 1."""

    jobs: int
    gpus: int  # of the cluster
    nodes: int
    busy_without: float  # share of GPU time in which jobs made progress, without lending
    busy: float  # the same with lending
    mean_wait_without_s: float
    mean_wait_s: float
    p99_wait_without_s: float
    p99_wait_s: float
    mean_completion_without_s: float
    mean_completion_s: float
    faster: float  # mean completion time without lending, divided by that with it
    gained: int  # jobs that ended more than 1 s sooner with lending
    lost: int  # jobs that ended more than 1 s later with lending
    worse: float  # share of jobs that ended more than 60 s later with lending
    late: int  # jobs that started later than lending may delay a start
    worst_delay_s: float  # of the job whose start lending delayed most; negative if all started sooner
    harm: float  # the largest loss of a job, in units of two restarts and one grace period
    restarts: float  # changes of size per job


def jobs_of(
    rows: Sequence[TraceRow], options: SimulationOptions, jobs: int = 0
) -> tuple[tuple[Submission, ...], ReplayRules]:
    """Return the jobs to replay, and the rules and nodes of the cluster.

    rows: of the trace, in any order. jobs: number of first jobs to take, 0 for all. Raises BadSimulation if there are
    none, or if one does not fit the empty cluster.
    """
    chosen = sorted(rows)[:jobs] if jobs else rows
    if not chosen:
        raise BadSimulation("the trace has no job that held a GPU")
    submissions = submissions_of(chosen, JobProperties(options.elastic, options.factor), Random(options.seed))
    nodes = options.nodes or _usual(submissions)
    rules = ReplayRules(nodes, restart_s=options.restart_s, backfill=options.backfill)
    for each in submissions:
        if sum(node // each.gpus for node in nodes) < each.minimum:
            text = f"{each.name} asks for {each.minimum} x {each.gpus} GPUs"
            raise BadSimulation(f"{text}: no empty cluster of {len(nodes)} nodes, {sum(nodes)} GPUs, holds it")
    return submissions, rules


def _usual(submissions: Sequence[Submission]) -> tuple[int, ...]:
    """Return the GPUs of each node, 8 for all: enough for a load of USUAL_LOAD without lending, and for the largest
    min.

    submissions: at least one.
    """
    span_s = max(each.at_s for each in submissions) - min(each.at_s for each in submissions)
    requested_gpu_s = sum(each.min_gpus * each.work_s for each in submissions)
    busy = requested_gpu_s / (span_s * USUAL_LOAD) if span_s else 0.0
    return (8,) * max(math.ceil(max(busy, *(each.min_gpus for each in submissions), 1) / 8), 1)


def simulate(
    submissions: Sequence[Submission],
    rules: ReplayRules,
    options: SimulationOptions,
    ended: Callable[[int], None] = lambda _: None,
    watches: tuple[Watch, Watch] | None = None,
) -> Comparison:
    """Replay the trace without lending and with lending, and return both results.

    ended: called at each event with the number of ended jobs of both runs together. watches: (called at each event of
    the run without lending, called at each of the run with it); None for none.
    """
    headroom = {GPU: options.headroom_gpus} if options.headroom_gpus else {}
    policy = Policy(restart_s=options.restart_s, headroom=headroom)

    def run_once(policy: Policy | None, before: int, watch: Watch | None) -> ReplayOutcome:
        """Replay the trace once.

        policy: None for no lending. before: jobs that ended in the runs before this one; added to the number that
        `ended` gets. watch: called at each event, None for none.
        """

        def at_event(world: ReplayWorld) -> None:
            ended(before + len(world.ended))
            if watch is not None:
                watch(world)

        return replay(submissions, rules, policy, watch=at_event)

    without, lent = watches or (None, None)
    return Comparison(run_once(None, 0, without), run_once(policy, len(submissions), lent))


def figures(compared: Comparison) -> Figures:
    """Return the figures of both runs: means, shares and losses. compared: runs of at least one job."""
    rules = compared.lent.rules
    before, after = ([ran.waited_s for ran in tape.results] for tape in (compared.without, compared.lent))
    losses = compared.losses_s
    return Figures(
        jobs=len(losses),
        gpus=rules.gpus,
        nodes=len(rules.nodes),
        busy_without=compared.without.utilisation,
        busy=compared.lent.utilisation,
        mean_wait_without_s=sum(before) / len(before),
        mean_wait_s=sum(after) / len(after),
        p99_wait_without_s=p99(before),
        p99_wait_s=p99(after),
        mean_completion_without_s=compared.without.mean_took_s,
        mean_completion_s=compared.lent.mean_took_s,
        faster=compared.faster,
        gained=sum(loss_s < -1 for loss_s in losses),
        lost=sum(loss_s > 1 for loss_s in losses),
        worse=compared.worse,
        late=compared.late,
        worst_delay_s=max(compared.delays_s),
        harm=compared.harm,
        restarts=compared.lent.restarts,
    )


def size_sentence(figures: Figures) -> str:
    """Return one sentence on the size of the replay: jobs, nodes, GPUs."""
    return f"{figures.jobs:,} jobs on {figures.nodes:,} nodes, {figures.gpus:,} GPUs"


def lines(figures: Figures) -> list[str]:
    """Return the lines of the table, with its heading first."""
    rows = [("", "without", "with lending"), *table_rows(figures)]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    return [f"{a.ljust(widths[0])}  {b.rjust(widths[1])}  {c.rjust(widths[2])}".rstrip() for a, b, c in rows]


def table_rows(figures: Figures) -> tuple[tuple[str, str, str], ...]:
    """Return the rows of the table: what is measured, without lending, with lending."""
    return (
        ("GPU time with progress", f"{figures.busy_without:.1%}", f"{figures.busy:.1%}"),
        ("mean wait", duration_text(figures.mean_wait_without_s), duration_text(figures.mean_wait_s)),
        ("p99 wait", duration_text(figures.p99_wait_without_s), duration_text(figures.p99_wait_s)),
        ("mean completion", duration_text(figures.mean_completion_without_s), duration_text(figures.mean_completion_s)),
        ("jobs that won, lost", "", f"{figures.gained:,}, {figures.lost:,}"),
        ("more than 60 s worse", "", f"{figures.worse:.2%}"),
        ("latest start", "", f"{max(0.0, figures.worst_delay_s):.0f} s later"),
        ("changes of size a job", "", f"{figures.restarts:.2f}"),
    )


def verdict(figures: Figures) -> str:
    """Return one sentence: how much sooner jobs end, how busy the cluster is, how many jobs end over a minute later."""
    gain = (
        f"Jobs end {figures.faster:.2f} times as fast on average" if figures.faster >= 1.005 else "Jobs end no faster"
    )
    used = f"the cluster is busy to {figures.busy:.0%} rather than {figures.busy_without:.0%}"
    paid = "no job ends later by more than a minute"
    if figures.worse:
        number = round(figures.worse * figures.jobs)
        paid = f"{count(number, 'job')} of {figures.jobs:,} ({figures.worse:.1%}) end more than a minute later"
    return f"{gain}, and {used}; {paid}."
