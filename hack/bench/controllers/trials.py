"""One controller's run over the same jobs, and what it needed: time, CPU, memory, requests.

Everything shares this machine's cores: etcd, API server, kwok, the garbage collector, the controller and the load.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hack.bench.controllers.audit import Audit, writes
from hack.bench.controllers.scene import JOBS, OF_JOB, PODS, SERVICES, Size, cluster, jobs
from hack.bench.controllers.sides import Ours, Side, Theirs, Usage, restarted
from hack.bench.controllers.watching import all_running, watched_pods
from hack.controlplane.api import Api
from hack.controlplane.plane import ControlPlane

GIVE_UP_S = 1500.0
QUIET_S = 2.0  # without a request: nothing more is to be done
_LOOK_S = 0.01
_PAUSES_S = (0.01, 0.06)  # between two pods that are lost, so that they meet the controller at any moment


@dataclass(frozen=True, slots=True)
class Trial:
    """One controller's run. running_s: from the first job's creation until all are Running, all workers active.

    used: until nothing more was sent. requests: of the controller, by verb and resource, in that time. lost_s: from
    the deletion of a pod until its replacement was seen, each. all_deleted_s: from the deletion of all jobs at once
    until their pods and Services were gone.
    """

    running_s: float
    used: Usage
    requests: Counter[str] = field(default_factory=Counter)
    lost_s: Sequence[float] = ()
    all_deleted_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rest:
    """A controller beside many jobs that have nothing to be done.

    made_s: until all were Running. cores: of its CPU while at rest, 0.05 is 5 % of one core. caught_up_s: after a
    restart, until it had looked at all. wrote, wrote_again: writes while at rest, and after the restart.
    """

    made_s: float
    cores: float
    peak_mib: float
    caught_up_s: float
    wrote: int
    wrote_again: int


@asynccontextmanager
async def opened(plane: ControlPlane) -> AsyncIterator[tuple[Api, Theirs, Ours]]:
    """Give a client and both controllers on a cluster with nodes, kwok and a garbage collector, and no job.

    The Training Operator is started once, for its CRDs, and ended.
    """
    await asyncio.to_thread(plane.start_kwok)
    theirs, ours = Theirs(plane), Ours(plane)
    async with plane.api() as api:
        for each in cluster():
            await api.create(each)
        await theirs.start()
        await theirs.stop()
        await api.served(JOBS)
        # Not before: the garbage collector looks for kinds that are new every 30 s only.
        await asyncio.to_thread(plane.start_controller_manager, ("garbage-collector-controller",))
        yield api, theirs, ours


async def trial(side: Side, api: Api, audit: Audit, size: Size, rng: random.Random) -> Trial:
    """Run one controller over all jobs, from its start to its end; afterwards nothing of them is left."""
    await side.start()
    try:
        began_at, before = audit.at(), side.usage()
        running_s = await _made(api, jobs(size.jobs, size.workers), size.workers)
        await _quiet(audit, side)
        after, requests = side.usage(), audit.since(began_at, side.agent)
        lost_s = await _lost(api, size, rng)
        all_deleted_s = await _cleared(api)
    finally:
        await side.stop()
    used = Usage(after.cpu_s - before.cpu_s, after.peak_mib)
    return Trial(running_s, used, requests, lost_s, all_deleted_s)


async def deletions(side: Side, api: Api, size: Size) -> list[float]:
    """Run one controller over a few jobs and delete them, one after the other.

    Returns the seconds from each job's deletion until its pods and Services were gone.
    """
    await side.start()
    try:
        await _made(api, jobs(size.deleted, size.workers), size.workers)
        return [await _deleted(api, f"job-{at:05d}") for at in range(size.deleted)]
    finally:
        await side.stop()


async def rest(side: Side, other: Side, api: Api, audit: Audit, size: Size) -> tuple[Rest, Rest]:
    """Let a controller make many small jobs, rest beside them and start again; then another one beside the same.

    The jobs are left: to clear them away would take minutes.
    """
    await side.start()
    try:
        made_s = await _made(api, jobs(size.steady, 1), 1)
        await _quiet(audit, side)
        cores, wrote = await _resting(side, audit, size.steady_s)
        peak_mib = side.usage().peak_mib
    finally:
        await side.stop()
    caught_up_s, wrote_again = await _again(side, audit, size.steady)
    await side.stop()
    found = Rest(made_s, cores, peak_mib, caught_up_s, wrote, wrote_again)
    caught_up_s, wrote_again = await _again(other, audit, size.steady)
    try:
        await _quiet(audit, other)
        cores, wrote = await _resting(other, audit, size.steady_s)
        peak_mib = other.usage().peak_mib
    finally:
        await other.stop()
    return found, Rest(0.0, cores, peak_mib, caught_up_s, wrote, wrote_again)


async def _made(api: Api, wanted: Sequence[dict[str, object]], workers: int) -> float:
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        group.create_task(api.create_all(wanted))
        await all_running(api, len(wanted), workers, GIVE_UP_S)
    return time.monotonic() - began_s


async def _quiet(audit: Audit, side: Side) -> None:
    """Wait until the controller has sent nothing for a while: its Events lag behind."""
    at, since_s = audit.at(), time.monotonic()
    async with asyncio.timeout(GIVE_UP_S):
        while time.monotonic() - since_s < QUIET_S:
            await asyncio.sleep(0.1)
            now = audit.at()
            if now > at and audit.since(at, side.agent):
                since_s = time.monotonic()
            at = now


async def _lost(api: Api, size: Size, rng: random.Random) -> list[float]:
    """Delete pods at once, one after the other, and time each until another of its name is seen."""
    took = []
    async with watched_pods(api, size.pods) as pods:
        for name in rng.sample(pods.names(), min(size.lost, size.pods)):
            await asyncio.sleep(rng.uniform(*_PAUSES_S))
            seen = pods.replaced(name)
            began_s = time.monotonic()
            await api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
            async with asyncio.timeout(GIVE_UP_S):
                took.append(await seen - began_s)
    return took


async def _deleted(api: Api, job: str) -> float:
    """Delete one job and wait until its pods and Services are gone."""
    began_s = time.monotonic()
    await api.delete(f"{JOBS}/{job}?propagationPolicy=Background")
    async with asyncio.timeout(GIVE_UP_S):
        for path in (PODS, SERVICES):
            # Version 0 is what the server has in memory: a consistent list may wait 100 ms for etcd.
            await _none_left(api, f"{path}?labelSelector={OF_JOB}%3D{job}&resourceVersion=0")
    return time.monotonic() - began_s


async def _cleared(api: Api) -> float:
    """Delete all jobs and wait until all their pods and Services are gone."""
    began_s = time.monotonic()
    await api.delete(f"{JOBS}?propagationPolicy=Background")
    async with asyncio.timeout(GIVE_UP_S):
        for path in (PODS, SERVICES, JOBS):
            await _none_left(api, f"{path}?limit=1")
    return time.monotonic() - began_s


async def _none_left(api: Api, path: str) -> None:
    while True:
        if not (await api.get(path))["items"]:
            return
        await asyncio.sleep(_LOOK_S)


async def _resting(side: Side, audit: Audit, for_s: float) -> tuple[float, int]:
    """Let it rest. Returns the cores that it used meanwhile and how often it wrote."""
    at, before_s, began_s = audit.at(), side.usage().cpu_s, time.monotonic()
    await asyncio.sleep(for_s)
    cores = (side.usage().cpu_s - before_s) / (time.monotonic() - began_s)
    return cores, writes(audit.since(at, side.agent))


async def _again(side: Side, audit: Audit, count: int) -> tuple[float, int]:
    """Start it beside jobs that are as they should be. Returns how long it took and how often it wrote."""
    at = audit.at()
    took_s = await restarted(side, count)
    await asyncio.sleep(QUIET_S)
    return took_s, writes(audit.since(at, side.agent))
