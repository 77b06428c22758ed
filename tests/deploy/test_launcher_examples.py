"""The jobs that a user copies: valid to a real API server, restricted, understood by autoscaler and turnout-run."""

from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hack.controlplane import schemas
from tests.deploy.test_autoscaler_installed import CRDS, pytorch_crd, serve
from tests.kit.published_crds import published
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import Bounds
from turnout.launcher.cli.to_settings import read
from turnout.launcher.settings import LockKind, Settings

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples" / "launcher"
GIVEN = Path(__file__).parents[2] / "deploy" / "manifests" / "launcher"
JOBS = {"pytorchjob": "PyTorchJob", "indexed-job": "Job", "volcano-job": "VolcanoJob"}
EVERY_JOB = pytest.mark.parametrize("file", JOBS)
PODS = {  # what is known of a pod once it runs, as the downward API names it
    "metadata.name": "example-job-worker-0",
    "metadata.namespace": "team-a",
    "status.podIP": "10.1.2.3",
    "spec.nodeName": "node-7",
    "metadata.labels['batch.kubernetes.io/controller-uid']": "0f8a",
}
OPERATORS = {  # what training-operator adds; tests/e2e/launcher has it from the real one
    "PET_RDZV_ENDPOINT": "example-job-worker-0:29400",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ID": "example-job",
    "PET_NNODES": "2:4",
    "PET_NPROC_PER_NODE": "8",
    "PET_MAX_RESTARTS": "3",
}
CONTROLLERS = {
    "pytorchjob": OPERATORS,
    "indexed-job": {"JOB_COMPLETION_INDEX": "0"},
    "volcano-job": {"VC_TASK_INDEX": "0"},
}


def parts(file):
    job, network = yaml.safe_load_all((EXAMPLES / f"{file}.yaml").read_text())
    return job, network


def template(job):
    spec = job["spec"]
    if job["kind"] == "PyTorchJob":
        return spec["pytorchReplicaSpecs"]["Worker"]["template"]
    return spec["tasks"][0]["template"] if "tasks" in spec else spec["template"]


def container(job):
    (only,) = template(job)["spec"]["containers"]
    return only


def environment(file, job):
    """Return the environment that the container's process would see."""
    variables = {}
    for each in container(job)["env"]:
        value = each.get("value") or PODS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        variables[each["name"]] = value.replace("$(POD_NAMESPACE)", PODS["metadata.namespace"])
    return variables | CONTROLLERS[file]


@pytest_asyncio.fixture
async def api(module_plane):
    async with module_plane.api() as api:
        if not (await api.get(CRDS))["items"]:
            volcano = published("volcano", "batch.volcano.sh_jobs")
            for crd in (volcano, torch := pytorch_crd()):
                crd["spec"].pop("conversion", None)
            await serve(api, volcano, torch)
            meta = {"name": "team-a", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
            await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        yield api


@pytest.mark.real
@pytest.mark.asyncio
async def test_the_server_takes_every_file_in_a_strict_dry_run(api):
    for file in JOBS:
        for each in parts(file):
            stored = await api.create(each, "team-a", "?dryRun=All&fieldValidation=Strict")
            assert stored["metadata"]["name"] == "example-job"


@pytest.mark.real
def test_every_file_is_valid_by_the_servers_own_schemas(api, module_plane, tmp_path):
    schemas.write(module_plane.request("GET", "/openapi/v2"), tmp_path)
    files = [EXAMPLES / f"{file}.yaml" for file in JOBS]
    results = schemas.kubeconform(tmp_path, files)
    assert schemas.faults(results) == []
    assert {Path(each["filename"]) for each in results} == set(files)


@pytest.mark.real
@pytest.mark.asyncio
@EVERY_JOB
async def test_its_pods_are_admitted_under_the_restricted_rules(api, file):
    raw_pod = template(parts(file)[0])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trial"}, "spec": raw_pod["spec"]}
    await api.create(pod, "team-a", "?dryRun=All")


@pytest.mark.contract("PE-09")
@EVERY_JOB
def test_turnout_run_understands_what_it_is_given(file):
    job, _ = parts(file)
    program, *arguments = container(job)["command"] + container(job).get("args", [])
    assert program == "turnout-run"
    settings = read(arguments, environment(file, job), program)
    assert isinstance(settings, Settings), settings
    terms, meeting, place = settings.elastic_spec, settings.rendezvous, settings.place
    assert (terms.min_nodes, terms.max_nodes, terms.max_restarts, settings.processes) == (2, 4, 3, 8)
    assert (meeting.arbiter, meeting.lease, meeting.token_file) == (
        LockKind.LEASE,
        "team-a/example-job",
        "/etc/turnout/token",
    )
    assert meeting.run == ("0f8a" if file == "indexed-job" else "example-job")
    assert (place.address, place.host, place.path_file, place.order) == (
        "10.1.2.3", "node-7", "/etc/podinfo/annotations", 0,
    )  # fmt: skip
    assert place.name == ("" if file == "indexed-job" else "example-job-worker-0")
    assert not settings.notes
    assert settings.command.program == "/app/train.py"


@EVERY_JOB
def test_the_autoscaler_may_resize_it_from_two_to_four(file):
    read_ = KINDS[JOBS[file]].read(parts(file)[0])
    assert (read_.bounds, read_.refused) == (Bounds(2, 4), "")


@EVERY_JOB
def test_it_has_more_grace_than_the_agent_takes(file):
    job, _ = parts(file)
    spec = template(job)["spec"]
    takes_s = float(environment(file, job)["TURNOUT_DRAIN_GRACE_S"])
    assert spec["terminationGracePeriodSeconds"] >= takes_s + 10


@EVERY_JOB
def test_it_uses_the_account_the_lease_and_the_secret_that_are_made_for_it(file):
    name_by_kind = {
        each["kind"]: each["metadata"]["name"] for each in yaml.safe_load_all((GIVEN / "job.yaml").read_text())
    }
    (secret,) = yaml.safe_load_all((GIVEN / "job-token.yaml").read_text())
    job, _ = parts(file)
    spec = template(job)["spec"]
    assert spec["serviceAccountName"] == name_by_kind["ServiceAccount"]
    assert environment(file, job)["TURNOUT_LEASE"].endswith(f"/{name_by_kind['Lease']}")
    (volume,) = (each for each in spec["volumes"] if "secret" in each)
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    (mount,) = (each for each in container(job)["volumeMounts"] if each["name"] == volume["name"])
    (key,) = secret["stringData"]
    assert environment(file, job)["TURNOUT_TOKEN_FILE"] == f"{mount['mountPath']}/{key}"
    assert "secretKeyRef" not in str(spec)  # a token in a variable is inherited, and shown by many tools


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("pytorchjob", "training.kubeflow.org/job-name"),
        ("indexed-job", "batch.kubernetes.io/job-name"),
        ("volcano-job", "volcano.sh/job-name"),
    ],
)
def test_only_pods_of_the_job_reach_one_another(file, label):
    _, network = parts(file)
    mine = {"matchLabels": {label: "example-job"}}
    assert network["spec"] == {
        "podSelector": mine,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": mine}]}],  # no namespaceSelector: of the same namespace only
    }
