"""The answers of filter, prioritize and preempt on a pod, given the state of the cache."""

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World, leaves
from turnout.kube import labels
from turnout.scheduler_ext.model import EventReason, Rules, Victims
from turnout.scheduler_ext.planner.answers import answer_preempt


def test_a_gang_lands_under_one_leaf_in_ring_order():
    w = World(4, 4)
    node_by_pod = w.schedule(*world.volcano("bert", 4))
    assert node_by_pod == {f"bert-{i}": f"a{i}" for i in range(4)}


@pytest.mark.parametrize("order", [[3, 1, 0, 2], [2, 3, 1, 0]])
def test_the_order_in_which_members_are_asked_about_changes_nothing(order):
    w, pods = World(4, 4), world.volcano("bert", 4)
    w.put(*pods)
    w.schedule(*[pods[i] for i in order])
    assert [w.member(p).node for p in pods] == ["a0", "a1", "a2", "a3"]


def test_asking_twice_gives_the_same_answer():
    w, (first, *rest) = World(4, 4), world.volcano("bert", 4)
    w.put(first, *rest)
    one, two, single_name = w.fit(first), w.fit(first), w.fit(first, ["a0"])
    assert one.nodes == two.nodes == single_name.nodes == ("a0",)


@pytest.mark.contract("CS-04")
def test_scores_fall_in_strict_order_with_the_distance_to_the_gang():
    """CS-04: same access switch best, same pod switch next, unknown last."""
    w = World(2, 2, 2, 2, off_map=1)
    pods = world.volcano("bert", 2, at=["a0"])
    scored = w.put(*pods).rank(pods[1])
    assert scored["a1"] == 10
    assert scored["a1"] > scored["a0"] > scored["b0"] == scored["b1"] > scored["c0"] > scored.get("x0", 0)
    assert all(type(s) is int and 1 <= s <= 10 for s in scored.values())


def test_a_fresh_gang_is_scored_by_its_plan_and_a_refused_one_by_nothing():
    w, pods, large = World(2, 1), world.volcano("bert", 2), world.volcano("large", 9, created=9)
    w.put(*pods, *large)
    assert (w.rank(pods[0]), w.rank(large[0])) == ({"a0": 10, "a1": 9}, {})


def test_a_gang_of_which_nobody_waits_is_scored_by_where_it_is():
    w, pods = World(2, 1), world.volcano("bert", 2, at=["a0", "a1"])
    w.put(*pods)
    assert w.rank(pods[0]) == {"a0": 10, "a1": 9}  # b0 lies under the top switch


@pytest.mark.contract("DL-104")
def test_only_the_leaf_counts_where_the_admin_says_so():
    w = World(2, 2, 2, rules=Rules(leaf_only=True))
    pods = world.volcano("bert", 2, at=["a0"])
    scored = w.put(*pods).rank(pods[1])
    assert scored["a1"] == 10
    assert set(scored) == {"a0", "a1"}


