"""The extender with its clock: what it counts, what it tells, and what it forgets."""

import pytest

from tests.kit import cluster, world
from tests.kit.world import REQUIRED, Told, World
from tests.scheduler_ext.shown import ShownExtender
from turnout.jobs.gang import Dialect
from turnout.kube import labels
from turnout.kube.objects import Toleration
from turnout.kube.pod_shape import MAX_ITEMS
from turnout.scheduler_ext.cluster.request_hints import CATCH_UP_S, POD_GROUP_WAIT_S
from turnout.scheduler_ext.model import EventReason, Rules, Victims
from turnout.scheduler_ext.server.extender import RETRY_S, UNCONFIRMED_S
from turnout.scheduler_ext.server.metrics import Metrics

HARD = {"mode": "hard", "highestTierAllowed": 1}


class Hand:
    """A clock moved by hand."""

    now_s = 1000.0

    def monotonic(self):
        return self.now_s

    def wall(self):
        return self.now_s


class Story:
    """A View over the nodes of a World, and everything it told."""

    def __init__(self, *leaves, rules=None, mapped=True):
        self.clock, self.metrics, self.told = Hand(), Metrics(), []
        self.view = ShownExtender(rules or Rules(), self.clock, self.metrics, self.told.append)
        self.stage = World(*leaves, rules=rules)
        for each in self.stage.nodes:
            self.view.view.layout.put_node(each)
        if mapped:
            self.view.use_map(self.stage.fabric)

    def count(self, series, **by):
        return self.metrics.registry.get_sample_value(series, by)

    def wait(self, seconds):
        self.clock.now_s += seconds
        self.view.clean_up()

    def filter(self, pod, names=None):
        names = self.stage.names if names is None else names
        return Told(self.view.filter(pod, names), names)

    def show(self, *pods):
        for each in pods:
            self.view.put_pod(each)
        return self

    @property
    def words(self):
        return [notice.reason for notice in self.told]


def test_a_refusal_is_counted_and_told_with_one_word():
    story, pods = Story(2, 2), world.volcano("wide", 3, notes=REQUIRED)
    story.show(*pods).filter(pods[0])
    assert story.words == [EventReason.TIER_TOO_NARROW]
    assert (story.told[0].namespace, story.told[0].name, story.told[0].uid) == ("default", "wide-0", "uid-wide-0")
    assert story.count("turnout_extender_refused_answers_total", reason="TierTooNarrow") == 1


def test_an_owner_is_told_five_hundred_letters_of_a_longer_reason():
    story, pods = Story(2), world.volcano("big", 2)
    story.view.view.groups.put_group(Dialect.VOLCANO, world.group("big", 2, minTaskMember={"x" * 1_000: 1}))
    story.show(*pods).filter(pods[0])
    assert [len(notice.detail) for notice in story.told] == [500]


def test_a_pod_that_cannot_be_read_is_told_and_left_to_the_scheduler():
    story, (pod,) = Story(2), world.volcano("bert", 1)
    pod.spec.tolerations = [Toleration(key=f"k{at}") for at in range(MAX_ITEMS + 1)]
    answer = story.show(pod).filter(pod)
    assert answer.all_kept
    assert story.words == [EventReason.POD_UNREADABLE]
    assert f"at most {MAX_ITEMS} are read" in story.told[0].detail


def test_malformed_annotations_are_told_and_block_nobody():
    story, pods = Story(2), world.volcano("bert", 1, notes={labels.TOPOLOGY: "soon", labels.MAX_WORKERS: "all"})
    answer = story.show(*pods).filter(pods[0])
    assert len(answer.nodes) == 1
    assert story.words == [EventReason.BAD_ANNOTATION]
    assert labels.TOPOLOGY in story.told[0].detail
    assert labels.MAX_WORKERS in story.told[0].detail


