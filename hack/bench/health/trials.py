"""Simulated clusters that both rules check, and how often each rule is right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random

from hack.bench.health.dlrover import DlroverVerdict, check_nodes
from hack.bench.health.simulated_nodes import SimulatedNodes, numbers
from turnout.launcher.health.judge_nodes import next_groups_or_verdict
from turnout.launcher.health.model import Check, FaultCause, Group, Groups, Verdict

MATMUL_S, REDUCE_S = 0.013, 0.0006  # of an H100, and of 64 MiB between two: docs/facts/dlrover.md 3


@dataclass(frozen=True, slots=True)
class Scene:
    """A size of cluster, and the numbers of faults in it."""

    name: str
    nodes: int
    failing_networks: int  # nodes whose network fails
    slow_computations: int = 0  # nodes that compute slowly
    slow_networks: int = 0  # nodes with a slow network
    failing_links: int = 0  # links that fail

    def draw_cluster(self, seed: int) -> SimulatedNodes:
        """Return a cluster with faults at random places, chosen by `seed`; no node has two faults."""
        rng = Random(f"{self.name} {seed}")
        links = [(at * 2, at * 2 + 1) for at in rng.sample(range(self.nodes // 2), self.failing_links)]
        healthy = sorted({*range(self.nodes)} - {*chain(*links)})
        faulty = rng.sample(healthy, self.failing_networks + self.slow_computations + self.slow_networks)
        return SimulatedNodes(
            self.nodes,
            failing_networks=frozenset(faulty[: self.failing_networks]),
            slow_computations=frozenset(faulty[self.failing_networks : self.failing_networks + self.slow_computations]),
            slow_networks=frozenset(faulty[self.failing_networks + self.slow_computations :]),
            failing_links=frozenset(links),
            seed=seed,
            compute_s=MATMUL_S,
            collective_s=REDUCE_S,
        )


@dataclass(frozen=True, slots=True)
class NodeCheckTrial:
    """One cluster, checked by our rule and by DLRover's."""

    cluster: SimulatedNodes
    verdict: Verdict  # of our rule
    rounds: tuple[Groups, ...]  # groups of each round of our rule
    theirs: DlroverVerdict
    decided_s: float  # time of all decisions of our rule

    @property
    def extra(self) -> Groups:
        """Return our rule's groups after the first round."""
        return tuple(chain(*self.rounds[1:]))

    @property
    def suspects(self) -> set[str]:
        """Return the names of all nodes that were in a first-round group with a fault."""
        cluster = self.cluster
        nodes = cluster.failing_networks | cluster.slow_computations | cluster.slow_networks
        faulty = {f"n{number}" for number in nodes | {*chain(*cluster.failing_links)}}
        return {*chain(*(group for group in self.rounds[0] if not faulty.isdisjoint(group)))}


@dataclass(frozen=True, slots=True)
class NodeFindings:
    """The findings of one rule on one simulated cluster."""

    bad: frozenset[int]  # numbers of the nodes
    slow_computations: frozenset[int]  # nodes that compute slowly
    slow_networks: frozenset[int]  # nodes with a slow network
    failing_links: frozenset[tuple[int, ...]] = frozenset()  # bad links; only our rule reports them
    more: bool = False  # the rule also reports undecided groups or slow links, which no scene has

    def is_exact(self, cluster: SimulatedNodes) -> bool:
        """Return True if all faults are reported, and nothing else."""
        return self.count_false_reports(cluster) == 0 == self.count_missed(cluster) and not self.more

    def count_false_reports(self, cluster: SimulatedNodes) -> int:
        """Count the nodes that are blamed wrongly; for a wrong link both ends."""
        ends = {*chain(*self.failing_links - cluster.failing_links)}
        return len(
            (self.bad - cluster.failing_networks)
            | (self.slow_computations - cluster.slow_computations)
            | (self.slow_networks - cluster.slow_networks)
            | ends
        )

    def count_missed(self, cluster: SimulatedNodes) -> int:
        """Count the faults of the cluster that are not reported."""
        return sum(
            map(
                len,
                (
                    cluster.failing_networks - self.bad,
                    cluster.slow_computations - self.slow_computations,
                    cluster.slow_networks - self.slow_networks,
                    cluster.failing_links - self.failing_links,
                ),
            )
        )


def judge_with_both_rules(cluster: SimulatedNodes) -> NodeCheckTrial:
    """Check the cluster by our rule and by DLRover's, and return both results."""
    check, decided_s, rounds = Check(cluster.names), 0.0, list[Groups]()
    while True:
        began_s = time.perf_counter()
        answer = next_groups_or_verdict(check)
        decided_s += time.perf_counter() - began_s
        if isinstance(answer, Verdict):
            return NodeCheckTrial(cluster, answer, tuple(rounds), check_nodes(cluster), decided_s)
        rounds.append(answer)
        check = check.add_round(tuple(cluster.measure(group, len(rounds)) for group in answer))


def our_findings(trial: NodeCheckTrial) -> NodeFindings:
    """Return our rule's verdict in the form in which both rules are compared."""
    verdict = trial.verdict
    bad, slow_computations, slow_networks = (
        frozenset(number for (number,) in numbers(those, *causes))
        for those, causes in (
            (verdict.bad_nodes, ()),
            (verdict.slow_nodes, (FaultCause.COMPUTE_SLOW,)),
            (verdict.slow_nodes, (FaultCause.NETWORK_SLOW,)),
        )
    )
    more = bool(verdict.undecided or verdict.slow_links)
    return NodeFindings(bad, slow_computations, slow_networks, frozenset(numbers(verdict.bad_links)), more)


def their_findings(trial: NodeCheckTrial) -> NodeFindings:
    """Return DLRover's verdict in the form in which both rules are compared.

    DLRover does not tell if a slow node computes slowly or has a slow network: each counts as reported correctly.
    """
    slow, cluster = frozenset(trial.theirs.slow), trial.cluster
    return NodeFindings(frozenset(trial.theirs.bad), slow - cluster.slow_networks, slow & cluster.slow_networks)


def count_innocents(findings: Sequence[NodeFindings], trials: Sequence[NodeCheckTrial]) -> int:
    """Return the number of healthy nodes that are blamed, summed over the trials. findings: of the trials, in order."""
    return sum(each.count_false_reports(trial.cluster) for each, trial in zip(findings, trials, strict=True))


def extra_groups(trials: Sequence[NodeCheckTrial]) -> tuple[list[int], list[int]]:
    """Return the numbers of groups after the first round, by trial: (of our rule, of DLRover's)."""
    return [len(each.extra) for each in trials], [sum(map(len, each.theirs.rounds[1:])) for each in trials]


def idle_groups(trial: NodeCheckTrial) -> list[Group]:
    """Return our groups of later rounds that have no suspect node."""
    return [group for group in trial.extra if trial.suspects.isdisjoint(group)]
