"""The definitions of deploy/crds: up to date, taken by a real API server, and strict where the contract refuses."""

import asyncio
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hack.codegen import crds
from hack.controlplane.errors import ApiError
from hack.controlplane.tools import cache
from tests.controllers import elasticjobs
from tests.controllers.jobs import role

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
GROUPS = ("kubeflow.org/v1", "ctyun.cn/v1")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


MS_ROLE = role(containers=[{"name": "mindspore", "image": "ms:1"}])


def jobs(group):
    return f"/apis/{group}/namespaces/default/pytorchjobs"


def raw_job(group, **spec):
    worker = {"Worker": role(2)}
    return {
        "apiVersion": group,
        "kind": "PyTorchJob",
        "metadata": {"name": "bert"},
        "spec": {"pytorchReplicaSpecs": worker, **spec},
    }


def kubectl(plane, *words):
    """Run kubectl on a plane; what became of it."""
    argv = [str(cache.binary("kubectl")), "--kubeconfig", str(plane.kubeconfig), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(module_plane):
    async with module_plane.api() as api:
        for file in sorted((ROOT / "deploy/crds").rglob("*.yaml")):
            await api.create(yaml.safe_load(file.read_text()))
        await api.until(DEFINITIONS, lambda all_: sum(_served(each) for each in all_) >= len(crds.files()))
        yield api


def _served(definition):
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@pytest.mark.parametrize("name", crds.files())
async def test_a_file_is_as_the_code_writes_it(name):
    assert await asyncio.to_thread((ROOT / "deploy/crds" / name).read_text) == crds.files()[name]


@pytest.mark.contract("PE-17")
async def test_the_guides_job_applies(api):
    raw = yaml.safe_load((ROOT / "examples/jobs/pytorchjob-elastic.yaml").read_text())
    stored = await api.create(raw)
    assert stored["spec"] == raw["spec"]
    await api.delete(f"{jobs(GROUPS[1])}/elastic-example")


@pytest.mark.contract("MS-03", "MS-15")
async def test_the_guides_msjob_applies(api):
    raw = yaml.safe_load((ROOT / "examples/jobs/msjob-dataparallel.yaml").read_text())
    stored = await api.create(raw)
    assert stored["spec"] == raw["spec"]
    await api.delete("/apis/mindspore.gitee.com/v1/namespaces/default/msjobs/widedeep-example")


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        pytest.param({"Boss": MS_ROLE, "Worker": MS_ROLE}, "are the roles", id="an unknown role"),
        pytest.param({"Scheduler": MS_ROLE}, "Worker is missing", id="no workers"),
        pytest.param({"SCHEDULER": {**MS_ROLE, "replicas": 2}, "Worker": MS_ROLE}, "has one Scheduler", id="two of it"),
        pytest.param({"Worker": role()}, "one container must be named mindspore", id="no container of that name"),
    ],
)
async def test_the_server_refuses_an_msjob_and_says_why(api, roles, why):
    head = {"apiVersion": "mindspore.gitee.com/v1", "kind": "MSJob", "metadata": {"name": "deep"}}
    with pytest.raises(ApiError, match=why) as refused:
        await api.create({**head, "spec": {"msReplicaSpecs": roles}})
    assert refused.value.status == 422


COLOSSAL = "/apis/batch.tensorstack.dev/v1beta1/namespaces/default/colossalaijobs"


def colossal(name="colossalai-example", **spec):
    """The guide's, with these changes: a field's path with __ for dots."""
    raw = yaml.safe_load((ROOT / "examples/jobs/colossalaijob.yaml").read_text())
    raw["metadata"]["name"] = name
    for path, value in spec.items():
        place = raw["spec"]
        *above, last = path.split("__")
        for step in above:
            place = place.setdefault(step, {})
        place[last] = value
    return raw


