"""Run one pod and the processes of its containers: look at its lifecycle after every event, and do what is due."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from turnout.simulator.cluster.runtime.clients import ApiClient, ApiError
from turnout.simulator.processes import pod_lifecycle as lifecycles
from turnout.simulator.processes.container_spec import (
    BAD_CONFIG,
    CannotStart,
    Launch,
    Readiness,
    ReadinessProbe,
    launch_of,
    next_readiness,
    probe_of,
)
from turnout.simulator.processes.pod_dns import hostname
from turnout.simulator.processes.pod_lifecycle import KILL, PodLifecycle, status_of
from turnout.simulator.processes.runtime import container_init
from turnout.simulator.processes.runtime.object_source import ObjectSource
from turnout.simulator.processes.runtime.pod_dir import SHARED, PodFolders
from turnout.simulator.processes.volumes import SERVICE_ACCOUNT_FOLDER, InCluster, Volume, in_cluster, volume_of

log = logging.getLogger(__name__)

Object = dict[str, Any]
_STRATEGIC = "application/strategic-merge-patch+json"
_RETRY_S = 1.0
_TAIL_BYTES = 2048  # of the log, for FallbackToLogsOnError


@dataclass(frozen=True, slots=True)
class KubeletNode:
    """The things that all pods of a kubelet share."""

    api: ApiClient
    objects: ObjectSource
    env: Mapping[str, str]  # what an image would bring
    host_ip: str  # of the node
    backoff_s: tuple[float, float]  # (pause before the second restart, longest pause), in seconds


class RunningPod:
    """One pod while it runs."""

    def __init__(self, pod: Object, pod_ip: str, folder: PodFolders, node: KubeletNode) -> None:
        self.pod, self.pod_ip, self.folder = pod, pod_ip, folder  # pod: the newest object of the watch
        self.lifecycle: PodLifecycle = lifecycles.new_lifecycle(pod, node.backoff_s)
        self._node = node
        self._preparation = ContainerPreparation(node, folder)
        self._endpoint = PodEndpoint(node.api, pod["metadata"])
        self._children: dict[str, Child] = {}
        self.last_status: Object = {}  # that was reported
        self._changed = asyncio.Event()
        self._wait_tasks: set[asyncio.Task[None]] = set()
        self._probe_tasks: set[asyncio.Task[None]] = set()
        self._deleted = self._status_unwritten = False

    def update(self, pod: Object) -> None:
        """Store the changed object of the pod, and wake run() to act on it."""
        self.pod = pod
        self._changed.set()

    def kill_soon(self) -> None:
        """Make run() kill all containers and end, because the pod's object or its node was deleted. Do not wait."""
        self._deleted = True
        self._changed.set()

    async def run(self) -> None:
        """Run the pod's containers until the pod is deleted, then kill those that still run. A cancellation kills
        them, too.

        A pod that is being deleted is deleted at the API server once all its containers have ended. A failed start or
        write is tried again and not raised. The caller creates the pod's folders before, and removes them afterwards.
        """
        try:
            while not (self._deleted and lifecycles.has_no_process(self.lifecycle)):
                self._changed.clear()
                await self._do_what_is_due(time.time())
                if self._object_is_due() and await self._endpoint.delete():
                    return
                await self._wait()
        finally:
            await asyncio.gather(*(child.kill() for child in self._children.values()))
            for task in self._probe_tasks:
                task.cancel()
            await asyncio.gather(*self._wait_tasks, *self._probe_tasks, return_exceptions=True)

    def log_of(self, container: str, previous: bool) -> Path | None:
        """Return the file with the output of a container's last run; None if there is none.

        previous: True for the run before the last one. Raises KeyError for an unknown container.
        """
        return _log_file(self.folder, container, self.lifecycle.container(container).restarts - previous)

    async def _do_what_is_due(self, now_s: float) -> None:
        """Send the due signals, start the due containers, and report the pod's status, in this order.

        The first status is also reported before the first start. now_s: seconds since 1970.
        """
        meta = self.pod["metadata"]
        if self._deleted:
            self.lifecycle = lifecycles.begin_deletion(self.lifecycle, now_s, 0.0)
        elif meta.get("deletionTimestamp"):
            self.lifecycle = lifecycles.begin_deletion(
                self.lifecycle, now_s, float(meta.get("deletionGracePeriodSeconds") or 0)
            )
        for name, signal_name in lifecycles.signals_due(self.lifecycle, now_s):
            self.lifecycle = lifecycles.record_signal(self.lifecycle, name, signal_name)
            self._children[name].send_signal(signal_name)
        if not self.last_status:
            await self._report(now_s)  # the address is known before anything starts, so that it can be handed down
        for name in lifecycles.starts_due(self.lifecycle, now_s):
            await self._start(name)
        await self._report(time.time())

    async def _start(self, name: str) -> None:
        """Start a container, and tasks that await its end and run its readiness probe. name: of the container.

        A failure of the start, of the files or of the API server is not raised. It becomes the container's waiting
        reason, and the start is tried again later.
        """
        try:
            pod = {**self.pod, "status": {**(self.pod.get("status") or {}), **self.last_status}}
            was = self.lifecycle.container(name)
            order, out = await self._preparation.order(pod, name, was.restarts + bool(was.end))
            child = await start_container(order, out)
        except CannotStart as error:
            self.lifecycle = lifecycles.record_failed_start(self.lifecycle, name, BAD_CONFIG, str(error), time.time())
            return
        except (OSError, aiohttp.ClientError, ApiError, TimeoutError) as error:
            self.lifecycle = lifecycles.record_failed_start(
                self.lifecycle, name, "RunContainerError", str(error), time.time()
            )
            return
        probe = probe_of(container_spec(self.pod, name))
        self.lifecycle = lifecycles.record_start(self.lifecycle, name, time.time(), probe is None)
        self._children[name] = child
        _start_task(self._wait_for(name, child), self._wait_tasks)
        if probe is not None:
            _start_task(self._run_probe(name, child, probe), self._probe_tasks)

    async def _run_probe(self, name: str, child: Child, probe: ReadinessProbe) -> None:
        """Run a container's readiness probe until the container ends. Record each change of its readiness, and wake
        run().

        name: of the container. child: its present run; the probe ends with this run.
        """
        found, pause_s = Readiness(), probe.delay_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=probe.timeout_s)) as session:
            while True:
                await asyncio.sleep(pause_s)
                if self._children.get(name) is not child:
                    return
                now = next_readiness(found, await _probe_succeeds(session, probe.url(self.pod_ip)), probe)
                if now.ready is not found.ready and self._children.get(name) is child:
                    self.lifecycle = lifecycles.record_probe(self.lifecycle, name, now.ready)
                    self._changed.set()
                found, pause_s = now, probe.period_s

    async def _wait_for(self, name: str, child: Child) -> None:
        """Wait until a container ends, then record its exit code and termination message, and wake run().

        name: of the container. child: its present run.
        """
        code = await child.wait()
        container, run = container_spec(self.pod, name), self.lifecycle.container(name).restarts
        message = await asyncio.to_thread(_termination_message, self.folder, container, run, code)
        self._children.pop(name, None)
        self.lifecycle = lifecycles.record_end(self.lifecycle, name, code, time.time(), message)
        self._changed.set()

    async def _report(self, now_s: float) -> None:
        """Write the pod's status to the API if it has changed. A failed write is repeated later.

        Nothing is written once the pod is deleted. A write that the API server refuses with 404 or 409 counts as done.
        now_s: seconds since 1970.
        """
        if self._deleted:
            return
        status = status_of(
            {**self.pod, "status": self.last_status or self.pod.get("status")},
            self.lifecycle,
            now_s,
            self.pod_ip,
            self._node.host_ip,
        )
        if status == self.last_status:
            return
        self._status_unwritten = not await self._endpoint.write_status(status)
        if not self._status_unwritten:
            self.last_status = status

    def _object_is_due(self) -> bool:
        """Return True if the pod is being deleted, no process runs, and its object is not deleted yet."""
        leaving = self.pod["metadata"].get("deletionTimestamp") and not self._deleted
        return bool(leaving) and lifecycles.has_no_process(self.lifecycle)

    async def _wait(self) -> None:
        """Wait until something happens to the pod, until a restart or signal is due, or until a failed write is due
        again.
        """
        now_s = time.time()
        next_s = lifecycles.next_due_s(self.lifecycle, now_s)
        pause_s = None if next_s is None else max(0.0, next_s - now_s)
        if not self._deleted and (self._status_unwritten or self._object_is_due()):  # the API server did not answer
            pause_s = min(_RETRY_S, pause_s or _RETRY_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()


class ContainerPreparation:
    """Prepares the starts of one pod's containers: fetches the objects that they need, and writes their files."""

    def __init__(self, node: KubeletNode, folder: PodFolders) -> None:
        self._node, self._folder = node, folder

    async def order(self, pod: Object, name: str, run: int) -> tuple[ContainerOrder, Path]:
        """Return (instructions for a container's first process, its log file). Fetches objects, and writes volumes.

        pod: with its last reported status. name: of the container. run: the number of its run, from 0. Raises
        CannotStart if an object or feature is missing, or a token is refused; the errors
        of ApiClient.call if objects cannot be read; and OSError if files cannot be written.
        """
        container = container_spec(pod, name)
        sources = await self._node.objects.sources_of(pod)
        config = await self._node.objects.kubeconfig_of(pod)
        base = {**self._node.env, "HOSTNAME": hostname(pod)}
        account = None
        if config is not None:
            base["KUBECONFIG"] = f"{SHARED}/kubeconfig"
            account = await asyncio.to_thread(in_cluster, msgspec.json.decode(config))
            base |= account.env if account is not None else {}
        launch = launch_of(pod, container, base, sources)
        volumes = {each["name"]: volume_of(pod, each, sources) for each in pod["spec"].get("volumes") or ()}
        tokens = await self._node.objects.token_files(pod, volumes.values())
        write_files = partial(self._write_files, name, pod, launch, volumes, tokens, config, account)
        binds, message_file = await asyncio.to_thread(write_files)
        order = ContainerOrder(
            argv=launch.argv,
            env=launch.env,
            working_dir=launch.working_dir,
            hostname=hostname(pod),
            root=str(self._folder.disk / "root"),
            termination_message_file=str(message_file),
            binds=binds,
            links={"/etc/hosts": f"{SHARED}/hosts"},
            needs_isolation=bool(launch.mounts),
        )
        return order, await asyncio.to_thread(self._folder.new_log_file, name, run)

    def _write_files(
        self,
        name: str,
        pod: Object,
        launch: Launch,
        volumes: Mapping[str, Volume],
        tokens: Mapping[str, Any],
        config: bytes | None,
        account: InCluster | None,
    ) -> tuple[list[tuple[str, str, bool]], Path]:
        """Write the files of the pod's volumes. Return (binds of a container, the file of its termination message).

        name: of the container. launch: its command and its complete environment, with KUBECONFIG and `account.env`
        already in it. volumes: of the pod, by name; all are written. tokens: volume -> its token files by path. config:
        content of the pod's kubeconfig, None for none. account: the pod's service account; only its files are used
        here, None for none. Raises CannotStart for a missing volume or hostPath, OSError if files cannot be written.
        """
        folder = self._folder
        folder.fill(volumes.values())
        if config is not None:
            folder.share("kubeconfig", config)
        for volume, files in tokens.items():
            folder.write(volume, files)
        message_file = folder.new_termination_message_file(name)
        binds = folder.binds(launch, volumes, message_file)
        if account is not None:
            binds.append((folder.write_service_account(account.files), SERVICE_ACCOUNT_FOLDER, True))
        if pod["spec"].get("dnsPolicy") != "Default":
            binds.append((str(folder.disk / "nsswitch.conf"), "/etc/nsswitch.conf", True))
        return binds, message_file


class PodEndpoint:
    """The object of one pod at the API server."""

    def __init__(self, api: ApiClient, meta: Object) -> None:
        """Send nothing yet. meta: the metadata of the pod; its namespace, name and uid are used."""
        self._api, self._uid = api, meta["uid"]
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"

    async def write_status(self, status: Object) -> bool:
        """Write the pod's status. Return True if it was accepted, or refused with 404 or 409; False for a failure."""
        body = {"metadata": {"uid": self._uid}, "status": status}
        return await self._call("PATCH", f"{self._path}/status", body, _STRATEGIC)

    async def delete(self) -> bool:
        """Delete the pod's object without a grace period.

        Return True if it was accepted, or if the pod does not exist any more; False if it has to be tried again.
        """
        return await self._call("DELETE", self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self._uid}})

    async def _call(self, method: str, path: str, body: Object, kind: str = "application/json") -> bool:
        """Send a request about the pod. Return True if it was accepted, or refused with 404 or 409.

        404 or 409 means that the pod does not exist any more, or that another pod has its name. Any other failure is
        logged, and the result is False. kind: the media type of the body.
        """
        try:
            await self._api.call(method, path, body, kind)
        except ApiError as error:
            if error.code in (404, 409):
                return True
            log.warning("pod_stuck", extra={"pod": self._path, "why": str(error)})
            return False
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("pod_stuck", extra={"pod": self._path, "why": str(error)})
            return False
        return True


