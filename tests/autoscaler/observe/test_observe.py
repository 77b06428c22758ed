"""Observations beside jobs: the map, reports of pods, an admin's orders, PriorityClasses, lost nodes."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autoscaler.test_cache import job, node, pod
from tests.autoscaler.world import GPU, shape
from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import AdminOverride, Policy, Reason, admin_override_data
from turnout.autoscaler.observe.job_pods import MAX_POINTS
from turnout.autoscaler.observe.node_cache import switches
from turnout.autoscaler.scaling.free_room import CapacityRequest, FreeRoom, Quota
from turnout.jobs.kinds.registry import KINDS
from turnout.kube import labels
from turnout.kube.objects import ContainerPort, Node, NodeCondition, NodeStatus, ObjectMeta, OwnerReference
from turnout.topology.fabric import build
from turnout.topology.map_update import draft_map
from turnout.topology.model import MapEntry, Placement, PlacementRequest
from turnout.topology.place import plan

MAP = {"topology_config": "asw1 psw1 a\nasw1 psw1 b\nasw2 psw1 c\n"}


@pytest.fixture
def view():
    cache = Cache(KINDS)
    cache.put_job("Job", job())
    return cache


def only(view, now_s=0.0):
    (observed_job,) = view.observation(now_s).jobs
    return observed_job.job


# The map.


def test_each_node_is_under_its_switches_and_a_stranger_under_none(view):
    for name in ("a", "b", "c", "stranger"):
        view.put_node(node(name))
    view.nodes.use_map(draft_map(MAP).fabric)
    leaves, spines = (tier.tolist() for tier in view.observation(0.0).room.switches[:2])
    assert (leaves[0] == leaves[1] != leaves[2], leaves[3]) == (True, -1)
    assert len(set(spines[:3])) == 1


@settings(max_examples=scaled(200), deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=12),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    st.integers(1, 8),
    st.integers(1, 2),
)
def test_a_gang_fits_under_a_switch_where_the_planner_places_it(rooms, leaves, pods, tier):
    """The autoscaler counts on no room that the extender would not give: turnout.topology.place is the judge."""
    names = [f"h{at}" for at in range(len(rooms))]
    fabric = build(MapEntry(name, (f"s{leaf % 2}", f"l{leaf}"), 0) for name, leaf in zip(names, leaves, strict=False))
    at = [rooms[names.index(host)] for host in fabric.hosts]
    placement = plan(fabric, np.array(at, np.int32), PlacementRequest(pods, pods, pods, widest_tier=tier))
    one = shape(1)
    room = Capacity(
        (GPU, "pods"),
        np.array([[gpus, 110] for gpus in rooms], dtype=np.int64),
        {one: np.array([1, 1], dtype=np.int64)},
        {one: np.ones(len(rooms), dtype=bool)},
        switches(fabric, [node(name) for name in names]),
    )
    assert FreeRoom(room, Quota({})).fits(CapacityRequest("q", [(one, pods)], tier)) is isinstance(placement, Placement)


# What pods report.


def test_a_curve_is_learnt_from_what_pods_report_and_kept_on_the_job(view):
    view.put_pod(pod(0, **{labels.STEP_SECONDS: "2:0.5"}))
    assert only(view).curve == ((2, 2.0),)
    view.put_job("Job", job(**{labels.MEASURED: "1:1.0,2:9.0"}))
    assert only(view).curve == ((1, 1.0), (2, 2.0))


@pytest.mark.parametrize("text", ["fast", "2:0", "2:-1", "0:1", "2:nan", "2", ""])
def test_a_report_that_cannot_be_read_is_none(view, text):
    view.put_pod(pod(0, **{labels.STEP_SECONDS: text}))
    assert only(view).curve == ()


def liar(**meta):
    """A pod that says something of a job's speed, made otherwise than its workers are."""
    one_pod = pod(7, "a", **{labels.STEP_SECONDS: "2:9999"})
    for name, value in meta.items():
        setattr(one_pod.metadata, name, value)
    return one_pod


def claimed(controller):
    return [OwnerReference(kind="Job", name="j", uid="u", controller=controller)]


@pytest.mark.parametrize("pod_first", [True, False], ids=["it was there before the job", "it comes later"])
@pytest.mark.parametrize(
    ("raw_pod", "is_believed"),
    [
        pytest.param(liar(labels={"of": "j"}), True, id="one that the job's controller has made"),
        pytest.param(liar(labels={"of": "j"}, namespace="another"), False, id="one of another namespace"),
        pytest.param(liar(labels={"of": "j"}, owner_references=claimed(None)), False, id="one with no controller"),
        pytest.param(liar(labels={"of": "k"}), False, id="one that the job's selector does not select"),
        pytest.param(liar(), False, id="one without labels"),
    ],
)
def test_only_a_jobs_own_pods_speak_for_it(raw_pod, is_believed, pod_first):
    selecting = job()
    selecting["spec"]["selector"] = {"matchLabels": {"of": "j"}}
    view = Cache(KINDS)
    view.put_node(node("a"))
    for put in (view.put_pod, lambda _: view.put_job("Job", selecting))[:: 1 if pod_first else -1]:
        put(raw_pod)
    observation = next(each for each in view.observation(0.0).jobs if each.job.uid == "u")
    assert (bool(observation.job.curve), len(observation.workers), bool(view.pods.of_job(observation.job.uid))) == (
        is_believed,
        int(is_believed),
        is_believed,
    )


