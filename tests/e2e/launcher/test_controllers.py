"""turnout-run under real controllers: one world, and what training-operator and Kubernetes make of each exit code.

All jobs are submitted at once, and each story waits for what becomes of its own.
"""

import asyncio
import re
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio

from hack.controlplane.plane import free_ports
from hack.controlplane.tools import cache
from tests.e2e.launcher.operated import FIRST, JOBS, PLAIN_JOBS, PODS, bare, example, given, operated, plain, policy
from turnout.launcher.rendezvous.arbiter import ROUND, unseal

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

TRAIN = Path(__file__).with_name("train.py")
SERVICES = "/api/v1/namespaces/default/services"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
ONCE = "if [ -e {file} ]; then exit 0; fi; touch {file}; exit {code}"
BY_HAND = [("faulty", 138, "ExitCode"), ("drained", 143, "ExitCode"), ("stays", 138, "OnFailure")]
# Two tries of the processes in the same pod, which then ends with 1.
SPENDS = (
    "env -u TURNOUT_TOKEN_FILE -u TURNOUT_LEASE -u TURNOUT_PATH_FILE "
    "turnout-run --standalone --max-restarts=1 --no-fork --no-python sh -c 'echo $POD_UID >> {file}; false'"
)
AGAIN = "[ -e {file} ] && exec echo the new pod trains; " + SPENDS
PLAIN = [("plain-drained", 143), ("plain-faulty", 138), ("plain-spent", 1)]
HOOK = """sh -c 'cd {folder}; [ -e saved-by-hook ] && exit; trap "touch saved-by-hook; exit" TERM; touch begun
while :; do sleep 0.05; done'"""
# As docs/launcher.md shows it, for who cannot exec.
WRAPPED = """trap 'kill -TERM $agent' TERM
{run} & agent=$!
while kill -0 $agent 2>/dev/null; do wait $agent; code=$?; done
exit $code"""
ETCD = {"by-etcd": "etcd", "by-etcd-v2": "etcd-v2"}
CONF = [{"key": "last_call_timeout", "value": "20"}, {"key": "join_timeout", "value": "60"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stories")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, folder, tmp_path_factory):
    runs = "turnout-run --no-fork --no-python "
    (port,) = free_ports(1)  # torch's store listens on all addresses of what is one machine here
    jobs = [
        example("bert", f"{FIRST} turnout-run {TRAIN} {folder}", workers=3, rdzvConf=CONF),
        example("spent", f"{FIRST} {runs} false", workers=2, maxRestarts=1),
        example("alone", f"exec {runs} touch {folder}/alone", workers=1, standalone=True),
        example("wrapped", WRAPPED.format(run=f"{runs} {HOOK.format(folder=folder)}"), workers=1, standalone=True),
        *(
            example(
                name,
                f"exec {runs} touch {folder}/{name}",
                workers=1,
                rdzvBackend=backend,
                rdzvHost="etcd-service",
                rdzvPort=2379,
            )
            for name, backend in ETCD.items()
        ),
        example(
            "torch", f"exec python -m torch.distributed.run --no-python touch {folder}/torch", workers=1, rdzvPort=port
        ),
        *(bare(name, ONCE.format(file=folder / name, code=code), policy) for name, code, policy in BY_HAND),
        *(
            plain(name, f"echo $TURNOUT_JOB > {folder}/{name}-run; {ONCE.format(file=folder / name, code=code)}")
            for name, code in PLAIN
        ),
        plain("again", AGAIN.format(file=folder / "again"), backoff_limit=1),
        plain("never", SPENDS.format(file=folder / "never"), backoff_limit=1),
    ]
    async with operated(module_plane, tmp_path_factory.mktemp("pods")) as world, module_plane.api() as api:
        for job in ("bert", "spent", "alone", "wrapped", "torch", *ETCD):
            await api.create_all(given(job))
        await api.create_all(jobs)
        yield world


@pytest.mark.contract(
    "PE-09", "PE-30", "PE-31", "PE-32", "PE-35", "PE-36", "PE-37", "PE-38", "PE-39", "PE-40", "PE-41", "PE-43"
)
async def test_the_variables_of_the_operator_are_enough_to_form_one_world(world, folder):
    await world.wait_for_file(folder / "round-1-of-3", ["bert-worker-0", "bert-worker-1", "bert-worker-2"])
    for pod in ("bert-worker-0", "bert-worker-1", "bert-worker-2"):
        set_ = {name: value for name, value in world.env[pod].items() if name.startswith(("PET_", "PYTHON"))}
        assert set_ == {
            "PYTHONUNBUFFERED": "1",
            "PET_RDZV_ENDPOINT": "bert-worker-0:29400",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ID": "bert",
            "PET_RDZV_CONF": "last_call_timeout=20,join_timeout=60",
            "PET_NNODES": "2:3",
            "PET_NPROC_PER_NODE": "1",
            "PET_MAX_RESTARTS": "3",
        }
        assert policy()["podSelector"]["matchLabels"].items() <= world.labels[pod].items()


@pytest.mark.contract("PE-41")
async def test_the_name_that_is_the_endpoint_has_a_headless_service_of_its_pod(world, folder):
    """PE-41: it resolves to worker 0, and so does each other worker's name to its own."""
    await world.wait_for_file(folder / "round-1-of-3")
    for pod in ("bert-worker-0", "bert-worker-1", "bert-worker-2"):
        service = await world.api.call("GET", f"{SERVICES}/{pod}")
        assert service["spec"]["clusterIP"] == "None"
        chosen = [
            each for each, labels in world.labels.items() if service["spec"]["selector"].items() <= labels.items()
        ]
        assert chosen == [pod]


async def test_a_worker_that_is_evicted_drains_with_143_and_its_new_pod_joins(world, folder):
    await world.wait_for_file(folder / "round-1-of-3")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "bert-worker-1"}}
    await world.api.call("POST", f"{PODS}/bert-worker-1/eviction", eviction)
    await world.until(lambda: len(world.uids["bert-worker-1"]) == 2)
    assert world.codes["bert-worker-1"] == [143]
    await world.wait_for_file(folder / "round-3-of-3", ["bert-worker-0", "bert-worker-1"])
    assert (folder / "round-2-of-2").exists()
    assert not await world.conditions("bert") & {"Succeeded", "Failed"}


