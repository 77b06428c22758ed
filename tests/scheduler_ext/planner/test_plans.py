"""The laws of planning all waiting gangs together."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import world
from tests.kit.hypothesis_examples import scaled
from tests.kit.world import REQUIRED, World, leaves
from turnout.jobs.gang import Dialect
from turnout.kube import labels
from turnout.kube.node_health import TAINT_EFFECT
from turnout.scheduler_ext.cluster.view import PATIENCE_S
from turnout.scheduler_ext.model import EventReason, Rules

LETTERS = "abcd"
MANY = settings(max_examples=scaled(100), deadline=None)  # a shared machine may stall for a while


@st.composite
def scenes(draw):
    """(leaves, pods): gangs and strangers, some bound; every pod fits a node by itself."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    names = [f"{LETTERS[leaf]}{host}" for leaf, size in enumerate(sizes) for host in range(size)]
    left = dict.fromkeys(names, 8)
    pods = []
    for at in range(draw(st.integers(0, 5))):
        gpus = draw(st.sampled_from([1, 3, 4, 8]))
        tier = draw(st.sampled_from(["", "", "1", "2"]))
        notes = {**REQUIRED, labels.TOPOLOGY_TIER: tier} if tier else {}
        size, bound = draw(st.integers(1, 6)), []
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
            room = [name for name in names if left[name] >= gpus]
            if room and len(bound) < size:
                bound.append(draw(st.sampled_from(room)))
                left[bound[-1]] -= gpus
        priority, created = draw(st.integers(0, 2)), draw(st.integers(0, 50))
        pods += world.volcano(f"g{at}", size, gpus, at=bound, notes=notes, priority=priority, created=created)
    for at in range(draw(st.integers(0, 3))):
        gpus, name = draw(st.integers(1, 4)), draw(st.sampled_from(names))
        if left[name] >= gpus:
            left[name] -= gpus
            pods.append(world.pod(f"stranger{at}", gpus, at=name))
    return sizes, pods


def plans(w):
    return {plan.key.name: plan for plan in w.plans.plan_all(w.now_s)}


def overdrawn(w):
    """The nodes on which a plan keeps room that is not there beside the pods."""
    reserved, used = Counter(), Counter()
    for plan in plans(w).values():
        for row, shape in plan.reserved_pods():
            reserved[w.view.fabric.hosts[row]] += shape.gpus()
    for charge in w.view.snapshot.charges.values():
        used[charge.node] += charge.shape.gpus()
    return [name for name in reserved if reserved[name] + used[name] > 8]


@MANY
@given(scenes())
def test_plans_and_pods_never_overdraw_a_node(scene):
    sizes, pods = scene
    assert not overdrawn(World(*sizes).put(*pods))


@MANY
@given(scenes())
def test_a_required_tier_is_never_left(scene):
    sizes, pods = scene
    w = World(*sizes).put(*pods)
    for plan in plans(w).values():
        gang = w.view.gangs[plan.key]
        if gang.tier is not None and plan.hosts:
            tier = min(gang.tier, w.view.fabric.tiers)
            hosts = [w.view.host_of(m) for m in gang.members.values() if w.view.host_of(m) is not None]
            assert len({int(w.view.fabric.switch_of[tier][host]) for host in [*plan.hosts.values(), *hosts]}) == 1


@MANY
@given(scenes())
def test_a_gang_is_planned_whole_or_takes_no_room(scene):
    sizes, pods = scene
    w = World(*sizes).put(*pods)
    for plan in plans(w).values():
        waiting = [m for m in w.view.gangs[plan.key].members.values() if m.is_waiting]
        assert (plan.refusal is None) == (len(plan.hosts) == len(waiting))
        if plan.refusal is not None:
            assert not plan.reserved_pods()


@MANY
@given(scenes(), st.randoms(use_true_random=False))
def test_two_fresh_extenders_that_saw_the_same_in_any_order_answer_alike(scene, dice):
    sizes, pods = scene
    mixed = dice.sample(pods, len(pods))
    one, other = World(*sizes).put(*pods), World(*sizes).put(*mixed)
    for each in mixed:  # one is asked about a few before, in another order
        other.plan(each)
    assert plans(one) == plans(other)


