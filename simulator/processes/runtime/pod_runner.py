"""Run all pods of a kubelet that are processes: a task and an address for each, and names by which peers find it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from turnout.simulator.cluster.kubelet import RUNS_FOR
from turnout.simulator.cluster.runtime.clients import ApiClient, ApiError
from turnout.simulator.cluster.runtime.scheduler_loop import log_and_skip
from turnout.simulator.processes.pod_dns import hosts, pod_address
from turnout.simulator.processes.runtime.object_source import ObjectSource
from turnout.simulator.processes.runtime.pod_dir import PodFolders
from turnout.simulator.processes.runtime.pod_worker import KubeletNode, RunningPod

log = logging.getLogger(__name__)

Object = dict[str, Any]
_MEMORY = Path("/dev/shm")
_PREFIX = "turnout-pods-"
_BLOCKS = 127


class Runner:
    """Runs pods that state a command."""

    def __init__(
        self,
        api: ApiClient,
        folder: Path,
        host_ip: Callable[[str], str],
        kubeconfig: bytes | None = None,
        backoff_s: tuple[float, float] = (10.0, 300.0),
    ) -> None:
        """Make a runner without pods.

        folder: for the pods' files, used by this runner alone. host_ip: returns the address of a node. kubeconfig: of
        the local cluster, for the pods; None for none. backoff_s: (delay before the second restart, maximum delay), in
        seconds.
        """
        self._api, self._folder, self._host_ip = api, folder, host_ip
        self._backoff_s = backoff_s
        self._objects = ObjectSource(api, kubeconfig)
        self._env = _image_environment()
        self._running_pods: dict[str, RunningPod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._addresses: dict[str, int] = {}
        self._block = os.getpid() % _BLOCKS
        self._pods_by_uid: dict[str, Object] = {}
        self._services: dict[str, Object] = {}
        self._changed = asyncio.Event()
        self._writing = threading.Lock()
        self._memory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_sweep()))

    def pod_changed(self, pod: Object) -> None:
        """Store a new or changed pod. Start its processes if it is new, states a command and has no RUNS_FOR
        annotation.

        A pod that has ended is not started. Hosts files are written again. Raises ValueError if all addresses of the
        runner's block are in use; the pod is then stored, but not started.
        """
        uid = pod["metadata"]["uid"]
        self._pods_by_uid[uid] = pod
        self._changed.set()
        running_pod = self._running_pods.get(uid)
        if running_pod is not None:
            running_pod.update(pod)
        elif _runs_processes(pod) and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            self._start_pod(uid, pod)

    def pod_deleted(self, uid: str) -> None:
        """Make a pod's processes end, because its object or its node was deleted. Do nothing for a pod that does not
        run here.
        """
        self._pods_by_uid.pop(uid, None)
        self._changed.set()
        if (running_pod := self._running_pods.get(uid)) is not None:
            running_pod.kill_soon()

    def runs(self, uid: str) -> bool:
        """Return True if this runner runs the pod with this uid now. False again after its end."""
        return uid in self._running_pods

    async def run(self) -> None:
        """Keep the hosts files of pods up to date until cancelled. Call it once.

        Then every container is killed, and the pods' folders are removed, but not the folder of the runner.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_services())
                tasks.create_task(self._write_hosts())
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await asyncio.to_thread(shutil.rmtree, self._memory, True)

    def find(self, namespace: str, name: str) -> RunningPod | None:
        """Return the running pod of this name; None if this runner does not run it."""
        for running_pod in self._running_pods.values():
            meta = running_pod.pod["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, name):
                return running_pod
        return None

    def _start_pod(self, uid: str, pod: Object) -> None:
        """Start the task that runs a new pod, with an address and a folder of its own. uid: of the pod."""
        folder = PodFolders(self._folder / uid, self._memory / uid)
        node = KubeletNode(self._api, self._objects, self._env, self._host_ip(pod["spec"]["nodeName"]), self._backoff_s)
        running_pod = self._running_pods[uid] = RunningPod(pod, self._address(uid), folder, node)
        self._tasks[uid] = asyncio.create_task(self._run_pod(running_pod, uid))

    async def _run_pod(self, running_pod: RunningPod, uid: str) -> None:
        """Run one pod to its end, then remove its folders and forget it.

        An exception is logged and ends only this pod. uid: of the pod.
        """
        try:
            await asyncio.to_thread(running_pod.folder.make)
            await asyncio.to_thread(self._write, running_pod)
            await running_pod.run()
        except Exception:
            # One pod that breaks us must not take the others along; what it ran has been killed.
            log.exception("pod_lost", extra={"pod": uid})
        finally:
            await asyncio.to_thread(running_pod.folder.remove)
            self._running_pods.pop(uid, None)
            self._addresses.pop(uid, None)
            self._tasks.pop(uid, None)

    def _address(self, uid: str) -> str:
        """Return the lowest unused loopback address of this runner, and reserve it for the pod with this uid.

        Raises ValueError if all addresses of the runner's block are in use.
        """
        used_addresses = set(self._addresses.values())
        number = next(each for each in range(len(used_addresses) + 1) if each not in used_addresses)
        self._addresses[uid] = number
        return pod_address(self._block, number)

    # Names.

    async def _watch_services(self) -> None:
        """Watch Services until cancelled. After each change the hosts files are written again.

        A failed watch begins again.
        """
        while True:
            try:
                async for event, watched in self._api.changes("/api/v1/services"):
                    if event != "SYNCED":
                        service = watched.obj
                        self._services.pop(service["metadata"]["uid"], None)
                        if event != "DELETED":
                            self._services[service["metadata"]["uid"]] = service
                        self._changed.set()
            except (aiohttp.ClientError, ApiError, TimeoutError) as error:
                log.warning("watch_failed", extra={"kind": "services", "why": str(error)})
                await asyncio.sleep(0.5)

    async def _write_hosts(self) -> None:
        """Rewrite the hosts file of every running pod whenever pods or Services change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for running_pod in list(self._running_pods.values()):
                with log_and_skip("pods", running_pod.pod), contextlib.suppress(FileNotFoundError):
                    await asyncio.to_thread(self._write, running_pod)  # its folder may not be there yet, or no more

    def _write(self, running_pod: RunningPod) -> None:
        """Write the hosts file of one pod.

        Raises OSError, such as FileNotFoundError if the pod's folders do not exist.
        """
        with self._writing:  # else an older text might come to lie over a newer one
            pod = {**running_pod.pod, "status": {**(running_pod.pod.get("status") or {}), "podIP": running_pod.pod_ip}}
            text = hosts(pod, list(self._pods_by_uid.values()), list(self._services.values()))
            running_pod.folder.share("hosts", text.encode())


def _runs_processes(pod: Object) -> bool:
    """Return True if the pod states a command and no annotation says how long it is to appear to run."""
    timed = RUNS_FOR in (pod["metadata"].get("annotations") or {})
    return not timed and any(each.get("command") for each in pod["spec"]["containers"])


def _image_environment() -> dict[str, str]:
    """Return the environment variables that an image would bring: PATH with the folder of our own Python first, HOME
    and LANG.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, "HOME": os.environ.get("HOME", "/"), "LANG": os.environ.get("LANG", "C.UTF-8")}


def _sweep() -> Path | None:
    """Remove the folders of runners whose process has ended from the folder of shared memory, and return that folder.

    None without shared memory.
    """
    if not _MEMORY.is_dir():
        return None
    for old in _MEMORY.glob(f"{_PREFIX}*-*"):
        pid = old.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(old, ignore_errors=True)
    return _MEMORY
