"""All together: real etcd, API server, scheduler and controllers, our extender and two autoscalers, pods as processes.

Eight nodes of two GPUs under two leaves, and two queues of eight GPUs each.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import yaml

from tests.e2e.autoscaler.lending import AT_ONCE, GPU, elastic, install, start_autoscaler
from tests.e2e.launcher.operated import EXAMPLES, FIRST, JOBS, PODS, conditions, example, given, plain
from tests.e2e.stage import MAP, Stage
from tests.e2e.whole_cluster.history import History
from tests.kit import cluster
from turnout.kube import labels
from turnout.simulator.cluster import kubeconfig
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.runtime.clients import ApiError
from turnout.simulator.local_cluster import attached_cluster

ROOT = Path(__file__).parents[3]
TRAIN_SCRIPT = Path(__file__).with_name("train_script.py")
DDP, FSDP = ROOT / "examples/ddp/elastic.py", ROOT / "examples/fsdp/elastic.py"
PACE = Pace(pull_s=0.01, stop_s=0.01, restart_s=0.01, backoff_s=(0.1, 0.2))
AUTOSCALERS = ("autoscaler", "other-autoscaler")
QUEUES = ("own", "other")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
STEP_S = 0.3  # most steps pass while pods come and go: faster ones would only keep the processors busy
AHEAD = "torch,torch._dynamo"  # an optimizer imports the second one at its first step: 1.8 s of CPU in each round
SAMPLES, BATCH = 500, 32  # of the examples
PYTHON = {"name": "PYTHONPATH", "value": str(ROOT)}
# The map itself: the local cluster's kubelet does not write files of the downward API again when an annotation comes.
MAP_DIR = {"name": "TURNOUT_MAP_DIR", "value": "/etc/map"}
HOST_IP = {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}


class World:
    """The running programs, the pods as they were seen, and the history of job A.

    pods: as last seen, by name. uids: of each name, the oldest first. The field `times` has (what, seconds) for the
    table.
    """

    def __init__(self, stage, api, find, folder):
        self.stage, self.plane, self.api, self._find = stage, stage.plane, api, find
        self.folder, self.history = folder, History(folder / "history")
        self.pods, self.uids, self.times = {}, defaultdict(list), []
        self.last_words = {}  # of pods that are on their way out, or have ended

    async def watch(self):
        """Write down how pods come, run and go, through restarts of the API server, until cancelled."""
        while True:
            with suppress(aiohttp.ClientError, ApiError, TimeoutError):
                async for word, change in self.api.changes(PODS):
                    if word != "SYNCED":
                        self._see(word, change.obj)
            await asyncio.sleep(0.2)

    def _see(self, word, pod):
        name, uid = pod["metadata"].get("name"), pod["metadata"]["uid"]
        if word == "DELETED":
            self.pods.pop(name, None)
            return
        self.pods[name] = pod
        if uid not in self.uids[name]:
            self.uids[name].append(uid)
        if pod["metadata"].get("deletionTimestamp"):
            self.last_words[name] = self.log(name) or self.last_words.get(name, "")

    async def until(self, condition, within_s=240.0):
        """Wait until what is asked of the history, or of the pods, is so; gives the answer."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if answer := condition(await asyncio.to_thread(self.history.look)):
                        return answer
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError("\n".join(self._tell())) from None

    def _tell(self):
        """Print what was seen last, for a person who looks for a fault."""
        for number, ranks in list(self.history.rounds().items())[-8:]:
            yield f"round {number}: " + ", ".join(f"{each.worker} {each.source}@{each.step}" for each in ranks)
        yield f"newest step: {self.history.newest()}"
        for name, pod in sorted(self.pods.items()):
            yield f"--- {name} on {pod['spec'].get('nodeName')}: {pod['status'].get('phase')}"
            yield from (each["message"] for each in pod["status"].get("conditions", ()) if each.get("message"))
            yield "\n".join(self.log(name).splitlines()[-16:])
        for name in self.stage.health:
            yield "\n".join(line[:300] for line in self.plane.logs(name).splitlines()[-12:])

    def log(self, pod):
        """Return what the container of a pod has written so far."""
        life = self._find("default", pod)
        file = life and life.log_of(life.pod["spec"]["containers"][0]["name"], False)
        return file.read_text() if file else ""

    async def trains(self, world, after_s=0.0, within_s=240.0):
        """Wait until a world of this size, formed after a moment, has made a step; gives that step's record."""
        return await self.until(lambda history: history.next_step(after_s, world), within_s)

    async def goes_on(self, steps=10, within_s=90.0):
        """Wait for some steps more."""
        newest_step = self.history.look().newest().step
        await self.until(lambda history: history.newest().step >= newest_step + steps, within_s)

    async def took(self, what, since_s, world=None):
        """Wait for the next step in a new world, and note how long it took. Gives that step's record."""
        step = await self.trains(world, since_s)
        self.times.append((what, step.at_s - since_s))
        return step

    def sources(self, step):
        """Return where the ranks of the round that made this step had their state from."""
        return {each.source for each in self.history.rounds()[step.round]}

    def note(self, what, since_s, at_s):
        """For the table. at_s: by the wall's clock, as a file has it."""
        self.times.append((what, at_s - time.time() + clock() - since_s))

    def print_times(self):
        """Print how long each part took."""
        print("\nfrom what happened to the next step, in seconds")
        for what, took_s in self.times:
            print(f"  {what:32} {took_s:6.1f}")

    async def fill(self):
        """Let a job of the other queue have the other leaf, so that idle nodes are those of the first queue."""
        await self.submit("c", job_c())
        await self.until(lambda _: sum(pod["status"].get("phase") == "Running" for pod in self.pods.values()) == 4)

    async def submit(self, name, job):
        """Create a job, and what goes with it."""
        async with self.plane.api() as api:
            await api.create_all([*given(name), job])

    async def condition(self, job, kind, path=JOBS, within_s=240.0):
        """Wait until a job has this condition. path: of its kind."""
        async with asyncio.timeout(within_s):
            while True:
                if kind in conditions(await self.api.call("GET", f"{path}/{job}")):
                    return
                await asyncio.sleep(0.1)

    def leaf(self, node):
        """Under which leaf a node hangs."""
        return self.stage.leaf[self.stage.ip_of[node]]

    async def lose(self, pod):
        """A pod is gone at once, with all its processes and its memory."""
        with suppress(ApiError):
            await self.api.call("DELETE", f"{PODS}/{pod}", {"gracePeriodSeconds": 0})

    async def lose_node(self, node):
        """A node is gone, with all pods on it and their memory."""
        await self.api.call("DELETE", f"/api/v1/nodes/{node}")
        for name, pod in list(self.pods.items()):
            if pod["spec"].get("nodeName") == node:
                await self.lose(name)


