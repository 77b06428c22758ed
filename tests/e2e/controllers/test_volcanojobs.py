"""Volcano Jobs under our controller, on a real API server and scheduler without Volcano: processes in pods."""

import asyncio

import pytest
import pytest_asyncio
import yaml

from tests.controllers.volcano import volcanojobs
from tests.e2e.controllers.installed import ROOT, install
from tests.e2e.launcher.operated import NOBODY, PODS, operated

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ONCE = "if [ -e {file}-$VC_TASK_INDEX ]; then exit 0; fi; touch {file}-$VC_TASK_INDEX; {then}exit 7"
# A restart for the first failure must not find the other pod before its own: that one would fail once more.
BOTH = "until [ -e {file}-0 ] && [ -e {file}-1 ]; do sleep 0.1; done; "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stories")


def job(name, command, replicas=2, **spec):
    """A job of one task, whose pods run the command in a shell."""
    pods = {**NOBODY, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    task = volcanojobs.task(replicas=replicas, spec=pods, container={"command": ["sh", "-c", command]})
    raw_job = volcanojobs.job(task, **{"plugins": {"env": []}, **spec})
    return {**raw_job, "metadata": {"name": name}}


def once(file, then=""):
    """A command that fails with 7 the first time that a pod of its index runs it."""
    return ONCE.format(file=file, then=then.format(file=file))


def bare(name, command):
    """A job that says nothing but what it runs, and that a failed pod restarts it."""
    one_job = job(name, command, policies=policy("RestartJob", event="PodFailed"))
    (task,) = one_job["spec"]["tasks"]
    one_job["spec"] = {key: one_job["spec"][key] for key in ("plugins", "policies")} | {
        "tasks": [{"template": task["template"]}]
    }
    return one_job


def policy(action, **of):
    return [{**of, "action": action}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, folder, tmp_path_factory):
    jobs = [
        job("again", once(folder / "again", then=BOTH), policies=policy("RestartJob", exitCode=7)),
        job("elastic", "[ $VC_TASK_INDEX = 1 ] && exit 1; exit 0", 3, minAvailable=2),
        job("rigid", "[ $VC_TASK_INDEX = 1 ] && exit 1; exit 0"),
        bare("bare", f"echo $VC_TASK_INDEX >> {folder}/bare; exit 1"),
    ]  # fmt: skip
    async with module_plane.api() as api:
        definition = ROOT / "deploy/crds/volcano.sh/jobs.batch.volcano.sh.yaml"
        await api.create(yaml.safe_load(await asyncio.to_thread(definition.read_text)))
        await api.until(DEFINITIONS, lambda all_: any(map(served, all_)) or None)
        controlled = install(module_plane, api, kinds="VolcanoJob")
        async with operated(module_plane, tmp_path_factory.mktemp("pods"), controlled) as operated_world:
            await api.create_all(jobs)
            yield operated_world


def served(definition):
    """True if the API server serves a definition."""
    found = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in found)


async def reached(world, name, phase, within_s=180.0):
    """Wait until a job has this phase; its status then."""
    newest_phase = None
    try:
        async with asyncio.timeout(within_s):
            async for _, now in world.api.changes(JOBS):
                if now.obj.get("metadata", {}).get("name") == name:
                    newest_phase = now.obj.get("status") or {}
                    if (newest_phase.get("state") or {}).get("phase") == phase:
                        return newest_phase
    except TimeoutError:
        raise AssertionError(f"{name} is never {phase}: {newest_phase}") from None
    raise AssertionError("a watch does not end")


async def test_a_job_is_restarted_by_its_policy_and_completes(world):
    status = await reached(world, "again", "Completed")
    assert (status["retryCount"], status["version"]) == (1, 1)
    assert [len(world.uids[f"again-worker-{index}"]) for index in range(2)] == [2, 2]


@pytest.mark.contract("VE-15")
async def test_what_a_job_leaves_out_has_its_default(world, folder):
    status = await reached(world, "bare", "Failed")
    assert "it was restarted 3 times already" in status["state"]["message"]
    assert (folder / "bare").read_text().split() == ["0"] * 4  # one pod, made anew three times
    assert len(world.uids["bare-default0-0"]) == 4
    spec = (await world.api.call("GET", f"{JOBS}/bare"))["spec"]
    assert (spec["maxRetry"], spec["queue"]) == (3, "default")
    (pod,) = [
        each for each in (await world.api.call("GET", PODS))["items"] if each["metadata"]["name"] == "bare-default0-0"
    ]
    assert pod["spec"]["schedulerName"] == "default-scheduler"  # Volcano's is not there
    assert pod["metadata"]["labels"]["volcano.sh/task-spec"] == "default0"


@pytest.mark.contract("VE-27")
@pytest.mark.parametrize(("name", "phase"), [("elastic", "Completed"), ("rigid", "Failed")])
async def test_a_lost_worker_is_the_end_of_a_rigid_job_alone(world, name, phase):
    status = await reached(world, name, phase)
    assert status["failed"] == 1
