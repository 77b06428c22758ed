"""Room above a gang's minimum, and room for members that nobody has created: neither stands in anybody's way."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import world
from tests.kit.hypothesis_examples import scaled
from tests.kit.lines_run import lines_run
from tests.kit.world import REQUIRED, World, leaves
from tests.scheduler_ext.planner.test_plans import overdrawn
from turnout.kube import labels
from turnout.scheduler_ext.cluster.view import MAX_PATIENCE_S, PATIENCE_S
from turnout.scheduler_ext.planner.order import hosted_members, order_seats, position_of

ALL = 999_999


def greedy(gpus=1, minimum=1, at="a0", total=ALL, size=2):
    """A gang that says it will have nearly a million members, one of them bound."""
    return world.koordinator("greedy", size, minimum=minimum, gpus=gpus, total=total, at=[at] if at else [], created=9)


@pytest.mark.parametrize(("gpus", "minimum"), [
    pytest.param(1, 1, id="of GPUs"),
    pytest.param(0, 1, id="of CPUs alone"),
    pytest.param(1, None, id="with a min of its own size that no cluster holds"),
    pytest.param(1, 999_999, id="with a min as large as its total"),
])  # fmt: skip
def test_a_gang_announcing_a_million_members_takes_no_room_from_others(gpus, minimum):
    w, old = World(4, 4), world.volcano("old", 7, priority=1000)
    w.put(*greedy(gpus, minimum), *old)
    assert len(w.schedule(*old)) == 7


def test_nor_from_one_that_comes_later_and_matters_less():
    w, late, pods = World(4, 4), world.volcano("late", 7, created=20), greedy()
    w.put(*pods)
    w.fit(pods[1])
    assert len(w.schedule(*late)) == 7


def test_nor_from_a_pod_by_itself():
    w, lone, pods = World(1, 1), world.pod("lone", 8, created=20), greedy(at="")
    w.put(*pods)
    assert w.fit(pods[0]).nodes == ("a0",)
    w.put(lone)
    assert w.fit(lone).nodes == ("b0",)


@pytest.mark.parametrize("priority", [0, 1])
def test_a_started_gang_goes_before_others_only_up_to_its_min(priority):
    w = World(4)
    started = world.koordinator("started", 4, minimum=2, at=["a0"], created=1)
    other = world.volcano("other", 2, created=2, priority=priority)
    w.put(*started, *other)
    assert len(w.plan(started[1])) == 1
    assert len(w.schedule(*other)) == 2
    assert len(w.schedule(*started[1:])) == 1


def test_members_above_the_min_take_what_nobody_needs_for_a_min():
    w = World(4)
    grown = world.koordinator("grown", 4, minimum=1, created=1)
    other = world.volcano("other", 2, created=2)
    w.put(*grown)
    assert len(w.plan(grown[0])) == 4
    w.put(*other)
    node_by_pod = w.schedule(*grown, *other)
    assert sorted(name.partition("-")[0] for name in node_by_pod) == ["grown", "grown", "other", "other"]


def test_what_another_needs_is_left_to_it_and_nobody_is_displaced():
    """Eight GPUs: four are the other's min, two are ours, and of what we want above it one of three finds room."""
    w, other = World(1), world.volcano("other", 1, gpus=4, created=2)
    w.put(*other).plan(other[0])
    grown = world.koordinator("grown", 4, minimum=1, gpus=2, created=1)
    w.put(*grown)
    assert (w.plan(grown[0]), w.plan(other[0])) == ({"grown-0": "a0", "grown-1": "a0"}, {"other-0": "a0"})
    assert w.plans.displaced == 0


def test_a_gang_like_one_that_was_placed_in_part_gets_its_min():
    w = World(4)
    one, other = (
        world.koordinator(name, 5, minimum=2, created=at) for at, name in enumerate(("one", "other"), start=1)
    )
    w.put(*one, *other)
    assert (len(w.plan(one[0])), len(w.plan(other[0]))) == (2, 2)


