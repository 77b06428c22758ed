"""Derives from probe results which nodes and links are bad. No node is blamed for being in a group that failed.

A node works if one of its groups did not fail, and is fast if one was fine. A node that does not work and failed with
two working ones is bad: two links of one node failing at once mean its own port.
A node that is not fast, even with two fast ones, has a slow network. A pair that fails twice although both nodes work
has a bad link.
Nothing is kept between rounds; every call reads all results. Source: system-level diagnosis (Preparata, Metze, Chien
1967), where a test proves something only if the tester is sound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import IntEnum
from functools import cached_property
from itertools import combinations

from turnout.launcher.health.model import Check, Group, Link, Measured
from turnout.launcher.health.stragglers import Sample

PROOFS = 2  # a proof takes so many living partners, or runs of one pair


class Outcome(IntEnum):
    """The result of a group, from good to bad."""

    FINE = 0
    SLOW = 1
    FAILED = 2


class Evidence:
    """Everything that the results of a node check prove."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.at = {node: at for at, node in enumerate(check.nodes)}
        self.results = [result for results in check.rounds for result in results]
        self.groups = [result for result in self.results if len(result.members) > 1]
        self._of = defaultdict[str, list[int]](list)  # indexes into self.groups, by node
        for place, result in enumerate(self.groups):
            for member in result.members:
                self._of[member].append(place)

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Return the outcome of every group. A slow one stands out from all groups, or from those of the first round.

        Only the first round is a fair sample: in later ones most groups contain a suspect.
        """
        times = [each.pair_s for each in self.groups]
        first = sum(1 for each in self.check.rounds[0] if len(each.members) > 1)
        samples = [
            Sample((time_s for time_s in of if time_s is not None), self.check.limits) for of in (times[:first], times)
        ]
        found = []
        for result, time_s in zip(self.groups, times, strict=True):
            if time_s is None or any(alone_s is None for alone_s in result.compute_s):
                found.append(Outcome.FAILED)
                continue
            same = self._same(result)
            own = [
                [known_s for place in same if place < most and (known_s := times[place]) is not None]
                for most in (first, len(times))
            ]
            slow = (
                sample.suspects(time_s, each, self.check.limits.collective_s)
                for sample, each in zip(samples, own, strict=True)
            )
            found.append(Outcome.SLOW if any(slow) else Outcome.FINE)
        return found

    def _same(self, result: Measured) -> list[int]:
        """List the runs of the same group."""
        return [place for place in self._of[result.members[0]] if {*self.groups[place].members} == {*result.members}]

    @cached_property
    def fast(self) -> set[str]:
        """Return the nodes of groups that were fine."""
        return self._members(Outcome.FINE)

    @cached_property
    def working(self) -> set[str]:
        """Return the nodes of groups that did not fail."""
        return self._members(Outcome.FINE, Outcome.SLOW)

    def _members(self, *outcomes: Outcome) -> set[str]:
        pairs = zip(self.groups, self.outcomes, strict=True)
        return {member for result, outcome in pairs if outcome in outcomes for member in result.members}

    @cached_property
    def pairs(self) -> dict[Link, list[Outcome]]:
        """Return the outcomes of each pair that was probed alone, run by run."""
        found = defaultdict[Link, list[Outcome]](list)
        for result, outcome in zip(self.groups, self.outcomes, strict=True):
            if len(result.members) == 2:
                found[self.link(*result.members)].append(outcome)
        return found

    def link(self, one: str, other: str) -> Link:
        """Return two nodes in the order of the check."""
        return (one, other) if self.at[one] < self.at[other] else (other, one)

    @cached_property
    def outcomes_by_partner(self) -> dict[str, dict[str, Outcome]]:
        """Return each node's partners in pairs, with the best outcome of each."""
        found = defaultdict[str, dict[str, Outcome]](dict)
        for (one, other), outcomes in self.pairs.items():
            found[one][other] = found[other][one] = min(outcomes)
        return found

    @cached_property
    def broken(self) -> set[str]:
        """Return the nodes whose own computation failed, which proves them bad without a partner."""
        return {
            member
            for result in self.results
            for member, time_s in zip(result.members, result.compute_s, strict=True)
            if time_s is None
        }

    @cached_property
    def cut_off(self) -> set[str]:
        """Return the nodes that failed with everyone, including at least PROOFS working nodes."""
        return {
            node
            for node in self.check.nodes
            if node not in self.working and len(self.failed_with(node)) >= PROOFS and node not in self.broken
        }

    def failed_with(self, node: str) -> Group:
        """List the working nodes with which this node failed."""
        return self._ordered(
            other
            for other, best in self.outcomes_by_partner[node].items()
            if best is Outcome.FAILED and other in self.working
        )

    @cached_property
    def bad(self) -> set[str]:
        """Return the nodes that must not train."""
        return self.broken | self.cut_off

    @cached_property
    def slow_nodes(self) -> set[str]:
        """Return the nodes that are fast with nobody, even after PROOFS tries with fast ones."""
        return {
            node
            for node in self.check.nodes
            if node not in self.fast and node not in self.bad and len(self.slow_with(node)) >= PROOFS
        }

    def slow_with(self, node: str) -> Group:
        """List the fast nodes with which this node was not fast."""
        return self._ordered(other for other in self.outcomes_by_partner[node] if other in self.fast)

    @cached_property
    def unsettled(self) -> Group:
        """List the nodes that are proven neither good nor bad yet."""
        done = self.fast | self.bad | self.slow_nodes
        return tuple(node for node in self.check.nodes if node not in done) if len(self.check.nodes) > 1 else ()

    @cached_property
    def links(self) -> dict[Link, Outcome]:
        """Return the links that are bad or slow between good nodes: seen in two runs, one of them of the pair alone."""
        found = dict[Link, Outcome]()
        sound = ((Outcome.FAILED, self.working - self.broken), (Outcome.SLOW, self.fast - self.broken))
        for link, outcomes in self.pairs.items():
            for outcome, good in sound:
                if {*outcomes} == {outcome} and {*link} <= good and self._count_unexplained(link, outcome) >= PROOFS:
                    found[link] = outcome
        return found

    def _count_unexplained(self, link: Link, outcome: Outcome) -> int:
        """Count the groups with both ends that had this outcome, and that nothing else explains."""
        both = {*self._of[link[0]]} & {*self._of[link[1]]}
        return sum(
            1 for place in both if self.outcomes[place] is outcome and not self._blamed(self.groups[place], outcome)
        )

    def _blamed(self, result: Measured, outcome: Outcome) -> bool:
        """True if a bad or slow member explains this group's outcome."""
        culprits = self.bad if outcome is Outcome.FAILED else self.bad | self.slow_nodes
        return not culprits.isdisjoint(result.members)

    @cached_property
    def riddles(self) -> list[tuple[Group, Outcome]]:
        """List the groups that neither a node nor a link explains, once each. A slow pair that was fine later is left
        out.
        """
        found = dict[tuple[Group, Outcome], None]()
        for result, outcome in zip(self.groups, self.outcomes, strict=True):
            if outcome is Outcome.FINE or self._blamed(result, outcome):
                continue
            inside = list(combinations(self._ordered(result.members), 2))
            if any(self.links.get(link, Outcome.FINE) >= outcome for link in inside):
                continue
            if outcome is Outcome.SLOW and all(Outcome.FINE in self.pairs.get(link, ()) for link in inside):
                continue
            found[self._ordered(result.members), outcome] = None
        return list(found)

    def _ordered(self, nodes: Iterable[str]) -> Group:
        return tuple(sorted(nodes, key=self.at.__getitem__))

    @cached_property
    def compute(self) -> dict[str, list[float]]:
        """Return the times of each node's own computation."""
        found = defaultdict[str, list[float]](list)
        for result in self.results:
            for member, time_s in zip(result.members, result.compute_s, strict=True):
                if time_s is not None:
                    found[member].append(time_s)
        return found

    @cached_property
    def network(self) -> dict[str, float]:
        """Return the best group time of each node."""
        found = dict[str, float]()
        for result in self.groups:
            if result.pair_s is not None:
                for member in result.members:
                    found[member] = min(result.pair_s, found.get(member, result.pair_s))
        return found
