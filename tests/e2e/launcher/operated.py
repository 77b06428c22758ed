"""A cluster whose pods are processes: a real API server, scheduler, training-operator and Job controller, our kubelet.

Jobs are those of deploy/examples/launcher, with scripts and sizes for this machine.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import yaml

from turnout.simulator.cluster import kubeconfig
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import generate_nodes
from turnout.simulator.local_cluster import attached_cluster
from turnout.simulator.processes.runtime.logs import HOST, PodLogs, endpoint

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "deploy/examples/launcher"
GIVEN = ROOT / "deploy/manifests/launcher"
JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
PLAIN_JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
PACE = Pace(pull_s=0.01, stop_s=0.01, restart_s=0.01, backoff_s=(0.1, 0.2))
NOBODY = {"automountServiceAccountToken": False, "serviceAccountName": "default"}
TOKEN = "5f0c" * 16
# Pods of a local cluster share one network, in which each could listen at the first worker's address.
# So each is told whether it is the first.
FIRST = 'case $POD_NAME in *-0) first=1;; *) first=0;; esac; PET_RDZV_CONF="$PET_RDZV_CONF,is_host=$first" exec '


class Operated:
    """The running operators, and what was seen of their pods, by pod name.

    uids: its incarnations, oldest first. codes: how its container has ended, each time. env, labels: as the operator
    has made them.
    """

    def __init__(self, api, logs):
        self.api, self._logs = api, logs
        self.uids, self.codes, self.env = defaultdict(list), defaultdict(list), {}
        self.labels = {}
        self._ends, self._news = set(), asyncio.Condition()

    async def watch_pods(self):
        """Write down how pods come and end, until cancelled."""
        async for word, now in self.api.changes(PODS):
            if word in ("ADDED", "MODIFIED"):
                self._see(now.obj)
                async with self._news:
                    self._news.notify_all()

    def _see(self, pod):
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if uid not in self.uids[name]:
            self.uids[name].append(uid)
            self.env[name] = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0].get("env", ())}
            self.labels[name] = pod["metadata"]["labels"]
        for status in pod["status"].get("containerStatuses", ()):
            runs = ((status["restartCount"] - 1, status.get("lastState")), (status["restartCount"], status["state"]))
            for run, state in runs:
                ended = (state or {}).get("terminated")
                if ended and (uid, run) not in self._ends:
                    self._ends.add((uid, run))
                    self.codes[name].append(ended["exitCode"])

    async def until(self, condition, within_s=120.0):
        """Wait until what was seen of the pods answers true."""
        async with asyncio.timeout(within_s), self._news:
            await self._news.wait_for(condition)

    async def condition(self, job, kind, path=JOBS, within_s=120.0):
        """Wait until a job has this condition; the job then."""
        async with asyncio.timeout(within_s):
            async for _, now in self.api.changes(path):
                if now.obj.get("metadata", {}).get("name") == job and kind in conditions(now.obj):
                    return now.obj
        raise AssertionError("a watch does not end")

    async def conditions(self, job):
        """Read the conditions that are true of a job now."""
        return conditions(await self.api.call("GET", f"{JOBS}/{job}"))

    def log(self, pod):
        """Read what the container of a pod has written so far."""
        file = self._logs("default", pod)
        return file.read_text() if file else ""

    async def wait_for_file(self, file, pods=(), within_s=120.0):
        """Wait until a script has left this file; what pods have written is told where it never does."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if await asyncio.to_thread(file.exists):
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"no {file.name}\n" + "\n".join(map(self.log, pods))) from None


def conditions(job):
    """Give the conditions that are true of a job."""
    return {each["type"] for each in (job.get("status") or {}).get("conditions", ()) if each["status"] == "True"}


@asynccontextmanager
async def operated(plane, folder, controlled=None):
    """Run it all on a plane until the block ends. controlled: starts what controls PyTorchJobs, training-operator."""
    config = await asyncio.to_thread(plane.kubeconfig.read_bytes)
    logs, pair = PodLogs(), plane.authority.server("kubelet", ("127.0.0.1",))
    async with (
        attached_cluster(kubeconfig.read_kubeconfig(config)) as cluster,
        endpoint(logs, plane.ca, pair.cert, pair.key) as logs_port,
        asyncio.TaskGroup() as tasks,
    ):
        await asyncio.to_thread(plane.start_scheduler)
        await (asyncio.to_thread(plane.start_training_operator) if controlled is None else controlled)
        await asyncio.to_thread(plane.start_controller_manager)
        runner = logs.runner = cluster.run_pods(PACE, folder, config)
        await cluster.add_nodes(generate_nodes(2), 8, (HOST, logs_port))

        def log(namespace, name):
            life = runner.find(namespace, name)
            return life and life.log_of(life.pod["spec"]["containers"][0]["name"], False)

        world = Operated(cluster.api, log)
        watching = tasks.create_task(world.watch_pods())
        try:
            yield world
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


def given(job):
    """Make what deploy/manifests/launcher makes for a job: its Secret with a token, its account and its Lease."""
    for file in ("job-token.yaml", "job.yaml"):
        text = (GIVEN / file).read_text().replace("example-job", job).replace("example-namespace", "default")
        for each in yaml.safe_load_all(text):
            if each["kind"] == "Secret":
                each["stringData"] = {"token": TOKEN}
            yield each


def example(job, command, *, workers, **policy):
    """The PyTorchJob of the examples under this name; each worker runs the command in a shell, one process each."""
    raw_job = next(yaml.safe_load_all((EXAMPLES / "pytorchjob.yaml").read_text().replace("example-job", job)))
    raw_job["spec"]["elasticPolicy"] |= {"minReplicas": min(workers, 2), "maxReplicas": workers, **policy}
    raw_job["spec"]["nprocPerNode"] = "1"
    worker = raw_job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["replicas"] = workers
    (container,) = worker["template"]["spec"]["containers"]
    container |= {"command": ["bash", "-c", command], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    return raw_job


def policy():
    """Read the NetworkPolicy beside the example, as it is for the job that is called bert."""
    _, network = yaml.safe_load_all((EXAMPLES / "pytorchjob.yaml").read_text().replace("example-job", "bert"))
    return network["spec"]


def bare(job, command, policy):
    """A PyTorchJob of one worker that runs a command of its own and knows nothing of us."""
    container = {"name": "pytorch", "image": "any:1", "command": ["sh", "-c", command]}
    pod = {**NOBODY, "containers": [container]}
    worker = {"replicas": 1, "restartPolicy": policy, "template": {"spec": pod}}
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": job}}
    return {**head, "spec": {"pytorchReplicaSpecs": {"Worker": worker}}}


def plain(job, command, backoff_limit=None):
    """The Indexed Job of the examples with one worker that runs a command of its own.

    backoff_limit: how many new pods it gets, whatever the code, in place of the policy of the examples.
    """
    raw_job = next(yaml.safe_load_all((EXAMPLES / "indexed-job.yaml").read_text().replace("example-job", job)))
    raw_job["spec"] |= {"completions": 1, "parallelism": 1}
    if backoff_limit is not None:
        del raw_job["spec"]["podFailurePolicy"]
        raw_job["spec"]["backoffLimit"] = backoff_limit
    pod = raw_job["spec"]["template"]["spec"]
    del pod["volumes"], pod["securityContext"]
    pod |= NOBODY
    (container,) = pod["containers"]
    del container["volumeMounts"], container["resources"], container["args"]
    container["command"] = ["sh", "-c", command]
    container["env"].append({"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}})
    return raw_job
