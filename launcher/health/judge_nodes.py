"""Decides from the probes of --network-check which nodes and links are bad or slow, and which groups are probed next.

A group that failed alone proves nothing against its nodes. A node works if one of its groups did not fail, and is fast
if one of its groups was fine. A node that does not work and failed with two working nodes is bad: if two of its links
fail, the common cause is the node's own port. A node that is not fast, even with two fast nodes, has a slow network. A
pair that fails twice although both nodes work has a bad link. Source: system-level diagnosis (Preparata, Metze, Chien
1967), where a test proves something only if the tester is sound.
A time is compared with those of other nodes and with an absolute limit. A suspicious time is first measured again,
together with proven nodes, and then judged by the rule. Suspicion compares with the lower quartile: if a third of the
nodes is slow, two thirds of the pairs are slow, so mean and median would miss it. Source: the guide, DL-31
A check without findings has one round, of neighbours. Otherwise every later group contains a suspect, and no pair runs
more often than a proof needs. Suspects without a free proven node are paired among themselves, for at most
`max_searches` rounds while no node is proven. Faults of up to a third of the nodes are found exactly, in at most five
rounds and at most 2 + log2 of the nodes, rounded up. No state is stored between rounds.
Source: DL-80, DL-81; DLRover's two fixed rounds, docs/facts/dlrover.md 2.2 and 2.3
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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
    """The times of all groups or nodes, with which one time is compared.

    In each comparison, the times in `own` are left out of the sample: the time itself and those of the same group.
    """

    def __init__(self, times_s: Iterable[float], limits: StragglerLimits) -> None:
        self._sorted, self._limits = sorted(times_s), limits
        self._ordinary_limit_s = dict[int, float]()

    def is_slow(self, time_s: float, own: Sequence[float], always_slow_s: float | None) -> bool:
        """Return True if the time is slow by the rule.

        always_slow_s: a time above it counts as slow whatever the rule says; None for no such limit.
        """
        if always_slow_s is not None and time_s > always_slow_s:
            return True
        return not self._is_surely_normal(time_s, len(own)) and time_s > _limit_s(self._others(own), self._limits)

    def is_suspicious(self, time_s: float, own: Sequence[float], always_slow_s: float | None) -> bool:
        """Return True if the time should be measured again. Every slow time is suspicious. Arguments of `is_slow`."""
        if always_slow_s is not None and time_s > always_slow_s:
            return True
        return not self._is_surely_normal(time_s, len(own)) and time_s > _suspicious_s(self._others(own), self._limits)

    def _is_surely_normal(self, time_s: float, left_out: int) -> bool:
        """Return True if the time is not suspicious, whichever `left_out` times are left out of the sample.

        A quick test with a cached limit: True proves it; after False the exact test is needed.
        """
        if left_out not in self._ordinary_limit_s:
            self._ordinary_limit_s[left_out] = _suspicious_s(
                self._sorted[: max(len(self._sorted) - left_out, 0)], self._limits, 0
            )
        return time_s <= self._ordinary_limit_s[left_out]

    def _others(self, own: Iterable[float]) -> list[float]:
        """Return the sorted times of the sample without those in `own`, in seconds. own: times of the sample."""
        others = self._sorted.copy()
        for time_s in own:
            del others[bisect_left(others, time_s)]
        return others


def _limit_s(others: list[float], limits: StragglerLimits, spreads: float | None = None) -> float:
    """Return the time in seconds above which a node counts as slow by the rule; infinite without others.

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
    """Return the time in seconds above which a node is tested again: the limit for slow nodes, or less.

    The arguments are those of `_limit_s`. Infinite without others.
    """
    if not others:
        return inf
    factor = limits.least_factor if limits.rule is SlowRule.SPREAD else limits.factor
    return min(_limit_s(others, limits, spreads), factor * others[(len(others) - 1) // 4])


def _median(ordered: list[float]) -> float:
    """Return the median of sorted numbers, at least one."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


PROOFS = 2  # results with different partners, or runs of one pair, that make a proof


class Judgement(IntEnum):
    """The result of a group, from good to bad."""

    FINE = 0
    SLOW = 1
    FAILED = 2


class GroupOutcomes:
    """The outcomes of a check's groups, by group, by pair and by node.

    position: the place of each node in the check's order. results: of all groups and of nodes alone. groups: those of
    `results` with several members. groups_of: indexes into `groups`, by node.
    """

    def __init__(self, check: Check) -> None:
        self.check = check
        self.position = {node: index for index, node in enumerate(check.nodes)}
        self.results = [result for results in check.rounds for result in results]
        self.groups = [result for result in self.results if len(result.members) > 1]
        self.groups_of = defaultdict[str, list[int]](list)  # indexes into self.groups, by node
        for place, result in enumerate(self.groups):
            for member in result.members:
                self.groups_of[member].append(place)

    @cached_property
    def judgements(self) -> list[Judgement]:
        """Return the outcome of every group, in the order of `groups`.

        A group is slow if its time is suspicious among all groups or among those of the first round. Only the first
        round is a fair sample: in later rounds most groups contain a suspect.
        """
        times = [each.pair_s for each in self.groups]
        first = sum(1 for each in self.check.rounds[0] if len(each.members) > 1)
        samples = [
            Sample((time_s for time_s in of if time_s is not None), self.check.limits) for of in (times[:first], times)
        ]
        outcomes = []
        for result, time_s in zip(self.groups, times, strict=True):
            if time_s is None or any(alone_s is None for alone_s in result.compute_s):
                outcomes.append(Judgement.FAILED)
            else:
                slow = self._is_slow(result, time_s, zip(samples, (times[:first], times), strict=True))
                outcomes.append(Judgement.SLOW if slow else Judgement.FINE)
        return outcomes

    def _is_slow(self, result: Measured, time_s: float, samples: Iterable[tuple[Sample, list[float | None]]]) -> bool:
        """Return True if a group's time is suspicious in one of the samples.

        result, time_s: the group, and its time in seconds. samples: (sample, seconds of its groups in the order of
        `groups`, None for a group without a time).
        """
        same = self._runs_of_group(result)
        return any(
            sample.is_suspicious(
                time_s,
                [own_s for place in same if place < len(times) and (own_s := times[place]) is not None],
                self.check.limits.collective_s,
            )
            for sample, times in samples
        )

    def _runs_of_group(self, result: Measured) -> list[int]:
        """List the indexes in `groups` of all runs of the same group, this one included."""
        return [
            place for place in self.groups_of[result.members[0]] if {*self.groups[place].members} == {*result.members}
        ]

    @cached_property
    def fast_nodes(self) -> set[str]:
        """Return the nodes of groups that were fine."""
        return _members(self.groups, self.judgements, Judgement.FINE)

    @cached_property
    def working_nodes(self) -> set[str]:
        """Return the nodes of groups that did not fail."""
        return _members(self.groups, self.judgements, Judgement.FINE, Judgement.SLOW)

    @cached_property
    def pairs(self) -> dict[Link, list[Judgement]]:
        """Return, by pair in the order of the check, the outcomes of its runs. Groups of three are omitted."""
        outcomes_of_pair = defaultdict[Link, list[Judgement]](list)
        for result, outcome in zip(self.groups, self.judgements, strict=True):
            if len(result.members) == 2:
                outcomes_of_pair[self.link_of(*result.members)].append(outcome)
        return outcomes_of_pair

    def link_of(self, node: str, other_node: str) -> Link:
        """Return two nodes as a link: in the order of the check."""
        return (node, other_node) if self.position[node] < self.position[other_node] else (other_node, node)

    @cached_property
    def by_partner(self) -> dict[str, dict[str, Judgement]]:
        """Return, by node and by its partner in a pair, the best outcome of their runs."""
        best_outcomes = defaultdict[str, dict[str, Judgement]](dict)
        for (node, partner), outcomes in self.pairs.items():
            best_outcomes[node][partner] = best_outcomes[partner][node] = min(outcomes)
        return best_outcomes

    def in_check_order(self, nodes: Iterable[str]) -> Group:
        """Return these nodes in the order of the check."""
        return tuple(sorted(nodes, key=self.position.__getitem__))


def _members(groups: Iterable[Measured], judgements: Iterable[Judgement], *outcomes: Judgement) -> set[str]:
    """Return the members of groups with one of these outcomes. judgements: the outcome of each group, in order."""
    pairs = zip(groups, judgements, strict=True)
    return {member for result, outcome in pairs if outcome in outcomes for member in result.members}


class Evidence:
    """Everything that the results of a node check prove. outcomes: of its groups."""

    def __init__(self, check: Check) -> None:
        self.check, self.outcomes = check, GroupOutcomes(check)

    @cached_property
    def broken_nodes(self) -> set[str]:
        """Return the nodes whose own computation failed, which proves them bad without a partner."""
        return {
            member
            for result in self.outcomes.results
            for member, time_s in zip(result.members, result.compute_s, strict=True)
            if time_s is None
        }

    @cached_property
    def cut_off_nodes(self) -> set[str]:
        """Return the nodes that failed with everyone, including at least PROOFS working nodes."""
        return {
            node
            for node in self.check.nodes
            if node not in self.outcomes.working_nodes
            and len(self.failed_with(node)) >= PROOFS
            and node not in self.broken_nodes
        }

    def failed_with(self, node: str) -> Group:
        """List the working nodes with which this node failed in every run of their pair. Groups of three do not
        count.
        """
        return self.outcomes.in_check_order(
            other
            for other, best in self.outcomes.by_partner[node].items()
            if best is Judgement.FAILED and other in self.outcomes.working_nodes
        )

    @cached_property
    def bad_nodes(self) -> set[str]:
        """Return the nodes that must not train."""
        return self.broken_nodes | self.cut_off_nodes

    @cached_property
    def slow_nodes(self) -> set[str]:
        """Return the nodes that are fast with nobody, even after PROOFS tries with fast ones."""
        return {
            node
            for node in self.check.nodes
            if node not in self.outcomes.fast_nodes
            and node not in self.bad_nodes
            and len(self.slow_with(node)) >= PROOFS
        }

    def slow_with(self, node: str) -> Group:
        """List the fast nodes that were paired with this node. Precondition: the node is not fast."""
        return self.outcomes.in_check_order(
            other for other in self.outcomes.by_partner[node] if other in self.outcomes.fast_nodes
        )

    @cached_property
    def unsettled_nodes(self) -> Group:
        """List the nodes that are proven neither fast nor bad nor slow yet; () for a check of one node."""
        settled = self.outcomes.fast_nodes | self.bad_nodes | self.slow_nodes
        return tuple(node for node in self.check.nodes if node not in settled) if len(self.check.nodes) > 1 else ()

    @cached_property
    def links(self) -> dict[Link, Judgement]:
        """Return the links between good nodes that failed or were slow, with that outcome.

        The outcome must be the same in all runs of the pair and in at least PROOFS groups with both ends.
        """
        outcome_of_link = dict[Link, Judgement]()
        sound = (
            (Judgement.FAILED, self.outcomes.working_nodes - self.broken_nodes),
            (Judgement.SLOW, self.outcomes.fast_nodes - self.broken_nodes),
        )
        for link, outcomes in self.outcomes.pairs.items():
            for outcome, good in sound:
                if {*outcomes} == {outcome} and {*link} <= good and self._count_unexplained(link, outcome) >= PROOFS:
                    outcome_of_link[link] = outcome
        return outcome_of_link

    def _count_unexplained(self, link: Link, outcome: Judgement) -> int:
        """Count the groups that contain both ends of the link, had this outcome, and have no node that explains it."""
        both = {*self.outcomes.groups_of[link[0]]} & {*self.outcomes.groups_of[link[1]]}
        return sum(
            1
            for place in both
            if self.outcomes.judgements[place] is outcome
            and not self._has_known_fault(self.outcomes.groups[place], outcome)
        )

    def _has_known_fault(self, result: Measured, outcome: Judgement) -> bool:
        """Return True if a bad or slow member explains this group's outcome."""
        culprits = self.bad_nodes if outcome is Judgement.FAILED else self.bad_nodes | self.slow_nodes
        return not culprits.isdisjoint(result.members)

    @cached_property
    def unexplained_groups(self) -> list[tuple[Group, Judgement]]:
        """List the failed and slow groups that no bad or slow node or link explains, once each, with the outcome.

        A slow group is omitted if all its pairs were fine in some run.
        """
        groups, outcomes = dict[tuple[Group, Judgement], None](), self.outcomes
        for result, outcome in zip(outcomes.groups, outcomes.judgements, strict=True):
            if outcome is Judgement.FINE or self._has_known_fault(result, outcome):
                continue
            inside = list(combinations(outcomes.in_check_order(result.members), 2))
            if any(self.links.get(link, Judgement.FINE) >= outcome for link in inside):
                continue
            if outcome is Judgement.SLOW and all(Judgement.FINE in outcomes.pairs.get(link, ()) for link in inside):
                continue
            groups[outcomes.in_check_order(result.members), outcome] = None
        return list(groups)


def _compute_times(results: Iterable[Measured]) -> dict[str, list[float]]:
    """Return the times of each node's own computation in seconds. A node without any is omitted."""
    times_of = defaultdict[str, list[float]](list)
    for result in results:
        for member, time_s in zip(result.members, result.compute_s, strict=True):
            if time_s is not None:
                times_of[member].append(time_s)
    return times_of


def _group_times(groups: Iterable[Measured]) -> dict[str, float]:
    """Return the best group time of each node in seconds, as a pair would need it. A node without any is omitted."""
    best_s = dict[str, float]()
    for result in groups:
        if result.pair_s is not None:
            for member in result.members:
                best_s[member] = min(result.pair_s, best_s.get(member, result.pair_s))
    return best_s


def verdict(evidence: Evidence) -> Verdict:
    """Make the verdict from all measurements."""
    return Verdict(
        bad_nodes=tuple(_bad_finding(evidence, node) for node in evidence.check.nodes if node in evidence.bad_nodes),
        bad_links=_link_findings(evidence, Judgement.FAILED, FaultCause.LINK_FAILED),
        slow_nodes=(
            *_slow_findings(evidence, FaultCause.COMPUTE_SLOW),
            *_slow_findings(evidence, FaultCause.NETWORK_SLOW),
        ),
        slow_links=_link_findings(evidence, Judgement.SLOW, FaultCause.LINK_SLOW),
        undecided=_undecided(evidence),
    )


def _bad_finding(evidence: Evidence, node: str) -> Finding:
    """Return the finding for a bad node: COMPUTE_FAILED if its own computation failed, else NETWORK_FAILED.

    Precondition: the evidence proves the node bad.
    """
    if node in evidence.broken_nodes:
        return Finding((node,), FaultCause.COMPUTE_FAILED, "its own computation failed or got stuck")
    others = " and with ".join(evidence.failed_with(node)[:2])
    return Finding(
        (node,), FaultCause.NETWORK_FAILED, f"failed with {others}, which passed with others, and passed with nobody"
    )


def _link_findings(evidence: Evidence, outcome: Judgement, cause: FaultCause) -> tuple[Finding, ...]:
    """Return a finding for each link between good nodes with this outcome, FAILED or SLOW."""
    how = "fails" if outcome is Judgement.FAILED else "is slow"
    links = sorted(
        (link for link, link_outcome in evidence.links.items() if link_outcome is outcome),
        key=lambda link: evidence.outcomes.position[link[0]],
    )
    return tuple(Finding(link, cause, f"it {how} each time, and both ends are good with others") for link in links)


def _slow_findings(evidence: Evidence, cause: FaultCause) -> tuple[Finding, ...]:
    """Return a finding for each node whose best time is slow among the best times of all nodes.

    cause: COMPUTE_SLOW to compare computations, NETWORK_SLOW to compare groups.
    """
    limits = evidence.check.limits
    if cause is FaultCause.COMPUTE_SLOW:
        best = {node: min(times) for node, times in _compute_times(evidence.outcomes.results).items()}
        always_slow_s, candidates = limits.compute_s, {*best} - evidence.bad_nodes
    else:
        best = _group_times(evidence.outcomes.groups)
        always_slow_s, candidates = limits.collective_s, evidence.slow_nodes
    sample = Sample(best.values(), limits)
    return tuple(
        Finding((node,), cause, f"best time {best[node]:.4g} s, slow beside the other nodes or the limit")
        for node in evidence.check.nodes
        if node in candidates and node in best and sample.is_slow(best[node], [best[node]], always_slow_s)
    )


def _undecided(evidence: Evidence) -> tuple[Undecided, ...]:
    """Return each group that failed or was slow without a proven culprit, and each node without any proof."""
    undecided = []
    for group, outcome in evidence.unexplained_groups:
        how = "failed" if outcome is Judgement.FAILED else "was slow"
        if not evidence.outcomes.fast_nodes:
            why = f"this group {how}, and no group was fine to compare it with"
        elif {*group} <= evidence.outcomes.fast_nodes:
            why = f"this group {how} once, and its nodes and links were fine when tried again"
        else:
            why = f"this group {how}, and no node was left to tell its members apart"
        undecided.append(Undecided(group, why))
    named_nodes = {node for each in undecided for node in each.nodes}
    unnamed_nodes = (node for node in evidence.unsettled_nodes if node not in named_nodes)
    return (
        *undecided,
        *(
            Undecided((node,), "its network is unknown: each group that measured it had a faulty node")
            for node in unnamed_nodes
        ),
    )


LEAST_SEARCHES = 3  # three nodes have three pairs


def max_searches(nodes: int) -> int:
    """Return in how many rounds suspects may be paired among themselves while no group was fine. nodes: their
    number.
    """
    return max(LEAST_SEARCHES, (nodes - 1).bit_length())


def next_groups_or_verdict(check: Check) -> Groups | Verdict:
    """Return the groups of the next round of probes, or the verdict if nothing is left to probe.

    The groups are disjoint, and each is in the order of check.nodes.
    """
    if not check.rounds:
        return _neighbours(check.nodes)
    evidence = Evidence(check)
    round_ = _Round(evidence)
    round_.add_links()
    round_.pair_suspects()
    if evidence.outcomes.fast_nodes or len(check.rounds) <= max_searches(len(check.nodes)):
        round_.search()
    round_.measure_again()
    return tuple(round_.groups) or verdict(evidence)


def _neighbours(nodes: Group) -> Groups:
    """Return pairs of neighbours. With an odd number the last three nodes form a group; a single node is a group.

    Source: DL-80
    """
    pairs = [nodes[index : index + 2] for index in range(0, len(nodes) - 1, 2)] or [nodes]
    if len(nodes) % 2 and len(nodes) > 1:
        pairs[-1] = nodes[-3:]
    return tuple(pairs)


class _Round:
    """Collects the groups of one probe round, so that no node is in two of them."""

    def __init__(self, evidence: Evidence) -> None:
        self.groups: list[Group] = []
        self._evidence, self._busy = evidence, set[str]()

    def add_links(self) -> None:
        """Add, for each unexplained group of good nodes, one pair of it that was not tested often enough."""
        evidence = self._evidence
        for group, outcome in evidence.unexplained_groups:
            good = evidence.outcomes.working_nodes if outcome is Judgement.FAILED else evidence.outcomes.fast_nodes
            if {*group} <= good and (link := next(self._untested_links(group), None)):
                self._add_group(*link)

    def _untested_links(self, group: Group) -> Iterator[Link]:
        """Yield the pairs of free nodes in a group with fewer runs than needed: PROOFS for a pair, else one."""
        runs = PROOFS if len(group) == 2 else 1
        for index, node in enumerate(group):
            for other_node in group[index + 1 :]:
                if (
                    len(self._evidence.outcomes.pairs.get((node, other_node), ())) < runs
                    and self._is_free(node)
                    and self._is_free(other_node)
                ):
                    yield node, other_node

    def pair_suspects(self) -> None:
        """Pair each unsettled node with a fast node; one that failed also with a working node.

        First, two members of an unexplained group of three are paired: this also tests their link. The members of one
        group have different priorities, so that one of them is settled before the others.
        """
        evidence, outcomes = self._evidence, self._evidence.outcomes
        unsettled, fast, working = {*evidence.unsettled_nodes}, outcomes.fast_nodes, outcomes.working_nodes
        for node_a, node_b, _ in (group for group, _ in evidence.unexplained_groups if len(group) == 3):
            if (node_a, node_b) not in outcomes.pairs and {node_a, node_b} <= unsettled:
                self._add_group(node_a, node_b)
        for node in self._sort_by_slow_partners(evidence.unsettled_nodes):
            proven = [fast] if node in working else [fast, working - fast]
            for proven_nodes in proven:
                if self._is_free(node) and (
                    partner := self._nearest_node(node, proven_nodes - outcomes.by_partner[node].keys())
                ):
                    self._add_group(node, partner)
                    break

    def _sort_by_slow_partners(self, nodes: Group) -> list[str]:
        """Return nodes sorted by their number of fast partners with which they were slow, then by their place in the
        first round's groups.
        """
        turn, node_set = dict[str, int](), {*nodes}
        for result in self._evidence.check.rounds[0]:
            turn |= {node: index for index, node in enumerate(node for node in result.members if node in node_set)}
        return sorted(nodes, key=lambda node: (len(self._evidence.slow_with(node)), turn.get(node, 0)))

    def search(self) -> None:
        """Pair the remaining unsettled nodes among themselves, in pairs that were not tested."""
        unsettled = self._evidence.unsettled_nodes
        unsettled_set = {*unsettled}
        for node in unsettled:
            partners = self._evidence.outcomes.by_partner[node]
            if self._is_free(node) and (partner := self._nearest_node(node, unsettled_set - partners.keys())):
                self._add_group(node, partner)

    def measure_again(self) -> None:
        """Add groups for nodes whose own computation is suspicious or unknown: with a free node, or alone."""
        evidence = self._evidence
        compute_times = _compute_times(evidence.outcomes.results)
        best, fast = {node: min(times) for node, times in compute_times.items()}, evidence.outcomes.fast_nodes
        sample, always_slow_s = Sample(best.values(), evidence.check.limits), evidence.check.limits.compute_s
        for node in evidence.check.nodes:
            if node in evidence.bad_nodes or not self._is_free(node) or len(compute_times.get(node, ())) >= PROOFS:
                continue
            if node not in best or sample.is_suspicious(best[node], [best[node]], always_slow_s):
                partner = self._nearest_node(node, fast) or self._nearest_node(node, best.keys())
                self._add_group(*((node, partner) if partner else (node,)))

    def _nearest_node(self, node: str, candidates: AbstractSet[str]) -> str | None:
        """Return the candidate that is nearest to `node` in the check's order; None if there is none.

        Candidates that are bad, or in a group of this round already, are skipped. Of two at the same distance the
        earlier one is returned.
        """
        nodes, position, excluded = (
            self._evidence.check.nodes,
            self._evidence.outcomes.position[node],
            self._busy | self._evidence.bad_nodes,
        )
        if candidates:
            for distance in range(1, len(nodes)):
                for index in (position - distance, position + distance):
                    if 0 <= index < len(nodes) and nodes[index] in candidates and nodes[index] not in excluded:
                        return nodes[index]
        return None

    def _is_free(self, node: str) -> bool:
        """Return True if the node is in no group of this round yet."""
        return node not in self._busy

    def _add_group(self, *nodes: str) -> None:
        """Add a group of these nodes to this round."""
        self._busy |= {*nodes}
        self.groups.append(self._evidence.outcomes.in_check_order(nodes))
