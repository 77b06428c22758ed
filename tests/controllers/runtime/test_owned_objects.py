"""Children count for the job that controls them, in its own namespace, whatever anybody else writes."""

import msgspec
import pytest

from tests.controllers.jobs import job, role
from tests.controllers.runtime.world import KEY, KINDS
from turnout.controllers.kinds.registry import by_api
from turnout.controllers.model import JobKey
from turnout.controllers.runtime.owned_objects import ChildCache, JobObject, Owned, OwnedPod
from turnout.kube.times import unix_s
from turnout.kube.watch_events import Key

LABELS = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "0"}


def child(
    namespace="ns",
    uid="uid-bert",
    controller=True,
    name="bert-worker-0",
    kind="PyTorchJob",
    api="kubeflow.org/v1",
    **meta,
):
    owner = {"apiVersion": api, "kind": kind, "name": "bert", "uid": uid, "controller": controller}
    head = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "5"}
    return {"metadata": {**head, "labels": LABELS, "ownerReferences": [owner], **meta}}


@pytest.fixture
def cache():
    changed = []
    child_cache = ChildCache(changed.append, KINDS)
    child_cache.changed = changed
    child_cache.put_job(KEY.api, "PyTorchJob", msgspec.convert(job(worker=role(1)), JobObject))
    changed.clear()
    return child_cache


def put(cache, answer=False, **fields):
    cache.put_pod(msgspec.convert(child(**fields), OwnedPod), from_own_write=answer)
    cache.put_other("Service", msgspec.convert(child(**fields), Owned), from_own_write=answer)


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        pytest.param({}, True, id="its controller is the job"),
        pytest.param({"namespace": "strangers"}, False, id="it lies in another namespace"),
        pytest.param({"kind": "Job"}, False, id="its controller is of a kind that is not ours"),
        pytest.param({"api": "example.org/v1"}, False, id="its controller is of that kind in another group"),
        pytest.param({"controller": False}, False, id="the job is an owner among others"),
        pytest.param({"uid": "uid-of-another"}, False, id="another job of that name was its controller"),
    ],
)
def test_a_child_counts_where(cache, fields, counts):
    put(cache, **fields)
    _, owned = cache.job(KEY)
    assert (len(owned.pods), len(owned.others)) == ((1, 1) if counts else (0, 0))
    assert bool(cache.changed) is counts


def test_what_is_gone_stays_gone_and_older_versions_are_passed_over(cache):
    put(cache)
    put(cache, resourceVersion="4", deletionTimestamp="2026-01-01T00:00:00Z")
    (pod,) = cache.job(KEY)[1].pods
    assert not pod.deleting
    for kind in ("Pod", "Service"):
        cache.drop_child(kind, Key("ns", "bert-worker-0", "ns-bert-worker-0"))
    put(cache, answer=True, resourceVersion="9")
    assert (cache.job(KEY)[1].pods, dict(cache.job(KEY)[1].others)) == ((), {})


LABEL = "training.kubeflow.org/job-name"


@pytest.mark.parametrize(
    ("shown", "label", "version", "left"),
    [
        pytest.param(False, LABEL, "5", 0, id="is gone: it went while no watch was there"),
        pytest.param(False, "", "9", 0, id="is gone where the list is of all there are"),
        pytest.param(False, LABEL, "4", 1, id="stays where the list is older than the answer"),
        pytest.param(False, "elasticjob-name", "9", 1, id="stays where the list is of other kinds' children"),
        pytest.param(True, LABEL, "9", 1, id="stays where a watch has shown it, which tells of its end"),
    ],
)
def test_what_an_answer_told_of_and_a_list_does_not_hold(cache, shown, label, version, left):
    put(cache, answer=True)
    if shown:
        put(cache)
        put(cache, answer=True, resourceVersion="6")
    for kind in ("Pod", "Service"):
        cache.drop_unlisted(kind, label, version)
    _, owned = cache.job(KEY)
    assert (len(owned.pods), len(owned.others)) == (left, left)


def test_what_a_watch_shows_again_after_its_end_is_there_again(cache):
    """An etcd that is put back to an older state has objects, by the same uid, whose end was told."""
    put(cache)
    raw = msgspec.convert(job(worker=role(1)), JobObject)
    for kind in ("Pod", "Service"):
        cache.drop_child(kind, Key("ns", "bert-worker-0", "ns-bert-worker-0"))
    cache.drop_job(KEY.api, Key("ns", "bert", raw.metadata.uid))
    cache.put_job(KEY.api, "PyTorchJob", raw, from_own_write=True)
    assert cache.job(KEY) is None
    cache.put_job(KEY.api, "PyTorchJob", raw)
    put(cache)
    _, owned = cache.job(KEY)
    assert (len(owned.pods), len(owned.others)) == (1, 1)


@pytest.mark.contract("CA-14")
@pytest.mark.parametrize(
    ("node", "is_waiting"), [("", "0/4 nodes"), ("n1", "")], ids=["while it has none", "then no more"]
)
def test_a_scheduler_says_why_a_pod_has_no_node(cache, node, is_waiting):
    condition = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes"}
    pod = {**child(), "spec": {"nodeName": node}, "status": {"phase": "Pending", "conditions": [condition]}}
    cache.put_pod(msgspec.convert(pod, OwnedPod))
    assert [each.scheduler_message for each in cache.job(KEY)[1].pods] == [is_waiting]


def ended(name, began="2026-01-01T00:00:10Z", at="2026-01-01T00:00:40Z"):
    state = {"exitCode": 1, "startedAt": began, "finishedAt": at}
    return {"name": name, "state": {"terminated": state}}


@pytest.mark.parametrize(
    ("status", "times_s"),
    [
        pytest.param({"startTime": "2026-01-01T00:00:00Z"}, (0, None), id="its pod's start, while it runs"),
        pytest.param({"containerStatuses": [ended("pytorch")]}, (10, 40), id="its own"),
        pytest.param({"containerStatuses": [ended("pytorch", None, None)]}, (None, None), id="unknown, as a null"),
        pytest.param({"containerStatuses": [ended("other")]}, (None, None), id="not another container's"),
    ],
)
def test_when_the_training_container_began_and_ended_is(cache, status, times_s):
    put(cache)
    pod = {**child(), "status": {"phase": "Failed", **status}}
    cache.put_pod(msgspec.convert(pod, OwnedPod))
    (job_pod,) = cache.job(KEY)[1].pods
    start_s = unix_s("2026-01-01T00:00:00Z")
    found = [
        None if each is None else each - start_s
        for each in (job_pod.training_container.started_s, job_pod.training_container.ended_s)
    ]
    assert tuple(found) == times_s


@pytest.mark.parametrize(
    "state",
    [
        {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
        {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
    ],
    ids=["running", "waiting", "terminated"],
)
def test_a_kind_that_tells_of_containers_gets_their_states(state):
    kinds = by_api(["ColossalAIJob"])
    ((api, kind),) = kinds.items()
    cache = ChildCache([].append, kinds)
    raw = job(worker=role(1))
    cache.put_job(api, kind.kind, msgspec.convert({key: raw[key] for key in ("metadata", "spec")}, JobObject))
    pod = child(kind=kind.kind, api=kind.apis[0])
    pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "worker", "ready": True, "state": state}]}
    cache.put_pod(msgspec.convert(pod, OwnedPod))
    _, owned = cache.job(JobKey(api, "ns", "bert"))
    assert [list(each.containers) for each in owned.pods] == [[{"name": "worker", "ready": True, "state": state}]]
