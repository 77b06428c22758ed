"""Hosts that other filters of the scheduler refuse: read from the pod where it says so, else learnt from what is left
out of the scheduler's list.
"""

import pytest

from tests.kit import cluster, world
from tests.kit.world import REQUIRED, World, leaves
from turnout.scheduler_ext.cluster.request_hints import CONFIRM_S, FORGET_S
from turnout.scheduler_ext.model import EventReason


def without(w, *hosts):
    return [name for name in w.names if name not in hosts]


def asked_twice(w, pod, names):
    """Ask about a pod, and again once its host has been missing for long enough. Returns both answers."""
    first = w.fit(pod, names)
    w.now_s += CONFIRM_S
    return first, w.fit(pod, names)


def settle(w, pods, refused):
    """Ask about each pod in turns, as a scheduler does that never offers some hosts. Returns {pod: node}."""
    node_by_pod = {}
    for _ in range(4):
        for pod in pods:
            if pod.metadata.name in node_by_pod:
                continue
            nodes = w.fit(pod, [name for name in w.free(pod) if name not in refused]).nodes
            if nodes:
                w.bind(pod, nodes[0])
                node_by_pod[pod.metadata.name] = nodes[0]
        w.now_s += CONFIRM_S
    return node_by_pod


class TestRequiredGang:
    def test_a_host_missing_from_the_list_is_doubted_before_anybody_binds(self):
        w, pods = World(4, 4), world.volcano("bert", 4, notes=REQUIRED)
        advice = w.put(*pods).fit(pods[0], without(w, "a2"))
        assert (advice.nodes, advice.retry) == ((), True)
        assert advice.refusal.reason is EventReason.PLANNED_HOST_MISSING

    def test_once_it_is_sure_the_whole_gang_goes_where_all_hosts_are_offered(self):
        w, pods = World(4, 4), world.volcano("bert", 4, notes=REQUIRED)
        _, second = asked_twice(w.put(*pods), pods[0], without(w, "a2"))
        assert leaves({"": second.nodes[0]}) == {"b"}

    @pytest.mark.parametrize(("refused", "leaf"), [
        pytest.param(["a1"], "a", id="one of five: another of the leaf"),
        pytest.param(["a0", "a1"], "b", id="two of five: the next leaf"),
        pytest.param(["a0", "b0", "b1"], "a", id="in both leaves: where enough is left"),
    ])  # fmt: skip
    def test_no_member_is_left_behind(self, refused, leaf):
        w, pods = World(5, 5), world.volcano("bert", 4, notes=REQUIRED)
        node_by_pod = settle(w.put(*pods), pods, refused)
        assert len(node_by_pod) == 4
        assert leaves(node_by_pod) == {leaf}

    def test_a_host_lost_after_the_start_moves_those_who_still_wait(self):
        w, pods = World(5, 5), world.volcano("bert", 4, notes=REQUIRED)
        w.put(*pods)
        w.schedule(pods[0])
        node_by_pod = settle(w, pods[1:], ["a1"])
        assert (leaves(node_by_pod), "a1" in node_by_pod.values(), len(node_by_pod)) == ({"a"}, False, 3)

    def test_where_nothing_else_is_left_the_refusal_counts_the_hosts(self):
        w, pods = World(4, 3), world.volcano("bert", 4, notes=REQUIRED)
        w.put(*pods, world.pod("there", 8, at="b0"))  # a host that is full is not counted
        _, second = asked_twice(w, pods[0], without(w, "a2", "b0"))
        assert (second.nodes, second.retry) == ((), False)
        assert second.refusal.reason is EventReason.PLANNED_HOST_MISSING
        assert "1 host with room is not among the 5 candidates" in second.refusal.detail

    def test_a_host_that_is_offered_again_counts_again(self):
        w, pods = World(4, 3), world.volcano("bert", 4, notes=REQUIRED)
        asked_twice(w.put(*pods), pods[0], without(w, "a2"))
        advice = w.fit(pods[0], w.names)
        assert (leaves({"": advice.nodes[0]}), advice.retry) == ({"a"}, False)
        assert leaves(w.schedule(*pods)) == {"a"}

    def test_a_host_that_was_offered_a_moment_ago_is_not_left_out_yet(self):
        w, pods = World(4, 4), world.volcano("bert", 4, notes=REQUIRED)
        w.put(*pods).fit(pods[0], without(w, "a2"))
        w.now_s += CONFIRM_S
        w.fit(pods[0], without(w, "a2", "b0"))
        assert set(w.plan(pods[0]).values()) == {"b0", "b1", "b2", "b3"}

    def test_what_nobody_has_seen_for_long_is_forgotten(self):
        w, pods = World(4, 3), world.volcano("bert", 4, notes=REQUIRED)
        asked_twice(w.put(*pods), pods[0], without(w, "a2"))
        assert not w.plan(pods[0])
        w.now_s += FORGET_S
        assert len(w.plan(pods[0])) == 4

    def test_a_member_placed_by_another_replica_moves_nobody(self):
        """Its host is missing because it is there; the watch shows it before the doubt has passed."""
        w, pods = World(4, 4), world.volcano("bert", 4, notes=REQUIRED)
        w.put(*pods)
        assert w.fit(pods[1], without(w, "a0")).retry
        w.bind(pods[0], "a0")
        w.now_s += CONFIRM_S
        assert w.schedule(*pods[1:]) == {"bert-1": "a1", "bert-2": "a2", "bert-3": "a3"}

    def test_a_host_that_is_full_is_no_news(self):
        w, pods = World(4, 4), world.volcano("bert", 4, notes=REQUIRED)
        w.put(*pods, world.pod("there", 8, at="b0"))
        assert w.fit(pods[0], without(w, "b0")).nodes == ("a0",)

    def test_a_gang_of_others_is_not_kept_from_the_host(self):
        w, pods = World(4, 3), world.volcano("bert", 4, notes=REQUIRED)
        asked_twice(w.put(*pods), pods[0], without(w, "a2"))
        other = world.volcano("other", 4, created=5, notes=REQUIRED)
        w.put(*other)
        assert leaves(w.plan(other[0])) == {"a"}


