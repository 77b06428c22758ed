"""Run the whole local cluster in one process for as long as a block lasts: an API, a scheduler, a kubelet, nodes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from turnout.kube.client.connections import Connections
from turnout.kube.times import rfc3339
from turnout.simulator.api.server.serve import Served, serve
from turnout.simulator.cluster.controllers.batch_job import RETRY_S
from turnout.simulator.cluster.kubeconfig import LocalClusterAccess
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import NodeSpec, node
from turnout.simulator.cluster.runtime.clients import ApiClient, DirectClient, ExtenderClient, HttpClient
from turnout.simulator.cluster.runtime.controllers import Controllers
from turnout.simulator.cluster.runtime.kubelet import Kubelet
from turnout.simulator.cluster.runtime.scheduler_loop import Scheduler, SchedulerSettings
from turnout.simulator.cluster.scheduler import Outcome
from turnout.simulator.processes.runtime.logs import PodLogs
from turnout.simulator.processes.runtime.pod_runner import Runner

_MAX_WATCH_LINE_BYTES = 4 * 2**20  # of a watch: an object is at most 1.5 MiB
_MAX_PARALLEL_CREATES = 32


class Background:
    """Tasks that run beside a block and end with it. A task that fails ends the block with its error at once."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that runs until the block ends. work: its coroutine."""
        self._tasks.append(self._group.create_task(work))

    def fault(self) -> str:
        """Return a text about the error of a failed task, of the first by start; "" if none has failed."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        error = next((each for task in done if (each := task.exception()) is not None), None)
        while isinstance(error, BaseExceptionGroup):  # of a part that has parts itself
            error = error.exceptions[0]
        return "" if error is None else f"{type(error).__name__}: {error}"

    def end(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def background() -> AsyncIterator[Background]:
    """Run tasks beside the block, and cancel them at its end.

    Raises the error of the first task that fails, else the block's.
    """
    try:
        async with asyncio.TaskGroup() as group:
            background_tasks = Background(group)
            yield background_tasks
            background_tasks.end()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running local cluster. `add_nodes` adds nodes, `schedule` starts a scheduler.

    url: of its API, which may have a secret in its path: `address` is the one to show.
    """

    url: str
    api: ApiClient  # a client of the API
    session: aiohttp.ClientSession  # for other HTTP calls
    background: Background  # all tasks that run in it
    addresses: dict[str, str] = field(default_factory=dict)  # name of a node -> its IP address
    served: Served | None = None  # the embedded API; None when attached to a real one

    @property
    def address(self) -> str:
        """The URL of its API without a secret. For an attached cluster it is `url`, which may have a token in its
        path.
        """
        return self.url if self.served is None else self.served.address

    async def add_nodes(self, places: Sequence[NodeSpec], gpus: int, kubelet: tuple[str, int] = ("", 0)) -> None:
        """Create nodes at the API that our kubelet serves.

        gpus: of each node. kubelet: host and port at which an API server reaches the kubelet, ("", 0) for none. Raises
        an ExceptionGroup with the errors of ApiClient.call, also if only one node cannot be created; other nodes may
        have been created. places: the nodes; their addresses are stored before they are created.
        """
        stamp = rfc3339(time.time())
        room = asyncio.Semaphore(_MAX_PARALLEL_CREATES)

        async def add(place: NodeSpec) -> None:
            async with room:
                await self.api.call("POST", "/api/v1/nodes", node(place, gpus, stamp, kubelet))

        self.addresses.update({place.name: place.ip for place in places})
        async with asyncio.TaskGroup() as adding:
            for place in places:
                adding.create_task(add(place))

    def run_pods(
        self, pace: Pace, processes: Path | None, kubeconfig: bytes | None, images: Collection[str] | None = None
    ) -> Runner | None:
        """Start the kubelet of all nodes, and return the runner of processes; None if pods run nothing.

        pace: how long states last. processes: a folder for the files of pods, which then run their commands; None: they
        run nothing. kubeconfig: for those pods, None for none. images: the images that can be pulled; None for any.
        """
        runner = None
        if processes is not None:
            runner = Runner(self.api, processes, self._host_ip, kubeconfig, pace.backoff_s)
            self.background.start(runner.run())
        kubelet = Kubelet(self.api, pace, lambda name: True, self._host_ip, runner, images)
        self.background.start(kubelet.run())
        return runner

    async def run_jobs(self, retry_s: tuple[float, float] = RETRY_S) -> None:
        """Start the controllers of batch Jobs and Volcano Jobs, and create Volcano's default queue.

        retry_s: of batch Jobs, (first, longest) pause after a failure, in seconds. Raises the errors of ApiClient.call
        if the queue cannot be created, also if it exists; then no controller is started.
        """
        head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"}}
        queue = {**head, "spec": {"weight": 1, "reclaimable": True}, "status": {"state": "Open"}}
        await self.api.call("POST", "/apis/scheduling.volcano.sh/v1beta1/queues", queue)
        self.background.start(Controllers(self.api, retry_s).run())

    def _host_ip(self, node: str) -> str:
        """Return the IP address of a node, "" if unknown."""
        return self.addresses.get(node, "")

    def schedule(
        self,
        settings: SchedulerSettings,
        extender: ExtenderClient | None = None,
        on_outcome: Callable[[str, str, Outcome], None] | None = None,
    ) -> None:
        """Start a scheduler, which runs until the cluster ends.

        extender: the client that it calls, None for none. on_outcome: called with (namespace, name, outcome) after
        every cycle; Chosen means that the pod is bound.
        """
        self.background.start(Scheduler(self.api, settings, extender, on_outcome).run())


