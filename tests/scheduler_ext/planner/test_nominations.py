"""Nominations: which are made, which are taken back, and which are left alone."""

from dataclasses import replace

import msgspec
import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World, leaves
from turnout.jobs.gang import GangKey
from turnout.kube import labels
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.nominations import NominationChoices, NominationReason, clear_all, nominate

CHOICES = NominationChoices(Rules(), frozenset({"default-scheduler"}), expire_s=60.0)


def wishes(w, choices=CHOICES, since_s=None):
    """{pod: (node, why)} of all that is to be written."""
    found = nominate(w.plans, list(w.view.gangs), choices, since_s or {}, w.now_s)
    return {wish.name: (wish.node, wish.reason) for wish in found}


def written(w, pods, nominations, ours=True):
    """Show the pods with their nominations on them."""
    names = {pod.metadata.name: pod for pod in pods}
    for name, (node, _) in nominations.items():
        w.put(nominee(names[name], node, ours))


def nominee(pod, node, ours=True):
    raw_pod = msgspec.to_builtins(pod)
    return world.see(raw_pod, uid=pod.metadata.uid, nominated=node, ours=ours)


def test_a_gang_is_nominated_whole_under_one_leaf_at_its_first_pod():
    w, gang = World(4, 4), world.koordinator("g", 4, total=4)
    w.put(gang[0])
    first = wishes(w)
    w.put(*gang)
    nominations_now = wishes(w)
    assert set(nominations_now) == {"g-0", "g-1", "g-2", "g-3"}
    assert first.items() <= nominations_now.items()
    assert len(leaves({name: node for name, (node, _) in nominations_now.items()})) == 1
    assert {why for _, why in nominations_now.values()} == {NominationReason.PLANNED}


def test_what_is_written_already_is_not_written_again():
    w, gang = World(4, 4), world.koordinator("g", 4)
    w.put(*gang)
    written(w, gang, wishes(w))
    assert wishes(w) == {}


def test_lone_pods_are_nominated_into_different_slots_of_the_tightest_host():
    w = World(2, gpus=4).put(world.pod("there", 1, at="a1"))
    w.put(*(world.pod(f"p{at}", 1) for at in range(4)))
    nodes = [node for node, _ in wishes(w).values()]
    assert sorted(nodes) == ["a0", "a1", "a1", "a1"]


@pytest.mark.parametrize(
    ("pods", "choices"),
    [
        pytest.param(
            world.koordinator("g", 2), NominationChoices(Rules(), frozenset({"volcano"})), id="another's scheduler"
        ),
        pytest.param([world.pod("p", 0)], CHOICES, id="a pod without a GPU"),
        pytest.param(
            world.koordinator("g", 2, minimum=4), NominationChoices(Rules(True), CHOICES.schedulers), id="a held gang"
        ),
        pytest.param(
            [world.pod("p", volumes=[{"name": "d", "persistentVolumeClaim": {}}])], CHOICES, id="a pod with a volume"
        ),
        pytest.param([world.pod("p", affinity={"podAffinity": {"x": 1}})], CHOICES, id="a pod with affinity"),
        pytest.param([world.pod("p", schedulingGates=[{"name": "wait"}])], CHOICES, id="a gated pod"),
        pytest.param(world.koordinator("g", 9), CHOICES, id="a gang that does not fit"),
    ],
)
def test_these_are_not_nominated(pods, choices):
    w = World(4, 4).put(*pods)
    assert wishes(w, choices) == {}
    assert len(w.view.assumed_pods) == 0


def test_a_nomination_of_somebody_else_is_never_touched():
    w, gang = World(4, 4), world.koordinator("g", 3)
    w.put(*gang, nominee(gang[1], "b2", ours=False))
    nominations_now = wishes(w)
    assert set(nominations_now) == {"g-0", "g-2"}
    assert {node[0] for node, _ in nominations_now.values()} == {"b"}


def test_nominations_of_a_min_stay_though_another_member_finds_no_room():
    w, gang = World(2), world.koordinator("g", 3, minimum=2)
    w.put(nominee(gang[0], "a1"), nominee(gang[1], "a0"), gang[2])
    assert wishes(w) == {}


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(["b0", "b1"], id="in another leaf"),
        pytest.param(["b1", "b0"], id="in another order"),
        pytest.param(["b1", "b1"], id="on one host"),
        pytest.param(["a1", "b0"], id="apart"),
    ],
)
def test_what_is_nominated_stays_though_a_fresh_plan_would_go_elsewhere(nodes):
    w, gang = World(2, 2), world.koordinator("g", 2, gpus=8 if len(set(nodes)) == 2 else 4)
    w.put(*(nominee(pod, node) for pod, node in zip(gang, nodes, strict=True)))
    assert wishes(w) == {}


