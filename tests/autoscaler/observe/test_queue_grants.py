"""A queue's name counts only for those to whom an object of that queue grants it; others count in their namespace."""

from collections import Counter

import pytest

from tests.autoscaler.test_cache import GPU, job, node, pod
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.observe import unmanaged_gangs
from turnout.jobs.gang import Dialect
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey
from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.kube import labels

OWN = "namespace/ns"


def volcano_queue(name, **notes):
    return volcano.read({"metadata": {"name": name, "annotations": notes}, "spec": {"capability": {GPU: "8"}}})


def elastic_quota(name, where, listed=""):
    notes = {f"{koordinator.LABEL}namespaces": listed} if listed else {}
    meta = {"name": name, "namespace": where, "annotations": notes}
    return koordinator.read({"metadata": meta, "spec": {"min": {GPU: "8"}, "max": {GPU: "8"}}})


def cluster_queue(name):
    return kueue.read({"metadata": {"name": name}, "spec": {}})


def resource_quota(where):
    return namespace.read({"metadata": {"name": "gpus", "namespace": where}, "spec": {"hard": {GPU: "8"}}})


QUEUES = (
    volcano_queue("open"),
    volcano_queue("fenced", **{labels.QUEUE_NAMESPACES: "bob, carol"}),
    volcano_queue("ours", **{labels.QUEUE_NAMESPACES: "ns,bob"}),
    elastic_quota("bobs-quota", "bob"),
    elastic_quota("our-quota", "ns"),
    cluster_queue("cq"),
    cluster_queue("bobs-cq"),
    resource_quota("bob"),
    resource_quota("ns"),
)
NAMES = [
    pytest.param("open", "open", id="a Volcano Queue that names no namespaces is everybody's, as Volcano has it"),
    pytest.param("fenced", OWN, id="a Volcano Queue grants itself to the namespaces that it names alone"),
    pytest.param("ours", "ours", id="a Volcano Queue that names this namespace"),
    pytest.param("bobs-quota", OWN, id="an ElasticQuota of another namespace"),
    pytest.param("our-quota", "our-quota", id="an ElasticQuota of this namespace"),
    pytest.param("lq", "cq", id="a LocalQueue of this namespace leads to its ClusterQueue"),
    pytest.param("bobs-lq", OWN, id="a LocalQueue of another namespace"),
    pytest.param("bob/bobs-lq", OWN, id="nor by its namespace and name"),
    pytest.param("bobs-cq", OWN, id="a ClusterQueue is reached through LocalQueues alone"),
    pytest.param("namespace/bob", OWN, id="another namespace"),
    pytest.param("namespace/ns", OWN, id="one's own namespace"),
    pytest.param("cohort/all", OWN, id="a bound on several queues is nobody's queue"),
    pytest.param("stopped/bob/bobs-lq", OWN, id="nor is a stopped LocalQueue"),
    pytest.param("nobodys", OWN, id="a name that no object bears"),
]
GRANTED = {"open", "ours", "our-quota", "lq", OWN}


@pytest.fixture
def view():
    cache = Cache(KINDS)
    cache.put_node(node("a"))
    for queue in QUEUES:
        cache.queues.put(queue)
    cache.usage.put_local_queue("ns/lq", "cq")
    cache.usage.put_local_queue("bob/bobs-lq", "bobs-cq")
    return cache


def stray(on, **marks):
    """A pod of no job in namespace ns."""
    one_pod = pod(7, on, "nobody")
    one_pod.metadata.owner_references = None
    one_pod.metadata.annotations = marks
    return one_pod


def used(view):
    """Return the GPUs in use, by queue, without the queues that use none."""
    queues = view.observation(0.0).queues
    return +Counter({name: queue.used.get(GPU, 0) for name, queue in queues.items()})


@pytest.mark.parametrize("label", [labels.VOLCANO_QUEUE, labels.KUEUE_QUEUE, labels.KOORD_QUOTA])
@pytest.mark.parametrize(("name", "queue"), NAMES)
def test_a_pod_counts_only_in_a_queue_granted_to_its_namespace(view, name, queue, label):
    view.put_pod(stray("a", **{label: name}))
    assert used(view) == {queue: 2}


