"""In a queue of strict order, room that is freed is kept for the oldest gang that waits."""

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World, leaves
from turnout.jobs.wishes import kueue
from turnout.kube import labels
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.plans import Plans
from turnout.topology.model import DistanceRule

QUEUE = {labels.KUEUE_QUEUE: "train"}


def strict(*leaves_, queues=("default/train",)):
    """A world whose extender keeps strict order in some queues, four hosts of leaf a taken by `old`."""
    w = World(*leaves_, rules=Rules(strict_queues=frozenset(queues)))
    w.plans = Plans(w.view, DistanceRule.ALL_TIERS, strict_queues=w.rules.strict_queues)
    return w


def gang(name, size, created, queue="train", **more):
    return world.volcano(name, size, created=created, marks={labels.KUEUE_QUEUE: queue}, **more)


def full(w, *hosts):
    """Fill some hosts with pods that will leave."""
    return w.put(*(world.pod(f"there-{name}", 8, at=name) for name in hosts))


def test_room_in_the_kept_domain_is_refused_to_those_behind():
    w, large, small = strict(4, 4), gang("large", 8, 1), gang("small", 2, 5)
    full(w, "a0", "b0").put(*large, *small)
    assert not w.plan(large[0])
    advice = w.fit(small[0])
    assert not advice.nodes
    assert "room at psw0 is kept for default/large, the oldest that waits in this queue" in advice.refusal.detail


def test_a_refusal_names_the_leaf_that_is_kept():
    w, large, small = strict(4, 2), gang("large", 4, 1, notes=REQUIRED), gang("small", 2, 5)
    full(w, "a0", "b0").put(*large, *small)
    assert not w.plan(large[0])
    assert "room at psw0/asw0 is kept for default/large" in w.fit(small[0]).refusal.detail


def test_a_domain_that_is_not_kept_is_used():
    w, large, small = strict(4, 4, 4), gang("large", 4, 1, notes=REQUIRED), gang("small", 2, 5)
    full(w, "a0", "b0", "b1", "c0", "c1").put(*large, *small)
    assert not w.plan(large[0])
    assert leaves(w.plan(small[0])) == {"b"}


def test_for_one_pod_one_leaf_is_kept():
    w, one, small = strict(1, 1), gang("one", 1, 1), gang("small", 1, 5, gpus=4)
    w.put(*(world.pod(f"half-{name}", 4, at=name) for name in w.names), *one, *small)
    assert not w.plan(one[0])
    assert leaves(w.plan(small[0])) == {"b"}


def test_as_room_is_freed_the_oldest_gets_it():
    w, large, small = strict(4), gang("large", 4, 1), gang("small", 1, 5)
    full(w, "a0", "a1").put(*large, *small)
    assert (w.plan(large[0]), w.plan(small[0])) == ({}, {})
    w.view.drop_pod("uid-there-a0")
    assert (w.plan(large[0]), w.plan(small[0])) == ({}, {})
    w.view.drop_pod("uid-there-a1")
    assert len(w.plan(large[0])) == 4


@pytest.mark.parametrize(("queues", "queue"), [
    pytest.param((), "train", id="no queue is strict"),
    pytest.param(("default/train",), "other", id="the other one waits in another queue"),
    pytest.param(("elsewhere/train",), "train", id="the strict queue is another namespace's"),
])  # fmt: skip
def test_where_order_is_not_strict_the_room_is_used(queues, queue):
    w, large, small = strict(4, queues=queues), gang("large", 4, 1), gang("small", 1, 5, queue)
    full(w, "a0").put(*large, *small)
    w.plan(large[0])
    assert len(w.plan(small[0])) == 1


def test_a_queue_of_the_whole_cluster_is_named_without_a_namespace():
    w, large, small = strict(4, queues=("train",)), gang("large", 4, 1), gang("small", 1, 5)
    full(w, "a0").put(*large, *small)
    w.plan(large[0])
    assert not w.plan(small[0])


def test_nobody_waits_for_a_gang_that_no_domain_can_hold():
    w, large, small = strict(4), gang("large", 5, 1), gang("small", 1, 5)
    full(w, "a0").put(*large, *small)
    w.plan(large[0])
    assert len(w.plan(small[0])) == 1


def test_once_the_oldest_is_gone_its_room_is_used():
    w, large, small = strict(4), gang("large", 4, 1), gang("small", 1, 5)
    full(w, "a0").put(*large, *small)
    assert (w.plan(large[0]), w.plan(small[0])) == ({}, {})
    for pod in large:
        w.view.drop_pod(pod.metadata.uid)
    assert len(w.plan(small[0])) == 1


def test_a_gang_with_a_higher_priority_goes_before_the_oldest():
    w, large, high = strict(4), gang("large", 4, 1), gang("high", 1, 5, priority=10)
    full(w, "a0").put(*large)
    assert not w.plan(large[0])
    w.put(*high)
    assert len(w.plan(high[0])) == 1


