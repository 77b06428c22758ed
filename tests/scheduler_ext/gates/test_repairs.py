"""Gangs that lost members and find no room near the rest: who is stuck, who leaves for what, and when."""

import asyncio
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from tests.kit import world
from tests.kit.clock import ManualClock, settle
from tests.kit.world import REQUIRED, World
from tests.scheduler_ext.reservation_map import ReservationMap
from tests.scheduler_ext.shown import ShownExtender
from turnout.jobs.reservation import Reservation, ReservationReason
from turnout.kube import labels
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.errors import Conflict, Forbidden, NotFound, TooManyRequests
from turnout.scheduler_ext.gates.evictions import find_stuck_gang, plan_repair
from turnout.scheduler_ext.model import EventReason, Rules, Victims
from turnout.scheduler_ext.server.metrics import Metrics, NominatorMetrics
from turnout.scheduler_ext.writers.eviction_writer import (
    REPAIR_INTERVAL_S,
    REPAIR_REST_S,
    RESERVATION_S,
    Repairer,
)
from turnout.scheduler_ext.writers.reservation_writer import ReservationWriter

MOVED, GIVEN_UP = EventReason.GANG_MOVED, EventReason.GANG_GIVEN_UP


def gang(wish, size=4, at=("a0", "a1", "a2"), name="g", **more):
    """A gang that must stay in one leaf. Its last member came in place of one whose host is gone."""
    notes = {**REQUIRED, **({labels.REPAIR: wish} if wish else {}), **more.pop("notes", {})}
    return world.koordinator(name, size, at=at, notes=notes, **more)


def seen(*leaves, pods):
    stage = World(*leaves).put(*pods)
    return stage, stage.view.gangs[stage.member(pods[0]).membership.key]


def left(stage, found):
    return [each.name for each in plan_repair(stage.plans, *found).victims]


@pytest.mark.parametrize(("leaves", "pods", "is_stuck"), [
    pytest.param((3, 4), gang("move"), True, id="three of four run, and their leaf has no room for the fourth"),
    pytest.param((4, 4), gang("move"), False, id="there is room for the fourth"),
    pytest.param((3, 4), gang("move", 3), False, id="it is whole"),
    pytest.param((3, 3), gang("move", at=()), False, id="none of it runs"),
    pytest.param((3, 4), gang("move", minimum=3), False, id="as many run as must start together"),
])  # fmt: skip
def test_a_gang_is_stuck_below_its_min_without_room(leaves, pods, is_stuck):
    stage, one = seen(*leaves, pods=pods)
    assert (find_stuck_gang(stage.plans, one, stage.now_s) is not None) is is_stuck


@pytest.mark.parametrize(("leaves", "wish", "word"), [
    pytest.param((3, 4), "", None, id="nothing is said: it waits"),
    pytest.param((3, 4), "wait", None, id="it is to wait"),
    pytest.param((3, 4), "move", MOVED, id="it moves: all of it fits elsewhere"),
    pytest.param((3, 3), "move", None, id="it does not: no leaf holds all of it"),
    pytest.param((3, 4), "give-up", GIVEN_UP, id="it gives up"),
    pytest.param((3, 3), "give-up", GIVEN_UP, id="it gives up though it fits nowhere"),
])  # fmt: skip
def test_what_becomes_of_it_is_its_owners_choice(leaves, wish, word):
    stage, one = seen(*leaves, pods=gang(wish))
    how = find_stuck_gang(stage.plans, one, stage.now_s)
    repair = plan_repair(stage.plans, one, how)
    found = repair.victims if repair else ()
    assert {each.reason for each in found} == ({word} if word else set())
    assert [each.name for each in found] == (["g-0", "g-1", "g-2"] if word else [])
    begins = "3 of the 4 that must run together have a host, and for the rest "
    assert all(each.detail.startswith(begins) for each in found)


def test_a_leaf_that_others_are_planned_on_is_not_counted_on():
    others = world.koordinator("h", 3, notes=REQUIRED, priority=10)
    stage, one = seen(3, 4, pods=[*gang("move"), *others])
    assert stage.plans.plan_of(stage.member(others[0]).membership.key, stage.now_s).refusal is None
    assert plan_repair(stage.plans, one, find_stuck_gang(stage.plans, one, stage.now_s)) is None


