"""Laws of every kind: the nouns, a resize that is read back, and objects that anybody may have written."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jobs.kinds.manifests import BOUNDS, SAMPLES, colossal, elastic, lws, mindspore, mpi, ray
from tests.jobs.test_kinds import GPU, indexed, pytorch, volcano
from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.model import JobState
from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.indexedjob import INDEXED_JOB
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import BadJob, Bounds, JobLifecycle, Order
from turnout.kube import labels

RESIZED = [name for name in SAMPLES if name != "ColossalAIJob"]


def merged(stored, body):
    """A merge patch as the API server applies it (RFC 7386)."""
    if not isinstance(body, dict):
        return body
    patched = dict(stored) if isinstance(stored, dict) else {}
    for key, value in body.items():
        patched[key] = merged(patched.get(key), value)
    return patched


def obeyed(kind, raw, workers):
    """The object once the API server has taken the change."""
    resized = merged(raw, KINDS[kind].change(raw, workers).body)
    resized["metadata"]["resourceVersion"] = "8"
    return resized


def test_every_kind_has_a_sample():
    assert SAMPLES.keys() == KINDS.keys()


@pytest.mark.contract("VE-05", "XD-01", "XD-02")
@pytest.mark.parametrize("kind", SAMPLES)
def test_every_kind_yields_the_same_noun(kind):  # XD-02
    job = KINDS[kind].read(SAMPLES[kind])
    assert (str(job.key), job.uid, job.version) == (f"{kind}/ns/j", "u", "7")
    assert job.elastic is (kind in RESIZED)
    assert bool(job.refused) is (kind not in RESIZED)
    if kind in RESIZED:
        assert (job.replicas, job.bounds, dict(job.shape.requests)[GPU]) == (4, Bounds(2, 8), 2)


@pytest.mark.parametrize("kind", RESIZED)
@pytest.mark.parametrize("workers", [2, 6, 8])
def test_a_resize_is_read_back_and_keeps_the_bounds(kind, workers):
    before = copy.deepcopy(SAMPLES[kind])
    job = KINDS[kind].read(obeyed(kind, SAMPLES[kind], workers))
    assert (job.replicas, job.bounds, job.wanted_workers, job.refused) == (workers, Bounds(2, 8), None, "")
    assert SAMPLES[kind] == before


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("Job", indexed(4, {labels.MAX_WORKERS: "8"})),
        ("PyTorchJob", pytorch(4, {labels.MAX_WORKERS: "8"}, elasticPolicy=None)),
        ("ElasticJob", elastic(4, {labels.MAX_WORKERS: "8"}, command="train")),
        ("RayCluster", ray(4, {labels.MAX_WORKERS: "8"})),
        ("LeaderWorkerSet", lws(2, 2, {labels.MAX_WORKERS: "8"})),
        ("MPIJob", mpi(4, {labels.MAX_WORKERS: "8"}, command="sh run.sh")),
        ("MSJob", mindspore(4, {labels.MAX_WORKERS: "8"})),
    ],
)
def test_a_least_that_only_the_size_said_is_not_lost_with_it(kind, raw):
    grown = obeyed(kind, raw, 8)
    assert (KINDS[kind].read(raw).bounds, KINDS[kind].read(grown).bounds) == (Bounds(4, 8), Bounds(4, 8))
    assert KINDS[kind].read(obeyed(kind, grown, 4)).bounds == Bounds(4, 8)


@pytest.mark.parametrize("kind", RESIZED)
def test_a_change_is_for_one_version_of_one_object(kind):
    change = KINDS[kind].change(SAMPLES[kind], 6)
    plural = KINDS[kind].path.rpartition("/")[2]
    assert change.method == "PATCH"
    assert change.path == f"{KINDS[kind].path.rpartition('/')[0]}/namespaces/ns/{plural}/j"
    assert change.body["metadata"]["resourceVersion"] == "7"
    assert change.body["metadata"]["annotations"][labels.WROTE_WORKERS] == "6"


@pytest.mark.parametrize("kind", [name for name in SAMPLES if name not in RESIZED])
def test_a_kind_that_is_never_resized_says_so_when_asked_all_the_same(kind):
    with pytest.raises(BadJob, match="cannot be resized to 3 workers"):
        KINDS[kind].change(SAMPLES[kind], 3)


@pytest.mark.parametrize("kind", RESIZED)
@pytest.mark.parametrize("maker", job_kind.SIZE_OWNERS)
def test_what_another_object_makes_and_keeps_is_not_ours(kind, maker):
    raw = copy.deepcopy(SAMPLES[kind])
    raw["metadata"]["ownerReferences"] = [{"kind": maker, "name": "a", "uid": "theirs", "controller": True}]
    job = KINDS[kind].read(raw)
    assert (job.part_of, maker in job.refused) == ("theirs", True)


@pytest.mark.parametrize("kind", RESIZED)
def test_what_a_cron_job_has_started_is_nobodys_to_set_back(kind):
    raw = copy.deepcopy(SAMPLES[kind])
    raw["metadata"]["ownerReferences"] = [{"kind": "CronJob", "name": "a", "uid": "theirs", "controller": True}]
    assert KINDS[kind].read(raw).refused == ""


def test_pods_that_start_together_cannot_become_fewer():
    raw = indexed(4)
    raw["spec"]["template"]["metadata"] = {"annotations": {labels.KOORD_MIN: "4"}}
    assert "min-available of its pods is 4, more than its min of 2" in KINDS["Job"].read(raw).refused
    raw["spec"]["template"]["metadata"]["annotations"][labels.KOORD_MIN] = "2"
    assert KINDS["Job"].read(raw).refused == ""


@pytest.mark.contract("XD-04")
@pytest.mark.parametrize(
    ("kind", "raw", "lifecycle"),
    [
        ("ElasticJob", {**elastic(), "status": {"phase": "Succeeded"}}, JobLifecycle.DONE),
        ("ElasticJob", {**elastic(), "status": {"phase": "Running"}}, JobLifecycle.LIVE),
        ("ElasticJob", elastic(suspend=True), JobLifecycle.SUSPENDED),
        ("MPIJob", {**mpi(), "status": {"conditions": [{"type": "Failed", "status": "True"}]}}, JobLifecycle.DONE),
        ("MPIJob", mpi(runPolicy={"suspend": True}), JobLifecycle.SUSPENDED),
        ("RayCluster", ray(suspend=True), JobLifecycle.SUSPENDED),
        (
            "MSJob",
            {**mindspore(), "status": {"conditions": [{"type": "Succeeded", "status": "True"}]}},
            JobLifecycle.DONE,
        ),
        ("MSJob", mindspore(runPolicy={"suspend": True}), JobLifecycle.SUSPENDED),
        ("ColossalAIJob", {**colossal(), "status": {"phase": "Failed"}}, JobLifecycle.DONE),
        ("ColossalAIJob", colossal(runMode={"pause": {"enabled": True}}), JobLifecycle.SUSPENDED),
    ],
)
def test_where_a_job_of_the_other_kinds_stands(kind, raw, lifecycle):
    assert KINDS[kind].read(raw).lifecycle is lifecycle


# Priorities: PriorityClass, then 0 to 100 by the kind's field or our annotation, then the deadline (XD-08, CA-29).


@pytest.mark.contract("CA-29")
@pytest.mark.parametrize(
    ("raw", "order"),
    [
        pytest.param(("ColossalAIJob", colossal(priority=50)), Order(priority=50), id="by T9k's own field"),
        pytest.param(("ColossalAIJob", colossal(scheduler={})), Order(), id="which is 0 when nothing is said"),
        pytest.param(("Job", indexed(notes={labels.PRIORITY: "50"})), Order(priority=50), id="by our annotation"),
    ],
)
def test_a_priority_is_said_by_a_field_or_by_an_annotation(raw, order):
    assert KINDS[raw[0]].read(raw[1]).order == order


@pytest.mark.contract("CA-29")
def test_a_t9k_job_counts_in_its_queue():
    job = KINDS["ColossalAIJob"].read(colossal(queue="q"))
    assert (job.queue, job.replicas, [count for _, count in job.other_roles]) == ("q", 2, [1])
    assert dict(job.other_roles[0][0].requests)["cpu"] == 500


@pytest.mark.parametrize("priority", [-1, 101, 1.5, "high", True])
def test_a_priority_that_is_none_is_told(priority):
    with pytest.raises(BadJob, match="priority"):
        KINDS["ColossalAIJob"].read(colossal(priority=priority))


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("VolcanoJob", volcano(priorityClassName="high")),
        ("PyTorchJob", pytorch(runPolicy={"schedulingPolicy": {"minAvailable": 2, "priorityClass": "high"}})),
        ("MPIJob", mpi(runPolicy={"schedulingPolicy": {"minAvailable": 3, "priorityClass": "high"}})),
        ("MSJob", mindspore(runPolicy={"schedulingPolicy": {"minAvailable": 3, "priorityClass": "high"}})),
        ("RayCluster", ray(marks={"ray.io/priority-class-name": "high"})),
        ("Job", {**indexed(), "spec": {**indexed()["spec"], "template": {"spec": {"priorityClassName": "high"}}}}),
    ],
)
def test_a_priority_class_stands_where_each_kind_has_it(kind, raw):
    job = KINDS[kind].read(raw)
    assert (job.priority_class, job.refused) == ("high", "")


@pytest.mark.contract("XD-08")
def test_one_order_of_priorities_for_all_kinds():
    by_class = replace(KINDS["Job"].read(indexed()), order=Order(class_value=10))
    nearer = {labels.PRIORITY: "50", labels.DEADLINE: "2026-01-01T00:00:00Z", **BOUNDS}
    later = {**nearer, labels.DEADLINE: "2027-01-01T00:00:00Z"}
    jobs = [
        by_class,
        KINDS["MPIJob"].read(mpi(notes={labels.PRIORITY: "60", **BOUNDS})),
        KINDS["RayCluster"].read(ray(notes=nearer)),
        KINDS["ElasticJob"].read(elastic(notes=later)),
        KINDS["ColossalAIJob"].read(colossal(priority=50)),
        KINDS["PyTorchJob"].read(pytorch()),
    ]
    assert sorted(map(JobState, reversed(jobs)), key=lambda state: state.queue_order) == list(map(JobState, jobs))


# A new kind.


@pytest.mark.contract("MS-13", "VE-05", "XD-01", "XD-02")
def test_a_new_kind_is_one_module():  # XD-01
    def read(raw):
        head = job_kind.read_head(raw, "Dummy")
        size = head.spec.count("size", 1)
        return job_kind.build_job(
            head, job_kind.SizeFields(size, size, size, head.spec.part("pod")), queue=head.first_value(labels.QUEUE)
        )

    def resize(raw, workers):
        return job_kind.resize_patch(
            read(raw), job_kind.read_head(raw, "Dummy").annotations, kind.path, workers, {"size": workers}
        )

    kind = JobKind("Dummy", "/apis/d/v1/dummies", read, resize)
    raw = {"metadata": SAMPLES["Job"]["metadata"], "spec": {"size": 3, "pod": indexed()["spec"]["template"]}}
    assert (kind.read(raw).bounds, kind.change(raw, 5).body["spec"]) == (Bounds(2, 8), {"size": 5})
    assert kind.pods is INDEXED_JOB.pods


# Anybody may write anything.

LEAF = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=8) | st.just("2")
JSON = st.recursive(
    LEAF, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=8), each, max_size=3)
)


def places(value, at=()):
    """Every place in an object."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*at, key))


