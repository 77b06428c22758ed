"""Objects that watches show in any order become gangs, sizes, places and waits."""

import msgspec
import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World
from turnout.jobs.gang import Dialect, GangKey
from turnout.jobs.wishes import sets
from turnout.kube import labels
from turnout.scheduler_ext.cluster.gang import waiting_gangs
from turnout.scheduler_ext.cluster.member import member_of
from turnout.scheduler_ext.cluster.view import (
    MAX_AWAITED_WORKERS,
    MAX_LEADER_WAIT_S,
    MAX_PATIENCE_S,
    PATIENCE_S,
)

BERT = GangKey("default", "bert", Dialect.VOLCANO.value)


def seen(w, made, **more):
    """Show pods as tests.kit.cluster builds them, and return their gang."""
    w.put(*(world.see(each, **more) for each in made))
    return next(iter(w.view.gangs.values()))


def show_group(w, dialect, notes=None, **spec):
    """Show the PodGroup bert of a dialect with these annotations."""
    group = world.group("bert", None, **spec)
    group.metadata.annotations = notes
    w.view.groups.put_group(dialect, group)


class TestPodGroups:
    def test_a_group_of_kai_says_its_min_and_its_queue(self):
        w = World(2)
        show_group(w, Dialect.KAI, minMember=None, queue="train")
        assert seen(w, world.cluster.kai_gang("bert", 2)).queue == "train"
        w = World(2).put_group("bert", 4, Dialect.KAI)
        assert seen(w, world.cluster.kai_gang("bert", 2)).min_pods == 4

    @pytest.mark.parametrize(("spec", "notes", "tier"), [
        pytest.param({"topologyConstraint": {"requiredTopologyLevel": "block"}}, None, 2, id="its own words"),
        pytest.param({}, REQUIRED, 1, id="its annotations, where it says nothing"),
        pytest.param(
            {"topologyConstraint": {"requiredTopologyLevel": "block"}}, REQUIRED, 2, id="its own words before them"
        ),
        pytest.param({}, None, None, id="nothing"),
    ])  # fmt: skip
    def test_the_place_of_a_group_of_kai(self, spec, notes, tier):
        w = World(2, 2, 2)
        w.view.settle(w.now_s)
        show_group(w, Dialect.KAI, notes, **spec)
        assert seen(w, world.cluster.kai_gang("bert", 2)).tier == tier

    def test_a_group_of_kubernetes_says_its_min_in_its_own_field(self):
        w = World(2)
        show_group(w, Dialect.NATIVE, minMember=9, schedulingPolicy={"gang": {"minCount": 3}})
        assert seen(w, world.cluster.native_gang("bert", 2)).min_pods == 3

    def test_the_min_of_roles_is_read_from_volcanos_group(self):
        w = World(2).put_group("bert", 4, minTaskMember={"master": 1, "worker": 3})
        assert seen(w, world.cluster.volcano_gang("bert", 2)).min_by_role == (("", 1), ("worker", 3))

    def test_a_gang_is_looked_at_again_only_if_its_group_says_something_new(self):
        w = World(2).put_group("bert", 2).put(*world.volcano("bert", 2))
        w.view.changed_gangs.clear()
        w.put_group("bert", 2)
        w.put_group("gpt", 2)
        assert set(w.view.changed_gangs) == set()
        w.put_group("bert", 3)
        assert set(w.view.changed_gangs) == {BERT}
        w.view.changed_gangs.clear()
        w.view.groups.drop_group(Dialect.VOLCANO, "default", "bert")
        assert set(w.view.changed_gangs) == {BERT}

    @pytest.mark.parametrize(("version", "order"), [
        pytest.param("41", 41, id="a number"),
        pytest.param("", 0, id="none"),
        pytest.param("4x", 0, id="no number"),
        pytest.param("1" * 21, 0, id="a number that is too long"),
    ])  # fmt: skip
    def test_the_version_of_the_first_pod_orders_gangs(self, version, order):
        w = World(2).put(*world.volcano("bert", 1, version=version))
        w.put(*world.volcano("bert", 2, version="9")[1:])
        assert w.view.gangs[BERT].version == order


class TestOwners:
    @pytest.mark.parametrize(("replicas", "total"), [
        pytest.param(4, 4, id="as many as it says"),
        pytest.param(None, 1, id="one, when it says nothing"),
        pytest.param(0, 1, id="of none those that exist"),
    ])  # fmt: skip
    def test_how_many_pods_a_statefulset_will_have(self, replicas, total):
        w = World(2)
        w.view.groups.put_owner("StatefulSet", world.owner("StatefulSet", "train", replicas=replicas))
        w.put(world.pod("train-0", 8, marks={labels.STATEFUL_INDEX: "0"}, owner="StatefulSet/train"))
        assert next(iter(w.view.gangs.values())).total == total

    def test_an_owner_that_is_gone_says_nothing_more(self):
        w = World(2)
        w.view.groups.put_owner("Job", world.owner("Job", "train", completions=4, parallelism=4))
        w.put(world.pod("train-0", 8, marks={labels.JOB_INDEX: "0"}, owner="Job/train"))
        (job,) = w.view.gangs.values()
        assert job.total == 4
        w.view.groups.drop_owner("Job", "default", "train")
        assert job.total == 1


