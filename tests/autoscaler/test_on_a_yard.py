"""The lender as a program on an embedded yard: Volcano Jobs lend, give back, and grow again."""

import asyncio
import json
import signal
import sys

import pytest
import pytest_asyncio

from simulator.yard.kubelet import Pace
from simulator.yard.nodes import places
from simulator.yard.shell.loop import Settings
from simulator.yard.shell.yard import yard

pytestmark = pytest.mark.asyncio
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/turnout-system/leases"


class Cluster:
    """A yard with a lender, and Volcano Jobs submitted to it."""

    def __init__(self, made, kubeconfig):
        self.made, self.api, self.kubeconfig = made, made.api, kubeconfig
        self.lenders, self.readers, self.said, self.news = [], [], [], asyncio.Condition()

    async def lender(self, *flags):
        """Start one more lender; what it says is kept."""
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "autoscaler",
                "--kubeconfig",
                str(self.kubeconfig),
                "--metrics-bind",
                "127.0.0.1:0",
            ),
            *flags,
            stderr=asyncio.subprocess.PIPE,
        )
        self.lenders.append(child)
        self.readers.append(asyncio.create_task(self._read(child.stderr)))
        return child

    async def _read(self, stream):
        async for line in stream:
            async with self.news:
                self.said.append(line.decode())
                self.news.notify_all()

    async def says(self, text):
        """Wait until a lender has said something."""
        async with asyncio.timeout(30), self.news:
            await self.news.wait_for(lambda: any(text in line for line in self.said))

    async def told(self, job, reason, message):
        """Wait for an Event on a job."""
        async with asyncio.timeout(30):
            async for word, now in self.api.changes("/api/v1/namespaces/default/events"):
                event = now.obj
                if word != "SYNCED" and (event["involvedObject"]["name"], event["reason"]) == (job, reason):
                    assert event["message"] == message
                    return

    async def end(self):
        """Nothing of it is left behind."""
        for child in self.lenders:
            if child.returncode is None:
                child.kill()
            await child.wait()
        await asyncio.gather(*self.readers)

    async def submit(self, name, least, most=None, size=None, gpus=1):
        limits = {"nvidia.com/gpu": str(gpus)}
        template = {"spec": {"containers": [{"name": "m", "image": "i", "resources": {"limits": limits}}]}}
        task = {"name": "w", "replicas": size or least, "minAvailable": least, "template": template}
        notes = {"turnout.dev/max-workers": str(most or least)}
        head = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
        meta = {"name": name, "annotations": notes}
        await self.api.call("POST", JOBS, {**head, "metadata": meta, "spec": {"minAvailable": least, "tasks": [task]}})

    async def until(self, **wanted):
        """Wait until exactly so many pods of each job run, and no other pod is there."""
        found, seen = {}, {}
        try:
            async with asyncio.timeout(30):
                async for word, now in self.api.changes(PODS):
                    if word != "SYNCED":
                        name = now.obj["metadata"]["name"]
                        found.pop(name, None)
                        if word != "DELETED":
                            found[name] = now.obj["status"]["phase"]
                    seen = {}
                    for name, phase in found.items():
                        key = name.split("-")[0], phase
                        seen[key] = seen.get(key, 0) + 1
                    if seen == {(name, "Running"): count for name, count in wanted.items() if count}:
                        return
        except TimeoutError:
            raise AssertionError(f"{seen}, not {wanted}\n{''.join(self.said)}") from None


@pytest_asyncio.fixture
async def cluster(tmp_path):
    config = tmp_path / "kubeconfig"
    async with yard(config, pace=Pace(pull_s=0.01, stop_s=0.01)) as made:
        await made.add_nodes(places(2), 4)
        await made.run_jobs()
        made.schedule(Settings(backoff_s=(0.05, 0.2)))
        await made.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "turnout-system"}})
        told = Cluster(made, config)
        try:
            yield told
        finally:
            await told.end()


async def test_a_job_grows_gives_back_at_once_and_grows_again_after_its_cooldown(cluster):
    await cluster.lender("--act", "--cooldown-s", "1", "--restart-s", "0")
    await cluster.submit("a", 2, 8)
    await cluster.until(a=8)
    await cluster.submit("b", 3)
    await cluster.until(a=5, b=3)
    await cluster.told("a", "MakesRoom", "8 to 5 workers: 3 workers leave for VolcanoJob/default/b")
    await cluster.api.call("DELETE", f"{JOBS}/b")
    await cluster.until(a=8)


