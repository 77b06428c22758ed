"""Run one pod and the processes of its containers: look at its lifecycle after every event, and do what is due."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
_AGAIN_S = 1.0
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
        """Run the pod's containers until the pod is deleted; then kill what still runs, and remove its folders.

        A pod that is being deleted is deleted at the API server once all its containers have ended. A failed start or
        write is tried again and not raised. Raises OSError if the folders cannot be created. Cancelled, it also kills
        and removes everything.
        """
        try:
            await asyncio.to_thread(self.folder.make)
            while not (self._deleted and lifecycles.has_no_process(self.lifecycle)):
                self._changed.clear()
                await self._do_what_is_due(time.time())
                if self._can_be_deleted() and await self._delete_object():
                    return
                await self._wait()
        finally:
            await self._remove()

    def log_of(self, container: str, previous: bool) -> Path | None:
        """Return the file with the output of a container's last run; None if there is none.

        previous: True for the run before the last one. Raises KeyError for an unknown container.
        """
        run = self.lifecycle.container(container).restarts - previous
        folder = self.folder.disk / "logs" / container
        return folder / f"{run}.log" if run >= 0 and (folder / f"{run}.log").exists() else None

    # One look.

    async def _do_what_is_due(self, now_s: float) -> None:
        """Send the due signals, start the due containers, and report the pod's status, in this order.

        now_s: seconds since 1970.
        """
        meta = self.pod["metadata"]
        if self._deleted:
            self.lifecycle = lifecycles.begin_deletion(self.lifecycle, now_s, 0.0)
        elif meta.get("deletionTimestamp"):
            self.lifecycle = lifecycles.begin_deletion(
                self.lifecycle, now_s, float(meta.get("deletionGracePeriodSeconds") or 0)
            )
        for name, number in lifecycles.signals_due(self.lifecycle, now_s):
            self.lifecycle = lifecycles.record_signal(self.lifecycle, name, number)
            self._children[name].send_signal(number)
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
            order, out = await self._order(name)
            child = await start_container(order, out)
        except CannotStart as error:
            self.lifecycle = lifecycles.record_failed_start(self.lifecycle, name, BAD_CONFIG, str(error), time.time())
            return
        except (OSError, aiohttp.ClientError, ApiError, TimeoutError) as error:
            self.lifecycle = lifecycles.record_failed_start(
                self.lifecycle, name, "RunContainerError", str(error), time.time()
            )
            return
        probe = probe_of(self._container(name))
        self.lifecycle = lifecycles.record_start(self.lifecycle, name, time.time(), probe is None)
        self._children[name] = child
        _start_task(self._wait_for(name, child), self._wait_tasks)
        if probe is not None:
            _start_task(self._run_probe(name, child, probe), self._probe_tasks)

    def _container(self, name: str) -> Object:
        """Return the spec of the container or init container of this name. Raises StopIteration if there is none."""
        containers = [*(self.pod["spec"].get("initContainers") or ()), *self.pod["spec"]["containers"]]
        container: Object = next(each for each in containers if each["name"] == name)
        return container

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

    async def _order(self, name: str) -> tuple[ContainerOrder, Path]:
        """Return (instructions for a container's first process, its log file). Fetches objects, and writes volumes.

        name: of the container. Raises CannotStart if an object or feature is missing, or a token is refused; the errors
        of ApiClient.call if objects cannot be read; and OSError if files cannot be written.
        """
        pod = {**self.pod, "status": {**(self.pod.get("status") or {}), **self.last_status}}
        container = self._container(name)
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
        return await asyncio.to_thread(self._prepare_container, name, pod, launch, volumes, tokens, config, account)

    def _prepare_container(
        self,
        name: str,
        pod: Object,
        launch: Launch,
        volumes: Mapping[str, Volume],
        tokens: Mapping[str, Any],
        config: bytes | None,
        account: InCluster | None,
    ) -> tuple[ContainerOrder, Path]:
        """Write the files of the pod's volumes. Return (instructions for a container's first process, its log file).

        name: of the container. launch: its command and its complete environment, with KUBECONFIG and `account.env`
        already in it. volumes: of the pod, by name; all are written. tokens: volume -> its token files by path. config:
        content of the pod's kubeconfig, None for none. account: the pod's service account; only its files are used
        here, None for none. Raises CannotStart for a missing volume or hostPath, OSError if files cannot be written.
        """
        folder = self.folder
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
        was = self.lifecycle.container(name)
        order = ContainerOrder(
            argv=launch.argv,
            env=launch.env,
            working_dir=launch.working_dir,
            hostname=hostname(pod),
            root=str(folder.disk / "root"),
            termination_message_file=str(message_file),
            binds=binds,
            links={"/etc/hosts": f"{SHARED}/hosts"},
            needs_isolation=bool(launch.mounts),
        )
        return order, folder.new_log_file(name, was.restarts + bool(was.end))

    async def _wait_for(self, name: str, child: Child) -> None:
        """Wait until a container ends, then record its exit code and termination message, and wake run().

        name: of the container. child: its present run.
        """
        code = await child.wait()
        message = await asyncio.to_thread(self._termination_message, name, code)
        self._children.pop(name, None)
        self.lifecycle = lifecycles.record_end(self.lifecycle, name, code, time.time(), message)
        self._changed.set()

    def _termination_message(self, name: str, code: int) -> str:
        """Return the termination message of a container, "" for none.

        With FallbackToLogsOnError a failed container without a message gets the last _TAIL_BYTES of its log. name: of
        the container. code: its exit code.
        """
        words = self.folder.termination_message(name)
        policy = self._container(name).get("terminationMessagePolicy")
        if not words and code and policy == "FallbackToLogsOnError" and (file := self.log_of(name, False)):
            return file.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return words

    # Status.

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
        meta = self.pod["metadata"]
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        self._status_unwritten = not await self._call("PATCH", f"{self._path()}/status", body, _STRATEGIC)
        if not self._status_unwritten:
            self.last_status = status

    def _can_be_deleted(self) -> bool:
        """Return True if the pod is being deleted, no process runs, and its object is not deleted yet."""
        leaving = self.pod["metadata"].get("deletionTimestamp") and not self._deleted
        return bool(leaving) and lifecycles.has_no_process(self.lifecycle)

    async def _delete_object(self) -> bool:
        """Delete the pod's object without a grace period.

        Return True if it was accepted, or if the pod does not exist any more; False if it has to be tried again.
        """
        only_this = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.pod["metadata"]["uid"]}}
        return await self._call("DELETE", self._path(), only_this)

    def _path(self) -> str:
        """Return the path of the pod at the API server."""
        meta = self.pod["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"

    async def _call(self, method: str, path: str, body: Object, kind: str = "application/json") -> bool:
        """Send a request about the pod. Return True if it was accepted, or refused with 404 or 409.

        404 or 409 means that the pod does not exist any more, or that another pod has its name. Any other failure is
        logged, and the result is False. kind: the media type of the body.
        """
        try:
            await self._node.api.call(method, path, body, kind)
        except ApiError as error:
            if error.code in (404, 409):
                return True
            log.warning("pod_stuck", extra={"pod": self._path(), "why": str(error)})
            return False
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("pod_stuck", extra={"pod": self._path(), "why": str(error)})
            return False
        return True

    async def _wait(self) -> None:
        """Wait until something happens to the pod, until a restart or signal is due, or until a failed write is due
        again.
        """
        now_s = time.time()
        next_s = lifecycles.next_due_s(self.lifecycle, now_s)
        pause_s = None if next_s is None else max(0.0, next_s - now_s)
        if not self._deleted and (self._status_unwritten or self._can_be_deleted()):  # the API server did not answer
            pause_s = min(_AGAIN_S, pause_s or _AGAIN_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()

    async def _remove(self) -> None:
        """Kill all containers, wait for the end of their tasks, and remove the pod's folders."""
        await asyncio.gather(*(child.kill() for child in self._children.values()))
        for task in self._probe_tasks:
            task.cancel()
        await asyncio.gather(*self._wait_tasks, *self._probe_tasks, return_exceptions=True)
        await asyncio.to_thread(self.folder.remove)


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


_LAST_WORD_S = 2.0  # for a first process that does not answer: it is killed, and its namespace with it


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

    def send_signal(self, number: str) -> None:
        """Send SIGTERM to the command, or SIGKILL to everything in the container. number: TERM or KILL."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1 if number == KILL else signal.SIGTERM)

    async def kill(self) -> None:
        """Kill everything in the container, and wait for its end."""
        self.send_signal(KILL)
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


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