class TestPlaces:
    def test_our_nomination_takes_room_for_a_pod_by_itself_and_for_no_member(self):
        member = world.volcano("bert", 1, nominated="a0", ours=True)[0]
        lone_pod = world.see(world.cluster.make_pod("alone", 8), nominated="a1", ours=True)
        theirs = world.see(world.cluster.volcano_gang("gpt", 1)[0], nominated="a1")
        w = World(2).put(member, lone_pod, theirs)
        assert [w.view.node_of(w.member(each)) for each in (member, lone_pod, theirs)] == ["", "a1", "a1"]
        w.view.layout.drop_node("a1")
        assert w.view.node_of(w.member(lone_pod)) == ""

    def test_what_was_sent_counts_before_the_watch_shows_it(self):
        pod = world.volcano("bert", 1, nominated="a0", ours=True)[0]
        w = World(2).put(pod)
        w.view.unconfirmed_nominations["uid-bert-0"] = "a1"
        assert w.view.our_nomination(w.member(pod)) == "a1"
        w.view.drop_pod("uid-bert-0")
        assert w.view.unconfirmed_nominations == {}

    def test_an_answer_that_the_scheduler_did_not_follow_is_taken_back(self):
        w, pod = World(2), world.volcano("bert", 1)[0]
        w.put(pod)
        w.view.assume(w.member(pod), "a0", w.now_s)
        w.view.changed_gangs.clear()
        w.view.forget_assumed(w.member(pod))
        assert (w.view.node_of(w.member(pod)), w.view.snapshot.charges, set(w.view.changed_gangs)) == ("", {}, {BERT})

    def test_an_answer_that_expires_is_looked_at_again(self):
        w, pod = World(2), world.volcano("bert", 1)[0]
        w.put(pod)
        w.view.assume(w.member(pod), "a0", w.now_s)
        w.view.changed_gangs.clear()
        w.view.settle(w.now_s + 9.9)
        assert w.view.node_of(w.member(pod)) == "a0"
        w.view.settle(w.now_s + 10.0)
        assert (w.view.node_of(w.member(pod)), BERT in w.view.changed_gangs) == ("", True)

    def test_a_gang_has_started_once_a_member_holds_a_host(self):
        w = World(2).put(*world.volcano("bert", 2))
        w.view.settle(1.0)
        assert w.view.gangs[BERT].started_s is None
        w.put(*world.volcano("bert", 2, at=["a0"]))
        w.view.settle(2.0)
        assert (w.view.gangs[BERT].started_s, w.view.gangs[BERT].min_pods_at_start) == (2.0, 2)

    def test_gangs_with_a_waiting_member_are_named(self):
        w = World(2).put(*world.volcano("bert", 2, at=["a0"]), *world.volcano("gpt", 1, at=["a1"]))
        assert [gang.key.name for gang in waiting_gangs(w.view.gangs.values())] == ["bert"]

    def test_a_field_of_the_same_name_elsewhere_owns_no_nomination(self):
        pod = world.volcano("bert", 1, nominated="a0", ours=True)[0]
        for fields in (
            {"f:metadata": {"f:labels": {"f:nominatedNodeName": {}}}, "f:status": {}},
            ["f:nominatedNodeName"],
        ):
            entry = msgspec.structs.replace(pod.metadata.managed_fields[0], manager="other")
            entry.fields_v1 = msgspec.Raw(msgspec.json.encode(fields))
            pod.metadata.managed_fields.append(entry)
        assert member_of(pod).nominated_by_us


def leader_of(size, name="w-0", worker="0"):
    """The leader, or another pod, of a group of a LeaderWorkerSet."""
    marks = {labels.LWS_NAME: "w", labels.LWS_GROUP: "0", labels.LWS_WORKER: worker}
    notes = {labels.LWS_SIZE: str(size), sets.LWS: "rack"}
    return world.pod(name, 8, marks=marks, notes=notes, owner="StatefulSet/w-0")


