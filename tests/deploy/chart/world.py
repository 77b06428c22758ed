"""A cluster into which helm installs: real control plane, Deployments of our programs run as processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

from hack.controlplane.tools import cache
from turnout.simulator.cluster import kubeconfig
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import places
from turnout.simulator.local_cluster import attached

CHART = Path(__file__).parents[3] / "deploy/charts/turnout"
PACE = Pace(pull_s=0.01, stop_s=0.01, restart_s=0.01, backoff_s=(0.1, 0.2))
# Pods of this cluster share one network, so each listens at its own address.
APART = ("--set", "bindAddress=$(POD_IP)")


class World:
    """The cluster, and helm on it."""

    def __init__(self, plane, made, folder):
        self.plane, self.api, self._made, self._folder = plane, made.api, made, folder

    async def helm(self, *arguments, code=0):
        """Run helm in the namespace of the test. Gives what it printed."""
        argv = [cache.binary("helm"), *arguments, "--namespace", "gpu-team"]
        env = {"HOME": str(self._folder), "KUBECONFIG": str(self.plane.kubeconfig), "PATH": os.environ["PATH"]}
        done = await asyncio.to_thread(
            subprocess.run, argv, capture_output=True, text=True, timeout=150, env=env, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr + await self.told()
        return done.stdout + done.stderr

    async def told(self):
        """Give what pods and their programs say, for the report of a failure."""
        pods = (await self.api.call("GET", "/api/v1/pods"))["items"]
        lines = []
        for pod in pods:
            meta, status = pod["metadata"], pod.get("status") or {}
            lines.append(f"{meta['name']}: {status.get('phase')} {status.get('containerStatuses')}")
            life = self.runner.find(meta["namespace"], meta["name"])
            for container in pod["spec"]["containers"] if life else ():
                file = life.log_of(container["name"], False) or life.log_of(container["name"], True)
                lines.append(file.read_text()[-1500:] if file else "no log")
        return "\n".join(["", *lines])

    async def get(self, path):
        return await self.api.call("GET", path)

    async def pods(self, component):
        """The pods of a program that run, as the API server has them."""
        label = f"app.kubernetes.io/name%3Dturnout-{component}"
        found = await self.get(f"/api/v1/namespaces/gpu-team/pods?labelSelector={label}")
        return [pod for pod in found["items"] if not pod["metadata"].get("deletionTimestamp")]

    async def until(self, seen, within_s=40.0):
        """Wait until an async question is answered with something true, and give it."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if answer := await seen():
                        return answer
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(await self.told()) from None


@asynccontextmanager
async def cluster(plane, folder, hosts=None):
    """Run the cluster until the block ends. hosts: its nodes, two without a map by default."""
    config = await asyncio.to_thread(plane.kubeconfig.read_bytes)
    async with attached(kubeconfig.read(config)) as made:
        await asyncio.to_thread(plane.start_scheduler)
        await asyncio.to_thread(plane.start_controller_manager)
        runner = made.run_pods(PACE, folder / "pods", config)
        await made.add_nodes(hosts or places(2), 8)
        world = World(plane, made, folder)
        world.runner = runner
        yield world
