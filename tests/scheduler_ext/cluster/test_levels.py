"""Which tier of the map a level means: a number, a label of the nodes, or a word."""

import pytest

from tests.kit import world
from turnout.kube import labels
from turnout.kube.node_capacity import ClusterSnapshot
from turnout.scheduler_ext.cluster.levels import MAX_LEVELS, Levels, tier_of_label

HOSTS = ["a0", "a1", "b0", "b1", "c0", "c1"]


def fabric():
    """Three leaves of two hosts, a and b under one spine, all under one top switch."""
    lines = [["a0", "a1"], ["b0", "b1"]], [["c0", "c1"]]
    text = [f"{name[0]} s{spine} {name}" for spine, leaves in enumerate(lines) for leaf in leaves for name in leaf]
    return world.build(world.read_map({"topology_config": "\n".join(text)}).entries)


def levels(marks, mapped=True):
    """The levels of nodes with these labels, by name."""
    snapshot = ClusterSnapshot()
    for name in HOSTS:
        snapshot.put_node(world.node(name, labels=marks.get(name, {})))
    levels_of_nodes, known = Levels(snapshot), fabric()
    snapshot.set_row_order(known.hosts)
    if mapped:
        levels_of_nodes.use(known)
    return levels_of_nodes, snapshot


@pytest.mark.parametrize(("values", "tier"), [
    pytest.param("x x x x x x", 3, id="one value everywhere"),
    pytest.param("x x x x y y", 2, id="one value under each spine"),
    pytest.param("x x y y z z", 1, id="one value under each leaf"),
    pytest.param("x x x x y z", 0, id="two values under one leaf: no switch is as small"),
    pytest.param("x x - - x x", 3, id="a leaf without a value says nothing about the others"),
    pytest.param("x - x x y y", 2, id="one host without a value makes no domain narrower"),
    pytest.param("x - y y z z", 1, id="one host without a value where each leaf has its own"),
    pytest.param("- - - - - -", None, id="no value at all"),
])  # fmt: skip
def test_the_tier_of_a_label(values, tier):
    by_host = {at: None if value == "-" else value for at, value in enumerate(values.split())}
    assert tier_of_label(fabric(), by_host) == tier


def test_hosts_without_a_node_say_nothing():
    assert tier_of_label(fabric(), {0: "x", 2: "x", 4: "y"}) == 2
    assert tier_of_label(fabric(), {}) is None


@pytest.mark.parametrize(("level", "tier"), [
    pytest.param(2, 2, id="a number"),
    pytest.param(labels.HOSTNAME, 0, id="the host's name"),
    pytest.param("example.com/pod", 2, id="a label of the nodes"),
    pytest.param("example.com/rack", 1, id="a word, where no node has the label"),
    pytest.param("datacenter", 3, id="a word for the top"),
    pytest.param("example.com/what", None, id="what nobody knows"),
])  # fmt: skip
def test_the_tier_of_a_level(level, tier):
    levels_of_nodes, _ = levels({name: {"example.com/pod": "p1" if name[0] == "c" else "p0"} for name in HOSTS})
    assert levels_of_nodes.tier_of(level) == tier
    assert levels_of_nodes.tier_of(level) == tier  # the second time from what is remembered


@pytest.mark.parametrize(("requested", "outside"), [
    pytest.param(["example.com/pod"], ["a1"], id="the node without the label"),
    pytest.param(["example.com/pod", "example.com/row"], ["a1", "b0"], id="without either of two"),
    pytest.param([1, "example.com/rack", labels.HOSTNAME], [], id="a level of the map alone has every host"),
    pytest.param([], [], id="no level"),
])  # fmt: skip
def test_nodes_without_a_label_are_outside_each_of_its_domains(requested, outside):
    lacking = {"example.com/pod": "a1", "example.com/row": "b0"}
    levels_of_nodes, _ = levels(
        {name: {key: "one" for key, without in lacking.items() if without != name} for name in HOSTS}
    )
    marks = levels_of_nodes.rows_outside(requested)
    assert [name for at, name in enumerate(HOSTS) if marks is not None and marks[at]] == outside