@pytest.mark.contract("CA-01", "CA-17")
async def test_the_guides_colossalaijob_applies(api):
    four = {"limits": {"cpu": "4", "memory": "4Gi"}, "requests": {"cpu": "2", "memory": "2Gi"}}
    raw = colossal(worker__replicas=4)
    raw["spec"]["worker"]["template"]["spec"]["containers"][0]["resources"] = four
    stored = await api.create(raw)
    assert stored["spec"] == raw["spec"]
    await api.delete(f"{COLOSSAL}/colossalai-example")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"ssh__sshdPath": "sshd"}, "an absolute path is needed", id="a relative path of sshd"),
        pytest.param({"worker__replicas": 0}, "should be greater than or equal to 1", id="no workers"),
        pytest.param({"worker__command": []}, "should have at least 1", id="no script"),
        pytest.param(
            {"worker__template": role()["template"]}, "one container must be named worker", id="no container worker"
        ),
        pytest.param({"launcher": {}}, "launcher.image: Required", id="no image"),
        pytest.param({"scheduler__t9kScheduler__priority": 101}, "less than or equal to 100", id="a priority"),
    ],
)
@pytest.mark.contract("CA-03", "CA-12")
async def test_the_server_refuses_a_colossalaijob_and_says_why(api, spec, why):
    with pytest.raises(ApiError, match=why) as refused:
        await api.create(colossal(**spec))
    assert refused.value.status == 422


RESUMED = [{"type": "worker", "skipInitContainer": True, "command": ["sh"], "args": ["-c"]}]


@pytest.mark.contract("CA-41")
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param({"pause": {"resumeSpecs": [*RESUMED, {"type": "launcher"}]}}, id="another one"),
        pytest.param({"pause": {"resumeSpecs": [{**RESUMED[0], "args": []}]}}, id="other arguments"),
        pytest.param({"pause": {"resumeSpecs": None}}, id="none"),
        pytest.param({"pause": None}, id="no pause around them"),
    ],
)
async def test_how_a_job_is_resumed_never_changes_once_it_is_set(api, mode):
    path = f"{COLOSSAL}/kept"
    await api.create(colossal("kept", runMode__pause__enabled=True))
    await api.patch(path, {"spec": {"runMode": {"pause": {"resumeSpecs": RESUMED}}}})
    with pytest.raises(ApiError, match="must not change once it is set") as refused:
        await api.patch(path, {"spec": {"runMode": mode}})
    assert refused.value.status == 422
    stored = await api.patch(path, {"spec": {"runMode": {"pause": {"enabled": False}}}})
    assert stored["spec"]["runMode"]["pause"] == {"enabled": False, "resumeSpecs": RESUMED}
    await api.delete(path)


@pytest.mark.contract("PE-48")
@pytest.mark.parametrize("group", GROUPS)
async def test_kubectl_scales_a_job_through_its_subresource(module_plane, api, group):
    await api.create(raw_job(group))
    path = f"{jobs(group)}/bert"
    counts = {"Worker": {"active": 1, "selector": "training.kubeflow.org/job-name=bert"}}
    await api.patch(f"{path}/status", {"status": {"replicaStatuses": counts}})
    plural = f"pytorchjobs.{group.split('/')[0]}"
    done = await asyncio.to_thread(kubectl, module_plane, "scale", f"{plural}/bert", "--replicas=5")
    assert done.returncode == 0, done.stderr
    scale = await api.get(f"{path}/scale")
    assert scale["status"] == {"replicas": 1, "selector": "training.kubeflow.org/job-name=bert"}
    assert (await api.get(path))["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 5
    await api.delete(path)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param(
            {"pytorchReplicaSpecs": {"Boss": role()}}, "Master and Worker are the roles", id="an unknown role"
        ),
        pytest.param({"pytorchReplicaSpecs": {"Master": role(2)}}, "a job has one Master", id="two masters"),
        pytest.param(
            {"pytorchReplicaSpecs": {"Worker": role(containers=[{"name": "other", "image": "i"}])}},
            "one container must be named pytorch",
            id="no container of that name",
        ),
        pytest.param({"pytorchReplicaSpecs": {"Worker": role(10_001)}}, "10000", id="more replicas than anybody has"),
        pytest.param(
            {"pytorchReplicaSpecs": {"Worker": role(restart="Sometimes")}}, "Sometimes", id="a restart policy"
        ),
        pytest.param(
            {"elasticPolicy": {"minReplicas": 3, "maxReplicas": 2}}, "is above maxReplicas", id="a min above the max"
        ),
        pytest.param(
            {"elasticPolicy": {"nProcPerNode": 1}, "nprocPerNode": "2"}, "must not be used", id="processes twice"
        ),
        pytest.param(
            {"pytorchReplicaSpecs": {"Master": role()}, "elasticPolicy": {}}, "Worker is missing", id="no workers"
        ),
    ],
)
@pytest.mark.contract("PE-23")
async def test_the_server_refuses_and_names_the_field(api, spec, why):
    with pytest.raises(ApiError, match=why) as refused:
        await api.create(raw_job(GROUPS[0], **spec))
    assert refused.value.status == 422


