"""Members that come one by one, each asked about at once, land where they would have landed together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import world
from tests.kit.hypothesis_examples import scaled
from tests.kit.world import REQUIRED, World
from turnout.kube import labels
from turnout.topology.fabric import ring_cost

MANY = settings(max_examples=scaled(100), deadline=None)  # a shared machine may stall for a while


def koordinator(size):
    return world.koordinator("bert", size)


def volcano(size):
    return world.volcano("bert", size)


def job(size):
    return [
        world.pod(f"job-{at}", 8, marks={labels.JOB_INDEX: str(at)}, owner="Job/job", uid=f"u{at}")
        for at in range(size)
    ]


def announced(w, size):
    """Add the PodGroup and the Job that state how large each of these gangs will be, besides its pods."""
    w.put_group("bert", size)
    w.view.groups.put_owner("Job", world.owner("Job", "job", completions=size, parallelism=size))
    return w


@st.composite
def scenes(draw):
    """(leaves, strangers' nodes, size, order of arrival): one gang that fits what strangers leave."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=2, max_size=6))
    names = World(*sizes).names
    busy = draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names) - 2))
    size = draw(st.integers(2, len(names) - len(busy)))
    return sizes, busy, size, draw(st.permutations(range(size)))


def world_of(sizes, busy, size):
    return announced(World(*sizes).put(*(world.pod(f"s{name}", 8, at=name) for name in busy)), size)


@pytest.mark.parametrize("gang", [koordinator, volcano, job])
@MANY
@given(scenes())
def test_in_any_order_of_arrival_members_get_their_places_of_one_plan(gang, scene):
    sizes, busy, size, order = scene
    pods = gang(size)
    at_once = world_of(sizes, busy, size).put(*pods).schedule(*pods)
    w, node_by_pod = world_of(sizes, busy, size), {}
    for at in order:
        node_by_pod |= w.schedule(pods[at])
    assert node_by_pod == at_once
    assert w.plans.replanned == 1


@MANY
@given(scenes(), st.data())
def test_members_that_are_asked_about_later_than_they_come_get_the_same(scene, data):
    sizes, busy, size, order = scene
    pods = volcano(size)
    at_once = world_of(sizes, busy, size).put(*pods).schedule(*pods)
    w, node_by_pod, pods_so_far = world_of(sizes, busy, size), {}, []
    for at in order:
        w.put(pods[at])
        pods_so_far.append(pods[at])
        while pods_so_far and data.draw(st.booleans()):
            node_by_pod |= w.schedule(pods_so_far.pop(data.draw(st.integers(0, len(pods_so_far) - 1))))
    node_by_pod |= w.schedule(*pods_so_far)
    assert node_by_pod == at_once


@MANY
@given(scenes(), st.booleans())
def test_a_masters_ring_is_as_good_whoever_comes_first(scene, master_first):
    """A master's rank is 0, which moves every worker's by one; nobody knows before it comes that there is one."""
    sizes, busy, size, order = scene
    workers = [
        world.pod(f"w-{at}", 8, marks={labels.JOB_INDEX: str(at), labels.TRAINING_TYPE: "worker"}, **of_bert())
        for at in range(size - 1)
    ]
    master = world.pod("m-0", 8, marks={labels.JOB_INDEX: "0", labels.TRAINING_TYPE: "master"}, **of_bert())
    pods = [master, *workers]

    def ring(w, nodes):
        hosts = [w.view.snapshot.row_of[nodes[each.metadata.name]] for each in pods]
        return ring_cost(w.view.fabric, hosts).total

    together = world_of(sizes, busy, size).put(*pods)
    best = ring(together, together.schedule(*pods))
    w, node_by_pod = world_of(sizes, busy, size), {}
    coming = [pods[at] for at in order]
    for each in [master, *coming] if master_first else coming:
        if each.metadata.name not in node_by_pod:
            node_by_pod |= w.schedule(each)
    assert len(node_by_pod) == size
    assert ring(w, node_by_pod) <= best


def of_bert():
    return {"notes": {labels.VOLCANO_GROUP: "bert"}}


@pytest.mark.parametrize("numbers", [
    pytest.param([1, 2, 3, 4, 5, 6], id="counted from one"),
    pytest.param([0, 1, 2, 3, 4, 9], id="one far above the others"),
])  # fmt: skip
def test_numbers_that_are_not_those_expected_still_fill_the_plan(numbers):
    w = World(3, 3, 6).put(*(world.pod(f"s{at}", 8, at=f"c{at}") for at in range(6))).put_group("bert", 6)
    pods = [each for each in world.volcano("bert", 10) if int(each.metadata.name[-1]) in numbers]
    node_by_pod = {}
    for each in reversed(pods):
        node_by_pod |= w.schedule(each)
    hosts = [w.view.snapshot.row_of[node_by_pod[each.metadata.name]] for each in pods]
    assert ring_cost(w.view.fabric, hosts).crossings[0] == 2
    assert w.plans.replanned == 1


