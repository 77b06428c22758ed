"""Nodes that are found and nodes that are blamed wrongly, by Turnout's check and by DLRover's rule of two rounds.

The nodes are simulated, with faults that do not come and go; the rules are those that run. A bad link is one of a pair
of the first round: no check finds a link that it does not try. Steps that never end are measured in hack/bench/hangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from hack.bench.hangs.measure import measure
from hack.bench.health import trials
from hack.bench.health.trials import Said, Scene, Trial, extra_groups, innocents
from hack.bench.support.outcome import Outcome, Scale, Table, Target

ISSUE = Scene("issue", 1_024, dead=3, tired=1, far=1, cut=1)
SCENES = (ISSUE, Scene("third", 64, dead=16, tired=2, far=2, cut=1), Scene("few", 8, dead=2))
_LOG2 = log2(ISSUE.nodes)


@dataclass(frozen=True, slots=True)
class Results:
    """The results of one scene. ours, theirs: of each trial."""

    scene: Scene
    trials: Sequence[Trial]
    ours: Sequence[Said]
    theirs: Sequence[Said]

    def exact(self, said: Sequence[Said]) -> int:
        """Count the trials in which all faults are reported, and nothing else."""
        return sum(each.exact(trial.floor) for each, trial in zip(said, self.trials, strict=True))

    def missed(self, said: Sequence[Said]) -> int:
        """Count the faults that are not reported."""
        return sum(each.missed(trial.floor) for each, trial in zip(said, self.trials, strict=True))

    def figures(self) -> dict[str, float]:
        """Give the figures of both, by name."""
        found, (our_extra, their_extra) = dict[str, float](), extra_groups(self.trials)
        rounds = [len(each.rounds) for each in self.trials], [len(each.theirs.rounds) for each in self.trials]
        rows = (("ours", self.ours, rounds[0], our_extra), ("dlrover", self.theirs, rounds[1], their_extra))
        for name, said, ran, extra in rows:
            found |= {
                f"{self.scene.name}_{name}_exact_share": self.exact(said) / len(said),
                f"{self.scene.name}_{name}_faults_missed": self.missed(said),
                f"{self.scene.name}_{name}_innocents_blamed": innocents(said, self.trials),
                f"{self.scene.name}_{name}_most_rounds": max(ran),
                f"{self.scene.name}_{name}_mean_extra_groups": sum(extra) / len(extra),
                f"{self.scene.name}_{name}_most_extra_groups": max(extra),
            }
        return found

    def table(self) -> Table:
        """Give the table."""
        scene, figures = self.scene, self.figures()
        columns = ("rule", "exact", "faults missed", "innocents blamed", "most rounds", "extra groups, mean", "most")
        names = (
            "exact_share",
            "faults_missed",
            "innocents_blamed",
            "most_rounds",
            "mean_extra_groups",
            "most_extra_groups",
        )
        rows = [
            (rule, *(f"{figures[f'{scene.name}_{rule}_{name}']:g}" for name in names)) for rule in ("ours", "dlrover")
        ]
        told = f"{scene.dead} bad, {scene.tired + scene.far} slow, {scene.cut} link of {scene.nodes:,}"
        return Table(f"{told}: {len(self.trials)} floors", columns, rows)


def run(scale: Scale) -> Outcome:
    """Measure both, in as many floors and steps as there is time for."""
    nodes, hangs = _nodes(scale.pick(400, 40, 2)), measure(scale)
    return Outcome(
        title="health: who is found and who is blamed before a step, and in one that never ends",
        tables=(*nodes.tables, *hangs.tables),
        figures={**nodes.figures, **{f"hang_{name}": value for name, value in hangs.figures.items()}},
        targets=(*nodes.targets, *hangs.targets),
        notes=(*nodes.notes, *hangs.notes),
    )


def _nodes(times: int) -> Outcome:
    found = [_found(scene, times) for scene in SCENES]
    issue = found[0]
    a_suspect = max(len(each.extra) / len(each.suspects) for each in issue.trials)
    figures = {name: value for each in found for name, value in each.figures().items()}
    figures["issue_ours_extra_groups_of_a_suspect"] = a_suspect
    figures["issue_ours_decisions_ms"] = max(each.decided_s for each in issue.trials) * 1e3
    blamed = sum(innocents(each.ours, each.trials) for each in found)
    idle = sum(len(trials.idle(trial)) for each in found for trial in each.trials)
    return Outcome(
        title="health: who is found and who is blamed before a step",
        tables=tuple(each.table() for each in found),
        figures=figures,
        targets=(
            Target("1,024 nodes: exact verdicts, share", figures["issue_ours_exact_share"], ">=", 1.0),
            Target("innocent nodes blamed, all scenes", blamed, "<=", 0),
            Target("1,024 nodes: rounds, at most 1 + log2", figures["issue_ours_most_rounds"], "<=", 1 + _LOG2),
            Target("1,024 nodes: extra groups for each suspect, at most log2", a_suspect, "<=", _LOG2),
            Target("extra groups without a suspect, all scenes", idle, "<=", 0),
        ),
        notes=(
            "Simulated: no probe runs here. Healthy times differ by a tenth, slow ones are three times as long.",
            "DLRover's rule is written from its facts; it does not look for links, and adds a node's two times up.",
        ),
    )


def _found(scene: Scene, floors: int) -> Results:
    tried = [trials.tried(scene.floor(seed)) for seed in range(floors)]
    return Results(scene, tried, [trials.ours(each) for each in tried], [trials.theirs(each) for each in tried])
