"""Makes the verdict of a check when no more tests are worth their time: bad and slow nodes, and open cases."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.launcher.health.evidence import Evidence, Outcome
from turnout.launcher.health.model import FaultCause, Finding, Undecided, Verdict
from turnout.launcher.health.stragglers import Sample


def verdict(evidence: Evidence) -> Verdict:
    """Make the verdict from all measurements."""
    return Verdict(
        bad_nodes=tuple(_bad(evidence, node) for node in evidence.check.nodes if node in evidence.bad),
        bad_links=_links(evidence, Outcome.FAILED, FaultCause.LINK_FAILED),
        slow_nodes=(*_slow(evidence, FaultCause.COMPUTE_SLOW), *_slow(evidence, FaultCause.NETWORK_SLOW)),
        slow_links=_links(evidence, Outcome.SLOW, FaultCause.LINK_SLOW),
        undecided=_undecided(evidence),
    )


def _bad(evidence: Evidence, node: str) -> Finding:
    if node in evidence.broken:
        return Finding((node,), FaultCause.COMPUTE_FAILED, "its own computation failed or got stuck")
    others = " and with ".join(evidence.failed_with(node)[:2])
    return Finding(
        (node,), FaultCause.NETWORK_FAILED, f"failed with {others}, which passed with others, and passed with nobody"
    )


def _links(evidence: Evidence, outcome: Outcome, cause: FaultCause) -> tuple[Finding, ...]:
    how = "fails" if outcome is Outcome.FAILED else "is slow"
    found = sorted(
        (link for link, had in evidence.links.items() if had is outcome), key=lambda link: evidence.at[link[0]]
    )
    return tuple(Finding(link, cause, f"it {how} each time, and both ends are good with others") for link in found)


def _slow(evidence: Evidence, cause: FaultCause) -> tuple[Finding, ...]:
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
    found = []
    for group, outcome in evidence.riddles:
        how = "failed" if outcome is Outcome.FAILED else "was slow"
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
