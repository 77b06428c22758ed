"""Write the switch paths that switch_path.py decides on: one patch per pod, only where the path differs, by one leader.

Each patch carries the pod's uid, so a new pod of the same name never gets the path of the pod before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter

from turnout.kube import labels
from turnout.kube.backoff import Backoff
from turnout.kube.client.clock import Clock
from turnout.kube.errors import CallError, Conflict, NotFound, Rejected
from turnout.kube.objects import Pod
from turnout.scheduler_ext.planner.switch_path import Mark, marks
from turnout.scheduler_ext.server.extender import Extender

log = logging.getLogger("turnout.nominator")

AT_ONCE = 16
LOOK_EACH_S = 5.0  # at everything: another map, and what failed
SENT_S = 15.0  # how long a patch that the watch has not shown yet is not repeated
PAUSE = Backoff(first_s=1.0, max_s=300.0)  # of all patches, when the server refuses or fails


class Pods(Protocol):
    """The part of a Client that is needed here."""

    async def patch(self, path: str, body: dict[str, Any], *, field_manager: str) -> bytes:
        """Patch a pod and return the result. Raises CallError."""


class SwitchPaths:
    """The counters for the metrics page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.written = Counter("turnout_switch_paths", "Switch paths written on pods.", registry=registry)
        self.failed = Counter(
            "turnout_switch_path_failures", "Patches that were refused, by error.", ["error"], registry=registry
        )


class PathMarker:
    """Keeps the switch paths on the pods of one cluster equal to the map while `run` runs."""

    def __init__(
        self, view: Extender, pods: Pods, clock: Clock, registry: CollectorRegistry, may_write: Callable[[], bool]
    ) -> None:
        """Start watching pods.

        may_write: True while the Lease is ours; called before each patch.
        """
        self._view, self._pods, self._clock, self._may_write = view, pods, clock, may_write
        self._counts = SwitchPaths(registry)
        self._noted: dict[str, str] = {}  # uid of each bound pod -> the path that it carries
        self._sent: dict[str, tuple[str, float]] = {}
        self._given_up: set[str] = set()  # until they change
        self._failures, self._paused_until_s = 0, 0.0
        self._dirty: dict[str, None] = {}
        self._news = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)
        view.on_pod.append(self.see)

    def see(self, pod: Pod) -> None:
        """Take in a pod as the watch shows it."""
        uid = pod.metadata.uid
        self._given_up.discard(uid)
        if not pod.spec.node_name or uid not in self._view.gangs.pods:
            self._forget(uid)
            return
        self._noted[uid] = (pod.metadata.annotations or {}).get(labels.SWITCH_PATH, "")
        self._dirty[uid] = None
        self._news.set()

    async def run(self) -> None:
        """Write paths until cancelled. Patches under way are cancelled, too, so a former leader writes nothing."""
        self._room = asyncio.Semaphore(AT_ONCE)  # a term that was cut off gave none of its room back
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            while True:
                await self._news.wait()
                self._news.clear()
                uids, self._dirty = list(self._dirty), {}
                for mark in self._decide(uids):
                    await self._room.acquire()
                    tasks.create_task(self._write(mark, self._room))

    async def _tick(self) -> None:
        while True:
            for uid in [uid for uid in self._noted if uid not in self._view.gangs.pods]:
                self._forget(uid)
            self._dirty.update(dict.fromkeys(self._noted))
            self._news.set()
            await self._clock.sleep(LOOK_EACH_S)

    def _decide(self, uids: Iterable[str]) -> list[Mark]:
        now_s = self._clock.monotonic()
        if now_s < self._paused_until_s:
            return []
        fresh = []
        for mark in marks(self._view.gangs, self._noted, uids, now_s):
            path, sent_s = self._sent.get(mark.uid, ("", 0.0))
            if mark.uid not in self._given_up and not (path == mark.path and now_s - sent_s < SENT_S):
                fresh.append(mark)
        return fresh

    async def _write(self, mark: Mark, room: asyncio.Semaphore) -> None:
        now_s = self._clock.monotonic()
        body = {"metadata": {"uid": mark.uid, "annotations": {labels.SWITCH_PATH: mark.path}}}
        path = f"/api/v1/namespaces/{mark.namespace}/pods/{mark.name}"
        try:
            if now_s < self._paused_until_s or not self._may_write():
                return
            self._sent[mark.uid] = (mark.path, now_s)
            await self._pods.patch(path, body, field_manager=labels.FIELD_MANAGER_NOMINATOR)
        except CallError as error:
            self._fails(mark, error)
        else:
            self._failures = 0
            self._counts.written.inc()
            log.debug("switch_path_written", extra={"pod": f"{mark.namespace}/{mark.name}", "path": mark.path})
        finally:
            room.release()

    def _fails(self, mark: Mark, error: CallError) -> None:
        """Give up a pod that changed or cannot be written until it changes.

        On other errors pause all patches, longer each time.
        """
        self._counts.failed.labels(type(error).__name__).inc()
        self._sent.pop(mark.uid, None)
        if isinstance(error, (Conflict, NotFound, Rejected)):
            self._given_up.add(mark.uid)
            told = isinstance(error, Rejected)
        else:
            now_s = self._clock.monotonic()
            told = now_s >= self._paused_until_s  # of many on their way at once the first speaks for all
            if told:
                self._failures += 1
                self._paused_until_s = now_s + PAUSE.wait_s(self._failures, 1.0, error.retry_after_s)
        if told:
            pod = f"{mark.namespace}/{mark.name}"
            log.warning("switch_path_failed", extra={"pod": pod, "why": str(error)})

    def _forget(self, uid: str) -> None:
        for kept in (self._noted, self._sent, self._dirty):
            kept.pop(uid, None)
        self._given_up.discard(uid)