def test_a_nominated_node_that_is_lost_is_given_up_for_the_nearest():
    w, gang = World(4, 4), world.koordinator("g", 3)
    w.put(*gang)
    nominations_now = wishes(w)
    written(w, gang, nominations_now)
    lost = nominations_now["g-1"][0]
    w.view.layout.put_node(world.node(lost, spec={"unschedulable": True}))
    second_nominations = wishes(w)
    assert set(second_nominations) == {"g-1"}
    node, why = second_nominations["g-1"]
    assert (node[0], why) == (lost[0], NominationReason.REPLANNED)
    assert node != lost


def test_a_gang_refused_later_loses_all_its_nominations():
    w, gang = World(4, 3), world.koordinator("g", 4, notes=REQUIRED)
    w.put(*gang)
    written(w, gang, wishes(w))
    w.view.layout.put_node(world.node("a0", spec={"unschedulable": True}))
    assert wishes(w) == {f"g-{at}": ("", NominationReason.REFUSED) for at in range(4)}


def test_a_nomination_that_stands_too_long_is_undone_and_not_repeated_soon():
    w, gang = World(4, 4), world.koordinator("g", 2)
    w.put(*gang)
    written(w, gang, wishes(w))
    since_s = {pod.metadata.uid: w.now_s - 61 for pod in gang}
    assert set(wishes(w, since_s=since_s).values()) == {("", NominationReason.EXPIRED)}
    w.put(*gang)  # as they are without it
    assert wishes(w, since_s=dict.fromkeys(since_s, w.now_s - 1)) == {}


def test_a_gang_of_higher_priority_takes_room_and_nominations_behind_it():
    w, low, top = World(2), world.koordinator("low", 2), world.koordinator("top", 2, priority=9)
    w.put(*low)
    written(w, low, wishes(w))
    w.put(*top)
    nominations_now = wishes(w)
    assert {name: why for name, (_, why) in nominations_now.items()} == {
        "top-0": NominationReason.PLANNED,
        "top-1": NominationReason.PLANNED,
        "low-0": NominationReason.REFUSED,
        "low-1": NominationReason.REFUSED,
    }


def test_a_newcomer_of_the_same_priority_does_not_move_what_is_nominated():
    w, first = World(4, 4), world.koordinator("first", 3, created=5)
    w.put(*first)
    nominations_now = wishes(w)
    written(w, first, nominations_now)
    w.put(*world.koordinator("older", 4, created=1))
    assert set(wishes(w)) == {"older-0", "older-1", "older-2", "older-3"}


def test_higher_priority_is_written_first():
    w = World(4, 4).put(*world.koordinator("low", 2), *world.koordinator("top", 2, priority=9))
    found = nominate(w.plans, list(w.view.gangs), CHOICES, {}, w.now_s)
    assert [wish.name.split("-")[0] for wish in found] == ["top", "top", "low", "low"]


def test_a_gang_gone_and_one_off_the_map_keep_no_other_from_nomination():
    w = World(2).put(*world.koordinator("g", 1))
    (key,) = w.view.gangs
    deleted_key = replace(key, name="gone")
    assert [wish.name for wish in nominate(w.plans, [deleted_key, key], CHOICES, {}, w.now_s)] == ["g-0"]
    assert wishes(World(2, mapped=False).put(*world.koordinator("g", 1))) == {}


def test_clearing_takes_back_ours_only():
    ours, theirs = world.pod("ours"), world.pod("theirs")
    w = World(4).put(nominee(ours, "a0"), nominee(theirs, "a1", ours=False), world.pod("bare"))
    assert [(wish.name, wish.node, wish.reason) for wish in clear_all(w.view.pods.values())] == [
        ("ours", "", NominationReason.CLEARED)
    ]


@pytest.mark.parametrize(
    ("lifts", "says"),
    [
        pytest.param(True, {}, id="whoever lifts gates nominates them"),
        pytest.param(
            False,
            {"g-0": ("", NominationReason.NOT_OURS_TO_PLACE)},
            id="nobody does: what a former one left is cleared",
        ),
    ],
)
def test_pods_behind_our_gate_are_nominated_by_nobody_else(lifts, says):
    w = World(4)
    w.view.lifts_gates = lifts
    gated = world.cluster.koordinator_gang("g", 2, schedulingGates=[{"name": labels.PLACEMENT_GATE}])
    w.put(world.see(gated[0], nominated="a0", ours=True), world.see(gated[1]))
    assert wishes(w) == says


