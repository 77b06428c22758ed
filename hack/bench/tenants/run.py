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
from hack.bench.tenants.attacks import ATTACKS, nothing
from hack.bench.tenants.job_flood import flooded
from hack.bench.tenants.lending_story import LendingStory
from hack.bench.tenants.served import NODES, Asked, served
from hack.bench.tenants.story import TENANTS, Size, Told, tell

SIZES = {
    Scale.FULL: Size(nodes=200, seconds=900, every_s=10, at_once=2, quick=False),
    Scale.QUICK: Size(nodes=100, seconds=600, every_s=12, at_once=1, quick=True),
    Scale.SMALLEST: Size(nodes=16, seconds=140, every_s=12, at_once=1, quick=True),
}
LENDING_S, GAP_S = 2_400, 20
LEAST_RATIO, MOST_MS = 0.98, 100.0
# least, together: of the worst-off honest tenant, and of all of them; what they are of follows in each table's title.
COLUMNS = {"attack": "", "wait s": ".2f", "beside s": ".2f", "as soon": ".3f", "least": ".3f", "together": ".3f"}
COLUMNS |= {"faults": "d", "fair share says": ""}
LIES = "half of the share of nodes that may be tainted is one namespace's to say"
HALF = "while both have jobs to be looked at, each namespace has every other turn"
TURNS = "Events are written five a second, a namespace after another"
ASKED = {"attack, over HTTP": "", **{f"filter {each} ms": ".1f" for each in ("p50", "p99", "p99 by the wall")}}
ASKED |= {"healthz p50 ms": ".1f", "healthz p99 ms": ".1f", "its questions": ",d", "unanswered": "d"}


@dataclass(frozen=True, slots=True)
class Row:
    """One attack beside the run without it. least, together: share or size of the worst-off honest tenant, and of all.

    Which of the honest jobs grows first is open, so a run that differs in one step may give one what another had.
    """

    name: str
    fair: str
    wait_s: float
    beside_s: float
    least: float
    faults: int
    together: float = 1.0

    @property
    def soon(self) -> float:
        """How soon honest jobs are placed beside the attack, of how soon without."""
        return (1.0 + self.beside_s) / (1.0 + self.wait_s)

    def cells(self) -> tuple[object, ...]:
        """Return the row as a table shows it."""
        return (self.name, self.wait_s, self.beside_s, self.soon, self.least, self.together, self.faults, self.fair)


def run(scale: Scale) -> Outcome:
    """Play every attack, each beside the run without it, then ask over HTTP while nothing else runs here."""
    quick, seeds = scale is not Scale.FULL, scale.pick(16, 4, 1)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        gangs = list(pool.map(_gangs, range(-1, len(ATTACKS)), [SIZES[scale]] * (len(ATTACKS) + 1)))
        of_jobs = range(-1, len(lending_attacks.ATTACKS))
        jobs = list(pool.map(_jobs, of_jobs, [seeds] * len(of_jobs)))
        words = list(pool.map(_words, range(len(_WORDS))))
    words.append(_flooded(*scale.pick((1_000, 20), (200, 6), (4, 1))))
    asked = dict(_asked(quick, *scale.pick((3, 1_000), (2, 150), (1, 2))))
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
        Table(f"questions at {NODES:,} nodes", ASKED, [_told(name, each) for name, each in asked.items()], "asked"),
    ]
    size = SIZES[scale]
    notes = (
        f"Gangs: {size.nodes} nodes. Jobs: {lending_story.NODES} nodes of 8 GPUs, {seeds} seeds. beside: the same run "
        "with as many plain pods instead. least: of the worst-off honest tenant; together: of all of them.",
        "Times over HTTP are of two schedulers that ask at once, less the time that the extender was ready and had "
        f"no core (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores); of several rounds the best.",
    )
    targets = list(_targets(gangs, jobs, words, asked, quick))
    return Outcome("tenants: kept apart", tables, targets, notes, strict=True)


def _gangs(number: int, size: Size) -> Row:
    """Play one attack on the extender; -1 for none."""
    if number < 0:
        alone = tell(size, nothing)
        return Row("none", "", _wait_s(alone), _wait_s(alone), 1.0, alone.neutral)
    named = ATTACKS[number]
    print(named.name, file=sys.stderr, flush=True)
    beside, told = tell(size, named.beside), tell(size, named.attack)
    share = min(told.gpu_seconds[who] / beside.gpu_seconds[who] for who in TENANTS)
    together = sum(told.gpu_seconds[who] for who in TENANTS) / sum(beside.gpu_seconds[who] for who in TENANTS)
    return Row(named.name, named.fair, _wait_s(told), _wait_s(beside), share, told.neutral, together)


