"""`turnout local` from the outside: started, looked at, used and ended as a person does it."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hack.controlplane.tools import cache
from turnout.cli.local_cluster.daemon import STATE_FILE, ClusterRecord, process_start_ticks, running_cluster
from turnout.cli.local_cluster.serve import announce_until_stopped
from turnout.controllers.model import KUBEFLOW
from turnout.simulator.local_cluster import local_cluster

HERE = Path(__file__).parents[2]
MAP = "asw-1 psw-1 10.0.0.1\nasw-1 psw-1 10.0.0.2\nasw-2 psw-1 gpu-9\n"


@pytest.fixture
def turnout(tmp_path):
    """The command, in a state folder of its own; whatever it starts ends with the test."""

    def run(*args, code=0, home=""):
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / home), "PYTHONPATH": str(HERE)}
        done = subprocess.run(
            [sys.executable, "-m", "turnout.cli", *args],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    yield run
    run("local", "down")


def test_it_comes_up_tells_how_it_is_and_goes(turnout, tmp_path):
    output = turnout("local", "up", "--nodes", "3", "--gpus", "4")
    kubeconfig = tmp_path / "turnout/local/kubeconfig"
    assert f"export KUBECONFIG={kubeconfig}" in output
    assert "3 nodes, 4 GPUs each" in output
    assert kubeconfig.stat().st_mode & 0o077 == 0 or kubeconfig.parent.stat().st_mode & 0o077 == 0
    assert "runs already" in turnout("local", "up", code=1)
    status = turnout("local", "status")
    assert "3 of 3 ready" in status
    assert "extender  http://127.0.0.1:" in status
    assert "the local cluster is gone" in turnout("local", "down")
    assert "no local cluster is up" in turnout("local", "status", code=1)
    assert "no local cluster is up" in turnout("local", "down")


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: says}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: any
          command: [sh, -c, "echo $JOB_COMPLETION_INDEX on $(hostname)"]
          resources: {limits: {nvidia.com/gpu: 2}}
"""


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("flags", [(), ("--real",)], ids=["embedded", "real"])
def test_pods_are_processes_on_either_kind_of_api(turnout, tmp_path, flags):
    output = turnout("local", "up", "--nodes", "3", "--gpus", "2", "--processes", *flags)
    assert "run their commands as processes" in output
    assert ("on a real control plane" in output) is bool(flags)
    kubeconfig = tmp_path / "turnout/local/kubeconfig"

    def kubectl(*args, stdin=None):
        argv = [cache.binary("kubectl"), "--kubeconfig", kubeconfig, "--cache-dir", tmp_path / "cache", *args]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    kubectl("create", "-f", "-", stdin=JOB)
    kubectl("wait", "--for=condition=Complete", "job/says", "--timeout=40s")
    names = kubectl("get", "pods", "-o", "name", "-l", "job-name=says").split()
    assert sorted(kubectl("logs", name) for name in names) == ["0 on says-0\n", "1 on says-1\n"]
    assert "2 Succeeded; they run as processes" in turnout("local", "status")
    if flags:
        a_worker_of_a_job_is_read_by_its_rank(kubectl, turnout, kubeconfig, tmp_path)
    turnout("local", "down")
    assert not (tmp_path / "turnout/local/pods").exists() or not any((tmp_path / "turnout/local/pods").iterdir())


