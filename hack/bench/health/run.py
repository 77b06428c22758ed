"""Nodes that are found and nodes that are blamed wrongly, by Turnout's check and by DLRover's rule of two rounds.

The nodes are simulated, with faults that do not come and go; the rules are those that run. A bad link is one of a pair
of the first round: no check finds a link that it does not try. Steps that never end are measured in hangs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from hack.bench.health import trials
from hack.bench.health.hangs import measure
from hack.bench.health.trials import NodeCheckTrial, NodeFindings, Scene, count_innocents, extra_groups
from hack.bench.support.outcome import Outcome, Scale, Table, Target, combine

ISSUE = Scene("issue", 1_024, failing_networks=3, slow_computations=1, slow_networks=1, failing_links=1)
SCENES = (
    ISSUE,
    Scene("third", 64, failing_networks=16, slow_computations=2, slow_networks=2, failing_links=1),
    Scene("few", 8, failing_networks=2),
)
_LOG2 = log2(ISSUE.nodes)
COLUMNS = {"rule": "", "exact": "g", "faults missed": "d", "innocents blamed": "d", "most rounds": "d"}
COLUMNS |= {"extra groups, mean": ".3g", "most extra groups": "d"}


@dataclass(frozen=True, slots=True)
class NodeCheckResults:
    """The results of one scene."""

    scene: Scene
    trials: Sequence[NodeCheckTrial]
    ours: Sequence[NodeFindings]  # of our rule, by trial
    theirs: Sequence[NodeFindings]  # of DLRover's, by trial

    def count_exact(self, findings: Sequence[NodeFindings]) -> int:
        """Count the trials in which all faults are reported, and nothing else."""
        return sum(each.is_exact(trial.cluster) for each, trial in zip(findings, self.trials, strict=True))

    def count_missed(self, findings: Sequence[NodeFindings]) -> int:
        """Count the faults that are not reported."""
        return sum(each.count_missed(trial.cluster) for each, trial in zip(findings, self.trials, strict=True))

    def table(self) -> Table:
        """Return a table with a row for each rule."""
        scene, extra = self.scene, extra_groups(self.trials)
        rounds = [len(each.rounds) for each in self.trials], [len(each.theirs.rounds) for each in self.trials]
        rows = [
            (f"{scene.nodes:,} nodes, {rule}", self.count_exact(findings) / len(findings), self.count_missed(findings),
             *(count_innocents(findings, self.trials), max(ran), sum(more) / len(more), max(more)))
            for rule, findings, ran, more
            in zip(("ours", "dlrover"), (self.ours, self.theirs), rounds, extra, strict=True)
        ]  # fmt: skip
        slow = scene.slow_computations + scene.slow_networks
        title = f"{scene.failing_networks} bad, {slow} slow, {scene.failing_links} link of {scene.nodes:,}"
        return Table(f"{title}: {len(self.trials)} clusters", COLUMNS, rows)


def run(scale: Scale) -> Outcome:
    """Measure the node check and the detection of hangs. The scale sets the numbers of clusters and steps."""
    title = "health: who is found and who is blamed before a step, and in one that never ends"
    return combine(title, _nodes(scale.pick(400, 40, 2)), measure(scale))


def _nodes(times: int) -> Outcome:
    """Check `times` simulated clusters in each scene with both rules. Return tables and targets."""
    found = [_judge_clusters(scene, times) for scene in SCENES]
    issue = found[0]
    a_suspect = max(len(each.extra) / len(each.suspects) for each in issue.trials)
    blamed = sum(count_innocents(each.ours, each.trials) for each in found)
    idle = sum(len(trials.idle_groups(trial)) for each in found for trial in each.trials)
    rounds = max(len(each.rounds) for each in issue.trials)
    return Outcome(
        "nodes",
        [each.table() for each in found],
        [
            Target("1,024 nodes: exact verdicts, share", issue.count_exact(issue.ours) / len(issue.ours), ">=", 1.0),
            Target("innocent nodes blamed, all scenes", blamed, "<=", 0),
            Target("1,024 nodes: rounds, at most 1 + log2", rounds, "<=", 1 + _LOG2),
            Target("1,024 nodes: extra groups for each suspect, at most log2", a_suspect, "<=", _LOG2),
            Target("extra groups without a suspect, all scenes", idle, "<=", 0),
        ],
        [
            "Simulated: no probe runs here. Healthy times differ by a tenth, slow ones are three times as long.",
            "DLRover's rule is written from its facts; it does not look for links, and adds a node's two times up.",
        ],
        more={"1,024 nodes: ms of our decisions": max(each.decided_s for each in issue.trials) * 1e3},
    )


def _judge_clusters(scene: Scene, clusters: int) -> NodeCheckResults:
    verdicts = [trials.judge_with_both_rules(scene.draw_cluster(seed)) for seed in range(clusters)]
    return NodeCheckResults(
        scene,
        verdicts,
        [trials.our_findings(each) for each in verdicts],
        [trials.their_findings(each) for each in verdicts],
    )
