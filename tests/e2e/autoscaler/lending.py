"""Helpers that end-to-end tests of the autoscaler share: elastic jobs, autoscaler processes, their logs, and waits."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter

from hack.controlplane.errors import ApiError
from hack.controlplane.plane import free_ports
from turnout.kube import labels

GPU = "nvidia.com/gpu"
BATCH, KUBEFLOW = "/apis/batch/v1", "/apis/kubeflow.org/v1"
JOBS = f"{BATCH}/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/turnout-autoscaler"
AT_ONCE = ("--act", "--cooldown-s", "1", "--restart-s", "0")  # an autoscaler that acts, and grows again within a story
HOLD = "turnout.dev/test-holds"  # keeps a pod that was told to go until a story lets go of it
DECISIONS = "turnout_autoscaler_decide_seconds_count"
_OVER = ("Succeeded", "Failed")


def elastic(raw_job, minimum, maximum, **notes):
    """Let a job be as small and as large as its annotations say."""
    annotations = {labels.MIN_WORKERS: str(minimum), labels.MAX_WORKERS: str(maximum), **notes}
    raw_job["metadata"].setdefault("annotations", {}).update(annotations)
    return raw_job


def slow_to_go(raw_job):
    """Let an Indexed Job's pods stay, on their way out, until `let_go`."""
    raw_job["spec"]["template"]["metadata"]["finalizers"] = [HOLD]
    return raw_job


def start_autoscaler(stage, *flags, name="autoscaler"):
    """Start an autoscaler as a process and wait until it has seen everything."""
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "turnout.autoscaler", "--kubeconfig", str(stage.plane.kubeconfig)]
    argv += ["--lease", "default/turnout-autoscaler", "--metrics-bind", f"127.0.0.1:{port}", *flags]
    stage.plane.start_program(name, argv, f"http://127.0.0.1:{port}/readyz")
    stage.health[name] = port


def start_around(stage):
    """Start what a story of the autoscaler needs beside it: our extender, a scheduler, the Job controller."""
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_controller_manager()


def log_lines(stage, event, name="autoscaler"):
    """Read what an autoscaler has logged under one event name, as objects."""
    lines = [line for line in stage.plane.logs(name).splitlines() if line.startswith("{")]
    return [line for line in map(json.loads, lines) if line["event"] == event]


def written_resizes(stage, name="autoscaler"):
    """The changes that an autoscaler has written: (job, size before, size after)."""
    return [
        (line["job"].rsplit("/", 1)[1], line["workers_before"], line["workers"])
        for line in log_lines(stage, "resized", name)
    ]


def leader(stage, names):
    """Which of these autoscalers holds the Lease, None for none of them."""
    holder = stage.plane.request("GET", LEASE)["spec"].get("holderIdentity") or ""
    return next((name for name in names if f"-{stage.plane.pid(name)}-" in holder), None)


def signal_to(stage, name, number):
    """Send a signal to a program of the story."""
    os.kill(stage.plane.pid(name), number)


async def runs(stage, within_s=60.0, **count_by_job):
    """Wait until exactly so many pods of each job have a node and no other pod is there; where they are, by pod."""

    def pods_on_nodes(pods):
        living = [pod for pod in pods if pod["status"].get("phase") not in _OVER]
        if any(not pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp") for pod in living):
            return None
        count = Counter(job_of(pod) for pod in living)
        return count == count_by_job and {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in living}

    async with stage.plane.api() as api:
        try:
            return await api.until(PODS, pods_on_nodes, within_s)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{_last_words(stage)}") from None


def _last_words(stage, lines=25):
    """Give the last decisions and writes of each autoscaler."""
    all_lines = [line for name in stage.health for line in stage.plane.logs(name).splitlines()]
    return "\n".join([line[:400] for line in all_lines if '"logger": "turnout.autoscaler"' in line][-lines:])


def job_of(pod):
    """The job that a pod belongs to."""
    marks = pod["metadata"].get("labels") or {}
    return marks.get(labels.VOLCANO_JOB) or marks.get(labels.TRAINING_JOB) or marks.get("job-name")


def pods_bound(name, count):
    """Make a condition on pods: `count` pods of job `name` have a node, whatever else runs. Then gives {pod: uid}."""

    def pods_on_nodes(pods):
        mine = [pod for pod in pods if job_of(pod) == name and pod["spec"].get("nodeName")]
        mine = [pod for pod in mine if not pod["metadata"].get("deletionTimestamp")]
        return len(mine) == count and {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in mine}

    return pods_on_nodes


def sized(name, size):
    """Make a condition on Indexed Jobs: one has this size. It then gives that job."""
    return lambda jobs: next(
        (job for job in jobs if job["metadata"]["name"] == name and job["spec"]["parallelism"] == size), None
    )


async def let_go(api):
    """Let every pod go that was told to and is held, whatever else changes its finalizers meanwhile."""
    while held_pods := [
        pod["metadata"]
        for pod in await api.pods()
        if pod["metadata"].get("deletionTimestamp") and HOLD in pod["metadata"].get("finalizers", ())
    ]:
        for meta in held_pods:
            finalizers = [each for each in meta["finalizers"] if each != HOLD]
            change = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": finalizers}}
            try:
                await api.patch(f"{PODS}/{meta['name']}", change)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise


async def decided(stage, job, reason, name="autoscaler", within_s=90.0):
    """Wait until an autoscaler has decided so on a job."""
    try:
        await stage.eventually(
            lambda: any(
                line["job"].endswith(f"/{job}") and line["reason"] == reason
                for line in log_lines(stage, "decided", name)
            ),
            within_s,
        )
    except TimeoutError:
        raise AssertionError(f"{job} was never {reason}\n{_last_words(stage)}") from None


async def wait_for_decisions(stage, api, count, name="autoscaler"):
    """Let an autoscaler look so many times more: at each change of a node."""
    start = stage.metric(DECISIONS, name)
    async with asyncio.timeout(30):
        while (decisions := stage.metric(DECISIONS, name) - start) < count:
            await api.patch("/api/v1/nodes/node-000", {"metadata": {"annotations": {"poked": str(decisions)}}})


async def clear(stage, *collections):
    """Delete all jobs, and wait until their pods are gone, so that the next story on this plane begins anew."""
    async with stage.plane.api() as api:
        for path in (JOBS, *collections):
            for job in (await api.get(path))["items"]:
                await api.delete(f"{path}/{job['metadata']['name']}?propagationPolicy=Background")
        async with asyncio.timeout(40):
            while await api.pods():
                await let_go(api)


async def install(stage, *definitions):
    """Create CRDs and wait until their objects can be listed: what is not there yet, an autoscaler asks for rarely."""
    async with stage.plane.api() as api:
        await api.create_all(definitions)
    for each in definitions:
        spec = each["spec"]
        stored = next(version["name"] for version in spec["versions"] if version["storage"])
        await listed(stage, f"/apis/{spec['group']}/{stored}/{spec['names']['plural']}")


async def listed(stage, path):
    """Wait until a collection can be listed."""

    def answers():
        try:
            return stage.plane.request("GET", path)
        except ApiError as error:
            if error.status not in (404, 429):  # not known yet, and known but not ready
                raise
            return None

    await stage.eventually(answers, 30.0)
