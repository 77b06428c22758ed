"""ColossalAIJobs on a real API server and scheduler: Debian's sshd in the workers, PyPI's `colossalai` reaches them."""

import asyncio
import json
import os
from contextlib import AsyncExitStack
from itertools import groupby
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hack.controlplane.plane import free_ports
from tests.e2e.controllers.installed import ROOT, install
from tests.e2e.launcher.operated import PODS, conditions, operated

pytestmark = [
    pytest.mark.real,
    pytest.mark.root,  # sshd listens on port 22
    pytest.mark.debian("openssh-server"),
    pytest.mark.asyncio(loop_scope="module"),
]

JOBS = "/apis/batch.tensorstack.dev/v1beta1/namespaces/default/colossalaijobs"
SCRIPTS = Path(__file__).parent / "scripts"
RUNNER = ROOT / ".venv/colossalai-cli"
HARD = 'a "b" $HOME `c` \\'
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stories")


def guide(name, command, env=(), **spec):
    """The guide's job, of the size of this machine, in which every pod sees the files of the machine."""
    raw = yaml.safe_load((ROOT / "examples/jobs/colossalaijob.yaml").read_text())
    raw["metadata"]["name"] = name
    raw["spec"] |= spec
    path = f"{RUNNER}/bin:{ROOT}/.venv/bin:{os.environ['PATH']}"
    runs = [{"name": "PATH", "value": path}, {"name": "PYTHONPATH", "value": str(RUNNER)}]
    raw["spec"]["launcher"] |= {"workingDir": str(SCRIPTS), "env": runs, "resources": {}}
    (port,) = free_ports(1)
    raw["spec"]["worker"] |= {"command": command, "torchArgs": [f"--master_port={port}"]}
    pod = raw["spec"]["worker"]["template"]["spec"]
    (container,) = pod["containers"]
    del container["resources"]
    container |= {"env": list(env), "volumeMounts": [{"name": "run", "mountPath": "/run/sshd"}]}
    pod["volumes"] = [{"name": "run", "emptyDir": {}}]  # an image with sshd has this folder
    return raw


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, folder, tmp_path_factory):
    async with module_plane.api() as api, AsyncExitStack() as stack:
        definition = (ROOT / "deploy/crds/colossalaijobs.batch.tensorstack.dev.yaml").read_text()
        await api.create(yaml.safe_load(definition))
        installed = install(module_plane, api)
        made = await stack.enter_async_context(operated(module_plane, tmp_path_factory.mktemp("pods"), installed))
        yield made


async def phases(world, name, last):
    """Follow a job's phase until it is this one, or the job has failed; each that was seen, in order."""
    seen = []
    async for _, now in world.api.changes(JOBS):
        if now.obj.get("metadata", {}).get("name") == name and (status := now.obj.get("status")):
            seen.append(status["phase"])
            if status["phase"] in (last, "Failed"):
                return [phase for phase, _ in groupby(seen)]
    raise AssertionError("a watch does not end")


async def names(world, job):
    """Give the names of a job's pods that are there now."""
    found = (await world.api.call("GET", PODS))["items"]
    return sorted(pod["metadata"]["name"] for pod in found if pod["metadata"]["name"].startswith(f"{job}-"))


async def left(world, job, pods):
    """Wait until these of a job's pods are left."""
    async with asyncio.timeout(40):
        async for _ in world.api.changes(PODS):
            if await names(world, job) == pods:
                return


@pytest.mark.contract("CA-05", "CA-06", "CA-11", "CA-19", "CA-20")
async def test_the_guides_job_trains_on_every_rank_by_ssh(world, folder):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own"}, "stringData": {"key": "hidden"}}
    await world.api.call("POST", "/api/v1/namespaces/default/secrets", secret)
    env = [
        {"name": "DIRECT", "value": "told"},
        {"name": "HARD", "value": HARD},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "own", "key": "key"}}},
    ]
    following = asyncio.create_task(phases(world, "deep", "Succeeded"))
    job = guide("deep", ["ca_train.py", str(folder)], env)
    job["spec"]["worker"]["procPerWorker"] = 2
    await world.api.call("POST", JOBS, job)
    pods = ["deep-launcher", "deep-worker-0", "deep-worker-1"]
    await world.there(folder / "trained", pods, within_s=120.0)
    told = json.loads(await asyncio.to_thread((folder / "trained").read_text))
    assert told["last"] < 0.01 * told["first"]
    assert [each["host"] for each in told["ranks"]] == [*["deep-worker-0"] * 2, *["deep-worker-1"] * 2]
    wanted = {"DIRECT": "told", "SECRET": "hidden", "HARD": HARD, "LOCAL_WORLD_SIZE": "2"}
    assert all(wanted.items() <= each.items() for each in told["ranks"])
    seen = await within(world, pods, following)
    assert seen[-2:] == ["Running", "Succeeded"], world.log(pods[0])
    assert await names(world, "deep") == pods


@pytest.mark.contract("CA-23", "CA-25", "CA-26")
async def test_a_script_that_fails_fails_the_job_and_the_launcher_stays(world, folder):
    env = [{"name": "RUN", "value": "fails"}]
    job = guide("fails", ["ca_wait.py", str(folder), "1"], env, runPolicy={"cleanUpWorkers": True})
    await world.api.call("POST", JOBS, job)
    ended = await world.condition("fails", "Failed", JOBS, within_s=90.0)
    assert {"Initialized", "Running", "Failed"} <= conditions(ended)
    assert "Completed" not in conditions(ended)
    await left(world, "fails", ["fails-launcher"])
    assert "fails-worker-0.fails: failure" in world.log("fails-launcher")


@pytest.mark.contract("CA-30", "CA-31", "CA-36", "CA-37", "CA-53")
async def test_a_job_is_debugged_then_trains_is_paused_and_resumed(world, folder):
    env = [{"name": "RUN", "value": "visited"}]
    job = guide("visited", ["ca_wait.py", str(folder), "0"], env, runMode={"debug": {"enabled": True}})
    job["spec"]["worker"]["replicas"] = 1
    pods, began = ["visited-launcher", "visited-worker-0"], folder / "began-visited"
    await world.api.call("POST", JOBS, job)
    assert await within(world, pods, phases(world, "visited", "Running")) == ["Pending", "Running"]
    assert not began.exists()

    await change(world, "visited", {"debug": {"enabled": False}})
    await world.there(began, pods, within_s=90.0)
    assert [len(world.uids[name]) for name in pods] == [2, 2]

    await change(world, "visited", {"pause": {"enabled": True}})
    await within(world, pods, phases(world, "visited", "Paused"))
    await left(world, "visited", [])
    began.unlink()
    following = asyncio.create_task(phases(world, "visited", "Succeeded"))
    await change(world, "visited", {"pause": {"enabled": False}})
    await world.there(began, pods, within_s=90.0)
    (folder / "enough").touch()
    seen = await within(world, pods, following)
    assert [each for each in seen if each != "Paused"] == ["Resuming", "Running", "Succeeded"]


async def within(world, pods, waiting):
    """Wait, but not for ever; what pods have written is told then."""
    try:
        async with asyncio.timeout(60):
            return await waiting
    except TimeoutError:
        jobs = (await world.api.call("GET", JOBS))["items"]
        told = [json.dumps(each.get("status")) for each in jobs]
        raise AssertionError("\n".join([*told, *map(world.log, pods)])) from None


async def change(world, name, mode):
    """Give a job another mode as `kubectl patch` would."""
    await world.api.call("PATCH", f"{JOBS}/{name}", {"spec": {"runMode": mode}}, MERGE)
