"""Objects that nobody can make sense of: each is its own trouble, and everybody else's pods and jobs run."""

import asyncio
import contextlib

import pytest

from turnout.kube import labels
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import generate_nodes
from turnout.simulator.cluster.runtime.clients import ApiError
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.local_cluster import local_cluster

pytestmark = pytest.mark.asyncio
PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
VOLCANO = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
KOORD_GROUPS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
SERVICES = "/api/v1/namespaces/default/services"
NODES = "/api/v1/nodes"
PACE = Pace(pull_s=0.0, stop_s=0.0, restart_s=0.0, backoff_s=(0.01, 0.02))

SQUARED = "\N{SUPERSCRIPT TWO}"  # str.isdigit() takes it, int() does not
DEEP = "[" * 10_000


def head(version, kind, **meta):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "odd", **meta}}


def pod(name="odd", notes=None, marks=None, owners=(), **spec):
    meta = {"name": name, "annotations": notes or {}, "labels": marks or {}, "ownerReferences": list(owners)}
    return {"metadata": meta, "spec": {"containers": [{"name": "m", "image": "i"}], **spec}}


def batch_job(spec, status=None):
    return {**head("batch/v1", "Job"), "spec": spec, **({"status": status} if status else {})}


def volcano_job(spec):
    return {**head("batch.volcano.sh/v1alpha1", "Job"), "spec": spec}


TEMPLATE = {"spec": {"containers": [{"name": "m", "image": "i"}], "restartPolicy": "Never"}}
INDEXED = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": TEMPLATE}
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "odd", "uid": "nobody"}
GROUP = head("scheduling.volcano.sh/v1beta1", "PodGroup")
KOORD_GROUP = head("scheduling.sigs.k8s.io/v1alpha1", "PodGroup")
ODD = [
    pytest.param(PODS, pod(notes={labels.JOB_INDEX: SQUARED}, owners=[OWNER]), id="an index that is no number"),
    pytest.param(PODS, pod(owners=[{"kind": "Job"}]), id="an owner without a uid"),
    pytest.param(PODS, pod(owners=["me"]), id="an owner that is a word"),
    pytest.param(PODS, pod(containers=[{}]), id="a container without a name"),
    pytest.param(PODS, pod(containers=[{"name": "m", "resources": {"requests": {"cpu": DEEP}}}]), id="a deep request"),
    pytest.param(PODS, pod(nodeName=5), id="a node that is a number"),
    pytest.param(PODS, pod(schedulerName=["volcano"]), id="a scheduler that is a list"),
    pytest.param(PODS, pod(priority="high"), id="a priority that is a word"),
    pytest.param(PODS, {"metadata": {"name": "odd"}, "spec": None}, id="a pod without a spec"),
    pytest.param(PODS, {"metadata": {"name": "odd"}}, id="a pod that is a name"),
    pytest.param(PODS, pod(terminationGracePeriodSeconds="soon", nodeName="n"), id="a grace that is a word"),
    pytest.param(JOBS, batch_job({**INDEXED, "parallelism": SQUARED}), id="a job with a parallelism that is no number"),
    pytest.param(JOBS, batch_job({**INDEXED, "backoffLimit": "few"}), id="a job with a limit that is no number"),
    pytest.param(JOBS, batch_job({**INDEXED, "activeDeadlineSeconds": "soon"}), id="a job with a deadline in words"),
    pytest.param(JOBS, batch_job({**INDEXED, "template": None}), id="a job without a template"),
    pytest.param(JOBS, batch_job(None), id="a job without a spec"),
    pytest.param(VOLCANO, volcano_job({"minAvailable": SQUARED, "tasks": [{"name": "w", "replicas": 1}]}), id="a min"),
    pytest.param(VOLCANO, volcano_job({"tasks": [5]}), id="a task that is a number"),
    pytest.param(VOLCANO, volcano_job({"tasks": "all"}), id="tasks that are a word"),
    pytest.param(GROUPS, {**GROUP, "spec": {"minMember": SQUARED}}, id="a group with a min that is no number"),
    pytest.param(GROUPS, {**GROUP, "spec": 5}, id="a group that is a number"),
    pytest.param(KOORD_GROUPS, {**KOORD_GROUP, "spec": None}, id="a group of nothing"),
    pytest.param(SERVICES, {**head("v1", "Service"), "spec": {"selector": "all"}}, id="a selector that is a word"),
    pytest.param(SERVICES, {**head("v1", "Service"), "spec": {"selector": {"app": 5}}}, id="a selector of a number"),
    pytest.param(NODES, {**head("v1", "Node"), "status": {"allocatable": {"cpu": SQUARED}}}, id="a node of no size"),
    pytest.param(NODES, {**head("v1", "Node"), "status": {"allocatable": [1]}}, id="a node that offers a list"),
]  # fmt: skip


