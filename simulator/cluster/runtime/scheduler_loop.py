"""Run the local cluster's scheduler: watch pods and nodes, run one cycle after another, ask the extender, bind.

scheduler.py and scheduling_queue.py decide. A decision counts before the watch shows it, as in kube-scheduler's cache,
and is taken back when the binding fails.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import msgspec

from turnout.jobs.gang import Dialect, membership
from turnout.kube.objects import Node, Pod
from turnout.kube.times import rfc3339
from turnout.simulator.cluster.cluster import Cluster, PodInfo, pod_info_of
from turnout.simulator.cluster.default_plugins import Cursor
from turnout.simulator.cluster.runtime.clients import ApiClient, ApiError, ExtenderClient
from turnout.simulator.cluster.runtime.faults import error_message, left_out
from turnout.simulator.cluster.scheduler import Chosen, ExtenderReply, ExtenderSettings, Outcome, Waits, Why, cycle
from turnout.simulator.cluster.scheduling_queue import HELD, Gangs, WaitingPods

log = logging.getLogger(__name__)

_BINDS_AT_ONCE = 16
_ENDED = ("Succeeded", "Failed")
_pods = msgspec.json.Decoder(Pod)
_nodes = msgspec.json.Decoder(Node)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The settings of the scheduler."""

    name: str = "default-scheduler"
    # further schedulerNames that it serves, whose gangs are held until their min fits
    gangs: tuple[str, ...] = ("volcano", "koord-scheduler")
    extender: ExtenderSettings | None = None
    percentage: int = 0  # percentageOfNodesToScore, 0 for the adaptive default
    # of a pod that found no node: the first pause and the longest, in seconds
    backoff_s: tuple[float, float] = (1.0, 10.0)
    seed: int = 0


