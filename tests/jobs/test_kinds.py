"""Every kind of job, read into one noun and resized: contract XD-02, VE-14 to VE-18, VE-23, VE-24, PE-49."""

import copy

import pytest

from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import BadJob, Bounds, JobLifecycle, Pause
from turnout.kube import labels

GPU = "nvidia.com/gpu"


def template(gpus=2):
    return {"spec": {"containers": [{"name": "m", "image": "i", "resources": {"limits": {GPU: str(gpus)}}}]}}


def meta(**notes):
    return {"name": "j", "namespace": "ns", "uid": "u", "resourceVersion": "7", "annotations": notes}


def volcano(replicas=4, minimum=2, notes=None, task=None, **spec):
    one = {"name": "worker", "replicas": replicas, "template": template(), **(task or {})}
    return {"metadata": meta(**(notes or {})), "spec": {"minAvailable": minimum, "queue": "q", "tasks": [one], **spec}}


def pytorch(replicas=2, notes=None, master=None, **spec):
    roles = {"Worker": {"replicas": replicas, "template": template()}} | ({"Master": master} if master else {})
    elastic = {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 8}}
    return {"metadata": meta(**(notes or {})), "spec": {"pytorchReplicaSpecs": roles, **elastic, **spec}}


def indexed(replicas=2, notes=None, **spec):
    spec_fields = {
        "parallelism": replicas,
        "completions": replicas,
        "completionMode": "Indexed",
        "template": template(),
    }
    bounds = {labels.MIN_WORKERS: "2", labels.MAX_WORKERS: "8"}
    return {"metadata": meta(**(bounds if notes is None else notes)), "spec": {**spec_fields, **spec}}


def read(kind, raw):
    return KINDS[kind].read(raw)


@pytest.mark.contract("PE-19", "VE-04", "VE-14", "VE-15", "VE-23")
@pytest.mark.parametrize(
    ("kind", "raw", "bounds", "replicas"),
    [
        pytest.param("VolcanoJob", volcano(), Bounds(2, 4), 4, id="the article's Volcano Job is elastic 2..4"),
        pytest.param(
            "VolcanoJob", volcano(notes={labels.MAX_WORKERS: "8"}), Bounds(2, 8), 4, id="or to what we are told"
        ),
        pytest.param("PyTorchJob", pytorch(), Bounds(2, 8), 2, id="a PyTorchJob by its elasticPolicy"),
        pytest.param("PyTorchJob", pytorch(elasticPolicy={"min": 1, "max": 5}), Bounds(1, 5), 2, id="with short keys"),
        pytest.param("PyTorchJob", pytorch(elasticPolicy=None), Bounds(2, 2), 2, id="without one it is rigid"),
        pytest.param(
            "PyTorchJob", pytorch(elasticPolicy={"minReplicas": 2}), Bounds(2, 2), 2, id="a min alone is both"
        ),
        pytest.param("PyTorchJob", pytorch(elasticPolicy={"max": 2}), Bounds(2, 2), 2, id="a max alone is both"),
        pytest.param("Job", indexed(), Bounds(2, 8), 2, id="an Indexed Job by our annotations"),
        pytest.param("Job", indexed(notes={}), Bounds(2, 2), 2, id="without them it is rigid"),
    ],
)
def test_bounds_and_size(kind, raw, bounds, replicas):
    job = read(kind, raw)
    assert (job.bounds, job.replicas, job.refused) == (bounds, replicas, "")
    assert dict(job.shape.requests)[GPU] == 2
    assert (str(job.key), job.version) == (f"{kind}/ns/j", "7")


