"""Requests for the place of a gang: who is still to come, who was lost, and which gangs go together."""

from dataclasses import replace

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World
from turnout.kube import labels
from turnout.scheduler_ext.planner.order import (
    SeatClass,
    gangs_of_set,
    has_started,
    hosted_members,
    missing_partner,
    order_seats,
    position_of,
)
from turnout.scheduler_ext.planner.place_gang import place
from turnout.scheduler_ext.planner.request import AbsentMembers, GangPlan, build_request, count_lost, count_missing

MOVE, EVAL = {labels.REPAIR: "move"}, {labels.TOGETHER: "eval"}


def shown(*pods, size=4, **groups):
    """A world of some hosts, and the gang of the first pod. groups: the mins of PodGroups."""
    w = World(size)
    for name, minimum in groups.items():
        w.put_group(name, minimum)
    w.put(*pods).view.settle(w.now_s)
    return w, w.view.gangs[w.member(pods[0]).membership.key]


@pytest.mark.parametrize(("minimum", "total", "maximum", "found"), [
    pytest.param(2, 2, 9, (0, 0), id="nobody"),
    pytest.param(4, 4, 9, (2, 0), id="those of the min"),
    pytest.param(2, 5, 3, (0, 3), id="those above it"),
    pytest.param(2, 5, 2, (0, 0), id="not those above it, if they are too many"),
    pytest.param(3, 6, 9, (1, 3), id="both"),
    pytest.param(1, 3, 9, (0, 1), id="of a min that is there"),
])  # fmt: skip
def test_who_is_not_created_yet(minimum, total, maximum, found):
    w, gang = shown(*world.koordinator("bert", 2, minimum=minimum, total=total))
    assert count_missing(w.view, gang, maximum) == found


@pytest.mark.parametrize(("pods", "needed", "found"), [
    pytest.param({"size": 2, "at": ["a0"], "notes": MOVE}, 0, 2, id="those that its min lacks"),
    pytest.param({"size": 2, "at": ["a0"], "notes": MOVE}, 1, 1, id="not those that are to come"),
    pytest.param({"size": 2, "at": ["a0"], "notes": MOVE}, 3, 0, id="never fewer than none"),
    pytest.param({"size": 2, "at": ["a0"]}, 0, 0, id="none of a gang that waits beside the rest"),
    pytest.param({"size": 2, "notes": MOVE}, 0, 0, id="none of one that does not run"),
    pytest.param({"size": 4, "at": ["a0"], "notes": MOVE}, 0, 0, id="none of one that has its min"),
])  # fmt: skip
def test_who_is_lost(pods, needed, found):
    w, gang = shown(*world.koordinator("bert", minimum=4, **pods))
    assert count_lost(w.view, gang, needed) == found


@pytest.mark.parametrize(("hosts", "missing", "missing_pods", "fits"), [
    pytest.param(4, 0, 2, True, id="room for those that are gone, and none is kept"),
    pytest.param(3, 0, 2, False, id="no room for one of them"),
    pytest.param(4, 1, 1, True, id="room for one to come, and another that is gone"),
])  # fmt: skip
def test_room_for_members_that_are_gone_must_be_there_and_is_not_kept(hosts, missing, missing_pods, fits):
    w, gang = shown(*world.koordinator("bert", 2, minimum=4), size=hosts)
    request = replace(build_request(w.view, gang, ()), absent=AbsentMembers(missing, lost=missing_pods))
    plan = place(w.view.fabric, request, lambda shape, besides: free(w, shape, besides))
    assert (plan.refusal is None) is fits
    assert len(plan.open_seats) == (missing if fits else 0)


def free(w, shape, besides):
    """The room on each host beside some pods of 8 GPUs."""
    room = w.view.snapshot.room(shape).copy()
    for row, _ in besides:
        room[row] -= 1
    return room.clip(0)