class TestOldView:
    """A no that newer knowledge may turn into a yes: kube-scheduler tries a pod again whose own status changed."""

    def old(self, *pods, **more):
        story = Story(2, 2, **more)
        story.show(*pods).view.watches.old = True
        return story

    @pytest.mark.parametrize(("pods", "rules", "word"), [
        pytest.param(world.volcano("bert", 5), Rules(), "NoRoom", id="no room"),
        pytest.param(world.volcano("bert", 3, notes=REQUIRED), Rules(), "TierTooNarrow", id="none under one switch"),
        pytest.param(world.koordinator("bert", 2, minimum=4), Rules(hold_incomplete=True), "GangIncomplete", id="held"),
    ])  # fmt: skip
    def test_each_refusal_reads_unlike_the_last_and_tells_the_owner_nothing(self, pods, rules, word):
        story, texts = self.old(*pods, rules=rules), []
        for _ in range(3):
            answer = story.filter(pods[0])
            assert (answer.nodes, answer.no_room, answer.all_kept) == ((), {}, False)  # nor is anything preempted
            assert set(answer.forbidden) == set(story.stage.names)
            texts += {*answer.forbidden.values()}
            story.wait(0.01)
        assert len({*texts}) == len(texts) == 3
        assert all(text.startswith("OldView at 1970-01-01T00:16:40.") and f"Z: {word}: " in text for text in texts)
        assert story.told == []
        assert story.count("turnout_extender_refused_answers_total", reason="OldView") == 3

    def test_only_a_pod_that_comes_again_too_soon_is_kept_waiting(self):
        pods = world.volcano("bert", 5)
        story = self.old(*pods)
        asks = [(pods[0], 0.0), (pods[0], 0.05), (pods[1], 0.0), (pods[0], RETRY_S), (pods[0], 1.0)]
        pauses = []
        for pod, later_s in asks:
            story.wait(later_s)
            pauses.append(story.filter(pod).pause_s)
        assert pauses == pytest.approx([0.0, RETRY_S - 0.05, 0.0, RETRY_S - 0.05, 0.0])

    def test_a_yes_stays_a_yes(self):
        pods = world.volcano("bert", 2)
        answer = self.old(*pods).view.filter(pods[0], ["a0", "a1", "b0", "b1"])
        assert (answer.nodes, answer.pause_s) == (("a0",), 0.0)

    def test_once_the_view_is_new_the_refusal_is_final_and_told(self):
        pods = world.volcano("bert", 5)
        story = self.old(*pods)
        story.filter(pods[0])
        story.view.watches.old = False
        first, second = (story.filter(pods[0]) for _ in range(2))
        assert first.no_room == second.no_room
        assert first.no_room["a0"].startswith("NoRoom: 5 pods must start together")
        assert story.words == [EventReason.NO_ROOM] * 2


class TestLaggingWatch:
    """The scheduler may see a pod go before we do. It asks about who waits for that room at once, and then no more."""

    def story(self):
        """A gang that fits nowhere: as it is seen here, another pod still holds one of the two hosts."""
        old, pods = world.pod("old", 8, at="a1"), world.volcano("bert", 2)
        return Story(2).show(old, *pods), old, pods

    def test_a_refusal_is_no_last_word_while_a_host_full_for_us_is_offered(self):
        story, old, pods = self.story()
        answer = story.filter(pods[0])
        assert set(answer.forbidden) == set(story.stage.names)
        assert all("OldView at " in text and ": NoRoom: " in text for text in answer.forbidden.values())
        assert story.told == []
        story.view.drop_pod(old.metadata.uid)
        assert story.filter(pods[0]).nodes == ("a0",)

    def test_who_offers_only_what_is_free_for_us_gets_the_last_word(self):
        story, _, pods = self.story()
        assert story.filter(pods[0], ["a0"]).no_room["a0"].startswith("NoRoom: ")
        assert story.words == [EventReason.NO_ROOM]

    def test_a_difference_that_lasts_is_one_of_counting_and_the_refusal_final(self):
        story, _, pods = self.story()
        story.filter(pods[0])
        story.wait(CATCH_UP_S)
        assert story.filter(pods[0]).no_room["a0"].startswith("NoRoom: ")
        assert story.words == [EventReason.NO_ROOM]

    def test_a_pod_that_is_gone_is_forgotten(self):
        story, _, pods = self.story()
        story.filter(pods[0])
        story.view.drop_pod(pods[0].metadata.uid)
        story.wait(CATCH_UP_S)
        story.show(pods[0])
        assert story.filter(pods[0]).forbidden