class TestRefusals:
    def test_a_preferred_gang_without_room_leaves_every_node_to_preemption(self):
        w, pods = World(2, 2), world.volcano("big", 5)
        advice = w.put(*pods).fit(pods[0], w.names)
        assert not advice.nodes
        assert set(advice.no_room) == set(w.names)
        assert not advice.forbidden
        assert advice.refusal.reason is EventReason.NO_ROOM

    def test_a_required_gang_that_no_leaf_could_hold_is_forbidden_everywhere(self):
        w, pods = World(2, 2), world.volcano("big", 3, notes=REQUIRED)
        advice = w.put(*pods).fit(pods[0], w.names)
        assert set(advice.forbidden) == set(w.names)
        assert not advice.no_room
        assert advice.refusal.reason is EventReason.TIER_TOO_NARROW

    def test_only_the_leaf_that_could_hold_a_required_gang_is_left_to_preempt(self):
        w, pods = World(2, 3), world.volcano("big", 3, notes=REQUIRED)
        w.put(world.pod("stranger", 8, at="b1"))
        advice = w.put(*pods).fit(pods[0], w.names)
        assert set(advice.no_room) == {"b0", "b1", "b2"}
        assert set(advice.forbidden) == {"a0", "a1"}

    def test_a_started_required_gang_may_only_preempt_in_its_own_leaf(self):
        w, pods = World(3, 3), world.volcano("big", 3, notes=REQUIRED, at=["b0"])
        w.put(world.pod("stranger", 8, at="b1"), world.pod("other", 8, at="b2"))
        advice = w.put(*pods).fit(pods[1], w.names)
        assert advice.refusal.reason is EventReason.GANG_PARTIAL
        assert set(advice.no_room) == {"b0", "b1", "b2"}

    def test_a_node_off_the_map_is_forbidden_to_a_required_gang(self):
        w, pods = World(2, off_map=4), world.volcano("big", 3, notes=REQUIRED)
        advice = w.put(*pods).fit(pods[0], w.names)
        assert {"x0", "x1", "x2", "x3"} <= set(advice.forbidden)

    @pytest.mark.parametrize("tier", ["1", "2", "3", "9"])
    def test_nodes_off_the_map_make_no_tier_wide_enough(self, tier):
        w, pods = World(2, off_map=4), world.volcano("big", 3, notes={**REQUIRED, labels.TOPOLOGY_TIER: tier})
        assert set(w.put(*pods).fit(pods[0], w.names).forbidden) == set(w.names)

    def test_a_required_gang_that_runs_in_two_leaves_may_preempt_nowhere(self):
        w, pods = World(3, 3), world.volcano("big", 3, notes=REQUIRED, at=["a0", "b0"])
        assert set(w.put(*pods).fit(pods[2], w.names).forbidden) == set(w.names)

    def test_a_wider_tier_takes_a_gang_that_no_leaf_holds(self):
        notes = {**REQUIRED, labels.TOPOLOGY_TIER: "2"}
        assert leaves(World(2, 2, 2, 2).schedule(*world.volcano("big", 4, notes=notes))) == {"a", "b"}

    def test_a_long_refusal_explains_itself_on_the_first_names_only(self):
        w = World(2, 2)
        (lone,) = world.volcano("big", 1, notes=REQUIRED, gpus=16)
        names = [f"other{i}" for i in range(5000)]
        assert len(w.put(lone).fit(lone, names).forbidden) <= 64

    def test_a_refusal_of_the_plan_is_the_last_word(self):
        w, pods = World(2), world.volcano("big", 2)
        w.put_group("big", 2, minTaskMember={"x" * 1_000: 1}).put(*pods)
        assert not w.fit(pods[0], w.names).retry


class TestNoMap:
    def test_without_a_map_nobody_has_an_opinion(self):
        """CS-07."""
        w, pods = World(2, 2, mapped=False), world.volcano("bert", 2)
        w.put(*pods)
        assert w.fit(pods[0]).all_kept
        assert w.rank(pods[0]) == {}

    def test_a_required_gang_is_refused_without_a_map(self):
        w, pods = World(2, 2, mapped=False), world.volcano("bert", 2, notes=REQUIRED)
        advice = w.put(*pods).fit(pods[0])
        assert advice.refusal.reason is EventReason.NO_MAP
        assert set(advice.forbidden) == set(w.names)

    def test_nodes_off_the_map_are_taken_last(self):
        w, pods = World(2, off_map=2), world.volcano("bert", 3)
        node_by_pod = w.put(*pods).schedule(*pods)
        assert sorted(node_by_pod.values()) == ["a0", "a1", "x0"]