def test_a_request_says_who_waits_who_holds_and_who_was_sent_where():
    pods = world.volcano("bert", 5, at=["a1"])
    sent = world.see(world.cluster.volcano_gang("bert", 2)[1], nominated="a2", ours=True)
    lost_node = world.see(world.cluster.volcano_gang("bert", 3)[2], nominated="gone", ours=True)
    leaving = world.volcano("bert", 4, leaving=True)[3]
    w, gang = shown(pods[0], sent, lost_node, leaving, pods[4])
    request = build_request(w.view, gang, ())
    assert [member.name for member in request.waiting] == ["bert-1", "bert-2", "bert-4"]
    assert [(member.name, host) for member, host in request.placed_members] == [("bert-0", 1)]
    assert dict(request.nominated_hosts) == {"uid-bert-1": 2}
    assert dict(build_request(w.view, gang, {"uid-bert-1"}).nominated_hosts) == {}
    assert build_request(w.view, gang, {"uid-bert-0"}).placed_members == ()


class TestStanding:
    @pytest.mark.parametrize(("size", "at", "minimum", "needed", "level"), [
        pytest.param(3, [], 3, 3, SeatClass.WAITING, id="a new gang needs its min"),
        pytest.param(3, [], 2, 2, SeatClass.WAITING, id="and no more"),
        pytest.param(3, ["a0"], 3, 2, SeatClass.STARTED, id="one that has begun needs the rest, before others"),
        pytest.param(3, ["a0", "a1"], 2, 0, SeatClass.WAITING, id="one that has its min needs nothing"),
        pytest.param(2, [], 4, 4, SeatClass.WAITING, id="those to come are needed, too"),
    ])  # fmt: skip
    def test_how_many_members_a_gang_still_needs(self, size, at, minimum, needed, level):
        w, gang = shown(*world.koordinator("bert", size, minimum=minimum, at=at))
        position = position_of(w.view, gang)
        assert (position.needed_pods, position.first_needed_key[0]) == (needed, level)

    def test_the_important_go_first_then_the_nominated_then_the_older(self):
        pods = [
            *world.volcano("old", 1, created=1),
            *world.volcano("new", 1, created=2),
            *world.volcano("sent", 1, created=3, nominated="a0", ours=True),
            *world.volcano("high", 1, created=4, priority=5),
        ]
        w, _ = shown(*pods)
        order = sorted(w.view.gangs.values(), key=lambda gang: position_of(w.view, gang).first_needed_key)
        assert [gang.key.name for gang in order] == ["high", "sent", "old", "new"]

    def test_members_above_the_min_go_after_the_min_of_others(self):
        w, gang = shown(*world.koordinator("bert", 3, minimum=2, created=1), *world.volcano("late", 1, created=9))
        bert = position_of(w.view, gang)
        late = position_of(w.view, w.view.gangs[next(key for key in w.view.gangs if key.name == "late")])
        assert bert.first_needed_key < late.first_needed_key < bert.last_key
        assert (bert.first_needed_key[2], bert.last_key[2]) == (False, True)

    def test_members_above_the_min_of_an_important_gang_go_before_lesser_ones(self):
        high = world.koordinator("bert", 3, minimum=2, created=9, priority=5)
        w, gang = shown(*high, *world.volcano("low", 1, created=1))
        low = position_of(w.view, w.view.gangs[next(key for key in w.view.gangs if key.name == "low")])
        assert position_of(w.view, gang).last_key < low.first_needed_key

    def test_a_role_that_lacks_members_is_needed_though_the_min_is_there(self):
        task = {labels.VOLCANO_TASK_SPEC: "worker"}
        pods = [*world.volcano("bert", 3, at=["a0", "a1"]), world.volcano("bert", 4, notes=task)[3]]
        w = World(4).put_group("bert", 3, minTaskMember={"master": 2, "worker": 1})
        w.put(*pods).view.settle(w.now_s)
        (gang,) = w.view.gangs.values()
        assert position_of(w.view, gang).needed_pods == 1

    def test_pods_that_join_a_running_whole_group_pass_no_higher_priority(self):
        """Only the min that a gang started with comes before every other gang: its owner may add any number of pods."""
        key = "volcano.sh/partition-id"
        pods = world.volcano("bert", 4, at=["a0"], marks={key: "0"})
        policy = [{"name": "w", "matchLabelKeys": [key], "networkTopology": {"highestTierAllowed": 1}}]
        w = World(6).put_group("bert", 1, subGroupPolicy=policy)
        w.put(*pods).view.settle(w.now_s)
        (gang,) = w.view.gangs.values()
        position = position_of(w.view, gang)
        assert (position.needed_pods, position.first_needed_key[0]) == (3, SeatClass.WAITING)

    @pytest.mark.parametrize(("early", "late", "first"), [
        pytest.param("2", "2", 2, id="stated before the start: the min ends with a whole multiple"),
        pytest.param("1", "2", 1, id="stated after the start: only the min comes first"),
        pytest.param("2", "8", 1, id="raised after the start: only the min comes first"),
    ])  # fmt: skip
    def test_the_min_of_a_started_gang_ends_with_a_multiple_of_its_start(self, early, late, first):
        w = World(2).put_group("bert", 9)
        before, after = ({labels.PODS_PER_HOST_MULTIPLE: text} for text in (early, late))
        w.put(*world.volcano("bert", 8, gpus=1, at=["a0"] * 8, notes=before)).view.settle(1.0)
        w.put(*world.volcano("bert", 16, gpus=1, notes=after)[8:])
        (gang,) = w.plans.view.gangs.values()
        w.view.settle(w.now_s)
        position, plan = position_of(w.view, gang), w.plans.plan_of(gang.key, w.now_s)
        seats = order_seats(gang, plan, position, hosted_members(w.view, gang))
        assert (position.needed_pods, position.first_needed_key[0]) == (1, SeatClass.STARTED)
        assert [seat.order[0] for seat in seats].count(SeatClass.STARTED) == first

    @pytest.mark.parametrize(("hosts", "first"), [
        pytest.param(3, 6, id="on three hosts six pods are missing, at most four times the min"),
        pytest.param(4, 3, id="on four hosts nine are more: only the multiple of the pod that the min lacks"),
    ])  # fmt: skip
    def test_a_started_gang_completes_no_more_multiples_than_its_min_has_pods(self, hosts, first):
        """Another scheduler may spread any number of its pods: they would take the room of higher priorities."""
        notes, task = {labels.PODS_PER_HOST_MULTIPLE: "4"}, {labels.VOLCANO_TASK_SPEC: "master"}
        size = 4 * hosts
        at = [f"a{host}" for host in range(hosts)]
        w = World(8).put_group("bert", 2, minTaskMember={"worker": 1, "master": 1})
        w.put(*world.volcano("bert", size, gpus=1, at=at, notes=notes)).view.settle(1.0)
        w.put(world.volcano("bert", size + 1, gpus=1, notes=notes | task)[size])
        (gang,) = w.plans.view.gangs.values()
        w.view.settle(w.now_s)
        position, plan = position_of(w.view, gang), w.plans.plan_of(gang.key, w.now_s)
        seats = order_seats(gang, plan, position, hosted_members(w.view, gang))
        assert (position.needed_pods, position.first_needed_key[0]) == (1, SeatClass.STARTED)
        assert [seat.order[0] for seat in seats].count(SeatClass.STARTED) == first

    def test_seats_are_claimed_in_order_the_min_the_rest_and_those_to_come(self):
        w, pods = World(6), world.koordinator("bert", 3, minimum=2, total=5)
        w.put(*pods)
        w.plan(pods[0])
        (gang,) = w.view.gangs.values()
        plan, position = w.plans.current_plan(gang.key), position_of(w.view, gang)
        claims = order_seats(gang, plan, position, ())
        assert [claim.uid for claim in claims] == ["uid-bert-0", "uid-bert-1", "uid-bert-2", "", ""]
        assert [claim.order[0] for claim in claims] == [SeatClass.WAITING] * 3 + [SeatClass.GROWTH] * 2
        assert [claim.order[2] for claim in claims] == [False, False, True, True, True]
        assert claims[0].order == position.first_needed_key
        assert claims[2].order == position.last_key
        assert {claim.order[3:] for claim in claims} == {position.first_needed_key[3:]}
        assert {claim.order[1] for claim in claims} == {position.first_needed_key[1]}
        assert [claim.rank for claim in claims[3:]] == [3, 4]


