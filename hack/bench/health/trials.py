"""Simulated clusters that both rules check, and how often each rule is right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random

from hack.bench.health.dlrover import Blamed, blamed
from hack.bench.health.simulated_nodes import SimulatedNodes, numbers
from turnout.launcher.health.judge_nodes import next_groups
from turnout.launcher.health.model import Check, FaultCause, Group, Groups, Verdict

MATMUL_S, REDUCE_S = 0.013, 0.0006  # of an H100, and of 64 MiB between two: docs/facts/dlrover.md 3


@dataclass(frozen=True, slots=True)
class Scene:
    """How many nodes there are; how many of them are bad, slow alone, slow with others; how many links are cut."""

    name: str
    nodes: int
    dead: int
    tired: int = 0
    far: int = 0
    cut: int = 0

    def floor(self, seed: int) -> SimulatedNodes:
        """Draw a cluster with faults at random places; no node has two faults."""
        rng = Random(f"{self.name} {seed}")
        links = [(at * 2, at * 2 + 1) for at in rng.sample(range(self.nodes // 2), self.cut)]
        whole = sorted({*range(self.nodes)} - {*chain(*links)})
        faulty = rng.sample(whole, self.dead + self.tired + self.far)
        return SimulatedNodes(
            self.nodes,
            dead=frozenset(faulty[: self.dead]),
            tired=frozenset(faulty[self.dead : self.dead + self.tired]),
            far=frozenset(faulty[self.dead + self.tired :]),
            cut=frozenset(links),
            seed=seed,
            compute_s=MATMUL_S,
            collective_s=REDUCE_S,
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """One floor, checked by both. decided_s: what the decisions of ours took."""

    floor: SimulatedNodes
    verdict: Verdict
    rounds: tuple[Groups, ...]
    theirs: Blamed
    decided_s: float

    @property
    def extra(self) -> Groups:
        """Give Turnout's groups after the first round."""
        return tuple(chain(*self.rounds[1:]))

    @property
    def suspects(self) -> set[str]:
        """Give all nodes that were in a first-round group with a fault."""
        floor = self.floor
        faulty = {f"n{number}" for number in floor.dead | floor.tired | floor.far | {*chain(*floor.cut)}}
        return {*chain(*(group for group in self.rounds[0] if not faulty.isdisjoint(group)))}


@dataclass(frozen=True, slots=True)
class Said:
    """The findings of one rule on one set of nodes.

    slow: (node, whether its network is slow); only ours tells that.
    """

    bad: frozenset[int]
    tired: frozenset[int]
    far: frozenset[int]
    cut: frozenset[tuple[int, ...]] = frozenset()
    more: bool = False  # undecided groups, slow links: there are none of these

    def exact(self, floor: SimulatedNodes) -> bool:
        """Return True if all faults are reported, and nothing else."""
        return self.wrong(floor) == 0 == self.missed(floor) and not self.more

    def wrong(self, floor: SimulatedNodes) -> int:
        """Count the nodes that are blamed wrongly; both ends of a link."""
        ends = {*chain(*self.cut - floor.cut)}
        return len((self.bad - floor.dead) | (self.tired - floor.tired) | (self.far - floor.far) | ends)

    def missed(self, floor: SimulatedNodes) -> int:
        """Count the faults that are not reported."""
        return sum(
            map(len, (floor.dead - self.bad, floor.tired - self.tired, floor.far - self.far, floor.cut - self.cut))
        )


def tried(floor: SimulatedNodes) -> Trial:
    """Check the nodes by our rule and by DLRover's."""
    check, decided_s, rounds = Check(floor.names), 0.0, list[Groups]()
    while True:
        began_s = time.perf_counter()
        answer = next_groups(check)
        decided_s += time.perf_counter() - began_s
        if isinstance(answer, Verdict):
            return Trial(floor, answer, tuple(rounds), blamed(floor), decided_s)
        rounds.append(answer)
        check = check.after(tuple(floor.measure(group, len(rounds)) for group in answer))


def ours(trial: Trial) -> Said:
    """Return our verdict in the form in which both rules are compared."""
    verdict = trial.verdict
    bad, tired, far = (
        frozenset(number for (number,) in numbers(those, *causes))
        for those, causes in (
            (verdict.bad_nodes, ()),
            (verdict.slow_nodes, (FaultCause.COMPUTE_SLOW,)),
            (verdict.slow_nodes, (FaultCause.NETWORK_SLOW,)),
        )
    )
    more = bool(verdict.undecided or verdict.slow_links)
    return Said(bad, tired, far, frozenset(numbers(verdict.bad_links)), more)


def theirs(trial: Trial) -> Said:
    """Read DLRover's verdict. Whether a slow node is slow alone or with others it does not tell: either is right."""
    slow, floor = frozenset(trial.theirs.slow), trial.floor
    return Said(frozenset(trial.theirs.bad), slow - floor.far, slow & floor.far)


def innocents(said: Sequence[Said], trials: Sequence[Trial]) -> int:
    """Count the healthy nodes that are blamed in any of these trials."""
    return sum(each.wrong(trial.floor) for each, trial in zip(said, trials, strict=True))


def extra_groups(trials: Sequence[Trial]) -> tuple[list[int], list[int]]:
    """Count the groups after the first round of each trial: Turnout's, and DLRover's."""
    return [len(each.extra) for each in trials], [sum(map(len, each.theirs.rounds[1:])) for each in trials]


def idle(trial: Trial) -> list[Group]:
    """Give the groups of later rounds without a suspect node."""
    return [group for group in trial.extra if trial.suspects.isdisjoint(group)]