def anti_affinity(key="kubernetes.io/hostname", app="bert", **more):
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def gang(name, size, spec, gpus=2, app="bert", **more):
    """A gang of small pods with something more in their spec."""
    pods = cluster.volcano_gang(name, size, gpus, marks={"app": app}, **spec)
    return [world.see(each, **more) for each in pods]


class TestAntiAffinity:
    @pytest.mark.parametrize(("affinity", "hosts"), [
        pytest.param(anti_affinity(), 3, id="against its own kind by host: one a host"),
        pytest.param(anti_affinity(app="other"), 1, id="against others: left to the scheduler"),
        pytest.param(anti_affinity("topology.kubernetes.io/zone"), 1, id="by another key: left to the scheduler"),
        pytest.param(anti_affinity(namespaces=["elsewhere"]), 1, id="against another namespace's"),
        pytest.param(anti_affinity(namespaceSelector={}), 3, id="against every namespace's"),
    ])  # fmt: skip
    def test_how_many_hosts_three_small_pods_are_planned_on(self, affinity, hosts):
        w, pods = World(2, 4), gang("bert", 3, {"affinity": affinity})
        planned = w.put(*pods).plan(pods[0])
        assert len(set(planned.values())) == hosts
        assert len(leaves(planned)) == 1

    @pytest.mark.parametrize(("expression", "hosts"), [
        pytest.param({"key": "app", "operator": "In", "values": ["bert", "gpt"]}, 3, id="in"),
        pytest.param({"key": "app", "operator": "NotIn", "values": ["bert"]}, 1, id="not in"),
        pytest.param({"key": "app", "operator": "Exists"}, 3, id="exists"),
        pytest.param({"key": "app", "operator": "DoesNotExist"}, 1, id="does not exist"),
        pytest.param({"key": "app", "operator": "Near"}, 1, id="an operator that nobody knows"),
    ])  # fmt: skip
    def test_a_selector_by_expressions(self, expression, hosts):
        affinity = anti_affinity()
        (term,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        term["labelSelector"] = {"matchExpressions": [expression]}
        w, pods = World(4), gang("bert", 3, {"affinity": affinity})
        assert len(set(w.put(*pods).plan(pods[0]).values())) == hosts

    def test_two_gangs_of_one_kind_share_no_host(self):
        w = World(4)
        one, two = gang("one", 2, {"affinity": anti_affinity()}), gang("two", 2, {"affinity": anti_affinity()})
        w.put(*one, *two)
        assert len({*w.plan(one[0]).values(), *w.plan(two[0]).values()}) == 4

    @pytest.mark.parametrize("terms", [
        pytest.param("near", id="text"),
        pytest.param([None, 7, {"labelSelector": 3, "topologyKey": "kubernetes.io/hostname"}], id="no terms"),
        pytest.param([{"topologyKey": "kubernetes.io/hostname"}], id="no selector: nobody"),
    ])  # fmt: skip
    def test_what_cannot_be_read_holds_nobody(self, terms):
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        w, pods = World(2), gang("bert", 2, {"affinity": affinity})
        assert len(w.put(*pods).plan(pods[0])) == 2


def spread(skew=1, key="kubernetes.io/hostname", when="DoNotSchedule", app="bert"):
    selector = {"matchLabels": {"app": app}}
    return {
        "topologySpreadConstraints": [
            {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector}
        ]
    }


class TestSpreadConstraints:
    @pytest.mark.parametrize(("spec", "hosts"), [
        pytest.param(spread(), 4, id="hard, by host: one a host"),
        pytest.param(spread(2), 2, id="two a host"),
        pytest.param(spread(when="ScheduleAnyway"), 1, id="soft: not at all"),
        pytest.param(spread(key="topology.kubernetes.io/zone"), 1, id="by another key: left to the scheduler"),
        pytest.param(spread(app="other"), 1, id="of others' pods"),
    ])  # fmt: skip
    def test_how_many_hosts_four_small_pods_are_planned_on(self, spec, hosts):
        w, pods = World(3, 4), gang("bert", 4, spec)
        planned = w.put(*pods).plan(pods[0])
        assert len(set(planned.values())) == hosts
        assert len(leaves(planned)) == 1

    def test_with_more_pods_than_hosts_the_scheduler_keeps_them_even(self):
        w, pods = World(2), gang("bert", 4, spread())
        assert len(w.put(*pods).plan(pods[0])) == 4

    def test_hosts_of_members_that_run_are_counted(self):
        w, pods = World(3), gang("bert", 3, spread())
        w.put(*pods)
        w.bind(pods[0], "a1")
        assert set(w.plan(pods[1]).values()) == {"a0", "a2"}
