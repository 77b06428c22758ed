"""The kubectl of the tool modules drives a local cluster as it drives any cluster."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio

from hack.controlplane.errors import NotBuilt
from hack.controlplane.tools import cache
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import generate_nodes
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.local_cluster import local_cluster

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

MANIFESTS = Path(__file__).parents[2] / "deploy/manifests"

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers: [{name: main, image: "registry.example.com/web:1"}]
"""
SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: train}
spec:
  serviceName: train
  replicas: 2
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train}}
    spec: {containers: [{name: main, image: "registry.example.com/train:1"}]}
"""
JOBS = """
apiVersion: batch/v1
kind: Job
metadata: {name: indexed}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: i, command: [sh, -c, "test $JOB_COMPLETION_INDEX -lt 2"]}]
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: gang}
spec:
  minAvailable: 2
  plugins: {env: []}
  tasks:
    - name: w
      replicas: 2
      template:
        spec: {containers: [{name: main, image: i, command: [sh, -c, "echo $VC_TASK_INDEX"]}]}
"""


class Kubectl:
    """kubectl, with the local cluster's kubeconfig."""

    def __init__(self, binary, kubeconfig, cache):
        self.folder = kubeconfig.parent
        self.argv = [str(binary), "--kubeconfig", str(kubeconfig), "--cache-dir", str(cache)]

    async def __call__(self, *args, stdin=None, fails=False):
        """Run kubectl and return what it prints, or its complaint when it is to fail."""
        done = await asyncio.to_thread(
            subprocess.run, [*self.argv, *args], input=stdin, capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode != 0) is fails, done.stderr
        return done.stderr if fails else done.stdout

    async def ready(self, pod):
        """Wait until a pod runs, by kubectl's own means."""
        await self("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=20s")


@pytest_asyncio.fixture
async def kubectl(tmp_path):
    try:
        binary = cache.binary("kubectl")
    except NotBuilt as error:
        pytest.fail(str(error), pytrace=False)
    pace = Pace(pull_s=0.05, stop_s=0.05, backoff_s=(0.1, 0.1))
    async with local_cluster(tmp_path / "kubeconfig", pace=pace, processes=tmp_path / "pods") as local:
        await local.add_nodes(generate_nodes(3), 8)
        await local.run_jobs()
        local.schedule(SchedulerSettings())
        yield Kubectl(binary, tmp_path / "kubeconfig", tmp_path / "cache")


async def test_nodes_are_shown_and_cordoned(kubectl):
    shown = await kubectl("get", "nodes", "-o", "wide")
    assert re.findall(r"^(\S+)\s+Ready\s+<none>\s+\S+\s+\S+\s+(\S+)", shown, re.M) == [
        (f"gpu-000{n}", f"10.0.0.{n}") for n in (1, 2, 3)
    ]
    await kubectl("cordon", "gpu-0002")
    assert re.search(r"gpu-0002\s+Ready,SchedulingDisabled", await kubectl("get", "nodes"))
    assert "nvidia.com/gpu:  8" in re.sub(r": +", ":  ", await kubectl("describe", "node", "gpu-0001"))


async def test_a_pod_is_created_described_labelled_and_deleted(kubectl):
    assert "pod/web created" in await kubectl("create", "-f", "-", stdin=POD)
    assert "AlreadyExists" in await kubectl("create", "-f", "-", stdin=POD, fails=True)
    await kubectl.ready("web")
    assert re.search(
        r"web\s+1/1\s+Running\s+0\s+\d+s\s+10\.\S+\s+gpu-000\d", await kubectl("get", "pods", "-o", "wide")
    )
    await kubectl("label", "pod", "web", "tier=front")
    assert await kubectl("get", "pods", "-l", "tier=front", "-o", "name") == "pod/web\n"
    described = await kubectl("describe", "pod", "web")
    assert re.search(r"^Status:\s+Running$", described, re.M)
    assert "tier=front" in described
    assert "deleted" in await kubectl("delete", "pod", "web", "--timeout=20s")
    assert "No resources found" in (await kubectl("get", "pods", "--ignore-not-found") or "No resources found")
    assert '"web" not found' in await kubectl("get", "pod", "web", fails=True)


async def test_a_watch_tells_a_pods_life_in_rows(kubectl):
    watching = await asyncio.create_subprocess_exec(
        *kubectl.argv, "get", "pods", "-w", "--no-headers", stdout=asyncio.subprocess.PIPE
    )
    try:
        await asyncio.sleep(0)
        await kubectl("create", "-f", "-", stdin=POD)
        words = []
        async with asyncio.timeout(20):
            while "Running" not in words:
                line = (await watching.stdout.readline()).decode().split()
                assert line[0] == "web"
                words.append(line[2])
    finally:
        watching.kill()
        await watching.wait()
    assert words[0] in ("Pending", "ContainerCreating", "Running")


