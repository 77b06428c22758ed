"""A gang as a whole, from the words of its PodGroup or owner and of each of its pods."""

import dataclasses

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED
from turnout.jobs.gang import Dialect, GangKey
from turnout.jobs.wishes.model import Exclusion, GroupRule, Layer, Mode, Wish
from turnout.kube import labels
from turnout.scheduler_ext.cluster.gang import Gang, Sizing
from turnout.scheduler_ext.cluster.ignored_wishes import ignored_terms, overruled_runs
from turnout.scheduler_ext.cluster.member import member_of

BERT = GangKey("default", "bert", Dialect.VOLCANO.value)
JOB = GangKey("default", "Job/bert", Dialect.OWNER.value)


def gang(*pods, key=BERT, version=7, **sized):
    """A gang of these pods. sized: what its PodGroup says, if it has one."""
    sizing = Sizing(**{"min_pods": None, "total": None, "uid": "g", "created": "2026", **sized}) if sized else None
    new_gang = Gang(key, version, sizing)
    for pod in pods:
        new_gang.join(member_of(pod))
    return new_gang


def wishing(*wishes, own=None, **more):
    """A gang with a member for each of these wishes. own: that of its PodGroup."""
    gangs = gang(*world.volcano("bert", len(wishes)), **({"wish": own} if own else {}), **more)
    for member, wish in zip(list(gangs.members.values()), wishes, strict=True):
        belongs = dataclasses.replace(member.membership, wish=wish)
        gangs.join(dataclasses.replace(member, membership=belongs))
    return gangs


def mesh(*axes, gpus=8, sizes=(2, 2), **sized):
    """Tell what is not kept of the mesh that a gang asks for. sizes: of its pods, and as each of them announces."""
    pods, total = sizes
    notes = {labels.MESH: ",".join(axes)}
    gang_pods = world.koordinator("bert", pods, minimum=total, total=total, gpus=gpus, notes=notes)
    return ignored_terms(gang(*gang_pods, **sized))


class TestSizes:
    @pytest.mark.parametrize(("sized", "sizes", "minimum", "total"), [
        pytest.param({}, {}, 2, 2, id="nothing is said: all that exist"),
        pytest.param({"min_pods": 4}, {}, 4, 4, id="the PodGroup's min"),
        pytest.param({"min_pods": 1}, {}, 1, 2, id="a min below those that exist"),
        pytest.param({"total": 5}, {}, 5, 5, id="the owner's total, without a min"),
        pytest.param({}, {"minimum": 3, "total": 6}, 3, 6, id="the pods' own words"),
        pytest.param({"min_pods": 4}, {"minimum": 9}, 4, 4, id="the pods cannot raise the PodGroup's min"),
        pytest.param({"min_pods": 0}, {"minimum": 9}, 9, 9, id="a min of none is none"),
        pytest.param({"total": 5}, {"minimum": 3, "total": 9}, 3, 5, id="the owner's total and the pods' min"),
    ])  # fmt: skip
    def test_who_says_how_many_start_and_how_many_there_will_be(self, sized, sizes, minimum, total):
        pods = world.koordinator("bert", 2, **sizes) if sizes else world.volcano("bert", 2)
        gangs = gang(*pods, **sized)
        assert (gangs.min_pods, gangs.total) == (minimum, total)

    @pytest.mark.parametrize(("notes", "maximum"), [
        pytest.param({}, 4, id="no further than its total"),
        pytest.param({labels.MAX_WORKERS: "9"}, 9, id="as far as a pod says"),
        pytest.param({labels.MAX_WORKERS: "3"}, 4, id="never below its total"),
    ])  # fmt: skip
    def test_how_far_a_gang_may_grow(self, notes, maximum):
        assert gang(*world.volcano("bert", 2, notes=notes), min_pods=4).max_pods == maximum

    def test_only_members_that_stay_count(self):
        pods = world.volcano("bert", 3)
        leaving = world.volcano("bert", 4, leaving=True, priority=-5)[3]
        gangs = gang(*pods, leaving)
        assert (len(gangs.living()), gangs.min_pods, gangs.total, gangs.priority) == (3, 3, 3, 0)
        assert (gangs.leave("uid-bert-0"), gangs.leave("uid-bert-0")) == (True, False)
        assert gangs.min_pods == 2
        assert gang(leaving).max_pods == 0

    @pytest.mark.parametrize(("wish", "minimum"), [
        pytest.param(Wish(source="a wish"), 0, id="only near: they start one by one"),
        pytest.param(Wish(source="a wish", required=1), 2, id="within a tier"),
        pytest.param(Wish(source="a wish", layers=(Layer(1, 2),)), 2, id="in layers"),
        pytest.param(Wish(source="a wish", groups=(GroupRule(size=2),)), 2, id="in groups"),
    ])  # fmt: skip
    def test_pods_of_a_plain_job_start_together_where_their_place_asks_for_it(self, wish, minimum):
        assert wishing(wish, wish, key=JOB).min_pods == minimum

    def test_roles_count_only_where_the_min_covers_all_of_them(self):
        roles = (("", 1), ("worker", 3))
        assert gang(*world.volcano("bert", 1), min_pods=4, min_by_role=roles).min_by_role == roles
        assert gang(*world.volcano("bert", 1), min_pods=3, min_by_role=roles).min_by_role == ()

    @pytest.mark.parametrize(("key", "sized", "minimum", "lacks"), [
        pytest.param(BERT, {}, None, True, id="no word of a size, and a PodGroup that is named"),
        pytest.param(JOB, {}, None, False, id="an owner's pods name no PodGroup"),
        pytest.param(BERT, {"min_pods": 2}, None, False, id="the PodGroup is there"),
        pytest.param(BERT, {}, 2, False, id="the pods say it"),
    ])  # fmt: skip
    def test_when_a_podgroup_is_missing(self, key, sized, minimum, lacks):
        pods = world.koordinator("bert", 2, minimum=minimum) if minimum else world.volcano("bert", 2)
        assert gang(*pods, key=key, **sized).lacks_pod_group is lacks


