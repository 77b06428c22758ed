"""Our definition of Volcano Jobs takes what Volcano's own takes, and refuses what it refuses, on a real API server."""

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hack.controlplane.errors import ApiError
from tests.controllers.volcano.volcanojobs import job, task

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
OURS = ROOT / "deploy/crds/volcano.sh/jobs.batch.volcano.sh.yaml"
THEIRS = ROOT / "tests/crds/volcano/batch.volcano.sh_jobs.yaml"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
POLICIES = [
    {"event": "PodFailed", "action": "RestartJob", "timeout": "10m"},
    {"exitCode": 3, "action": "AbortJob"},
    {"events": ["PodEvicted", "Unknown"], "action": "RestartTask"},
]


def named(raw, name="bert"):
    return {**raw, "metadata": {"name": name}}


TAKEN = {
    "one task": job(),
    "an elastic task": job(task(replicas=4, minimum=2), minAvailable=2),
    "policies": job(task(policies=POLICIES), policies=POLICIES),
    "plugins": job(plugins={"svc": ["--publish-not-ready-addresses"], "env": [], "ssh": [], "pytorch": ["--port=9"]}),
    "dependence": job(task("ps", 1), task(dependsOn={"name": ["ps"], "iteration": "any"})),
    "partitions": job(task(replicas=4, partitionPolicy={"totalPartitions": 2, "partitionSize": 2})),
    "claims": job(volumes=[{"mountPath": "/data", "volumeClaimName": "c"}]),
    "the rest": job(
        task(topologyPolicy="none", maxRetry=5),
        schedulerName="volcano",
        queue="team",
        maxRetry=1,
        minSuccess=1,
        ttlSecondsAfterFinished=60,
        priorityClassName="high",
        runningEstimate="1h",
        networkTopology={"mode": "soft", "highestTierAllowed": 2},
    ),
    "the example": yaml.safe_load((ROOT / "examples/jobs/volcanojob.yaml").read_text()),
    "the launcher's example": next(
        each
        for each in yaml.safe_load_all((ROOT / "deploy/examples/launcher/volcano-job.yaml").read_text())
        if each["kind"] == "Job"
    ),
}
REFUSED = {
    "a min that is text": job(minAvailable="two"),
    "an unknown event": job(policies=[{"event": "PodFlew", "action": "AbortJob"}]),
    "a time to live below 0": job(ttlSecondsAfterFinished=-1),
    "a task's name too long": job(task("a" * 64)),
    "tasks that are an object": {**job(), "spec": {"tasks": {}}},
    "minSuccess of none": job(minSuccess=0),
    "no containers": job({"name": "w", "replicas": 1, "template": {"spec": {}}}),
}


async def _answer_about(api, definition):
    """Give what the server makes of each job under a definition: its spec, or the code of its refusal."""
    await api.create(yaml.safe_load(await asyncio.to_thread(definition.read_text)))
    await api.until(DEFINITIONS, lambda all_: any(map(_serves_jobs, all_)) or None, 30)
    found = {}
    for name, raw in {**TAKEN, **REFUSED}.items():
        try:
            found[name] = (await api.create(named(raw)))["spec"]
        except ApiError as error:
            found[name] = error.status
        else:
            await api.delete(f"{JOBS}/bert")
    await api.delete(f"{DEFINITIONS}/jobs.batch.volcano.sh")
    await api.until(DEFINITIONS, lambda all_: not any(_is_of_jobs(each) for each in all_) or None, 30)
    return found


def _but_templates(spec):
    """A spec without the templates of its pods: Volcano's definition fills in the pods' own defaults, ours nothing."""
    tasks = [{key: each for key, each in task.items() if key != "template"} for task in spec["tasks"]]
    return {**spec, "tasks": tasks}


def _is_of_jobs(definition):
    return definition["metadata"]["name"] == "jobs.batch.volcano.sh"


def _serves_jobs(definition):
    conditions = (definition.get("status") or {}).get("conditions") or ()
    served = any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
    return _is_of_jobs(definition) and served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answers(module_plane):
    async with module_plane.api() as api:
        yield await _answer_about(api, THEIRS), await _answer_about(api, OURS)


@pytest.mark.slow
@pytest.mark.contract("VE-26")
@pytest.mark.parametrize("name", TAKEN)
async def test_a_job_that_volcanos_definition_takes_is_stored_alike_by_ours(answers, name):
    theirs, ours = answers
    assert isinstance(theirs[name], dict), theirs[name]
    assert _but_templates(ours[name]) == _but_templates(theirs[name])
    sent = TAKEN[name]["spec"]["tasks"]
    assert [each["template"] for each in ours[name]["tasks"]] == [each["template"] for each in sent]


@pytest.mark.parametrize("name", REFUSED)
async def test_a_job_that_volcanos_definition_refuses_is_refused_by_ours(answers, name):
    theirs, ours = answers
    assert (theirs[name], ours[name]) == (422, 422)


async def test_a_job_without_tasks_is_refused_at_once(module_plane, answers):
    async with module_plane.api() as api:
        await api.create(yaml.safe_load(await asyncio.to_thread(OURS.read_text)))
        await api.until(DEFINITIONS, lambda all_: any(map(_serves_jobs, all_)) or None, 30)
        with pytest.raises(ApiError, match="a job has one task at least"):
            await api.create(named({**job(), "spec": {"tasks": []}}))