def put(value, at, new):
    """The object with something else in one place."""
    if not at:
        return new
    copy_of_value = dict(value) if isinstance(value, dict) else list(value)
    copy_of_value[at[0]] = put(copy_of_value[at[0]], at[1:], new)
    return copy_of_value


FIELDS = {  # which the samples leave out
    "VolcanoJob": ["policies", "plugins", "minSuccess", "priorityClassName"],
    "PyTorchJob": ["runPolicy"],
    "PyTorchJob.ctyun.cn": ["runPolicy"],
    "MSJob": ["runPolicy", "successPolicy"],
    "Job": ["successPolicy", "suspend", "managedBy"],
    "ElasticJob": ["suspend", "optimizeMode"],
    "RayCluster": ["enableInTreeAutoscaling", "suspend", "managedBy"],
    "LeaderWorkerSet": ["rolloutStrategy"],
    "MPIJob": ["runPolicy", "slotsPerWorker", "runLauncherAsWorker"],
    "ColossalAIJob": ["runMode"],
}


def faults_of(kind, raw):
    """The job, or why it is none; whatever else is raised, is raised."""
    try:
        return KINDS[kind].read(raw)
    except BadJob as error:
        return str(error)


@pytest.mark.parametrize("kind", SAMPLES)
@settings(max_examples=scaled(120), deadline=None)
@given(data=st.data())
def test_any_object_is_a_job_or_a_bad_one(kind, data):
    raw = SAMPLES[kind]
    if data.draw(st.booleans()):
        raw = put(raw, (), {**raw, "status": data.draw(JSON)})
    if data.draw(st.booleans()):
        raw = {**raw, "spec": {**raw["spec"], data.draw(st.sampled_from(FIELDS[kind])): data.draw(JSON)}}
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.sampled_from([place for place in places(raw) if place]))
        raw = put(raw, at, data.draw(JSON))
    job = faults_of(kind, raw)
    if isinstance(job, str):
        assert job
        return
    assert isinstance(hash((job.key, job.queue, job.priority_class, job.role, job.shape, job.uid, job.created)), int)
    if job.elastic:
        KINDS[kind].change(raw, job.bounds.minimum)


@pytest.mark.parametrize("kind", SAMPLES)
@settings(max_examples=scaled(100), deadline=None)
@given(raw=st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_any_object_at_all_is_told_or_read(kind, raw):
    assert faults_of(kind, raw)
