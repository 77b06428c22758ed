"""`turnout top`: who holds the GPUs."""

import pytest

from tests.kit.world import node
from turnout.cli.views.listing import text
from turnout.cli.views.top import BY, NodeOffer, PodGpus, closed, listing, offers, rows, summary
from turnout.kube.labels import FAULTY, GPU_RESOURCES

A, B = "VolcanoJob/team-a/bert", "Pod/team-b/lone"
HELD = [
    PodGpus(A, "team-a", "q", "n1", 8),
    PodGpus(A, "team-a", "q", "n2", 8),
    PodGpus(A, "team-a", "q", "", 8),
    PodGpus(B, "team-b", "r", "n2", 1),
]
OFFERS = [NodeOffer("n1", 8), NodeOffer("n2", 9), NodeOffer("n3", 8, "cordoned")]


@pytest.mark.parametrize(
    ("by", "order"),
    [
        pytest.param("job", [(A, 16, 2, 2, 8), (B, 1, 1, 1, 0)], id="by job, who waits beside"),
        pytest.param("queue", [("q", 16, 2, 2, 8), ("r", 1, 1, 1, 0)], id="by queue"),
        pytest.param("namespace", [("team-a", 16, 2, 2, 8), ("team-b", 1, 1, 1, 0)], id="by namespace"),
        pytest.param("node", [("n2", 9, 2, 1, 0), ("n1", 8, 1, 1, 0), ("n3", 0, 0, 0, 0)], id="by node, idle ones too"),
    ],
)
def test_who_holds_most_comes_first(by, order):
    found = rows(by, HELD, OFFERS)
    assert [(row.name, row.gpus, row.pods, row.nodes, row.waiting_gpus) for row in found] == order
    assert found[0].share == round(found[0].gpus / 25, 4)


def test_a_node_tells_what_it_offers_and_what_keeps_new_pods_away():
    *_, last = text(listing("node", rows("node", HELD, OFFERS)), "table").split("\n")
    assert last.split() == ["n3", "0", "8", "0", "cordoned"]


def test_the_sum_says_how_full_the_cluster_is():
    assert (
        summary(HELD, OFFERS) == "17 of 25 GPUs are held (68%), on 3 nodes; 8 GPUs are on nodes that take no new pods"
    )
    assert summary([], []) == "0 of 0 GPUs are held, on 0 nodes"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"spec": {"unschedulable": True}}, "cordoned", id="a cordon"),
        pytest.param({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "not ready", id="it is not ready"),
        pytest.param({"spec": {"taints": [{"key": FAULTY, "effect": "NoSchedule"}]}}, "faulty", id="it is faulty"),
        pytest.param(
            {"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}}, "", id="a taint of GPU nodes"
        ),
    ],
)
def test_what_keeps_new_pods_away_from_a_node(more, why):
    assert closed(node(**more)) == why


def test_nodes_without_gpus_are_not_told_of():
    assert offers([node("n2", gpus=4), node("n1", gpus=0)], GPU_RESOURCES) == [NodeOffer("n2", 4)]


@pytest.mark.parametrize("by", BY)
def test_where_there_is_nobody_it_says_so(by):
    assert text(listing(by, rows(by, [], [])), "table") in ("nobody asks for GPUs here", "no node offers GPUs")
