"""Among hosts and switches that hold equally many pods, the pods take those with least free, counted in resources."""

import pytest

from tests.kit import cluster, world
from tests.kit.world import World, leaves
from tests.scheduler_ext.planner.test_preferences import labelled, prefers

FULL = 8  # GPUs of a node


def busy(w, free):
    """Bind pods so that nodes have so many GPUs free. free: {node: GPUs}; nodes that are not named stay empty."""
    return w.put(*(world.pod(f"on-{name}", FULL - gpus, at=name) for name, gpus in free.items() if gpus < FULL))


def used(w, pods):
    return set(w.put(*pods).plan(pods[0]).values())


@pytest.mark.parametrize(("free", "gpus", "node"), [
    pytest.param({"a0": 7, "a1": 4}, 4, "a1", id="4 GPUs go to the node with 4 free"),
    pytest.param({"a0": 7, "a1": 5, "b0": 4}, 4, "b0", id="whatever the leaf"),
    pytest.param({"a0": 7, "a1": 6, "b0": 5, "b1": 7}, 4, "b0", id="the least free where nothing fits exactly"),
    pytest.param({"a0": 3, "a1": 5, "b0": 5}, 4, "a1", id="of equal nodes the first"),
    pytest.param({"a0": 7, "a1": 6, "b0": 7, "b1": 7}, 5, "a1", id="5 GPUs beside a hole for none"),
    pytest.param({"a0": 8, "a1": 7, "b0": 8, "b1": 8}, 3, "a1", id="3 GPUs leave whole nodes whole"),
])  # fmt: skip
def test_one_pod_takes_the_tightest_hole(free, gpus, node):
    w = busy(World(2, 2), {"b0": 0, "b1": 0, **free})
    single = world.pod("single", gpus)
    assert w.put(single).fit(single).nodes == (node,)


@pytest.mark.parametrize(("free", "size", "gpus", "nodes"), [
    pytest.param({"a0": 7, "a1": 7, "a2": 0, "b0": 4, "b1": 4, "b2": 0}, 2, 4, {"b0", "b1"}, id="a leaf that fits"),
    pytest.param({"a0": 7, "a1": 4, "a2": 4, "b0": 0, "b1": 0, "b2": 0}, 2, 4, {"a1", "a2"}, id="hosts of a leaf"),
    pytest.param({"a0": 7, "a1": 7, "a2": 3, "b0": 5, "b1": 6, "b2": 0}, 2, 5, {"b0", "b1"}, id="a hole for no pod "
                 "does not count"),
    pytest.param({"a0": 7, "a1": 7, "a2": 7, "b0": 5, "b1": 4, "b2": 4}, 4, 4, {"b0", "b1", "b2", "a0"}, id="of two "
                 "leaves the tighter is filled"),
    pytest.param({"a0": 3, "a1": 3, "a2": 3, "b0": 8, "b1": 5, "b2": 0}, 3, 3, {"b0", "b1"}, id="fewest hosts before "
                 "the tightest holes"),
])  # fmt: skip
def test_a_gang_takes_the_tightest_holes_of_equal_room(free, size, gpus, nodes):
    pods = [world.see(each) for each in cluster.volcano_gang("bert", size, gpus)]
    assert used(busy(World(3, 3), free), pods) == nodes


def with_request(name, at, cpu="1", memory="1Gi", gpus=4):
    one_pod = cluster.make_pod(name, gpus)
    one_pod["spec"]["containers"][0]["resources"]["requests"].update({"cpu": cpu, "memory": memory})
    one_pod["spec"]["containers"][0]["resources"]["limits"].update({"cpu": cpu, "memory": memory})
    return world.see(one_pod, at)


@pytest.mark.parametrize(("pods", "node"), [
    pytest.param({"a0": {}, "a1": {"cpu": "20"}}, "a1", id="CPU, where the GPUs are equal"),
    pytest.param({"a0": {"memory": "8Gi"}, "a1": {}}, "a0", id="memory, where the GPUs are equal"),
    pytest.param({"a0": {"cpu": "20", "gpus": 2}, "a1": {}}, "a1", id="GPUs before CPU"),
])  # fmt: skip
def test_other_resources_decide_where_the_accelerators_are_equal(pods, node):
    w = World(2)
    w.put(*(with_request(f"on-{name}", name, **wants) for name, wants in pods.items()))
    single = world.pod("single", 4)
    assert w.put(single).fit(single).nodes == (node,)


def test_a_pod_without_accelerators_leaves_the_free_ones_alone():
    w = busy(World(3), {"a0": 8, "a1": 3, "a2": 6})
    pods = [world.see(each) for each in cluster.volcano_gang("cpu", 1, 0)]
    assert used(w, pods) == {"a1"}


def test_room_that_a_waiting_gang_has_reserved_is_not_free():
    w = busy(World(2, 2), {"a0": 8, "a1": 8, "b0": 0, "b1": 0})
    first = [world.see(each) for each in cluster.volcano_gang("first", 1, 3)]
    second = [world.see(each, created=1) for each in cluster.volcano_gang("second", 1, 5)]
    assert used(w, first) == {"a0"}
    assert used(w, second) == {"a0"}


def test_members_placed_before_in_the_same_plan_count_as_use():
    w = busy(World(2), {"a0": 8, "a1": 8})
    pods = [world.see(each) for each in [*cluster.volcano_gang("mix", 1, 5), *cluster.volcano_gang("mix", 1, 3)]]
    pods[1].metadata.name, pods[1].metadata.uid = "small", "uid-small"
    assert len(used(w, pods)) == 1


def test_what_the_pods_prefer_comes_before_the_tightest_hole_of_equal_room():
    w = labelled(busy(World(3), {"a0": 4, "a1": 7}), {"a1": "x"})
    pods = [world.see(each) for each in cluster.volcano_gang("bert", 1, 4, **prefers("pool", "x"))]
    assert used(w, pods) == {"a1"}


def test_a_member_that_comes_back_takes_the_tightest_hole_of_its_leaf():
    w = busy(World(3, 3), {"a0": 8, "a1": 7, "a2": 4})
    pods = [world.see(each) for each in cluster.volcano_gang("bert", 2, 4)]
    w.put(pods[0])
    w.bind(pods[0], "a0")
    w.put(world.pod("more", 4, at="a0"))
    assert used(w, pods[1:]) == {"a2"}


def test_equal_worlds_give_equal_plans():
    plans = []
    for _ in range(2):
        w = busy(World(3, 3), {"a0": 7, "a1": 4, "b0": 4, "b1": 7})
        pods = [world.see(each) for each in cluster.volcano_gang("bert", 3, 4)]
        plans.append(w.put(*pods).plan(pods[0]))
    assert plans[0] == plans[1]
    assert leaves(plans[0])