class TestTerms:
    def test_terms_follow_the_pod_group_and_the_members(self):
        new_gang = wishing(Wish(source="a pod", required=1), own=Wish(source="the PodGroup", multiple=2), min_pods=1)
        assert (new_gang.terms.required_levels, new_gang.multiple) == ((1,), 2)
        new_gang.leave("uid-bert-0")
        assert (new_gang.terms.required_levels, new_gang.multiple) == ((), 2)
        new_gang.sizing = dataclasses.replace(new_gang.sizing, wish=Wish(source="the PodGroup", multiple=4))
        assert new_gang.multiple == 4
        new_gang.sizing = None
        assert (new_gang.multiple, new_gang.terms.wishes) == (1, ())

    def test_a_pod_group_without_terms_has_no_wish(self):
        assert gang(*world.volcano("bert", 1), min_pods=1).terms.wishes == ()

    def test_a_tier_follows_the_map(self):
        tiers = {"zone": 2}
        new_gang = wishing(Wish(source="a pod", required="zone"))
        new_gang.tier_of = tiers.get
        assert new_gang.tier == 2
        tiers["zone"] = 1
        assert new_gang.tier == 1


class TestStart:
    def test_what_is_said_long_after_the_start_lets_it_go_before_nobody(self):
        gangs = gang(*world.volcano("bert", 2), min_pods=2)
        assert gangs.min_pods_to_finish == 2
        gangs.note_member_has_host(100.0, 300.0)
        gangs.sizing = dataclasses.replace(gangs.sizing, min_pods=4)
        assert gangs.min_pods_to_finish == 2
        gangs.note_member_has_host(400.0, 300.0)  # the last moment in which members may still come
        assert gangs.min_pods_to_finish == 4
        gangs.sizing = dataclasses.replace(gangs.sizing, min_pods=6)
        gangs.note_member_has_host(400.5, 300.0)
        assert gangs.min_pods_to_finish == 4
        gangs.sizing = dataclasses.replace(gangs.sizing, min_pods=3)
        assert gangs.min_pods_to_finish == 3

    @pytest.mark.parametrize(("gates", "lifted_gates", "able"), [
        pytest.param([[], []], False, True, id="no gates"),
        pytest.param([["ours"], ["ours"]], True, True, id="our gates, which are lifted"),
        pytest.param([["ours"], ["ours"]], False, False, id="our gates, which nobody lifts"),
        pytest.param([["theirs"], ["theirs"]], True, False, id="the gates of others"),
        pytest.param([["ours"], ["theirs"]], True, False, id="too few without the gate of another"),
        pytest.param([[], ["theirs"]], True, False, id="one of two"),
    ])  # fmt: skip
    def test_behind_which_gates_a_gang_could_start(self, gates, lifted_gates, able):
        names = {"ours": labels.PLACEMENT_GATE, "theirs": "example.com/hold"}
        pods = [
            world.volcano("bert", at + 1)[at] if not own else gated(at, [names[name] for name in own])
            for at, own in enumerate(gates)
        ]
        assert gang(*pods).could_start(gates_lifted=lifted_gates) is able

    def test_a_gang_that_runs_may_go_on_with_one_more_of_those_that_wait(self):
        runs = world.volcano("bert", 2, at=["a0"])
        assert gang(*runs, min_pods=4).could_start(gates_lifted=False)
        assert not gang(*runs[1:], min_pods=4).could_start(gates_lifted=False)
        assert not gang(*world.volcano("bert", 2, at=["a0", "a1"])).could_start(gates_lifted=False)

    def test_each_role_must_have_enough_until_a_member_runs(self):
        roles = (("", 1), ("worker", 1))
        task = {labels.VOLCANO_TASK_SPEC: "worker"}
        workers = world.volcano("bert", 2, notes=task)
        assert not gang(*workers, min_pods=2, min_by_role=roles).could_start(gates_lifted=False)
        assert gang(*workers, world.volcano("bert", 3)[2], min_pods=2, min_by_role=roles).could_start(
            gates_lifted=False
        )
        runs = world.volcano("bert", 2, notes=task, at=["a0"])
        assert gang(*runs, min_pods=2, min_by_role=roles).could_start(gates_lifted=False)