async def test_nobody_leaves_for_one_that_would_not_fit_even_then(cluster):
    await cluster.lender("--act")
    await cluster.submit("a", 6, 8)
    await cluster.until(a=8)
    await cluster.submit("b", 3)  # five are not to be had
    await cluster.submit("c", 2)
    await cluster.until(a=6, c=2)
    assert (await cluster.api.call("GET", f"{JOBS}/b"))["status"]["pending"] == 0


async def test_without_being_told_to_act_it_only_looks(cluster):
    await cluster.lender()
    await cluster.submit("a", 2, 8)
    await cluster.until(a=2)
    await cluster.says('"outcome": "DryRun"')
    assert (await cluster.api.call("GET", f"{JOBS}/a"))["spec"]["tasks"][0]["replicas"] == 2


async def test_a_size_set_by_hand_is_kept(cluster):
    await cluster.lender("--act", "--cooldown-s", "0", "--restart-s", "0")
    await cluster.submit("a", 2, 8)
    await cluster.until(a=8)
    change = [{"op": "replace", "path": "/spec/tasks/0/replicas", "value": 5}]
    await cluster.api.call("PATCH", f"{JOBS}/a", change, "application/json-patch+json")
    await cluster.until(a=5)
    await cluster.submit("b", 5)
    await cluster.until(a=3, b=5)
    await cluster.api.call("DELETE", f"{JOBS}/b")
    await cluster.until(a=5)


async def test_another_goes_on_where_a_leader_was_killed(cluster):
    first = await cluster.lender("--act")
    await cluster.submit("a", 2, 4)
    await cluster.until(a=4)
    first.send_signal(signal.SIGKILL)
    await first.wait()
    await cluster.api.call("DELETE", f"{LEASES}/turnout-autoscaler")  # as if its time had passed
    await cluster.lender("--act")
    await cluster.submit("b", 6)
    await cluster.until(a=2, b=6)


async def test_a_job_that_cannot_be_read_is_told_once_and_left_alone(cluster):
    await cluster.lender("--act")
    await cluster.submit("a", 2, "many")
    await cluster.says("max-workers is 'many'")
    await cluster.submit("b", 1, 4)
    await cluster.until(a=2, b=4)
    assert sum("job_unreadable" in line for line in cluster.said) == 1


async def test_its_page_tells_what_each_queue_has(cluster):
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"}}
    spec = {"spec": {"capability": {"nvidia.com/gpu": "7"}, "deserved": {"nvidia.com/gpu": "3"}}}
    path = "/apis/scheduling.volcano.sh/v1beta1/queues/default"
    await cluster.api.call("PATCH", path, {**head, **spec}, "application/merge-patch+json")
    await cluster.lender("--act")
    await cluster.submit("a", 2, 8)
    await cluster.until(a=7)
    port = json.loads(next(line for line in cluster.said if "metrics_port" in line))["metrics_port"]
    wanted = {
        'turnout_queue_gpus{queue="default",what="used"} 7.0',
        'turnout_queue_gpus{queue="default",what="limit"} 7.0',
        'turnout_queue_gpus{queue="default",what="free"} 0.0',
        'turnout_queue_worker_gpus{part="elastic",queue="default"} 5.0',
        'turnout_lender_changes_total{direction="grow",outcome="Written",queue="default",reason="IdleRoom"} 1.0',
        "turnout_lender_leading 1.0",
    }
    async with asyncio.timeout(20):
        while True:
            async with cluster.made.session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                if wanted <= set((await answer.text()).splitlines()):
                    break
    async with cluster.made.session.get(f"http://127.0.0.1:{port}/readyz") as answer:
        assert answer.status == 200


async def test_a_queue_has_its_page_and_pods_their_marks_where_an_admin_wants_them(cluster):
    await cluster.lender("--act", "--mark-pods")
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
    child = await cluster.lender()
    await cluster.says("leading")
    child.terminate()
    assert await child.wait() == 0