@pytest.mark.contract("PE-49", "VE-24")
@pytest.mark.parametrize(
    ("kind", "raw", "why"),
    [
        ("VolcanoJob", volcano(policies=[{"event": "PodEvicted", "action": "RestartJob"}]), "spec does RestartJob"),
        ("VolcanoJob", volcano(policies=[{"events": ["*"], "action": "RestartJob"}]), "does RestartJob on PodEvicted"),
        ("VolcanoJob", volcano(policies=[{"event": "PodEvicted", "action": "AbortJob"}]), "spec does AbortJob"),
        ("VolcanoJob", volcano(policies=[{"event": "PodEvicted", "action": "CompleteJob"}]), "spec does CompleteJob"),
        (
            "VolcanoJob",
            volcano(task={"policies": [{"event": "PodEvicted", "action": "RestartTask"}]}),
            "the task does RestartTask",
        ),
        ("VolcanoJob", volcano(plugins={"svc": [], "pytorch": []}), "plugin pytorch writes the number of pods"),
        ("VolcanoJob", volcano(minSuccess=3), "minSuccess is more than its min of 2 pods"),
        ("VolcanoJob", volcano(task={"partitionPolicy": {"totalPartitions": 2}}), "partitionPolicy"),
        ("PyTorchJob", pytorch(elasticPolicy={"minReplicas": 2, "maxReplicas": 8, "metrics": [{}]}), "its own HPA"),
        ("PyTorchJob", pytorch(master={"replicas": 1, "template": template()}), "with a Master"),
        ("PyTorchJob", pytorch(runPolicy={"schedulingPolicy": {"queue": "q"}}), "minAvailable is not set"),
        ("PyTorchJob", pytorch(runPolicy={"schedulingPolicy": {"minAvailable": 3}}), "both must be equal"),
        ("Job", indexed(completionMode="NonIndexed"), "not Indexed"),
        ("Job", indexed(completions=9), "completions and parallelism differ"),
        ("Job", indexed(managedBy="kueue.x-k8s.io/multikueue"), "spec.managedBy is kueue.x-k8s.io/multikueue"),
        ("Job", indexed(successPolicy={"rules": [{"succeededIndexes": "0-1"}]}), "successPolicy names indexes"),
        ("Job", indexed(successPolicy={"rules": [{"succeededCount": 3}]}), "successPolicy names indexes"),
        ("PyTorchJob", pytorch(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}), "spec.runPolicy.managedBy is"),
    ],
)
def test_each_hazard_is_a_refusal_that_says_why(kind, raw, why):
    job = read(kind, raw)
    assert why in job.refused
    assert not job.elastic


def test_a_policy_that_a_shrink_does_not_set_off_is_none_of_our_business():
    assert not read("VolcanoJob", volcano(policies=[{"event": "PodFailed", "action": "RestartJob"}])).refused
    assert not read("VolcanoJob", volcano(policies=[{"event": "PodEvicted", "action": "SyncJob"}])).refused
    assert not read("VolcanoJob", volcano(policies=[{"event": "TaskCompleted", "action": "CompleteJob"}])).refused


def test_success_of_index_0_alone_does_not_depend_on_the_size():
    assert not read("Job", indexed(successPolicy={"rules": [{"succeededIndexes": "0"}]})).refused
    assert not read("Job", indexed(managedBy="kubernetes.io/job-controller")).refused


def test_annotations_may_only_narrow_what_an_elastic_policy_bounds():
    narrowed = pytorch(notes={labels.MIN_WORKERS: "3", labels.MAX_WORKERS: "6"})
    assert read("PyTorchJob", narrowed).bounds == Bounds(3, 6)
    with pytest.raises(BadJob, match=r"ask for 2..9 workers, and spec.elasticPolicy allows 2..8"):
        read("PyTorchJob", pytorch(notes={labels.MAX_WORKERS: "9"}))


def test_a_pytorch_jobs_roles_are_read_in_any_case_and_written_unchanged():
    raw = pytorch()
    raw["spec"]["pytorchReplicaSpecs"] = {"worker": raw["spec"]["pytorchReplicaSpecs"]["Worker"]}
    assert KINDS["PyTorchJob"].resize(raw, 5).body["spec"] == {"pytorchReplicaSpecs": {"worker": {"replicas": 5}}}


def test_a_master_counts_in_its_gang():
    gang = {"schedulingPolicy": {"minAvailable": 3}}
    notes = {labels.MIN_WORKERS: "2", labels.MAX_WORKERS: "4"}
    with_master = pytorch(4, notes, master={"replicas": 1, "template": template()}, elasticPolicy=None, runPolicy=gang)
    assert (read("PyTorchJob", with_master).refused, len(read("PyTorchJob", with_master).other_roles)) == ("", 1)


def test_without_a_scheduling_policy_no_gang_is_said():
    assert read("PyTorchJob", pytorch(runPolicy={"cleanPodPolicy": "None"})).refused == ""