def test_a_gang_whose_min_has_its_place_keeps_no_domain_for_the_rest():
    w, elastic = strict(2, 2), world.koordinator("elastic", 4, minimum=2, created=1, marks=QUEUE)
    w.put(*(world.pod(f"half-{name}", 4, at=name) for name in ("b0", "b1")))
    small = gang("small", 1, 5, gpus=4)
    w.put(*elastic, *small)
    assert leaves(w.plan(elastic[0])) == {"a"}
    assert leaves(w.plan(small[0])) == {"b"}


def cordon(w, name):
    """Show that a node takes no more pods."""
    ip = next(each for each in w.nodes if each.metadata.name == name).status.addresses[0].address
    w.view.layout.put_node(world.node(name, 8, ip, spec={"unschedulable": True}))


def shrink(w, name):
    """Show that a node has lost half of its GPUs."""
    ip = next(each for each in w.nodes if each.metadata.name == name).status.addresses[0].address
    w.view.layout.put_node(world.node(name, 4, ip))


def delete(w, name):
    """Show that a node is deleted."""
    w.view.layout.drop_node(name)


@pytest.mark.parametrize("lose", [cordon, shrink, delete])
def test_once_the_kept_domain_is_too_small_another_domain_is_kept(lose):
    w, large, small = strict(4, 4), gang("large", 4, 1, notes=REQUIRED), gang("small", 1, 5)
    full(w, "a0", "b0", "b1").put(*large, *small)
    assert (w.plan(large[0]), w.plan(small[0])) == ({}, {"small-0": "b2"})
    lose(w, "a1")
    for pod in small:
        w.view.drop_pod(pod.metadata.uid)
    later = gang("later", 1, 9)
    w.put(*later)
    assert leaves(w.plan(later[0])) == {"a"}
    w.view.drop_pod("uid-there-b0")
    w.view.drop_pod("uid-there-b1")
    assert leaves(w.plan(large[0])) == {"b"}


def test_a_domain_that_can_no_longer_hold_the_oldest_is_used():
    w, large, small = strict(4, 2), gang("large", 4, 1, notes=REQUIRED), gang("small", 2, 5, notes=REQUIRED)
    full(w, "a0", "b0").put(*large, *small)
    assert (w.plan(large[0]), w.plan(small[0])) == ({}, {})
    delete(w, "a1")
    assert leaves(w.plan(small[0])) == {"a"}


def test_once_a_domain_can_hold_the_oldest_again_it_is_kept_for_the_oldest():
    w, large, middle, small = strict(4), gang("large", 4, 1), gang("middle", 3, 3), gang("small", 1, 5)
    full(w, "a0", "a2").put(*large, *middle, *small)
    assert not w.plan(large[0])
    cordon(w, "a1")
    assert (w.plan(large[0]), w.plan(middle[0])) == ({}, {})
    assert "kept for default/middle" in w.fit(small[0]).refusal.detail
    w.view.layout.put_node(next(each for each in w.nodes if each.metadata.name == "a1"))
    assert not w.plan(large[0])
    assert "kept for default/large" in w.fit(small[0]).refusal.detail


def test_a_level_that_changes_chooses_another_domain():
    w, small = strict(2, 4), gang("small", 2, 9)
    full(w, "a0", "a1", "b0", "b1").put(*gang("large", 3, 1), *small)
    assert not w.plan(small[0])
    w.put(*gang("large", 3, 1, notes=REQUIRED))
    w.view.drop_pod("uid-there-a0")
    w.view.drop_pod("uid-there-a1")
    assert leaves(w.plan(small[0])) == {"a"}


def test_a_whole_zone_is_kept_for_a_gang_that_no_switch_holds():
    """The gang requires one value of a label that spans two spines; the zone with more free room is kept for it."""
    zone = "example.com/zone-key"
    w = strict(2, 2, 2, 2, 2, 2)
    for node, value in zip(w.nodes, "xxxxxxyyyyyy", strict=True):
        ip = node.status.addresses[0].address
        w.view.layout.put_node(world.node(node.metadata.name, 8, ip, labels={zone: value}))
    large, small = gang("large", 6, 1, notes={kueue.REQUIRED: zone}), gang("small", 3, 5)
    full(w, "a0", "d0", "d1").put(*large, *small)
    assert not w.plan(large[0])
    node_by_pod = {node for pod in small for node in w.plan(pod)}
    assert node_by_pod.isdisjoint({"a1", "b0", "b1", "c0", "c1"})
    reservation = w.plans.reservation_against(w.view.gangs[w.member(small[0]).membership.key])
    assert reservation.place_text == f"of 6 hosts with one value of {zone}"
