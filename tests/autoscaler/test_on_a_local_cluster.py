"""The autoscaler as a program on an embedded cluster: Volcano Jobs lend, give back, and grow again."""

import asyncio
import json
import signal

import pytest
import pytest_asyncio

from tests.autoscaler.local_cluster import JOBS, LEASES, PODS, local_cluster_with_jobs
from turnout.jobs.kinds.registry import KINDS

pytestmark = pytest.mark.asyncio

UNREAD = (
    "is left as it is: annotation turnout.dev/scaling-curve is '٣:1': "
    "it must be at most 64 pairs workers:number, such as 1:1,2:1.9"
)


@pytest_asyncio.fixture
async def cluster(tmp_path):
    async with local_cluster_with_jobs(tmp_path) as local:
        yield local


async def test_a_job_grows_gives_back_at_once_and_grows_again_after_its_cooldown(cluster):
    await cluster.autoscaler("--act", "--cooldown-s", "1", "--restart-s", "0")
    await cluster.submit("a", 2, 8)
    await cluster.until(a=8)
    await cluster.submit("b", 3)
    await cluster.until(a=5, b=3)
    await cluster.told("a", "MakesRoom", "8 to 5 workers: 3 workers leave for VolcanoJob/default/b")
    await cluster.api.call("DELETE", f"{JOBS}/b")
    await cluster.until(a=8)


@pytest.mark.slow
async def test_an_unbindable_job_takes_nothing_and_unused_room_is_given_back(cluster):
    await cluster.autoscaler("--act", "--restart-s", "0", "--schedulers", "volcano,default-scheduler,asleep")
    await cluster.submit("a", 2, 8)
    await cluster.until(a=8)
    container = {"resources": {"limits": {"nvidia.com/gpu": "3"}}, "name": "m", "image": "i"}
    for name, more in (("gated", {"schedulingGates": [{"name": "hold"}]}), ("nobody", {"schedulerName": "nobody"})):
        raw_pod = {"metadata": {"name": name}, "spec": {"containers": [container], **more}}
        await cluster.api.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **raw_pod})
        await cluster.says(f"pod {name} waits")
    await cluster.until_phases({("a", "Running"): 8, ("gated", "Pending"): 1, ("nobody", "Pending"): 1})
    raw_pod = {"metadata": {"name": "ghost"}, "spec": {"containers": [container], "schedulerName": "asleep"}}
    await cluster.api.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **raw_pod})
    waiting = {(name, "Pending"): 1 for name in ("gated", "nobody", "ghost")}
    await cluster.until_phases({("a", "Running"): 5, **waiting})
    await cluster.until_phases({("a", "Running"): 8, **waiting})  # its cooldown is ten minutes


@pytest.mark.slow
@pytest.mark.contract("VE-35")
async def test_nobody_leaves_for_one_that_would_not_fit_even_then(cluster):
    await cluster.autoscaler("--act")
    await cluster.submit("a", 6, 8)
    await cluster.until(a=8)
    await cluster.submit("b", 3)  # five are not to be had
    await cluster.submit("c", 2)
    await cluster.until(a=6, c=2)
    assert (await cluster.api.call("GET", f"{JOBS}/b"))["status"]["pending"] == 0


@pytest.mark.contract("VE-18")
async def test_the_scheduler_sees_min_as_min_available_and_max_as_its_pods(cluster):
    await cluster.submit("a", 2, 10, size=10)  # eight GPUs are there
    await cluster.until_phases({("a", "Running"): 8, ("a", "Pending"): 2})
    (group,) = (await cluster.api.call("GET", "/apis/scheduling.volcano.sh/v1beta1/podgroups"))["items"]
    assert group["spec"]["minMember"] == 2
    job = KINDS["VolcanoJob"].read(await cluster.api.call("GET", f"{JOBS}/a"))
    assert (job.bounds.minimum, job.bounds.maximum, job.replicas) == (2, 10, 10)


async def test_without_being_told_to_act_it_only_looks(cluster):
    await cluster.autoscaler()
    await cluster.submit("a", 2, 8)
    await cluster.until(a=2)
    await cluster.says('"outcome": "DryRun"')
    assert (await cluster.api.call("GET", f"{JOBS}/a"))["spec"]["tasks"][0]["replicas"] == 2


async def test_a_size_set_by_hand_is_kept(cluster):
    await cluster.autoscaler("--act", "--cooldown-s", "0", "--restart-s", "0")
    await cluster.submit("a", 2, 8)
    await cluster.until(a=8)
    change = [{"op": "replace", "path": "/spec/tasks/0/replicas", "value": 5}]
    await cluster.api.call("PATCH", f"{JOBS}/a", change, "application/json-patch+json")
    await cluster.until(a=5)
    await cluster.submit("b", 5)
    await cluster.until(a=3, b=5)
    await cluster.api.call("DELETE", f"{JOBS}/b")
    await cluster.until(a=5)


@pytest.mark.slow
async def test_a_manifest_applied_again_and_again_leaves_a_job_growing_to_max(cluster):
    await cluster.autoscaler("--act", "--cooldown-s", "1", "--restart-s", "0")
    await cluster.submit("a", 2, 8)
    for time in range(20):
        if time % 5 == 0:
            await cluster.until(a=8)
        await cluster.apply("a", 2, 8)
    await cluster.until(a=8)
    assert "turnout.dev/wish-workers" not in (await cluster.api.call("GET", f"{JOBS}/a"))["metadata"]["annotations"]