def test_of_two_pods_of_one_name_none_is_nominated_while_both_are_seen():
    """One of them was deleted and made anew, and the watch shows its end late."""
    w = World(2).put(world.pod("p", 8), world.pod("p", 8, uid="again"))
    assert wishes(w) == {}


def test_a_pod_of_another_scheduler_takes_no_room_by_what_we_would_do():
    theirs = world.see(world.cluster.make_pod("p", 8, scheduler="other"))
    w = World(2).put(theirs, world.pod("bound", 8, at="a0"))
    assert wishes(w) == {}
    assert set(w.view.snapshot.charges) == {"uid-bound"}


def test_a_pod_by_itself_is_believed_to_go_where_it_is_nominated():
    w = World(2).put(world.pod("p", 8))
    assert wishes(w) == {"p": ("a0", NominationReason.PLANNED)}
    assert w.view.snapshot.charges["uid-p"].node == "a0"
    pinned = World(2).put(world.pod("p", 8, volumes=[{"name": "d", "persistentVolumeClaim": {}}]))
    assert (wishes(pinned), pinned.view.snapshot.charges) == ({}, {})


def test_pods_are_nominated_in_the_order_in_which_the_scheduler_will_ask():
    w = World(8).put(
        world.pod("old", 8, created=1), world.pod("new", 8, created=9), world.pod("high", 8, priority=5, created=9),
        world.pod("next", 8, created=1),
    )  # fmt: skip
    found = nominate(w.plans, list(w.view.gangs), CHOICES, {}, w.now_s)
    assert [wish.name for wish in found] == ["high", "old", "next", "new"]


def test_a_member_that_was_sent_somewhere_is_nominated_for_that_node():
    w, pods = World(4), world.volcano("g", 2)
    w.put(*pods).view.settle(w.now_s)
    w.view.assume(w.member(pods[0]), "a3", w.now_s)
    assert wishes(w)["g-0"] == ("a3", NominationReason.PLANNED)


def test_without_a_map_or_a_plan_nothing_is_nominated():
    assert wishes(World(2, mapped=False).put(*world.volcano("g", 2))) == {}
    assert wishes(World(2).put(*world.volcano("g", 3))) == {}
    assert nominate(World(1).plans, [GangKey("ns", "gone", "owner")], CHOICES, {}, 1.0) == []


@pytest.mark.parametrize(("holds", "node"), [
    pytest.param(True, {}, id="not while its min does not exist, where that is held"),
    pytest.param(False, {"g-0", "g-1"}, id="at once, where it is not"),
])  # fmt: skip
def test_when_an_incomplete_gang_is_nominated(holds, node):
    w = World(4).put(*world.koordinator("g", 2, minimum=3, total=3))
    assert set(wishes(w, NominationChoices(Rules(holds), CHOICES.schedulers))) == set(node)


@pytest.mark.parametrize(("leaves_of", "nominated", "groups", "planned"), [
    pytest.param((1, 1, 2), ["a0", "b0"], {"networkTopology": {"highestTierAllowed": 1}}, {"c"}, id="of the gang"),
    pytest.param((1, 1), ["a0", "b0"], {"networkTopology": {"highestTierAllowed": 1}}, set(), id="and no other room"),
    pytest.param((1, 1, 2), ["a0", "b0"], {"subGroupPolicy": [{"name": "w", "subGroupSize": 2,
        "networkTopology": {"highestTierAllowed": 1}}]}, {"c"}, id="of a group"),
    pytest.param((1, 1, 2), ["a0", "b0"], {}, {"a", "b"}, id="without a level they are kept"),
])  # fmt: skip
def test_nominations_that_leave_a_required_level_bind_nobody(leaves_of, nominated, groups, planned):
    """The level may be stated after the nominations were written."""
    gang_pods = world.cluster.volcano_gang("bert", 2, 8)
    pods = [world.see(pod, nominated=node, ours=True) for pod, node in zip(gang_pods, nominated, strict=True)]
    w = World(*leaves_of).put_group("bert", 2, **groups).put(*pods)
    assert world.leaves(w.plan(pods[0])) == planned
