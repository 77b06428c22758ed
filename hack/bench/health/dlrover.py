"""DLRover's network check as a rule: two rounds of pairs, one time for each node, twice the median is a straggler.

Written from docs/facts/dlrover.md 2.2, whose examples of §2.3 it repeats in the tests; none of its code runs here.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from hack.bench.health.simulated_nodes import SimulatedNodes

FAILED_S = 3_600.0
_ALONE = 3  # with three nodes or fewer there is no second round, because no other pairs are possible

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DlroverVerdict:
    """The nodes that DLRover's check calls faulty and slow."""

    bad: Numbers
    slow: Numbers
    rounds: tuple[tuple[Numbers, ...], ...]  # the groups of each round


def check_nodes(cluster: SimulatedNodes) -> DlroverVerdict:
    """Run DLRover's check on a simulated cluster, in two rounds.

    The second round is left out if the first finds nothing, or finds a bad node among at most _ALONE nodes.
    """
    passed, best_s = dict.fromkeys(range(cluster.nodes), False), dict.fromkeys(range(cluster.nodes), FAILED_S)
    rounds = list[tuple[Numbers, ...]]()
    for pair in (_neighbours, _fastest_with_slowest):
        groups = pair(best_s)
        rounds.append(groups)
        for group in groups:
            found = cluster.measure(tuple(f"n{number}" for number in group), len(rounds))
            together_s = found.collective_s
            for number, alone_s in zip(group, found.compute_s, strict=True):
                if together_s is not None and alone_s is not None:
                    passed[number] = True
                    best_s[number] = min(best_s[number], alone_s + together_s)
        bad, slow = [number for number in passed if not passed[number]], _stragglers(best_s)
        if not bad + slow or (bad and cluster.nodes <= _ALONE):
            break
    return DlroverVerdict(tuple(bad), tuple(slow), tuple(rounds))


def _neighbours(best_s: dict[int, float]) -> tuple[Numbers, ...]:
    return _with_leftover([(at, at + 1) for at in range(0, len(best_s) - 1, 2)], [*best_s][len(best_s) // 2 * 2 :])


def _fastest_with_slowest(best_s: dict[int, float]) -> tuple[Numbers, ...]:
    """Return groups of two nodes, the fastest with the slowest, and so on. A leftover node joins the last group.

    best_s: each node's best time so far.
    """
    ordered = sorted(best_s, key=lambda number: best_s[number])
    half = len(ordered) // 2
    pairs = [(ordered[at], ordered[-1 - at]) for at in range(half)]
    return _with_leftover(pairs, ordered[half : len(ordered) - half])


def _with_leftover(pairs: list[tuple[int, int]], left: list[int]) -> tuple[Numbers, ...]:
    """Return the pairs as groups; nodes that are left join the last group."""
    groups: list[Numbers] = [tuple(sorted(pair)) for pair in pairs]
    if groups:
        groups[-1] = tuple(sorted((*groups[-1], *left)))
    return tuple(groups) or (tuple(left),)


def _stragglers(best_s: dict[int, float]) -> list[int]:
    limit_s = 2 * median(best_s.values())
    return [number for number in best_s if limit_s < best_s[number] < FAILED_S]
