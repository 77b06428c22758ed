"""Free room on nodes: counted at once, and after any sequence of changes as if counted afresh."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.kit import world
from tests.kit.hypothesis_examples import scaled
from turnout.kube.node_capacity import ACCELERATOR_SIZE, MAX_ROOM, Charge, ClusterSnapshot
from turnout.kube.pod_shape import shape_of
from turnout.scheduler_ext.planner.reserved_room import ReservedRoom

GPU8 = shape_of(world.pod("p", 8))
GPU1 = shape_of(world.pod("p", 1))
CPU = shape_of(world.pod("p", 0))
PICKY = shape_of(world.pod("p", 2, nodeSelector={"zone": "a"}))


def with_port(gpus=0):
    pod = world.pod("p", gpus)
    pod.spec.containers[0].ports = [world.port(80, host=80)]
    return shape_of(pod)


PORT = with_port()
DEVICE = shape_of(world.pod("p", 0, resources={"requests": {"example.com/dev": "1"}}))
SHAPES = [GPU8, GPU1, CPU, PICKY, PORT, with_port(4), shape_of(world.pod("p", 1, hostNetwork=True))]


def snapshot(*nodes):
    new_snapshot = ClusterSnapshot()
    for node in nodes:
        new_snapshot.put_node(node)
    new_snapshot.set_row_order([node.metadata.name for node in nodes])
    return new_snapshot


def with_device(name):
    """A node whose device plugin offers two devices of example.com/dev."""
    node = world.node(name)
    node.status.allocatable["example.com/dev"] = "2"
    return node


def charge(node, shape=GPU1, priority=0):
    return Charge(node, shape, priority)


class TestFreeSizes:
    def test_one_accelerator_counts_more_than_all_other_resources(self):
        s = snapshot(world.node("a", 1, cpu="1"), world.node("b", 0, cpu="64"), world.node("c", 1, cpu="2"))
        s.room(GPU1)
        a, b, c = s.sizes.all().tolist()
        assert b < ACCELERATOR_SIZE <= a < c

    def test_an_overcharged_node_has_nothing_free(self):
        s = snapshot(world.node("a", 1, cpu="1"), world.node("b", 8))
        s.charge("u1", charge("a", GPU8))
        s.charge("u2", charge("a", CPU))
        assert 0 <= s.sizes.all()[0] < ACCELERATOR_SIZE


class TestRoom:
    def test_the_scarcest_resource_decides(self):
        s = snapshot(world.node("a", 8), world.node("b", 8, cpu="3"), world.node("c", 0))
        assert s.room(GPU1).tolist() == [8, 3, 0]

    def test_the_number_of_pods_is_a_resource(self):
        s = snapshot(world.node("a", 8, pods="2"))
        s.charge("u1", charge("a", CPU))
        assert s.room(GPU1).tolist() == [1]

    def test_a_charge_moves_and_goes(self):
        s = snapshot(world.node("a"), world.node("b"))
        s.charge("u1", charge("a"))
        assert s.room(GPU1).tolist() == [7, 8]
        s.charge("u1", charge("b", GPU8))
        assert s.room(GPU1).tolist() == [8, 0]
        s.release("u1")
        s.release("u1")
        assert s.room(GPU1).tolist() == [8, 8]

    def test_a_node_that_takes_no_pods_has_no_room(self):
        s = snapshot(world.node("a", spec={"unschedulable": True}), world.node("b", labels={"zone": "a"}))
        assert s.room(GPU1).tolist() == [0, 8]
        assert s.room(PICKY).tolist() == [0, 4]

    def test_a_host_port_is_had_once(self):
        s = snapshot(world.node("a"), world.node("b"))
        assert s.room(PORT).tolist() == [1, 1]
        s.charge("u1", charge("a", PORT))
        assert s.room(PORT).tolist() == [0, 1]
        assert s.room(GPU1).tolist() == [8, 8]

    def test_a_pod_on_a_node_not_seen_yet_counts_once_it_is(self):
        s = snapshot(world.node("a"))
        s.charge("u1", charge("b", GPU8))
        s.put_node(world.node("b"))
        s.set_row_order(["a", "b"])
        assert s.room(GPU1).tolist() == [8, 0]

    def test_a_node_that_is_gone_has_no_room_and_comes_back_with_its_pods(self):
        s = snapshot(world.node("a"))
        s.charge("u1", charge("a"))
        s.drop_node("a")
        assert s.room(GPU1).tolist() == [0]
        s.put_node(world.node("a"))
        assert s.room(GPU1).tolist() == [7]

    def test_more_charged_than_there_is_leaves_nothing(self):
        s = snapshot(world.node("a"))
        s.charge("u1", charge("a", GPU8))
        s.charge("u2", charge("a", GPU8))
        assert s.room(GPU1).tolist() == [0]
        s.release("u1")
        assert s.room(GPU1).tolist() == [0]

    def test_pods_that_ask_for_all_there_is_overflow_nothing(self):
        huge = shape_of(world.pod("p", 1, resources={"requests": {"cpu": "1e30", "memory": "16Ei"}}))
        s = snapshot(world.node("a", cpu="1e30", memory="16Ei"))
        for at in range(200):
            s.charge(f"u{at}", charge("a", huge))
        assert s.room(CPU).tolist() == [0]

    def test_an_offer_that_nobody_can_read_is_no_offer(self):
        s = snapshot(world.node("a", cpu="plenty"), world.node("b"))
        assert s.room(GPU1).tolist() == [0, 8]

    def test_a_pod_that_asks_for_nothing_fits_any_number_of_times(self):
        bare = world.pod("p")
        bare.spec.containers[0].resources = None
        assert snapshot(world.node("a", pods="1000000")).room(shape_of(bare)).tolist() == [MAX_ROOM]

    @pytest.mark.parametrize(("change", "is_change"), [
        pytest.param({}, False, id="a heartbeat changes nothing"),
        pytest.param({"gpus": 4}, True, id="less to offer"),
        pytest.param({"labels": {"zone": "a"}}, True, id="another label"),
        pytest.param({"conditions": [{"type": "Ready", "status": "False"}]}, True, id="not ready any more"),
        pytest.param({"conditions": [{"type": "DiskPressure", "status": "False"}]}, True, id="silent on being ready"),
    ])  # fmt: skip
    def test_what_counts_as_a_change_of_a_node(self, change, is_change):
        s = snapshot(world.node("a"))
        s.room(GPU1)
        s.changed_rows.clear()
        s.put_node(world.node("a", **change))
        assert bool(s.changed_rows) is is_change

    def test_the_capacity_counts_where_a_node_states_nothing_allocatable(self):
        before, after = world.node("a", gpus=8), world.node("a", gpus=4)
        for each in (before, after):
            each.status.capacity, each.status.allocatable = each.status.allocatable, None
        s = snapshot(before)
        assert s.room(GPU1).tolist() == [8]
        s.put_node(after)
        assert s.room(GPU1).tolist() == [4]


class TestPreemption:
    def test_room_above_a_priority_thinks_lesser_pods_away(self):
        s = snapshot(world.node("a"), world.node("b"))
        s.charge("low", charge("a", GPU8, priority=1))
        s.charge("high", charge("b", GPU8, priority=5))
        assert s.room_after_preemption(GPU8, 5).tolist() == [1, 0]
        assert s.room_after_preemption(GPU8, 6, other_pods=[(0, GPU1)]).tolist() == [0, 1]
        assert s.room(GPU8).tolist() == [0, 0]

    def test_a_resource_may_be_offered_after_a_pod_that_requests_it_is_charged(self):
        s = snapshot(world.node("a"))
        s.charge("low", charge("a", DEVICE))
        s.put_node(with_device("a"))
        assert s.room_after_preemption(GPU1, 10).tolist() == [8]
        assert s.room_after_preemption(DEVICE, 10).tolist() == [2]

    def test_another_pod_may_request_a_resource_that_no_pod_requested_before(self):
        s = snapshot(with_device("a"))
        assert s.room_after_preemption(GPU1, 10, other_pods=[(0, DEVICE), (0, GPU1)]).tolist() == [7]


class TestReserved:
    def test_kept_room_is_not_anybody_elses(self):
        s = snapshot(world.node("a"), world.node("b"))
        reserved = ReservedRoom(s)
        reserved.reserve([(0, GPU8)])
        assert reserved.room(GPU1).tolist() == [0, 8]
        assert reserved.room(GPU1, ignored_pods=[(0, GPU8)]).tolist() == [8, 8]
        assert reserved.room(GPU1, extra_pods=[(1, GPU1)]).tolist() == [0, 7]
        reserved.release([(0, GPU8)])
        assert reserved.room(GPU1).tolist() == [8, 8]

    def test_an_extra_pod_may_request_a_resource_that_no_pod_requested_before(self):
        s = snapshot(with_device("a"))
        reserved = ReservedRoom(s)
        reserved.reserve([(0, GPU1)])
        assert reserved.room(GPU1, extra_pods=[(0, DEVICE), (0, GPU1)]).tolist() == [6]

    def test_a_row_that_holds_less_than_is_kept_is_told(self):
        s = snapshot(world.node("a"))
        reserved = ReservedRoom(s)
        reserved.reserve([(0, GPU8)])
        assert not reserved.is_overdrawn(0)
        s.charge("u1", charge("a", CPU))
        assert not reserved.is_overdrawn(0)
        s.charge("u2", charge("a", GPU1))
        assert reserved.is_overdrawn(0)

    def test_a_row_is_not_told_for_what_is_not_kept_on_it(self):
        s = snapshot(world.node("a"))
        reserved = ReservedRoom(s)
        reserved.reserve([(0, CPU)])
        s.charge("u1", charge("a", GPU8))
        s.charge("u2", charge("a", GPU8))
        assert not reserved.is_overdrawn(0)
        reserved.reserve([(0, GPU1)])
        assert reserved.is_overdrawn(0)

    def test_room_of_pods_that_are_thought_away_or_added_counts_by_shape(self):
        s = snapshot(world.node("a"), world.node("b"), world.node("c"))
        reserved = ReservedRoom(s)
        reserved.reserve([(0, GPU1), (0, GPU1), (1, GPU8), (2, PICKY)])
        assert reserved.room(GPU1).tolist() == [6, 0, 6]
        assert reserved.room(GPU1, ignored_pods=[(0, GPU1), (1, GPU8)]).tolist() == [7, 8, 6]
        extra_pods = [(0, GPU1), (0, GPU1), (2, GPU8)]
        assert reserved.room(GPU1, ignored_pods=[(0, GPU1)], extra_pods=extra_pods).tolist() == [5, 0, 0]
        reserved.clear()
        assert reserved.room(GPU1).tolist() == [8, 8, 8]

    def test_kept_ports_are_had_once(self):
        s = snapshot(world.node("a"))
        reserved = ReservedRoom(s)
        reserved.reserve([(0, PORT)])
        assert reserved.room(PORT).tolist() == [0]
        assert reserved.room(PORT, ignored_pods=[(0, PORT)]).tolist() == [1]
        assert ReservedRoom(s).room(PORT, extra_pods=[(0, PORT)]).tolist() == [0]
        reserved.reserve([(0, PORT)])
        assert reserved.is_overdrawn(0)
        reserved.release([(0, PORT), (0, PORT)])
        assert reserved.room(PORT).tolist() == [1]
        assert not reserved.is_overdrawn(0)


NAMES = ["a", "b", "c", "d"]
NODES = st.builds(
    lambda name, gpus, cpu, zone, spec: world.node(name, gpus, cpu=cpu, labels=zone, spec=spec),
    st.sampled_from(NAMES),
    st.sampled_from([0, 1, 8]),
    st.sampled_from(["3", "96", "junk"]),
    st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]),
    st.sampled_from([{}, {}, {"unschedulable": True}]),
)


class AnySequence(RuleBasedStateMachine):
    """Whatever is seen in whatever order, the tables are those of a snapshot that saw only the end."""

    def __init__(self):
        super().__init__()
        self.live = ClusterSnapshot()
        self.nodes, self.charges, self.order = {}, {}, []

    @rule(node=NODES)
    def put_node(self, node):
        self.nodes[node.metadata.name] = node
        if not self.live.put_node(node):
            self.lay_out()

    @rule(name=st.sampled_from(NAMES))
    def drop_node(self, name):
        self.nodes.pop(name, None)
        self.live.drop_node(name)

    @rule(uid=st.sampled_from("uvwxyz"), node=st.sampled_from(NAMES), shape=st.sampled_from(SHAPES))
    def charge(self, uid, node, shape):
        self.charges[uid] = charge(node, shape)
        self.live.charge(uid, self.charges[uid])

    @rule(uid=st.sampled_from("uvwxyz"))
    def release(self, uid):
        self.charges.pop(uid, None)
        self.live.release(uid)

    @rule()
    def lay_out(self):
        self.order = [*sorted(self.nodes, reverse=len(self.order) % 2 == 0), "nobody"]
        self.live.set_row_order(self.order)

    @rule(shape=st.sampled_from(SHAPES))
    def look(self, shape):
        self.live.room(shape)  # from now on kept up to date

    @invariant()
    def counts_as_if_counted_afresh(self):
        fresh = ClusterSnapshot()
        for node in self.nodes.values():
            fresh.put_node(node)
        fresh.set_row_order(self.order)
        for uid, each in self.charges.items():
            fresh.charge(uid, each)
        for shape in SHAPES:
            room = fresh.room(shape).tolist()
            assert [self.live.room_at(row, shape) for row in range(len(self.order))] == room
        for shape in SHAPES[::3]:
            assert self.live.room(shape).tolist() == fresh.room(shape).tolist()
            assert self.live.room_when_empty(shape).tolist() == fresh.room_when_empty(shape).tolist()
        assert self.live.sizes.all().tolist() == fresh.sizes.all().tolist()


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=scaled(40), stateful_step_count=25, deadline=None)