async def test_a_set_is_scaled(kubectl):
    await kubectl("create", "-f", "-", stdin=SET)
    assert "scaled" in await kubectl("scale", "statefulset/train", "--replicas=5")
    assert "Expected replicas to be 9" in await kubectl(
        "scale", "sts/train", "--replicas=1", "--current-replicas=9", fails=True
    )
    assert re.search(r"train\s+0/5", await kubectl("get", "all"))


async def test_an_edit_is_applied_by_patch_and_what_is_not_done_says_so(kubectl):
    await kubectl("create", "-f", "-", stdin=POD)
    await kubectl("patch", "pod", "web", "-p", '{"metadata": {"annotations": {"a": "b"}}}')
    assert await kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.annotations.a}") == "b"
    assert "does not support dry runs" in await kubectl("create", "-f", "-", "--dry-run=server", stdin=SET, fails=True)
    assert "send JSON" in await kubectl("create", "configmap", "c", "--from-literal=a=b", fails=True)


async def test_logs_are_shown_followed_and_looked_back_at(kubectl):
    script = "echo begins; read line < /shared/go; echo $line; exit 1"
    makes = {"name": "makes", "image": "i", "command": ["mkfifo", "/shared/go"]}
    work = [{"name": "work", "mountPath": "/shared"}]
    spec = {
        "restartPolicy": "OnFailure",
        "volumes": [{"name": "work", "emptyDir": {}}],
        "initContainers": [{**makes, "volumeMounts": work}],
        "containers": [{"name": "main", "image": "i", "command": ["sh", "-c", script], "volumeMounts": work}],
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "talks"}, "spec": spec}
    await kubectl("create", "-f", "-", stdin=json.dumps(body))
    await kubectl.ready("talks")
    following = await asyncio.create_subprocess_exec(
        *kubectl.argv, "logs", "-f", "talks", "-c", "main", stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(20):
        assert await following.stdout.readline() == b"begins\n"
        (fifo,) = kubectl.folder.glob("pods/*/volumes/work/go")
        await asyncio.to_thread(fifo.write_text, "hello\n")
        assert await following.communicate() == (b"hello\n", None)
    await kubectl("wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "pod/talks", "--timeout=20s")
    assert await kubectl("logs", "-p", "talks") == "begins\nhello\n"
    assert await kubectl("logs", "--tail=1", "talks") == "begins\n"
    assert "does not support logs with sinceSeconds" in await kubectl("logs", "--since=1h", "talks", fails=True)


async def test_a_job_of_each_kind_is_created_shown_and_done(kubectl):
    await kubectl("create", "-f", "-", stdin=JOBS)
    await kubectl("wait", "--for=condition=Complete", "job/indexed", "--timeout=20s")
    await kubectl("wait", "--for=jsonpath={.status.state.phase}=Completed", "vcjob/gang", "--timeout=20s")
    assert re.search(r"indexed\s+Complete\s+2/2", await kubectl("get", "jobs.batch"))
    assert re.search(r"gang\s+Completed\s+2\s+0", await kubectl("get", "vcjob"))
    assert await kubectl("logs", "gang-w-1") == "1\n"
    await kubectl("delete", "vcjob", "gang", "--timeout=20s")
    await kubectl("wait", "--for=delete", "pod/gang-w-1", "--timeout=20s")


@pytest.mark.slow
@pytest.mark.parametrize("part", [pytest.param("", id="extender"), "nominator", "autoscaler/act", "controllers"])
async def test_the_manifests_apply_and_go_again(kubectl, part):
    """Roles, policies and network rules are kept and served; here they have no effect."""
    folder = str(MANIFESTS / part)
    await kubectl("apply", "-f", str(MANIFESTS / "namespace.yaml"))
    first = await kubectl("apply", "-k", folder)
    assert "created" in first
    second_output = (await kubectl("apply", "-k", folder)).splitlines()
    changed = [line for line in second_output if not line.endswith("unchanged")]
    # kubectl replaces the selector of a PodDisruptionBudget each time.
    assert [line for line in changed if "poddisruptionbudget" not in line] == []
    assert (await kubectl("delete", "-k", folder)).count(" deleted") == first.count(" created")
    assert "turnout-system" in await kubectl("get", "namespaces")


async def test_a_list_of_objects_is_applied_as_its_items(kubectl):
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": []}
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, item]})
    assert (await kubectl("apply", "-f", "-", stdin=text)).count("created") == 2
    assert "c" in await kubectl("get", "configmaps", "-o", "name")