@pytest.mark.parametrize(("wish", "free", "expected_hosts"), [
    pytest.param("", 2, 2, id="one that waits takes what there is"),
    pytest.param("move", 2, 0, id="one that is to move goes back to no place for a part of it"),
    pytest.param("give-up", 2, 0, id="nor does one that is to give up"),
    pytest.param("move", 3, 2, id="where all of it fits again it stays"),
])  # fmt: skip
def test_who_comes_anew_while_the_rest_is_evicted(wish, free, expected_hosts):
    """Two of four have come anew, one still runs, and one is not made yet."""
    pods = gang(wish, at=("a0",), minimum=4)[:3]
    stage, one = seen(1 + free, 4, pods=pods)
    plan = stage.plans.plan_of(one.key, stage.now_s)
    stage.view.settle(stage.now_s + 1000.0)  # nobody waits for the fourth any more
    stage.plans.replan(one.key)
    plan = stage.plans.plan_of(one.key, stage.now_s + 1000.0)
    assert (len(plan.hosts), len(plan.open_seats)) == (expected_hosts, 0)


@pytest.mark.parametrize(("wish", "others", "expected_hosts"), [
    pytest.param("", 3, 3, id="one that waits starts as three where only three find room"),
    pytest.param("move", 3, 0, id="one that is to move waits for room for all of it"),
    pytest.param("give-up", 3, 0, id="so does one that is to give up"),
    pytest.param("give-up", 4, 3, id="which goes where all of it finds room"),
])  # fmt: skip
def test_who_comes_anew_after_the_last_of_the_rest_has_left(wish, others, expected_hosts):
    """Three of four came anew while the last still ran, so that nobody is waited for; the fourth is not made yet."""
    old, new_pods = gang(wish)[2], gang(wish, at=())
    stage, one = seen(3, others, pods=[old])
    stage.view.settle(stage.now_s)
    stage.put(new_pods[0], new_pods[1], new_pods[3]).view.settle(stage.now_s)
    assert stage.view.awaited_members.missing_pods(one) == 0
    stage.view.drop_pod(old.metadata.uid)
    plan = stage.plans.plan_of(one.key, stage.now_s)
    assert (len(plan.hosts), len(plan.open_seats)) == (expected_hosts, 0)


class Calls:
    """Takes evictions, and reservations.

    faults: raised by the first evictions, None for one that is taken. slow: gangs that wait for ever.
    """

    def __init__(self, *faults, slow=()):
        self.faults, self.slow, self.paths, self.bodies = list(faults), slow, [], []
        self.reservations = ReservationMap()
        self.patch = self.reservations.patch

    async def create(self, path, body):
        if path.endswith("/configmaps"):
            return await self.reservations.create(path, body)
        self.paths.append(path)
        if self.pods[-1].split("-")[0] in self.slow:
            await asyncio.Event().wait()
        self.bodies.append(body)
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        return b"{}"

    @property
    def pods(self):
        return [path.split("/")[-2] for path in self.paths]


class Scene:
    """A repairer beside a cluster of two leaves, with a clock that is moved by hand."""

    def __init__(self, *faults, pods, leaves=(3, 4), leads=True, **more):
        self.clock, self.calls, self.told, self.leads = ManualClock(), Calls(*faults), [], leads
        self.view = ShownExtender(Rules(), self.clock, Metrics(), lambda notice: None)
        for node in World(*leaves).nodes:
            self.view.view.layout.put_node(node)
        self.view.use_map(World(*leaves).fabric)
        for pod in pods:
            self.view.put_pod(pod)
        metrics = NominatorMetrics(CollectorRegistry())
        calls = LeasedCalls(self.calls, lambda: self.leads)
        self.calls.reservations.show(self.view.watches)
        tools = self.view.watches, calls, self.clock, metrics, self.told.append
        self.reservations = ReservationWriter(*tools, "turnout-system/reservations")
        self.repairer = Repairer(*tools, self.reservations, **more)

    async def pass_by(self, seconds):
        """Let it look as often as it does in so many seconds."""
        for _ in range(int(seconds / REPAIR_INTERVAL_S)):
            await self.repairer.tick()
            await self.reservations.tick()
            await self.clock.advance(REPAIR_INTERVAL_S)

    @property
    def words(self):
        return [notice.reason for notice in self.told]


TEN = gang("move/10")