@MANY
@given(scenes(), st.randoms(use_true_random=False))
def test_calls_that_alternate_between_two_replicas_get_one_place(scene, dice):
    """Let each replica plan what it saw. It sees the other's answers only once the pod is bound, a request later."""
    sizes, pods = scene
    replicas = [World(*sizes).put(*pods), World(*sizes).put(*pods)]
    for w in replicas:
        w.plans.plan_all(w.now_s)
    waiting = [p for p in pods if not p.spec.node_name and p.metadata.name in replicas[0].plan(p)]
    planned = {name: node for p in waiting for name, node in replicas[0].plan(p).items()}
    late = None
    for at, each in enumerate(dice.sample(waiting, len(waiting))):
        nodes = replicas[at % 2].fit(each).nodes
        if late:
            for w in replicas:
                w.bind(*late)
        late = (each, nodes[0]) if nodes else None
        assert not nodes or nodes[0] == planned[each.metadata.name]


@MANY
@given(st.integers(4, 8), st.data())
def test_lagging_replicas_put_a_gang_under_the_one_leaf_that_holds_it(size, data):
    """Hide each replica's answers from the other for a while: which members exist, and where they are."""
    pods = world.koordinator("bert", size)
    strangers = [world.pod(f"s{name}", 8, at=name) for name in ("a0", "a1", "c0")]
    replicas = [World(size, size, size).put(*strangers), World(size, size, size).put(*strangers)]
    history, positions, bound = [], [0, 0], {}
    history += [(pods[index], "") for index in data.draw(st.permutations(range(size)))]
    for index in data.draw(st.permutations(range(size))):
        each, at = pods[index], data.draw(st.integers(0, 1))
        w = replicas[at]
        upto = data.draw(st.integers(positions[at], len(history)))
        for bound_pod, node in history[positions[at] : upto]:
            w.bind(bound_pod, node) if node else w.put(bound_pod)
        positions[at] = upto
        if each.metadata.uid not in w.view.pods:
            w.put(each)  # from the request
        offered = [n for n in w.names if n not in ("a0", "a1", "c0") and n not in bound.values()]
        (chosen,) = w.fit(each, offered).nodes
        bound[each.metadata.name] = chosen
        history.append((each, chosen))
    assert leaves(bound) == {"b"}