async def run_honest(cluster):
    """Wait until a pod and a job of somebody else have run."""
    asks = {"limits": {"nvidia.com/gpu": "8"}}
    mine = {"name": "m", "image": "i", "command": ["true"], "resources": asks}
    await cluster.api.call("POST", PODS, pod("mine", containers=[mine]))
    await cluster.api.call("POST", JOBS, {**batch_job(INDEXED), "metadata": {"name": "job"}})
    left = {"mine", "job"}
    async for word, change in cluster.api.changes(PODS):
        now = change.obj if word != "SYNCED" else {}
        if (now.get("status") or {}).get("phase") in ("Running", "Succeeded"):
            left -= {name for name in left if now["metadata"]["name"].startswith(name)}
        if not left:
            return


@pytest.mark.parametrize(("path", "odd"), ODD)
@pytest.mark.parametrize("processes", [False, True], ids=["played", "with processes"])
async def test_an_odd_object_is_its_own_trouble_and_others_run(tmp_path, path, odd, processes):
    async with asyncio.timeout(20), local_cluster(pace=PACE, processes=tmp_path if processes else None) as local:
        await local.add_nodes(generate_nodes(2), 8)
        await local.run_jobs()
        local.schedule(SchedulerSettings(backoff_s=(0.01, 0.05)))
        with contextlib.suppress(ApiError):  # refused is as good
            await local.api.call("POST", path, odd)
        await run_honest(local)
        with contextlib.suppress(ApiError):
            await local.api.call("DELETE", f"{path}/odd")
        assert local.background.fault() == ""


@pytest.mark.parametrize("status", [
    pytest.param({"completedIndexes": f"0-{SQUARED}"}, id="indexes that are no numbers"),
    pytest.param({"startTime": "yesterday"}, id="a start in words"),
    pytest.param({"conditions": [5]}, id="a condition that is a number"),
    pytest.param({"succeeded": "all"}, id="a count in words"),
])  # fmt: skip
async def test_an_odd_status_of_a_job_is_its_own_trouble(status):
    async with asyncio.timeout(20), local_cluster(pace=PACE) as local:
        await local.add_nodes(generate_nodes(2), 8)
        await local.run_jobs()
        local.schedule(SchedulerSettings(backoff_s=(0.01, 0.05)))
        await local.api.call("POST", JOBS, batch_job({**INDEXED, "suspend": True}))
        with contextlib.suppress(ApiError):
            await local.api.call("PATCH", f"{JOBS}/odd/status", {"status": status}, "application/merge-patch+json")
        await run_honest(local)
        assert local.background.fault() == ""


@pytest.mark.parametrize(("owner", "missing"), [
    pytest.param("me", "apiVersion", id="a word"),
    pytest.param({"apiVersion": "v1", "kind": "Job", "name": "odd"}, "uid", id="without a uid"),
])  # fmt: skip
async def test_an_owner_that_is_not_whole_is_refused_as_by_kubernetes(owner, missing):
    async with local_cluster() as local:
        with pytest.raises(ApiError, match=rf"422 .*ownerReferences\[0\]\.{missing}: Required value"):
            await local.api.call("POST", PODS, pod(owners=[owner]))