ELASTIC = "/apis/elastic.iml.github.io/v1alpha1/namespaces/default/elasticjobs"


@pytest.mark.contract("DL-09", "DL-27")
@pytest.mark.parametrize("name", ["elasticjob", "elasticjob-gang"])
async def test_the_elasticjobs_of_the_guide_apply(module_plane, api, name):
    file = ROOT / f"examples/jobs/{name}.yaml"
    done = await asyncio.to_thread(kubectl, module_plane, "apply", "-f", str(file))
    assert done.returncode == 0, done.stderr
    raw = yaml.safe_load(file.read_text())
    assert (await api.get(f"{ELASTIC}/{raw['metadata']['name']}"))["spec"] == raw["spec"]
    await api.delete(f"{ELASTIC}/{raw['metadata']['name']}")


def elastic(**more):
    raw = elasticjobs.job(**more)
    return {**raw, "metadata": {"name": raw["metadata"]["name"], "namespace": "default"}}


@pytest.mark.contract("DL-13")
async def test_the_mode_of_an_elasticjob_is_defaulted_and_stored(api):
    raw = elastic()
    del raw["spec"]["optimizeMode"], raw["spec"]["distributionStrategy"]
    spec = (await api.create(raw))["spec"]
    assert (spec["optimizeMode"], spec["distributionStrategy"]) == ("single-job", "AllreduceStrategy")
    await api.delete(f"{ELASTIC}/bert")


async def test_an_elasticjobs_status_keeps_what_the_controller_remembers(api):
    await api.create(elastic())
    role_ = {
        "restartCounts": {"1": 2},
        "memoryKills": {"0": 1},
        "faultyNodes": ["gpu-7"],
        "nextNumber": 4,
        "restarts": 3,
    }
    status = {"phase": "Running", "replicaStatuses": {"worker": {**role_, "restartedPods": ["u"]}}}
    stored = await api.patch(f"{ELASTIC}/bert/status", {"status": status})
    assert stored["status"] == status
    await api.delete(f"{ELASTIC}/bert")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        pytest.param(elastic(name="b" * 38), "at most 37 characters", id="a name too long for its Services"),
        pytest.param(
            elastic(workers=elasticjobs.worker(restartCount=1, restartCounts=2)), "say one of them", id="two counts"
        ),
        pytest.param(
            elastic(workers=elasticjobs.worker(container={"imagePullPolicy": "Often"})), "Often", id="a pull policy"
        ),
        pytest.param(
            elastic(workers=elasticjobs.worker(container={"name": "x"})), "must be named main", id="no main container"
        ),
        pytest.param(elastic(replicaSpecs={}), "worker", id="no workers"),
        pytest.param(elastic(lead={"replicas": 2}), "dlrover-master.replicas", id="two masters"),
    ],
)
async def test_the_server_refuses_an_elasticjob_and_names_the_field(api, raw, why):
    with pytest.raises(ApiError, match=why) as refused:
        await api.create(raw)
    assert refused.value.status == 422
