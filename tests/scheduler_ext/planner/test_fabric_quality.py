"""Numbers about the fabric: leaves above the fewest, the largest gang that fits, hosts off the map."""

import pytest

from tests.kit import world
from tests.kit.world import World
from turnout.kube.labels import GPU_RESOURCES
from turnout.kube.objects import Taint
from turnout.scheduler_ext.planner.fabric_quality import (
    excess_class,
    excess_leaves,
    gangs_by_excess,
    largest_gang_gpus,
    unmapped_hosts,
)


def settled(w):
    w.view.settle(w.now_s)
    return w.view


@pytest.mark.parametrize(("leaves", "gpus", "at", "excess"), [
    pytest.param((4, 4), 8, ["a0", "a1", "a2", "a3"], 0, id="one leaf is the fewest"),
    pytest.param((4, 4), 8, ["a0", "a1", "b0", "b1"], 1, id="two leaves where one would do"),
    pytest.param((4, 4, 4), 8, ["a0", "a1", "b0", "b1", "c0", "c1"], 1, id="three leaves where two would do"),
    pytest.param((2, 2, 2, 2), 8, ["a0", "b0"], 1, id="a small gang on two small leaves"),
    pytest.param((4, 4), 8, ["a0", "a1", "a2", "a3", "b0"], 0, id="two leaves are the fewest for five hosts"),
    pytest.param((1, 3), 4, ["a0", "a0", "b0", "b1"], 1, id="half hosts: the large leaf holds all"),
])  # fmt: skip
def test_leaves_above_the_fewest(leaves, gpus, at, excess):
    w = World(*leaves).put(*world.volcano("bert", len(at), gpus=gpus, at=at))
    assert list(excess_leaves(settled(w)).values()) == [excess]


@pytest.mark.parametrize("w", [
    pytest.param(World(4).put(*world.volcano("bert", 2)), id="no pod is bound"),
    pytest.param(World(4, off_map=1).put(*world.volcano("bert", 2, at=["a0", "x0"])), id="a pod is off the map"),
    pytest.param(World(4).put(*world.volcano("bert", 2, at=["a0", "gone"])), id="a node is deleted"),
    pytest.param(World(4).put(world.pod("single", 8, "a0")), id="a pod without a gang"),
    pytest.param(World(4, mapped=False).put(*world.volcano("bert", 1, at=["a0"])), id="no map"),
])  # fmt: skip
def test_a_gang_without_a_number(w):
    assert excess_leaves(settled(w)) == {}


def test_bound_pods_count_while_others_wait():
    w = World(4, 4).put(*world.volcano("bert", 4, at=["a0", "b0"]))
    assert list(excess_leaves(settled(w)).values()) == [1]


@pytest.mark.parametrize(("leaves", "word"), [(0, "0"), (1, "1"), (2, "2"), (3, "3+"), (40, "3+")])
def test_the_classes_of_excess_leaves(leaves, word):
    assert excess_class(leaves) == word


def test_every_class_has_a_number():
    assert gangs_by_excess([0, 0, 7, 1]) == {"0": 2, "1": 1, "2": 0, "3+": 1}


@pytest.mark.parametrize(("w", "gpus"), [
    pytest.param(World(4, 2), {"1": 32, "2": 48}, id="an empty fabric"),
    pytest.param(World(4, 2).put(world.pod("p", 1, "a0")), {"1": 24, "2": 40}, id="one pod takes a whole host"),
    pytest.param(World(2, 2, 2), {"1": 16, "2": 32, "3": 48}, id="each tier up to the top"),
    pytest.param(World(2, 2, off_map=3), {"1": 16, "2": 32}, id="hosts off the map add nothing, and no tier"),
    pytest.param(World(2, mapped=False), {}, id="no map"),
    pytest.param(World(2).put(*(world.pod(f"p{i}", 8, f"a{i}") for i in range(2))), {"1": 0}, id="all hosts are used"),
])  # fmt: skip
def test_the_largest_gang_of_whole_hosts(w, gpus):
    assert largest_gang_gpus(settled(w), GPU_RESOURCES) == gpus


@pytest.mark.parametrize(("spec", "gpus"), [
    pytest.param({"cordoned": True}, 8, id="a cordoned host"),
    pytest.param({"taints": [{"key": "turnout.dev/faulty", "effect": "NoSchedule"}]}, 8, id="a faulty host"),
    pytest.param({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, 16, id="a host for GPU pods only"),
])  # fmt: skip
def test_hosts_that_admit_no_gang_do_not_count(spec, gpus):
    w = World(2)
    node = world.node("a0", 8, "10.0.0.1")
    node.spec.unschedulable = spec.get("cordoned", False)
    node.spec.taints = [Taint(**each) for each in spec.get("taints", ())]
    w.view.layout.put_node(node)
    assert largest_gang_gpus(settled(w), GPU_RESOURCES) == {"1": gpus}


def test_nodes_with_gpus_that_the_map_does_not_know():
    w = World(2, off_map=2)
    w.view.layout.put_node(world.node("cpu", 0, "10.99.0.9"))
    assert unmapped_hosts(settled(w), GPU_RESOURCES) == 2
    assert unmapped_hosts(settled(World(2)), GPU_RESOURCES) == 0