@pytest.mark.contract("VE-18")
@pytest.mark.parametrize(
    ("task", "minimum"),
    [
        pytest.param({}, 2, id="an unset minAvailable of the task would mean all replicas"),
        pytest.param({"minAvailable": 4}, 2, id="so would one of all replicas, which admission writes"),
        pytest.param({"minAvailable": 1}, 1, id="a lower one stays: tasks that depend on it start by it"),
    ],
)
def test_a_volcano_task_keeps_its_min(task, minimum):
    followers = {"name": "judge", "replicas": 1, "dependsOn": {"name": ["worker"]}, "template": template(0)}
    raw = volcano(minimum=3, task=task)
    raw["spec"]["tasks"].append(followers)
    worker, judge = KINDS["VolcanoJob"].resize(raw, 3).body["spec"]["tasks"]
    assert (worker["replicas"], worker["minAvailable"], judge) == (3, minimum, followers)


def test_kueue_must_know_that_a_job_is_elastic():
    raw = indexed()
    raw["metadata"]["labels"] = {labels.KUEUE_QUEUE: "lq"}
    assert "Kueue holds it" in read("Job", raw).refused
    raw["metadata"]["annotations"][labels.KUEUE_ELASTIC] = "true"
    job = read("Job", raw)
    assert (job.refused, job.queue) == ("", "lq")


@pytest.mark.parametrize(
    ("kind", "raw", "spec"),
    [
        ("PyTorchJob", pytorch(), {"pytorchReplicaSpecs": {"Worker": {"replicas": 5}}}),
        ("Job", indexed(), {"parallelism": 5, "completions": 5}),
    ],
)
def test_a_resize_changes_the_size_of_this_version_and_nothing_else(kind, raw, spec):
    before = copy.deepcopy(raw)
    change = KINDS[kind].resize(raw, 5)
    assert (change.method, change.body["spec"], raw) == ("PATCH", spec, before)
    assert change.body["metadata"]["resourceVersion"] == "7"
    assert change.body["metadata"]["annotations"][labels.WROTE_WORKERS] == "5"


@pytest.mark.contract("VE-18")
def test_a_volcano_job_keeps_its_min_and_remembers_its_most():
    change = KINDS["VolcanoJob"].resize(volcano(), 3)
    (task,) = change.body["spec"]["tasks"]
    assert (task["replicas"], task["minAvailable"]) == (3, 2)  # unset, it would mean all replicas
    assert change.body["metadata"]["annotations"][labels.MAX_WORKERS] == "4"
    assert "minAvailable" not in change.body["spec"]


def test_a_size_that_a_person_sets_by_hand_is_the_new_wish():
    untouched = read("Job", indexed())
    assert (untouched.wanted_workers, untouched.maximum) == (None, 8)
    notes = {labels.MIN_WORKERS: "2", labels.MAX_WORKERS: "8", labels.WROTE_WORKERS: "6"}
    by_us = read("Job", indexed(6, notes))
    assert (by_us.wanted_workers, by_us.maximum) == (None, 8)
    by_hand = indexed(4, notes)
    assert (read("Job", by_hand).wanted_workers, read("Job", by_hand).maximum) == (4, 4)
    shrunk = KINDS["Job"].resize(by_hand, 2).body["metadata"]["annotations"]
    assert read("Job", indexed(2, {**notes, **shrunk})).maximum == 4


def applied_again(raw, notes):
    """The job as it was submitted, with what the autoscaler has noted on it, as is an unchanged one applied again."""
    return {**raw, "metadata": {**raw["metadata"], "annotations": {**raw["metadata"]["annotations"], **notes}}}


@pytest.mark.parametrize(
    ("raw", "sizes"),
    [
        pytest.param(("Job", indexed(2)), [8], id="after one growth"),
        pytest.param(("Job", indexed(4)), [6, 8, 2, 5], id="after growths and shrinks"),
        pytest.param(("PyTorchJob", pytorch(2)), [8], id="of a PyTorchJob"),
        pytest.param(("VolcanoJob", volcano(notes={labels.MAX_WORKERS: "8"})), [8, 3], id="of a Volcano Job"),
    ],
)
def test_an_unchanged_object_that_is_applied_again_is_no_wish(raw, sizes):
    kind, submitted = raw
    before, notes, now = read(kind, submitted), {}, submitted
    for size in sizes:
        for _ in range(20):
            body = KINDS[kind].resize(now, size).body
            notes |= body["metadata"]["annotations"]
            now = applied_again(submitted, notes)
            second = read(kind, now)
            assert (second.wanted_workers, second.maximum, second.replicas) == (
                None,
                before.bounds.maximum,
                before.replicas,
            )
            assert second.reapplied_size == (None if size == before.replicas else size)
    by_hand = {**now["metadata"]["annotations"], labels.WISH_WORKERS: "3"}
    assert read(kind, {**now, "metadata": {**now["metadata"], "annotations": by_hand}}).wanted_workers == 3


