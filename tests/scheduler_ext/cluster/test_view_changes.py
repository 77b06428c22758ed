"""The cache's state after objects were put, changed and dropped."""

import msgspec
import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World
from turnout.jobs.gang import Dialect, GangKey
from turnout.kube import labels
from turnout.scheduler_ext.cluster.member import member_of
from turnout.scheduler_ext.cluster.view import PATIENCE_S, AssumedPods

BERT = GangKey("default", "bert", Dialect.VOLCANO.value)


def gang(w, key=BERT):
    return w.view.gangs[key]


class TestSizes:
    def test_a_podgroup_says_the_min_whether_it_comes_before_or_after_its_pods(self):
        before, after = World(2), World(2)
        before.put_group("bert", 4).put(*world.volcano("bert", 2))
        after.put(*world.volcano("bert", 2)).put_group("bert", 4)
        assert gang(before).min_pods == gang(after).min_pods == gang(before).total == gang(after).total == 4

    def test_without_one_everybody_seen_starts_together(self):
        w = World(2).put(*world.volcano("bert", 3))
        assert (gang(w).min_pods, gang(w).total) == (3, 3)
        w.put_group("bert", 2)
        assert (gang(w).min_pods, gang(w).total) == (2, 3)
        w.view.groups.drop_group(Dialect.VOLCANO, "default", "bert")
        assert gang(w).min_pods == 3

    def test_koordinator_pods_say_their_own(self):
        w = World(2).put(*world.koordinator("bert", 2, minimum=3, total=6))
        bert = gang(w, GangKey("default", "bert", Dialect.KOORDINATOR.value))
        assert (bert.min_pods, bert.total, bert.max_pods) == (3, 6, 6)

    def test_a_podgroup_wins_over_what_pods_say(self):
        w = World(2).put(*world.koordinator("bert", 2, minimum=3)).put_group("bert", 5, dialect=Dialect.KOORDINATOR)
        assert gang(w, GangKey("default", "bert", Dialect.KOORDINATOR.value)).min_pods == 5

    @pytest.mark.parametrize(("spec", "total"), [
        pytest.param({"completions": 8, "parallelism": 8}, 8, id="all at once"),
        pytest.param({"completions": 8, "parallelism": 2}, 2, id="two at a time"),
        pytest.param({"parallelism": 3}, 3, id="as many as run at once"),
        pytest.param({}, 1, id="one, when nothing is said"),
    ])  # fmt: skip
    def test_a_job_says_how_many_run_at_once(self, spec, total):
        w = World(2)
        w.view.groups.put_owner("Job", world.owner("Job", "train", **spec))
        w.put(world.pod("train-0", 8, marks={labels.JOB_INDEX: "0"}, owner="Job/train"))
        job = gang(w, GangKey("default", "Job/train", Dialect.OWNER.value))
        assert (job.min_pods, job.total) == (0, total)

    def test_the_pods_of_a_job_start_together_when_they_must_share_a_leaf(self):
        w = World(2)
        w.view.groups.put_owner("Job", world.owner("Job", "train", completions=4, parallelism=4))
        w.put(world.pod("train-0", 8, marks={labels.JOB_INDEX: "0"}, owner="Job/train", notes=REQUIRED))
        assert gang(w, GangKey("default", "Job/train", Dialect.OWNER.value)).min_pods == 4

    def test_one_member_that_requires_a_tier_binds_all_and_the_lowest_counts(self):
        wide = world.volcano("bert", 2, notes={**REQUIRED, labels.TOPOLOGY_TIER: "3"})
        narrow = world.volcano("bert", 3, notes={**REQUIRED, labels.TOPOLOGY_TIER: "2"})[2:]
        free = world.volcano("bert", 4)[3:]
        w = World(2).put(*free, *wide, *narrow)
        assert (gang(w).terms.requires_level, gang(w).tier) == (True, 2)

    def test_wishes_follow_the_members_and_the_podgroup_whenever_asked(self):
        tiers = [{**REQUIRED, labels.TOPOLOGY_TIER: tier} for tier in ("2", "3")]
        w = World(2).put(world.volcano("bert", 1)[0])
        terms = [(gang(w).terms.requires_level, gang(w).tier)]
        w.put(world.volcano("bert", 2, notes=tiers[1])[1])
        terms.append((gang(w).terms.requires_level, gang(w).tier))
        w.put(world.volcano("bert", 3, notes=tiers[0])[2])
        terms.append((gang(w).terms.requires_level, gang(w).tier))
        w.view.drop_pod("uid-bert-2")
        terms.append((gang(w).terms.requires_level, gang(w).tier))
        w.view.drop_pod("uid-bert-1")
        w.put_group("bert", 2, networkTopology={"mode": "hard", "highestTierAllowed": 2})
        terms.append((gang(w).terms.requires_level, gang(w).tier))
        w.put_group("bert", 2)
        terms.append((gang(w).terms.requires_level, gang(w).tier))
        assert terms == [(False, None), (True, 3), (True, 2), (True, 3), (True, 2), (False, None)]


