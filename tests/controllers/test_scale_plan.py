"""ScalePlans: which are carried out, what of them, and what is told of the others."""

import pytest
from hypothesis import given, settings

from tests.controllers.elasticjobs import job, plan, worker
from tests.controllers.jobs import NOW_S
from tests.controllers.test_hostile_jobs import JSON
from tests.kit.hypothesis_examples import scaled
from turnout.controllers.scale_plan import is_pending, scale_job
from turnout.kube import labels

ENDED = {"conditions": [{"type": "Succeeded", "status": "True"}]}
MANY = {"worker": {"replicas": 2}, "ps": {"replicas": 1}}


def test_a_plan_changes_its_jobs_workers_and_says_so():
    done = scale_job(plan(), job(worker(2)), NOW_S)
    assert done.job == {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}}
    status = {"phase": "Succeeded", "message": "bert has 3 workers", "finishTime": "2027-01-15T08:00:00Z"}
    assert done.status == status


def test_a_plan_that_names_resources_says_that_the_template_has_them():
    done = scale_job(plan(replicaResourceSpecs={"worker": {"replicas": 3, "resource": {"cpu": "1"}}}), job(), NOW_S)
    assert done.job == {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}}
    assert (
        done.status["message"] == "bert has 3 workers; the resources of the plan are ignored, the pod template decides"
    )


def test_a_job_that_has_the_number_already_is_not_written():
    done = scale_job(plan(), job(worker(3)), NOW_S)
    assert (done.job, done.status["phase"]) == (None, "Succeeded")


def test_the_plan_that_the_autoscaler_waits_for_is_noted_on_the_job():
    note = {"metadata": {"annotations": {labels.SCALED_PLAN: "bert-plan"}}}
    waits_for = job(worker(3))
    waits_for["metadata"]["annotations"] = {labels.SCALE_PLAN: "bert-plan"}
    assert scale_job(plan(), waits_for, NOW_S).job == note
    waits_for["metadata"]["annotations"][labels.SCALED_PLAN] = "bert-plan"
    assert scale_job(plan(), waits_for, NOW_S).job is None


def test_a_plan_of_somebody_else_is_noted_nowhere():
    waits_for = job(worker(2))
    waits_for["metadata"]["annotations"] = {labels.SCALE_PLAN: "another"}
    assert scale_job(plan(), waits_for, NOW_S).job == {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(plan(), True, id="a manual one that is new"),
        pytest.param(plan(labels={"scale-type": "auto"}), False, id="DLRover's own"),
        pytest.param(plan(labels={"a": "b"}), False, id="one that does not say"),
        pytest.param(plan(labels={"a": "b"}, manualScaling=True), True, id="a manual one in the older spelling"),
        pytest.param(plan(status={"phase": "Pending"}), True, id="one that its writer calls pending"),
        pytest.param(plan(status={"phase": "Succeeded"}), False, id="one that is carried out"),
        pytest.param(plan(status={"phase": "Failed"}), False, id="one that was refused"),
    ],
)
def test_a_plan_waits_if_it_is(raw, expected):
    assert is_pending(raw) is expected


@pytest.mark.parametrize(
    ("raw", "owner", "why"),
    [
        pytest.param(plan(), None, "there is no such ElasticJob", id="for a job that is not there"),
        pytest.param(plan(), job(status=ENDED), "that job has ended", id="for a job that has ended"),
        pytest.param(plan(workers=-1), job(), "worker.replicas is -1", id="of less than none"),
        pytest.param(plan(workers=10_001), job(), "worker.replicas is 10001", id="of more than anybody has"),
        pytest.param(plan(workers=None), job(), "worker.replicas is missing", id="of no number"),
        pytest.param(plan(replicaResourceSpecs=MANY), job(), "no other role", id="of another role"),
        pytest.param(plan(removePods=[{"name": "a"}]), job(), "spec.removePods is not", id="of single pods"),
    ],
)
def test_a_plan_is_refused_with_its_path(raw, owner, why):
    done = scale_job(raw, owner, NOW_S)
    assert (done.job, done.status["phase"]) == (None, "Failed")
    assert why in done.status["message"]


@settings(max_examples=scaled(200), deadline=None)
@given(JSON, JSON, JSON)
def test_whatever_a_plan_says_it_is_carried_out_or_refused(specs, replicas, owner):
    for raw in (plan(replicaResourceSpecs=specs), plan(workers=replicas), plan(owner="bert", ownerJob=owner)):
        assert scale_job(raw, job(), NOW_S).status["phase"] in ("Succeeded", "Failed")
