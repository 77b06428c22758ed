"""Queues as the autoscaler counts on them: a LocalQueue that is stopped, and what bounds several."""

import json

import pytest

from tests.autoscaler.test_cache import GPU, job, node, pod
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.metric_samples import Look, samples
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Policy, Reason
from turnout.autoscaler.reporting.queue_status import pages
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.queues import kueue
from turnout.kube import labels


def cluster_queue(nominal=8, cohort="c"):
    quota = {"name": GPU, "nominalQuota": nominal}
    groups = [{"coveredResources": [GPU], "flavors": [{"name": "f", "resources": [quota]}]}]
    return {"metadata": {"name": "cq"}, "spec": {"cohortName": cohort, "resourceGroups": groups}}


@pytest.fixture
def view():
    made = Cache(KINDS)
    made.put_node(node("a"))
    made.put_queue(kueue.read(cluster_queue()))
    made.put_local_queue("ns/lq", "cq")
    made.put_job("Job", job(1, **{labels.QUEUE: "lq"}))
    made.put_pod(pod(0, "a"))
    return made


def reasons(view):
    return [step.reason for step in decide(view.observation(0.0), Policy(), 0.0)]


def test_a_stopped_local_queue_admits_nothing_and_counts_in_its_parent(view):
    assert reasons(view) == [Reason.IDLE_ROOM]
    view.put_local_queue("ns/lq", "cq", open=False)
    assert reasons(view) == [Reason.QUEUE_CLOSED]
    assert view.observation(0.0).queues["cq"].used[GPU] == 2


@pytest.mark.parametrize("leads", ["cq", ""], ids=["goes on", "is gone"])
def test_nothing_is_left_of_a_stop(view, leads):
    view.put_local_queue("ns/lq", "cq", open=False)
    view.put_local_queue("ns/lq", leads)
    assert not [name for name in view.observation(0.0).queues if name.startswith("stopped/")]


def test_a_cohort_is_counted_on_and_nobodys_to_read(view):
    seen = view.observation(0.0)
    steps = decide(seen, Policy(), 0.0)
    assert seen.queues["cq"].within in seen.queues
    told = {
        labels[0] for name, labels, _ in samples(Look(0.0, seen.jobs, seen.queues, tuple(steps)), {}, GPU) if labels
    }
    assert told == {"cq"}
    found = pages(seen, steps, GPU, dry_run=True)
    assert {name: json.loads(page["status"])["gpus"]["used"] for name, page in found.items()} == {"cq": 2}