def container_spec(pod: Object, name: str) -> Object:
    """Return the spec of the container or init container of this name. Raises StopIteration if there is none."""
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    container: Object = next(each for each in containers if each["name"] == name)
    return container


def _log_file(folder: PodFolders, container: str, run: int) -> Path | None:
    """Return the file with the output of one run of a container; None if there is none. run: -1 for none."""
    file = folder.disk / "logs" / container / f"{run}.log"
    return file if run >= 0 and file.exists() else None


def _termination_message(folder: PodFolders, container: Object, run: int, code: int) -> str:
    """Return the termination message of a container, "" for none.

    With FallbackToLogsOnError a failed container without a message gets the last _TAIL_BYTES of its log. container: its
    spec. run: the number of the run that ended. code: its exit code.
    """
    name = container["name"]
    message = folder.termination_message(name)
    policy = container.get("terminationMessagePolicy")
    if not message and code and policy == "FallbackToLogsOnError" and (file := _log_file(folder, name, run)):
        return file.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    return message


def _start_task(work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
    """Start a task, and keep it in the set `among` until it has ended."""
    task = asyncio.create_task(work)
    among.add(task)
    task.add_done_callback(among.discard)


async def _probe_succeeds(session: aiohttp.ClientSession, url: str) -> bool:
    """Return True if a URL answers with a status of 200 to 399. As with a kubelet, no certificate is verified."""
    try:
        async with session.get(url, ssl=False, allow_redirects=False) as answer:
            return 200 <= answer.status < 400
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


_KILL_TIMEOUT_S = 2.0  # after it a first process that does not react is killed


@dataclass(frozen=True, slots=True)
class ContainerOrder:
    """The instructions for container_init.py."""

    argv: Sequence[str]  # empty: no command is known; the container waits for a signal
    env: Mapping[str, str]  # the whole environment of the command
    working_dir: str  # "" for /
    hostname: str
    root: str  # an empty folder of this machine, on which the container's root is mounted
    termination_message_file: str  # gets the reason when the container cannot start
    binds: Sequence[tuple[str, str, bool]] = ()  # (source, target, read only)
    links: Mapping[str, str] = field(default_factory=dict)  # paths of files that lead elsewhere in the container
    needs_isolation: bool = False  # True: without namespaces it is not started at all
    isolated: bool = True  # False: use no namespaces, even if they are possible


class Child:
    """A running container."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def wait(self) -> int:
        """Wait for the end of the container. Return the exit code of its command, 128 + n if signal n ended it.

        The code is NOT_STARTED if the command could not be run.
        """
        code = await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return 128 - code if code < 0 else code

    def send_signal(self, name: str) -> None:
        """Send SIGTERM to the command, or SIGKILL to everything in the container. name: TERM or KILL."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1 if name == KILL else signal.SIGTERM)

    async def kill(self) -> None:
        """Kill everything in the container, and wait for its end."""
        self.send_signal(KILL)
        try:
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            _kill_descendants(self._process.pid)  # without namespaces they would outlive the first process
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def _kill_descendants(pid: int) -> None:
    """Send SIGKILL to all processes below a process, also to those that they start meanwhile. pid: of the process."""
    killed: set[int] = set()
    while left := set(_descendants(pid)) - killed:
        for each in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        killed |= left


def _descendants(pid: int) -> Iterator[int]:
    """Yield the process ids of all processes below a process; nothing if it has ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from _descendants(child)


async def start_container(order: ContainerOrder, log: Path) -> Child:
    """Start a container's first process, and return it. Its output is appended to `log`.

    Raises OSError if the log cannot be opened, or the process cannot be created. A command that cannot be run raises
    nothing: the process ends with the code NOT_STARTED.
    """
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", container_init.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=out,
            stderr=out,
            env={},
            start_new_session=True,
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
    with contextlib.suppress(ConnectionError):  # it is gone already, and its exit code says why
        await process.stdin.drain()
    return Child(process)
