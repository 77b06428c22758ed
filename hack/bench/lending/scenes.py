"""The scenes of the benchmark `lending`: which jobs are elastic, what a restart costs, and what runs beside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from hack.bench.lending.hpa import DOWN_S, SYNC_S, hpa
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Policy
from turnout.simulator.replay import trace_files
from turnout.simulator.replay.job_run import GPU
from turnout.simulator.replay.model import ReplayOutcome, ReplayRules, Submission
from turnout.simulator.replay.run import Comparison, p99, replay
from turnout.simulator.replay.traces import JobProperties, TraceRow, draw_trace, submissions_of

# The GPUs that each ITP cluster is assumed to have, so that its full static run is busy to 60 to 68 %.
# Source: docs/facts/autoscaling.md 7.1.
CLUSTERS = {"c02": 144, "c03": 256, "c04": 768, "c06": 128, "c07": 384}
GENERATED = {"drawn-64": (64, 0.75), "drawn-256": (256, 0.65)}  # without traces: GPUs, load


@dataclass(frozen=True, slots=True)
class LendingScene:
    """One way to replay a trace."""

    name: str
    elastic: float = 1.0  # share of jobs that are elastic
    factor: int = 4  # max of an elastic job / its min
    measured: bool = False  # jobs speed up as in measured tables
    restart_s: float = 60.0  # that a resize costs a job
    headroom: float = 0.0  # share of GPUs that are kept free
    backfill: bool = False  # a later job may start before an older one that does not fit
    hosts: bool = False  # nodes of 8 GPUs; False: one pool
    hpa: bool = False  # the HPA decides, not our autoscaler
    oracle: bool = False  # the trace is also replayed with free restarts and instant eviction

    @property
    def is_random(self) -> bool:
        """True if a seed labels the jobs. Only then does another seed give another replay of a trace."""
        return self.measured or self.elastic < 1


ALL = LendingScene("all elastic", oracle=True)
SLOW = LendingScene("restart 250 s", restart_s=250.0, oracle=True)
HALF = LendingScene("half elastic", elastic=0.5)
MEASURED = LendingScene("measured curves", factor=2, measured=True, oracle=True)
HEADROOM = LendingScene("headroom 1 %", headroom=0.01)
HOSTS = LendingScene("nodes of 8", hosts=True)
BACKFILL = LendingScene("backfill", backfill=True)
HPA = LendingScene("HPA", hpa=True)
SCENES = (ALL, SLOW, HALF, MEASURED, HEADROOM, HOSTS, BACKFILL, HPA)


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """One scene on one cluster."""

    cluster: str
    scene: LendingScene
    seed: int
    jobs: int  # number of jobs, the first of the trace; 0: all


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The results of one task."""

    task: ReplayTask
    jobs: int  # number of replayed jobs
    busy_before: float  # share of GPU time in use without lending
    busy: float  # the same with lending
    faster: float  # Compared.faster
    capture: float | None  # Compared.capture of the oracle; None without an oracle
    late: int  # jobs that started later than they may
    worst_s: float  # longest delay of a job's start
    p99_ratio: float  # p99 of the wait with lending / without it; the latter is at least Compared.patience_s
    undisturbed: float  # Compared.undisturbed
    harm: float  # Compared.harm
    worse: float  # share of jobs that ended more than a minute later
    restarts: float  # Tape.restarts with lending
    looks_per_s: float  # decisions of the autoscaler in each second of CPU time


def clusters() -> list[str]:
    """Return the names of the clusters whose traces are on this machine; the generated ones if there are none."""
    available = [name for name in CLUSTERS if trace_files.read_cluster_trace(name[1:]) is not None]
    return available or list(GENERATED)


def replay_task(task: ReplayTask) -> ReplayResult:
    """Replay a task without the autoscaler and with it, and with the oracle if the scene asks for it. Compare them."""
    scene = task.scene
    jobs, rules = _jobs(task), _rules(task)
    without = replay(jobs, rules)
    began_s = time.process_time()
    lent = _replay_with_lending(jobs, rules, scene)
    took_s = time.process_time() - began_s
    comparison = Comparison(without, lent)
    waited, waited_lent = ([ran.waited_s for ran in tape.results] for tape in (without, lent))
    return ReplayResult(
        task=task,
        jobs=len(jobs),
        busy_before=without.utilisation,
        busy=lent.utilisation,
        faster=comparison.faster,
        capture=comparison.capture(_oracle(jobs, rules)) if scene.oracle else None,
        late=comparison.late,
        worst_s=max(comparison.delays_s),
        p99_ratio=p99(waited_lent) / max(p99(waited), comparison.patience_s),
        undisturbed=comparison.undisturbed,
        harm=comparison.harm,
        worse=comparison.worse,
        restarts=lent.restarts,
        looks_per_s=lent.decisions / took_s,
    )


def _jobs(task: ReplayTask) -> Sequence[Submission]:
    """Return the jobs of a task with elastic labels, drawn at random from the task's seed."""
    scene, rng = task.scene, Random(task.seed)
    rows = _rows(task, rng)
    properties = JobProperties(
        scene.elastic, scene.factor, tables=trace_files.read_speed_tables() if scene.measured else ()
    )
    return submissions_of(rows[: task.jobs] if task.jobs else rows, properties, rng)


def _rows(task: ReplayTask, rng: Random) -> Sequence[TraceRow]:
    """Return the rows of the task's trace, or a generated stream for a cluster of GENERATED.

    Returns () if the trace is not on this machine.
    """
    if task.cluster in GENERATED:
        gpus, load = GENERATED[task.cluster]
        return draw_trace(task.jobs or 5000, gpus, load, rng)
    return trace_files.read_cluster_trace(task.cluster[1:]) or ()


def _rules(task: ReplayTask) -> ReplayRules:
    """Return the rules of a task's replay: nodes, restart time, interval between decisions, backfill."""
    scene = task.scene
    gpus = CLUSTERS.get(task.cluster) or GENERATED[task.cluster][0]
    tick_s = SYNC_S if scene.hpa else 5.0
    nodes = (8,) * (gpus // 8) if scene.hosts else (gpus,)
    return ReplayRules(nodes, restart_s=scene.restart_s, tick_s=tick_s, backfill=scene.backfill)


def _replay_with_lending(jobs: Sequence[Submission], rules: ReplayRules, scene: LendingScene) -> ReplayOutcome:
    """Replay the jobs with lending, by our autoscaler or by the HPA as the scene says; return what happened.

    rules: nodes, times and backfill of the replay.
    """
    if scene.hpa:
        return replay(jobs, rules, Policy(cooldown_s=DOWN_S), hpa)
    headroom = {GPU: round(rules.gpus * scene.headroom)} if scene.headroom else {}
    return replay(jobs, rules, Policy(restart_s=scene.restart_s, headroom=headroom), decide)


def _oracle(jobs: Sequence[Submission], rules: ReplayRules) -> ReplayOutcome:
    """Replay the policy where restarts are free, eviction is instant, and every event is seen at once."""
    free = ReplayRules(rules.nodes, restart_s=0.0, grace_s=0.0, tick_s=0.0)
    return replay(jobs, free, Policy(restart_s=0.0, cooldown_s=0.0))