class TestMembers:
    def test_what_finished_or_left_is_no_member(self):
        w = World(2).put(*world.volcano("bert", 3))
        w.put(world.volcano("bert", 1, phase="Succeeded")[0])
        w.view.drop_pod("uid-bert-1")
        w.view.drop_pod("uid-never-seen")
        assert [m.name for m in gang(w).waiting()] == ["bert-2"]
        w.view.drop_pod("uid-bert-2")
        assert w.view.gangs == {}

    def test_a_leaving_member_neither_waits_nor_counts_but_keeps_its_room(self):
        w = World(2).put(*world.volcano("bert", 2), world.volcano("bert", 3, at=["", "", "a0"], leaving=True)[2])
        assert len(gang(w).living()) == 2
        assert "uid-bert-2" in w.view.snapshot.charges

    def test_a_member_may_change_its_gang(self):
        w = World(2).put(*world.volcano("bert", 1))
        moved = world.see(world.cluster.volcano_gang("gpt", 1)[0], uid="uid-bert-0")
        w.put(moved)
        assert [key.name for key in w.view.gangs] == ["gpt"]

    def test_a_pod_by_itself_that_asks_for_no_place_any_more_is_let_go(self):
        notes = {labels.TOPOLOGY: "required"}
        w = World(2).put(world.pod("alone", 8, notes=notes))
        assert [gang.members.keys() for gang in w.view.gangs.values()] == [{"uid-alone"}]
        w.put(world.pod("alone", 8, notes={labels.TOPOLOGY: "none"}))
        assert w.view.gangs == {}
        w.put(world.pod("alone", 8, notes=notes))
        assert [gang.members.keys() for gang in w.view.gangs.values()] == [{"uid-alone"}]

    def test_ranks_count_within_a_role_and_who_has_none_comes_last(self):
        marks = [
            ("w-none", {labels.TRAINING_TYPE: "worker"}),
            ("w-10", {labels.TRAINING_TYPE: "worker", labels.JOB_INDEX: "10"}),
            ("w-9", {labels.TRAINING_TYPE: "worker", labels.JOB_INDEX: "9"}),
            ("alone", {}),
            ("m-0", {labels.TRAINING_TYPE: "master", labels.JOB_INDEX: "0"}),
        ]
        w = World(2).put(
            *(world.pod(name, 8, marks=role_marks, notes={labels.VOLCANO_GROUP: "bert"}) for name, role_marks in marks)
        )
        assert [m.name for m in gang(w).waiting()] == ["m-0", "alone", "w-9", "w-10", "w-none"]

    def test_a_member_without_opinion_counts_and_a_pod_by_itself_does_not(self):
        claims = world.volcano("bert", 2)[1]
        claims.spec.resource_claims = [{"name": "x"}]
        w = World(2).put(*world.volcano("bert", 1), claims, world.pod("database", 0))
        assert [(key.name, len(found.living())) for key, found in w.view.gangs.items()] == [("bert", 2)]

    def test_a_pod_that_nobody_can_read_is_counted_and_takes_no_part(self):
        w, pod = World(2), world.volcano("bert", 1)[0]
        pod.spec.containers[0].resources.requests["cpu"] = "much"
        w.put(pod)
        assert w.view.unreadable_pods == 1
        assert w.view.gangs == {}

    @pytest.mark.parametrize(("pod", "why"), [
        pytest.param(world.pod("p", 1), "", id="a GPU pod"),
        pytest.param(world.pod("p", 0), "NoGpu", id="a pod by itself without a GPU"),
        pytest.param(world.volcano("bert", 1, gpus=0)[0], "", id="a gang's member without one counts"),
        pytest.param(world.pod("p", 0, resourceClaims=[{"name": "x"}]), "ResourceClaims", id="claims"),
        pytest.param(world.pod("p", 0, resources={"limits": {"nvidia.com/gpu": "1"}}), "PodLevelGpus", id="pod-level"),
        pytest.param(
            world.pod("db-0", 0, marks={labels.STATEFUL_INDEX: "0"}, owner="StatefulSet/db"), "NoGpu", id="a database"
        ),
    ])  # fmt: skip
    def test_on_whom_there_is_no_opinion(self, pod, why):
        assert member_of(pod).no_opinion_reason == why

    def test_what_a_pod_does_not_say_is_nothing(self):
        bare = world.see({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": []}, "status": {}})
        bare.metadata.creation_timestamp = None
        member = member_of(bare)
        assert (
            member.node,
            member.nominated,
            member.nominated_by_us,
            member.gpus,
            member.priority,
            member.created,
        ) == (
            "",
            "",
            False,
            0,
            0,
            "",
        )
        assert (member.terminating, member.gated, member.nomination_obstacle, member.is_waiting) == (
            False,
            False,
            "",
            True,
        )

    def test_only_a_nomination_that_our_nominator_alone_owns_is_ours(self):
        ours, theirs = (
            world.volcano("bert", 1, nominated="a0", ours=True)[0],
            world.volcano("bert", 1, nominated="a0")[0],
        )
        assert member_of(ours).nominated_by_us
        assert not member_of(theirs).nominated_by_us
        w = World(2)
        assert [w.put(each).view.our_nomination(w.member(each)) for each in (ours, theirs)] == ["a0", ""]

    def test_its_owner_is_found_among_others_whatever_they_wrote(self):
        (ours,) = world.volcano("bert", 1, nominated="a0", ours=True)
        (owned,) = ours.metadata.managed_fields
        strange = msgspec.structs.replace(owned, manager="x", fields_v1=msgspec.Raw(b'{"f:nominatedNodeName"'))
        ours.metadata.managed_fields = [strange, owned]
        assert member_of(ours).nominated_by_us

    @pytest.mark.parametrize(("policy", "never"), [
        pytest.param("Never", True, id="never"),
        pytest.param("PreemptLowerPriority", False, id="those of a lower priority"),
        pytest.param("", False, id="unsaid: those of a lower priority"),
    ])  # fmt: skip
    def test_whether_anybody_may_be_evicted_for_a_pod(self, policy, never):
        (pod,) = world.volcano("bert", 1)
        pod.spec.preemption_policy = policy
        assert member_of(pod).never_preempts is never

    def test_somebody_elses_nomination_takes_room_while_its_node_lives(self):
        w = World(2).put(*world.volcano("bert", 1, nominated="a0"))
        assert w.view.snapshot.charges["uid-bert-0"].node == "a0"
        w = World(2).put(*world.volcano("bert", 1, nominated="gone"))
        assert w.view.snapshot.charges == {}


class TestLedger:
    def test_an_answer_is_believed_until_the_watch_shows_the_pod(self):
        w, pod = World(2), world.volcano("bert", 1)[0]
        w.put(pod)
        w.fit(pod)
        assert w.view.snapshot.charges["uid-bert-0"].node == "a0"
        w.bind(pod, "a1")
        assert w.view.snapshot.charges["uid-bert-0"].node == "a1"
        assert len(w.view.assumed_pods) == 0

    def test_an_answer_that_never_came_true_is_forgotten(self):
        w, pod = World(2), world.volcano("bert", 1)[0]
        w.put(pod)
        w.fit(pod)
        w.view.settle(w.now_s + w.view.assumed_pods.ttl_s + 1)
        assert w.view.snapshot.charges == {}

    def test_nobody_is_believed_to_go_anywhere_who_is_bound_or_gone(self):
        w, bound, deleted = World(2), world.pod("bound", 8, at="a0"), world.pod("gone", 8)
        w.put(bound, deleted)
        members = [w.member(bound), w.member(deleted)]
        w.view.drop_pod("uid-gone")
        for each in members:
            w.view.assume(each, "a1", w.now_s)
        assert len(w.view.assumed_pods) == 0
        assert {uid: charge.node for uid, charge in w.view.snapshot.charges.items()} == {"uid-bound": "a0"}

    def test_entries_expire_in_the_order_they_were_last_given(self):
        assumed = AssumedPods(ttl_s=10)
        assumed.assume("one", "a", 0)
        assumed.assume("two", "b", 3)
        assumed.assume("one", "c", 5)
        assert assumed.expire(12.9) == []
        assert assumed.expire(13) == ["two"]
        assert assumed.node_of("one") == "c"
        assumed.forget("one")
        assert assumed.expire(99) == []


class TestPatience:
    def test_it_runs_from_the_last_member_that_came(self):
        w, pods = World(4), world.volcano("bert", 4)
        w.put_group("bert", 4).put(pods[0])
        w.view.settle(0.0)
        w.put(pods[1])
        w.view.settle(PATIENCE_S - 1)
        assert w.view.awaited_members.missing_pods(gang(w)) == 2
        w.view.settle(2 * PATIENCE_S - 2)
        assert w.view.awaited_members.missing_pods(gang(w)) == 2
        w.view.settle(2 * PATIENCE_S)
        assert w.view.awaited_members.missing_pods(gang(w)) == 0


class TestNodes:
    def test_hosts_are_found_by_internal_ip_or_by_name(self):
        w = World(2, 2, mapped=False)
        w.view.layout.set_map(world.fabric([["10.0.0.1", "b1"], ["a1", "10.0.1.1"]]))
        w.view.settle(0.0)
        assert w.view.fabric.hosts == ("a0", "b1", "b0", "a1")
        assert w.view.fabric.mapped_count == 4

    def test_of_two_nodes_with_one_address_the_first_by_name_has_it(self):
        for names in (["one", "two"], ["two", "one"]):
            w = World(mapped=False)
            for name in names:
                w.view.layout.put_node(world.node(name, 8, "10.0.0.1"))
            w.view.layout.set_map(world.fabric([["10.0.0.1"]]))
            w.view.settle(0.0)
            assert w.view.fabric.hosts == ("one", "two")
            assert w.view.fabric.mapped_count == 1

    def test_a_host_of_the_map_without_a_node_has_no_room(self):
        w, pods = World(1, mapped=False), world.volcano("bert", 2)
        w.view.layout.set_map(world.fabric([["10.0.0.1", "10.0.0.99"]]))
        assert w.put(*pods).schedule(*pods) == {}

    def test_a_node_that_gets_its_address_late_finds_its_place(self):
        w = World(mapped=False)
        w.view.layout.set_map(world.fabric([["10.0.0.1"]]))
        bare = world.node("n0")
        bare.status.addresses = None
        w.view.layout.put_node(bare)
        w.view.settle(0.0)
        assert not w.view.fabric.mapped[w.view.snapshot.row_of["n0"]]
        w.view.layout.put_node(world.node("n0", 8, "10.0.0.1"))
        w.view.settle(0.0)
        assert w.view.fabric.mapped[w.view.snapshot.row_of["n0"]]
