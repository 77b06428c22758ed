"""The whole yard in one process: an API, a scheduler, a kubelet, and nodes, for as long as a block lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from simulator.api.shell.serve import serve
from simulator.processes.shell.logs import PodLogs
from simulator.processes.shell.runner import Runner
from simulator.yard.controllers.batch_job import RETRY_S
from simulator.yard.kubelet import Pace
from simulator.yard.nodes import Place, node
from simulator.yard.scheduler import Outcome
from simulator.yard.shell.controllers import Controllers
from simulator.yard.shell.kubelet import Kubelet
from simulator.yard.shell.loop import Scheduler, Settings
from simulator.yard.shell.wire import ApiDoor, ExtenderDoor

_LONGEST_LINE = 4 * 2**20  # of a watch: an object is at most 1.5 MiB
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Yard:
    """A running yard. Nodes are added with `add_nodes`, a scheduler is started with `schedule`."""

    url: str
    api: ApiDoor
    session: aiohttp.ClientSession
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)

    async def add_nodes(self, places: Sequence[Place], gpus: int) -> None:
        """Create nodes that the yard's kubelet serves."""
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        room = asyncio.Semaphore(_AT_ONCE)

        async def add(place: Place) -> None:
            async with room:
                await self.api.call("POST", "/api/v1/nodes", node(place, gpus, stamp))

        self.addresses.update({place.name: place.ip for place in places})
        async with asyncio.TaskGroup() as adding:
            for place in places:
                adding.create_task(add(place))

    def run_pods(self, pace: Pace, processes: Path | None, kubeconfig: Path | None) -> Runner | None:
        """Start the kubelet of all nodes. processes: as `yard` has it; who runs them, if anybody does."""
        runner = None
        if processes is not None:
            runner = Runner(self.api, processes, self._host_ip, kubeconfig, pace.backoff_s)
            self.tasks.append(asyncio.create_task(runner.run()))
        kubelet = Kubelet(self.api, pace, lambda name: True, self._host_ip, runner)
        self.tasks.append(asyncio.create_task(kubelet.run()))
        return runner

    async def run_jobs(self, retry_s: tuple[float, float] = RETRY_S) -> None:
        """Start the controllers of batch Jobs and of Volcano Jobs, with the queue that Volcano has from the start."""
        head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"}}
        queue = {**head, "spec": {"weight": 1, "reclaimable": True}, "status": {"state": "Open"}}
        await self.api.call("POST", "/apis/scheduling.volcano.sh/v1beta1/queues", queue)
        self.tasks.append(asyncio.create_task(Controllers(self.api, retry_s).run()))

    def _host_ip(self, node: str) -> str:
        return self.addresses.get(node, "")

    def schedule(
        self,
        settings: Settings,
        extender: ExtenderDoor | None = None,
        told: Callable[[str, str, Outcome], None] | None = None,
    ) -> None:
        """Start a scheduler. extender: whom it asks. told: called after every cycle."""
        self.tasks.append(asyncio.create_task(Scheduler(self.api, settings, extender, told).run()))


@asynccontextmanager
async def yard(
    kubeconfig: Path | None = None,
    port: int = 0,
    pace: Pace | None = None,
    processes: Path | None = None,
    token: str = "",
) -> AsyncIterator[Yard]:
    """Run a yard until the block ends; everything in it ends then.

    pace: of its kubelet, None for none. processes: a folder of its own for the files of pods, which then run what they
    say; None: they run nothing. token: what callers of its API have to bear. Raises what a part of it failed with,
    once the block is done.
    """
    kept = PodLogs()
    async with serve(kubeconfig, port, logs=kept, token=token) as served, _session() as session:
        made = Yard(served.url, ApiDoor(session, served.url, token), session)
        if pace is not None:
            kept.runner = made.run_pods(pace, processes, kubeconfig)
        try:
            yield made
        finally:
            for task in made.tasks:
                task.cancel()
            ended = await asyncio.gather(*made.tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(read_bufsize=_LONGEST_LINE, connector=aiohttp.TCPConnector(limit=0))