@pytest.mark.parametrize(("numbers", "host"), [
    pytest.param([0, 1], "a1", id="its own, while it is free"),
    pytest.param([0, 3, 4, 9], "a1", id="as near to the first member as to the last before it"),
    pytest.param([0, 3, 9], "a1", id="and of seats as near the first"),
    pytest.param([0, 8, 3, 4, 2], "a1", id="between those before and after it"),
    pytest.param([3, 4, 9], "b2", id="beside both"),
    pytest.param([0, 1, 2, 8], "b0", id="what is left, if that is far from both"),
])  # fmt: skip
def test_a_taken_number_gets_the_place_nearest_its_neighbours_in_the_ring(numbers, host):
    """Six seats, 0 to 2 under one leaf and 3 to 5 under the other; numbers go round, so that 9 is 3 again."""
    w, pods = World(3, 3).put_group("bert", 6), world.volcano("bert", 10)
    node_by_pod = {}
    for number in numbers:
        node_by_pod |= w.schedule(pods[number])
    assert node_by_pod[f"bert-{numbers[-1]}"] == host
    assert w.plans.replanned == 1


def test_who_was_refused_is_not_planned_again_for_members_already_placed():
    w, pods, large = World(4).put_group("bert", 3), world.volcano("bert", 3), world.volcano("large", 9, created=9)
    w.put(pods[0], *large)
    assert (len(w.plan(pods[0])), w.plan(large[0]), w.plans.replanned) == (1, {}, 2)
    w.put(pods[1], pods[2])
    assert (len(w.plan(pods[0])), w.plan(large[0]), w.plans.replanned) == (3, {}, 2)


@pytest.mark.parametrize(("role", "index", "host"), [
    pytest.param("ps", 2, "a2", id="between two roles: nearest to its neighbours"),
    pytest.param("worker", 3, "b1", id="of a known role: by its index in it"),
    pytest.param("z", 1, "b0", id="of a role behind all others: behind the last of them"),
    pytest.param("z", 0, "a2", id="of a role behind all others, the first of it"),
])  # fmt: skip
def test_a_role_that_nobody_had_gets_a_seat(role, index, host):
    """Six seats, 0 to 2 under one leaf; the master has 0 and the first worker 1."""
    w, node_by_pod = World(3, 3).put_group("bert", 6), {}
    for name, at in (("master", 0), ("worker", 0), (role, index)):
        marks = {labels.JOB_INDEX: str(at), labels.TRAINING_TYPE: name}
        pod = world.pod(f"{name}-{at}", 8, marks=marks, **of_bert())
        if not node_by_pod:
            w.put(pod, world.pod("worker-0", 8, marks={**marks, labels.TRAINING_TYPE: "worker"}, **of_bert()))
        node_by_pod |= w.schedule(pod)
    assert node_by_pod[f"{role}-{index}"] == host


def test_a_role_before_all_others_gets_the_last_seats():
    w, node_by_pod = World(3, 3).put_group("bert", 6), {}
    for name, at in (("worker", 0), ("worker", 1), ("master", 1), ("master", 0)):
        marks = {labels.JOB_INDEX: str(at), labels.TRAINING_TYPE: name}
        node_by_pod |= w.schedule(world.pod(f"{name}-{at}", 8, marks=marks, **of_bert()))
    assert [node_by_pod[name] for name in ("master-0", "master-1", "worker-0")] == ["b2", "b1", "a0"]


def test_a_member_that_is_made_again_takes_the_seat_of_the_one_before():
    w, pods = World(4, 4).put_group("bert", 4), world.volcano("bert", 4)
    w.put(*pods[:3])
    planned = w.plan(pods[0])
    w.view.drop_pod(pods[1].metadata.uid)
    w.schedule(pods[0])
    replacement = world.volcano("bert", 4)[1]
    replacement.metadata.uid = "again"
    assert w.schedule(replacement, *pods[2:])["bert-1"] == planned["bert-1"]
    assert w.plans.replanned == 1


def test_a_member_of_another_shape_has_the_gang_planned_again():
    w = World(3, 3).put_group("bert", 3)
    small, *_ = world.volcano("bert", 1, gpus=4, notes=REQUIRED)
    _, *large = world.volcano("bert", 3, gpus=8, notes=REQUIRED)
    w.put(large[0])
    assert len(w.plan(large[0])) == 1
    w.put(small)
    assert len(w.plan(large[0])) == 2
    assert w.plans.replanned == 2