class TestWaits:
    def test_a_gang_is_waited_for_until_it_is_complete_and_never_after(self):
        w, pods = World(4).put_group("bert", 2), world.volcano("bert", 2)
        w.put(pods[0]).view.settle(0.0)
        assert w.view.awaited_members.missing_pods(w.view.gangs[BERT]) == 1
        w.put(pods[1]).view.settle(1.0)
        w.view.drop_pod("uid-bert-1")
        w.view.settle(2.0)
        assert w.view.awaited_members.missing_pods(w.view.gangs[BERT]) == 0

    def test_the_time_ends_exactly_and_the_gang_is_looked_at_again(self):
        w = World(4).put_group("bert", 2).put(world.volcano("bert", 1)[0])
        w.view.settle(0.0)
        w.view.changed_gangs.clear()
        w.view.settle(PATIENCE_S - 0.1)
        assert (w.view.awaited_members.missing_pods(w.view.gangs[BERT]), set(w.view.changed_gangs)) == (1, set())
        w.view.settle(PATIENCE_S)
        assert (w.view.awaited_members.missing_pods(w.view.gangs[BERT]), set(w.view.changed_gangs)) == (0, {BERT})

    def test_workers_are_awaited_while_their_leader_runs(self):
        """As with the start-up policy LeaderReady, where the workers come minutes after their leader."""
        w, leader = World(4), leader_of(size=3)
        w.put(leader).view.settle(0.0)
        (gang,) = w.view.gangs.values()
        w.bind(leader, "a0")
        w.view.settle(PATIENCE_S)
        w.view.settle(600.0)
        assert w.view.awaited_members.missing_pods(gang) == 2
        w.view.drop_pod(leader.metadata.uid)
        w.put(second := leader_of(size=3, name="w-0-1", worker="1"))
        w.view.settle(700.0)
        w.view.settle(760.0)
        assert w.view.awaited_members.missing_pods(w.view.gangs[w.member(second).membership.key]) == 0

    @pytest.mark.parametrize(
        ("size", "bound", "at_s"),
        [
            pytest.param(3, False, PATIENCE_S, id="whose leader has no host"),
            pytest.param(3, True, MAX_LEADER_WAIT_S, id="whose leader has run for half an hour"),
            pytest.param(MAX_AWAITED_WORKERS + 2, True, PATIENCE_S, id="that says it has very many"),
        ],
    )
    def test_no_room_is_kept_for_the_workers_of_a_group(self, size, bound, at_s):
        w, leader = World(4), leader_of(size=size)
        w.put(leader).view.settle(0.0)
        if bound:
            w.bind(leader, "a0")
        w.view.settle(at_s)
        (gang,) = w.view.gangs.values()
        assert w.view.awaited_members.missing_pods(gang) == 0

    def test_each_gang_has_its_own_time(self):
        w = World(4).put_group("bert", 2).put_group("gpt", 2)
        w.put(world.volcano("bert", 1)[0]).view.settle(0.0)
        w.put(world.volcano("gpt", 1)[0]).view.settle(20.0)
        w.view.settle(PATIENCE_S)
        gangs = {key.name: gang for key, gang in w.view.gangs.items()}
        assert [w.view.awaited_members.missing_pods(gangs[name]) for name in ("bert", "gpt")] == [0, 1]
        w.view.settle(20.0 + PATIENCE_S)
        assert w.view.awaited_members.missing_pods(gangs["gpt"]) == 0

    def test_whoever_trickles_in_prolongs_it_up_to_an_end(self):
        w, pods = World(4).put_group("bert", 100), world.volcano("bert", 20)
        for at, pod in enumerate(pods):
            w.put(pod).view.settle(at * 20.0)
            waited = w.view.awaited_members.missing_pods(w.view.gangs[BERT]) > 0
            assert waited is (at * 20.0 < MAX_PATIENCE_S)

    def test_a_known_pod_that_comes_from_another_gang_prolongs_nothing(self):
        w = World(4).put_group("bert", 3).put(world.volcano("bert", 1)[0], world.volcano("gpt", 1)[0])
        w.view.settle(0.0)
        moved = world.see(world.cluster.volcano_gang("bert", 2)[1], uid="uid-gpt-0")
        w.put(moved).view.settle(20.0)
        w.view.settle(PATIENCE_S)
        assert w.view.awaited_members.missing_pods(w.view.gangs[BERT]) == 0

    def test_a_gang_that_comes_anew_is_waited_for_anew(self):
        w = World(4).put_group("bert", 2).put(world.volcano("bert", 1)[0])
        w.view.settle(0.0)
        w.view.settle(PATIENCE_S)
        w.view.drop_pod("uid-bert-0")
        w.view.settle(MAX_PATIENCE_S)
        w.put(world.volcano("bert", 1)[0]).view.settle(MAX_PATIENCE_S + 1.0)
        assert w.view.awaited_members.missing_pods(w.view.gangs[BERT]) == 1


class TestNodes:
    def test_tables_are_laid_out_again_only_where_hosts_changed(self):
        w = World(2)
        w.view.settle(0.0)
        layout = w.view.layout_version
        w.view.layout.put_node(w.nodes[0])
        w.view.settle(0.0)
        assert w.view.layout_version == layout
        w.view.layout.put_node(world.node("a0", 8, "10.0.9.9"))
        w.view.settle(0.0)
        assert w.view.layout_version != layout

    def test_a_pod_seen_twice_changes_nothing(self):
        w = World(2).put(*world.volcano("bert", 1))
        w.view.changed_gangs.clear()
        w.put(*world.volcano("bert", 1))
        assert set(w.view.changed_gangs) == set()

    def test_a_pod_that_can_no_longer_be_read_is_no_member(self):
        w, pod = World(2), world.volcano("bert", 1)[0]
        w.put(pod)
        pod.spec.containers[0].resources.requests["cpu"] = "much"
        w.put(pod)
        assert (w.view.unreadable_pods, w.view.pods, w.view.gangs) == (1, {}, {})