class TestPlannedHostMissing:
    def test_a_preferred_gang_is_planned_anew_among_the_candidates(self):
        w, pods = World(2, 2), world.volcano("bert", 2)
        w.put(*pods)
        assert w.plan(pods[0])["bert-0"] == "a0"
        assert w.fit(pods[0], ["b0", "b1"]).nodes == ("b0",)
        assert w.fit(pods[1], ["a0", "a1", "b0", "b1"]).nodes == ("b1",)

    def test_where_the_gang_does_not_fit_the_pod_goes_nearest_to_the_rest(self):
        w, pods = World(3, 3, 3), world.volcano("bert", 3)
        w.put(*pods, world.pod("elsewhere", 8, at="c1"))
        assert w.fit(pods[0], ["c0", "b1"]).nodes == ("b1",)

    def test_nor_does_it_go_farther_where_only_a_part_of_the_gang_fits(self):
        w, pods = World(3, 3, 3), world.koordinator("bert", 3, minimum=2)
        w.put(*pods, world.pod("elsewhere", 8, at="c1"))
        assert w.fit(pods[1], ["c0", "b1"]).nodes == ("b1",)

    def test_another_host_of_the_plan_comes_first(self):
        w, pods = World(2, 2), world.volcano("bert", 2)
        w.put(*pods)
        assert w.plan(pods[0]) == {"bert-0": "a0", "bert-1": "a1"}
        assert w.fit(pods[0], ["b0", "b1", "a1"]).nodes == ("a1",)

    def test_a_required_gang_refuses_and_names_the_setting_to_look_at(self):
        w, pods = World(2, 2), world.volcano("bert", 2, notes=REQUIRED)
        advice = w.put(*pods).fit(pods[0], ["b0", "b1"])
        assert advice.refusal.reason is EventReason.PLANNED_HOST_MISSING
        assert "planned host a0 is not among the 2 nodes" in advice.refusal.detail
        assert "percentageOfNodesToScore" in advice.refusal.detail
        assert set(advice.forbidden) == {"b0", "b1"}

    def test_a_place_that_the_scheduler_no_longer_offers_is_not_believed(self):
        """A stranger bound there first; the watch shows it while our pod is still believed to go there."""
        w, pods = World(2, 2), world.volcano("bert", 2, notes=REQUIRED)
        w.put(*pods)
        assert w.fit(pods[0]).nodes == ("a0",)
        w.put(world.pod("stranger", 8, at="a0"))
        assert w.fit(pods[0], ["a1", "b0", "b1"]).nodes == ("b0",)

    def test_one_nominated_node_that_is_not_planned_is_refused_without_ado(self):
        w, pods = World(2, 2), world.volcano("bert", 2, nominated="b0", ours=True)
        w.put(world.pod("stranger", 8, at="b0"), *pods)
        advice = w.fit(pods[0], ["b0"])
        assert not advice.nodes
        assert advice.refusal is None


class TestStrangers:
    def test_a_stranger_on_a_planned_host_moves_a_gang_that_has_not_started(self):
        w, pods = World(2, 2), world.volcano("bert", 2)
        assert leaves(w.put(*pods).plan(pods[0]).items() and w.plan(pods[0])) == {"a"}
        w.put(world.pod("stranger", 8, at="a1"))
        assert leaves(w.schedule(*pods)) == {"b"}

    def test_a_started_gang_goes_on_nearest_to_its_members(self):
        w, pods = World(2, 2, 2, 2), world.volcano("bert", 2)
        w.put(*pods)
        w.schedule(pods[0])
        w.put(world.pod("stranger", 8, at="a1"))
        assert w.schedule(pods[1]) == {"bert-1": "b0"}

    def test_a_started_required_gang_is_told_that_it_is_partial(self):
        w, pods = World(2, 2), world.volcano("bert", 2, notes=REQUIRED)
        w.put(*pods)
        w.schedule(pods[0])
        w.put(world.pod("stranger", 8, at="a1"))
        assert w.fit(pods[1]).refusal.reason is EventReason.GANG_PARTIAL


