"""The whole yard in one process: an API, a scheduler, a kubelet, and nodes, for as long as a block lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from simulator.api.shell.serve import Served, serve
from simulator.yard.kubelet import Pace
from simulator.yard.nodes import Place, node
from simulator.yard.scheduler import Outcome
from simulator.yard.shell.kubelet import Kubelet
from simulator.yard.shell.loop import Scheduler, Settings
from simulator.yard.shell.wire import ApiDoor, ExtenderDoor

_LONGEST_LINE = 4 * 2**20  # of a watch: an object is at most 1.5 MiB
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Yard:
    """A running yard. Nodes are added with `add_nodes`, a scheduler is started with `schedule`."""

    served: Served
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

    def schedule(
        self,
        settings: Settings,
        extender: ExtenderDoor | None = None,
        told: Callable[[str, str, Outcome], None] | None = None,
    ) -> None:
        """Start a scheduler. extender: whom it asks. told: called after every cycle."""
        self.tasks.append(asyncio.create_task(Scheduler(self.api, settings, extender, told).run()))


@asynccontextmanager
async def yard(kubeconfig: Path | None = None, port: int = 0, pace: Pace | None = None) -> AsyncIterator[Yard]:
    """Run a yard until the block ends; everything in it ends then. pace: of its kubelet, None for none.

    Raises what a part of it failed with, once the block is done.
    """
    async with (
        serve(kubeconfig, port) as served,
        aiohttp.ClientSession(read_bufsize=_LONGEST_LINE, connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        made = Yard(served, ApiDoor(session, served.url), session)
        if pace is not None:
            kubelet = Kubelet(made.api, pace, lambda name: True, lambda name: made.addresses.get(name, ""))
            made.tasks.append(asyncio.create_task(kubelet.run()))
        try:
            yield made
        finally:
            for task in made.tasks:
                task.cancel()
            ended = await asyncio.gather(*made.tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
