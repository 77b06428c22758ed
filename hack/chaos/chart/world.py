"""A cluster into which helm installs the chart: a real control plane, Deployments of our programs run as processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from hack.chaos.testbed.testbed import NoProgress
from hack.controlplane.plane import ControlPlane
from hack.controlplane.tools import cache
from turnout.simulator.cluster import kubeconfig
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import NodeSpec, generate_nodes
from turnout.simulator.cluster.runtime.clients import ApiClient
from turnout.simulator.local_cluster import attached_cluster
from turnout.simulator.processes.runtime.pod_runner import Runner

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy/charts/turnout"
PACE = Pace(pull_s=0.01, stop_s=0.01, restart_s=0.01, backoff_s=(0.1, 0.2))
# Pods of this cluster share one network, so each listens at its own address.
POD_IP_FLAG = ("--set", "bindAddress=$(POD_IP)")
_LAST_WORDS = 1_500  # characters of each log

Object = dict[str, Any]
Found = TypeVar("Found")


class World:
    """The cluster, and helm on it. folder: helm's home."""

    def __init__(self, plane: ControlPlane, api: ApiClient, runner: Runner, folder: Path) -> None:
        self.plane, self.api, self.runner, self._folder = plane, api, runner, folder

    async def helm(self, *arguments: str, code: int = 0) -> str:
        """Run helm in the release's namespace and return its output.

        code: expected exit code. Raises NoProgress with the state of the cluster for another code, and
        subprocess.TimeoutExpired after 150 s.
        """
        argv = [str(cache.binary("helm")), *arguments, "--namespace", "gpu-team"]
        env = {"HOME": str(self._folder), "KUBECONFIG": str(self.plane.kubeconfig), "PATH": os.environ["PATH"]}
        done = await asyncio.to_thread(_run, argv, env)
        if done.returncode != code:
            raise NoProgress(done.stdout + done.stderr + await self.describe_pods())
        return done.stdout + done.stderr

    async def describe_pods(self) -> str:
        """Return the status of all pods and the last lines of their logs, for an error message."""
        pods = (await self.api.call("GET", "/api/v1/pods"))["items"]
        lines = []
        for pod in pods:
            meta, status = pod["metadata"], pod.get("status") or {}
            lines.append(f"{meta['name']}: {status.get('phase')} {status.get('containerStatuses')}")
            if (life := self.runner.find(meta["namespace"], meta["name"])) is None:
                continue
            for container in pod["spec"]["containers"]:
                file = life.log_of(container["name"], False) or life.log_of(container["name"], True)
                lines.append(file.read_text()[-_LAST_WORDS:] if file else "no log")
        return "\n".join(["", *lines])

    async def get(self, path: str) -> Any:
        """Return the object or the list at `path`. Raises ApiError if the API server refuses."""
        return await self.api.call("GET", path)

    async def pods(self, component: str) -> list[Object]:
        """Return the pods of a program that are not being deleted. component: as in "extender"."""
        label = f"app.kubernetes.io/name%3Dturnout-{component}"
        found = await self.get(f"/api/v1/namespaces/gpu-team/pods?labelSelector={label}")
        return [pod for pod in found["items"] if not pod["metadata"].get("deletionTimestamp")]

    async def until(self, probe: Callable[[], Awaitable[Found]], within_s: float = 120.0) -> Found:
        """Call `probe` until its result is true, and return the result.

        Raises NoProgress with the state of the cluster after `within_s` seconds.
        """
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if answer := await probe():
                        return answer
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise NoProgress(await self.describe_pods()) from None


def _run(argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command and return its result. Raises subprocess.TimeoutExpired after 150 s."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=150, env=env, check=False)


@asynccontextmanager
async def cluster(
    plane: ControlPlane, folder: Path, hosts: Sequence[NodeSpec] | None = None, images: Collection[str] | None = None
) -> AsyncIterator[World]:
    """Run a cluster on the control plane until the block ends, with its pods as processes.

    folder: of the pods. hosts: its nodes; None: two nodes that no map names. images: that can be pulled; None for any.
    """
    config = await asyncio.to_thread(plane.kubeconfig.read_bytes)
    async with attached_cluster(kubeconfig.read_kubeconfig(config)) as attached:
        await asyncio.to_thread(plane.start_scheduler)
        await asyncio.to_thread(plane.start_controller_manager)
        runner = attached.run_pods(PACE, folder / "pods", config, images)
        assert runner is not None
        await attached.add_nodes(generate_nodes(2) if hosts is None else hosts, 8)
        yield World(plane, attached.api, runner, folder)