@pytest.mark.parametrize(("name", "queue"), NAMES)
def test_a_job_counts_only_in_a_queue_granted_to_its_namespace(view, name, queue):
    view.put_job("Job", job(**{labels.QUEUE: name}))
    view.put_pod(pod(0, "a"))
    (observed_job,) = view.observation(0.0).jobs
    assert (observed_job.job.queue, set(used(view))) == (queue, {queue})


@pytest.mark.parametrize(("name", "queue"), NAMES)
def test_a_pod_group_waits_only_in_a_queue_granted_to_its_namespace(view, name, queue):
    spec = {"minMember": 2, "queue": name, "minResources": {GPU: "4"}}
    raw = {"metadata": {"name": "g", "namespace": "ns", "uid": "g"}, "spec": spec, "status": {"phase": "Pending"}}
    view.unmanaged.put_group(unmanaged_gangs.read_pod_group(Dialect.VOLCANO, raw))
    (observed_job,) = view.observation(0.0).jobs
    assert observed_job.job.queue == queue


@pytest.mark.parametrize(("name", "queue"), NAMES)
def test_a_name_that_is_not_granted_is_reported_with_the_queue_that_counts(view, name, queue):
    view.put_job("Job", job(**{labels.QUEUE: name}))
    view.put_pod(stray("", **{labels.VOLCANO_QUEUE: name}))
    view.observation(0.0)
    keys = {JobKey("Job", "ns", "j-u"), JobKey("Pod", "ns", "j-7")}
    assert set(view.usage.ungranted) == (set() if name in GRANTED else keys)
    for why in view.usage.ungranted.values():
        assert name in why
        assert queue in why


def test_an_elastic_quota_grants_itself_to_the_namespaces_that_it_lists(view):
    view.queues.put(elastic_quota("listed-quota", "bob", '["ns"]'))
    view.put_job("Job", job(**{labels.QUEUE: "listed-quota"}))
    (observed_job,) = view.observation(0.0).jobs
    assert (observed_job.job.queue, dict(view.usage.ungranted)) == ("listed-quota", {})


def test_volcanos_implied_queue_is_no_fault_where_nobody_has_made_it(view):
    view.put_job("Job", job(**{labels.QUEUE: "default"}))
    (observed_job,) = view.observation(0.0).jobs
    assert (observed_job.job.queue, dict(view.usage.ungranted)) == (OWN, {})


def test_a_grant_counts_from_the_next_look_on_until_it_ends(view):
    view.put_job("Job", job(**{labels.QUEUE: "later"}))
    view.put_pod(pod(0, "a"))
    places = []
    for change in (
        lambda: None,
        lambda: view.queues.put(volcano_queue("later"), "at"),
        lambda: view.queues.put(volcano_queue("later", **{labels.QUEUE_NAMESPACES: "bob"}), "at"),
        lambda: view.queues.put(volcano_queue("later", **{labels.QUEUE_NAMESPACES: "bob,ns"}), "at"),
        lambda: view.queues.drop("at"),
    ):
        change()
        (observed_job,) = view.observation(0.0).jobs
        places.append((observed_job.job.queue, len(view.usage.ungranted), set(used(view))))
    in_own, in_later = (OWN, 1, {OWN}), ("later", 0, {"later"})
    assert places == [in_own, in_later, in_own, in_later, in_own]


def test_a_job_that_is_gone_or_mended_is_reported_no_longer(view):
    view.put_job("Job", job(**{labels.QUEUE: "namespace/bob"}))
    view.put_job("Job", job(uid="v", **{labels.QUEUE: "namespace/bob"}))
    view.observation(0.0)
    assert len(view.usage.ungranted) == 2
    view.put_job("Job", job(**{labels.QUEUE: "open"}))
    view.drop_job("v")
    view.observation(0.0)
    assert dict(view.usage.ungranted) == {}
