"""A required level that only a node label knows: no switch of the map has exactly the hosts of one value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import world
from tests.kit.world import World
from turnout.jobs.wishes import kueue
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.answers import broken_rules

ZONE = "example.com/zone-key"  # no word of a tier
NOTES = {kueue.REQUIRED: ZONE}


def zoned(sizes, values, full=()):
    """A world whose nodes have these values of the label, one character a node, "-" for none; some hosts are full."""
    w = World(*sizes)
    for each, value in zip(w.nodes, values, strict=True):
        ip = each.status.addresses[0].address
        marks = {} if value == "-" else {ZONE: value}
        w.view.layout.put_node(world.node(each.metadata.name, 8, ip, labels=marks))
    return w.put(*(world.pod(f"there-{name}", 8, at=name) for name in full))


def gang(size, **more):
    return world.volcano("g", size, notes=NOTES, **more)


def zones(w, node_by_pod):
    """The values of the label on some nodes."""
    by_name = {name: node.metadata.labels.get(ZONE, "-") for name, node in w.view.snapshot.nodes.items()}
    return {by_name[node] for node in node_by_pod.values()}


@pytest.mark.parametrize(("sizes", "values", "full", "size", "nodes"), [
    pytest.param([2] * 6, "xxxxxxxxyyyy", [], 6, 6, id="a zone of two spines, and more pods than a spine holds"),
    pytest.param([2] * 6, "xxxxxxxxyyyy", [], 9, 0, id="more pods than a zone holds"),
    pytest.param([2] * 6, "xxxxxxxxyyyy", ["a0", "b0", "c0", "d0"], 5, 0, id="room in both zones, enough in neither"),
    pytest.param([4], "xxyy", ["a0"], 2, 2, id="two domains under one leaf: the one with room for both"),
    pytest.param([2, 2], "xyyx", ["a0"], 2, 2, id="domains that cross the leaves"),
    pytest.param([2, 2], "-yyx", [], 3, 0, id="a node without the label is in no domain"),
])  # fmt: skip
def test_where_a_gang_goes_that_requires_one_value_of_a_label(sizes, values, full, size, nodes):
    w, pods = zoned(sizes, values, full), gang(size)
    node_by_pod = w.put(*pods).schedule(*pods)
    assert len(node_by_pod) == nodes
    assert len(zones(w, node_by_pod)) == (nodes > 0)


def test_a_switch_in_the_zone_comes_before_the_whole_zone():
    w, pods = zoned([2] * 6, "xxxxxxxxyyyy", ["a0", "e0", "f0"]), gang(3)
    node_by_pod = w.put(*pods).schedule(*pods)
    assert len(node_by_pod) == 3
    assert world.leaves(node_by_pod) <= {"a", "b"} or world.leaves(node_by_pod) <= {"c", "d"}


def test_a_lost_member_returns_in_its_zone_only():
    w, pods = zoned([2] * 6, "xxxxxxxxyyyy", ["d0", "d1"]), gang(6)
    assert len(w.put(*pods).schedule(*pods)) == 6
    w.view.drop_pod(pods[0].metadata.uid)
    w.put(world.pod("later", 8, at=next(name for name in w.names if not w.view.snapshot.pods.on_node(name))))
    (replacement,) = world.volcano("g", 7, notes=NOTES)[6:]
    assert w.put(replacement).schedule(replacement) == {}
    w.view.drop_pod("uid-there-d0")
    assert w.schedule(replacement) == {"g-6": "d0"}


def test_podsets_that_share_a_domain_share_the_zone():
    w = zoned([2] * 6, "xxxxxxxxyyyy", ["f0"])
    notes = {**NOTES, kueue.GROUP: "one"}
    leader, workers = (world.koordinator(name, size, notes=notes) for name, size in (("leader", 3), ("workers", 4)))
    node_by_pod = w.put(*leader, *workers).schedule(*leader, *workers)
    assert len(node_by_pod) == 7
    assert zones(w, node_by_pod) == {"x"}


def test_a_gang_that_keeps_to_its_zone_breaks_no_rule():
    w, pods = zoned([2] * 6, "xxxxxxxxyyyy"), gang(6)
    assert len(w.put(*pods).schedule(*pods)) == 6
    assert broken_rules(w.plans, Rules()) == {}
    outside = gang(7)[6]
    w.put(outside)
    w.bind(outside, "e0")
    assert next(iter(broken_rules(w.plans, Rules()).values()))[1] == 7


def test_a_refusal_names_the_label():
    w, pods = zoned([2] * 6, "xxxxxxxxyyyy"), gang(9)
    w.put(*pods)
    assert f"no domain of {ZONE} holds" in w.fit(pods[0]).refusal.detail


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_a_gang_waits_only_where_no_value_has_room_for_it(sizes, data):
    count = sum(sizes)
    values = "".join(data.draw(st.lists(st.sampled_from("xyz-"), min_size=count, max_size=count)))
    size = data.draw(st.integers(1, count))
    w = zoned(sizes, values)
    full = data.draw(st.sets(st.sampled_from(w.names)))
    pods = gang(size)
    node_by_pod = w.put(*(world.pod(f"there-{name}", 8, at=name) for name in sorted(full)), *pods).schedule(*pods)
    free = [value for name, value in zip(w.names, values, strict=True) if name not in full]
    if set(values) == {"-"}:
        return  # no node has the label: it counts as a leaf
    fits = any(free.count(value) >= size for value in "xyz")
    assert len(node_by_pod) == (size if fits else 0)
    assert len(zones(w, node_by_pod)) <= 1
