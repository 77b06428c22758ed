"""A synthetic cluster behind the page's real server, as a process: `python -m hack.bench.page.synthetic NODES JOBS`.

Once a second, a new job waits whose name tells when it came, in milliseconds since 1970. It prints its address.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import time
from dataclasses import replace

import msgspec
from aiohttp import web

from turnout.cli.page.access import LocalAccess, Sessions
from turnout.cli.page.answers import BadQuery
from turnout.cli.page.cluster_state import ClusterState, HostState, PlacedPod
from turnout.cli.page.history import PastSizes
from turnout.cli.page.messages import JobItem, LandingAnswer, QueueItem
from turnout.cli.page.server import PageServer
from turnout.topology.fabric import build
from turnout.topology.model import MapEntry

LOGIN = "bench"
GPUS, NODES_OF_LEAF, LEAVES_OF_SPINE, QUEUES = 8, 16, 20, 40
NEWCOMER = "Job/bench/at-"


class OpenWatches:
    """Watches that are all open."""

    def unsynced(self) -> list[str]:
        """Return []: all watches have their lists."""
        return []

    def interrupted_s(self) -> float:
        """Return 0: no watch is interrupted."""
        return 0.0

    def last_error(self) -> str:
        """Return "": there was no error."""
        return ""


class SyntheticSource:
    """The state that the server shows, changed by hand. It has the methods of PageSource that the server calls."""

    def __init__(self, state: ClusterState) -> None:
        self.state, self.changed, self.past = state, asyncio.Event(), PastSizes()
        self.has_synced = True
        self.watches = OpenWatches()

    def reason_chain(self, job: str) -> tuple[tuple[str, str], ...]:
        """Return one row, which says that the job is synthetic."""
        return (("queue", f"{job} is synthetic"),)

    def change(self, rng: random.Random) -> None:
        """Change the GPUs of one pod, and replace the newest waiting job by another one. The state gets a new
        version.
        """
        state, now_s = self.state, time.time()
        newcomer = _job_item(f"{NEWCOMER}{round(1_000 * now_s)}", "waiting", now_s)
        pods = list(state.pods)
        at = rng.randrange(len(pods))
        pods[at] = replace(pods[at], gpus=rng.randint(1, GPUS))
        jobs = tuple(job for job in state.jobs if not job.job.startswith(NEWCOMER))
        self.state = replace(
            state, observed_at_s=now_s, version=state.version + 1, pods=tuple(pods), jobs=(newcomer, *jobs)
        )
        self.changed.set()
        self.changed = asyncio.Event()


def synthetic_state(nodes: int, jobs: int) -> ClusterState:
    """Return the state of a cluster with `nodes` nodes and `jobs` jobs, in which jobs of one to several nodes hold
    most GPUs.
    """
    paths = [(f"spine-{at // NODES_OF_LEAF // LEAVES_OF_SPINE}", f"leaf-{at // NODES_OF_LEAF}") for at in range(nodes)]
    names = [f"gpu-{at:05d}" for at in range(nodes)]
    entries = [MapEntry(name, path, at + 1) for at, (name, path) in enumerate(zip(names, paths, strict=True))]
    fabric = build(entries)
    hosts = tuple(
        HostState(name, fabric.paths[name], GPUS, "faulty" if at % 997 == 5 else "ready", "", at)
        for at, name in enumerate(fabric.hosts)
    )
    size = max(1, nodes * 9 // 10 // jobs)
    pods = tuple(
        PlacedPod(f"w-{at}", _name(at // size), _queue(at // size), hosts[at].node, GPUS, at % size >= 2, at % size)
        for at in range(min(nodes * 9 // 10, jobs * size))
    )
    queues = tuple(
        QueueItem(f"queue-{at:02d}", quota_gpus=1_000, used_gpus=900, min_gpus=500, elastic_gpus=400, idle_gpus=100)
        for at in range(QUEUES)
    )
    items = tuple(_job_item(_name(at), "running", 0.0) for at in range(jobs))
    now_s = time.time()
    return ClusterState(now_s, 1, now_s, 1, hosts, pods, items, queues, {}, fabric)


def _name(number: int) -> str:
    return f"Job/team-{number % QUEUES}/job-{number:05d}"


def _queue(number: int) -> str:
    return f"queue-{number % QUEUES:02d}"


def _job_item(name: str, state: str, since_s: float) -> JobItem:
    """Return an item of the page: a job of 4 workers with 8 GPUs each.

    name: KIND/NAMESPACE/NAME. since_s: when it entered `state`, in seconds since 1970.
    """
    kind, namespace, short_name = name.split("/")
    return JobItem(
        job=name,
        kind=kind,
        namespace=namespace,
        name=short_name,
        queue="queue-00",
        state=state,
        workers=4,
        min_workers=2,
        max_workers=8,
        gpus_per_worker=GPUS,
        gpus=32,
        elastic_gpus=16,
        since_at_s=since_s,
        reason="NeedsMore",
        evidence="It waits: it would not fit even if every elastic worker left.",
        next_step="Wait until running jobs end, lower its min, or make its workers smaller.",
    )


async def _no_plan(gang: str, namespace: str) -> LandingAnswer:
    raise BadQuery(f"{namespace}/{gang}: nothing is planned here")


async def serve(nodes: int, jobs: int) -> None:
    """Serve the page of a synthetic cluster on a free port of loopback until the process ends."""
    source, rng = SyntheticSource(synthetic_state(nodes, jobs)), random.Random(1)
    server = PageServer(source, LocalAccess(LOGIN), Sessions(time.monotonic), _no_plan)
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    print(msgspec.json.encode(f"http://127.0.0.1:{listening.getsockname()[1]}").decode(), flush=True)
    while True:
        await asyncio.sleep(1.0)
        source.change(rng)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