class Scheduler:
    """One scheduler for one API server.

    on_outcome: called with (namespace, name, outcome) after every cycle.
    """

    def __init__(
        self,
        api: ApiClient,
        settings: SchedulerSettings,
        extender: ExtenderClient | None = None,
        on_outcome: Callable[[str, str, Outcome], None] | None = None,
    ) -> None:
        self._api, self._settings, self._extender, self._on_outcome = api, settings, extender, on_outcome
        self._dice = random.Random(settings.seed)
        self._cursor = Cursor()
        self._raw: dict[str, bytes] = {}  # waiting pods as they came, for the extender
        self._names: dict[str, tuple[str, str]] = {}
        self._assumed: set[str] = set()
        self._at_once = asyncio.Semaphore(_BINDS_AT_ONCE)
        self._synced = {path: asyncio.Event() for path in ("/api/v1/nodes", "/api/v1/pods", *HELD.values())}
        self._changed = asyncio.Event()
        self._complaints = Complaints(api)
        self._gangs = Gangs()
        self.cluster = Cluster()
        self.waiting = WaitingPods(settings.backoff_s)

    async def run(self) -> None:
        """Schedule until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch("/api/v1/nodes", self._see_node))
            group.create_task(self._watch("/api/v1/pods", self._see_pod))
            for dialect, path in HELD.items():
                group.create_task(self._watch(path, partial(self._see_group, dialect)))
            group.create_task(self._schedule(group))
            group.create_task(self._complaints.run())

    async def _watch(self, path: str, see: Callable[[str, bytes], None]) -> None:
        while True:
            try:
                async for word, obj in self._api.changes(path):
                    if word == "SYNCED":
                        self._synced[path].set()
                    else:
                        with left_out(path):
                            see(word, obj.raw)
                    self._changed.set()
            except (aiohttp.ClientError, ApiError, TimeoutError) as error:
                log.warning("watch_failed", extra={"path": path, "why": str(error)})
                await asyncio.sleep(0.5)

    def _see_node(self, word: str, raw: bytes) -> None:
        node = _nodes.decode(raw)
        if word == "DELETED":
            self.cluster.drop_node(node.metadata.name)
        else:
            self.cluster.put_node(node)
        self.waiting.wake()

    def _see_group(self, dialect: Dialect, word: str, raw: bytes) -> None:
        group = msgspec.json.decode(raw)
        least = 0 if word == "DELETED" else int(group.get("spec", {}).get("minMember") or 0)
        self._gangs.put_group(dialect, group["metadata"]["namespace"], group["metadata"]["name"], least)
        self.waiting.wake()

    def _see_pod(self, word: str, raw: bytes) -> None:
        pod = _pods.decode(raw)
        uid = pod.metadata.uid
        if word == "DELETED" or pod.status.phase in _ENDED:
            self._forget(uid)
            self._gangs.drop_pod(uid)
            self.cluster.remove(uid)
            self.waiting.wake()
            return
        pod_info = pod_info_of(pod)
        if pod.spec.scheduler_name in self._settings.gangs:
            self._gangs.put_pod(uid, membership(pod), bound=bool(pod.spec.node_name))
        if pod.spec.node_name:
            self._forget(uid)
            self.cluster.place(pod_info, pod.spec.node_name)
            self.waiting.wake()
        elif uid not in self._assumed:
            self.cluster.nominate(pod_info)
            served = (self._settings.name, *self._settings.gangs)
            if pod.spec.scheduler_name in served and not pod.spec.scheduling_gates:
                self._raw[uid] = raw
                self._names[uid] = (pod.metadata.namespace, pod.metadata.name)
                self.waiting.put(pod_info)

    def _forget(self, uid: str) -> None:
        self.waiting.drop(uid)
        self._assumed.discard(uid)
        self._complaints.drop(uid)
        self._raw.pop(uid, None)
        self._names.pop(uid, None)

    async def _schedule(self, group: asyncio.TaskGroup) -> None:
        for synced in self._synced.values():
            await synced.wait()
        clock = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            pod_info = self.waiting.next(clock.time())
            if pod_info is not None:
                try:
                    await self._try(pod_info, group)
                except Exception as error:  # of this pod or its gang: the others are tried all the same
                    log.exception("pod_not_tried", extra={"why": error_message(error)})
                    self._refuse_all([pod_info.uid], Waits(Why.SCHEDULER_ERROR, "the scheduler failed on this pod"))
                    self.waiting.refuse(pod_info.uid, clock.time(), park=False)
                continue
            try:
                async with asyncio.timeout(self.waiting.pause_s(clock.time())):
                    await self._changed.wait()
            except TimeoutError:
                continue  # somebody's pause is over

    async def _try(self, pod_info: PodInfo, group: asyncio.TaskGroup) -> None:
        members = [
            each for each in self._gangs.together(pod_info.uid) if each in self._names and each not in self._assumed
        ]
        lacking = self._gangs.lacking(pod_info.uid)
        if lacking > max(1, len(members)):
            why = f"gang {self._gangs.name(pod_info.uid)} waits for {lacking - len(members)} more of its pods"
            self._refuse_all(members, Waits(Why.UNSCHEDULABLE, why))
            return
        pod_infos = [self.waiting.pod_info(uid) for uid in members] if lacking > 1 else [pod_info]
        chosen, refusal = await self._decide_all([each for each in pod_infos if each is not None])
        if len(chosen) < max(1, lacking):
            for each, _ in chosen:
                self.cluster.remove(each.uid)
            self._refuse_all(members, refusal or Waits(Why.UNSCHEDULABLE, "its gang changed"))
            return
        for each, outcome in chosen:
            self.waiting.drop(each.uid)
            self._assumed.add(each.uid)
            self._gangs.bind(each.uid, True)
            # Bound beside the next cycle, as kube-scheduler does it: the decision counts from now on.
            group.create_task(self._bind(each, *self._names[each.uid], outcome))

    async def _decide_all(self, pod_infos: Sequence[PodInfo]) -> tuple[list[tuple[PodInfo, Chosen]], Waits | None]:
        """Choose a node for each pod, charged as it is chosen. Returns the choices and the first refusal.

        Pods that were deleted or bound by another scheduler meanwhile are left out.
        """
        chosen: list[tuple[PodInfo, Chosen]] = []
        refusal = None
        for pod_info in pod_infos:
            if pod_info.uid not in self._names:
                continue
            outcome = await self._decide(pod_info)
            if isinstance(outcome, Waits):
                refusal = refusal or outcome
            elif pod_info.uid in self._names:
                self.cluster.place(pod_info, outcome.node)
                chosen.append((pod_info, outcome))
        for each, _ in [each for each in chosen if each[0].uid not in self._names]:
            self.cluster.remove(each.uid)
        return [each for each in chosen if each[0].uid in self._names], refusal

    def _tell(self, namespace: str, name: str, outcome: Outcome) -> None:
        if self._on_outcome is not None:
            self._on_outcome(namespace, name, outcome)

    async def _decide(self, pod_info: PodInfo) -> Outcome:
        """Run one cycle and pass its questions to the extender."""
        pod: Any = msgspec.json.decode(self._raw[pod_info.uid])
        for key in ("kind", "apiVersion"):  # kube-scheduler sends pods without them
            pod.pop(key, None)
        asking = self._settings.extender if self._extender is not None else None
        questions = cycle(self.cluster, pod_info, self._cursor, self._dice, asking, self._settings.percentage)
        try:
            question = next(questions)
            while True:
                reply = await self._extender.ask(pod, question) if self._extender is not None else ExtenderReply()
                question = questions.send(reply)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    async def _bind(self, pod_info: PodInfo, namespace: str, name: str, chosen: Chosen) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": chosen.node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        try:
            async with self._at_once:
                await self._api.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            log.warning("bind_failed", extra={"pod": f"{namespace}/{name}", "why": str(error)})
            self._assumed.discard(pod_info.uid)
            self._gangs.bind(pod_info.uid, False)
            self.cluster.remove(pod_info.uid)
            if pod_info.uid in self._raw:
                self.waiting.put(pod_info)
                self.waiting.refuse(pod_info.uid, asyncio.get_running_loop().time(), park=False)
        self._tell(namespace, name, chosen)

    def _refuse_all(self, uids: Sequence[str], outcome: Waits) -> None:
        now_s = asyncio.get_running_loop().time()
        for uid in uids:
            if uid in self._names:
                namespace, name = self._names[uid]
                self.waiting.refuse(uid, now_s, park=outcome.why is Why.UNSCHEDULABLE)
                self._complaints.put(uid, namespace, name, outcome)
                self._tell(namespace, name, outcome)


_STRATEGIC = "application/strategic-merge-patch+json"


class Complaints:
    """Reasons of waiting pods, each written once until it changes. They are written one by one, beside scheduling."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._last_written: dict[str, str] = {}  # uid -> what was said last
        self._due: dict[str, tuple[str, str, Waits]] = {}
        self._news = asyncio.Event()

    def put(self, uid: str, namespace: str, name: str, outcome: Waits) -> None:
        """Queue the reason why a pod waits."""
        if self._last_written.get(uid) != outcome.message:
            self._last_written[uid] = outcome.message
            self._due[uid] = (namespace, name, outcome)
            self._news.set()

    def drop(self, uid: str) -> None:
        """Forget a pod that waits no longer."""
        self._last_written.pop(uid, None)
        self._due.pop(uid, None)

    async def run(self) -> None:
        """Write queued reasons until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._due:
                uid = next(iter(self._due))
                try:
                    await self._say(uid, *self._due.pop(uid))
                except ApiError as error:
                    if error.code not in (404, 409):
                        log.warning("pod_not_told", extra={"why": str(error)})
                except (aiohttp.ClientError, TimeoutError) as error:
                    log.warning("pod_not_told", extra={"why": str(error)})

    async def _say(self, uid: str, namespace: str, name: str, outcome: Waits) -> None:
        at = rfc3339(time.time())
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": at,
            "reason": outcome.why.value,
            "message": outcome.message,
        }
        body: dict[str, Any] = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        place = f"/api/v1/namespaces/{namespace}"
        await self._api.call("PATCH", f"{place}/pods/{name}/status", body, _STRATEGIC)
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        event = {
            "metadata": {"generateName": f"{name[:200]}.", "namespace": namespace},
            "involvedObject": about,
            "reason": "FailedScheduling",
            "message": outcome.message[:1024],
            "type": "Warning",
            "source": {"component": "turnout-local-scheduler"},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        await self._api.call("POST", f"{place}/events", event)
