"""The jobs of the guides, as their users have them, come to their ends: torch trains in the pods of a real API server.

Only what no test machine has is changed: images are its own programs, and paths lie in a folder of the test. Sizes,
devices, restarts, volumes, mounts and environments are those of examples/jobs.
"""

import asyncio
import json
import shutil
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
import yaml

from hack.controlplane.plane import free_ports
from tests.e2e.controllers.installed import ROOT, install
from tests.e2e.controllers.shared import colossal
from tests.e2e.controllers.shared.kube_proxy import served
from tests.e2e.launcher.operated import conditions, operated

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SCRIPTS = ROOT / "tests/e2e/controllers/scripts"
KINDS = "PyTorchJob,ElasticJob,MSJob,VolcanoJob,ColossalAIJob"
PATHS = {
    "elasticjob": "/apis/elastic.iml.github.io/v1alpha1/namespaces/default/elasticjobs",
    "pytorchjob-elastic": "/apis/ctyun.cn/v1/namespaces/default/pytorchjobs",
    "msjob-dataparallel": "/apis/mindspore.gitee.com/v1/namespaces/default/msjobs",
    "volcanojob": "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs",
    "colossalaijob": colossal.JOBS,
}
ROOM = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "8", "metax-tech.com/gpu": "16", "pods": "110"}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
HARD = 'a "b" $HOME `c` \\'
TOLD = [  # what the owner of the ColossalAIJob adds to its workers' environment
    {"name": "DIRECT", "value": "told"},
    {"name": "HARD", "value": HARD},
    {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "own", "key": "key"}}},
]
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own"}, "stringData": {"key": "hidden"}}


def fitted(name, folder):
    """Read a guide's job, with the scripts and paths of this machine."""
    text = (ROOT / f"examples/jobs/{name}.yaml").read_text()
    (port,) = free_ports(1)
    torch = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={port} RANK=$VC_TASK_INDEX WORLD_SIZE=$VC_WORKER_NUM"
    paths = {
        "elasticjob": {"fine_tuning.py sentences.json": f"{SCRIPTS}/dl_train.py {folder}"},
        "pytorchjob-elastic": {"/workspace/imagenet.py": f"{SCRIPTS}/pt_train.py"},
        "msjob-dataparallel": {"/data": str(folder)},
        "volcanojob": {
            '["python", "train.py"]': json.dumps(["sh", "-c", f"{torch} exec python {SCRIPTS}/vc_train.py {folder}"])
        },
        "colossalaijob": {"/workspace": str(folder), "[train.py, arg1]": f"[train.py, {folder}]"},
    }
    for theirs, ours in paths[name].items():
        assert theirs in text
        text = text.replace(theirs, ours)
    raw_job = yaml.safe_load(text)
    if name == "pytorchjob-elastic":
        (container,) = raw_job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        raw_job["spec"]["nprocPerNode"] = "1"  # without GPUs torch would start one for each core
        raw_job["spec"]["elasticPolicy"]["rdzvPort"] = port  # torch's store binds it on every address of the machine
        rendezvous_conf = {
            "name": "PET_RDZV_CONF",
            "value": "last_call_timeout=15",
        }  # for a third worker, whom nobody makes
        container["env"] += [{"name": "FOLDER", "value": str(folder)}, rendezvous_conf]
    if name == "colossalaijob":
        raw_job["spec"]["launcher"]["env"] = colossal.RUNS
        raw_job["spec"]["worker"] |= {"procPerWorker": 2, "torchArgs": [f"--master_port={port}"]}
        colossal.with_sshds_folder(raw_job, TOLD)
    return raw_job


def claimed(folder):
    """The claim of the guide's ColossalAIJob, bound to a volume: this folder of the machine."""
    size = {"storage": "1Gi"}
    modes = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    claim = {"name": "colossalai", "namespace": "default"}
    spec = {**modes, "capacity": size, "hostPath": {"path": str(folder)}, "claimRef": claim}
    yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "colossalai"}, "spec": spec}
    spec = {**modes, "resources": {"requests": size}, "volumeName": "colossalai"}
    meta = {**claim, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def established(definition):
    """True if the API server serves a definition."""
    found = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in found)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder_by_name = {name: tmp_path_factory.mktemp(name) for name in PATHS}
    folder_by_name["claim"] = tmp_path_factory.mktemp("claim")
    for script, folder in (
        ("ms_train.py", folder_by_name["msjob-dataparallel"]),
        ("ca_train.py", folder_by_name["claim"]),
    ):
        shutil.copy(SCRIPTS / script, folder / "train.py")
        shutil.copy(SCRIPTS / "line.py", folder)
    return folder_by_name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, folders, tmp_path_factory):
    async with module_plane.api() as api, AsyncExitStack() as stack:
        files = sorted((ROOT / "deploy/crds").rglob("*.yaml"))
        for file in files:
            await api.create(yaml.safe_load(await asyncio.to_thread(file.read_text)))
        await api.until(DEFINITIONS, lambda all_: sum(map(established, all_)) == len(files))
        controlled = install(module_plane, api, kinds=KINDS)
        world = await stack.enter_async_context(operated(module_plane, tmp_path_factory.mktemp("pods"), controlled))
        for node in (await api.get("/api/v1/nodes"))["items"]:
            status = {"status": {"capacity": ROOM, "allocatable": ROOM}}
            await world.api.call("PATCH", f"/api/v1/nodes/{node['metadata']['name']}/status", status, MERGE)
        for each in (SECRET, *claimed(folders["claim"])):
            await api.create(each)
        world.phases = asyncio.create_task(colossal.phases(world.api, "colossalai-example", "Succeeded"))
        stack.callback(world.phases.cancel)
        for name, path in PATHS.items():
            await world.api.call("POST", path, fitted(name, folders[name]))
        await stack.enter_async_context(served(world.api, "default", "widedeep-example-scheduler-0"))
        yield world


