"""The limits of the extender, and the pods that it counts as breaking a rule."""

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, Told, World
from turnout.jobs.gang import Dialect, GangKey
from turnout.kube import labels
from turnout.scheduler_ext.cluster.gang import Gang
from turnout.scheduler_ext.cluster.view import PATIENCE_S, AssumedPods
from turnout.scheduler_ext.model import EventReason, Rules
from turnout.scheduler_ext.planner.answers import broken_rules, partial_gangs, postpone
from turnout.scheduler_ext.planner.nominations import NominationChoices, NominationReason, nominate
from turnout.scheduler_ext.planner.ranks import ranks_of
from turnout.scheduler_ext.planner.request import GangPlan, GangRequest
from turnout.topology.model import Refusal

CHOICES = NominationChoices(Rules(), frozenset({"default-scheduler"}))


def key(w, pod):
    return w.member(pod).membership.key


@pytest.mark.parametrize(
    ("total", "growth_seats"),
    [
        pytest.param(3, 1, id="one above the min"),
        pytest.param(1026, 1024, id="as many as are looked for"),
        pytest.param(1027, 0, id="one more, and none is"),
    ],
)
def test_seats_for_members_above_the_min_that_nobody_has_created(total, growth_seats):
    w, pods = World(1), world.koordinator("bert", 1, minimum=2, total=total)
    w.put(*pods).view.settle(w.now_s)
    request = w.plans.request_of(w.view.gangs[key(w, pods[0])])
    assert (request.absent.missing, request.absent.growth) == (1, growth_seats)


def test_a_gang_of_which_nothing_is_known_asks_for_nothing():
    empty = Gang(GangKey("ns", "bert", Dialect.VOLCANO.value), 0)
    assert (empty.min_pods, empty.total, empty.max_pods, empty.priority, empty.multiple, empty.tier) == (
        0,
        0,
        0,
        0,
        1,
        None,
    )
    assert (empty.age, empty.terms.requires_level, empty.has_accelerators) == (("", 0, ""), False, False)
    assert (GangRequest(empty, ()).absent.missing, GangRequest(empty, ()).absent.growth, GangPlan(empty.key).tier) == (
        0,
        0,
        0,
    )
    assert (AssumedPods().ttl_s, CHOICES.expire_s) == (10.0, 60.0)


def test_a_gang_is_as_old_as_its_group_else_as_its_first_pod():
    w = World(1).put(*world.volcano("bert", 1, created=7, version="41"), *world.volcano("bert", 2, created=5)[1:])
    bert = w.view.gangs[GangKey("default", "bert", Dialect.VOLCANO.value)]
    assert bert.age == ("2026-01-01T00:00:05Z", 41, "uid-bert-1")
    w.put_group("bert", 2, created=3)
    assert bert.age == ("2026-01-01T00:00:03Z", 41, "uid-group-bert")
    lone = world.pod("lone", 1)
    assert w.put(lone).view.gangs[key(w, lone)].age == ("2026-01-01T00:00:00Z", 0, "uid-lone")  # no version is told


def test_an_answer_is_believed_up_to_its_time_and_no_longer():
    assumed = AssumedPods()
    assumed.assume("one", "a", 100.0)
    assert (assumed.expire(109.9), assumed.expire(110.0), len(assumed)) == ([], ["one"], 0)


@pytest.mark.parametrize(
    ("node", "age_s", "is_cleared"),
    [
        pytest.param("a0", 60.0, {}, id="as long as it may"),
        pytest.param("a0", 60.5, {"g-0": ("", NominationReason.EXPIRED)}, id="longer"),
        pytest.param("", 60.5, {}, id="and is taken back once"),
    ],
)
def test_a_nomination_may_stand_so_long(node, age_s, is_cleared):
    w = World(2).put(*(pods := world.koordinator("g", 1, nominated=node, ours=True)))
    since_s = {pods[0].metadata.uid: w.now_s - age_s}
    found = nominate(w.plans, list(w.view.gangs), CHOICES, since_s, w.now_s)
    assert {wish.name: (wish.node, wish.reason) for wish in found} == is_cleared


