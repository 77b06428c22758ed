"""ElasticJobs train under our own controller: real agents, a real master pod, torch in the workers' processes.

Stories of one job go on from test to test; each of the others has its own job.
"""

import asyncio
import re
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hack.controlplane.tools import cache
from tests.controllers import elasticjobs
from tests.e2e.controllers.installed import ROOT, install
from tests.e2e.launcher.operated import NOBODY, PODS, conditions, operated

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

GROUP = "/apis/elastic.iml.github.io/v1alpha1"
JOBS = f"{GROUP}/namespaces/default/elasticjobs"
TRAIN = Path(__file__).parents[1] / "launcher/train.py"
RUN = "dlrover-run --nnodes=$NODE_NUM --nproc_per_node=1 --max_restarts=3 --no-fork --last-call-s=20"
ALONE = "dlrover-run --standalone --nproc_per_node=1 --max_restarts=1 --no-fork --no-python"  # no master hears of it
# The agent is killed when the test says so: the container ends with 137, as one that the kernel kills.
KILLED = """{run} & agent=$!
while kill -0 $agent 2>/dev/null; do [ -e {folder}/kill-$POD_NAME ] && kill -9 $agent; sleep 0.05; done
wait $agent"""
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def job(name, command, replicas=1, namespace="default", of_workers=(), **more):
    """A job of this many workers, which run the command in a shell."""
    container = {"command": ["bash", "-c", command], "imagePullPolicy": "IfNotPresent"}
    raw_job = elasticjobs.job(elasticjobs.worker(replicas, container, NOBODY, **dict(of_workers)), name=name, **more)
    return {**raw_job, "metadata": {"name": name, "namespace": namespace}}


def served(definition):
    """True if the API server serves a definition."""
    found = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stories")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, folder, tmp_path_factory):
    single_command = f"{RUN} --no-python touch {folder}/alone-$ELASTIC_JOB_NAME-"
    jobs = [
        job("tune", KILLED.format(run=f"{RUN} {TRAIN} {folder}", folder=folder), 3),
        job("alone", f"{single_command}default"),
        job("alone", f"{single_command}other", namespace="other"),
        job("fails", f"{RUN} --max_restarts=0 --no-python false"),
        job("spent", f"{ALONE} sh -c 'echo $POD_NAME >> {folder}/spent; exit 5'", of_workers={"restartCount": 1}),
        job("strange", "true", distributionStrategy="ParameterServerStrategy"),
    ]
    async with module_plane.api() as api:
        files = sorted((ROOT / "deploy/crds").glob("*.yaml"))
        for file in files:
            await api.create(yaml.safe_load(await asyncio.to_thread(file.read_text)))
        # A definition that is served later is found all the same, but later than a test waits.
        await api.until(DEFINITIONS, lambda all_: sum(map(served, all_)) == len(files))
        await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
        controlled = install(module_plane, api, "--kinds=ElasticJob")
        async with operated(module_plane, tmp_path_factory.mktemp("pods"), controlled) as world:
            await api.create_all(jobs)
            yield world