class TestTogether:
    def test_gangs_of_one_name_and_namespace_go_together_the_oldest_first(self):
        w, gang = shown(
            *world.volcano("one", 1, notes=EVAL, created=5),
            *world.volcano("two", 1, notes=EVAL, created=2),
            *world.volcano("other", 1, notes={labels.TOGETHER: "train"}),
            *world.volcano("far", 1, notes=EVAL, namespace="far"),
            *world.volcano("alone", 1),
        )
        assert [each.key.name for each in gangs_of_set(w.view, gang)] == ["two", "one"]
        lone_gang = next(each for key, each in w.view.gangs.items() if key.name == "alone")
        assert gangs_of_set(w.view, lone_gang) == []

    def test_more_gangs_than_may_start_together_are_placed_by_themselves(self):
        pods = [world.volcano(f"g{at:02d}", 1, notes=EVAL, created=at)[0] for at in range(17)]
        w, first = shown(*pods)
        assert len(gangs_of_set(w.view, first)) == 16
        assert gangs_of_set(w.view, w.view.gangs[w.member(pods[16]).membership.key]) == []

    def test_they_start_once_each_has_a_place_or_runs(self):
        w, one = shown(*world.volcano("one", 1, notes=EVAL), *world.volcano("two", 1, at=["a0"], notes=EVAL))
        together = gangs_of_set(w.view, one)
        node_by_pod = {one.key: GangPlan(one.key, {"uid-one-0": 1})}
        assert missing_partner(w.view, together, node_by_pod.get) == ""
        assert "which cannot start" in missing_partner(w.view, together, {one.key: GangPlan(one.key)}.get)
        assert "which cannot start" in missing_partner(w.view, together, {}.get)
        assert missing_partner(w.view, [], {}.get) == ""
        assert [has_started(w.view, gang) for gang in together] == [gang.key.name == "two" for gang in together]

    @pytest.mark.parametrize(("name", "set_size"), [
        pytest.param("eval/2", "", id="as many as are announced"),
        pytest.param("eval/3", "2 of the 3 gangs of this set exist", id="one is missing"),
    ])  # fmt: skip
    def test_as_many_must_be_there_as_the_name_says(self, name, set_size):
        notes = {labels.TOGETHER: name}
        w, one = shown(
            *(world.volcano(each, 1, at=[host], notes=notes)[0] for each, host in (("a", "a0"), ("b", "a1")))
        )
        assert missing_partner(w.view, gangs_of_set(w.view, one), {}.get) == set_size

    def test_one_domain_holds_all_of_them(self):
        w = World(3, 4, 4)
        w.put_group("one", 2).put_group("two", 2)
        pods = [world.volcano(name, 2, notes={**EVAL, **REQUIRED}) for name in ("one", "two")]
        w.put(*pods[0], *pods[1])
        plans = {**w.plan(pods[0][0]), **w.plan(pods[1][0])}
        assert len(plans) == 4


def test_gangs_that_gave_way_are_counted():
    w, low = World(4), [world.volcano(f"low{at}", 2, created=1) for at in range(2)]
    w.put(*low[0], *low[1])
    assert (len(w.plan(low[0][0])), len(w.plan(low[1][0])), w.plans.displaced) == (2, 2, 0)
    high = world.volcano("high", 4, priority=9, created=9)
    w.put(*high)
    assert len(w.plan(high[0])) == 4
    assert w.plans.displaced == 2
    assert (w.plan(low[0][0]), w.plan(low[1][0])) == ({}, {})