def test_a_gang_of_as_many_workers_that_needs_fewer_is_looked_at_by_itself():
    """Masters without a GPU count towards the min: one gang needs both workers, the other none."""
    w = World(1).put_group("both", 3, created=1).put_group("none", 2, created=2)
    both = [world.volcano("both", 1, gpus=0)[0], *world.volcano("both", 3)[1:]]
    without_min = [*world.volcano("none", 2, gpus=0), *world.volcano("none", 4)[2:]]
    w.put(*both, *without_min)
    assert (w.plan(both[1]), w.plan(without_min[2])) == ({}, {"none-2": "a0"})


def test_a_more_important_gang_keeps_what_it_has_above_its_min():
    w = World(4)
    grown, other = world.koordinator("grown", 4, minimum=1, priority=5), world.volcano("other", 2)
    w.put(*grown, *other)
    assert len(w.schedule(*grown)) == 4


def test_seats_above_the_min_give_way_without_moving_anybody():
    """A plain Job says how many pods it will have and needs none of them; those that exist keep their places."""
    w = World(4, 4)
    w.view.groups.put_owner("Job", world.owner("Job", "job", completions=4, parallelism=4))
    pods = [
        world.pod(f"job-{i}", 8, marks={labels.JOB_INDEX: str(i)}, owner="Job/job", uid=f"u{i}", created=1)
        for i in range(4)
    ]
    w.put(*pods[:2])
    planned = w.plan(pods[0])
    assert planned == {"job-0": "a0", "job-1": "a1"}
    wide = world.volcano("wide", 6, created=2)
    w.put(*wide)
    assert len(w.schedule(*wide)) == 6
    assert w.plan(pods[0]) == planned


def test_a_gang_prefers_room_that_no_other_hopes_for():
    w = World(4, 4)
    w.view.groups.put_owner("Job", world.owner("Job", "job", completions=4, parallelism=4))
    first = world.pod("job-0", 8, marks={labels.JOB_INDEX: "0"}, owner="Job/job", created=1)
    w.put(first)
    w.plan(first)
    other = world.volcano("other", 3, created=2)
    w.put(*other)
    assert leaves(w.schedule(*other)) == {"b"}


@pytest.mark.parametrize("order", [pytest.param(order, id=str(order)) for order in permutations(range(4))])
def test_groups_whose_pods_are_bound_one_by_one_leave_each_others_leaves(order):
    w, node_by_pod = World(3, 3, 3), {}
    for at in order:
        group, worker = divmod(at, 2)
        marks = {labels.LWS_NAME: "s", labels.LWS_GROUP: str(group), labels.LWS_WORKER: str(worker)}
        pod = world.pod(f"g-{at}", 8, marks=marks, notes={labels.LWS_SIZE: "2"}, uid=f"u{at}")
        node_by_pod |= w.put(pod).schedule(pod)
    assert [len(leaves({at: node_by_pod[f"g-{at}"] for at in group})) for group in ((0, 1), (2, 3))] == [1, 1]


def test_a_pod_by_itself_prefers_room_that_no_other_hopes_for():
    w = World(1, 1, 1)
    w.view.groups.put_owner("Job", world.owner("Job", "job", completions=2, parallelism=2))
    first = world.pod("job-0", 8, marks={labels.JOB_INDEX: "0"}, owner="Job/job", created=1)
    w.put(first)
    assert (w.plan(first), len(w.plans.plan_of(w.member(first).membership.key, w.now_s).open_seats)) == (
        {"job-0": "a0"},
        1,
    )
    assert w.schedule(world.pod("lone", 8, created=2)) == {"lone": "c0"}


