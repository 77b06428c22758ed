"""MSJobs as the queue sees them: what they ask for, when their size may change, what is refused."""

from pathlib import Path

import pytest
import yaml

from tests.jobs.kinds.manifests import mindspore
from tests.jobs.test_kinds import GPU, template
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import BadJob, Bounds
from turnout.kube import labels

MS_JOB = KINDS["MSJob"]
GUIDE = Path(__file__).parents[3] / "examples/jobs/msjob-dataparallel.yaml"


@pytest.mark.contract("MS-31")
def test_the_guides_job_asks_for_one_gpu_a_worker():
    raw = yaml.safe_load(GUIDE.read_text())
    job = MS_JOB.read({**raw, "metadata": {**raw["metadata"], "uid": "u", "namespace": "ns"}})
    assert (job.replicas, dict(job.shape.requests)[GPU], job.elastic) == (4, 1, False)
    ((scheduler, count),) = job.other_roles
    assert (dict(scheduler.requests).get(GPU, 0), count) == (0, 1)


def test_a_parameter_server_stands_beside_its_workers():
    roles = {name: {"replicas": 2, "template": template(0)} for name in ("PS", "Worker")}
    job = MS_JOB.read(mindspore(msReplicaSpecs=roles))
    assert [count for _, count in job.other_roles] == [2]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        pytest.param(
            mindspore(dynamic=False), "spec.enableDynamicWorker is not true", id="workers that are not dynamic"
        ),
        pytest.param(
            mindspore(runPolicy={"schedulingPolicy": {"queue": "q"}}), "minAvailable is not set", id="a gang of all"
        ),
        pytest.param(
            mindspore(runPolicy={"schedulingPolicy": {"minAvailable": 5}}),
            "both must be equal",
            id="a gang above its min",
        ),
        pytest.param(mindspore(runPolicy={"schedulingPolicy": {"minAvailable": 3}}), "", id="not one of just its min"),
    ],
)
def test_a_size_is_left_alone_for(raw, why):
    job = MS_JOB.read(raw)
    assert (why in job.refused, job.elastic) == (True, not why)


def test_workers_that_are_not_dynamic_are_never_resized():
    with pytest.raises(BadJob, match=r"cannot be resized to 3 workers: spec\.enableDynamicWorker"):
        MS_JOB.change(mindspore(dynamic=False), 3)


def test_without_annotations_it_has_the_size_it_says():
    assert MS_JOB.read(mindspore(3, notes={})).bounds == Bounds(3, 3)


def test_roles_are_read_in_any_case_and_written_unchanged():
    raw = mindspore()
    raw["spec"]["msReplicaSpecs"] = {"worker": raw["spec"]["msReplicaSpecs"]["Worker"]}
    assert MS_JOB.change(raw, 5).body["spec"] == {"msReplicaSpecs": {"worker": {"replicas": 5}}}
    raw["spec"]["msReplicaSpecs"] = {"ps": raw["spec"]["msReplicaSpecs"]["worker"]}
    with pytest.raises(BadJob, match="Worker is missing"):
        MS_JOB.read(raw)


def test_its_queue_is_its_gangs_else_our_labels():
    assert MS_JOB.read(mindspore(runPolicy={"schedulingPolicy": {"minAvailable": 3, "queue": "q"}})).queue == "q"
    assert MS_JOB.read(mindspore(notes={labels.QUEUE: "mine"})).queue == "mine"