def test_a_hand_set_size_below_ours_is_a_wish_and_outlives_the_next_apply():
    notes = {labels.MIN_WORKERS: "2", labels.MAX_WORKERS: "8", labels.WROTE_WORKERS: "6", labels.SUBMITTED_WORKERS: "2"}
    by_hand = indexed(4, notes)
    assert (read("Job", by_hand).wanted_workers, read("Job", by_hand).reapplied_size) == (4, None)
    noted = {**notes, **KINDS["Job"].resize(by_hand, 3).body["metadata"]["annotations"]}
    assert (noted[labels.WISH_WORKERS], noted[labels.SUBMITTED_WORKERS]) == ("4", "2")
    second = read("Job", indexed(2, noted))
    assert (second.wanted_workers, second.maximum) == (4, 4)


@pytest.mark.parametrize(
    ("notes", "why"),
    [
        ({labels.MIN_WORKERS: "many"}, "min-workers is 'many'"),
        ({labels.MIN_WORKERS: "9", labels.MAX_WORKERS: "8"}, "the min is 9 workers and the max is 8"),
        ({labels.PAUSED: "maybe"}, "paused is 'maybe'"),
        ({labels.PRIORITY: "101"}, "priority is '101'"),
        ({labels.COOLDOWN: "soon"}, "cooldown is 'soon'"),
    ],
)
def test_what_cannot_be_read_names_the_field(notes, why):
    with pytest.raises(BadJob, match=why):
        read("Job", indexed(notes=notes))


@pytest.mark.parametrize(
    ("kind", "raw"),
    [("VolcanoJob", {"metadata": meta(), "spec": {}}), ("PyTorchJob", {"metadata": meta(), "spec": {}}), ("Job", {})],
)
def test_an_object_without_a_size_is_no_job(kind, raw):
    with pytest.raises(BadJob):
        read(kind, raw)


@pytest.mark.contract("CS-16", "VE-34")
@pytest.mark.parametrize(("text", "seconds"), [("600s", 600), ("10m", 600), ("1h30m", 5400), ("45", 45), ("1.5s", 1.5)])
def test_a_cooldown_is_a_duration(text, seconds):
    for key in (labels.COOLDOWN, labels.VOLCANO_COOLDOWN):  # VE-34
        assert read("Job", indexed(notes={key: text})).cooldown_s == seconds


@pytest.mark.parametrize("text", ["1h30", "2h15", "10m5", "", "h", "1.5h", "500ms", "45ss"])
def test_a_cooldown_of_another_form_is_refused(text):
    with pytest.raises(BadJob, match="it must be a duration such as 600s or 10m"):
        read("Job", indexed(notes={labels.COOLDOWN: text}))


def test_a_pause_is_for_one_direction_or_both():
    words = {"true": Pause.BOTH, "grow": Pause.GROW, "shrink": Pause.SHRINK, "false": Pause.NONE}
    notes = {labels.MIN_WORKERS: "2", labels.MAX_WORKERS: "8"}
    assert {text: read("Job", indexed(notes={**notes, labels.PAUSED: text})).pause for text in words} == words


@pytest.mark.contract("XD-04")
@pytest.mark.parametrize(
    ("kind", "raw", "status", "lifecycle"),
    [
        ("VolcanoJob", volcano(), {"state": {"phase": "Completed"}}, JobLifecycle.DONE),
        ("VolcanoJob", volcano(), {"state": {"phase": "Running"}}, JobLifecycle.LIVE),
        ("PyTorchJob", pytorch(), {"conditions": [{"type": "Succeeded", "status": "True"}]}, JobLifecycle.DONE),
        ("PyTorchJob", pytorch(runPolicy={"suspend": True}), {}, JobLifecycle.SUSPENDED),
        ("Job", indexed(), {"conditions": [{"type": "Failed", "status": "True"}]}, JobLifecycle.DONE),
        ("Job", indexed(suspend=True), {}, JobLifecycle.SUSPENDED),
        ("Job", indexed(0), {}, JobLifecycle.SUSPENDED),  # batch/v1: parallelism 0 pauses a Job
        ("Job", indexed(0, notes={}), {}, JobLifecycle.SUSPENDED),
    ],
)
def test_where_a_job_stands(kind, raw, status, lifecycle):
    assert read(kind, {**raw, "status": status}).lifecycle is lifecycle