def test_room_is_kept_until_a_members_patience_ends():
    w, pods = World(4), world.volcano("bert", 4)
    w.put_group("bert", 4).put(pods[0])
    w.view.settle(0.0)
    bert = w.view.gangs[key(w, pods[0])]
    w.view.settle(PATIENCE_S - 0.5)
    assert w.view.awaited_members.missing_pods(bert) == 3
    w.view.settle(PATIENCE_S)
    assert w.view.awaited_members.missing_pods(bert) == 0


@pytest.mark.parametrize("size", [1, 2])
def test_nobody_is_waited_for_in_the_place_of_one_who_leaves_a_whole_gang(size):
    w, pods = World(2), world.koordinator("bert", size, minimum=size, total=size)
    w.put(*pods).view.settle(w.now_s)
    w.put(*world.koordinator("bert", 1, minimum=size, total=size, leaving=True))
    w.view.settle(w.now_s)
    assert w.view.awaited_members.missing_pods(w.view.gangs[key(w, pods[0])]) == 0


@pytest.mark.parametrize(
    ("spec", "total"),
    [
        pytest.param({"replicas": 3}, 3, id="as many as it says"),
        pytest.param({}, 1, id="one, when it says nothing"),
        pytest.param({"replicas": 0}, 1, id="scaled to none, while a pod is there"),
    ],
)
def test_a_statefulset_says_how_many_it_has(spec, total):
    w = World(1).put(world.pod("s-0", 8, marks={labels.STATEFUL_INDEX: "0"}, owner="StatefulSet/s"))
    w.view.groups.put_owner("StatefulSet", world.owner("StatefulSet", "s", **spec))
    found = w.view.gangs[GangKey("default", "StatefulSet/s", Dialect.OWNER.value)]
    assert (found.total, found.min_pods, found.age) == (total, 0, ("2026-01-01T00:00:00Z", 0, "uid-s"))


@pytest.mark.parametrize(
    ("names", "count"),
    [
        pytest.param(1024, 1024, id="each of a list as long as may be"),
        pytest.param(1025, 64, id="a few of a longer one"),
    ],
)
def test_how_many_nodes_are_told_why(names, count):
    w = World(2, 2)
    (lone,) = world.volcano("big", 1, notes=REQUIRED, gpus=16)
    answer = w.put(lone).fit(lone, [f"other{at}" for at in range(names)])
    assert (len(answer.forbidden), len(answer.no_room)) == (count, 0)


def test_a_score_is_given_to_the_best_256_nodes_that_were_asked_about():
    w, pods = World(200, 100, 1, 1), world.volcano("bert", 2, at=["b0"])
    w.put(*pods)
    scored = w.rank(pods[1])
    assert len(scored) == 256
    assert {name for name in w.names if name[0] == "b"} <= scored.keys()
    assert w.rank(pods[1], ["a0", "c0", "nobody"]) == {"a0": 3}  # what lies under no switch of theirs has none


def test_a_view_that_may_be_old_forbids_few_nodes_and_says_when_and_why():
    refusal = Refusal(EventReason.NO_ROOM, "8 pods must start together")
    answer = Told(postpone(refusal, 0.5, pause_s=0.25), [f"n{at}" for at in range(65)])
    assert (list(answer.nodes), answer.all_kept, answer.pause_s, dict(answer.no_room)) == ([], False, 0.25, {})
    assert list(answer.forbidden) == [f"n{at}" for at in range(64)]
    message = "OldView at 1970-01-01T00:00:00.500000Z: NoRoom: 8 pods must start together"
    assert set(answer.forbidden.values()) == {message}


@pytest.mark.parametrize(
    ("pods", "partial"),
    [
        pytest.param(world.volcano("g", 3, at=["a0"]), True, id="one of three runs, the others wait"),
        pytest.param(world.koordinator("g", 3, minimum=2, at=["a0"]), True, id="one of a min of two"),
        pytest.param(world.koordinator("g", 3, minimum=2, at=["a0", "a1"]), False, id="its min runs"),
        pytest.param(world.volcano("g", 3), False, id="nobody runs"),
        pytest.param(world.volcano("g", 2, at=["a0", "a1"]), False, id="nobody waits"),
        pytest.param([world.pod("p", 8)], False, id="a pod by itself"),
        pytest.param(
            [*world.volcano("f", 1), *world.volcano("g", 3, at=["a0"])], True, id="beside one that waits whole"
        ),
    ],
)
def test_a_gang_of_which_a_part_has_started(pods, partial):
    w = World(2).put(*pods)
    w.view.settle(w.now_s)
    assert bool(partial_gangs(w.plans)) is partial


