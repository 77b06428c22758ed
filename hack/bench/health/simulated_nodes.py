"""Nodes whose faults are known: what their groups would measure, and a check of them to its end.

Simulated: a group that has a fault in it fails or is slow each time, and healthy times differ by a tenth, up or down.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from turnout.launcher.health.judge_nodes import next_groups_or_verdict
from turnout.launcher.health.model import Check, FaultCause, Finding, Group, Groups, Measured, StragglerLimits, Verdict

NO_NODES: frozenset[int] = frozenset()
NO_LINKS: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class SimulatedNodes:
    """Nodes n0, n1, ... by number, neighbours next to one another."""

    nodes: int  # number of nodes
    failing_networks: frozenset[int] = NO_NODES  # nodes whose network fails
    failing_computations: frozenset[int] = NO_NODES  # nodes whose own computation fails
    failing_links: frozenset[tuple[int, int]] = NO_LINKS  # links that fail
    slow_links: frozenset[tuple[int, int]] = NO_LINKS  # links that are slow
    slow_computations: frozenset[int] = NO_NODES  # nodes whose computation is slow
    slow_networks: frozenset[int] = NO_NODES  # nodes whose network is slow
    factor: float = 3.0  # time of a slow node or link / time of a healthy one
    seed: int = 0  # of the noise
    compute_s: float = 1.0  # computation of a healthy node
    collective_s: float = 1.0  # collective of a healthy pair

    @property
    def names(self) -> Group:
        """Name all nodes."""
        return tuple(f"n{number}" for number in range(self.nodes))

    def measure(self, group: Group, round_number: int = 0) -> Measured:
        """Return what this group would measure. round_number: seeds the noise of 10 %."""
        numbers = [int(name[1:]) for name in group]
        rng = Random(f"{self.seed} {round_number} {group}")
        compute = tuple(
            None
            if number in self.failing_computations
            else self.compute_s * rng.uniform(0.9, 1.1) * (self.factor if number in self.slow_computations else 1)
            for number in numbers
        )
        inside = {(one, other) for one in numbers for other in numbers}
        if (
            not {*numbers}.isdisjoint(self.failing_networks | self.failing_computations)
            or inside & self.failing_links
            or len(numbers) < 2
        ):
            return Measured(group, compute, None)
        slow = not {*numbers}.isdisjoint(self.slow_networks) or inside & self.slow_links
        pair_s = self.collective_s * rng.uniform(0.9, 1.1) * (self.factor if slow else 1)
        return Measured(group, compute, pair_s * 2 * (len(numbers) - 1) / len(numbers))

    def check(self, limits: StragglerLimits | None = None, maximum: int = 99) -> tuple[Verdict, list[Groups]]:
        """Run a whole check by our rule. Return (verdict, the groups of each round). Raises RuntimeError after
        `maximum` rounds.

        limits: None for the default ones.
        """
        check, rounds = Check(self.names, limits or StragglerLimits()), list[Groups]()
        while not isinstance(answer := next_groups_or_verdict(check), Verdict):
            rounds.append(answer)
            if len(rounds) > maximum:
                raise RuntimeError(f"more than {maximum} rounds: {self}")
            check = check.add_round(tuple(self.measure(group, len(rounds)) for group in answer))
        return answer, rounds


def numbers(findings: tuple[Finding, ...], *causes: FaultCause) -> list[tuple[int, ...]]:
    """List the numbers of the nodes of each finding, sorted. causes: only findings with one of them; all without
    any.
    """
    return sorted(
        tuple(int(name[1:]) for name in each.nodes) for each in findings if not causes or each.cause in causes
    )
