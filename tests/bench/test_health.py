"""DLRover's rule as its facts tell it, and that each rule is scored by what is true of a cluster."""

import pytest

from hack.bench.health.dlrover import check_nodes
from hack.bench.health.simulated_nodes import SimulatedNodes
from hack.bench.health.trials import (
    NodeFindings,
    Scene,
    count_innocents,
    judge_with_both_rules,
    our_findings,
    their_findings,
)


def some(*found):
    return frozenset(found)


def pairs(groups):
    return ",".join(sorted("".join(map(str, group)) for group in groups))


# docs/facts/dlrover.md 2.3
@pytest.mark.parametrize(
    ("cluster", "second", "bad"),
    [
        pytest.param(SimulatedNodes(4, failing_networks=some(1)), {"03,12", "02,13"}, [1], id="one of four"),
        pytest.param(SimulatedNodes(5, failing_networks=some(4)), {"04,123", "023,14"}, [4], id="one of five"),
        pytest.param(
            SimulatedNodes(8, failing_networks=some(0, 2, 4)),
            {"03,12,47,56", "03,12,46,57"},
            [0, 1, 2, 3, 4],
            id="1 and 3 are innocent",
        ),
        pytest.param(
            SimulatedNodes(6, failing_networks=some(0, 2, 4)),
            {"05,14,23"},
            [0, 1, 2, 3, 4, 5],
            id="all, for three of them",
        ),
        pytest.param(SimulatedNodes(3, failing_networks=some(1)), set(), [0, 1, 2], id="one of three: everyone"),
        pytest.param(SimulatedNodes(2, failing_networks=some(1)), set(), [0, 1], id="one of two: everyone"),
        pytest.param(SimulatedNodes(4, failing_links=some((0, 1))), {"03,12", "02,13"}, [], id="a link: nothing"),
    ],
)
def test_whom_dlrover_blames(cluster, second, bad):
    found = check_nodes(cluster)
    assert list(found.bad) == bad
    assert {pairs(groups) for groups in found.rounds[1:]} <= second


@pytest.mark.parametrize(
    ("cluster", "slow"),
    [
        pytest.param(SimulatedNodes(6, slow_networks=some(1), compute_s=0.0), [1], id="one with a slow network"),
        pytest.param(
            SimulatedNodes(4, slow_networks=some(1, 3), compute_s=0.0), [], id="half of them raise the median"
        ),
        pytest.param(
            SimulatedNodes(6, slow_networks=some(1), compute_s=20.0), [], id="a slow network beside a long product"
        ),
        pytest.param(SimulatedNodes(6, slow_computations=some(1), collective_s=0.05), [1], id="one that is slow alone"),
    ],
)
def test_whom_dlrover_calls_slow(cluster, slow):
    assert list(check_nodes(cluster).slow) == slow
    assert not check_nodes(cluster).bad


def test_a_floor_without_faults_has_one_round():
    assert check_nodes(SimulatedNodes(7)).rounds == (((0, 1), (2, 3), (4, 5, 6)),)


FLOOR = SimulatedNodes(
    8, failing_networks=some(0), slow_computations=some(2), slow_networks=some(4), failing_links=some((6, 7))
)
EXACT = NodeFindings(some(0), some(2), some(4), some((6, 7)))


@pytest.mark.parametrize(
    ("findings", "wrong", "missed"),
    [
        pytest.param(EXACT, 0, 0, id="all of it"),
        pytest.param(NodeFindings(some(), some(), some()), 0, 4, id="nothing"),
        pytest.param(NodeFindings(some(0, 1), some(2), some(4), some((6, 7))), 1, 0, id="one more"),
        pytest.param(NodeFindings(some(0), some(2), some(4), some((1, 3))), 2, 1, id="another link: both of its ends"),
    ],
)
def test_what_is_said_is_scored_by_what_is_true(findings, wrong, missed):
    assert (findings.count_false_reports(FLOOR), findings.count_missed(FLOOR)) == (wrong, missed)
    assert findings.is_exact(FLOOR) == (findings is EXACT)


def test_a_trial_scores_both():
    trial = judge_with_both_rules(
        Scene("small", 16, failing_networks=2, slow_computations=1, slow_networks=1, failing_links=1).draw_cluster(
            seed=3
        )
    )
    assert our_findings(trial).is_exact(trial.cluster)
    assert count_innocents([our_findings(trial)], [trial]) == 0
    assert their_findings(trial).count_missed(trial.cluster) >= 1, "it does not look for links"
    assert trial.suspects >= {f"n{number}" for number in trial.cluster.failing_networks}