@pytest.mark.slow
async def test_another_goes_on_where_a_leader_was_killed(cluster):
    first = await cluster.autoscaler("--act")
    await cluster.submit("a", 2, 4)
    await cluster.until(a=4)
    first.send_signal(signal.SIGKILL)
    await first.wait()
    await cluster.api.call("DELETE", f"{LEASES}/turnout-autoscaler")  # as if its time had passed
    await cluster.autoscaler("--act")
    await cluster.submit("b", 6)
    await cluster.until(a=2, b=6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"turnout.dev/min-workers": "8"}, id="that all it has is its min"),
        pytest.param({"turnout.dev/min-workers": "8", "turnout.dev/unit": "8"}, id="that it has one size only"),
        pytest.param({"turnout.dev/priority": "much"}, id="what nobody can read"),
    ],
)
async def test_what_is_written_while_nobody_leads_keeps_nothing_borrowed(cluster, words):
    first = await cluster.autoscaler("--act")
    await cluster.submit("a", 2, 8)
    await cluster.until(a=8)
    first.send_signal(signal.SIGKILL)
    await first.wait()
    change = {"metadata": {"annotations": words}}
    await cluster.api.call("PATCH", f"{JOBS}/a", change, "application/merge-patch+json")
    await cluster.api.call("DELETE", f"{LEASES}/turnout-autoscaler")  # as if its time had passed
    await cluster.autoscaler("--act")
    await cluster.submit("b", 6)
    await cluster.until(a=2, b=6)


async def test_a_job_that_cannot_be_read_is_told_once_and_left_alone(cluster):
    await cluster.autoscaler("--act")
    await cluster.submit("a", 2, "many")
    await cluster.says("max-workers is 'many'")
    await cluster.submit("b", 1, 4)
    await cluster.until(a=2, b=4)
    assert sum("job_unreadable" in line for line in cluster.said) == 1


async def test_what_a_tenant_writes_on_a_job_is_told_on_it_and_ends_nothing(cluster):
    autoscaler = await cluster.autoscaler("--act")
    await cluster.submit("a", 1, 3, notes={"turnout.dev/lease-transitions": "²"})
    await cluster.until(a=3)
    await cluster.submit("b", 1, 3, notes={"turnout.dev/scaling-curve": "٣:1"})
    await cluster.told("b", "AdapterRefused", UNREAD)
    await cluster.submit("c", 2, 4)
    await cluster.until(a=3, b=1, c=4)
    assert autoscaler.returncode is None


async def test_a_name_that_nobody_reads_is_told_once_on_the_job(cluster):
    await cluster.autoscaler("--act")
    await cluster.submit("a", 2, 4, notes={"turnout.dev/max-worker": "8", "turnout.dev/mine": "x"})
    message = "turnout.dev/max-worker (did you mean turnout.dev/max-workers?), turnout.dev/mine"
    await cluster.told("a", "UnknownAnnotation", f"unknown annotations {message}")
    await cluster.until(a=4)
    assert sum("annotation_unknown" in line for line in cluster.said) == 1


@pytest.mark.slow
async def test_its_page_tells_what_each_queue_has(cluster):
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"}}
    spec = {"spec": {"capability": {"nvidia.com/gpu": "7"}, "deserved": {"nvidia.com/gpu": "3"}}}
    path = "/apis/scheduling.volcano.sh/v1beta1/queues/default"
    await cluster.api.call("PATCH", path, {**head, **spec}, "application/merge-patch+json")
    await cluster.autoscaler("--act")
    await cluster.submit("a", 2, 8)
    await cluster.until(a=7)
    port = json.loads(next(line for line in cluster.said if "metrics_port" in line))["metrics_port"]
    expected_page = {
        'turnout_queue_gpus{queue="default",type="used"} 7.0',
        'turnout_queue_gpus{queue="default",type="limit"} 7.0',
        'turnout_queue_gpus{queue="default",type="available"} 0.0',
        'turnout_queue_worker_gpus{part="elastic",queue="default"} 5.0',
        'turnout_autoscaler_changes_total{direction="grow",outcome="Written",queue="default",reason="IdleRoom"} 1.0',
        'turnout_leading{component="autoscaler"} 1.0',
    }
    async with asyncio.timeout(20):
        while True:
            async with cluster.made.session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                if expected_page <= set((await answer.text()).splitlines()):
                    break
    async with cluster.made.session.get(f"http://127.0.0.1:{port}/readyz") as answer:
        assert answer.status == 200


@pytest.mark.slow
async def test_queues_have_a_page_and_pods_their_marks_where_an_admin_wants_it(cluster):
    await cluster.autoscaler("--act", "--mark-pods")
    await cluster.submit("a", 1, 3)
    await cluster.until(a=3)
    marks = {}
    async with asyncio.timeout(30):
        async for word, now in cluster.api.changes(PODS):
            if word != "SYNCED":
                notes = now.obj["metadata"].get("annotations") or {}
                marks[now.obj["metadata"]["name"]] = notes.get("volcano.sh/preemptable")
            if list(marks.values()).count("true") == 2 and "false" in marks.values():
                break
    assert {name[-1]: mark for name, mark in marks.items()} == {"0": "false", "1": "true", "2": "true"}
    async with asyncio.timeout(30):
        async for word, now in cluster.api.changes("/api/v1/namespaces/turnout-system/configmaps"):
            if word != "SYNCED" and now.obj["metadata"]["name"] == "turnout-queue-default":
                status = json.loads(now.obj["data"]["status"])
                break
    assert (status["elasticWorkers"], [line["job"] for line in status["lent"]]) == (2, ["VolcanoJob/default/a"])


async def test_it_ends_when_told(cluster):
    child = await cluster.autoscaler()
    await cluster.says("leading")
    child.terminate()
    assert await child.wait() == 0
