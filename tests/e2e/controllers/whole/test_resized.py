"""The autoscaler and our job controllers together: each kind is resized by its own path, and one with an HPA is not."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import yaml

from tests.controllers import elasticjobs
from tests.controllers.volcano import volcanojobs
from tests.e2e.autoscaler import lending
from tests.e2e.autoscaler.lending import AT_ONCE, PODS, elastic, start_around, start_autoscaler
from tests.e2e.controllers.installed import ROOT, install
from tests.kit import cluster

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]

CRDS = (
    "pytorchjobs.kubeflow.org",
    "elasticjobs.elastic.iml.github.io",
    "scaleplans.elastic.iml.github.io",
    "msjobs.mindspore.gitee.com",
    "volcano.sh/jobs.batch.volcano.sh",
)
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"nvidia.com/gpu": 1}}}
LARGE = {"torch": 3, "dl": 4, "ms": 2, "vc": 2}  # as large as they may be: with own all GPUs of the nodes
JOBS = tuple(LARGE)
METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]


def dlrover_job(name, workers, maximum):
    """An ElasticJob of workers with a GPU each."""
    raw_job = elasticjobs.job(elasticjobs.worker(workers, container=GPU), name=name)
    raw_job["metadata"] = {"name": name, "namespace": "default"}
    return elastic({key: each for key, each in raw_job.items() if key != "status"}, workers, maximum)


def dynamic_msjob(name, workers, maximum):
    """An MSJob of workers with a GPU each, whose Scheduler takes others in."""
    scheduler, worker = ({"name": "mindspore", "image": "any:1", **more} for more in ({}, GPU))
    roles = {
        "Scheduler": {"replicas": 1, "template": {"spec": {"containers": [scheduler]}}},
        "Worker": {"replicas": workers, "template": {"spec": {"containers": [worker]}}},
    }
    head = {"apiVersion": "mindspore.gitee.com/v1", "kind": "MSJob", "metadata": {"name": name}}
    return elastic({**head, "spec": {"enableDynamicWorker": True, "msReplicaSpecs": roles}}, workers, maximum)


def volcano_job(name, workers, maximum):
    """A Volcano Job of workers with a GPU each."""
    raw_job = volcanojobs.job(volcanojobs.task(replicas=workers, container=GPU), minAvailable=workers)
    return elastic({**raw_job, "metadata": {"name": name}}, workers, maximum)


def scaled_by_itself(name):
    """A PyTorchJob with metrics, for which an HPA is made."""
    raw_job = cluster.pytorch_job(name, 1, gpus=1, maximum=4)
    raw_job["spec"]["elasticPolicy"]["metrics"] = METRICS
    return raw_job


def workers(pods):
    """How many pods with a node each job has, and their numbers; None while one waits or goes."""
    living = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    living = [pod for pod in living if not {"master", "scheduler"} & set(pod["metadata"]["name"].split("-"))]
    if any(not pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp") for pod in living):
        return None
    found = {}
    for pod in living:
        name = pod["metadata"]["name"]
        job = "rigid" if name.startswith("rigid") else name.partition("-")[0]
        found.setdefault(job, []).append(int(name.rpartition("-")[2]) if job != "rigid" else 0)
    return {job: sorted(numbers) for job, numbers in found.items()}


async def until(api, true):
    """Wait until the workers are as they should be; they."""

    def pods_of_job(pods):
        found = workers(pods)
        return found if found is not None and true(Counter({job: len(each) for job, each in found.items()})) else None

    return await api.until(PODS, pods_of_job, 60.0)


@pytest.mark.contract("PE-48", "DL-94", "VE-17")
async def test_jobs_grow_into_idle_gpus_and_give_back_the_highest_index(stage):
    await stage.build(leaves=2, hosts_per_leaf=2, gpus=3)
    definitions = [yaml.safe_load((ROOT / f"deploy/crds/{each}.yaml").read_text()) for each in CRDS]
    await lending.install(stage, *definitions)
    start_around(stage)
    async with stage.plane.api() as api:
        await install(stage.plane, api, kinds="PyTorchJob,ElasticJob,MSJob,VolcanoJob")
        await stage.submit(cluster.pytorch_job("torch", 1, gpus=1, maximum=3), dlrover_job("dl", 1, 4))
        await stage.submit(dynamic_msjob("ms", 1, 2), volcano_job("vc", 1, 2), scaled_by_itself("own"))
        small = await until(api, lambda count: count == dict.fromkeys(JOBS, 1) | {"own": 1})
        assert small["own"] == [0]
        await asyncio.to_thread(start_autoscaler, stage, *AT_ONCE)
        grown = await until(api, lambda count: sum(count.values()) == 12)
        assert {job: len(numbers) for job, numbers in grown.items()} == {**LARGE, "own": 1}  # its HPA sizes own

        await stage.submit(cluster.indexed_job("rigid-a", 2, gpus=1))
        given = await until(api, lambda count: count["rigid"] == 2 and sum(count.values()) == 12)
        assert given["own"] == grown["own"]
        assert sum(len(given[job]) for job in JOBS) == 9
        await stage.submit(cluster.indexed_job("rigid-b", 5, gpus=1))
        minimum = await until(api, lambda count: count["rigid"] == 7 and sum(count.values()) == 12)
        for before, after in ((grown, given), (given, minimum)):
            for job in JOBS:
                assert after[job] == before[job][: len(after[job])], "the highest indices leave"
        assert {job: len(minimum[job]) for job in (*JOBS, "own")} == dict.fromkeys((*JOBS, "own"), 1)
        plans = await api.get("/apis/elastic.iml.github.io/v1alpha1/namespaces/default/scaleplans")
        assert {each["status"]["phase"] for each in plans["items"]} == {"Succeeded"}
