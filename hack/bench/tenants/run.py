"""Measure what honest tenants get beside one that attacks, and beside the same pods with nothing written on them.

Gangs: minutes of a full cluster through the extender's real handlers. Jobs: elastic and rigid jobs under the
autoscaler's real parts, through the death of a leader. Words: verdicts on nodes, Events, and jobs for the shipped
turnout-controller. Questions: the shipped extender over HTTP. A ratio of 1 means that the attack changes nothing.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.support.percentiles import nearest_rank
from hack.bench.tenants import lending_attacks, lending_story, words_story
from hack.bench.tenants.attacks import ATTACKS, no_attack
from hack.bench.tenants.job_flood import measure_flood
from hack.bench.tenants.lending_story import LendingStory
from hack.bench.tenants.served import NODES, RequestTimes, serve_extender
from hack.bench.tenants.story import TENANTS, GangMeasurements, SimulationSize, tell

SIZES = {
    Scale.FULL: SimulationSize(nodes=200, seconds=900, every_s=10, at_once=2, quick=False),
    Scale.QUICK: SimulationSize(nodes=100, seconds=600, every_s=12, at_once=1, quick=True),
    Scale.SMALLEST: SimulationSize(nodes=16, seconds=140, every_s=12, at_once=1, quick=True),
}
LENDING_S, GAP_S = 2_400, 20
MIN_RATIO, MAX_MS = 0.98, 100.0
# least, together: ratio of the worst-off honest tenant, and of all; each table's title says of which quantity.
COLUMNS = {"attack": "", "wait s": ".2f", "beside s": ".2f", "as soon": ".3f", "least": ".3f", "together": ".3f"}
COLUMNS |= {"faults": "d", "fair share says": ""}
LIES = "half of the share of nodes that may be tainted is one namespace's to say"
HALF = "while both have jobs to be looked at, each namespace has every other turn"
TURNS = "Events are written five a second, a namespace after another"
ASKED = {"attack, over HTTP": "", **{f"filter {each} ms": ".1f" for each in ("p50", "p99", "p99 by the wall")}}
ASKED |= {"healthz p50 ms": ".1f", "healthz p99 ms": ".1f", "its questions": ",d", "unanswered": "d"}


@dataclass(frozen=True, slots=True)
class AttackResult:
    """One attack compared with the run without it.

    The order in which honest jobs grow is not fixed, so single jobs may differ between two runs with equal sums.
    """

    name: str
    fair: str  # why it is no fault if others get less; "" if they must not
    wait_s: float  # mean wait of the honest tenants during the attack
    baseline_wait_s: float  # the same without it
    worst_share: float  # what the worst-off honest tenant gets during the attack, divided by what it gets without
    faults: int  # neutral answers, jobs without decision, or reports without effect during the attack
    total_share: float = 1.0  # the same ratio of all honest tenants together

    @property
    def wait_ratio(self) -> float:
        """Return 1 + the mean wait without the attack, divided by 1 + the mean wait with it; 1 if the attack delays
        nobody.
        """
        return (1.0 + self.baseline_wait_s) / (1.0 + self.wait_s)

    def cells(self) -> tuple[object, ...]:
        """Return the row's cells in the order of COLUMNS."""
        return (
            self.name,
            self.wait_s,
            self.baseline_wait_s,
            self.wait_ratio,
            self.worst_share,
            self.total_share,
            self.faults,
            self.fair,
        )


