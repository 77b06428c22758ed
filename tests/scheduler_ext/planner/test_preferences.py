"""Preferences of a pod about its nodes decide among hosts that are equally good, and nothing else."""

import pytest

from tests.kit import cluster, world
from tests.kit.world import World, leaves
from turnout.kube import labels


def prefers(key, value, weight=10, operator="In"):
    expression = {"key": key, "operator": operator, "values": [value]}
    term = {"weight": weight, "preference": {"matchExpressions": [expression]}}
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}


SOFT = {"taints": [{"key": "pool", "value": "spot", "effect": "PreferNoSchedule"}]}
TOLERATES = {"tolerations": [{"key": "pool", "operator": "Exists"}]}


def labelled(w, marks=None, soft=()):
    """Give some nodes a label ({node: pool}) or a taint of effect PreferNoSchedule."""
    for each in w.nodes:
        name, ip = each.metadata.name, each.status.addresses[0].address
        more = {"labels": {"pool": marks[name]}} if marks and name in marks else {}
        spec = {"spec": SOFT} if name in soft else {}
        w.view.layout.put_node(world.node(name, 8, ip, **more, **spec))
    return w


def gang(size, gpus=8, **spec):
    return [world.see(each) for each in cluster.volcano_gang("bert", size, gpus, **spec)]


@pytest.mark.parametrize(("marks", "size", "gpus", "spec", "hosts"), [
    pytest.param({"a2": "x", "a3": "x"}, 2, 8, prefers("pool", "x"), {"a2", "a3"}, id="hosts of a leaf"),
    pytest.param({"b1": "x"}, 1, 8, prefers("pool", "x"), {"b1"}, id="of one pod, any host as good"),
    pytest.param({"b0": "x", "b1": "x", "b2": "x", "b3": "x"}, 4, 8, prefers("pool", "x"), {"b0", "b1", "b2", "b3"},
                 id="leaves"),
    pytest.param({"a1": "x", "b2": "x"}, 2, 8, prefers("pool", "x"), {"a1", "a0"}, id="not farther away for it"),
    pytest.param({"a0": "x"}, 1, 8, prefers("pool", "x", operator="NotIn"), {"a1"}, id="what it would rather not"),
])  # fmt: skip
def test_soft_node_affinity_decides_among_equal_hosts(marks, size, gpus, spec, hosts):
    w, pods = labelled(World(4, 4), marks), gang(size, gpus, **spec)
    assert set(w.put(*pods).plan(pods[0]).values()) == hosts


def test_a_heavier_preference_comes_before_a_lighter_one():
    w = labelled(World(4), {"a1": "x", "a2": "y"})
    pods = gang(1, **prefers("pool", "x", 10))
    terms = pods[0].spec.affinity.node_affinity.preferred
    terms.append(world.see(gangless(prefers("pool", "y", 60))).spec.affinity.node_affinity.preferred[0])
    assert set(w.put(*pods).plan(pods[0]).values()) == {"a2"}


def gangless(spec):
    return cluster.make_pod("other", 1, notes={labels.VOLCANO_GROUP: "x"}, **spec)


@pytest.mark.parametrize(("spec", "host"), [
    pytest.param({}, "a2", id="a taint that is not tolerated"),
    pytest.param(TOLERATES, "a0", id="one that is"),
])  # fmt: skip
def test_hosts_that_prefer_no_pods_come_last_among_equals(spec, host):
    w, pods = labelled(World(4), soft=("a0", "a1")), gang(1, **spec)
    assert set(w.put(*pods).plan(pods[0]).values()) == {host}


def test_a_tighter_hole_comes_before_a_preference():
    w, pods = labelled(World(4), {"a3": "x"}), gang(1, 4, **prefers("pool", "x"))
    w.put(world.pod("there", 4, at="a1"), *pods)
    assert set(w.plan(pods[0]).values()) == {"a1"}


def test_a_leaf_that_prefers_no_pods_is_left_to_others():
    w, pods = labelled(World(2, 2), soft=("a0", "a1")), gang(2)
    assert leaves(w.put(*pods).plan(pods[0])) == {"b"}


def test_a_node_that_changes_is_looked_at_again():
    w, pods = labelled(World(4), {"a1": "x"}), gang(1, **prefers("pool", "x"))
    w.put(*pods)
    w.plan(pods[0])
    labelled(w, {"a2": "x"})
    (other,) = [world.see(each) for each in cluster.volcano_gang("other", 1, 8, **prefers("pool", "x"))]
    assert set(w.put(other).plan(other).values()) == {"a2"}


def test_a_lone_pod_prefers_as_well():
    w = labelled(World(4), {"a3": "x"})
    lone = world.see(cluster.make_pod("lone", 8, **prefers("pool", "x")))
    assert w.put(lone).fit(lone).nodes == ("a3",)


def test_a_node_that_has_no_row_yet_is_left_out_and_those_after_it_are_not():
    w, pods = labelled(World(2), {"a0": "y", "a1": "x"}), gang(1, **prefers("pool", "x", 7))
    w.put(*pods).view.settle(w.now_s)
    snapshot = w.view.snapshot
    for name in ("a0", "a1"):
        snapshot.drop_node(name)
    for each in (world.node("new", 8, labels={"pool": "x"}), world.node("a1", 8, labels={"pool": "x"})):
        snapshot.put_node(each)
    assert w.view.preferences.of(w.member(pods[0])).tolist() == [0, 7]


def test_pods_that_prefer_nothing_find_all_nodes_alike():
    w, pods = labelled(World(2), {"a1": "x"}), gang(1)
    w.put(*pods).view.settle(w.now_s)
    assert w.view.preferences.of(w.member(pods[0])) is None
    labelled(w, soft=("a0",)).view.settle(w.now_s)
    table = w.view.preferences.of(w.member(pods[0]))
    assert table[0] < table[1] == 0


@pytest.mark.parametrize(
    "min_said", [True, False], ids=["of pods that start together", "of pods that start one by one"]
)
def test_a_gang_that_may_grow_goes_where_it_can(min_said):
    w, more = World(2, 4), {"notes": {labels.MAX_WORKERS: "4"}}
    if min_said:
        pods = world.koordinator("job", 2, **more)
    else:
        w.view.groups.put_owner("Job", world.owner("Job", "job", completions=2, parallelism=2))
        pods = [world.pod(f"job-{at}", 8, marks={labels.JOB_INDEX: str(at)}, owner="Job/job", **more) for at in (0, 1)]
    assert leaves(w.put(*pods).plan(pods[0])) == {"b"}