class TestShapes:
    def test_a_cpu_only_master_counts_towards_the_min_and_is_not_judged(self):
        w = World(2, 2).put_group("bert", 3)
        master, *workers = world.volcano("bert", 1, gpus=0) + world.volcano("bert", 3)[1:]
        w.put(master, *workers)
        assert w.fit(master).all_kept
        assert len(w.plan(workers[0])) == 2
        assert leaves(w.schedule(*workers)) == {"a"}

    def test_a_bound_cpu_only_master_pulls_nobody(self):
        w = World(2, 2, off_map=1)
        master, *workers = world.volcano("bert", 1, gpus=0, at=["x0"]) + world.volcano("bert", 3, notes=REQUIRED)[1:]
        w.put(master, *workers)
        assert leaves(w.schedule(*workers)) == {"a"}

    def test_members_of_several_shapes_share_a_leaf(self):
        w = World(2, 3)
        pods = world.volcano("bert", 2, gpus=8, notes=REQUIRED) + world.volcano("bert", 4, gpus=4, notes=REQUIRED)[2:]
        w.put(*pods)
        node_by_pod = w.schedule(*pods)
        assert len(node_by_pod) == 4
        assert leaves(node_by_pod) == {"b"}

    def test_what_counts_as_a_gpu_is_the_admins_choice(self):
        w = World(2, 2, rules=Rules(gpu_resources=("example.com/gpu",)))
        w.view.layout.put_node(world.node("a0", 8, "10.0.0.1", gpu="example.com/gpu"))
        pods = world.volcano("bert", 2, gpus=0)
        pods[1].spec.containers[0].resources.requests["example.com/gpu"] = "4"
        w.put(*pods)
        assert w.fit(pods[0]).all_kept
        assert w.fit(pods[1]).nodes == ("a0",)

    @pytest.mark.parametrize("spec", [
        pytest.param({"resourceClaims": [{"name": "gpu"}]}, id="a resource claim"),
        pytest.param({"resources": {"requests": {"nvidia.com/gpu": "1"}}}, id="pod-level GPUs"),
    ])  # fmt: skip
    def test_no_opinion_where_the_node_does_not_show_what_is_taken(self, spec):
        w, lone = World(2, 2), world.pod("claims", 0, **spec)
        w.put(lone)
        assert w.fit(lone).all_kept
        assert w.rank(lone) == {}


class TestLonePods:
    def test_twenty_lone_pods_fill_the_tightest_holes(self):
        w = World(4, 4)
        w.put(world.pod("half", 4, at="a1"), world.pod("maximum", 6, at="b0"))
        pods = [world.pod(f"lone{i:02d}") for i in range(20)]
        w.put(*pods)
        node_by_pod = w.schedule(*pods)
        assert [*node_by_pod.values()][:6] == ["b0", "b0", "a1", "a1", "a1", "a1"]
        assert len(set(node_by_pod.values())) == 4  # two holes filled, one host more, and a part of the next

    def test_a_lone_pod_does_not_take_what_an_older_gang_is_planned_on(self):
        w, pods, lone = World(2), world.volcano("bert", 2, gpus=4, created=1), world.pod("lone", 4, created=2)
        w.put(*pods, lone)
        assert w.fit(lone).nodes == ("a1",)
        assert set(w.schedule(*pods).values()) == {"a0"}

    def test_nor_where_no_other_room_is_left(self):
        w, pods, lone = World(2), world.volcano("bert", 2, created=1), world.pod("lone", 8, created=2)
        w.put(*pods, lone)
        assert w.fit(lone).node == ""
        assert len(w.schedule(*pods)) == 2

    def test_a_lone_pod_whose_host_is_not_offered_any_more_goes_to_another(self):
        w, lone = World(2), world.pod("lone", 8)
        w.put(lone)
        assert (w.fit(lone).node, w.fit(lone, ["a1"]).node) == ("a0", "a1")

    def test_the_host_of_a_lone_pod_is_the_only_one_that_is_scored(self):
        w, lone, large = World(2).put(world.pod("there", 4, at="a1")), world.pod("lone", 4), world.pod("large", 16)
        w.put(lone, large)
        assert (w.rank(lone), w.rank(large)) == ({"a1": 10}, {})

    def test_a_lone_pod_that_fits_nowhere_is_left_to_the_scheduler(self):
        w, lone = World(2), world.pod("lone", 16)
        assert w.put(lone).fit(lone).all_kept


