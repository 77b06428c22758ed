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

from hack.bench.controllers.audit import Audit, count_writes
from hack.bench.controllers.scene import JOBS, OF_JOB, PODS, SERVICES, WorkloadSize, cluster, jobs
from hack.bench.controllers.sides import Controller, ControllerUsage, TrainingOperator, TurnoutController, restart
from hack.bench.controllers.watching import wait_until_running, watched_pods
from hack.controlplane.api import Api
from hack.controlplane.plane import ControlPlane

GIVE_UP_S = 1500.0  # timeout of each wait
QUIET_S = 2.0  # without a request: the controller has no more work
_POLL_S = 0.01  # between two lists of `_wait_until_empty`
_PAUSES_S = (0.01, 0.06)  # random pause before a pod is deleted, so that the controller is in any state


@dataclass(frozen=True, slots=True)
class ControllerTrial:
    """The measurements of one controller's run."""

    running_s: float  # from the first job's creation until all are Running with all workers active
    used: ControllerUsage  # CPU time from the start until the controller sent nothing more; peak memory
    requests: Counter[str] = field(default_factory=Counter)  # by verb and resource, in the same time
    lost_s: Sequence[float] = ()  # for each deleted pod, until its replacement was seen
    all_deleted_s: float = 0.0  # from the deletion of all jobs at once until all jobs, pods and Services were gone


@dataclass(frozen=True, slots=True)
class IdleMeasurement:
    """The measurements of a controller whose jobs need no changes."""

    created_s: float  # until all jobs were Running; 0 if another controller created them
    cores: float  # of CPU on average, at rest: 0.05 is 5 % of one core
    peak_mib: float  # of memory, before the restart
    caught_up_s: float  # from a restart until the controller looked at all jobs
    writes_at_rest: int
    writes_after_restart: int


@asynccontextmanager
async def open_cluster(plane: ControlPlane) -> AsyncIterator[tuple[Api, TrainingOperator, TurnoutController]]:
    """Prepare a cluster with nodes, kwok, a garbage collector and no job; yield a client and both controllers, stopped.

    The Training Operator is started and stopped once, because it installs its CRDs.
    """
    await asyncio.to_thread(plane.start_kwok)
    theirs, ours = TrainingOperator(plane), TurnoutController(plane)
    async with plane.api() as api:
        for each in cluster():
            await api.create(each)
        await theirs.start()
        await theirs.stop()
        await api.await_served(JOBS)
        # Not before: the garbage collector looks for kinds that are new every 30 s only.
        await asyncio.to_thread(plane.start_controller_manager, ("garbage-collector-controller",))
        yield api, theirs, ours


async def run_trial(
    side: Controller, api: Api, audit: Audit, size: WorkloadSize, rng: random.Random
) -> ControllerTrial:
    """Start one controller, create the jobs, delete some pods and all jobs, and stop the controller; time each part.

    No job, pod or Service is left. Raises TimeoutError if a step takes longer than GIVE_UP_S; the controller is stopped
    then, too, and objects are left. rng: chooses the pods and the pauses. audit: counts the controller's requests.
    """
    await side.start()
    try:
        began_at, before = audit.size_bytes(), side.usage()
        running_s = await _create_jobs(api, jobs(size.jobs, size.workers), size.workers)
        await _wait_until_quiet(audit, side)
        after, requests = side.usage(), audit.count_since(began_at, side.agent)
        lost_s = await _time_replacements(api, size, rng)
        all_deleted_s = await _time_deletion_of_all(api)
    finally:
        await side.stop()
    used = ControllerUsage(after.cpu_s - before.cpu_s, after.peak_mib)
    return ControllerTrial(running_s, used, requests, lost_s, all_deleted_s)


async def time_deletions(side: Controller, api: Api, size: WorkloadSize) -> list[float]:
    """Run one controller over `size.deleted_jobs` jobs and delete them, one after the other.

    Returns, for each job, the seconds from its deletion until its pods and Services were gone. Raises TimeoutError if
    a step takes longer than GIVE_UP_S.
    """
    await side.start()
    try:
        await _create_jobs(api, jobs(size.deleted_jobs, size.workers), size.workers)
        return [await _time_deletion(api, f"job-{at:05d}") for at in range(size.deleted_jobs)]
    finally:
        await side.stop()


