"""Run one kubelet for all nodes: watch bound pods and move each along the table of simulator/cluster/kubelet.py."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

import aiohttp

from turnout.kube.times import rfc3339
from turnout.simulator.cluster.kubelet import (
    NextState,
    Pace,
    PodState,
    exit_code,
    missing_image,
    next_state,
    pull_failure_status,
    state_of,
    status_in,
)
from turnout.simulator.cluster.runtime.clients import ApiClient, ApiError
from turnout.simulator.cluster.runtime.scheduler_loop import error_message, log_and_skip

log = logging.getLogger(__name__)

_BOUND = "/api/v1/pods?fieldSelector=spec.nodeName!%3D"
_STRATEGIC = "application/strategic-merge-patch+json"
_AT_ONCE = 32
Object = dict[str, Any]


class Processes(Protocol):
    """The interface of a runner of pods as processes, from their binding to their end."""

    def pod_changed(self, pod: Object) -> None:
        """Store a pod on one of our nodes that is new or has changed. The runner decides whether it runs the pod."""

    def pod_deleted(self, uid: str) -> None:
        """End the processes of a pod because its object, or its node, was deleted. Do nothing for an unknown uid."""

    def runs(self, uid: str) -> bool:
        """Return True if the runner runs this pod as a process. Then the table of states does not apply to it."""


class Kubelet:
    """Moves pods along their states."""

    def __init__(
        self,
        api: ApiClient,
        pace: Pace,
        is_own_node: Callable[[str], bool],
        host_ip: Callable[[str], str],
        processes: Processes | None = None,
        images: Collection[str] | None = None,
    ) -> None:
        """Make a kubelet that does not run yet.

        pace: how long states last. is_own_node: returns True for the name of a node of ours. host_ip: returns a node's
        address. processes: runs the pods that state a command; None leaves all pods to the table. images: the images
        that can be pulled; None for any. A pod with another image stays in ErrImagePull.
        """
        self._api, self._pace, self._is_own_node, self._host_ip = api, pace, is_own_node, host_ip
        self._processes, self._images = processes, images
        self._pods: dict[str, Object] = {}
        self._since: dict[str, tuple[PodState, float]] = {}
        self._unpulled: set[str] = set()  # uids of pods whose image is missing
        self._due: list[tuple[float, int, str, PodState]] = []
        self._count = itertools.count()
        self._addresses = itertools.count(1)
        self._news = asyncio.Event()
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Watch bound pods, and move them to their next states at their times, until cancelled. Call it once."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            while True:
                pause_s = self._due[0][0] - _now_s() if self._due else None
                if pause_s is None or pause_s > 0:
                    self._news.clear()
                    try:
                        async with asyncio.timeout(pause_s):
                            await self._news.wait()
                    except TimeoutError:
                        pass  # a pod's next change is due
                    continue
                _, _, uid, to = heapq.heappop(self._due)
                pod, due = self._pods.get(uid), False
                with log_and_skip("pods", pod):
                    due = pod is not None and (next_ := self._next_state(pod)) is not None and next_.to is to
                if pod is not None and due:
                    await self._room.acquire()
                    tasks.create_task(self._enter_state(pod, to))

    async def _watch(self) -> None:
        """Watch bound pods until cancelled. A watch that fails is logged, and begins again after a pause."""
        while True:
            try:
                async for event, pod in self._api.changes(_BOUND):
                    if event != "SYNCED":
                        with log_and_skip("pods", pod.obj):
                            self._observe_pod(event, pod.obj)
            except (aiohttp.ClientError, ApiError, TimeoutError) as error:
                log.warning("watch_failed", extra={"kind": "pods", "why": str(error)})
                await asyncio.sleep(0.5)

    def _observe_pod(self, event: str, pod: Object) -> None:
        """Store a bound pod and plan its next state, or pass it to the runner of processes. A deleted pod is forgotten.

        event: ADDED, MODIFIED or DELETED.
        """
        uid = pod["metadata"]["uid"]
        if event == "DELETED" or not self._is_own_node(pod.get("spec", {}).get("nodeName", "")):
            self._pods.pop(uid, None)
            self._since.pop(uid, None)
            self._unpulled.discard(uid)
            if self._processes is not None:
                self._processes.pod_deleted(uid)
            return
        if self._processes is not None and not missing_image(pod, self._images):
            self._processes.pod_changed(pod)
            if self._processes.runs(uid):
                return
        self._pods[uid] = pod
        state = state_of(pod)
        before = self._since.get(uid)
        corrected = uid in self._unpulled and not missing_image(pod, self._images)
        if before is not None and before[0] is state and state is not PodState.TERMINATING and not corrected:
            return  # its time runs already; only a grace may be cut short
        since_s = before[1] if before is not None and before[0] is state else _now_s()
        self._since[uid] = (state, since_s)
        if (next_ := self._next_state(pod)) is not None:
            self._plan(since_s + next_.after_s, uid, next_.to)

    def _next_state(self, pod: Object) -> NextState | None:
        """Return the next state that a pod enters by itself, and after how long; None if it stays as it is.

        A pod whose image does not exist never runs, and its uid is in `_unpulled` until the image exists.
        """
        next_ = next_state(pod, self._pace)
        if not missing_image(pod, self._images):
            self._unpulled.discard(pod["metadata"]["uid"])
            return next_
        self._unpulled.add(pod["metadata"]["uid"])
        return None if next_ is not None and next_.to is PodState.RUNNING else next_

    async def _enter_state(self, pod: Object, to: PodState) -> None:
        """Write the next state of a pod to the API, or delete the pod for DELETED. Never raises.

        A conflict, or a pod that does not exist any more, is ignored: its next event decides. Another failure of the
        API server is logged, and tried again after a second. Any other exception is logged, and the pod stays as it is.
        The slot in `_room` is released.
        """
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        try:
            if to is PodState.DELETED:
                only_this = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
                await self._api.call("DELETE", path, only_this)
            else:
                body = {"metadata": {"uid": meta["uid"]}, "status": self._status(pod, to)}
                await self._api.call("PATCH", f"{path}/status", body, _STRATEGIC)
        except ApiError as error:
            if error.code not in (404, 409):
                log.warning("pod_stuck", extra={"pod": f"{meta['namespace']}/{meta['name']}", "why": str(error)})
                self._plan(_now_s() + 1.0, meta["uid"], to)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("pod_stuck", extra={"pod": f"{meta['namespace']}/{meta['name']}", "why": str(error)})
            self._plan(_now_s() + 1.0, meta["uid"], to)
        except Exception as error:  # a malformed pod keeps its state
            log.warning("pod_stuck", extra={"pod": f"{meta['namespace']}/{meta['name']}", "why": error_message(error)})
        finally:
            self._room.release()

    def _status(self, pod: Object, to: PodState) -> Object:
        """Return the status of a pod that enters a state. Instead of PULLING, a pod with a missing image gets
        ErrImagePull.

        to: PULLING, RUNNING or ENDED.
        """
        stamp, host = rfc3339(time.time()), self._host_of(pod)
        if to is PodState.PULLING and (image := missing_image(pod, self._images)):
            return pull_failure_status(pod, image, stamp, host)
        return status_in(pod, to, stamp, self._address(pod), host, exit_code(pod))

    def _plan(self, at_s: float, uid: str, to: PodState) -> None:
        """Plan that a pod enters a state. at_s: by the clock of the event loop. uid: of the pod. to: the state."""
        heapq.heappush(self._due, (at_s, next(self._count), uid, to))
        self._news.set()

    def _address(self, pod: Object) -> str:
        """Return the pod's IP address: the one it has, else the next of 10.128.0.0/10.

        After 4,194,304 pods the addresses are used again.
        """
        has = (pod.get("status") or {}).get("podIP")
        if has:
            return str(has)
        number = next(self._addresses) % (1 << 22)
        return f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"

    def _host_of(self, pod: Object) -> str:
        """Return the IP address of a pod's node, "" if unknown. The pod must have a node."""
        return self._host_ip(pod["spec"]["nodeName"])


def _now_s() -> float:
    """Return the time of the event loop, in seconds."""
    return asyncio.get_running_loop().time()