def gated(at, gates):
    """Member number `at` of bert behind some gates."""
    pods = world.cluster.volcano_gang("bert", at + 1, schedulingGates=[{"name": name} for name in gates])
    return world.see(pods[at])


class TestPlace:
    def test_multiples_of_members_and_group_are_combined_to_the_least_common(self):
        two, three = Wish(source="a", multiple=2), Wish(source="b", multiple=3)
        hosts = Wish(source="c", layers=(Layer(1, 8), Layer(0, 4)))
        assert [wishing(two).multiple, wishing(two, three).multiple, wishing(two, own=three).multiple] == [2, 6, 6]
        assert wishing(hosts).multiple == 4
        assert wishing(Wish()).multiple == 1

    def test_a_multiple_that_cannot_be_kept_beside_another_is_reported(self):
        large, other = Wish(source="a", multiple=1000), Wish(source="b", multiple=7)
        assert wishing(large, other).multiple == 1000
        assert [each.partition(",")[0] for each in ignored_terms(wishing(large, other))] == ["7 pods on a host"]
        assert ignored_terms(wishing(other, Wish(source="c", multiple=2))) == []

    def test_runs_of_ranks_that_give_way_are_reported_with_those_kept(self):
        eight, twelve = Wish(source="a", layers=(Layer(1, 8),)), Wish(source="b", layers=(Layer(1, 12),))
        for made in (wishing(twelve, own=eight), wishing(eight, own=twelve)):
            assert made.layers == ((1, 12),)
            assert list(overruled_runs(made)) == ["the runs of 8 ranks of a are not kept, because b states runs of 12"]
        for made in (wishing(eight, twelve), wishing(twelve, eight)):
            assert made.layers == ((1, 8),)
            assert list(overruled_runs(made)) == ["the runs of 12 ranks of b are not kept, because a states runs of 8"]
        assert list(overruled_runs(wishing(eight, own=eight))) == []
        on_one_host = Wish(source="c", layers=(Layer(0, 2),))
        assert list(overruled_runs(wishing(eight, on_one_host))) == []

    @pytest.mark.parametrize(("layers", "found"), [
        pytest.param((Layer(2, 8), Layer(1, 4)), ((2, 8), (1, 4)), id="inwards"),
        pytest.param((Layer(1, 8), Layer(2, 4)), ((1, 8),), id="a wider domain around fewer says nothing more"),
        pytest.param((Layer(1, 8), Layer(1, 4)), ((1, 8),), id="the same domain twice"),
        pytest.param((Layer(1, 8), Layer(0, 4)), ((1, 8),), id="a host is no layer of switches"),
        pytest.param((Layer("what", 8),), ((1, 8),), id="a level that nobody knows is a leaf"),
    ])  # fmt: skip
    def test_which_layers_count(self, layers, found):
        assert wishing(Wish(source="a", layers=layers)).layers == found

    def test_of_two_members_layers_those_of_the_longer_wish_count(self):
        one, two = Wish(source="a", layers=(Layer(1, 9),)), Wish(source="b", layers=(Layer(2, 4), Layer(1, 2)))
        assert wishing(one, two).layers == wishing(two, one).layers == ((2, 4), (1, 2))
        assert wishing(Wish(source="c")).layers == ()

    @pytest.mark.parametrize(
        ("of_group", "of_pods", "found"),
        [
            pytest.param(Layer(2, 8), Layer(1, 4), ((2, 8), (1, 4)), id="one within the other"),
            pytest.param(Layer(1, 4), Layer(2, 8), ((2, 8), (1, 4)), id="the other way round"),
            pytest.param(Layer(1, 8), Layer(1, 3), ((1, 8),), id="of two that do not divide each other the larger"),
        ],
    )
    def test_runs_of_the_podgroup_and_of_its_pods_count_together(self, of_group, of_pods, found):
        own, wish_of_pods = Wish(source="group", layers=(of_group,)), Wish(source="pods", layers=(of_pods,))
        assert wishing(wish_of_pods, own=own).layers == found

    def test_what_one_member_says_holds_for_all(self):
        plain = Wish(source="a")
        wish = Wish(
            source="b", balanced=True, together="set", together_of=3, one_domain=True, mode=Mode.FILL, mesh=(("dp", 2),)
        )
        one, without_wish = wishing(plain, wish), wishing(plain, plain)
        assert (
            one.terms.balanced,
            one.terms.sets.together_name,
            one.terms.sets.together_size,
            one.terms.sets.one_domain,
            one.fills_holes,
        ) == (
            True,
            "set",
            3,
            True,
            True,
        )
        assert one.mesh == (("dp", 2),)
        assert (
            without_wish.terms.balanced,
            without_wish.terms.sets.together_name,
            without_wish.terms.sets.together_size,
            without_wish.terms.sets.one_domain,
            without_wish.fills_holes,
        ) == (
            False,
            "",
            0,
            False,
            False,
        )
        assert without_wish.mesh == ()

    def test_what_the_podgroup_says_of_others_holds_beside_members_wishes(self):
        own = Wish(source="g", required=2, together="set", together_of=2, one_domain=True, groups=(GroupRule(size=2),))
        both, own_wish_only = wishing(Wish(source="a"), own=own), wishing(Wish(), own=own)
        assert (
            both.terms.sets.together_name,
            both.terms.sets.together_size,
            both.terms.sets.one_domain,
            len(both.terms.group_rules),
        ) == ("set", 2, True, 1)
        assert (both.tier, own_wish_only.tier) == (2, 2)

    @pytest.mark.parametrize(("wish", "binds"), [
        pytest.param(Wish(source="a"), False, id="nearness alone"),
        pytest.param(Wish(source="a", required=2), True, id="a tier that is required"),
        pytest.param(Wish(source="a", groups=(GroupRule(size=2),)), False, id="groups that may be anywhere"),
        pytest.param(Wish(source="a", groups=(GroupRule(size=2), GroupRule(level=1))), True, id="groups in a level"),
    ])  # fmt: skip
    def test_when_members_without_accelerators_have_their_places_too(self, wish, binds):
        assert wishing(wish).terms.places_all_members is binds

    def test_a_set_keeps_apart_by_the_widest_domain_that_a_member_names(self):
        named = Wish(source="a", exclusion=Exclusion(1, "evals")), Wish(source="b", exclusion=Exclusion(2))
        assert (wishing(*named).exclusive_tier, wishing(*named).exclusive_set) == (2, "evals")
        assert wishing(named[1]).exclusive_tier is None  # without a set
        assert "is not kept without" in " ".join(ignored_terms(wishing(named[1])))
        assert ignored_terms(wishing(*named)) == []
        marks = {labels.JOBSET_NAME: "jobset"}
        kin = gang(*world.volcano("bert", 1, marks=marks, notes={labels.APART: "leaf"}))
        assert (kin.exclusive_set, kin.exclusive_tier) == ("jobset", 1)


