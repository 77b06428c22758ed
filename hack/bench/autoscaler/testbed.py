"""The testbed: a control plane with a full cluster, an autoscaler as a process, and gangs that arrive in turn.

All times are of this process's one clock, of when its watches show a thing. In place of the controllers that are not
here it deletes the pods of a job that shrank and puts the gang's pods on their nodes, so that the cluster stays full.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from hack.bench.autoscaler import scene
from hack.bench.autoscaler.scene import GROUPS, JOBS, PODS, ClusterSize, Raw
from hack.bench.support.measure import memory_mib
from hack.controlplane.api import Api
from hack.controlplane.plane import ControlPlane, free_ports

GIVE_UP_S = 60.0
MARKER = "bench.turnout.dev/marker"


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct, rename="camel"):
    parallelism: int = 0
    node_name: str = ""


class _Thing(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Event(msgspec.Struct):
    type: str
    object: _Thing


_event = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class WatchRecord:
    """What the watches have shown, and when."""

    first_s: dict[str, float] = field(default_factory=dict)  # by name of pod or PodGroup: first seen at, monotonic
    shrinks: asyncio.Queue[tuple[str, int, float]] = field(default_factory=asyncio.Queue)  # (job, new size, time)
    sizes: dict[str, int] = field(default_factory=dict)  # by job: its size that was seen last
    marker_times_s: asyncio.Queue[float] = field(default_factory=asyncio.Queue)  # when the annotation MARKER changed
    on_pod: Callable[[str], None] = lambda _: None  # called with the name of each new pod and PodGroup
    marker: str = ""  # value of MARKER that was seen last

    def note(self, event: _Event, now_s: float) -> None:
        """Record when a pod or PodGroup was first seen, and call `on_pod` then. Later events change nothing.

        now_s: when the event arrived.
        """
        name = event.object.metadata.name
        if event.type == "ADDED" and name not in self.first_s:
            self.first_s[name] = now_s
            self.on_pod(name)

    def note_job(self, event: _Event, now_s: float) -> None:
        """Record a smaller size of a job, or another value of its annotation MARKER. now_s: when the event arrived."""
        name, size = event.object.metadata.name, event.object.spec.parallelism
        if size < self.sizes.get(name, size):
            self.shrinks.put_nowait((name, size, now_s))
        self.sizes[name] = size
        marker = event.object.metadata.annotations.get(MARKER, "")
        if marker != self.marker:
            self.marker = marker
            self.marker_times_s.put_nowait(now_s)


class Testbed:
    """One cluster of one size, from `open_testbed`.

    Call `start_autoscaler` once, then `react`; each gang takes the lent workers of one job.
    """

    def __init__(
        self, plane: ControlPlane, size: ClusterSize, api: Api, watch_record: WatchRecord, rng: random.Random
    ) -> None:
        self._plane, self._size, self._api, self.watch_record, self._rng = plane, size, api, watch_record, rng
        self._number = 0
        self._port = 0

    # The autoscaler.

    async def start_autoscaler(self) -> float:
        """Start the autoscaler and wait until it has decided. Return how many seconds that took.

        Raises TimeoutError after GIVE_UP_S.
        """
        began_s = time.monotonic()
        (self._port,) = free_ports(1)
        argv = [sys.executable, "-m", "turnout.autoscaler", "--kubeconfig", str(self._plane.kubeconfig), "--act"]
        argv += ["--lease", "default/turnout-autoscaler", "--log-level", "warning"]
        argv += ["--metrics-bind", f"127.0.0.1:{self._port}"]
        url = f"http://127.0.0.1:{self._port}/readyz"
        await asyncio.to_thread(self._plane.start_program, "autoscaler", argv, url)
        async with asyncio.timeout(GIVE_UP_S):
            while True:
                if await self.metric("turnout_autoscaler_decide_seconds_count"):
                    return time.monotonic() - began_s
                await asyncio.sleep(0.1)

    async def metric(self, series: str) -> float:
        """Return the value of a series on the autoscaler's metrics page; 0.0 if it is missing."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self._port}/metrics") as answer:
            for line in (await answer.text()).splitlines():
                if line.startswith(f"{series} "):
                    return float(line.rpartition(" ")[2])
        return 0.0

    def memory_mib(self, field: str = "VmRSS") -> float:
        """Return the memory of the autoscaler in MiB. field: VmRSS for now, VmHWM for the most so far."""
        return memory_mib(self._plane.pid("autoscaler"), field)

    # What is timed, in seconds.

    async def time_new_pods(self, times: int) -> list[float]:
        """Create a pod `times` times. Return, for each, the seconds until a watch shows it: the lower bound of a
        reaction. Raises TimeoutError after GIVE_UP_S.
        """
        took = []
        for at in range(times):
            pod = scene.members(f"floor-{at}", self._size, [""])[0]
            began_s = time.monotonic()
            await self._api.create(pod)
            took.append(await self._first_s(pod["metadata"]["name"]) - began_s)
            await self._api.delete(f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
        return took

    async def time_plain_patches(self, times: int) -> list[float]:
        """Create a pod `times` times; return, for each, the seconds from its first event until a job was patched.

        A watcher that decides nothing patches: these are the costs of a reaction without the autoscaler's work. Raises
        TimeoutError after GIVE_UP_S.
        """
        took, tasks = [], set[asyncio.Task[Any]]()

        def patch(name: str) -> None:
            body = {"metadata": {"annotations": {MARKER: name}}}
            tasks.add(asyncio.create_task(self._api.patch(f"{JOBS}/job-00000", body)))

        self.watch_record.on_pod = patch
        for at in range(times):
            pod = scene.members(f"marker-{at}", self._size, [""])[0]
            name = pod["metadata"]["name"]
            await self._api.create(pod)
            async with asyncio.timeout(GIVE_UP_S):
                ended_s = await self.watch_record.marker_times_s.get()
            took.append(ended_s - await self._first_s(name))
            await self._api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
        self.watch_record.on_pod = lambda _: None
        await asyncio.gather(*tasks)
        return took

    async def react(self, form: str, together: int = 1) -> list[float]:
        """Create gangs at the same time. Return, for each, the seconds from its first event until a job shrank for it.

        Afterwards the jobs give up their workers and the gangs run. form: "pods", or the phase of a PodGroup. together:
        number of gangs. The first events, in order of time, are paired with the shrinks in order of time. Raises
        TimeoutError after GIVE_UP_S.
        """
        await asyncio.sleep(self._rng.uniform(0.02, 0.25))
        names = [f"gang-{self._number + at:05d}" for at in range(together)]
        self._number += together
        if form == "pods":
            firsts = [f"{name}-0" for name in names]
            objects = [pod for name in names for pod in scene.gang(name, self._size)]
        else:
            firsts, objects = names, [scene.group(name, self._size, form) for name in names]
        creation = asyncio.create_task(self._api.create_all(objects))
        async with asyncio.timeout(GIVE_UP_S):
            shrunk = [await self.watch_record.shrinks.get() for _ in names]
            began_s = sorted([await self._first_s(name) for name in firsts])
        await creation
        for name, (job, size, _) in zip(names, shrunk, strict=True):
            await self._shrink_job_and_start_gang(name, job, size, form)
        return [ended_s - began for began, (_, _, ended_s) in zip(began_s, shrunk, strict=True)]

    # In place of controllers.

    async def _shrink_job_and_start_gang(self, gang: str, job: str, size: int, form: str) -> None:
        """Delete the job's pods with an index of `size` or more, and bind the gang's pods to their nodes.

        form: "pods": the gang's pods exist already; else they are created, and its PodGroup is set to Running.
        """
        names = [f"{job}-{index}" for index in range(size, self._size.workers)]
        places = [pod["spec"]["nodeName"] for pod in [await self._api.get(f"{PODS}/{name}") for name in names]]
        for name in names:
            await self._api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
        if form == "pods":
            for rank, place in enumerate(places):
                await self._api.call("POST", f"{PODS}/{gang}-{rank}/binding", _binding(f"{gang}-{rank}", place))
            return
        await self._api.create_all(scene.members(gang, self._size, places))
        await self._api.patch(f"{GROUPS}/{gang}", {"status": {"phase": "Running"}})

    async def _first_s(self, name: str) -> float:
        """Return when a watch first reported the object `name`, in monotonic seconds; wait for the report if necessary.

        Raises TimeoutError after GIVE_UP_S.
        """
        async with asyncio.timeout(GIVE_UP_S):
            while True:
                if name in self.watch_record.first_s:
                    return self.watch_record.first_s[name]
                await asyncio.sleep(0.001)


@asynccontextmanager
async def open_testbed(plane: ControlPlane, size: ClusterSize, rng: random.Random) -> AsyncIterator[Testbed]:
    """Create the cluster and start the watches; stop them at the end of the block. rng: chooses pauses."""
    async with plane.api() as api:
        await api.create(scene.group_crd())
        await api.create_all(scene.nodes(size))
        jobs = await api.create_all(scene.jobs(size))
        await api.create_all(scene.pods(size, jobs))
        await api.await_served(GROUPS)
        watch_record = WatchRecord(sizes={job["metadata"]["name"]: size.workers for job in jobs})
        watched = ((JOBS, watch_record.note_job), (PODS, watch_record.note), (GROUPS, watch_record.note))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_follow(api, path, await _version(api, path), note)) for path, note in watched]
            try:
                yield Testbed(plane, size, api, watch_record, rng)
            finally:
                for task in tasks:
                    task.cancel()


async def _follow(api: Api, path: str, version: str, note: Callable[[_Event, float], None]) -> None:
    """Pass each change after a resource version, and when it arrived (monotonic seconds), to `note`, without end.

    path: of the collection. Raises RuntimeError if the server ends the watch.
    """
    async with aclosing(api.events(f"{path}?watch=1&resourceVersion={version}")) as events:
        async for line, now_s in events:
            note(_event.decode(line), now_s)
    raise RuntimeError(f"the watch of {path} ended")


async def _version(api: Api, path: str) -> str:
    listed = await api.get(f"{path}?limit=1")
    return str(listed["metadata"]["resourceVersion"])


def _binding(pod: str, place: str) -> Raw:
    target = {"apiVersion": "v1", "kind": "Node", "name": place}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
