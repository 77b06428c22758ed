"""Which groups run next: pairs of neighbours first, then only who is suspect, each with one who is proven.

A round that finds nothing is the only one. Else every group of a further round has a suspect in it, and no pair runs
more often than it takes to prove something. Suspects for whom no proven node is free are mixed among themselves; as
long as nobody is proven, for `most_searches` rounds. Faults of up to a third of the nodes are told exactly, in at most
five rounds, and in 2 + log2 of the nodes, rounded up; the tests try every such set for few nodes. An answer follows
from the results alone: nothing is kept.
Source: DL-80, DL-81; DLRover's two fixed rounds, docs/facts/dlrover.md 2.2 and §2.3
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from turnout.launcher.health.evidence import PROOFS, Evidence, Outcome
from turnout.launcher.health.model import Check, Group, Link, Verdict
from turnout.launcher.health.slow import Sample
from turnout.launcher.health.verdict import verdict

Groups: TypeAlias = tuple[Group, ...]
LEAST_SEARCHES = 3  # of three nodes there are three pairs


def most_searches(nodes: int) -> int:
    """Rounds that suspects may be mixed among themselves for, as long as no group at all was fine."""
    return max(LEAST_SEARCHES, (nodes - 1).bit_length())


def next_groups(check: Check) -> Groups | Verdict:
    """The groups of the next round, disjoint, each in the order of the nodes; or what is proven. Never none."""
    if not check.rounds:
        return _neighbours(check.nodes)
    evidence = Evidence(check)
    round_ = _Round(evidence)
    round_.links()
    round_.suspects()
    if evidence.fast or len(check.rounds) <= most_searches(len(check.nodes)):
        round_.search()
    round_.times()
    return tuple(round_.groups) or verdict(evidence)


def _neighbours(nodes: Group) -> Groups:
    """Pairs; of an odd number the last three are together, so that nobody is left alone. Source: DL-80"""
    pairs = [nodes[at : at + 2] for at in range(0, len(nodes) - 1, 2)] or [nodes]
    if len(nodes) % 2 and len(nodes) > 1:
        pairs[-1] = nodes[-3:]
    return tuple(pairs)


class _Round:
    """One round as it fills up."""

    def __init__(self, evidence: Evidence) -> None:
        self.groups: list[Group] = []
        self._evidence, self._busy = evidence, set[str]()

    def links(self) -> None:
        """Pairs whose ends are good, in groups that were not: the pair alone, and once more if that was it."""
        evidence = self._evidence
        for group, outcome in evidence.riddles:
            good = evidence.lives if outcome is Outcome.FAILED else evidence.fast
            if {*group} <= good and (link := next(self._untold(group), None)):
                self._take(*link)

    def _untold(self, group: Group) -> Iterator[Link]:
        runs = PROOFS if len(group) == 2 else 1
        for at, one in enumerate(group):
            for other in group[at + 1 :]:
                if len(self._evidence.pairs.get((one, other), ())) < runs and self._free(one) and self._free(other):
                    yield one, other

    def suspects(self) -> None:
        """Each with one that is fast, else with one that lives. Of a group that failed, one goes before the others.

        Of three two stay together: their link is tried on the way, and one proven node is enough for them.
        """
        evidence = self._evidence
        unsettled = {*evidence.unsettled}
        for one, other, _ in (group for group, _ in evidence.riddles if len(group) == 3):
            if (one, other) not in evidence.pairs and {one, other} <= unsettled:
                self._take(one, other)
        for node in self._by_turns(evidence.unsettled):
            proven = [evidence.fast] if node in evidence.lives else [evidence.fast, evidence.lives - evidence.fast]
            for those in proven:
                if self._free(node) and (partner := self._nearest(node, those - evidence.tried[node].keys())):
                    self._take(node, partner)
                    break

    def _by_turns(self, nodes: Group) -> list[str]:
        turn, those = dict[str, int](), {*nodes}
        for result in self._evidence.check.rounds[0]:
            turn |= {node: at for at, node in enumerate(node for node in result.members if node in those)}
        return sorted(nodes, key=lambda node: (len(self._evidence.slow_with(node)), turn.get(node, 0)))

    def search(self) -> None:
        """Those for whom nobody proven is left, among themselves, in pairs that have not been."""
        unsettled = self._evidence.unsettled
        those = {*unsettled}
        for node in unsettled:
            tried = self._evidence.tried[node]
            if self._free(node) and (partner := self._nearest(node, those - tried.keys())):
                self._take(node, partner)

    def times(self) -> None:
        """Those whose own computation took long once, or was never heard of: with whoever is free, or alone."""
        evidence = self._evidence
        best = {node: min(times) for node, times in evidence.compute.items()}
        sample, floor_s = Sample(best.values(), evidence.check.limits), evidence.check.limits.compute_s
        for node in evidence.check.nodes:
            if node in evidence.bad or not self._free(node) or len(evidence.compute.get(node, ())) >= PROOFS:
                continue
            if node not in best or sample.suspects(best[node], [best[node]], floor_s):
                partner = self._nearest(node, evidence.fast) or self._nearest(node, best.keys())
                self._take(*((node, partner) if partner else (node,)))

    def _nearest(self, node: str, those: AbstractSet[str]) -> str | None:
        """Of these the nearest in the fabric that is free and not bad."""
        nodes, here, skip = self._evidence.check.nodes, self._evidence.at[node], self._busy | self._evidence.bad
        if those:
            for far in range(1, len(nodes)):
                for at in (here - far, here + far):
                    if 0 <= at < len(nodes) and nodes[at] in those and nodes[at] not in skip:
                        return nodes[at]
        return None

    def _free(self, node: str) -> bool:
        return node not in self._busy

    def _take(self, *nodes: str) -> None:
        self._busy |= {*nodes}
        self.groups.append(tuple(sorted(nodes, key=self._evidence.at.__getitem__)))