class TestHold:
    RULES = Rules(hold_incomplete=True)

    def test_an_incomplete_gang_is_held_until_its_min_exists(self):
        w, pods = World(4, 4, rules=self.RULES), world.koordinator("bert", 4, minimum=4)
        w.put(*pods[:2])
        advice = w.fit(pods[0])
        assert advice.refusal.reason is EventReason.GANG_INCOMPLETE
        assert advice.refusal.detail == "2 of 4 members exist"
        assert len(w.put(*pods[2:]).schedule(*pods)) == 4

    def test_held_members_keep_no_room_once_nobody_comes(self):
        w, pods = World(2, 2, rules=self.RULES), world.koordinator("bert", 2, minimum=4, created=1)
        other = world.volcano("other", 4, created=2)
        w.put(*pods, *other)
        assert w.fit(other[0]).refusal.reason is EventReason.NO_ROOM
        w.now_s += 31
        assert len(w.schedule(*other)) == 4

    def test_without_the_setting_an_incomplete_gang_is_placed(self):
        w, pods = World(4, 4), world.koordinator("bert", 2, minimum=4)
        w.put(*pods)
        assert len(w.schedule(*pods)) == 2


class TestPreempt:
    def victims(self, *names):
        return {name: Victims((f"uid-low-{name}",)) for name in names}

    def low(self, w, names):
        w.put(*(world.pod(f"low-{name}", 8, at=name, priority=0) for name in names))

    def test_only_nodes_on_which_the_whole_gang_could_run_are_given_up(self):
        w, pods = World(1, 2, 1), world.volcano("high", 2, priority=100, notes=REQUIRED)
        self.low(w, w.names)
        w.put(*pods)
        assert set(w.fit(pods[0], w.names).no_room) == {"b0", "b1"}
        assert set(answer_preempt(w.plans, w.member(pods[0]), self.victims(*w.names), w.now_s)) == {"b0"}

    def test_no_preemption_that_would_not_let_the_gang_start(self):
        w, pods = World(2), world.volcano("high", 3, priority=100)
        self.low(w, w.names)
        w.put(*pods)
        assert answer_preempt(w.plans, w.member(pods[0]), self.victims("a0", "a1"), w.now_s) == {}

    def test_pods_of_the_same_priority_are_not_thought_away(self):
        w, pods = World(2), world.volcano("high", 2, priority=0)
        self.low(w, ["a0"])
        w.put(*pods)
        assert answer_preempt(w.plans, w.member(pods[0]), self.victims("a0"), w.now_s) == {}

    def test_members_follow_a_nominated_one_into_its_leaf(self):
        w, pods = World(2, 2), world.volcano("high", 2, priority=100, notes=REQUIRED)
        self.low(w, w.names)
        nominated = world.volcano("high", 2, priority=100, notes=REQUIRED, nominated="b0")[0]
        w.put(nominated, pods[1])
        assert set(answer_preempt(w.plans, w.member(pods[1]), self.victims(*w.names), w.now_s)) == {"b1"}

    def test_a_nominated_member_is_asked_about_itself(self):
        w, pods = World(2, 2), world.volcano("high", 2, priority=100, notes=REQUIRED)
        self.low(w, w.names)
        nominated = world.volcano("high", 2, priority=100, notes=REQUIRED, nominated="b0")[0]
        w.put(nominated, pods[1])
        assert set(answer_preempt(w.plans, w.member(nominated), self.victims(*w.names), w.now_s)) == {"b0", "b1"}

    def test_without_a_map_it_is_left_to_the_scheduler(self):
        w, pods = World(2, mapped=False), world.volcano("high", 2, priority=5)
        self.low(w, w.names)
        w.put(*pods)
        victims = self.victims("a0", "a1")
        assert answer_preempt(w.plans, w.member(pods[0]), victims, w.now_s) == victims

    def test_a_lone_pod_is_left_to_the_scheduler(self):
        w, lone = World(2), world.pod("lone", 8, priority=5)
        self.low(w, w.names)
        w.put(lone)
        victims = self.victims("a0", "a1")
        assert answer_preempt(w.plans, w.member(lone), victims, w.now_s) == victims