class TestUnkept:
    @pytest.mark.parametrize(("sentence", "mesh_holds"), [
        pytest.param(mesh("dp=2", "tp=8"), True, id="as many ranks as accelerators"),
        pytest.param(mesh("dp=4", "tp=8"), False, id="more ranks than accelerators"),
        pytest.param(mesh("dp=2", "tp=4"), False, id="fewer"),
        pytest.param(mesh("dp=2", "tp=8", sizes=(1, 2)), True, id="members that are announced count"),
        pytest.param(mesh("tp=8", sizes=(1, 2)), False, id="not only those that exist"),
        pytest.param(mesh("tp=8", gpus=0), True, id="nobody with an accelerator is seen yet"),
    ])  # fmt: skip
    def test_a_mesh_is_kept_where_the_accelerators_are_as_many(self, sentence, mesh_holds):
        assert bool(sentence) is not mesh_holds

    def test_while_nobody_announces_a_size_a_mesh_may_still_become_whole(self):
        notes = {labels.MESH: "dp=4,tp=8"}
        assert ignored_terms(gang(*world.volcano("bert", 2, notes=notes))) == []
        assert ignored_terms(gang(*world.volcano("bert", 2, notes=notes), min_pods=2)) != []

    def test_a_mesh_of_unlike_pods_is_not_doubted(self):
        notes = {labels.MESH: "dp=2,tp=8"}
        pods = (world.volcano("bert", 1, notes=notes)[0], world.volcano("bert", 2, gpus=4, notes=notes)[1])
        assert ignored_terms(gang(*pods, min_pods=2)) == []

    @pytest.mark.parametrize(("wish", "sentence"), [
        pytest.param(Wish(source="a", balanced=True), False, id="balance alone"),
        pytest.param(Wish(source="a", balanced=True, layers=(Layer(1, 2),)), True, id="beside layers"),
        pytest.param(Wish(source="a", balanced=True, groups=(GroupRule(size=2),)), True, id="beside groups"),
        pytest.param(Wish(source="a", balanced=True, mesh=(("dp", 2),)), True, id="beside a mesh"),
        pytest.param(Wish(source="a", layers=(Layer(1, 2),)), False, id="layers alone"),
        pytest.param(Wish(source="a", mesh=(("dp", 2),)), False, id="a mesh alone"),
    ])  # fmt: skip
    def test_balance_is_not_kept_beside_what_orders_members_otherwise(self, wish, sentence):
        assert (
            f"{labels.BALANCED} is not kept, because the gang has layers, groups or a mesh"
            in ignored_terms(wishing(wish))
        ) is sentence

    @pytest.mark.parametrize(("wish", "source"), [
        pytest.param(Wish(source="a", required="what"), "a", id="a tier"),
        pytest.param(Wish(source=labels.TOPOLOGY, required="what"), labels.TOPOLOGY_TIER, id="our tier"),
        pytest.param(Wish(source="a", layers=(Layer("what", 2),)), "a", id="a layer"),
        pytest.param(Wish(source="a", groups=(GroupRule(level="what"),)), "a", id="a group's"),
        pytest.param(Wish(source="a", exclusion=Exclusion("what", "set")), labels.APART, id="a distance"),
    ])  # fmt: skip
    def test_a_level_that_is_not_there_is_told_once(self, wish, source):
        sentence = f"{source} names 'what', which is no level here: it counts as a leaf"
        assert ignored_terms(wishing(wish, wish)) == [sentence]

    def test_of_a_level_without_end_the_beginning_is_told(self):
        sentences = ignored_terms(wishing(Wish(source="a", required="x" * 500)))
        assert sentences == [f"a names {'x' * 80!r}, which is no level here: it counts as a leaf"]