class TestUnseenPodGroup:
    """Pods and their PodGroup come over two watches: which is first is chance."""

    def story(self, *pods, serves=True):
        story = Story(2, 2)
        story.show(*pods).view.watches.serves = serves
        return story

    def test_its_pods_are_asked_about_again_until_it_is_seen(self):
        pods = world.volcano("bert", 3)
        story = self.story(*pods)
        answer = story.filter(pods[0])
        assert (answer.nodes, answer.no_room, answer.all_kept, answer.pause_s) == ((), {}, False, 0.0)
        assert all(": GangUnknown: its PodGroup bert does not exist yet" in text for text in answer.forbidden.values())
        assert len(story.view.view.assumed_pods) == 0
        story.view.view.groups.put_group(Dialect.VOLCANO, world.group("bert", 3, networkTopology=HARD))
        story.filter(pods[0])
        assert story.words == [EventReason.TIER_TOO_NARROW]

    def test_each_answer_reads_unlike_the_last(self):
        pods = world.volcano("bert", 2)
        story, texts = self.story(*pods), []
        for _ in range(3):
            texts += {*story.filter(pods[0]).forbidden.values()}
            story.wait(0.01)
        assert len({*texts}) == len(texts) == 3
        assert story.told == []
        assert story.count("turnout_extender_refused_answers_total", reason="GangUnknown") == 3

    def test_one_that_never_comes_holds_nobody_longer_and_is_told_once(self):
        pods = world.volcano("bert", 2)
        story = self.story(*pods)
        assert not story.filter(pods[0]).nodes
        story.wait(POD_GROUP_WAIT_S)
        nodes_by_pod = [story.filter(pod).nodes for pod in pods]
        assert nodes_by_pod == [("a0",), ("a1",)]
        assert story.words == [EventReason.GANG_UNKNOWN]
        assert "the gang is placed by what its pods state" in story.told[0].detail
        story.view.drop_pod(pods[0].metadata.uid)
        story.wait(100.0)
        story.view.filter(pods[1], story.stage.names)
        assert story.words == [EventReason.GANG_UNKNOWN]

    def native(self, **spec):
        pods = [world.see(each) for each in cluster.native_gang("bert", 2)]
        story = self.story(*pods)
        group_spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "parentCompositePodGroupName": "set"}
        story.view.view.groups.put_group(Dialect.NATIVE, world.group("bert", None, **group_spec))
        return story, pods

    def test_a_parent_that_is_served_is_awaited_as_a_pod_group_is(self):
        story, pods = self.native()
        story.view.watches.serves_parents = True
        texts = story.filter(pods[0]).forbidden.values()
        assert all("a CompositePodGroup above its PodGroup bert does not exist yet" in text for text in texts)
        story.view.view.groups.put_composite(world.group("set", None, schedulingPolicy={"gang": {"minGroupCount": 1}}))
        assert story.filter(pods[0]).nodes == ("a0",)
        assert story.words == []

    def test_a_parent_that_no_server_shows_holds_nobody(self):
        story, pods = self.native()
        assert story.filter(pods[0]).nodes == ("a0",)
        assert story.words == [EventReason.WISH_NOT_KEPT]

    def test_a_wait_of_more_than_a_second_is_told_once(self):
        pods = world.volcano("bert", 2)
        story = self.story(*pods)
        for _ in range(12):
            story.filter(pods[0])
            story.wait(1.0)
        assert story.words == [EventReason.GANG_UNKNOWN] * 2
        assert "its PodGroup bert does not exist yet: the pod waits up to 10 s for it" in story.told[0].detail

    def test_pods_that_state_a_min_wait_for_the_terms_of_their_podgroup_too(self):
        pods = world.volcano("bert", 2, notes={labels.MIN_WORKERS: "2"})
        story = self.story(*pods)
        assert not story.filter(pods[0]).nodes
        story.view.view.groups.put_group(Dialect.VOLCANO, world.group("bert", 2, networkTopology=HARD))
        assert story.filter(pods[0]).nodes == ("a0",)

    def test_meanwhile_no_node_is_scored_and_nothing_is_preempted(self):
        pods = world.volcano("bert", 2, priority=10)
        story = self.story(*pods)
        assert story.view.prioritize(pods[0], story.stage.names) == []
        assert story.view.preempt(pods[0], {"a0": Victims(("uid",))}) == {}
        assert len(story.view.view.assumed_pods) == 0

    def test_nobody_waits_for_a_kind_that_the_api_server_does_not_serve(self):
        pods = world.volcano("bert", 2)
        story = self.story(*pods, serves=False)
        assert story.filter(pods[0]).nodes == ("a0",)
        assert story.told == []