def pods(job, count):
    """The names of a job's workers."""
    return [f"{job}-worker-{index}" for index in range(count)]


@pytest.mark.contract("DL-27")
async def test_the_guides_elasticjob_trains_on_its_four_workers(world, folders):
    names = ["elasticjob-fine-tuning-dlrover-master-0", *pods("fine-tuning-edljob", 4)]
    await world.wait_for_file(folders["elasticjob"] / "fine-tuning-of-4", names, within_s=300.0)
    job = await world.condition("fine-tuning", "Succeeded", PATHS["elasticjob"], within_s=180.0)
    assert job["status"]["phase"] == "Succeeded"
    assert [len(world.uids[name]) for name in names] == [1] * 5  # nobody was replaced


@pytest.mark.contract("PE-17")
async def test_the_guides_pytorchjob_trains_under_torch_distributed_run(world, folders):
    names = pods("elastic-example", 2)
    await world.wait_for_file(folders["pytorchjob-elastic"] / "trained-of-2", names, within_s=300.0)
    first, last = json.loads((folders["pytorchjob-elastic"] / "trained-of-2").read_text())
    assert last < 0.01 * first
    job = await world.condition("elastic-example", "Succeeded", PATHS["pytorchjob-elastic"], within_s=180.0)
    port = job["spec"]["elasticPolicy"]["rdzvPort"]
    assert world.env[names[1]]["PET_RDZV_ENDPOINT"] == f"elastic-example-worker-0:{port}"
    assert (world.env[names[1]]["PET_NNODES"], world.env[names[1]]["LOGLEVEL"]) == ("1:3", "DEBUG")


@pytest.mark.contract("MS-01", "MS-07", "MS-12")
async def test_the_guides_msjob_trains_through_the_address_of_its_scheduler(world, folders):
    names = ["widedeep-example-scheduler-0", *pods("widedeep-example", 4)]
    await world.wait_for_file(folders["msjob-dataparallel"] / "trained", names, within_s=300.0)
    job = await world.condition("widedeep-example", "Succeeded", PATHS["msjob-dataparallel"], within_s=180.0)
    document = json.loads((folders["msjob-dataparallel"] / "trained").read_text())
    assert document["world"] == 4
    assert document["last"] < 0.01 * document["first"]
    services = (await world.api.call("GET", "/api/v1/namespaces/default/services"))["items"]
    mine = {each["metadata"]["name"]: each["spec"]["clusterIP"] for each in services}
    assert {name for name in mine if name.startswith("widedeep-")} == {names[0]}
    assert document["host"] == mine[names[0]]
    assert "Running" not in conditions(job)


@pytest.mark.contract("VE-17")
async def test_the_guides_volcano_job_trains_to_its_end(world, folders):
    names = pods("volcano-example", 4)
    await world.wait_for_file(folders["volcanojob"] / "trained", names, within_s=300.0)
    document = json.loads((folders["volcanojob"] / "trained").read_text())
    assert document["losses"][1] < 0.01 * document["losses"][0]
    assert (document["world"], document["index"]) == (4, "0")
    assert document["hosts"] == document["file"] == [f"{name}.volcano-example" for name in names]
    async with asyncio.timeout(60.0):
        async for _, now in world.api.changes(PATHS["volcanojob"]):
            status = now.obj.get("status") or {}
            if (status.get("state") or {}).get("phase") == "Completed":
                break
    assert (status["succeeded"], status["retryCount"], status["minAvailable"]) == (4, 0, 2)


@pytest.mark.root  # sshd listens on port 22
@pytest.mark.debian("openssh-server")
@pytest.mark.contract("CA-05", "CA-06", "CA-11", "CA-19", "CA-20")
async def test_the_guides_colossalaijob_trains_on_every_rank_by_ssh(world, folders):
    names = ["colossalai-example-launcher", *pods("colossalai-example", 2)]
    trained = folders["claim"] / "trained"
    await world.wait_for_file(trained, names, within_s=300.0)
    document = json.loads(await asyncio.to_thread(trained.read_text))
    assert document["last"] < 0.01 * document["first"]
    assert [each["host"] for each in document["ranks"]] == [names[1], names[1], names[2], names[2]]
    environment = {"DIRECT": "told", "SECRET": "hidden", "HARD": HARD, "LOCAL_WORLD_SIZE": "2"}
    assert all(environment.items() <= each.items() for each in document["ranks"])
    ends = await colossal.wait_for_ends(world, names, world.phases)
    assert ends[-2:] == ["Running", "Succeeded"], world.log(names[0])
    assert await colossal.names(world.api, "colossalai-example") == names