@pytest.mark.asyncio
class TestWhen:
    async def test_it_has_to_be_stuck_for_as_long_as_its_owner_says(self):
        scene = Scene(pods=TEN)
        await scene.pass_by(10)
        assert scene.calls.pods == []
        await scene.pass_by(REPAIR_INTERVAL_S)
        assert scene.calls.pods == ["g-0", "g-1", "g-2"]
        assert scene.words == [MOVED] * 3
        assert scene.calls.bodies[0]["deleteOptions"] == {"preconditions": {"uid": "uid-g-0"}}

    async def test_and_all_that_time(self):
        stranger = world.pod("stranger", 8, at="a3")
        scene = Scene(pods=[*TEN, stranger], leaves=(4, 4))
        for _ in range(3):
            await scene.pass_by(8)
            scene.view.drop_pod("uid-stranger")
            await scene.pass_by(2)
            scene.view.put_pod(stranger)
        assert scene.calls.pods == []
        await scene.pass_by(12)
        assert scene.calls.pods == ["g-0", "g-1", "g-2"]

    async def test_one_whose_owner_says_nothing_is_left_alone(self):
        scene = Scene(pods=gang(""))
        await scene.pass_by(400)
        assert scene.calls.pods == []

    async def test_after_a_remedy_it_rests_though_it_is_stuck_again(self):
        scene = Scene(pods=TEN)
        await scene.pass_by(12)
        await scene.pass_by(REPAIR_REST_S - 20)  # as if other pods of its name were stuck at once
        assert len(scene.calls.pods) == 3
        await scene.pass_by(30)
        assert len(scene.calls.pods) == 6

    async def test_nothing_is_evicted_on_a_view_that_may_be_old(self):
        scene = Scene(pods=TEN)
        scene.view.watches.old = True
        await scene.pass_by(60)
        assert scene.calls.pods == []

    async def test_nothing_is_evicted_by_one_that_does_not_lead_any_more(self):
        scene = Scene(pods=TEN, leads=False)
        await scene.pass_by(60)
        assert scene.calls.pods == []

    async def test_one_whose_evictions_take_long_does_not_keep_another_waiting(self):
        scene = Scene(pods=[*TEN, *gang("move/10", name="h", at=("b0", "b1", "b2"))], leaves=(3, 3, 8))
        scene.calls.slow = ["g"]
        await scene.pass_by(10)
        look = asyncio.create_task(scene.repairer.tick())
        for _ in range(50):  # more turns of the loop than it needs
            await asyncio.sleep(0)
        look.cancel()
        await asyncio.gather(look, return_exceptions=True)
        assert scene.calls.pods == ["g-0", "h-0", "h-1", "h-2"]


@pytest.mark.asyncio
class TestRefused:
    async def test_by_a_disruption_budget_the_rest_stays_and_it_is_tried_again(self):
        refused = TooManyRequests("POST", "/p", 429, "it would violate the budget")
        scene = Scene(None, refused, pods=TEN)
        await scene.pass_by(12)
        assert scene.calls.pods == ["g-0", "g-1"]
        assert scene.words == [MOVED, EventReason.EVICTION_REFUSED]
        scene.view.drop_pod("uid-g-0")
        scene.view.put_pod(gang("move/10", at=())[0])
        await scene.pass_by(12)
        assert scene.calls.pods == ["g-0", "g-1", "g-1", "g-2"]

    @pytest.mark.parametrize("fault", [NotFound("POST", "/p", 404, "gone"), Conflict("POST", "/p", 409, "another uid")])
    async def test_one_that_is_gone_by_then_holds_up_nobody(self, fault):
        scene = Scene(fault, pods=TEN)
        await scene.pass_by(12)
        assert scene.calls.pods == ["g-0", "g-1", "g-2"]
        assert scene.words == [MOVED] * 2


TARGET = ("b0", "b1", "b2", "b3")