def clock():
    """Return the present time on the clock of the history."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@asynccontextmanager
async def whole_cluster(plane, folder, pods):
    """Run it all on a plane until the block ends; no autoscaler yet."""
    stage = Stage(plane, random.Random(7))
    nodes, stage.text = cluster.make_fabric(2, 4, stage.rng, 2)
    stage.ip_of = {each["metadata"]["name"]: each["status"]["addresses"][0]["address"] for each in nodes}
    stage.leaf = cluster.leaf_of(stage.text)
    await install(stage, cluster.plain_crd("scheduling.volcano.sh", "v1beta1", "Queue", "Cluster"))
    config = await asyncio.to_thread(plane.kubeconfig.read_bytes)
    (folder / "history").mkdir()
    async with attached_cluster(kubeconfig.read_kubeconfig(config)) as attached, asyncio.TaskGroup() as tasks:
        attached.addresses.update(stage.ip_of)
        runner = attached.run_pods(PACE, pods, config)
        await stage.submit(*nodes, cluster.config_map(stage.text))
        for queue in map(queue_of, QUEUES):
            await attached.api.call("POST", "/apis/scheduling.volcano.sh/v1beta1/queues", queue)
        await asyncio.to_thread(plane.start_training_operator)
        await asyncio.to_thread(stage.start_extender)
        await asyncio.to_thread(stage.start_scheduler)
        await asyncio.to_thread(plane.start_controller_manager)
        world = World(stage, attached.api, runner.find, folder)
        watching = tasks.create_task(world.watch())
        try:
            yield world
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


def queue_of(name):
    """A queue that may have eight GPUs."""
    spec = {"capability": {GPU: "8"}, "deserved": {GPU: "8"}}
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}
    return {**head, "spec": spec}


async def start_autoscalers(world):
    """Two of them, of which one leads."""
    for name in AUTOSCALERS:
        await asyncio.to_thread(start_autoscaler, world.stage, *AT_ONCE, name=name)


def job_a(folder):
    """Elastic, one to four workers of two GPUs each, in the first queue: one worker at first."""
    last_call = {"key": "last_call_timeout", "value": "1"}
    script = f"{TRAIN_SCRIPT} {DDP} {folder}/checkpoints {folder}/history {STEP_S}"
    command = f"{FIRST} turnout-run --preload {AHEAD} {script}"
    raw_job = example(
        "a", command, workers=4, minReplicas=1, rdzvConf=[last_call, {"key": "join_timeout", "value": "90"}]
    )
    raw_job["metadata"]["annotations"] = {labels.VOLCANO_QUEUE: "own"}
    raw_job["spec"]["runPolicy"] = {"schedulingPolicy": {"queue": "own", "minAvailable": 1}}
    worker = raw_job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["replicas"] = 1
    pod = worker["template"]["spec"]
    pod["volumes"].append({"name": "map", "configMap": {"name": MAP.split("/")[1]}})
    (container,) = pod["containers"]
    container["volumeMounts"].append({"name": "map", "mountPath": "/etc/map"})
    container["resources"] = {"limits": {GPU: 2}}
    container["env"] += [PYTHON, MAP_DIR, HOST_IP]
    return raw_job


def job_b(folder):
    """Rigid, two workers of two GPUs each, in the same queue: an Indexed Job that ends once it is told to."""
    raw_job = plain("b", f"touch {folder}/b-$JOB_COMPLETION_INDEX; until [ -e {folder}/b-ends ]; do sleep 0.2; done")
    raw_job["metadata"]["annotations"] = {labels.VOLCANO_QUEUE: "own"}
    raw_job["spec"] |= {"completions": 2, "parallelism": 2}
    (container,) = raw_job["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {GPU: 2}}
    return raw_job


def job_d(folder):
    """Return an Indexed Job of the first queue, like job A but without operator, Service and first worker by name."""
    raw_job = next(yaml.safe_load_all((EXAMPLES / "indexed-job.yaml").read_text().replace("example-job", "d")))
    elastic(raw_job, 1, 4)["metadata"]["annotations"][labels.VOLCANO_QUEUE] = "own"
    raw_job["spec"] |= {"completions": 1, "parallelism": 1}
    (container,) = raw_job["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {GPU: 2}}
    container["args"] = ["--rdzv-backend=turnout", "--nnodes=1:4", "--nproc-per-node=1", "--last-call-s=1"]
    container["args"] += [
        "--preload",
        AHEAD,
        *map(str, (TRAIN_SCRIPT, DDP, folder / "checkpoints", folder / "history", STEP_S)),
    ]
    container["env"].append(PYTHON)
    return raw_job


def job_c():
    """Rigid, of the second queue: it fills the second leaf, and computes nothing."""
    raw_job = cluster.indexed_job("c", 4, gpus=2)
    raw_job["metadata"]["annotations"] = {labels.VOLCANO_QUEUE: "other"}
    return raw_job
