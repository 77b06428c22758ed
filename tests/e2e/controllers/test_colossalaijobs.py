"""ColossalAIJobs on a real API server and scheduler: Debian's sshd in the workers, PyPI's `colossalai` reaches them.

whole/test_guides.py trains the guide's.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
import yaml

from hack.controlplane.plane import free_ports
from tests.e2e.controllers.installed import ROOT, install
from tests.e2e.controllers.shared.colossal import JOBS, RUNS, SCRIPTS, names, phases, wait_for_ends, with_sshds_folder
from tests.e2e.launcher.operated import PODS, conditions, operated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.root,  # sshd listens on port 22
    pytest.mark.debian("openssh-server"),
    pytest.mark.asyncio(loop_scope="module"),
]

MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stories")


def guide(name, command, env=(), **spec):
    """The guide's job without its devices and its volume: every pod sees the files of the machine."""
    raw = yaml.safe_load((ROOT / "examples/jobs/colossalaijob.yaml").read_text())
    raw["metadata"]["name"] = name
    raw["spec"] |= spec
    raw["spec"]["launcher"] |= {"workingDir": str(SCRIPTS), "env": RUNS, "resources": {}}
    (port,) = free_ports(1)
    raw["spec"]["worker"] |= {"command": command, "torchArgs": [f"--master_port={port}"]}
    pod = raw["spec"]["worker"]["template"]["spec"]
    del pod["volumes"]
    for field in ("resources", "volumeMounts"):
        del pod["containers"][0][field]
    return with_sshds_folder(raw, env)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, folder, tmp_path_factory):
    async with module_plane.api() as api, AsyncExitStack() as stack:
        definition = (ROOT / "deploy/crds/colossalaijobs.batch.tensorstack.dev.yaml").read_text()
        await api.create(yaml.safe_load(definition))
        installed = install(module_plane, api)
        operated_world = await stack.enter_async_context(
            operated(module_plane, tmp_path_factory.mktemp("pods"), installed)
        )
        yield operated_world


async def left(world, job, pods):
    """Wait until these of a job's pods are left."""
    async with asyncio.timeout(40):
        async for _ in world.api.changes(PODS):
            if await names(world.api, job) == pods:
                return


@pytest.mark.contract("CA-23", "CA-25", "CA-26")
async def test_a_script_that_fails_fails_the_job_and_the_launcher_stays(world, folder):
    env = [{"name": "RUN", "value": "fails"}]
    job = guide("fails", ["ca_wait.py", str(folder), "1"], env, runPolicy={"cleanUpWorkers": True})
    await world.api.call("POST", JOBS, job)
    ended = await world.condition("fails", "Failed", JOBS, within_s=240.0)
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
    assert await wait_for_ends(world, pods, phases(world.api, "visited", "Running")) == ["Pending", "Running"]
    assert not began.exists()

    await change(world, "visited", {"debug": {"enabled": False}})
    await world.wait_for_file(began, pods, within_s=240.0)
    assert [len(world.uids[name]) for name in pods] == [2, 2]

    await change(world, "visited", {"pause": {"enabled": True}})
    await wait_for_ends(world, pods, phases(world.api, "visited", "Paused"))
    await left(world, "visited", [])
    began.unlink()
    following = asyncio.create_task(phases(world.api, "visited", "Succeeded"))
    await change(world, "visited", {"pause": {"enabled": False}})
    await world.wait_for_file(began, pods, within_s=240.0)
    (folder / "enough").touch()
    ends = await wait_for_ends(world, pods, following)
    assert [each for each in ends if each != "Paused"] == ["Resuming", "Running", "Succeeded"]


async def change(world, name, mode):
    """Give a job another mode as `kubectl patch` would."""
    await world.api.call("PATCH", f"{JOBS}/{name}", {"spec": {"runMode": mode}}, MERGE)