def test_a_bounded_number_of_points_is_kept_a_job_and_none_of_unknown_uids(view):
    for size in range(1, 5 * MAX_POINTS):
        view.put_pod(pod(0, **{labels.STEP_SECONDS: f"{size}:1"}))
        view.put_pod(pod(1, owner=f"nobody-{size}", **{labels.STEP_SECONDS: "2:1"}))
        view.drop_pod(f"nobody-{size}-1")
    assert len(only(view).curve) == MAX_POINTS
    view.put_job("Job", job(uid="nobody-9"))
    assert next(each.job for each in view.observation(0.0).jobs if each.job.uid == "nobody-9").curve == ()


def test_what_the_owner_says_counts_before_what_pods_report(view):
    view.put_job("Job", job(**{labels.CURVE: "1:1,2:1.1"}))
    view.put_pod(pod(0, **{labels.STEP_SECONDS: "2:0.5"}))
    assert only(view).curve == ((1, 1.0), (2, 1.1))


# What an admin says.


@pytest.mark.parametrize(
    ("data", "now_s", "reason"),
    [
        ({}, 0.0, Reason.NO_FREE_ROOM),
        (admin_override_data(AdminOverride.PAUSE), 0.0, Reason.ALL_PAUSED),
        (admin_override_data(AdminOverride.PAUSE, "1970-01-01T00:10:00Z"), 599.0, Reason.ALL_PAUSED),
        (admin_override_data(AdminOverride.PAUSE, "1970-01-01T00:10:00Z"), 600.0, Reason.NO_FREE_ROOM),
        ({"standing": "stop!"}, 0.0, Reason.ALL_PAUSED),
    ],
    ids=["nothing", "pause", "pause until then", "then it goes on", "a word that nobody knows harms least as a pause"],
)
def test_a_pause_of_everything(view, data, now_s, reason):
    view.put_node(node("a", 2))
    view.put_job("Job", job(1))
    view.put_pod(pod(0, "a"))
    view.override.put(data)
    assert [step.reason for step in decide(view.observation(now_s), Policy(), now_s)] == [reason]


def test_a_release_takes_back_everything_that_is_lent(view):
    view.put_node(node("a"))
    for index in range(2):
        view.put_pod(pod(index, "a"))
    view.override.put(admin_override_data(AdminOverride.RELEASE))
    (step,) = decide(view.observation(0.0), Policy(), 0.0)
    assert (step.target, step.current, step.reason) == (1, 2, Reason.RELEASED)


# PriorityClasses, and nodes that are lost.


def test_a_priority_class_counts_before_a_number_from_0_to_100(view):
    view.states.put_class("high", 1000)
    one_job = job()
    one_job["spec"]["template"]["spec"]["priorityClassName"] = "high"
    view.put_job("Job", one_job)
    assert only(view).order.class_value == 1000
    view.states.put_class("high", 2000)
    assert only(view).order.class_value == 2000
    view.states.put_class("high", None)
    assert only(view).order.class_value == 0


def test_when_many_nodes_are_lost_nothing_is_changed(view):
    for at in range(20):
        raw_node = node(f"n{at}")
        if at < 10:
            condition = NodeCondition(type="Ready", status="Unknown")
            raw_node = Node(
                ObjectMeta(name=f"n{at}"), status=NodeStatus(raw_node.status.allocatable, conditions=[condition])
            )
        view.put_node(raw_node)
    assert view.observation(0.0).unready == 0.5
    assert decide(view.observation(0.0), Policy(), 0.0)[0].reason is Reason.NODES_UNREADY
    view.put_node(node("n0"))
    view.put_node(node("n1"))
    view.drop_node("n2")
    assert decide(view.observation(0.0), Policy(), 0.0)[0].reason is not Reason.NODES_UNREADY


# Host ports.


def with_ports(*ports, gpus="1"):
    """A job of one worker that may grow, whose pods hold these ports of their node."""
    container = {
        "name": "m",
        "resources": {"limits": {GPU: gpus}},
        "ports": [{"containerPort": port, "hostPort": port} for port in ports],
    }
    raw = job(1)
    raw["spec"]["template"]["spec"] = {"containers": [container]}
    return raw


def holding(name, node_name, *ports):
    """A pod of no job that runs on a node and holds these ports of it."""
    other = pod(0, node_name, owner=name, gpus=1)
    container = other.spec.containers[0]
    with_ports = msgspec.structs.replace(container, ports=[ContainerPort(host_port=port) for port in ports])
    return msgspec.structs.replace(other, spec=msgspec.structs.replace(other.spec, containers=[with_ports]))


@pytest.mark.parametrize(
    ("requested_ports", "busy_ports", "total"),
    [
        pytest.param((), {}, 24, id="without host ports a node holds as many as it has GPUs"),
        pytest.param((7000,), {}, 3, id="with one, each node holds one"),
        pytest.param((7000,), {"a": [7000]}, 2, id="none beside a pod that holds the port"),
        pytest.param((7000, 7001), {"a": [7001], "b": [9]}, 2, id="one port in common is enough"),
        pytest.param((7000,), {"a": [9], "b": [9]}, 3, id="another port is in nobody's way"),
    ],
)
def test_a_host_port_is_had_once_on_a_node(requested_ports, busy_ports, total):
    view = Cache(KINDS)
    view.put_job("Job", with_ports(*requested_ports))
    for name in ("a", "b", "c"):
        view.put_node(node(name))
    for name, ports in busy_ports.items():
        view.put_pod(holding(f"other-{name}", name, *ports))
    observation = view.observation(0.0)
    (only_job,) = observation.jobs
    free = total if requested_ports else total - len(busy_ports)
    assert observation.room.total(only_job.job.shape) == free