class TestOrder:
    def test_a_gang_is_as_important_as_the_least_of_its_members(self):
        assert gang(world.volcano("bert", 1, priority=5)[0], world.volcano("bert", 2, priority=3)[1]).priority == 3
        assert gang().priority == 0

    def test_its_age_is_that_of_its_podgroup_else_of_its_first_pod(self):
        late, early = world.volcano("bert", 1, created=9)[0], world.volcano("bert", 2, created=3)[1]
        assert gang(late, early).age == ("2026-01-01T00:00:03Z", 7, "uid-bert-1")
        assert gang(late, early, min_pods=2).age == ("2026", 7, "g")
        assert gang().age == ("", 7, "")

    def test_its_queue_is_its_podgroups_else_the_first_that_a_member_names(self):
        queued = world.volcano("bert", 2, marks={labels.KUEUE_QUEUE: "train"})[1]
        plain = world.volcano("bert", 1)[0]
        assert [gang(plain, queued).queue, gang(plain).queue] == ["train", ""]
        assert gang(plain, queued, queue="urgent").queue == "urgent"
        assert gang(plain, queued, queue="").queue == "train"

    def test_whatever_is_said_anew_is_another_word(self):
        plain, asking = gang(*world.volcano("bert", 2)), gang(*world.volcano("bert", 2, notes=REQUIRED))
        assert plain.stated_terms == gang(*world.volcano("bert", 2)).stated_terms
        assert plain.stated_terms != asking.stated_terms
        assert plain.stated_terms != gang(*world.volcano("bert", 2), min_pods=1).stated_terms