async def measure_idle(
    side: Controller, other: Controller, api: Api, audit: Audit, size: WorkloadSize
) -> tuple[IdleMeasurement, IdleMeasurement]:
    """Measure `side` while its jobs need no changes, and after a restart; then start `other` on the same jobs.

    Returns the figures of both; created_s of `other` is 0. The jobs are left, because deleting them would take minutes.
    audit: counts the controllers' requests. Raises TimeoutError if a step takes too long.
    """
    await side.start()
    try:
        created_s = await _create_jobs(api, jobs(size.steady_jobs, 1), 1)
        await _wait_until_quiet(audit, side)
        cores, writes_at_rest = await _measure_rest(side, audit, size.steady_s)
        peak_mib = side.usage().peak_mib
    finally:
        await side.stop()
    caught_up_s, writes_after_restart = await _restart(side, audit, size.steady_jobs)
    await side.stop()
    found = IdleMeasurement(created_s, cores, peak_mib, caught_up_s, writes_at_rest, writes_after_restart)
    caught_up_s, writes_after_restart = await _restart(other, audit, size.steady_jobs)
    try:
        await _wait_until_quiet(audit, other)
        cores, writes_at_rest = await _measure_rest(other, audit, size.steady_s)
        peak_mib = other.usage().peak_mib
    finally:
        await other.stop()
    return found, IdleMeasurement(0.0, cores, peak_mib, caught_up_s, writes_at_rest, writes_after_restart)


async def _create_jobs(api: Api, objects: Sequence[dict[str, object]], workers: int) -> float:
    """Create jobs and wait until all run with all workers. Return the seconds from the first creation.

    Raises TimeoutError if they do not within GIVE_UP_S. objects: the jobs. workers: of each job.
    """
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        group.create_task(api.create_all(objects))
        await wait_until_running(api, len(objects), workers, GIVE_UP_S)
    return time.monotonic() - began_s


async def _wait_until_quiet(audit: Audit, side: Controller) -> None:
    """Wait until the controller sent no request for QUIET_S seconds, since its Events lag behind.

    Raises TimeoutError after GIVE_UP_S.
    """
    at, since_s = audit.size_bytes(), time.monotonic()
    async with asyncio.timeout(GIVE_UP_S):
        while time.monotonic() - since_s < QUIET_S:
            await asyncio.sleep(0.1)
            now = audit.size_bytes()
            if now > at and audit.count_since(at, side.agent):
                since_s = time.monotonic()
            at = now


async def _time_replacements(api: Api, size: WorkloadSize, rng: random.Random) -> list[float]:
    """Delete `size.lost_pods` random pods, all of them if there are fewer, one after the other and without grace.

    Returns, for each in the order of deletion, the seconds until another pod with its name was seen. Raises
    TimeoutError if one of them is not replaced within GIVE_UP_S. size: of the run, whose pods all exist. rng: chooses
    the pods and the pause before each.
    """
    took = []
    async with watched_pods(api, size.pods) as pods:
        for name in rng.sample(pods.names(), min(size.lost_pods, size.pods)):
            await asyncio.sleep(rng.uniform(*_PAUSES_S))
            replacement = pods.replacement(name)
            began_s = time.monotonic()
            await api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
            async with asyncio.timeout(GIVE_UP_S):
                took.append(await replacement - began_s)
    return took


async def _time_deletion(api: Api, job: str) -> float:
    """Delete one job. Return the seconds until its pods and Services are gone. Raises TimeoutError after GIVE_UP_S."""
    began_s = time.monotonic()
    await api.delete(f"{JOBS}/{job}?propagationPolicy=Background")
    async with asyncio.timeout(GIVE_UP_S):
        for path in (PODS, SERVICES):
            # Version 0 is what the server has in memory: a consistent list may wait 100 ms for etcd.
            await _wait_until_empty(api, f"{path}?labelSelector={OF_JOB}%3D{job}&resourceVersion=0")
    return time.monotonic() - began_s


async def _time_deletion_of_all(api: Api) -> float:
    """Delete all jobs at once. Return the seconds until all jobs, pods and Services are gone.

    Raises TimeoutError after GIVE_UP_S.
    """
    began_s = time.monotonic()
    await api.delete(f"{JOBS}?propagationPolicy=Background")
    async with asyncio.timeout(GIVE_UP_S):
        for path in (PODS, SERVICES, JOBS):
            await _wait_until_empty(api, f"{path}?limit=1")
    return time.monotonic() - began_s


async def _wait_until_empty(api: Api, path: str) -> None:
    """Get the list at `path` repeatedly until it has no items. The caller limits the time."""
    while True:
        if not (await api.get(path))["items"]:
            return
        await asyncio.sleep(_POLL_S)


async def _measure_rest(side: Controller, audit: Audit, for_s: float) -> tuple[float, int]:
    """Watch a controller that has nothing to do. Return (CPU cores used on average, number of its writes).

    for_s: length of the measurement.
    """
    at, before_s, began_s = audit.size_bytes(), side.usage().cpu_s, time.monotonic()
    await asyncio.sleep(for_s)
    cores = (side.usage().cpu_s - before_s) / (time.monotonic() - began_s)
    return cores, count_writes(audit.count_since(at, side.agent))


async def _restart(side: Controller, audit: Audit, count: int) -> tuple[float, int]:
    """Start a controller when `count` jobs exist that need no changes.

    Returns the seconds until it looked at all jobs, and the number of its writes until QUIET_S later. The controller is
    left running.
    """
    at = audit.size_bytes()
    took_s = await restart(side, count)
    await asyncio.sleep(QUIET_S)
    return took_s, count_writes(audit.count_since(at, side.agent))
