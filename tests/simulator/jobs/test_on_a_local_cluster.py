"""Jobs on a whole local cluster: controllers, scheduler and kubelet together, gangs whole or not at all."""

import asyncio

import pytest
import pytest_asyncio

from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import generate_nodes
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.local_cluster import local_cluster

pytestmark = pytest.mark.asyncio
VOLCANO = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
BATCH = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


class Cluster:
    """A local cluster of two nodes with 8 GPUs each, and what is asked of it."""

    def __init__(self, made):
        self.made, self.api = made, made.api

    async def submit(self, name, replicas, minimum, gpus=8, script=None, **more):
        containers = [{"name": "m", "image": "i", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]
        if script:
            containers[0]["command"] = ["sh", "-c", script]
        template = {"spec": {"containers": containers, "restartPolicy": "Never"}}
        task = {"name": "w", "replicas": replicas, "minAvailable": minimum, "template": template}
        head = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}}
        await self.api.call("POST", VOLCANO, {**head, "spec": {"minAvailable": minimum, "tasks": [task], **more}})

    async def resize(self, name, replicas):
        change = [{"op": "replace", "path": "/spec/tasks/0/replicas", "value": replicas}]
        await self.api.call("PATCH", f"{VOLCANO}/{name}", change, "application/json-patch+json")

    async def until(self, path, condition):
        """Everything under a path, by name, once it is as asked for."""
        found = {}
        async with asyncio.timeout(20):
            async for word, change in self.api.changes(path):
                if word != "SYNCED":
                    obj = change.obj
                    found.pop(obj["metadata"]["name"], None)
                    if word != "DELETED":
                        found[obj["metadata"]["name"]] = obj
                if condition(found):
                    return found
        raise AssertionError("a watch does not end")

    async def running(self, *names):
        """Wait until exactly these pods run and no other is there."""
        return await self.until(
            PODS,
            lambda pods: (
                {name: pod["status"]["phase"] for name, pod in pods.items()} == dict.fromkeys(names, "Running")
            ),
        )


@pytest_asyncio.fixture
async def cluster(tmp_path):
    pace = Pace(pull_s=0.01, stop_s=0.01, restart_s=0.01)
    async with local_cluster(tmp_path / "kubeconfig", pace=pace, processes=tmp_path / "pods") as local:
        await local.add_nodes(generate_nodes(2), 8)
        await local.run_jobs()
        local.schedule(SchedulerSettings(backoff_s=(0.05, 0.2)))
        yield Cluster(local)


def phase(job):
    return ((job.get("status") or {}).get("state") or {}).get("phase")


def refusal(pod):
    """Why its scheduler does not place it."""
    conditions = (
        c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled" and c["status"] == "False"
    )
    return next((each["message"] for each in conditions), "")


async def test_an_elastic_job_grows_and_its_highest_pods_go_first(cluster):
    await cluster.submit("a", 2, 1, gpus=2)
    await cluster.running("a-w-0", "a-w-1")
    await cluster.resize("a", 4)
    await cluster.running("a-w-0", "a-w-1", "a-w-2", "a-w-3")
    await cluster.resize("a", 1)
    await cluster.running("a-w-0")
    (job,) = (await cluster.until(VOLCANO, lambda jobs: jobs["a"]["status"].get("running") == 1)).values()
    assert phase(job) == "Running"


async def test_a_gang_without_room_for_its_min_binds_nobody_and_says_why(cluster):
    await cluster.submit("b", 2, 2, gpus=5)
    await cluster.running("b-w-0", "b-w-1")
    await cluster.submit("c", 3, 3, gpus=2)  # six are left, but three on each node
    pods = await cluster.until(PODS, lambda pods: sum(bool(refusal(pod)) for pod in pods.values()) == 3)
    assert [name for name, pod in pods.items() if pod["spec"].get("nodeName")] == ["b-w-0", "b-w-1"]
    assert refusal(pods["c-w-0"]) == "0/2 nodes are available: none holds the pod."
    events = (await cluster.api.call("GET", "/api/v1/namespaces/default/events"))["items"]
    assert {event["reason"] for event in events} == {"FailedScheduling"}
    await cluster.api.call("DELETE", f"{VOLCANO}/b")
    await cluster.running("c-w-0", "c-w-1", "c-w-2")


async def test_a_gang_starts_when_its_last_pod_has_room(cluster):
    await cluster.submit("e", 3, 3)
    group = await cluster.until("/apis/scheduling.volcano.sh/v1beta1/podgroups", len)
    assert [each["status"]["phase"] for each in group.values()] == ["Pending"]  # 24 GPUs asked for, 16 there
    await cluster.made.add_nodes(generate_nodes(3)[2:], 8)
    await cluster.running("e-w-0", "e-w-1", "e-w-2")


async def test_a_job_of_processes_is_done_when_they_are(cluster):
    await cluster.submit("f", 2, 2, gpus=1, script="echo $VC_TASK_INDEX", plugins={"env": []})
    await cluster.until(VOLCANO, lambda jobs: jobs and phase(jobs["f"]) == "Completed")
    async with cluster.made.session.get(f"{cluster.made.url}{PODS}/f-w-1/log") as answer:
        assert await answer.text() == "1\n"


async def test_an_indexed_job_completes(cluster):
    spec = {"containers": [{"name": "m", "image": "i", "command": ["sh", "-c", "exit $JOB_COMPLETION_INDEX"]}]}
    job_spec = {"completions": 1, "parallelism": 1, "completionMode": "Indexed"}
    job = {"metadata": {"name": "g"}, "spec": {**job_spec, "template": {"spec": {**spec, "restartPolicy": "Never"}}}}
    await cluster.api.call("POST", BATCH, job)
    jobs = await cluster.until(BATCH, lambda jobs: jobs and jobs["g"].get("status", {}).get("completionTime"))
    assert jobs["g"]["status"]["completedIndexes"] == "0"
