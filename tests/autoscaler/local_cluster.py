"""A local cluster with autoscalers on it, to which Volcano Jobs are submitted."""

import asyncio
import sys
from contextlib import asynccontextmanager

from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import generate_nodes
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.local_cluster import local_cluster

JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
WITHIN_S = 75  # what has not come by then does not come; a busy machine takes 30
LEASES = "/apis/coordination.k8s.io/v1/namespaces/turnout-system/leases"


def manifest(name, minimum, maximum=None, size=None, gpus=1, notes=None):
    """A Volcano Job of one task, its defaults written out: its webhook lets nothing but sizes change."""
    requests = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "m", "image": "i", "resources": {"limits": requests, "requests": requests}}
    template = {"spec": {"containers": [container], "restartPolicy": "OnFailure"}}
    task = {"name": "w", "replicas": size or minimum, "minAvailable": minimum, "template": template}
    meta = {"name": name, "annotations": {"turnout.dev/max-workers": str(maximum or minimum), **(notes or {})}}
    head = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": meta}
    return {**head, "spec": {"minAvailable": minimum, "tasks": [task]}}


class Cluster:
    """A local cluster with an autoscaler, and Volcano Jobs submitted to it."""

    def __init__(self, local, kubeconfig):
        self.made, self.api, self.kubeconfig = local, local.api, kubeconfig
        self.autoscalers, self.readers, self.said, self.news = [], [], [], asyncio.Condition()

    async def autoscaler(self, *flags):
        """Start one more autoscaler; what it says is kept.

        Unless told otherwise a restart costs nothing: else a job that runs before it is first looked at, which is a
        matter of luck, would wait until idle room has settled.
        """
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "turnout.autoscaler",
                "--kubeconfig",
                str(self.kubeconfig),
                "--metrics-bind",
                "127.0.0.1:0",
                "--restart-s",
                "0",
            ),
            *flags,
            stderr=asyncio.subprocess.PIPE,
        )
        self.autoscalers.append(child)
        self.readers.append(asyncio.create_task(self._read(child.stderr)))
        return child

    async def _read(self, stream):
        async for line in stream:
            async with self.news:
                self.said.append(line.decode())
                self.news.notify_all()

    async def says(self, text):
        """Wait until an autoscaler has said something."""
        try:
            async with asyncio.timeout(WITHIN_S), self.news:
                await self.news.wait_for(lambda: any(text in line for line in self.said))
        except TimeoutError:
            raise AssertionError(f"nobody said {text}\n{''.join(self.said)}") from None

    async def told(self, job, reason, message):
        """Wait for an Event on a job. Its message ends with the command that explains the reason."""
        async with asyncio.timeout(WITHIN_S):
            async for word, now in self.api.changes("/api/v1/namespaces/default/events"):
                event = now.obj
                if word != "SYNCED" and (event["involvedObject"]["name"], event["reason"]) == (job, reason):
                    assert event["message"] == f"{message} (turnout explain {reason})"
                    return

    async def end(self):
        """Nothing of it is left behind."""
        for child in self.autoscalers:
            if child.returncode is None:
                child.kill()
            await child.wait()
        await asyncio.gather(*self.readers)

    async def submit(self, name, *size, **more):
        await self.api.call("POST", JOBS, manifest(name, *size, **more))

    async def apply(self, name, *size, **more):
        """Apply a manifest to what is there, as kubectl does it client side."""
        raw_job = manifest(name, *size, **more)
        await self.api.call("PATCH", f"{JOBS}/{name}", raw_job, "application/merge-patch+json")

    async def until(self, **sizes):
        """Wait until exactly so many pods of each job run, and no other pod is there."""
        await self.until_phases({(name, "Running"): count for name, count in sizes.items() if count})

    async def until_phases(self, phases):
        """Wait until the pods are exactly these. wanted: (job, phase) -> number."""
        found, phase_by_job = {}, {}
        try:
            async with asyncio.timeout(WITHIN_S):
                async for word, now in self.api.changes(PODS):
                    if word != "SYNCED":
                        name = now.obj["metadata"]["name"]
                        found.pop(name, None)
                        if word != "DELETED":
                            found[name] = now.obj["status"]["phase"]
                    phase_by_job = {}
                    for name, phase in found.items():
                        key = name.split("-")[0], phase
                        phase_by_job[key] = phase_by_job.get(key, 0) + 1
                    if phase_by_job == phases:
                        return
        except TimeoutError:
            raise AssertionError(f"{phase_by_job}, not {phases}\n{''.join(self.said)}") from None


@asynccontextmanager
async def local_cluster_with_jobs(folder):
    """Eight GPUs on two nodes, and nothing of it left behind. folder: where its kubeconfig goes."""
    config = folder / "kubeconfig"
    async with local_cluster(config, pace=Pace(pull_s=0.01, stop_s=0.01)) as local:
        await local.add_nodes(generate_nodes(2), 4)
        await local.run_jobs()
        local.schedule(SchedulerSettings(backoff_s=(0.05, 0.2)))
        await local.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "turnout-system"}})
        cluster = Cluster(local, config)
        try:
            yield cluster
        finally:
            await cluster.end()