def test_members_to_come_are_counted_once_with_the_heaviest_shape():
    w, (large, small) = (
        World(4).put_group("bert", 4),
        (world.volcano("bert", 1)[0], world.volcano("bert", 2, gpus=2)[1]),
    )
    w.put(large, small)
    assert len(w.plan(large)) == 2
    spare = w.plans.plan_of(w.member(large).membership.key, w.now_s).open_seats
    assert [seat.shape.gpus() for seat in spare] == [8, 8]


class TestWork:
    """Lines of Python that a question runs, beside such a tenant and without it."""

    def steps_of(self, *tenants):
        w, old = World(*[40] * 25), world.volcano("old", 8, priority=1000)
        w.put(*tenants, *old)
        for each in (*tenants, old[0]):
            if not each.spec.node_name:
                w.fit(each, w.names)
        names = w.names

        def ask():
            for each in (*tenants[1:], *old[1:4]):
                w.fit(each, names)

        return lines_run(ask)

    @pytest.mark.parametrize("tenants", [
        pytest.param(greedy(), id="of GPUs"),
        pytest.param(greedy(gpus=0), id="of CPUs alone"),
        pytest.param(greedy(minimum=None), id="with a min that no cluster holds"),
        pytest.param(greedy(total=7_000), id="with a total that the cluster holds"),
        pytest.param(greedy(total=None, minimum=7_000), id="with a min that the cluster holds"),
    ])  # fmt: skip
    def test_a_question_at_1000_nodes_costs_about_the_same_without_such_a_gang(self, tenants):
        assert self.steps_of(*tenants) < 4 * self.steps_of(*world.koordinator("honest", 2, gpus=1, at=["a0"]))


class TestPatience:
    def waiting_for(self, w, name):
        return {key.name: w.view.awaited_members.missing_pods(gang) for key, gang in w.view.gangs.items()}[name]

    def test_room_is_kept_for_members_to_come_while_none_of_the_others_waits(self):
        w, eight = World(8, 8), world.volcano("eight", 8, notes=REQUIRED, created=1)
        six = world.volcano("six", 6, created=2)
        w.put_group("eight", 8).put(*eight[:2])
        node_by_pod = w.schedule(*eight[:2])
        assert leaves(w.schedule(*six)) == {"b"}
        node_by_pod |= w.schedule(*eight[2:])
        assert len(node_by_pod) == 8
        assert leaves(node_by_pod) == {"a"}

    def test_it_is_not_kept_once_nobody_has_come_for_a_while(self):
        w, eight = World(8, 8), world.volcano("eight", 8, notes=REQUIRED, created=1)
        w.put_group("eight", 8).schedule(*eight[:2])
        w.now_s += PATIENCE_S + 1
        assert len(w.schedule(*world.volcano("wide", 14, created=2))) == 14

    def test_nor_for_more_than_the_min(self):
        w, pods = World(8, 8), world.koordinator("bert", 2, minimum=4, total=16, created=1)
        w.put(*pods).schedule(*pods)
        assert len(w.schedule(*world.volcano("wide", 12, created=2))) == 12
        assert len(w.schedule(*world.volcano("late", 1, created=3))) == 0

    def test_a_gang_that_was_whole_keeps_nothing_for_those_that_end(self):
        w, pods = World(2), world.volcano("bert", 2, created=1)
        w.put_group("bert", 2).schedule(*pods)
        w.view.drop_pod(pods[0].metadata.uid)
        assert len(w.schedule(*world.volcano("next", 1, created=2))) == 1

    def test_members_that_trickle_in_for_ever_do_not_keep_room_for_ever(self):
        w, pods = World(8, 8), world.koordinator("bert", 16, minimum=16, gpus=1, created=1)
        for each in pods[:12]:
            w.put(each)
            w.view.settle(w.now_s)
            w.now_s += PATIENCE_S - 1
        w.view.settle(w.now_s)
        assert 12 * (PATIENCE_S - 1) > MAX_PATIENCE_S
        assert self.waiting_for(w, "bert") == 0

    def test_a_pod_that_says_another_gang_now_is_nobody_new(self):
        w, pods = World(8), world.koordinator("bert", 2, minimum=8, gpus=1, at=["a0"])
        w.put(*pods)
        w.view.settle(w.now_s)
        w.now_s += PATIENCE_S + 1
        renamed = world.koordinator("ernie", 2, minimum=8, gpus=1)
        for old, new in zip(pods, renamed, strict=True):
            new.metadata.uid, new.spec.node_name = old.metadata.uid, old.spec.node_name
        w.put(*renamed)
        w.view.settle(w.now_s)
        assert self.waiting_for(w, "ernie") == 0