def test_without_a_map_only_numbers_and_hosts_are_known():
    levels_of_nodes, _ = levels({}, mapped=False)
    assert [levels_of_nodes.tier_of(level) for level in (1, labels.HOSTNAME, "rack")] == [1, 0, None]


def test_a_word_is_at_most_the_top_of_the_map():
    levels_of_nodes, _ = levels({})
    levels_of_nodes.use(world.fabric([["a0", "a1"]]))
    assert levels_of_nodes.tier_of("datacenter") == world.fabric([["a0", "a1"]]).tiers < 3


def test_a_label_that_nodes_get_later_counts_from_then_on():
    levels_of_nodes, snapshot = levels({})
    assert levels_of_nodes.tier_of("example.com/rack") == 1
    for name in HOSTS:
        snapshot.put_node(world.node(name, labels={"example.com/rack": "one"}))
    assert levels_of_nodes.tier_of("example.com/rack") == 3


def test_another_map_counts_at_once_however_many_levels_are_looked_up():
    levels_of_nodes, _ = levels({name: {"example.com/pod": name[0]} for name in HOSTS})
    assert levels_of_nodes.tier_of("example.com/pod") == 1
    levels_of_nodes.use(world.fabric([HOSTS]))
    assert levels_of_nodes.tier_of("example.com/pod") == 0
    for at in range(2 * MAX_LEVELS):
        assert levels_of_nodes.tier_of(f"example.com/{at}-leaf") == 1
    assert levels_of_nodes.tier_of("example.com/pod") == 0


def test_a_node_that_the_map_does_not_know_makes_no_domain_narrower():
    w = world.World(2, 2, off_map=1)
    for each, value in zip(w.nodes, ["x", "x", "x", "x", "y"], strict=True):
        ip = each.status.addresses[0].address
        w.view.layout.put_node(world.node(each.metadata.name, 8, ip, labels={"example.com/pod": value}))
    w.view.settle(w.now_s)
    assert w.view.levels.tier_of("example.com/pod") == w.view.fabric.tiers


@pytest.mark.parametrize(("values", "tier", "domains"), [
    pytest.param("x x x x y y", None, None, id="each value is one switch"),
    pytest.param("x x y y x x", 3, [0, 0, 1, 1, 0, 0], id="a value under two spines"),
    pytest.param("x y z z z -", 3, [0, 1, 2, 2, 2, -1], id="two values under a leaf, and a node without a value"),
    pytest.param("x x y z w w", 1, [1, 1, 2, 3, 0, 0], id="one leaf is cut, two are whole"),
    pytest.param("u v w x y z", None, None, id="each value is one host"),
])  # fmt: skip
def test_domains_that_only_a_label_knows(values, tier, domains):
    each = dict(zip(HOSTS, values.split(), strict=True))
    levels_of_nodes, _ = levels({name: {"example.com/pod": value} for name, value in each.items() if value != "-"})
    found = levels_of_nodes.label_domains(["example.com/pod", labels.HOSTNAME, 2])
    assert (found and list(found.row_domains)) == domains
    assert (found and found.tiers["example.com/pod"]) == (tier if domains else None)


def test_domains_within_two_labels():
    pods, rows = "xxyyxx", "ababab"
    levels_of_nodes, _ = levels(
        {name: {"example.com/pod": pods[at], "example.com/row": rows[at]} for at, name in enumerate(HOSTS)}
    )
    found = levels_of_nodes.label_domains(["example.com/pod", "example.com/row"])
    assert [found.number_of([0, 4]), found.number_of([0, 1]), found.number_of([0, 2])] == [found.row_domains[0], -1, -1]
    assert len(set(found.row_domains.tolist())) == 4