def test_a_pod_known_from_a_request_only_is_answered_and_then_forgotten():
    story, pod = Story(2), world.volcano("bert", 1)[0]
    assert story.filter(pod).nodes
    story.wait(UNCONFIRMED_S - 1)
    assert story.view.describe()["pods"] == 1
    story.wait(2)
    assert story.view.describe()["pods"] == 0


def test_a_pod_that_the_watch_confirms_stays():
    story, pod = Story(2), world.volcano("bert", 1)[0]
    story.filter(pod)
    story.show(pod).wait(UNCONFIRMED_S + 1)
    assert story.view.describe()["pods"] == 1


def test_prioritize_alone_is_believed_as_filter_is():
    story, pods = Story(2), world.volcano("bert", 2)
    story.show(*pods)
    assert story.view.prioritize(pods[0], story.stage.names)[0] == ("a0", 10)
    assert story.view.describe()["assumed"] == 1


def test_pods_with_gpus_on_which_there_is_no_opinion_are_counted():
    story = Story(2)
    claims, level = (
        world.pod("c", 0, resourceClaims=[{"name": "x"}]),
        world.pod("l", resources={"limits": {"nvidia.com/gpu": 1}}),
    )
    unread = world.pod("u")
    unread.spec.containers[0].resources.requests["cpu"] = "lots"
    for each in (claims, level, unread):
        assert story.filter(each).all_kept
    for reason in ("ResourceClaims", "PodLevelGpus", "Unreadable"):
        assert story.count("turnout_extender_unjudged_answers_total", reason=reason) == 1


class TestPartial:
    def test_a_gang_partly_on_hosts_with_too_few_placed_is_counted(self):
        story = Story(2)
        story.show(*world.koordinator("bert", 3, at=["a0"]), world.pod("x", 8, at="a1")).wait(1)
        assert story.count("turnout_gangs", state="partial") == 1

    @pytest.mark.parametrize("pods", [
        pytest.param(world.koordinator("bert", 3), id="nobody holds one"),
        pytest.param(world.koordinator("bert", 3, minimum=1, at=["a0"]), id="enough do"),
        pytest.param(world.koordinator("bert", 2, at=["a0", "a1"]), id="all do"),
        pytest.param([world.pod("lone")], id="a pod by itself"),
    ])  # fmt: skip
    def test_others_are_not(self, pods):
        story = Story(2)
        story.show(*pods).wait(1)
        assert story.count("turnout_gangs", state="partial") == 0


@pytest.mark.parametrize(("pods", "counts"), [
    pytest.param(world.koordinator("bert", 2, at=["a0", "a1"]), {"placed": 1}, id="every member has a host"),
    pytest.param(world.koordinator("bert", 4), {"waiting": 1}, id="no room for the gang"),
    pytest.param([world.pod("lone")], {}, id="a pod without a gang"),
])  # fmt: skip
def test_gangs_are_counted_by_state(pods, counts):
    story = Story(2)
    story.show(*pods).wait(1)
    found = {state: story.count("turnout_gangs", state=state) for state in ("placed", "waiting", "partial")}
    assert found == {"placed": 0, "waiting": 0, "partial": 0} | counts