@st.composite
def elastic_scenes(draw):
    """(leaves, pods): gangs with a min, some members above it, some still to come; some members bound."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    names = World(*sizes).names
    left = dict.fromkeys(names, 8)
    pods = []
    for at in range(draw(st.integers(1, 5))):
        gpus, size = draw(st.sampled_from([1, 4, 8])), draw(st.integers(1, 6))
        minimum, total = draw(st.integers(1, size + 2)), draw(st.sampled_from([None, size, size + 3, 40]))
        bound = []
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            room = [name for name in names if left[name] >= gpus]
            if room and len(bound) < size:
                bound.append(draw(st.sampled_from(room)))
                left[bound[-1]] -= gpus
        notes = REQUIRED if draw(st.integers(0, 3)) == 0 else {}
        more = {"priority": draw(st.integers(0, 2)), "created": draw(st.integers(0, 50)), "notes": notes}
        pods += world.koordinator(f"g{at}", size, minimum=minimum, gpus=gpus, total=total, at=bound, **more)
    return sizes, pods


@settings(max_examples=scaled(100), deadline=None)
@given(elastic_scenes(), st.data())
def test_whatever_gangs_want_above_their_min_no_plan_overdraws_a_node(scene, data):
    sizes, pods = scene
    w = World(*sizes)
    for each in pods:
        w.put(each)
        if not each.spec.node_name and data.draw(st.integers(0, 2)) == 0:
            nodes = w.fit(each).nodes
            assert w.fit(each).nodes == nodes
            if nodes and data.draw(st.booleans()):
                w.bind(each, nodes[0])
        if data.draw(st.integers(0, 6)) == 0:
            w.now_s += 11
    assert not overdrawn(w)
    w.schedule(*(each for each in pods if w.member(each).is_waiting))
    assert not overdrawn(w)


@settings(max_examples=scaled(100), deadline=None)
@given(elastic_scenes(), st.randoms(use_true_random=False))
def test_two_fresh_extenders_that_saw_the_same_in_any_order_plan_alike(scene, dice):
    sizes, pods = scene
    one, other = World(*sizes).put(*pods), World(*sizes).put(*dice.sample(pods, len(pods)))
    assert {p.key: p for p in one.plans.plan_all(one.now_s)} == {p.key: p for p in other.plans.plan_all(other.now_s)}


@settings(max_examples=scaled(100), deadline=None)
@given(elastic_scenes())
def test_no_gang_is_refused_for_what_others_have_above_their_min(scene):
    """A pod that comes last among equals finds a node wherever nothing but such seats is in the way."""
    sizes, pods = scene
    for each in pods:
        each.spec.priority = 0
    w = World(*sizes).put(*pods)
    free = dict.fromkeys(w.names, 8)
    for charge in w.view.snapshot.charges.values():
        free[charge.node] -= charge.shape.gpus()
    for plan in w.plans.plan_all(w.now_s):
        gang = w.view.gangs[plan.key]
        at = position_of(w.view, gang)
        for claim in order_seats(gang, plan, at, hosted_members(w.view, gang))[: at.needed_pods]:
            free[w.view.fabric.hosts[claim.host]] -= claim.shape.gpus()
    late = world.pod("late", 8, created=59, notes={labels.VOLCANO_GROUP: "late"})
    assert bool(w.put(late).fit(late).nodes) == (max(free.values()) == 8)