def run(scale: Scale) -> Outcome:
    """Simulate every attack and the run for comparison, in parallel; then measure the real programs one after the
    other.
    """
    quick, seeds = scale is not Scale.FULL, scale.pick(16, 4, 1)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        gangs = list(pool.map(_measure_gang_attack, range(-1, len(ATTACKS)), [SIZES[scale]] * (len(ATTACKS) + 1)))
        of_jobs = range(-1, len(lending_attacks.ATTACKS))
        jobs = list(pool.map(_measure_lending_attack, of_jobs, [seeds] * len(of_jobs)))
        words = list(pool.map(_measure_report_attack, range(len(_WORDS))))
    words.append(_measure_job_flood(*scale.pick((1_000, 20), (200, 6), (4, 1))))
    request_times = dict(_measure_http_attacks(quick, *scale.pick((3, 1_000), (2, 150), (1, 2))))
    titles = {
        "gangs of honest tenants in a full cluster: share of GPUs; neutral answers": gangs,
        "jobs of honest tenants in a queue that lends: size; jobs without decision": jobs,
        "what honest tenants say and submit: nodes; words lost": words,
    }
    tables = [
        *(
            Table(title, COLUMNS, [row.cells() for row in rows], title.partition(" ")[0])
            for title, rows in titles.items()
        ),
        Table(
            f"questions at {NODES:,} nodes",
            ASKED,
            [_http_row(name, each) for name, each in request_times.items()],
            "asked",
        ),
    ]
    size = SIZES[scale]
    notes = (
        f"Gangs: {size.nodes} nodes. Jobs: {lending_story.NODES} nodes of 8 GPUs, {seeds} seeds. beside: the same run "
        "with as many plain pods instead. least: of the worst-off honest tenant; together: of all of them.",
        "Times over HTTP are of two schedulers that ask at once, less the time that the extender was ready and had "
        f"no core (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores); of several rounds the best.",
    )
    targets = list(_targets(gangs, jobs, words, request_times, quick))
    return Outcome("tenants: kept apart", tables, targets, notes, strict=True)


def _measure_gang_attack(number: int, size: SimulationSize) -> AttackResult:
    """Run one attack on the extender, and the same pods without annotations; return both as a row.

    number: index in ATTACKS, -1 for no attack.
    """
    if number < 0:
        undisturbed = tell(size, no_attack)
        return AttackResult("none", "", _wait_s(undisturbed), _wait_s(undisturbed), 1.0, undisturbed.neutral)
    named = ATTACKS[number]
    print(named.name, file=sys.stderr, flush=True)
    baseline, attacked = tell(size, named.comparison), tell(size, named.attack)
    share = min(attacked.gpu_seconds[who] / baseline.gpu_seconds[who] for who in TENANTS)
    together = sum(attacked.gpu_seconds[who] for who in TENANTS) / sum(baseline.gpu_seconds[who] for who in TENANTS)
    return AttackResult(named.name, named.fair, _wait_s(attacked), _wait_s(baseline), share, attacked.neutral, together)


def _wait_s(results: GangMeasurements) -> float:
    """Return the mean wait in seconds."""
    return statistics.fmean(results.wait_s)


def _measure_lending_attack(number: int, seeds: int) -> AttackResult:
    """Simulate one attack on the autoscaler, and the same story without it, once per seed. Return the table's row.

    number: index in lending_attacks.ATTACKS, -1 for no attack. seeds: number of seeds; they are 0 to seeds - 1.
    """
    named = lending_attacks.NONE if number < 0 else lending_attacks.ATTACKS[number]
    print(named.name, file=sys.stderr, flush=True)
    baseline = [LendingStory(LENDING_S, named.comparison, GAP_S, seed).run() for seed in range(seeds)]
    attacked = [LendingStory(LENDING_S, named.attack, GAP_S, seed).run() for seed in range(seeds)]
    wait_s = [statistics.fmean(each for one in some for each in one.wait_s) for some in (attacked, baseline)]
    sizes = [
        {who: sum(one.size_s[who] for one in some) for who in lending_story.TENANTS} for some in (attacked, baseline)
    ]
    minimum = min(sizes[0][who] / sizes[1][who] for who in lending_story.TENANTS)
    together = sum(sizes[0].values()) / sum(sizes[1].values())
    return AttackResult(
        named.name, named.fair, wait_s[0], wait_s[1], minimum, sum(one.faults for one in attacked), together
    )


_WORDS = (
    ("lying verdicts on every node", LIES, words_story.verdicts),
    ("a flood of Events", TURNS, words_story.events),
)


