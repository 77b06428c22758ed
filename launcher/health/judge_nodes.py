"""Decides from probe results which nodes and links are bad or slow, and which groups are probed next.

No node is blamed for being in a group that failed. A node works if one of its groups did not fail, and is fast if one
was fine. A node that does not work and failed with two working ones is bad: two links of one node failing at once mean
its own port. A node that is not fast, even with two fast ones, has a slow network. A pair that fails twice although
both nodes work has a bad link. Source: system-level diagnosis (Preparata, Metze, Chien 1967), where a test proves
something only if the tester is sound.
A time is compared with other nodes and with an absolute limit. A suspect time is only measured again, beside proven
nodes, and then judged by the rule. Suspicion compares with the lower quartile: if a third of the nodes is slow, two
thirds of the pairs are, so mean and median would miss it. Source: the guide, DL-31
A check that finds nothing has one round, of neighbours. Otherwise every later group contains a suspect, and no pair
runs more often than a proof needs. Suspects without a free proven node are paired among themselves; for at most
`max_searches` rounds while no node is proven. Faults of up to a third of the nodes are found exactly, in at most five
rounds and at most 2 + log2 of the nodes, rounded up. Nothing is kept between rounds.
Source: DL-80, DL-81; DLRover's two fixed rounds, docs/facts/dlrover.md 2.2 and 2.3
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from functools import cached_property
from itertools import combinations
from math import fsum, inf

from turnout.launcher.health.model import (
    Check,
    FaultCause,
    Finding,
    Group,
    Groups,
    Link,
    Measured,
    SlowRule,
    StragglerLimits,
    Undecided,
    Verdict,
)

_NORMAL = 1.4826  # standard deviations of a normal distribution in one median absolute deviation


class Sample:
    """The times of all groups or nodes.

    A time is compared with the others, without its own and those of shared groups.
    """

    def __init__(self, times_s: Iterable[float], limits: StragglerLimits) -> None:
        self._sorted, self._limits = sorted(times_s), limits
        self._never = dict[int, float]()

    def slow(self, time_s: float, own: Sequence[float], floor_s: float | None) -> bool:
        """Return True if the time is slow by the rule. own: times of the sample that are left out."""
        if floor_s is not None and time_s > floor_s:
            return True
        return not self._ordinary(time_s, len(own)) and time_s > _limit_s(self._others(own), self._limits)

    def suspects(self, time_s: float, own: Sequence[float], floor_s: float | None) -> bool:
        """Return True if the time should be measured again. Every slow time is suspect."""
        if floor_s is not None and time_s > floor_s:
            return True
        return not self._ordinary(time_s, len(own)) and time_s > _suspicious_s(self._others(own), self._limits)

    def _ordinary(self, time_s: float, left_out: int) -> bool:
        """Return True if the time is not suspect, whichever are left out: it is compared with the fastest others."""
        if left_out not in self._never:
            self._never[left_out] = _suspicious_s(self._sorted[: max(len(self._sorted) - left_out, 0)], self._limits, 0)
        return time_s <= self._never[left_out]

    def _others(self, own: Iterable[float]) -> list[float]:
        """Return the sorted times of all nodes without those in `own`, in seconds."""
        left = self._sorted.copy()
        for time_s in own:
            del left[bisect_left(left, time_s)]
        return left


def _limit_s(others: list[float], limits: StragglerLimits, spreads: float | None = None) -> float:
    """Return the time in seconds from which a node counts as slow by the rule; infinite without others.

    others: times of the other nodes, ascending. spreads: allowed spreads above the median, None for those of the
    limits.
    """
    if not others:
        return inf
    match limits.rule:
        case SlowRule.MEAN:
            return limits.factor * fsum(others) / len(others)
        case SlowRule.MEDIAN:
            return limits.factor * _median(others)
        case SlowRule.SPREAD:
            middle = _median(others)
            spread = _NORMAL * _median(sorted(abs(each - middle) for each in others))
            return max(limits.least_factor * middle, middle + (limits.spreads if spreads is None else spreads) * spread)


def _suspicious_s(others: list[float], limits: StragglerLimits, spreads: float | None = None) -> float:
    """Return the time in seconds from which a node is tested again: the limit for slow nodes, or less.

    others: times of the other nodes, ascending. spreads: allowed spreads above the median, None for those of the
    limits. Infinite without others.
    """
    if not others:
        return inf
    factor = limits.least_factor if limits.rule is SlowRule.SPREAD else limits.factor
    return min(_limit_s(others, limits, spreads), factor * others[(len(others) - 1) // 4])


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


PROOFS = 2  # a proof takes so many living partners, or runs of one pair


class Judgement(IntEnum):
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
    def outcomes(self) -> list[Judgement]:
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
                found.append(Judgement.FAILED)
            else:
                slow = self._is_slow(result, time_s, zip(samples, (times[:first], times), strict=True))
                found.append(Judgement.SLOW if slow else Judgement.FINE)
        return found

    def _is_slow(self, result: Measured, time_s: float, samples: Iterable[tuple[Sample, list[float | None]]]) -> bool:
        """Return True if a group's time stands out from one of the samples.

        With it come the times of that sample's groups.
        """
        same = self._same(result)
        return any(
            sample.suspects(
                time_s,
                [own_s for place in same if place < len(times) and (own_s := times[place]) is not None],
                self.check.limits.collective_s,
            )
            for sample, times in samples
        )

    def _same(self, result: Measured) -> list[int]:
        """List the runs of the same group."""
        return [place for place in self._of[result.members[0]] if {*self.groups[place].members} == {*result.members}]

    @cached_property
    def fast(self) -> set[str]:
        """Return the nodes of groups that were fine."""
        return self._members(Judgement.FINE)

    @cached_property
    def working(self) -> set[str]:
        """Return the nodes of groups that did not fail."""
        return self._members(Judgement.FINE, Judgement.SLOW)

    def _members(self, *outcomes: Judgement) -> set[str]:
        pairs = zip(self.groups, self.outcomes, strict=True)
        return {member for result, outcome in pairs if outcome in outcomes for member in result.members}

    @cached_property
    def pairs(self) -> dict[Link, list[Judgement]]:
        """Return the outcomes of each pair that was probed alone, run by run."""
        found = defaultdict[Link, list[Judgement]](list)
        for result, outcome in zip(self.groups, self.outcomes, strict=True):
            if len(result.members) == 2:
                found[self.link(*result.members)].append(outcome)
        return found

    def link(self, one: str, other: str) -> Link:
        """Return two nodes in the order of the check."""
        return (one, other) if self.at[one] < self.at[other] else (other, one)

    @cached_property
    def outcomes_by_partner(self) -> dict[str, dict[str, Judgement]]:
        """Return each node's partners in pairs, with the best outcome of each."""
        found = defaultdict[str, dict[str, Judgement]](dict)
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
            if best is Judgement.FAILED and other in self.working
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
    def links(self) -> dict[Link, Judgement]:
        """Return the links that are bad or slow between good nodes: seen in two runs, one of them of the pair alone."""
        found = dict[Link, Judgement]()
        sound = ((Judgement.FAILED, self.working - self.broken), (Judgement.SLOW, self.fast - self.broken))
        for link, outcomes in self.pairs.items():
            for outcome, good in sound:
                if {*outcomes} == {outcome} and {*link} <= good and self._count_unexplained(link, outcome) >= PROOFS:
                    found[link] = outcome
        return found

    def _count_unexplained(self, link: Link, outcome: Judgement) -> int:
        """Count the groups with both ends that had this outcome, and that nothing else explains."""
        both = {*self._of[link[0]]} & {*self._of[link[1]]}
        return sum(
            1
            for place in both
            if self.outcomes[place] is outcome and not self._has_known_fault(self.groups[place], outcome)
        )

    def _has_known_fault(self, result: Measured, outcome: Judgement) -> bool:
        """Return True if a bad or slow member explains this group's outcome."""
        culprits = self.bad if outcome is Judgement.FAILED else self.bad | self.slow_nodes
        return not culprits.isdisjoint(result.members)

    @cached_property
    def unexplained(self) -> list[tuple[Group, Judgement]]:
        """List the groups that neither a node nor a link explains, once each. A slow pair that was fine later is left
        out.
        """
        found = dict[tuple[Group, Judgement], None]()
        for result, outcome in zip(self.groups, self.outcomes, strict=True):
            if outcome is Judgement.FINE or self._has_known_fault(result, outcome):
                continue
            inside = list(combinations(self._ordered(result.members), 2))
            if any(self.links.get(link, Judgement.FINE) >= outcome for link in inside):
                continue
            if outcome is Judgement.SLOW and all(Judgement.FINE in self.pairs.get(link, ()) for link in inside):
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


