"""Jobs of the shapes of DLRover's samples apply and run to Succeeded, our launcher in them under DLRover's name.

The fields, options and variables are those of its samples for torch; names, images and the script are ours.
"""

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.e2e.controllers.installed import ROOT, install
from tests.e2e.controllers.test_elasticjobs import DEFINITIONS, GROUP, JOBS, reached, served
from tests.e2e.launcher.operated import NOBODY, operated

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

API = "elastic.iml.github.io/v1alpha1"
TRAIN = Path(__file__).parent / "scripts/dl_train.py"
ROOM = {"cpu": "1", "memory": "64Mi"}


def sample(name, command, replicas, restart, **worker):
    """A job as the samples have it."""
    container = {
        "name": "main",
        "image": "registry.example/dlrover:torch",
        "imagePullPolicy": "Always",
        "command": ["/bin/bash", "-c", command],
        "resources": {"limits": ROOM, "requests": ROOM},
    }
    template = {"spec": {**NOBODY, "restartPolicy": restart, "containers": [container]}}
    roles = {"worker": {"replicas": replicas, "template": template, **worker}}
    spec = {"distributionStrategy": "AllreduceStrategy", "optimizeMode": "single-job", "replicaSpecs": roles}
    return {
        "apiVersion": API,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def samples(folder):
    """Give each shape and the sizes of the worlds in which it may train."""
    checked, script = "dlrover-run --network-check", f"{TRAIN} {folder}"
    mnist = f"{checked} --nnodes=$WORKER_NUM --nproc_per_node=2 --max_restarts=3 \\\n {script}"
    nanogpt = f"{checked} --nnodes=$NODE_NUM --nproc_per_node=1 --max_restarts=1 \\\n {script}"
    options = "--exclude-straggler --nnodes=1:$WORKER_NUM --nproc_per_node=1 --max_restarts=3"
    chaos = f"(true &) && {checked} {options} --rdzv_conf pend_timeout=600 {script}"
    return {
        "mnist": (sample("mnist", mnist, 2, "Always"), {4}),
        "nanogpt": (sample("nanogpt", nanogpt, 2, "Never"), {2}),
        "chaos": (sample("chaos", chaos, 2, "Always", restartCount=1), {1, 2}),
    }


PARAMETER_SERVER = {
    "apiVersion": API,
    "kind": "ElasticJob",
    "metadata": {"name": "servers"},
    "spec": {
        "distributionStrategy": "ParameterServerStrategy",
        "resourceLimits": {"cpu": "6", "memory": "8192Mi"},
        "replicaSpecs": {
            role: {
                "restartCount": 3,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [{"name": "main", "image": "registry.example/estimator", "command": ["true"]}],
                    }
                },
            }
            for role in ("ps", "worker")
        },
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("samples")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, folder, tmp_path_factory):
    async with module_plane.api() as api:
        files = sorted((ROOT / "deploy/crds").glob("*.yaml"))
        for file in files:
            await api.create(yaml.safe_load(await asyncio.to_thread(file.read_text)))
        await api.until(DEFINITIONS, lambda all_: sum(map(served, all_)) == len(files))
        controlled = install(module_plane, api, "--kinds=ElasticJob")
        async with operated(module_plane, tmp_path_factory.mktemp("pods"), controlled) as world:
            yield world


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "nanogpt", "chaos"])
async def test_a_sample_for_torch_applies_trains_and_succeeds(world, folder, name):
    job, sizes = samples(folder)[name]
    await world.api.call("POST", f"{JOBS}?fieldValidation=Strict", job)
    try:
        done = await reached(world, name, "Succeeded", within_s=240.0)
    except TimeoutError:
        logs = "\n".join(f"--- {pod}\n{world.log(pod)[-3000:]}" for pod in sorted(world.uids) if name in pod)
        raise AssertionError(logs) from None
    assert any((folder / f"{name}-of-{size}").exists() for size in sizes)
    assert [each["type"] for each in done["status"]["conditions"] if each["status"] == "True"][-1] == "Succeeded"


async def test_the_sample_of_parameter_servers_applies_and_is_told(world):
    await world.api.call("POST", f"{JOBS}?fieldValidation=Strict", PARAMETER_SERVER)
    (condition,) = (await reached(world, "servers", "Failed"))["status"]["conditions"]
    assert "spec.distributionStrategy is 'ParameterServerStrategy'" in condition["message"]


async def test_the_sample_of_a_plan_applies_and_names_what_is_not_carried_out(world):
    plans = f"{GROUP}/namespaces/default/scaleplans"
    role = {"replicas": 2, "resource": {"cpu": "0.5", "memory": "256Mi"}}
    spec = {"ownerJob": "servers", "replicaResourceSpecs": {"ps": role, "worker": role}}
    spec["migratePods"] = [{"name": "servers-edljob-ps-0", "resource": {"cpu": "2", "memory": "512Mi"}}]
    meta = {"name": "plan", "labels": {"elasticjob-name": "servers", "scale-type": "manual"}}
    plan = {"apiVersion": API, "kind": "ScalePlan", "metadata": meta, "spec": spec}
    await world.api.call("POST", plans, plan)
    ended_plan = await reached(world, "plan", "Failed", plans)
    assert "spec.migratePods is not carried out" in ended_plan["status"]["message"]
