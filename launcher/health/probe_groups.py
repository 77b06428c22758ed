"""Chooses the groups of the next probe round: first pairs of neighbours, then each suspect with a proven node.

A check that finds nothing has one round. Otherwise every later group contains a suspect, and no pair runs more often
than a proof needs. Suspects without a free proven node are paired among themselves; for at most `most_searches` rounds
while no node is proven.
Faults of up to a third of the nodes are found exactly. That takes at most five rounds, and at most 2 + log2 of the
nodes, rounded up. The tests try every such set for few nodes. The answer follows from the results alone; nothing is
kept.
Source: DL-80, DL-81; DLRover's two fixed rounds, docs/facts/dlrover.md 2.2 and §2.3
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from turnout.launcher.health.evidence import PROOFS, Evidence, Outcome
from turnout.launcher.health.model import Check, Group, Link, Verdict
from turnout.launcher.health.stragglers import Sample
from turnout.launcher.health.verdict import verdict

Groups: TypeAlias = tuple[Group, ...]
LEAST_SEARCHES = 3  # three nodes have three pairs


def most_searches(nodes: int) -> int:
    """Return the rounds in which suspects may be paired among themselves while no group was fine."""
    return max(LEAST_SEARCHES, (nodes - 1).bit_length())


def next_groups(check: Check) -> Groups | Verdict:
    """Return the next round's groups, disjoint and each in node order, or the verdict. The groups are never empty."""
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
    """Pair neighbours. With an odd number the last three form a group, so that no node is alone. Source: DL-80"""
    pairs = [nodes[at : at + 2] for at in range(0, len(nodes) - 1, 2)] or [nodes]
    if len(nodes) % 2 and len(nodes) > 1:
        pairs[-1] = nodes[-3:]
    return tuple(pairs)


class _Round:
    """Collects the groups of one probe round, so that no node is in two of them."""

    def __init__(self, evidence: Evidence) -> None:
        self.groups: list[Group] = []
        self._evidence, self._busy = evidence, set[str]()

    def links(self) -> None:
        """Add pairs of good nodes from groups that were not good: the pair alone, and again if it was the group."""
        evidence = self._evidence
        for group, outcome in evidence.riddles:
            good = evidence.working if outcome is Outcome.FAILED else evidence.fast
            if {*group} <= good and (link := next(self._untold(group), None)):
                self._take(*link)

    def _untold(self, group: Group) -> Iterator[Link]:
        runs = PROOFS if len(group) == 2 else 1
        for at, one in enumerate(group):
            for other in group[at + 1 :]:
                if len(self._evidence.pairs.get((one, other), ())) < runs and self._free(one) and self._free(other):
                    yield one, other

    def suspects(self) -> None:
        """Pair each suspect with a fast node, else with a working one. Of a failed group, one member goes before the
        others.

        Two of a group of three stay together: their link is tested on the way, and one proven node is enough for both.
        """
        evidence = self._evidence
        unsettled = {*evidence.unsettled}
        for one, other, _ in (group for group, _ in evidence.riddles if len(group) == 3):
            if (one, other) not in evidence.pairs and {one, other} <= unsettled:
                self._take(one, other)
        for node in self._by_turns(evidence.unsettled):
            proven = [evidence.fast] if node in evidence.working else [evidence.fast, evidence.working - evidence.fast]
            for those in proven:
                if self._free(node) and (
                    partner := self._nearest(node, those - evidence.outcomes_by_partner[node].keys())
                ):
                    self._take(node, partner)
                    break

    def _by_turns(self, nodes: Group) -> list[str]:
        turn, those = dict[str, int](), {*nodes}
        for result in self._evidence.check.rounds[0]:
            turn |= {node: at for at, node in enumerate(node for node in result.members if node in those)}
        return sorted(nodes, key=lambda node: (len(self._evidence.slow_with(node)), turn.get(node, 0)))

    def search(self) -> None:
        """Pair suspects that have no free proven node among themselves, in pairs that were not tried."""
        unsettled = self._evidence.unsettled
        those = {*unsettled}
        for node in unsettled:
            partners = self._evidence.outcomes_by_partner[node]
            if self._free(node) and (partner := self._nearest(node, those - partners.keys())):
                self._take(node, partner)

    def times(self) -> None:
        """Measure nodes again whose computation was slow once or unknown, with a free node or alone."""
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
        """Return the nearest free node of these in the fabric that is not bad, or None."""
        nodes, position, skip = self._evidence.check.nodes, self._evidence.at[node], self._busy | self._evidence.bad
        if those:
            for far in range(1, len(nodes)):
                for at in (position - far, position + far):
                    if 0 <= at < len(nodes) and nodes[at] in those and nodes[at] not in skip:
                        return nodes[at]
        return None

    def _free(self, node: str) -> bool:
        return node not in self._busy

    def _take(self, *nodes: str) -> None:
        self._busy |= {*nodes}
        self.groups.append(tuple(sorted(nodes, key=self._evidence.at.__getitem__)))