def a_worker_of_a_job_is_read_by_its_rank(kubectl, turnout, kubeconfig, folder):
    """`turnout logs`: the pod is made by hand, with the labels that the job controllers give it."""
    kubectl("apply", "-f", str(HERE / "deploy/crds/pytorchjobs.kubeflow.org.yaml"))
    kubectl("wait", "--for=condition=Established", "crd/pytorchjobs.kubeflow.org", "--timeout=20s")
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "bert"}}
    script = "echo rank one; [ -e again ] || { touch again; exit 1; }"
    container = {"name": "pytorch", "image": "i", "command": ["sh", "-c", script.replace("again", f"{folder}/again")]}
    template = {"spec": {"containers": [container]}}
    spec = {"pytorchReplicaSpecs": {"Worker": {"template": template}}}
    kubectl("create", "-f", "-", stdin=json.dumps({**job, "spec": spec}))
    labels = {KUBEFLOW.job: "bert", KUBEFLOW.role: "worker", KUBEFLOW.index: "1"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bert-worker-1", "labels": labels}}
    spec = {"restartPolicy": "OnFailure", "containers": [container]}
    kubectl("create", "-f", "-", stdin=json.dumps({**pod, "spec": spec}))
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/bert-worker-1", "--timeout=40s")
    where = ("--kubeconfig", str(kubeconfig))
    bert = ("PyTorchJob/default/bert", "--rank", "1", *where)
    assert turnout("logs", *bert) == "rank one\n"
    done = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    kubectl("patch", "pytorchjob", "bert", "--subresource=status", "--type=merge", "-p", json.dumps({"status": done}))
    assert turnout("logs", "-f", *bert) == "rank one\n"


def test_a_map_gives_the_nodes(turnout, tmp_path):
    (tmp_path / "map.txt").write_text(MAP)
    assert "A local cluster of 3 nodes" in turnout(
        "local", "up", "--fabric", str(tmp_path / "map.txt"), "--no-extender"
    )
    assert "extender  none" in turnout("local", "status")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("asw-1 psw-1\n", "map.txt:1:", id="a fault is told with its line"),
        pytest.param("", "names 0 hosts", id="an empty map gives no cluster"),
        pytest.param("asw-1 psw-1 GPU_9\n", "no node can be called 'GPU_9'", id="a host that cannot be a node"),
        pytest.param(None, "No such file", id="no file"),
    ],
)
def test_a_map_that_cannot_be_used_is_refused_before_anything_starts(turnout, tmp_path, text, says):
    if text is not None:
        (tmp_path / "map.txt").write_text(text)
    assert says in turnout("local", "up", "--fabric", str(tmp_path / "map.txt"), code=1)
    assert "no local cluster is up" in turnout("local", "status", code=1)


@pytest.mark.parametrize("flags", [("--nodes", "0"), ("--nodes", "many"), ("--gpus", "-1"), ("--port", "70000")])
def test_a_number_out_of_bounds_is_usage(turnout, flags):
    assert "is not a number from" in turnout("local", "up", *flags, code=2)


def test_a_port_that_is_taken_is_told(turnout):
    output = turnout("local", "up", "--nodes", "1", "--no-extender")
    port = output.split("http://127.0.0.1:")[1].split(";")[0]
    output = turnout("local", "up", "--nodes", "1", "--no-extender", "--port", port, code=1, home="other")
    assert f"cannot listen on port {port}: Address already in use" in output


async def fails():
    raise KeyError("bert")


async def check_record(file, record):
    """Run a local cluster that others can find, of which a part fails."""
    async with asyncio.timeout(60), local_cluster() as cluster:
        cluster.background.start(fails())
        await announce_until_stopped(cluster, file, record, asyncio.Event())


@pytest.mark.asyncio
async def test_a_local_cluster_of_which_a_part_fails_is_up_no_more_and_says_why(turnout, tmp_path):
    folder = tmp_path / "turnout/local"
    folder.mkdir(parents=True)
    with pytest.raises(KeyError):
        await check_record(
            folder / STATE_FILE,
            ClusterRecord(os.getpid(), process_start_ticks(os.getpid()), "http://127.0.0.1:9", 1, 8),
        )
    assert running_cluster(folder) is None
    status = await asyncio.to_thread(turnout, "local", "status", code=1)
    assert "the last one has failed: KeyError: 'bert'" in status
    assert "no local cluster is up" in await asyncio.to_thread(turnout, "local", "down")
