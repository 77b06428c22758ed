"""Queues as the autoscaler counts on them: a LocalQueue that is stopped, and what bounds several."""

import json

import pytest

from tests.autoscaler.test_cache import GPU, job, node, pod
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Policy, Reason
from turnout.autoscaler.reporting.queue_status import queue_configmaps
from turnout.autoscaler.reporting.samples import Snapshot, samples
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.queues import kueue, volcano
from turnout.kube import labels


def cluster_queue(nominal=8, cohort="c"):
    quota = {"name": GPU, "nominalQuota": nominal}
    groups = [{"coveredResources": [GPU], "flavors": [{"name": "f", "resources": [quota]}]}]
    return {"metadata": {"name": "cq"}, "spec": {"cohortName": cohort, "resourceGroups": groups}}


@pytest.fixture
def view():
    cache = Cache(KINDS)
    cache.put_node(node("a"))
    cache.queues.put(kueue.read(cluster_queue()))
    cache.usage.put_local_queue("ns/lq", "cq")
    cache.put_job("Job", job(1, **{labels.QUEUE: "lq"}))
    cache.put_pod(pod(0, "a"))
    return cache


def reasons(view):
    return [step.reason for step in decide(view.observation(0.0), Policy(), 0.0)]


def test_a_stopped_local_queue_admits_nothing_and_counts_in_its_parent(view):
    assert reasons(view) == [Reason.IDLE_ROOM]
    view.usage.put_local_queue("ns/lq", "cq", open=False)
    assert reasons(view) == [Reason.QUEUE_CLOSED]
    assert view.observation(0.0).queues["cq"].used[GPU] == 2


def test_a_stopped_local_queue_that_gets_another_cluster_queue_is_closed():
    cache = Cache(KINDS)
    cache.put_node(node("a"))
    cache.queues.put(kueue.read(cluster_queue()))
    cache.usage.put_local_queue("ns/lq", "missing", open=False)
    cache.put_job("Job", job(1, **{labels.QUEUE: "lq"}))
    assert [state.job.queue for state in cache.observation(0.0).jobs] == ["namespace/ns"]
    cache.usage.put_local_queue("ns/lq", "cq", open=False)
    assert [state.job.queue for state in cache.observation(0.0).jobs] == ["stopped/ns/lq"]
    assert reasons(cache) == [Reason.QUEUE_CLOSED]


@pytest.mark.parametrize("leads", ["cq", ""], ids=["goes on", "is gone"])
def test_nothing_is_left_of_a_stop(view, leads):
    view.usage.put_local_queue("ns/lq", "cq", open=False)
    view.usage.put_local_queue("ns/lq", leads)
    assert not [name for name in view.observation(0.0).queues if name.startswith("stopped/")]


def test_a_cohort_is_counted_on_and_nobodys_to_read(view):
    observation = view.observation(0.0)
    steps = decide(observation, Policy(), 0.0)
    assert observation.queues["cq"].parent in observation.queues
    pages = {
        labels[0]
        for name, labels, _ in samples(Snapshot(0.0, observation.jobs, observation.queues, tuple(steps)), {}, (GPU,))
        if labels
    }
    assert pages == {"cq"}
    found = queue_configmaps(observation, steps, (GPU,), dry_run=True)
    assert {name: json.loads(page["status"])["gpus"]["used"] for name, page in found.items()} == {"cq": 2}


def volcano_queue(name, capability):
    spec = {"weight": 1, "capability": {GPU: str(capability)}}
    return volcano.read({"metadata": {"name": name}, "spec": spec, "status": {"state": "Open"}})


@pytest.mark.parametrize(
    ("capability", "theirs", "ours"),
    [
        pytest.param(8, {"a": (1, 0)}, 6, id="one that could start takes its share"),
        pytest.param(4, {"a": (3, 0)}, 8, id="one that asks for more than its queue may have takes nothing"),
        pytest.param(99, {"a": (5, 0)}, 8, id="one that asks for more than there is takes nothing"),
        pytest.param(4, {"a": (3, 0), "b": (1, 0)}, 6, id="others of its queue have their share all the same"),
        pytest.param(3, {"a": (2, 2), "b": (1, 0)}, 5, id="one that runs counts, though its queue may have less now"),
    ],
)
def test_a_job_that_can_never_start_takes_no_share_from_other_queues(capability, theirs, ours):
    """Volcano admits no such job to its queue, so its pods are not made, and not in what the queue asks for."""
    view = Cache(KINDS)
    view.put_node(node("a", 8))
    for queue, maximum in (("ours", 8), ("theirs", capability)):
        view.queues.put(volcano_queue(queue, maximum))
    for name, queue, minimum, runs in (
        ("mine", "ours", 4, 0),
        *((name, "theirs", *sizes) for name, sizes in theirs.items()),
    ):
        notes = {labels.QUEUE: queue, labels.MIN_WORKERS: str(minimum), labels.MAX_WORKERS: str(minimum)}
        view.put_job("Job", job(minimum, uid=name, **notes))
        for index in range(runs):
            view.put_pod(pod(index, "a", owner=name))
    assert view.observation(0.0).queues["ours"].deserved[GPU] == ours