@MANY
@given(scenes(), st.data())
def test_after_any_changes_plans_are_whole_fit_and_answer_the_same_twice(scene, data):
    sizes, pods = scene
    w = World(*sizes).put(*pods[: len(pods) // 2])
    free = [p for p in pods if not p.spec.node_name]
    for each in pods[len(pods) // 2 :]:
        w.put(each)
        if free and data.draw(st.booleans()):
            pod = data.draw(st.sampled_from(free))
            if pod.metadata.uid in w.view.pods and w.member(pod).is_waiting:
                nodes = w.fit(pod).nodes
                assert w.fit(pod).nodes == nodes
                if nodes and data.draw(st.booleans()):
                    w.bind(pod, nodes[0])
        if data.draw(st.integers(0, 5)) == 0:
            w.view.drop_pod(data.draw(st.sampled_from(pods)).metadata.uid)
        if data.draw(st.integers(0, 5)) == 0:
            w.now_s += 11
    assert not overdrawn(w)
    assert plans(w) == plans(w)


class TestFairness:
    def test_of_two_gangs_of_eight_in_room_for_twelve_one_runs_and_one_waits(self):
        w = World(4, 4, 4)
        first, second = world.volcano("first", 8, created=1), world.volcano("second", 8, created=2)
        mixed = [p for pair in zip(second, first, strict=True) for p in pair]
        node_by_pod = w.put(*mixed).schedule(*mixed)
        assert set(node_by_pod) == {p.metadata.name for p in first}
        assert w.fit(second[0]).refusal.reason is EventReason.NO_ROOM

    def test_a_gang_that_does_not_fit_keeps_no_room_from_a_smaller_one_behind(self):
        w, big, small = World(2, 2), world.volcano("big", 5, created=1), world.volcano("small", 2, created=2)
        w.put(*big, *small)
        assert w.schedule(*big, *small).keys() == {"small-0", "small-1"}

    def test_a_more_important_gang_takes_planned_room_from_unbound_ones(self):
        w, low = World(4), world.volcano("low", 3, created=1, priority=1)
        w.put(*low)
        assert len(w.plan(low[0])) == 3
        high = world.volcano("high", 3, created=2, priority=2)
        w.put(*high)
        assert len(w.schedule(*high)) == 3
        assert w.plan(low[0]) == {}
        assert w.plans.displaced == 1

    def test_a_started_gang_is_finished_before_a_more_important_one_begins(self):
        w, low = World(4), world.volcano("low", 3, priority=1)
        w.put(*low)
        w.schedule(low[0])
        high = world.volcano("high", 3, priority=2)
        assert w.schedule(*high) == {}
        assert len(w.schedule(*low[1:])) == 2

    def test_of_one_second_the_gang_that_was_created_first_keeps_its_plan(self):
        w, first = World(2, 2), world.volcano("zoe", 2, created=5, version="101")
        w.put(*first)
        planned = w.plan(first[0])
        w.put(*world.volcano("abe", 2, created=5, version="102"))  # its UIDs sort before the first's
        assert len(w.plans.plan_all(w.now_s)) == 2
        assert w.plan(first[0]) == planned
        assert w.plans.displaced == 0

    def test_a_displaced_gang_is_planned_elsewhere_where_there_is_room(self):
        w, low, high = World(2, 2), world.volcano("low", 2, priority=1), world.volcano("high", 2, priority=2)
        w.put(*low)
        assert leaves(w.plan(low[0])) == {"a"}
        w.put(*high)
        assert leaves(w.plan(high[0])) == {"a"}
        assert leaves(w.plan(low[0])) == {"b"}

    def test_a_refused_gang_gets_its_chance_when_somebody_leaves(self):
        w, pods = World(2), world.volcano("bert", 2)
        w.put(world.pod("old", 8, at="a0"), *pods)
        assert w.schedule(*pods) == {}
        w.view.drop_pod("uid-old")
        assert len(w.schedule(*pods)) == 2

    def test_a_terminating_pod_keeps_its_room_until_it_is_gone(self):
        w, pods = World(2), world.volcano("bert", 2)
        w.put(world.pod("old", 8, at="a0", leaving=True), *pods)
        assert w.schedule(*pods) == {}


class TestRestart:
    @pytest.mark.parametrize("bound", [1, 4, 7])
    def test_a_restart_in_mid_gang_lands_the_rest_in_the_same_leaf(self, bound):
        sizes, pods = (8, 8), world.volcano("bert", 8)
        node_by_pod = World(*sizes).put(world.pod("x", 8, at="a3"), *pods).schedule(*pods[:bound])
        restarted = World(*sizes).put(world.pod("x", 8, at="a3"))
        for each in pods[:bound]:
            restarted.put(each)
            restarted.bind(each, node_by_pod[each.metadata.name])
        restarted.put(*pods[bound:])
        assert leaves(node_by_pod | restarted.schedule(*pods[bound:])) == {"b"}

    def test_members_that_are_announced_are_waited_for_from_the_restart_on(self):
        w, pods = World(4, 4), world.volcano("bert", 4, created=1)
        w.put_group("bert", 4).put(pods[0])
        assert leaves(w.schedule(pods[0])) == {"a"}
        other = world.volcano("other", 4, created=2)
        assert leaves(w.put(*other).schedule(*other)) == {"b"}


class TestMissingMembers:
    def test_room_is_kept_for_members_to_come_and_given_up_when_they_do_not(self):
        w, pods = World(4), world.volcano("bert", 4, created=1)
        w.put_group("bert", 4).put(*pods[:2])
        w.plan(pods[0])
        lone = world.volcano("other", 2, created=2)
        w.put(*lone)
        assert w.schedule(*lone) == {}
        w.now_s += PATIENCE_S + 1
        assert len(w.schedule(*lone)) == 2

    def test_a_min_beyond_the_pods_is_told_and_then_no_longer_waited_for(self):
        w, pods = World(4), world.volcano("bert", 2)
        w.put_group("bert", 100).put(*pods)
        advice = w.fit(pods[0])
        assert advice.refusal.detail.startswith("100 pods must start together")
        w.now_s += PATIENCE_S + 1
        assert len(w.schedule(*pods)) == 2

    def test_a_min_beyond_the_pods_blocks_nobody_else(self):
        w, pods, other = World(4), world.volcano("bert", 2, created=1), world.volcano("other", 4, created=2)
        w.put_group("bert", 100).put(*pods, *other)
        assert len(w.schedule(*other)) == 4

    def test_members_above_the_min_are_left_over_when_only_some_fit(self):
        w, pods = World(3), world.koordinator("bert", 5, minimum=2)
        w.put(*pods)
        assert len(w.schedule(*pods)) == 3
        assert set(w.fit(pods[4], w.names).no_room) == set(w.names)

    @pytest.mark.parametrize(("members", "hosts"), [
        pytest.param(4, {"a0": 2, "a1": 2}, id="an even number goes two by two"),
        pytest.param(3, {"a0": 1, "a1": 2}, id="an odd one wherever there is room"),
    ])  # fmt: skip
    def test_a_gang_whose_pods_come_in_pairs_on_each_host(self, members, hosts):
        w = World(2, 1, gpus=16).put(world.pod("x", 8 if members % 2 else 0, at="a0"), world.pod("y", 8, at="b0"))
        pods = world.volcano("bert", members, notes={labels.PODS_PER_HOST_MULTIPLE: "2"})
        assert Counter(w.schedule(*pods).values()) == hosts

    def test_the_plain_pods_of_a_job_start_though_another_fits_nowhere(self):
        w = World(2)
        w.view.groups.put_owner("Job", world.owner("Job", "job", completions=2, parallelism=2))
        pods = [
            world.pod(f"job-{at}", gpus, marks={labels.JOB_INDEX: str(at)}, owner="Job/job", uid=f"u{at}")
            for at, gpus in enumerate((16, 8))
        ]
        assert w.schedule(*pods) == {"job-1": "a0"}

    def test_the_plain_pods_of_a_job_start_one_by_one(self):
        w = World(2)
        pods = [
            world.pod(f"job-{i}", 8, marks={labels.JOB_INDEX: str(i)}, owner="Job/job", uid=f"u{i}") for i in range(3)
        ]
        w.view.groups.put_owner("Job", world.owner("Job", "job", completions=3, parallelism=3))
        assert len(w.schedule(*pods)) == 2


class TestPorts:
    def test_two_planned_pods_never_share_a_host_port(self):
        w = World(2)
        pods = world.volcano("one", 1, gpus=1, created=1) + world.volcano("two", 1, gpus=1, created=2)
        for each in pods:
            each.spec.host_network = True
            each.spec.containers[0].ports = [world.port(29500)]
        w.put(*pods)
        assert len({*w.plan(pods[0]).values(), *w.plan(pods[1]).values()}) == 2

    def test_a_port_that_a_stranger_took_moves_the_plan(self):
        w, pods = World(2), world.volcano("one", 1, gpus=1)
        stranger = world.pod("stranger", 0, at="a0")
        for each in (*pods, stranger):
            each.spec.containers[0].ports = [world.port(29500, host=29500)]
        w.put(*pods)
        assert w.plan(pods[0]) == {"one-0": "a0"}
        w.put(stranger)
        assert w.plan(pods[0]) == {"one-0": "a1"}


class TestNodes:
    @pytest.mark.parametrize("change", [
        pytest.param({"spec": {"unschedulable": True}}, id="cordoned"),
        pytest.param({"conditions": [{"type": "Ready", "status": "False"}]}, id="not ready"),
        pytest.param({"taints": [{"key": "k", "effect": "NoSchedule"}]}, id="tainted"),
        pytest.param({"taints": [{"key": labels.FAULTY, "effect": TAINT_EFFECT}]}, id="tainted as faulty"),
        pytest.param({"gpus": 4}, id="half its GPUs gone"),
    ])  # fmt: skip
    def test_a_planned_host_that_fails_moves_the_plan(self, change):
        w, pods = World(2, 2), world.volcano("bert", 2)
        w.put(*pods)
        assert leaves(w.plan(pods[0])) == {"a"}
        w.view.layout.put_node(world.node("a1", **{"gpus": 8, "ip": "10.0.0.2", **change}))
        assert leaves(w.plan(pods[0])) == {"b"}

    def test_a_node_that_is_gone_moves_the_plan(self):
        w, pods = World(2, 2), world.volcano("bert", 2)
        w.put(*pods)
        w.plan(pods[0])
        w.view.layout.drop_node("a1")
        assert leaves(w.plan(pods[0])) == {"b"}

    def test_a_new_map_changes_the_next_plan(self):
        w, pods = World(2, 2), world.volcano("bert", 2)
        w.put(*pods)
        assert leaves(w.plan(pods[0])) == {"a"}
        ips = {n.metadata.name: n.status.addresses[0].address for n in w.nodes}
        for cabled in ([["a0"], ["a1", "b0", "b1"]], [["a0", "a1", "b1"], ["b0"]], [["a0"], ["a1", "b0"], ["b1"]]):
            w.view.layout.set_map(world.fabric([[ips[name] for name in leaf] for leaf in cabled]))
            together = set(w.plan(pods[0]).values())
            assert any(together <= set(leaf) for leaf in cabled)


def test_a_held_gang_that_is_whole_again_is_planned():
    w, pods = World(4, rules=Rules(hold_incomplete=True)), world.koordinator("bert", 4)
    w.put(*pods[:3])
    w.plan(pods[0])
    w.now_s += PATIENCE_S + 1
    assert w.plan(pods[0]) == {}
    assert len(w.put(pods[3]).plan(pods[0])) == 4


def test_a_gang_that_comes_to_require_a_leaf_is_planned_again():
    w = World(1, 1).put(*world.volcano("bert", 2))
    assert leaves(w.plan(world.volcano("bert", 1)[0])) == {"a", "b"}
    w.put(*(pods := world.volcano("bert", 2, notes=REQUIRED)))
    assert w.plan(pods[0]) == {}


@pytest.mark.parametrize("existing_pods", [2, 3])
def test_a_started_gang_has_a_plan_only_while_somebody_is_to_come(existing_pods):
    w, pods = World(4), world.koordinator("bert", existing_pods, minimum=4, at=["a0", "a1", "a2"])
    w.put(*pods)
    assert len(w.plans.plan_of(w.member(pods[0]).membership.key, w.now_s).open_seats) == 4 - existing_pods
    w.now_s += PATIENCE_S + 1
    assert w.plans.plan_of(w.member(pods[0]).membership.key, w.now_s) is None


def test_what_found_no_room_is_not_planned_again_until_room_is_given_back():
    w, pods = World(1).put(world.pod("old", 8, at="a0")), world.volcano("bert", 1)
    w.put(*pods)
    assert (w.plan(pods[0]), w.plans.replanned) == ({}, 1)
    w.put(*world.volcano("bert", 1, notes={"note": "changed"}))
    w.put(*(more := world.volcano("gpt", 1, created=9)))
    assert (w.plan(pods[0]), w.plan(more[0]), w.plans.replanned) == ({}, {}, 1)
    w.view.drop_pod("uid-old")
    assert len(w.plan(pods[0])) == 1


def test_a_pod_by_itself_has_no_plan_and_keeps_no_room():
    w, lone, pods = World(1), world.pod("lone", 8, created=1), world.volcano("bert", 1, created=2)
    w.put(lone, *pods)
    assert w.plans.plan_of(w.member(lone).membership.key, w.now_s) is None
    assert [plan.key.name for plan in w.plans.plan_all(w.now_s)] == ["bert"]
    assert len(w.plan(pods[0])) == 1


def test_a_fresh_gang_may_find_what_a_started_one_cannot_near_its_members():
    w, started = World(1, 1), world.volcano("started", 2, at=["a0"], notes=REQUIRED, created=1)
    fresh = world.volcano("fresh", 1, notes=REQUIRED, created=2)
    w.put(*started, *fresh)
    assert (w.plan(started[1]), w.plan(fresh[0])) == ({}, {"fresh-0": "b0"})


def test_a_podgroup_of_another_dialect_is_nobodys():
    w, pods = World(4), world.volcano("bert", 2)
    w.put_group("bert", 4, dialect=Dialect.PLUGINS).put(*pods)
    assert len(w.plan(pods[0])) == 2


def test_a_stream_of_gangs_never_splits_one_that_fits_a_leaf():
    """64 hosts, gangs of 2 to 8 coming and going: whoever fits one leaf when asked lands in one."""
    dice, w = random.Random(3), World(8, 8, 8, 8)
    running = []
    for at in range(60):
        pods = world.volcano(f"g{at}", dice.randint(2, 8), created=at)
        room = Counter(name[0] for name in w.put(*pods).free(pods[0]))
        node_by_pod = w.schedule(*pods)
        assert len(node_by_pod) in (0, len(pods))
        if max(room.values(), default=0) >= len(pods):
            assert len(leaves(node_by_pod)) == 1
        running.append(pods)
        leavers = pods if not node_by_pod else running[dice.randrange(len(running))] if len(running) > 6 else []
        running = [each for each in running if each is not leavers]
        for each in leavers:
            w.view.drop_pod(each.metadata.uid)