async def test_a_worker_that_scaling_takes_away_drains_and_the_job_goes_on(world, folder):
    await world.wait_for_file(folder / "round-3-of-3")
    fewer = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}}
    await world.api.call("PATCH", f"{JOBS}/bert", fewer, "application/merge-patch+json")
    await world.until(lambda: world.codes["bert-worker-2"])
    assert world.codes["bert-worker-2"] == [143]
    await world.wait_for_file(folder / "round-4-of-2", ["bert-worker-0", "bert-worker-1"])
    assert not await world.conditions("bert") & {"Succeeded", "Failed"}


@pytest.mark.contract("DL-107")
async def test_kubectl_logs_has_the_addresses_by_rank_of_each_round(module_plane, world, folder):
    await world.wait_for_file(folder / "round-4-of-2")
    argv = [cache.binary("kubectl"), "--kubeconfig", module_plane.kubeconfig, "logs", "bert-worker-0"]
    shown = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60)
    formed = re.findall(r" world_formed .*round=(\d+) members=(\d+) .*ips=\((.*?)\)", shown.stdout)
    assert [(round_, members) for round_, members, _ in formed] == [("1", "3"), ("2", "2"), ("3", "3"), ("4", "2")]
    assert [len(re.findall(r"'[0-9.]+'", ips)) for _, _, ips in formed] == [3, 2, 3, 2]


async def test_the_job_succeeds_when_all_are_done_and_not_before(world, folder):
    (folder / "enough").touch()
    await world.condition("bert", "Succeeded")
    assert (folder / "all-done").exists()  # by the last rank, a second after the other
    await world.until(lambda: world.codes["bert-worker-0"] and len(world.codes["bert-worker-1"]) == 2)
    assert (world.codes["bert-worker-0"], world.codes["bert-worker-1"]) == ([0], [143, 0])
    assert {pod: len(uids) for pod, uids in world.uids.items() if pod.startswith("bert")} == {
        "bert-worker-0": 1,
        "bert-worker-1": 2,
        "bert-worker-2": 1,
    }


async def record(world, job):
    """Read a job's Lease: its record, and its holder."""
    lease = await world.api.call("GET", f"{LEASES}/{job}")
    return unseal(lease["metadata"]["annotations"][ROUND].encode()), lease["spec"]["holderIdentity"]


async def test_its_lease_tells_the_last_round_and_who_decided(world):
    last, holder = await record(world, "bert")
    assert (last.run, last.round, last.coordinator) == ("bert", 4, holder)
    assert holder.startswith("bert-worker-0/")
    assert last.budget.total == 0  # workers that come and go are free