class Move(Scene):
    """A gang of four of which three run under a leaf of three, beside a free leaf of four, and an extender that
    watches.
    """

    def __init__(self, *faults, **more):
        super().__init__(*faults, pods=TEN, **more)
        self.extender = ShownExtender(Rules(), self.clock, Metrics(), lambda notice: None)
        for node in World(3, 4).nodes:
            self.extender.view.layout.put_node(node)
        self.extender.use_map(World(3, 4).fabric)
        self.calls.reservations.show(self.extender.watches)
        self.show(*TEN)

    def show(self, *pods):
        """Show pods to both programs."""
        for pod in pods:
            for view in {id(view): view for view in (self.view, self.extender)}.values():
                view.put_pod(pod)

    def drop(self, *uids):
        """Delete pods."""
        for uid in uids:
            for view in (self.view, self.extender):
                view.drop_pod(uid)

    def start_anew(self, at=()):
        """Delete the old pods, and show the new ones of the gang. at: the nodes of the first of them."""
        self.drop("uid-g-0", "uid-g-1", "uid-g-2", "uid-g-3")
        self.show(*gang("move/10", at=at))

    def plan(self, name):
        """{pod: node} as the extender plans a gang, or the detail of its refusal."""
        view, plans = self.extender.view, self.extender.plans
        key = next(key for key in view.gangs if key.name == name)
        plan = plans.plan_of(key, self.clock.monotonic())
        if plan.refusal is not None:
            return self.extender.refusal_of_pod(gang("", 2, at=(), name=name)[0]).refusal.detail
        return {uid.removeprefix("uid-"): view.fabric.hosts[row] for uid, row in plan.hosts.items()}

    @property
    def reserved(self):
        """The nodes that are reserved, by holder, as the extender sees them."""
        return {each.holder.name: each.nodes for each in self.extender.watches.published_reservations.values()}


@pytest.mark.asyncio
class TestTarget:
    """The nodes to which a gang moves are reserved from the first eviction to the last binding."""

    async def test_a_younger_gang_does_not_take_them_while_the_pods_leave(self):
        scene = Move()
        await scene.pass_by(12)
        assert scene.reserved == {"g": TARGET}
        scene.show(*gang("", 2, at=(), name="young", created=60))
        assert "4 hosts are reserved for default/g until 2027-01-15T08:10:" in scene.plan("young")
        scene.start_anew()
        assert scene.plan("g") == dict(zip(("g-0", "g-1", "g-2", "g-3"), TARGET, strict=True))
        assert set(scene.plan("young").values()) < {"a0", "a1", "a2"}
        scene.start_anew(at=TARGET)
        await scene.pass_by(4)
        assert scene.reserved == {}

    async def test_a_pod_without_a_gang_does_not_take_them(self):
        scene, lone = Move(), world.pod("lone", 8)
        await scene.pass_by(12)
        scene.show(lone)
        answer = scene.extender.filter(lone, TARGET)
        assert (answer.nodes, answer.refusal.reason) == ((), EventReason.NO_ROOM)
        assert scene.extender.filter(lone, [*TARGET, "a0"]).nodes == ["a0"]
        victims = {node: Victims(("uid",)) for node in (*TARGET, "a0")}
        assert scene.extender.preempt(lone, victims).keys() == {"a0"}

    async def test_a_gang_of_a_higher_priority_takes_them(self):
        scene = Move()
        await scene.pass_by(12)
        scene.show(*gang("", 2, at=(), name="urgent", priority=5))
        assert set(scene.plan("urgent").values()) < set(TARGET)

    async def test_nobody_is_evicted_before_they_are_reserved(self):
        scene = Move()
        scene.calls.reservations.fault = Forbidden("PATCH", "/configmaps", 403, "no right")
        await scene.pass_by(60)
        assert (scene.calls.pods, scene.reserved) == ([], {})
        scene.calls.reservations.fault = None
        await scene.pass_by(4)
        assert scene.calls.pods == ["g-0", "g-1", "g-2"]

    async def test_they_are_given_back_at_once_if_no_pod_may_leave(self):
        scene = Move(TooManyRequests("POST", "/p", 429, "it would violate the budget"))
        await scene.pass_by(12)
        assert (scene.words, scene.reserved) == ([EventReason.EVICTION_REFUSED], {})

    async def test_they_stay_reserved_if_a_later_pod_may_not_leave_yet(self):
        scene = Move(None, TooManyRequests("POST", "/p", 429, "it would violate the budget"))
        await scene.pass_by(12)
        assert scene.reserved == {"g": TARGET}

    async def test_evictions_that_are_refused_again_and_again_do_not_prolong_it(self):
        refused = TooManyRequests("POST", "/p", 429, "it would violate the budget")
        scene = Move(None, *[refused] * 200)
        await scene.pass_by(12)
        scene.drop("uid-g-0")
        scene.show(gang("move/10", at=())[0])
        await scene.pass_by(RESERVATION_S - 20)
        assert scene.reserved == {"g": TARGET}
        await scene.pass_by(30)
        assert (scene.reserved, scene.words[-1]) == ({}, EventReason.GANG_MOVE_FAILED)
        evictions = len(scene.calls.pods)
        await scene.pass_by(REPAIR_REST_S)
        assert (scene.reserved, len(scene.calls.pods)) == ({}, evictions)

    async def test_a_move_that_gets_no_room_in_time_is_reported_and_rests(self):
        scene = Move()
        await scene.pass_by(12)
        scene.start_anew(at=TARGET[:3])
        await scene.pass_by(RESERVATION_S - 20)
        assert scene.reserved == {"g": TARGET}
        await scene.pass_by(30)
        assert (scene.reserved, scene.words[-1]) == ({}, EventReason.GANG_MOVE_FAILED)
        assert scene.told[-1].detail.endswith("3 of the 4 that must run together have a host")
        scene.show(world.pod("stranger", 8, at="b3"))  # the gang is stuck again, and the other leaf is free by now
        evictions = len(scene.calls.pods)
        await scene.pass_by(60)
        assert len(scene.calls.pods) == evictions

    async def test_a_deleted_gang_gives_them_back_after_a_minute(self):
        scene = Move()
        await scene.pass_by(12)
        scene.drop("uid-g-0", "uid-g-1", "uid-g-2", "uid-g-3")
        await scene.pass_by(50)
        assert scene.reserved == {"g": TARGET}
        await scene.pass_by(20)
        assert scene.reserved == {}

    async def test_a_new_leader_continues_with_them(self):
        scene = Move()
        await scene.pass_by(12)
        calls = LeasedCalls(scene.calls, lambda: True)
        metrics, view = NominatorMetrics(CollectorRegistry()), scene.extender  # what any other replica sees
        other = ReservationWriter(
            view.watches, calls, scene.clock, metrics, scene.told.append, "turnout-system/reservations"
        )
        term = asyncio.create_task(other.run())
        await settle()
        assert scene.reserved == {"g": TARGET}
        scene.start_anew(at=TARGET)
        await scene.clock.advance(2.0)
        await settle()
        assert scene.reserved == {}
        term.cancel()
        await asyncio.gather(term, return_exceptions=True)

    async def test_they_end_by_their_time_though_no_nominator_lives(self):
        scene = Move()
        await scene.pass_by(12)
        scene.show(*gang("", 2, at=(), name="young", created=60))
        await scene.clock.advance(RESERVATION_S)
        scene.extender.clean_up()
        assert set(scene.plan("young").values()) < set(TARGET)


