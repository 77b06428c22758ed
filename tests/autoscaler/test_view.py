"""What the watches show, made into an observation."""

import pytest

from autoscaler.view import View
from jobs.kinds.all import KINDS
from jobs.queue import QueueSpec
from kube import labels
from kube.objects import Container, Node, NodeStatus, ObjectMeta, OwnerReference, Pod, PodSpec, PodStatus, Resources

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
    told = {"parallelism": replicas, "completions": replicas, "completionMode": "Indexed", "template": {"spec": spec}}
    notes = {labels.MIN_WORKERS: "1", labels.MAX_WORKERS: "4", labels.QUEUE: "q", **notes}
    meta = {"name": f"j-{uid}", "namespace": "ns", "uid": uid, "resourceVersion": "1", "annotations": notes}
    return {"metadata": meta, "spec": told}


@pytest.fixture
def view():
    made = View(KINDS)
    for name in ("a", "b"):
        made.put_node(node(name))
    made.put_queue(QueueSpec("q", {GPU: 12}, deserved={GPU: 4}))
    made.put_job("Job", job())
    return made


def only(view):
    (seen,) = view.observation(0.0).jobs
    return seen


def test_workers_are_a_jobs_pods_by_index(view):
    view.put_pod(pod(1, "b"))
    view.put_pod(pod(0, "a", deleted="2026-01-01T00:00:09Z"))
    assert [(w.index, w.row, w.leaving) for w in only(view).workers] == [(0, 0, True), (1, 1, False)]
    assert only(view).waits is False


def test_what_has_ended_well_is_no_worker_takes_nothing_and_is_not_missing(view):
    assert only(view).waits
    view.put_pod(pod(0, "a", phase="Succeeded"))
    assert (only(view).workers, only(view).waits) == ((), False)
    assert view.observation(0.0).room.free[0, 0] == 8


def test_room_is_what_pods_leave_those_that_go_included(view):
    view.put_pod(pod(0, "a", deleted="2026-01-01T00:00:09Z"))
    view.put_pod(pod(7, "a", owner="stranger", gpus=3))
    seen = view.observation(0.0)
    assert seen.room.fits(only(view).job.shape).tolist() == [1, 4]
    view.drop_pod("u-0")
    assert view.observation(0.0).room.fits(only(view).job.shape).tolist() == [2, 4]


def test_a_queue_uses_what_its_pods_ask_for(view):
    view.put_pod(pod(0, "a"))
    view.put_pod(pod(1))  # without a node it uses nothing yet
    queue = view.observation(0.0).queues["q"]
    assert (queue.used[GPU], queue.limit[GPU], queue.deserved[GPU]) == (2, 12, 4)


def test_a_job_that_cannot_be_read_is_told_and_left_alone(view):
    view.put_job("Job", job(**{labels.PAUSED: "perhaps"}))
    assert view.observation(0.0).jobs == ()
    assert [str(why) for why in view.faults.values()] == [
        "annotation turnout.dev/paused is 'perhaps': it must be true, false, grow or shrink"
    ]
    view.put_job("Job", job())
    assert (len(view.observation(0.0).jobs), view.faults) == (1, {})


def test_when_we_resized_it_stands_on_the_job(view):
    view.put_job("Job", job(**{labels.RESIZED_AT: "1970-01-01T00:10:00Z"}))
    assert only(view).resized_s == 600


def test_what_is_gone_is_gone(view):
    view.drop_job("u")
    view.drop_node("a")
    view.drop_queue("q")
    seen = view.observation(0.0)
    assert (seen.jobs, seen.queues, len(seen.room.free)) == ((), {}, 1)