@asynccontextmanager
async def local_cluster(
    kubeconfig: Path | None = None,
    port: int = 0,
    pace: Pace | None = None,
    processes: Path | None = None,
    listening: socket.socket | None = None,
    token: str = "",
    images: Collection[str] | None = None,
) -> AsyncIterator[LocalCluster]:
    """Run a local cluster until the block ends. A part of it that fails ends the block with its error.

    kubeconfig: a file to write for its API, None for none. port: of the API, 0 for any. pace: of its kubelet, None for
    no kubelet. processes: a folder for the files of pods, which then run their commands; None: they run nothing.
    listening: a bound socket to use instead of a port. token: which callers of the API must send, "" for a new one.
    images: that pods can pull, None for any. `processes` and `images` are ignored if `pace` is None. Raises OSError if
    the port is in use, or the kubeconfig cannot be written.
    """
    pod_logs = PodLogs()
    async with (
        serve(kubeconfig, port, logs=pod_logs, listening=listening, token=token) as served,
        _session() as session,
        background() as parts,
    ):
        cluster = LocalCluster(served.url, DirectClient(served.store), session, parts, served=served)
        if pace is not None:
            config = await asyncio.to_thread(kubeconfig.read_bytes) if kubeconfig is not None else None
            pod_logs.runner = cluster.run_pods(pace, processes, config, images)
        yield cluster


@asynccontextmanager
async def attached_cluster(access: LocalClusterAccess) -> AsyncIterator[LocalCluster]:
    """Attach to an API server that already runs, a real one or another local cluster's, until the block ends.

    No request is sent here, so a wrong address shows at the first call. Nothing is started either: the caller adds
    nodes with add_nodes(), the kubelet with run_pods() and the scheduler with schedule(). A part that fails ends the
    block with its error. Raises ssl.SSLError if `access.ca_pem` has no certificate.
    """
    trust = ssl.create_default_context(cadata=access.ca_pem) if access.ca_pem else None
    async with Connections() as connections, _session(connections) as session, background() as parts:
        yield LocalCluster(access.url, HttpClient(session, access.url, access.token, trust), session, parts)


def _session(connections: Connections | None = None) -> aiohttp.ClientSession:
    """Return an HTTP session for long watch lines. connections: its sockets, so that they can be cut off."""
    connector = aiohttp.TCPConnector(limit=0, socket_factory=connections)
    return aiohttp.ClientSession(read_bufsize=_MAX_WATCH_LINE_BYTES, connector=connector)