def verdict(evidence: Evidence) -> Verdict:
    """Make the verdict from all measurements."""
    return Verdict(
        bad_nodes=tuple(_bad(evidence, node) for node in evidence.check.nodes if node in evidence.bad),
        bad_links=_link_findings(evidence, Judgement.FAILED, FaultCause.LINK_FAILED),
        slow_nodes=(
            *_slow_findings(evidence, FaultCause.COMPUTE_SLOW),
            *_slow_findings(evidence, FaultCause.NETWORK_SLOW),
        ),
        slow_links=_link_findings(evidence, Judgement.SLOW, FaultCause.LINK_SLOW),
        undecided=_undecided(evidence),
    )


def _bad(evidence: Evidence, node: str) -> Finding:
    """Say why a node is broken: its own computation, or its network."""
    if node in evidence.broken:
        return Finding((node,), FaultCause.COMPUTE_FAILED, "its own computation failed or got stuck")
    others = " and with ".join(evidence.failed_with(node)[:2])
    return Finding(
        (node,), FaultCause.NETWORK_FAILED, f"failed with {others}, which passed with others, and passed with nobody"
    )


def _link_findings(evidence: Evidence, outcome: Judgement, cause: FaultCause) -> tuple[Finding, ...]:
    """Return a finding for each link that failed, or was slow, while both of its ends are good.

    outcome: FAILED or slow.
    """
    how = "fails" if outcome is Judgement.FAILED else "is slow"
    found = sorted(
        (link for link, had in evidence.links.items() if had is outcome), key=lambda link: evidence.at[link[0]]
    )
    return tuple(Finding(link, cause, f"it {how} each time, and both ends are good with others") for link in found)