async def trains(folder, workers, after=0, within_s=240.0, say=lambda: ""):
    """Wait until a round newer than this trains with so many workers; its number."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                names = [file.name for file in await asyncio.to_thread(lambda: list(folder.glob("round-*")))]
                found = [re.fullmatch(r"round-(\d+)-of-(\d+)", name) for name in names]
                rounds = [int(each[1]) for each in found if each and int(each[2]) == workers]
                if newer := [each for each in rounds if each > after]:
                    return min(newer)
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"no round of {workers} after {after}\n{say()}") from None


def logs(world):
    """Give what the pods of the long story have written."""
    return "\n".join(f"--- {pod}\n{world.log(pod)}" for pod in sorted(world.uids) if "tune" in pod)


async def reached(world, name, phase, path=JOBS, within_s=180.0):
    """Wait until a job has this phase; the job then."""
    async with asyncio.timeout(within_s):
        async for _, now in world.api.changes(path):
            if now.obj.get("metadata", {}).get("name") == name and now.obj.get("status", {}).get("phase") == phase:
                return now.obj
    raise AssertionError("a watch does not end")


@pytest.mark.contract("DL-10", "DL-14", "DL-26")
async def test_workers_meet_at_their_master_and_train(module_plane, world, folder):
    assert await trains(folder, 3, say=lambda: logs(world)) == 1
    workers = [f"tune-edljob-worker-{rank}" for rank in range(3)]
    argv = [cache.binary("kubectl"), "--kubeconfig", module_plane.kubeconfig, "get", "pods", "--output=name"]
    process = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60)
    pods = [name.removeprefix("pod/") for name in process.stdout.split() if "tune" in name]
    assert sorted(pods) == ["elasticjob-tune-dlrover-master-0", *workers], process
    assert [world.env[each]["NODE_NUM"] for each in workers] == ["3"] * 3
    assert "coordinator_begun" in world.log("elasticjob-tune-dlrover-master-0")
    assert (await reached(world, "tune", "Running"))["status"]["replicaStatuses"]["worker"]["active"] == 3


async def test_a_worker_that_is_killed_is_replaced_with_its_rank_and_a_new_id(world, folder):
    before = await trains(folder, 3)
    (folder / "kill-tune-edljob-worker-1").touch()
    await trains(folder, 3, before, say=lambda: logs(world))
    assert world.codes["tune-edljob-worker-1"] == [137]
    labels = world.labels["tune-edljob-worker-3"]
    found = [labels[f"elasticjob.dlrover/{key}"] for key in ("replica-index", "rank-index", "relaunch-count")]
    assert found == ["3", "1", "1"]
    status = (await reached(world, "tune", "Running"))["status"]
    assert status["replicaStatuses"]["worker"]["restartCounts"] == {"1": 1}


async def test_a_master_that_dies_does_not_end_training(world, folder):
    before = max([await trains(folder, 3, at) for at in (0, 1)])
    lead = "elasticjob-tune-dlrover-master-0"
    await world.api.call("DELETE", f"{PODS}/{lead}", {"gracePeriodSeconds": 0})
    await trains(folder, 3, before, say=lambda: logs(world))
    assert len([pod for pod in world.uids if pod.startswith("tune-edljob-worker")]) == 4  # no other was replaced
    await world.until(lambda: "elasticjob-tune-dlrover-master-1" in world.uids)
    (folder / "enough").touch()
    done = await world.condition("tune", "Succeeded", JOBS, within_s=180.0)
    assert done["status"]["phase"] == "Succeeded"
    assert "Running" not in conditions(done)


@pytest.mark.contract("DL-11")
async def test_one_name_in_two_namespaces_is_two_jobs(world, folder):
    for namespace in ("default", "other"):
        await reached(world, "alone", "Succeeded", f"{GROUP}/namespaces/{namespace}/elasticjobs")
        assert (folder / f"alone-alone-{namespace}").exists()


async def test_a_master_that_says_the_job_has_failed_fails_it(world):
    job = await reached(world, "fails", "Failed")
    assert "completionTime" in job["status"]
    await world.until(lambda: world.codes["elasticjob-fails-dlrover-master-0"] == [1])


@pytest.mark.contract("DL-93", "DL-95")
async def test_spent_restarts_replace_the_pod_and_spent_pods_fail_the_job(world, folder):
    job = await reached(world, "spent", "Failed")
    pods = [f"spent-edljob-worker-{id_}" for id_ in range(2)]
    assert (folder / "spent").read_text().split() == [pods[0]] * 2 + [pods[1]] * 2  # the process, and its one restart
    assert [world.codes[pod] for pod in pods] == [[1], [1]]  # as the agent ends
    assert "spent-edljob-worker-2" not in world.uids
    (failed,) = (each for each in job["status"]["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "ElasticJobFailed"
    assert failed["message"] == 'job "spent" is failing because one "worker" failed more than 1 times.'


@pytest.mark.contract("DL-12")
async def test_a_strategy_that_is_not_run_here_is_a_condition(world):
    (condition,) = (await reached(world, "strange", "Failed"))["status"]["conditions"]
    assert "spec.distributionStrategy is 'ParameterServerStrategy'" in condition["message"]
