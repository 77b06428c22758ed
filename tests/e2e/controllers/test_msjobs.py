"""MSJobs under our controller, on a real API server and scheduler. whole/test_guides.py trains the guide's."""

import asyncio
import json
import os
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
import yaml

from tests.e2e.controllers.installed import ROOT, install
from tests.e2e.controllers.shared.kube_proxy import served
from tests.e2e.launcher.operated import NOBODY, operated

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

API = "mindspore.gitee.com/v1"
JOBS = f"/apis/{API}/namespaces/default/msjobs"
SAMPLE = ROOT / "tests/e2e/controllers/scripts/ms_sample.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stories")


def guide(name, command, workers=2):
    """The guide's job, of the size of this machine."""
    raw = yaml.safe_load((ROOT / "examples/jobs/msjob-dataparallel.yaml").read_text())
    raw["metadata"]["name"] = name
    for role in raw["spec"]["msReplicaSpecs"].values():
        pod = role["template"]["spec"]
        (container,) = pod["containers"]
        container["command"] = command
        for field in ("volumeMounts", "workingDir"):
            del container[field]
        del pod["volumes"]
        pod |= NOBODY
    raw["spec"]["msReplicaSpecs"]["Worker"]["replicas"] = workers
    return raw


def one(name, command, **spec):
    """A job of one worker."""
    pod = {**NOBODY, "containers": [{"name": "mindspore", "image": "any:1", "command": ["sh", "-c", command]}]}
    worker = {"replicas": 1, "template": {"spec": pod}}
    head = {"apiVersion": API, "kind": "MSJob", "metadata": {"name": name}}
    return {**head, "spec": {"msReplicaSpecs": {"Worker": worker}, **spec}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, folder, tmp_path_factory):
    async with module_plane.api() as api, AsyncExitStack() as stack:
        definition = (ROOT / "deploy/crds/msjobs.mindspore.gitee.com.yaml").read_text()
        await api.create(yaml.safe_load(definition))
        installed = install(module_plane, api)
        operated_world = await stack.enter_async_context(
            operated(module_plane, tmp_path_factory.mktemp("pods"), installed)
        )
        await api.create(one("alone", f"touch {folder}/alone"))
        await api.create(one("left", "echo 'E: bindIP failed' >&2; exit 1"))
        yield operated_world


@pytest.mark.contract("MS-08")
async def test_one_worker_alone_comes_to_its_end(world, folder):
    await world.condition("alone", "Succeeded", JOBS)
    assert (folder / "alone").exists()


async def test_known_last_words_of_a_container_are_explained_in_the_condition(world):
    job = await world.condition("left", "Failed", JOBS)
    assert "MS_RECOVERY_PATH" in job["status"]["conditions"][-1]["message"]


@pytest.mark.long
@pytest.mark.mindspore
async def test_mindspores_own_data_parallel_sample_trains(world, folder):
    """With the `mindspore` wheel for CPUs: TURNOUT_MINDSPORE names the python that has it."""
    sample = [os.environ["TURNOUT_MINDSPORE"], str(SAMPLE), str(folder)]
    await world.api.call("POST", JOBS, guide("real", sample))
    async with served(world.api, "default", "real-scheduler-0"):
        await world.wait_for_file(
            folder / "mindspore", ["real-scheduler-0", "real-worker-0", "real-worker-1"], within_s=400.0
        )
        await world.condition("real", "Succeeded", JOBS)
    document = json.loads(await asyncio.to_thread((folder / "mindspore").read_text))
    assert document["world"] == 2
    assert document["losses"][1] < 0.05 * document["losses"][0]
