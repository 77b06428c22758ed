"""Watches are made into an observation."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import UNKNOWN_NODE, Policy, Reason
from turnout.autoscaler.observe.job_reader import plausible_budget
from turnout.autoscaler.observe.unmanaged_gangs import PROMISE_S
from turnout.jobs.gang import Dialect, GangKey
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey, ResizeBudget
from turnout.jobs.queues.model import QueueSpec
from turnout.jobs.reservation import Reservation, ReservationReason, data_key, reservation_text
from turnout.kube import labels
from turnout.kube.objects import (
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
    Taint,
)

GPU = "nvidia.com/gpu"


def node(name, gpus=8):
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(allocatable={GPU: str(gpus), "pods": "110"}))


def pod(index, on="", owner="u", phase="Running", gpus=2, deleted=None, **notes):
    return Pod(
        metadata=ObjectMeta(
            name=f"j-{index}",
            namespace="ns",
            uid=f"{owner}-{index}",
            creation_timestamp="2026-01-01T00:00:00Z",
            deletion_timestamp=deleted,
            annotations={labels.JOB_INDEX: str(index), **notes},
            owner_references=[OwnerReference(kind="Job", name="j", uid=owner, controller=True)],
        ),
        spec=PodSpec(node_name=on, containers=[Container(resources=Resources(requests={GPU: str(gpus)}))]),
        status=PodStatus(phase=phase),
    )


def job(replicas=2, uid="u", **notes):
    spec = {"containers": [{"name": "m", "resources": {"limits": {GPU: "2"}}}]}
    spec_fields = {
        "parallelism": replicas,
        "completions": replicas,
        "completionMode": "Indexed",
        "template": {"spec": spec},
    }
    notes = {labels.MIN_WORKERS: "1", labels.MAX_WORKERS: "4", labels.QUEUE: "q", **notes}
    meta = {"name": f"j-{uid}", "namespace": "ns", "uid": uid, "resourceVersion": "1", "annotations": notes}
    return {"metadata": meta, "spec": spec_fields}


@pytest.fixture
def view():
    cache = Cache(KINDS)
    for name in ("a", "b"):
        cache.put_node(node(name))
    cache.queues.put(QueueSpec("q", capability={GPU: 12}, deserved={GPU: 4}))
    cache.put_job("Job", job())
    return cache


def only(view):
    (observed_job,) = view.observation(0.0).jobs
    return observed_job


def test_workers_are_a_jobs_pods_by_index(view):
    view.put_pod(pod(1, "b"))
    view.put_pod(pod(0, "a", deleted="2026-01-01T00:00:09Z"))
    assert [(w.index, w.row, w.leaving) for w in only(view).workers] == [(0, 0, True), (1, 1, False)]
    assert only(view).is_waiting is False


def test_what_has_ended_well_is_no_worker_takes_nothing_and_is_not_missing(view):
    assert only(view).is_waiting
    view.put_pod(pod(0, "a", phase="Succeeded"))
    assert (only(view).workers, only(view).is_waiting) == ((), False)
    assert view.observation(0.0).room.free[0, 0] == 8


def test_room_is_what_pods_leave_those_that_go_included(view):
    view.put_pod(pod(0, "a", deleted="2026-01-01T00:00:09Z"))
    view.put_pod(pod(7, "a", owner="stranger", gpus=3))
    observation = view.observation(0.0)
    assert observation.room.fits(only(view).job.shape).tolist() == [1, 4]
    view.drop_pod("u-0")
    assert view.observation(0.0).room.fits(only(view).job.shape).tolist() == [2, 4]


HOLDER = GangKey("other", "moved", Dialect.KOORDINATOR.value)


def reserve(view, until_s=600.0, nodes=("a", "gone")):
    """Reserve nodes for a gang, as the nominator does."""
    reservation = Reservation(HOLDER, nodes, ReservationReason.REPAIR, 0, until_s)
    view.reservations.put({data_key(HOLDER): reservation_text(reservation)}, 0.0)


def member(on=""):
    """A pod of the gang for which nodes are reserved."""
    found = pod(0, on, owner="moved", gpus=8)
    meta = msgspec.structs.replace(found.metadata, namespace="other", annotations={labels.KOORD_NAME: "moved"})
    return msgspec.structs.replace(found, metadata=meta)


class TestReservedNodes:
    """Nodes that the nominator reserves for a gang are no room for others, until its pods wait for them."""

    def test_no_job_grows_onto_them_and_what_they_offer_is_counted(self, view):
        view.put_pod(pod(7, "a", owner="stranger", gpus=3))
        reserve(view)
        observation = view.observation(0.0)
        assert observation.room.fits(only(view).job.shape).tolist() == [0, 4]
        assert observation.reserved[GPU] == 5

    def test_they_are_room_again_when_the_reservation_ends_or_its_time_is_over(self, view):
        shape = only(view).job.shape
        reserve(view, until_s=600.0)
        assert [view.observation(now_s).room.fits(shape).tolist() for now_s in (599.0, 600.0)] == [[0, 4], [4, 4]]
        view.reservations.put({}, 0.0)
        assert view.observation(0.0).room.fits(shape).tolist() == [4, 4]

    def test_once_a_pod_of_the_gang_waits_room_is_kept_by_its_demand_alone(self, view):
        shape = only(view).job.shape
        reserve(view)
        view.put_pod(member())
        observation = view.observation(0.0)
        assert observation.room.fits(shape).tolist() == [4, 4]
        assert "moved" in {each.job.key.name for each in observation.jobs}
        view.put_pod(member(on="b"))  # it runs, and others of it may still come
        assert view.observation(0.0).room.fits(shape).tolist() == [0, 0]

    def test_a_value_that_cannot_be_read_reserves_nothing(self, view):
        view.reservations.put({data_key(HOLDER): "{"}, 0.0)
        assert view.observation(0.0).reserved == {}


@pytest.mark.contract("CS-12", "VE-06", "VE-08", "VE-12", "VE-13")
def test_a_queue_uses_what_its_pods_ask_for(view):
    view.put_pod(pod(0, "a"))
    view.put_pod(pod(1))  # without a node it uses nothing yet
    queue = view.observation(0.0).queues["q"]
    assert (queue.used[GPU], queue.limit[GPU], queue.deserved[GPU]) == (2, 12, 4)


def test_a_job_that_cannot_be_read_is_told_and_left_alone(view):
    view.drop_job("u")
    view.put_job("Job", job(**{labels.PAUSED: "perhaps"}))
    assert view.observation(0.0).jobs == ()
    assert [str(why) for why in view.reader.faults.values()] == [
        "annotation turnout.dev/paused is 'perhaps': it must be true, false, grow or shrink"
    ]
    view.put_job("Job", job())
    assert (len(view.observation(0.0).jobs), view.reader.faults) == (1, {})


def test_names_of_ours_that_nobody_reads_are_known_until_they_are_gone(view):
    key = only(view).job.key
    view.put_job("Job", job(**{"turnout.dev/min-worker": "1", "example.com/other": "x"}))
    assert view.reader.unknown == {key: ("turnout.dev/min-worker",)}
    view.put_job("Job", job(**dict.fromkeys(labels.NAMES - {labels.UNIT}, "1")))
    assert view.reader.unknown == {}
    view.put_job("Job", job(**{"turnout.dev/x": "1"}))
    view.drop_job("u")
    assert view.reader.unknown == {}


def test_when_we_resized_it_stands_on_the_job(view):
    view.put_job("Job", job(**{labels.RESIZED_AT: "1970-01-01T00:10:00Z"}))
    assert view.observation(700.0).jobs[0].job.resize_budget.resized_s == 600


def test_a_forged_annotation_overrides_neither_clock_nor_leader(view):
    forged = {labels.RESIZED_AT: "2099-01-01T00:00:00Z", labels.GAINED: "9999999", labels.SIZED_AT_START: "true"}
    view.put_job("Job", job(**forged))
    (observed_job,) = view.observation(1000.0).jobs
    assert observed_job.job.resize_budget == ResizeBudget()
    ours = {labels.RESIZED_AT: "1970-01-01T00:10:00Z", labels.GAINED: "-60.0", labels.SIZED_AT_START: "false"}
    view.reader.store_written_annotations(observed_job.job.key, {**ours, labels.TERM: "7", labels.CONDITIONS: "[]"})
    view.put_job("Job", job(**forged, **{labels.TERM: "99999999"}))
    (observed_job,) = view.observation(1000.0).jobs
    assert observed_job.job.resize_budget == ResizeBudget(-60.0, 600.0)
    assert view.jobs.raw[observed_job.job.key]["metadata"]["annotations"][labels.TERM] == "7"
    view.reader.forget_written()
    view.put_job("Job", job(**forged))
    assert view.observation(1000.0).jobs[0].job.resize_budget == ResizeBudget()


@pytest.mark.parametrize(
    ("annotations", "is_so"),
    [
        pytest.param(ResizeBudget(50.0, 1000.0), ResizeBudget(50.0, 1000.0), id="what can be is believed"),
        pytest.param(ResizeBudget(5000.0, 1000.0), ResizeBudget(900.0, 1000.0), id="no more time won than there was"),
        pytest.param(ResizeBudget(-5.0, 2100.0, 9.0), ResizeBudget(restart_s=9.0), id="a change to come is none"),
        pytest.param(ResizeBudget(5.0), ResizeBudget(), id="without a change nothing was won"),
        pytest.param(ResizeBudget(0.0, 150.0, None, True), ResizeBudget(0.0, 150.0, None, True), id="made as it began"),
        pytest.param(ResizeBudget(0.0, 1500.0, None, True), ResizeBudget(0.0, 1500.0), id="made long after it began"),
    ],
)
def test_impossible_values_in_older_annotations_are_not_believed(annotations, is_so):
    assert plausible_budget(annotations, "1970-01-01T00:01:40Z", 110.0, 2000.0) == is_so


@pytest.mark.parametrize("by_s", [3600.0, -3600.0], ids=["an hour on", "an hour back"])
def test_a_worker_lacks_a_node_for_as_long_as_the_steady_clock_says(view, by_s):
    made_s = 1_767_225_600.0  # its creationTimestamp
    view.put_pod(pod(0, "a"))
    view.put_pod(pod(1))
    view.observation(made_s + 5.0, monotonic_s=5.0)
    now_s = made_s + 10.0 + by_s
    at = view.observation(now_s, monotonic_s=10.0)
    assert now_s - at.jobs[0].workers[1].since_s == 10.0
    assert [step.reason for step in decide(at, Policy(), now_s)] == [Reason.NOT_READY]


def test_a_pod_that_was_told_to_go_and_stays_is_terminating_for_a_while(view):
    view.put_pod(pod(0, "a", owner="stranger", deleted="2026-01-01T00:00:09Z"))
    assert [len(view.observation(now_s).terminating_pods) for now_s in (0.0, PROMISE_S, PROMISE_S + 1)] == [1, 1, 0]


def test_pods_of_a_deleted_job_are_terminating_and_it_waits_for_nothing(view):
    view.put_pod(pod(0, "a"))
    view.put_pod(pod(1, "b", deleted="2026-01-01T00:00:09Z"))
    assert view.observation(0.0).terminating_pods == ()  # its own job tells of it
    one_job = job()
    one_job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    view.put_job("Job", one_job)
    observation = view.observation(0.0)
    assert (observation.jobs, [(pod.queue, pod.row) for pod in observation.terminating_pods]) == ((), [("q", 1)])
    view.drop_job("u")
    view.drop_pod("u-1")
    assert view.observation(0.0).terminating_pods == ()


def test_what_is_gone_is_gone(view):
    shape = only(view).job.shape
    view.drop_node("a")
    assert view.observation(0.0).room.fits(shape).tolist() == [0, 4]
    view.drop_job("u")
    view.queues.drop("q")
    observation = view.observation(0.0)
    assert (observation.jobs, observation.queues) == ((), {})


def told_view(view):
    """All that an observation says, in words that two views can agree on."""
    observation = view.observation(0.0)
    rows = {**dict(enumerate(view.nodes.snapshot.order)), UNKNOWN_NODE: "elsewhere"}
    jobs = {
        each.job.key: (
            each.job,
            [(w.index, rows.get(w.row), w.leaving) for w in each.workers],
            each.is_waiting,
            {rows[row]: int(count) for row, count in enumerate(observation.room.fits(each.job.shape)) if count},
        )
        for each in observation.jobs
    }
    queues = {name: (dict(+Counter(q.used)), dict(q.limit), dict(q.deserved)) for name, q in observation.queues.items()}
    return jobs, queues, dict(view.reader.faults)


CHANGES = st.one_of(
    st.tuples(st.just("node"), st.sampled_from("abc"), st.integers(0, 8)),
    st.tuples(st.just("no node"), st.sampled_from("abc")),
    st.tuples(st.just("job"), st.sampled_from("uv"), st.integers(1, 4), st.sampled_from(["q", "r", "bad"])),
    st.tuples(st.just("no job"), st.sampled_from("uv")),
    st.tuples(
        st.just("pod"),
        st.sampled_from("uvw"),
        st.integers(0, 3),
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from(["Running", "Succeeded"]),
        st.sampled_from([None, "2026-01-01T00:00:09Z"]),
    ),
    st.tuples(st.just("no pod"), st.sampled_from("uvw"), st.integers(0, 3)),
    st.tuples(st.just("queue"), st.sampled_from("qr"), st.integers(0, 9)),
    st.tuples(st.just("no queue"), st.sampled_from("qr")),
    st.tuples(st.just("look")),
)


def apply(view, change):
    match change:
        case ("node", name, gpus):
            view.put_node(node(name, gpus))
        case ("no node", name):
            view.drop_node(name)
        case ("job", uid, replicas, queue):
            one_job = job(replicas, uid, **{labels.QUEUE: queue})
            if queue == "bad":
                one_job["spec"]["parallelism"] = "many"
            view.put_job("Job", one_job)
        case ("no job", uid):
            view.drop_job(uid)
        case ("pod", owner, index, on, phase, deleted):
            view.put_pod(pod(index, on, owner, phase, deleted=deleted))
        case ("no pod", owner, index):
            view.drop_pod(f"{owner}-{index}")
        case ("queue", name, gpus):
            view.queues.put(QueueSpec(name, capability={GPU: gpus}))
        case ("no queue", name):
            view.queues.drop(name)
        case ("look",):
            view.observation(0.0)


def what(change):
    """Return the object of a change: only its last change counts."""
    kind = change[0].removeprefix("no ")
    return (kind, *change[1:3]) if kind == "pod" else (kind, *change[1:2])


@settings(max_examples=scaled(300), deadline=None)
@given(st.lists(CHANGES, max_size=30))
def test_whatever_came_in_whatever_order_the_end_is_what_counts(changes):
    """A view that has followed every change agrees with one that is told only how things are now."""
    followed, fresh = Cache(KINDS), Cache(KINDS)
    for change in changes:
        apply(followed, change)
    last = {what(change): change for change in changes}
    for kind in ("queue", "pod", "job", "node"):
        for change in last.values():
            if what(change)[0] == kind and not change[0].startswith("no "):
                apply(fresh, change)
    assert told_view(followed) == told_view(fresh)


FAULT_TAINT = "turnout.dev/faulty"


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        pytest.param({}, "free", id="a usable node"),
        pytest.param({"taints": [Taint(key=FAULT_TAINT, effect="NoSchedule")]}, "faulty", id="a faulty node"),
        pytest.param({"unschedulable": True}, "unschedulable", id="a cordoned node"),
    ],
)
def test_each_gpu_of_the_nodes_is_counted_once(spec, state):
    cache = Cache(KINDS)
    cache.put_node(msgspec.structs.replace(node("n0"), spec=NodeSpec(**spec)))
    cache.put_node(node("n1", 4))
    cache.observation(0.0)
    cache.put_pod(pod(0, on="n0", gpus=3))
    counts = cache.nodes.gpus_by_state((GPU, "amd.com/gpu"), FAULT_TAINT)
    assert counts == dict.fromkeys(counts, 0) | Counter(used=3, free=4) + Counter({state: 5})


@pytest.mark.parametrize(("labels_", "label", "owner"), [
    pytest.param({"owner": "ann"}, "owner", "ann", id="a label"),
    pytest.param({"owner": "ann"}, "team", "", id="another label"),
    pytest.param({"owner": "ann"}, "", "", id="no label is asked for"),
    pytest.param({}, "owner", "", id="no labels"),
    pytest.param(None, "owner", "", id="labels that are null"),
])  # fmt: skip
def test_the_label_of_a_job(view, labels_, label, owner):
    raw = job()
    raw["metadata"]["labels"] = labels_
    view.put_job("Job", raw)
    assert view.jobs.label_of(label, JobKey("Job", "ns", "j-u")) == owner
    assert view.jobs.label_of(label, JobKey("Job", "ns", "gone")) == ""