def test_a_member_that_is_believed_to_be_on_its_way_has_started():
    w, pods = World(2), world.koordinator("g", 3, minimum=2, at=["a0"])
    w.put(*pods)
    assert w.fit(pods[1]).node == "a1"
    assert partial_gangs(w.plans) == []


WIDE = {**REQUIRED, labels.TOPOLOGY_TIER: "2"}


@pytest.mark.parametrize(
    ("pods", "count"),
    [
        pytest.param(world.volcano("g", 3, at=["a0", "b0"], notes=REQUIRED), 2, id="members under two leaves"),
        pytest.param(
            [*world.volcano("f", 1), *world.volcano("g", 3, at=["a0", "b0"], notes=REQUIRED)],
            2,
            id="behind another gang",
        ),
        pytest.param(world.volcano("g", 3, at=["a0", "a1"], notes=REQUIRED), 0, id="under the one they may span"),
        pytest.param(world.volcano("g", 2, at=["a0", "b0"], notes=WIDE), 0, id="under the spine that they may span"),
        pytest.param(world.volcano("g", 2, at=["a0", "c0"], notes=WIDE), 2, id="under two spines"),
        pytest.param(world.volcano("g", 2, at=["a0", "x0"], notes=WIDE), 2, id="one off the map"),
        pytest.param(world.volcano("g", 2, at=["a0", "c0"]), 0, id="a gang that only prefers"),
        pytest.param(world.koordinator("g", 2, minimum=3, at=["a0"]), 1, id="a held gang that is not whole"),
        pytest.param(world.koordinator("g", 3, minimum=3, at=["a0"]), 0, id="one that is, though two wait"),
        pytest.param(world.koordinator("g", 2, minimum=3), 0, id="one of which nobody runs"),
        pytest.param([world.pod("p", 8, at="x0", notes=REQUIRED)], 0, id="a pod by itself"),
        pytest.param(world.volcano("g", 2, at=["a0", "b0"], notes=REQUIRED, leaving=True), 0, id="those that leave"),
    ],
)
def test_bound_pods_against_the_rule_are_counted(pods, count):
    w = World(2, 2, 2, off_map=1).put(*pods)
    w.view.settle(w.now_s)
    assert sum(pods for _, pods in broken_rules(w.plans, Rules(hold_incomplete=True)).values()) == count


@pytest.mark.parametrize(
    ("members", "ranks", "bases"),
    [
        pytest.param({"w": [0, 1, 2]}, [0, 1, 2], {"worker": 0}, id="its own index"),
        pytest.param({"w": [1, 3]}, [1, 3], {"worker": 0}, id="whoever is missing"),
        pytest.param({"m": [0], "w": [0, 1]}, [0, 1, 2], {"": 0, "worker": 1}, id="behind the master"),
        pytest.param({"p": [0, 2], "w": [0, 1]}, [0, 2, 3, 4], {"ps": 0, "worker": 3}, id="behind the last of a role"),
        pytest.param({"w": [1, 1, 0]}, [1, 2, 0], {}, id="given twice: the place in order"),
        pytest.param({"w": [4, None, 2]}, [1, 2, 0], {}, id="unknown: the place in order"),
        pytest.param({}, [], {}, id="nobody"),
    ],
)
def test_the_rank_of_each_member(members, ranks, bases):
    roles = {"m": "master", "p": "ps", "w": "worker"}
    pods = [
        world.pod(
            f"{short}-{'abc'[at]}", 8, marks={labels.TRAINING_TYPE: roles[short], **numbered(index)}, notes=OF_BERT
        )
        for short, indexes in members.items()
        for at, index in enumerate(indexes)
    ]
    w = World(1).put(*pods)
    found, faults = ranks_of([w.member(pod) for pod in pods])
    assert ([found[pod.metadata.uid] for pod in pods], faults) == (ranks, bases)


OF_BERT = {labels.VOLCANO_GROUP: "bert"}


def numbered(index):
    return {} if index is None else {labels.JOB_INDEX: str(index)}
