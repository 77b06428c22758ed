"""`turnout explain`: where a gang that came now would land, by the extender's planner and the autoscaler's decision."""

import pytest

from tests.autoscaler.world import POLICY
from tests.kit import cluster
from tests.kit.world import node, pod, see
from turnout.cli.verb_support.autoscaler_view import AutoscalerView
from turnout.cli.views.explain import BadGang, explain, gang_of, listing, ranges
from turnout.cli.views.listing import text
from turnout.kube.labels import GPU_RESOURCES
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.topology.map_update import draft_map

NOW_S = 1_767_312_000.0  # a day after the pods of the world were made
LINES = "asw-1 psw-1 10.0.0.1\nasw-1 psw-1 10.0.0.2\nasw-2 psw-1 10.0.0.3\nasw-2 psw-1 10.0.0.4\nasw-3 psw-2 10.0.0.5\n"


def explanation(request, pods=(), lines=LINES, closed=(), **more):
    """The answer on five nodes of 8 GPUs under three leaves, some pods on them."""
    nodes = [
        node(f"n{at}", ip=f"10.0.0.{at}", spec={"unschedulable": True} if f"n{at}" in closed else {})
        for at in range(1, 6)
    ]
    view, autoscaler_view = ClusterView(GPU_RESOURCES), AutoscalerView(GPU_RESOURCES)
    fabric = draft_map({"topology_config": lines}).fabric
    view.layout.set_map(fabric)
    autoscaler_view.nodes.use_map(fabric)
    for each in nodes:
        view.layout.put_node(each)
        autoscaler_view.put_node(each)
    for each in pods:
        view.put_pod(each)
        autoscaler_view.put_pod(each)
    gang = gang_of(request, "default", "nvidia.com/gpu", **more)
    return explain(gang, view, nodes, "there is no map", autoscaler_view, POLICY, GPU_RESOURCES, NOW_S)


def filled(*names, gpus=8):
    return [pod(f"on-{name}", gpus, at=name) for name in names]


@pytest.mark.parametrize(
    ("gang", "pods", "nodes", "says"),
    [
        pytest.param("1x8", [], 1, "1x8 GPUs would land on one node, n5.", id="one pod, where it fits tightest"),
        pytest.param("2x8", [], 2, "under switch psw-1/asw-1 (tier 1).", id="two pods under one leaf"),
        pytest.param("2x8", filled("n1"), 2, "under switch psw-1/asw-2 (tier 1).", id="the leaf that has room"),
        pytest.param("4x8", [], 4, "under switch psw-1 (tier 2).", id="four pods under a spine"),
        pytest.param("5x8", [], 5, "under the top of the map (tier 3).", id="five pods over the whole map"),
        pytest.param("4x4", [], 2, "under switch psw-1/asw-1 (tier 1).", id="two pods on a node"),
    ],
)
def test_a_gang_lands_under_the_lowest_switch_that_holds_it(gang, pods, nodes, says):
    found = explanation(gang, pods)
    assert found.fits
    assert len(found.landings) == nodes
    assert found.why[0].endswith(says)
    assert sum(each.pods for each in found.landings) == int(gang.split("x")[0])


def test_each_node_tells_its_switch_its_ranks_and_what_was_free():
    first, second = explanation("6x2", filled("n1", "n3", "n5", gpus=4)).landings
    assert (first.node, first.switch, first.ranks, first.gpus, first.free_gpus) == (
        "n2",
        "psw-1/asw-1",
        (0, 1, 2, 3),
        8,
        8,
    )
    assert (second.node, second.ranks, second.free_gpus) == ("n1", (4, 5), 4)


def test_the_tiers_below_say_why_it_is_not_there():
    why = explanation("2x8", filled("n1", "n3")).why
    assert "No switch of tier 1 holds 2 of its pods: psw-1/asw-1 has room for 1, the most." in why
    assert any(each.startswith("1 of 2 switches of tier 2 holds 2 of its pods") for each in why)


@pytest.mark.parametrize(
    ("gang", "more", "pods", "says"),
    [
        pytest.param("6x8", {}, [], "find no place now: NoRoom", id="more than the cluster has"),
        pytest.param("3x8", {"tier": 1}, [], "find no place now: TierTooNarrow", id="more than a leaf holds"),
        pytest.param("1x8", {}, filled("n1", "n2", "n3", "n4", "n5"), "find no place now: NoRoom", id="a full cluster"),
    ],
)
def test_a_gang_without_a_place_is_told_why(gang, more, pods, says):
    found = explanation(gang, pods, **more)
    assert not found.fits
    assert found.landings == ()
    assert says in found.why[0]
    assert any(each.startswith("Autoscaler: NeedsMore.") for each in found.why)


def test_the_autoscaler_is_quoted_on_a_placed_gang_only_where_it_hinders():
    assert not any(each.startswith("Autoscaler:") for each in explanation("2x8").why)


def test_room_that_waiting_gangs_are_to_get_is_not_offered():
    waiting_pods = [see(each) for each in cluster.koordinator_gang("first", 2)]
    found = explanation("2x8", waiting_pods)
    assert found.why[0].endswith("under switch psw-1/asw-2 (tier 1).")
    assert "Room for 2 pods of gangs that wait already is kept out of it." in found.why


def test_a_more_important_gang_goes_before_those_that_wait():
    waiting_pods = [see(each) for each in cluster.koordinator_gang("first", 4)]
    assert not explanation("4x8", waiting_pods).fits
    assert explanation("4x8", waiting_pods, priority=1000).fits


def test_nodes_that_take_no_such_pod_are_counted():
    found = explanation("2x8", closed=("n1", "n5"))
    assert "2 of 5 nodes take no such pod: 2 cordoned." in found.why
    assert {each.node for each in found.landings} == {"n3", "n4"}


def test_without_a_map_the_scheduler_chooses_alone():
    found = explanation("4x8", lines="")
    assert (found.fits, found.landings) == (True, ())
    assert found.why[:2] == (
        "4x8 GPUs have room now: 5 such pods would fit.",
        "kube-scheduler chooses alone: there is no map.",
    )


@pytest.mark.parametrize(
    ("gang", "more", "says"),
    [
        ("8", {}, "'8' is no gang"),
        ("0x8", {}, "0x8: 1 to 4096 pods"),
        ("4x0", {}, "4x0: 1 to 4096 pods of at least one GPU"),
        ("4x8", {"minimum": 5}, "--min is 5: it must be from 1 to 4"),
        ("4x8", {"tier": 0}, "--tier is 0"),
        ("4x8", {"requests": {"memory": "much"}}, "'much' is no Kubernetes quantity"),
    ],
)
def test_a_gang_that_makes_no_sense_is_refused(gang, more, says):
    with pytest.raises(BadGang) as error:
        explanation(gang, **more)
    assert says in str(error.value)


def test_programs_get_the_verdict_with_the_nodes():
    document = listing(explanation("2x8")).document
    assert document["fits"] is True
    assert [each["node"] for each in document["landings"]] == ["n1", "n2"]
    assert text(listing(explanation("9x8")), "table").startswith("no place\n9x8 GPUs find no place now")


@pytest.mark.parametrize(("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 5, 7, 8), "0-2,5,7-8")])
def test_ranks_are_written_shortly(numbers, text):
    assert ranges(numbers) == text
