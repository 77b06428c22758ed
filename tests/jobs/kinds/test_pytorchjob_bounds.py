"""The bounds of a PyTorchJob: autoscaler and controller read one job alike."""

import pytest

from tests.controllers.jobs import view
from tests.jobs.test_kinds import pytorch
from turnout.controllers import children
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.model import GangSettings, OwnedObjects, RefusedJob, Replica
from turnout.jobs.kinds.pytorchjob import PYTORCH_JOB
from turnout.jobs.model import BadJob, Bounds, JobLifecycle
from turnout.kube import labels


def job(policy, workers=4, roles=None):
    raw = pytorch(workers, elasticPolicy=policy)
    if roles is not None:
        worker = raw["spec"]["pytorchReplicaSpecs"]["Worker"]
        raw["spec"]["pytorchReplicaSpecs"] = {name: {**worker, "replicas": count} for name, count in roles.items()}
    raw["metadata"] |= {"namespace": "ns", "uid": "u", "resourceVersion": "1"}
    for role in raw["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["name"] = "pytorch"
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", **raw}


def told_to_pods(raw):
    """Return what the controller writes into PET_NNODES."""
    view_of_job = view(raw)
    pod = children.pod_body(
        PYTORCHJOB, view_of_job, view_of_job.roles[0], Replica(0, 0), OwnedObjects(), GangSettings()
    )
    (value,) = (each["value"] for each in pod["spec"]["containers"][0]["env"] if each["name"] == "PET_NNODES")
    return Bounds(*map(int, value.split(":")))


@pytest.mark.parametrize(
    ("policy", "bounds"),
    [
        pytest.param({"minReplicas": 2, "maxReplicas": 8}, Bounds(2, 8), id="a min and a max"),
        pytest.param({"min": 2, "max": 8}, Bounds(2, 8), id="a min and a max by their short names"),
        pytest.param({"minReplicas": 4}, Bounds(4, 4), id="a min alone is the max as well"),
        pytest.param({"maxReplicas": 4}, Bounds(4, 4), id="a max alone is the min as well"),
        pytest.param({"rdzvBackend": "c10d"}, Bounds(4, 4), id="without both each is the number of workers"),
        pytest.param({}, Bounds(4, 4), id="nor in an empty policy"),
        pytest.param({"minReplicas": 0, "maxReplicas": 4}, Bounds(4, 4), id="a min of 0 counts as absent"),
    ],
)
def test_the_autoscaler_reads_the_bounds_that_the_pods_are_told(policy, bounds):
    raw = job(policy)
    assert PYTORCH_JOB.read(raw).bounds == bounds
    assert told_to_pods(raw) == bounds
    assert not PYTORCH_JOB.read(raw).refused


@pytest.mark.parametrize(
    ("policy", "allows"),
    [
        pytest.param({"minReplicas": 2}, "2..2", id="more workers than a min that is also the max"),
        pytest.param({"maxReplicas": 8}, "8..8", id="fewer workers than a max that is also the min"),
        pytest.param({"minReplicas": 6, "maxReplicas": 8}, "6..8", id="fewer workers than the min"),
    ],
)
def test_a_size_outside_the_bounds_is_left_as_it_is(policy, allows):
    found = PYTORCH_JOB.read(job(policy))
    assert found.bounds == Bounds(4, 4), "nobody is evicted for workers that nobody creates"
    assert allows in found.refused


def test_annotations_do_not_widen_what_pods_are_told():
    raw = job({})
    raw["metadata"]["annotations"] = {labels.MAX_WORKERS: "8"}
    with pytest.raises(BadJob, match=r"spec\.elasticPolicy allows 4\.\.4"):
        PYTORCH_JOB.read(raw)


def test_a_min_above_the_max_is_refused_by_both():
    raw, fault = job({"minReplicas": 8, "maxReplicas": 2}), "minReplicas is 8, above spec.elasticPolicy.maxReplicas"
    with pytest.raises(BadJob, match=fault):
        PYTORCH_JOB.read(raw)
    refused = PYTORCHJOB.read(raw)
    assert isinstance(refused, RefusedJob)
    assert fault in str(refused)


@pytest.mark.parametrize(
    ("roles", "size", "role", "lifecycle"),
    [
        pytest.param({"Master": 1}, 1, "master", JobLifecycle.LIVE, id="a Master alone is a job of one pod"),
        pytest.param({"Master": 1, "Worker": 0}, 1, "master", JobLifecycle.LIVE, id="so is a Master without workers"),
        pytest.param({"Worker": 0}, 0, "worker", JobLifecycle.SUSPENDED, id="a job without pods waits for nothing"),
    ],
)
def test_a_job_without_workers_is_rigid_and_is_not_refused(roles, size, role, lifecycle):
    raw = job(None, roles=roles)
    found = PYTORCH_JOB.read(raw)
    assert (found.replicas, found.bounds, found.role, found.lifecycle) == (size, Bounds(1, 1), role, lifecycle)
    assert (found.elastic, found.refused) == (False, "")
    assert sum(each.replicas for each in view(raw).roles) == size


def test_annotations_do_not_make_a_master_elastic():
    raw = job(None, roles={"Master": 1})
    raw["metadata"]["annotations"] = {labels.MAX_WORKERS: "8"}
    with pytest.raises(BadJob, match=r"spec\.pytorchReplicaSpecs\.Master allows 1\.\.1"):
        PYTORCH_JOB.read(raw)


@pytest.mark.parametrize(
    ("policy", "roles", "fault"),
    [
        pytest.param(None, {"Worker": 4, "Chief": 1}, "pytorchReplicaSpecs.Chief is no role", id="an unknown role"),
        pytest.param(None, {"Worker": 4, "worker": 1}, "pytorchReplicaSpecs has Worker twice", id="a role twice"),
        pytest.param(None, {"Master": 2}, "Master.replicas is 2: a job has one Master", id="two Masters"),
        pytest.param({}, {"Master": 1}, "Worker is missing: spec.elasticPolicy needs it", id="elastic, no workers"),
        pytest.param(None, {"Worker": 10_001}, "from 0 to 10000", id="more workers than the controller makes"),
    ],
)
def test_both_programs_refuse_a_job_for_the_same_fault(policy, roles, fault):
    raw = job(policy, roles=roles)
    with pytest.raises(BadJob, match=fault):
        PYTORCH_JOB.read(raw)
    refused = PYTORCHJOB.read(raw)
    assert isinstance(refused, RefusedJob)
    assert fault in str(refused)