def _slow_findings(evidence: Evidence, cause: FaultCause) -> tuple[Finding, ...]:
    """List slow nodes, compared with the best times of the others; computation and network are separate."""
    limits = evidence.check.limits
    if cause is FaultCause.COMPUTE_SLOW:
        best: Mapping[str, float] = {node: min(times) for node, times in evidence.compute.items()}
        floor_s, candidates = limits.compute_s, {*best} - evidence.bad
    else:
        best, floor_s, candidates = evidence.network, limits.collective_s, evidence.slow_nodes
    sample = Sample(best.values(), limits)
    return tuple(
        Finding((node,), cause, f"{best[node]:.4g} s at best, beside the other nodes' or a floor")
        for node in evidence.check.nodes
        if node in candidates and node in best and sample.slow(best[node], [best[node]], floor_s)
    )


def _undecided(evidence: Evidence) -> tuple[Undecided, ...]:
    """Explain each group that failed or was slow without a known culprit."""
    found = []
    for group, outcome in evidence.unexplained:
        how = "failed" if outcome is Judgement.FAILED else "was slow"
        if not evidence.fast:
            why = f"this group {how}, and no group was fine beside which to tell why"
        elif {*group} <= evidence.fast:
            why = f"this group {how} once, and its nodes and links were fine when tried again"
        else:
            why = f"this group {how}, and no node was left to tell its members apart"
        found.append(Undecided(group, why))
    named_nodes = {node for each in found for node in each.nodes}
    unnamed_nodes = (node for node in evidence.unsettled if node not in named_nodes)
    return (
        *found,
        *(Undecided((node,), "no group without a bad node told anything about its network") for node in unnamed_nodes),
    )


LEAST_SEARCHES = 3  # three nodes have three pairs


def max_searches(nodes: int) -> int:
    """Return the rounds in which suspects may be paired among themselves while no group was fine."""
    return max(LEAST_SEARCHES, (nodes - 1).bit_length())


def next_groups(check: Check) -> Groups | Verdict:
    """Return the next round's groups, disjoint and each in node order, or the verdict. The groups are never empty."""
    if not check.rounds:
        return _neighbours(check.nodes)
    evidence = Evidence(check)
    round_ = _Round(evidence)
    round_.links()
    round_.pair_suspects()
    if evidence.fast or len(check.rounds) <= max_searches(len(check.nodes)):
        round_.search()
    round_.measure_again()
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
        for group, outcome in evidence.unexplained:
            good = evidence.working if outcome is Judgement.FAILED else evidence.fast
            if {*group} <= good and (link := next(self._untested_links(group), None)):
                self._take(*link)

    def _untested_links(self, group: Group) -> Iterator[Link]:
        """Yield the pairs of free nodes in a group that were not tested together often enough."""
        runs = PROOFS if len(group) == 2 else 1
        for at, one in enumerate(group):
            for other in group[at + 1 :]:
                if len(self._evidence.pairs.get((one, other), ())) < runs and self._free(one) and self._free(other):
                    yield one, other

    def pair_suspects(self) -> None:
        """Pair each suspect with a fast node, else with a working one. Of a failed group, one member goes before the
        others.

        Two of a group of three stay together: their link is tested on the way, and one proven node is enough for both.
        """
        evidence = self._evidence
        unsettled = {*evidence.unsettled}
        for one, other, _ in (group for group, _ in evidence.unexplained if len(group) == 3):
            if (one, other) not in evidence.pairs and {one, other} <= unsettled:
                self._take(one, other)
        for node in self._sort_by_slow_partners(evidence.unsettled):
            proven = [evidence.fast] if node in evidence.working else [evidence.fast, evidence.working - evidence.fast]
            for those in proven:
                if self._free(node) and (
                    partner := self._nearest(node, those - evidence.outcomes_by_partner[node].keys())
                ):
                    self._take(node, partner)
                    break

    def _sort_by_slow_partners(self, nodes: Group) -> list[str]:
        """Return nodes sorted by their number of slow partners, then by their place in the first round's groups."""
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

    def measure_again(self) -> None:
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