@pytest.mark.contract("DL-93", "DL-95")
async def test_a_job_whose_restarts_are_spent_fails_with_1_and_gets_no_new_pods(world):
    await world.condition("spent", "Failed")
    assert "Succeeded" not in await world.conditions("spent")
    assert (world.codes["spent-worker-0"], world.codes["spent-worker-1"]) == ([1], [1])
    assert len(world.uids["spent-worker-0"]) == len(world.uids["spent-worker-1"]) == 1
    last, _ = await record(world, "spent")
    assert (last.round, last.budget.used, last.budget.total) == (2, 1, 1)  # two tries, and the one restart


@pytest.mark.contract("PE-34")
async def test_an_empty_word_for_standalone_is_a_yes_where_torchrun_dies_of_it(world, folder):
    await world.condition("alone", "Succeeded")
    assert world.env["alone-worker-0"]["PET_STANDALONE"] in ("", None)
    assert (folder / "alone").exists()
    assert world.codes["alone-worker-0"] == [0]


async def test_a_shell_as_process_1_passes_on_the_sigterm_that_it_traps(world, folder):
    await world.wait_for_file(folder / "begun", ["wrapped-worker-0"])
    await world.api.call("DELETE", f"{PODS}/wrapped-worker-0")
    await world.condition("wrapped", "Succeeded")
    assert (folder / "saved-by-hook").exists()
    assert world.codes["wrapped-worker-0"] == [143, 0]


@pytest.mark.parametrize(
    ("job", "code", "pods"),
    [
        pytest.param("faulty", 138, 2, id="a node at fault: a new pod under ExitCode"),
        pytest.param("drained", 143, 2, id="drained: a new pod under ExitCode"),
        pytest.param("stays", 138, 1, id="a node at fault: the same pod again under OnFailure"),
    ],
)
async def test_what_becomes_of_a_pod(world, job, code, pods):
    await world.condition(job, "Succeeded")
    assert world.codes[f"{job}-worker-0"] == [code, 0]
    assert len(world.uids[f"{job}-worker-0"]) == pods


@pytest.mark.contract("PE-16")
@pytest.mark.parametrize(("job", "backend"), ETCD.items())
async def test_a_job_that_asks_for_etcd_is_taken_and_runs_without_its_server(world, folder, job, backend):
    """PE-16: as the operator has it accepted and written into the pod."""
    await world.condition(job, "Succeeded")
    env = world.env[f"{job}-worker-0"]
    assert (env["PET_RDZV_BACKEND"], env["PET_RDZV_ENDPOINT"]) == (backend, "etcd-service:2379")
    assert (folder / job).exists()
    assert world.codes[f"{job}-worker-0"] == [0]


@pytest.mark.contract("PE-03", "VE-21")
async def test_plain_torchrun_works_in_the_same_pods(world, folder):
    await world.wait_for_file(folder / "torch", ["torch-worker-0"])
    await world.condition("torch", "Succeeded")


@pytest.mark.parametrize(
    ("job", "ends", "failed"),
    [
        pytest.param("plain-drained", "Complete", 0, id="143 is nobody's fault: a new pod"),
        pytest.param("plain-faulty", "Complete", 1, id="138 counts: a new pod"),
        pytest.param("plain-spent", "Failed", 1, id="1 is the end of the job"),
    ],
)
async def test_what_becomes_of_an_indexed_job(world, folder, job, ends, failed):
    ended = await world.condition(job, ends, PLAIN_JOBS)
    assert ended["status"].get("failed", 0) == failed
    assert (folder / f"{job}-run").read_text().strip() == ended["metadata"]["uid"]


@pytest.mark.contract("DL-93", "DL-95")
async def test_spent_process_restarts_replace_the_pod_and_spent_pods_end_the_job(world, folder):
    """DL-92, DL-93, DL-95: two tries in one pod, then a new pod, as often as the job says; then Failed, and why."""
    await world.condition("again", "Complete", PLAIN_JOBS)
    assert len(set((folder / "again").read_text().split())) == 1, "both tries were in the first pod"
    assert len((folder / "again").read_text().split()) == 2
    ended = await world.condition("never", "Failed", PLAIN_JOBS)
    tries = (folder / "never").read_text().split()
    assert [tries.count(uid) for uid in dict.fromkeys(tries)] == [2, 2], "two pods, of two tries each"
    (failed,) = (each for each in ended["status"]["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
