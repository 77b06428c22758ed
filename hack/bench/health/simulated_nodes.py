"""Nodes whose faults are known: what their groups would measure, and a check of them to its end.

Simulated: a group that has a fault in it fails or is slow each time, and healthy times differ by a tenth, up or down.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from turnout.launcher.health.judge_nodes import next_groups_or_verdict
from turnout.launcher.health.model import Check, FaultCause, Finding, Group, Groups, Measured, StragglerLimits, Verdict

NOBODY: frozenset[int] = frozenset()
NOWHERE: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class SimulatedNodes:
    """Nodes n0, n1, ... by number, neighbours next to one another."""

    nodes: int  # number of nodes
    dead: frozenset[int] = NOBODY  # nodes whose network fails
    broken: frozenset[int] = NOBODY  # nodes whose own computation fails
    cut: frozenset[tuple[int, int]] = NOWHERE  # links that fail
    thin: frozenset[tuple[int, int]] = NOWHERE  # links that are slow
    tired: frozenset[int] = NOBODY  # nodes whose computation is slow
    far: frozenset[int] = NOBODY  # nodes whose network is slow
    factor: float = 3.0  # time of a slow node or link / time of a healthy one
    seed: int = 0  # of the noise
    compute_s: float = 1.0  # computation of a healthy node
    collective_s: float = 1.0  # collective of a healthy pair

    @property
    def names(self) -> Group:
        """Name all nodes."""
        return tuple(f"n{number}" for number in range(self.nodes))

    def measure(self, group: Group, run: int = 0) -> Measured:
        """Return what this group would measure. run: number of the round, which seeds the noise of 10 %."""
        numbers = [int(name[1:]) for name in group]
        rng = Random(f"{self.seed} {run} {group}")
        compute = tuple(
            None
            if number in self.broken
            else self.compute_s * rng.uniform(0.9, 1.1) * (self.factor if number in self.tired else 1)
            for number in numbers
        )
        inside = {(one, other) for one in numbers for other in numbers}
        if not {*numbers}.isdisjoint(self.dead | self.broken) or inside & self.cut or len(numbers) < 2:
            return Measured(group, compute, None)
        slow = not {*numbers}.isdisjoint(self.far) or inside & self.thin
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