@pytest.mark.asyncio
async def test_each_of_many_waiting_gangs_has_its_turn():
    pods = [each for leaf in "abc" for each in gang("give-up/10", 2, at=(f"{leaf}0",), name=f"gang{leaf}")]
    scene = Scene(pods=pods, leaves=(1, 1, 1), gangs_per_tick=1)
    await scene.pass_by(9 * REPAIR_INTERVAL_S)
    assert scene.calls.pods == ["ganga-0", "gangb-0", "gangc-0"]


@pytest.mark.asyncio
async def test_four_gangs_of_a_namespace_move_at_a_time():
    """Six gangs of two have lost a pod each, and every one of them fits under the free leaf."""
    leaves = (1, 1, 1, 1, 1, 1, 12)
    pods = [
        pod
        for at, leaf in enumerate("abcdef")
        for pod in gang("move/10", 2, at=(f"{leaf}0",), name=f"gang{at}", namespace="team" if at < 5 else "other")
    ]
    scene = Scene(pods=pods, leaves=leaves)
    await scene.pass_by(14)
    holders = Counter(each.holder.namespace for each in scene.view.watches.published_reservations.values())
    assert holders == {"team": 4, "other": 1}


@pytest.mark.asyncio
async def test_writes_that_fail_are_tried_again_more_and_more_rarely():
    clock, calls, view = ManualClock(), Calls(), Scene(pods=TEN).view
    tools = view.watches, calls, clock, NominatorMetrics(CollectorRegistry()), lambda notice: None
    writer = ReservationWriter(*tools, "turnout-system/reservations")
    attempts = []

    async def refuse(path, body):
        attempts.append(clock.monotonic())
        raise Forbidden("PATCH", path, 403, "no right")

    calls.patch = refuse
    key = next(iter(view.view.gangs))
    writer.reserve(Reservation(key, TARGET, ReservationReason.REPAIR, 0, clock.wall() + RESERVATION_S))
    for _ in range(120):
        await writer.tick()
        await clock.advance(1.0)
    assert 4 <= len(attempts) <= 12
