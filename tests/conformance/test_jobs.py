"""The local cluster's Job controller beside that of kube-controller-manager: the same job, pods and end."""

import asyncio
import ssl

import aiohttp
import pytest
import pytest_asyncio

from tests.conformance.sides import MERGE, Both, opened
from turnout.simulator.api.server.serve import serve
from turnout.simulator.cluster.runtime.clients import HttpClient
from turnout.simulator.cluster.runtime.controllers import Controllers

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
BATCH = "batch/v1"
INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(scope="module")
def real_jobs(module_plane):
    """A real API server with its Job controller and garbage collector."""
    module_plane.start_controller_manager(("job-controller", "garbage-collector-controller"))
    return module_plane


@pytest_asyncio.fixture
async def both(real_jobs, request):
    """The embedded API with the local cluster's controllers, and the real one."""
    namespace = f"j-{abs(hash(request.node.name)) % 10**8}"
    api = real_jobs.api()
    trust = ssl.create_default_context(cafile=str(api._ca))
    async with serve() as served, aiohttp.ClientSession() as session:
        controlling = asyncio.create_task(Controllers(HttpClient(session, served.url), (0.1, 0.1)).run())
        try:
            async with (
                opened(served.url, namespace) as embedded,
                opened(api.url, namespace, trust=trust, headers=api._headers) as real,
            ):
                yield Both(embedded, real)
        finally:
            controlling.cancel()
            await asyncio.gather(controlling, return_exceptions=True)


def job(size=3, **more):
    spec = {"containers": [{"name": "main", "image": "i:1"}], "restartPolicy": "Never"}
    job_spec = {"completions": size, "parallelism": size, "completionMode": "Indexed", **more}
    return {
        "metadata": {"name": "train"},
        "spec": {**job_spec, "template": {"metadata": {"labels": {"app": "t"}}, "spec": spec}},
    }


def index_of(pod):
    return int(pod["metadata"]["annotations"][INDEX])


async def create(side, **more):
    code, _ = await side.peek("POST", side.path("jobs", group=BATCH), job(**more))
    assert code == 201


async def resize(side, size):
    change = {"spec": {"completions": size, "parallelism": size}}
    await side.peek("PATCH", side.path("jobs", "train", group=BATCH), change, MERGE)


async def pods(side, *indexes, phase="Pending"):
    """Wait until exactly these indexes have a living pod of that phase; the pods."""

    def living(answer):
        return [
            p for p in answer["items"] if not p["metadata"].get("deletionTimestamp") and p["status"]["phase"] == phase
        ]

    async with asyncio.timeout(20):
        while True:
            _, answer = await side.peek("GET", side.path("pods"))
            found = sorted(living(answer), key=index_of)
            if [index_of(pod) for pod in found] == list(indexes):
                side.transcript.append(("PODS", phase, indexes))
                return found
            await asyncio.sleep(0.05)


async def end(side, pod, phase):
    """Do what a kubelet does when a pod has ended."""
    code = 0 if phase == "Succeeded" else 1
    ended = {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z", "startedAt": "2026-01-01T00:00:00Z"}
    container = {"name": "main", "image": "i:1", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": phase, "containerStatuses": [{**container, "state": {"terminated": ended}}]}
    await side.peek("PATCH", side.path("pods", pod["metadata"]["name"], "status"), {"status": status}, MERGE)


async def unfinished(side):
    """The pods that a job counts as active: neither ended nor being deleted."""
    _, answer = await side.peek("GET", side.path("pods"))
    living = [pod for pod in answer["items"] if not pod["metadata"].get("deletionTimestamp")]
    return [pod for pod in living if pod["status"]["phase"] in ("Pending", "Running")]


async def counted_with(side, *counts):
    """Wait until the job has these conditions and has counted the pods there are; its status."""
    async with asyncio.timeout(20):
        while True:
            _, answer = await side.peek("GET", side.path("jobs", "train", group=BATCH))
            status = answer["status"]
            found = [c["type"] for c in status.get("conditions", ()) if c["status"] == "True"]
            if found == list(counts) and (status.get("active") or 0) == len(await unfinished(side)):
                return status
            await asyncio.sleep(0.05)


async def conditions(side, *types, reason=""):
    """Wait until the job has these conditions and has counted the pods there are, and note what its status counts."""
    status = await counted_with(side, *types)
    last = status["conditions"][-1]
    assert not reason or last["reason"] == reason
    counted = {key: status.get(key) or 0 for key in ("active", "ready", "succeeded", "failed", "completedIndexes")}
    ended = "completionTime" in status
    side.transcript.append(("JOB", types, last["reason"], counted, ended, "startTime" in status))


async def test_each_index_gets_a_pod_of_its_own(both):
    async def story(side):
        await create(side)
        pod = (await pods(side, 0, 1, 2))[1]
        meta, spec = pod["metadata"], pod["spec"]
        (owner,) = meta["ownerReferences"]
        side.transcript.append(
            (
                side.common(meta["labels"]),
                meta["annotations"],
                meta["generateName"],
                {key: owner[key] for key in ("kind", "apiVersion", "name", "controller", "blockOwnerDeletion")},
                spec["hostname"],
                [variable["name"] for variable in spec["containers"][0]["env"]],
            )
        )

    await both.agree(story)


async def test_a_job_grows_shrinks_from_the_highest_and_completes(both):
    async def story(side):
        await create(side)
        await pods(side, 0, 1, 2)
        await resize(side, 5)
        await pods(side, 0, 1, 2, 3, 4)
        await resize(side, 2)
        for pod in await pods(side, 0, 1):
            await end(side, pod, "Succeeded")
        await conditions(side, "SuccessCriteriaMet", "Complete")

    await both.agree(story)


async def test_too_many_failures_fail_it(both):
    async def story(side):
        await create(side, backoffLimit=0)
        first, *_ = await pods(side, 0, 1, 2)
        await end(side, first, "Failed")
        await conditions(side, "FailureTarget", "Failed", reason="BackoffLimitExceeded")
        await pods(side)

    await both.agree(story)


async def test_a_failed_index_is_tried_again(both):
    async def story(side):
        await create(side, size=2)
        _, second = await pods(side, 0, 1)
        await end(side, second, "Failed")
        retried_pods = await pods(side, 0, 1)
        side.transcript.append(retried_pods[1]["metadata"]["name"] != second["metadata"]["name"])

    await both.agree(story)


async def test_a_job_is_suspended_and_resumed(both):
    async def story(side):
        await create(side)
        await pods(side, 0, 1, 2)
        await counted_with(side)  # the pods are there before the status that says since when the job runs
        path = side.path("jobs", "train", group=BATCH)
        await side.peek("PATCH", path, {"spec": {"suspend": True}}, MERGE)
        await pods(side)
        await conditions(side, "Suspended")
        await side.peek("PATCH", path, {"spec": {"suspend": False}}, MERGE)
        await pods(side, 0, 1, 2)
        await conditions(side)

    await both.agree(story)


async def test_its_pods_go_with_it(both):
    async def story(side):
        await create(side)
        await pods(side, 0, 1, 2)
        await side.peek("DELETE", side.path("jobs", "train", group=BATCH), {"propagationPolicy": "Background"})
        await pods(side)

    await both.agree(story)
