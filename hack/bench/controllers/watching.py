"""Watches of jobs and pods, decoded no further than needed: the bench shares its cores with all the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import msgspec

from hack.bench.controllers.scene import JOBS, PODS
from hack.controlplane.api import Api


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Replicas(msgspec.Struct):
    active: int = 0


class _Status(msgspec.Struct, rename="camel"):
    conditions: list[_Condition] = []
    replica_statuses: dict[str, _Replicas] = {}


class _Job(msgspec.Struct):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


class _Pod(msgspec.Struct):
    metadata: _Meta


class _JobEvent(msgspec.Struct):
    type: str
    object: _Job


class _PodEvent(msgspec.Struct):
    type: str
    object: _Pod


_job, _pod = msgspec.json.Decoder(_JobEvent), msgspec.json.Decoder(_PodEvent)


async def wait_until_running(api: Api, count: int, workers: int, within_s: float) -> None:
    """Wait until `count` jobs have the condition Running and `workers` active workers.

    Raises TimeoutError after `within_s` seconds.
    """
    running = set[str]()
    done = asyncio.Event()

    def note(line: bytes, _: float) -> None:
        """Note by one line of the watch whether a job runs, and set `done` once enough jobs run."""
        event = _job.decode(line)
        status, name = event.object.status, event.object.metadata.name
        active = sum(each.active for each in status.replica_statuses.values())
        if active == workers and any(each.type == "Running" and each.status == "True" for each in status.conditions):
            running.add(name)
        else:
            running.discard(name)
        if len(running) >= count:
            done.set()

    async with asyncio.timeout(within_s), _follow_watch(api, JOBS, note):
        await done.wait()


class WatchedPods:
    """The pods as a watch shows them. Call `replacement` before you delete a pod."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._waiting: dict[str, tuple[str, asyncio.Future[float]]] = {}

    def names(self) -> list[str]:
        """Return the sorted names of the present pods."""
        return sorted(self._uids)

    def replacement(self, name: str) -> asyncio.Future[float]:
        """Return a future of the time, on the monotonic clock, at which another pod with this name is first seen.

        Raises KeyError if no pod has this name now.
        """
        replacement = asyncio.get_running_loop().create_future()
        self._waiting[name] = self._uids[name], replacement
        return replacement

    def note(self, line: bytes, now_s: float) -> None:
        """Record one line of the watch; resolve the future of a pod that it replaces. now_s: when the line arrived."""
        event = _pod.decode(line)
        name, uid = event.object.metadata.name, event.object.metadata.uid
        if event.type == "DELETED":
            self._uids.pop(name, None)
            return
        self._uids[name] = uid
        if name in self._waiting and self._waiting[name][0] != uid:
            self._waiting.pop(name)[1].set_result(now_s)


@asynccontextmanager
async def watched_pods(api: Api, count: int, within_s: float = 60.0) -> AsyncIterator[WatchedPods]:
    """Follow the pods while the block runs.

    The block begins when at least `count` pods are known. Raises TimeoutError if that takes longer than `within_s`
    seconds.
    """
    pods = WatchedPods()
    async with _follow_watch(api, PODS, pods.note):
        async with asyncio.timeout(within_s):
            while True:
                if len(pods.names()) >= count:
                    break
                await asyncio.sleep(0.05)
        yield pods


@asynccontextmanager
async def _follow_watch(api: Api, path: str, note: Callable[[bytes, float], None]) -> AsyncIterator[None]:
    """Pass each line of a watch to `note` while the block runs, beginning with everything that exists."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_follow(api, path, note))
        try:
            yield
        finally:
            task.cancel()


async def _follow(api: Api, path: str, note: Callable[[bytes, float], None]) -> None:
    """Pass each line of a watch to `note`, until cancelled. Raises ApiError if the server refuses the watch.

    The server ends a watch that falls behind; the next one begins with everything that exists.
    """
    while True:
        async with aclosing(api.events(f"{path}?watch=1&resourceVersion=0&timeoutSeconds=3600")) as events:
            async for line, now_s in events:
                note(line, now_s)