def test_the_quality_of_the_fabric_is_shown():
    story = Story(2, 2)
    story.view.view.layout.put_node(world.node("x0", 8, "10.99.0.1"))
    story.show(*world.volcano("bert", 2, at=["a0", "b0"])).wait(1)
    assert story.count("turnout_gangs_by_excess_leaves", excess="1") == 1
    assert story.count("turnout_gang_excess_leaves", gang_namespace="default", gang_name="bert") == 1
    assert story.count("turnout_unmapped_hosts") == 1
    assert [story.count("turnout_fabric_largest_gang_gpus", tier=tier) for tier in "12"] == [8, 16]


class TestUnenforced:
    @pytest.mark.parametrize(("pods", "count"), [
        pytest.param(world.volcano("bert", 2, at=["a0", "b0"], notes=REQUIRED), {"tier": 2}, id="a gang in two leaves"),
        pytest.param(world.volcano("bert", 2, at=["a0", "x0"], notes=REQUIRED), {"tier": 2}, id="or off the map"),
        pytest.param(world.volcano("bert", 2, at=["a0", "a1"], notes=REQUIRED), {}, id="in one leaf all is well"),
        pytest.param(world.volcano("bert", 2, at=["a0", "b0"]), {}, id="a gang that only prefers"),
        pytest.param(world.volcano("bert", 2, at=["a0"], notes=REQUIRED), {}, id="one member spans nothing"),
        pytest.param(
            world.volcano("bert", 2, at=["a0", "b0"], notes={**REQUIRED, labels.TOPOLOGY_TIER: "2"}), {}, id="tier 2"
        ),
        pytest.param(world.koordinator("bert", 2, minimum=4, at=["a0", "a1"]), {"whole": 2},
                     id="a held gang, not whole"),
        pytest.param(world.koordinator("bert", 4, minimum=4, at=["a0", "a1"]), {}, id="a whole one on its way"),
    ])  # fmt: skip
    def test_bound_pods_against_the_rule_are_counted(self, pods, count):
        story = Story(2, 2, rules=Rules(hold_incomplete=True))
        story.view.view.layout.put_node(world.node("x0", 8, "10.99.0.1"))
        story.show(*pods).wait(1)
        counts = {rule: story.count("turnout_gang_pods_violating", rule=rule) for rule in ("tier", "whole")}
        assert counts == {"tier": 0, "whole": 0} | count
        named = story.count("turnout_gang_violation_pods", gang_namespace="default", gang_name="bert")
        assert named == (sum(count.values()) or None)

    def test_incomplete_gangs_are_nobodys_business_where_they_are_not_held(self):
        story = Story(2)
        story.show(*world.koordinator("bert", 2, minimum=4, at=["a0", "a1"])).wait(1)
        assert story.count("turnout_gang_pods_violating", rule="whole") == 0


def test_a_stranger_to_the_view_may_be_asked_about_in_every_verb():
    story, pod = Story(2, mapped=False), world.volcano("bert", 1)[0]
    assert story.filter(pod).all_kept
    assert story.view.prioritize(pod, story.stage.names) == []
    victims = {"a0": Victims(("u",))}
    assert story.view.preempt(pod, victims) == victims
    assert story.view.unready_reason() is None
    story.view.watches.unseen = "waiting for the first list of pods"
    assert story.view.unready_reason() == "waiting for the first list of pods"


def test_the_account_of_the_world_says_who_waits_for_what():
    story = Story(2, 2)
    story.show(*world.volcano("bert", 2), *world.koordinator("wide", 5))
    account = story.view.describe()
    assert (account["mapped_hosts"], account["nodes"], account["pods"], account["gangs"], account["plans"]) == (
        4,
        4,
        7,
        2,
        2,
    )
    by_name = {each["gang"]: each for each in account["waiting"]}
    assert by_name["default/bert"]["hosts"] == {"bert-0": "a0", "bert-1": "a1"}
    assert by_name["default/wide"]["refusal"].startswith("NoRoom: 5 pods must start together")