def _measure_report_attack(number: int) -> AttackResult:
    """Simulate one attack by reports or Events, and its comparison. number: index in _WORDS."""
    name, fair, story = _WORDS[number]
    print(name, file=sys.stderr, flush=True)
    baseline, attacked = story(False), story(True)
    wait_s, baseline_wait_s = (statistics.fmean(each.wait_s) for each in (attacked, baseline))
    share = attacked.share / baseline.share
    return AttackResult(name, fair, wait_s, baseline_wait_s, share, attacked.lost, share)


def _measure_job_flood(flood: int, honest: int) -> AttackResult:
    """Measure a flood of jobs on the real job controllers. flood: number of the attacker's jobs. honest: measured
    jobs.
    """
    name = "a flood of jobs at turnout-controller"
    print(name, file=sys.stderr, flush=True)
    attacked, baseline = measure_flood(flood, honest)
    return AttackResult(name, HALF, statistics.fmean(attacked.wait_s), statistics.fmean(baseline.wait_s), 1.0, 0)


def _measure_http_attacks(quick: bool, rounds: int, questions: int) -> Iterator[tuple[str, RequestTimes]]:
    """Ask the real extender over HTTP without an attack and during each one. Yield (name of the attack, times).

    rounds: repetitions, of which the best counts. questions: honest requests in each. quick: attacks are small.
    """
    with serve_extender() as extender:
        extender.ask_during(no_attack, questions, quick)  # warms up
        yield "none", _best_round([extender.ask_during(no_attack, questions, quick) for _ in range(rounds)])
        for named in ATTACKS:
            print(f"over HTTP: {named.name}", file=sys.stderr, flush=True)
            yield named.name, _best_round([extender.ask_during(named.attack, questions, quick) for _ in range(rounds)])


def _best_round(rounds: Sequence[RequestTimes]) -> RequestTimes:
    """Return the round with the lowest p99 of filter times, changed: `unanswered` is set to the sum over all rounds."""
    best = min(rounds, key=lambda each: nearest_rank(each.filter_s, 0.99))
    best.unanswered = sum(each.unanswered for each in rounds)
    return best


def _ms(seconds: Sequence[float], share: float) -> float:
    """Return a percentile of times in ms. share: 0 to 1."""
    return nearest_rank(seconds, share) * 1e3


def _http_row(name: str, times: RequestTimes) -> tuple[object, ...]:
    """Return the row of one attack over HTTP, in the order of ASKED. name: of the attack."""
    ms = [_ms(times.filter_s, 0.5), _ms(times.filter_s, 0.99), _ms(times.wall_s, 0.99)]
    return (name, *ms, _ms(times.healthz_s, 0.5), _ms(times.healthz_s, 0.99), times.greedy, times.unanswered)


def _targets(
    gangs: Sequence[AttackResult],
    jobs: Sequence[AttackResult],
    words: Sequence[AttackResult],
    request_times: dict[str, RequestTimes],
    quick: bool,
) -> Iterator[Target]:
    """Yield the targets. quick: few seeds.

    For jobs: the tenant with the least share; in quick runs the share of all tenants together, since with few seeds one
    tenant's result is noise. gangs, jobs, words: the rows of each table; the first row of `gangs` and `jobs` is without
    an attack. request_times: times over HTTP, by the attack's name.
    """
    attacked = ((gangs[1:], "least share"), (jobs[1:], "size" if quick else "least size"), (words, "nodes"))
    for rows, word in attacked:
        for row in rows:
            if not row.fair:
                of = row.total_share if word == "size" else row.worst_share
                yield Target(f"placed as soon beside {row.name}", row.wait_ratio, ">=", MIN_RATIO)
                yield Target(f"{word} beside {row.name}", of, ">=", MIN_RATIO)
            yield Target(f"answers without opinion, jobs without decision, words lost: {row.name}", row.faults, "<=", 0)
    for name, each in request_times.items():
        yield Target(f"filter p99 ms over HTTP, {name}", _ms(each.filter_s, 0.99), "<=", MAX_MS)
        yield Target(f"healthz p99 ms, {name}", _ms(each.healthz_s, 0.99), "<=", MAX_MS)
        yield Target(f"probes that healthz did not answer, {name}", each.unanswered, "<=", 0)