def _wait_s(told: Told) -> float:
    return statistics.fmean(told.wait_s)


def _jobs(number: int, seeds: int) -> Row:
    """Play one attack on the autoscaler, under several seeds; -1 for none."""
    named = lending_attacks.NONE if number < 0 else lending_attacks.ATTACKS[number]
    print(named.name, file=sys.stderr, flush=True)
    beside = [LendingStory(LENDING_S, named.beside, GAP_S, seed).run() for seed in range(seeds)]
    told = [LendingStory(LENDING_S, named.attack, GAP_S, seed).run() for seed in range(seeds)]
    waits = [statistics.fmean(each for one in some for each in one.wait_s) for some in (told, beside)]
    sizes = [{who: sum(one.size_s[who] for one in some) for who in lending_story.TENANTS} for some in (told, beside)]
    least = min(sizes[0][who] / sizes[1][who] for who in lending_story.TENANTS)
    together = sum(sizes[0].values()) / sum(sizes[1].values())
    return Row(named.name, named.fair, waits[0], waits[1], least, sum(one.faults for one in told), together)


_WORDS = (
    ("lying verdicts on every node", LIES, words_story.verdicts),
    ("a flood of Events", TURNS, words_story.events),
)


def _words(number: int) -> Row:
    """Play one attack by words that others are told."""
    name, fair, story = _WORDS[number]
    print(name, file=sys.stderr, flush=True)
    beside, told = story(False), story(True)
    wait_s, beside_s = (statistics.fmean(each.wait_s) for each in (told, beside))
    share = told.share / beside.share
    return Row(name, fair, wait_s, beside_s, share, told.lost, share)


def _flooded(flood: int, honest: int) -> Row:
    """Flood the job controllers, while nothing else runs here."""
    name = "a flood of jobs at turnout-controller"
    print(name, file=sys.stderr, flush=True)
    told, beside = flooded(flood, honest)
    return Row(name, HALF, statistics.fmean(told.wait_s), statistics.fmean(beside.wait_s), 1.0, 0)


def _asked(quick: bool, rounds: int, questions: int) -> Iterator[tuple[str, Asked]]:
    """Ask beside each attack; the first answer is that without one."""
    with served() as extender:
        extender.beside(nothing, questions, quick)  # warms up
        yield "none", _best([extender.beside(nothing, questions, quick) for _ in range(rounds)])
        for named in ATTACKS:
            print(f"over HTTP: {named.name}", file=sys.stderr, flush=True)
            yield named.name, _best([extender.beside(named.attack, questions, quick) for _ in range(rounds)])


def _best(rounds: Sequence[Asked]) -> Asked:
    """Return the round that others on this machine disturbed least; unanswered probes count from all."""
    best = min(rounds, key=lambda each: nearest_rank(each.filter_s, 0.99))
    best.unanswered = sum(each.unanswered for each in rounds)
    return best


def _ms(seconds: Sequence[float], share: float) -> float:
    return nearest_rank(seconds, share) * 1e3


def _told(name: str, asked: Asked) -> tuple[object, ...]:
    ms = [_ms(asked.filter_s, 0.5), _ms(asked.filter_s, 0.99), _ms(asked.wall_s, 0.99)]
    return (name, *ms, _ms(asked.healthz_s, 0.5), _ms(asked.healthz_s, 0.99), asked.greedy, asked.unanswered)


def _targets(
    gangs: Sequence[Row], jobs: Sequence[Row], words: Sequence[Row], asked: dict[str, Asked], quick: bool
) -> Iterator[Target]:
    """Give the targets. Of jobs the worst-off tenant counts; where seeds are few, luck looks like harm: all of them."""
    attacked = ((gangs[1:], "least share"), (jobs[1:], "size" if quick else "least size"), (words, "nodes"))
    for rows, word in attacked:
        for row in rows:
            if not row.fair:
                of = row.together if word == "size" else row.least
                yield Target(f"placed as soon beside {row.name}", row.soon, ">=", LEAST_RATIO)
                yield Target(f"{word} beside {row.name}", of, ">=", LEAST_RATIO)
            yield Target(f"answers without opinion, jobs without decision, words lost: {row.name}", row.faults, "<=", 0)
    for name, each in asked.items():
        yield Target(f"filter p99 ms over HTTP, {name}", _ms(each.filter_s, 0.99), "<=", MOST_MS)
        yield Target(f"healthz p99 ms, {name}", _ms(each.healthz_s, 0.99), "<=", MOST_MS)
        yield Target(f"probes that healthz did not answer, {name}", each.unanswered, "<=", 0)
