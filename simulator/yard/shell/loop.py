"""The yard's scheduler: watches pods and nodes, runs one cycle after another, asks the extender, binds.

What it decides is in scheduler.py and queue.py. It trusts its own decision before the watch has shown it, as
kube-scheduler's cache does, and takes it back when the binding fails.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from kube.errors import KubeError
from kube.objects import Node, Pod
from simulator.yard.cluster import Cluster, Want, want_of
from simulator.yard.kube_default import Cursor
from simulator.yard.queue import WaitingPods
from simulator.yard.scheduler import Chosen, Extender, Outcome, Reply, Waits, Why, cycle
from simulator.yard.shell.wire import ApiDoor, ApiError, ExtenderDoor

log = logging.getLogger(__name__)

_ENDED = ("Succeeded", "Failed")
_pods = msgspec.json.Decoder(Pod)
_nodes = msgspec.json.Decoder(Node)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the scheduler is told. percentage: percentageOfNodesToScore, 0 for the adaptive default."""

    name: str = "default-scheduler"
    extender: Extender | None = None
    percentage: int = 0
    backoff_s: tuple[float, float] = (1.0, 10.0)
    seed: int = 0


class Scheduler:
    """One scheduler over one API server. told: called with (namespace, name, outcome) after every cycle."""

    def __init__(
        self,
        api: ApiDoor,
        settings: Settings,
        extender: ExtenderDoor | None = None,
        told: Callable[[str, str, Outcome], None] | None = None,
    ) -> None:
        self._api, self._settings, self._extender, self._told = api, settings, extender, told
        self._dice = random.Random(settings.seed)
        self._cursor = Cursor()
        self._raw: dict[str, bytes] = {}  # waiting pods as they came, for the extender
        self._names: dict[str, tuple[str, str]] = {}
        self._assumed: set[str] = set()
        self._synced = {"nodes": asyncio.Event(), "pods": asyncio.Event()}
        self._changed = asyncio.Event()
        self.cluster = Cluster()
        self.waiting = WaitingPods(settings.backoff_s)

    async def run(self) -> None:
        """Schedule until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch("nodes", self._see_node))
            group.create_task(self._watch("pods", self._see_pod))
            group.create_task(self._schedule())

    async def _watch(self, plural: str, see: Callable[[str, bytes], None]) -> None:
        while True:
            try:
                async for word, raw in self._api.changes(f"/api/v1/{plural}"):
                    if word == "SYNCED":
                        self._synced[plural].set()
                    else:
                        see(word, raw)
                    self._changed.set()
            except (aiohttp.ClientError, ApiError, TimeoutError) as error:
                log.warning("watch_failed", extra={"kind": plural, "why": str(error)})
                await asyncio.sleep(0.5)

    def _see_node(self, word: str, raw: bytes) -> None:
        node = _nodes.decode(raw)
        if word == "DELETED":
            self.cluster.drop_node(node.metadata.name)
        else:
            self.cluster.put_node(node)
        self.waiting.wake()

    def _see_pod(self, word: str, raw: bytes) -> None:
        pod = _pods.decode(raw)
        uid = pod.metadata.uid
        try:
            want = want_of(pod)
        except KubeError as error:
            log.warning("pod_skipped", extra={"pod": pod.metadata.name, "why": str(error)})
            return
        if word == "DELETED" or pod.status.phase in _ENDED:
            self._forget(uid)
            self.cluster.remove(uid)
            self.waiting.wake()
        elif pod.spec.node_name:
            self._forget(uid)
            self.cluster.place(want, pod.spec.node_name)
            self.waiting.wake()
        elif uid not in self._assumed:
            if want.nominated:
                self.cluster.nominated[uid] = want
            else:
                self.cluster.nominated.pop(uid, None)
            if pod.spec.scheduler_name == self._settings.name and not pod.spec.scheduling_gates:
                self._raw[uid] = raw
                self._names[uid] = (pod.metadata.namespace, pod.metadata.name)
                self.waiting.put(want)

    def _forget(self, uid: str) -> None:
        self.waiting.drop(uid)
        self._assumed.discard(uid)
        self._raw.pop(uid, None)
        self._names.pop(uid, None)

    async def _schedule(self) -> None:
        for synced in self._synced.values():
            await synced.wait()
        clock = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            want = self.waiting.next(clock.time())
            if want is not None:
                await self._try(want)
                continue
            try:
                async with asyncio.timeout(self.waiting.pause_s(clock.time())):
                    await self._changed.wait()
            except TimeoutError:
                continue  # somebody's pause is over

    async def _try(self, want: Want) -> None:
        namespace, name = self._names[want.uid]
        outcome = await self._decide(want)
        if want.uid not in self._names:
            return  # deleted while the extender was asked
        if isinstance(outcome, Chosen):
            await self._bind(want, namespace, name, outcome)
        else:
            self._refuse(want, outcome)
        if self._told is not None:
            self._told(namespace, name, outcome)

    async def _decide(self, want: Want) -> Outcome:
        """Run a cycle and carry its questions to the extender."""
        pod: Any = msgspec.json.decode(self._raw[want.uid])
        for key in ("kind", "apiVersion"):  # kube-scheduler sends pods without them
            pod.pop(key, None)
        asking = self._settings.extender if self._extender is not None else None
        questions = cycle(self.cluster, want, self._cursor, self._dice, asking, self._settings.percentage)
        try:
            question = next(questions)
            while True:
                reply = await self._extender.ask(pod, question) if self._extender is not None else Reply()
                question = questions.send(reply)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    async def _bind(self, want: Want, namespace: str, name: str, chosen: Chosen) -> None:
        self.cluster.place(want, chosen.node)
        self.waiting.drop(want.uid)
        self._assumed.add(want.uid)
        target = {"apiVersion": "v1", "kind": "Node", "name": chosen.node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        try:
            await self._api.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            log.warning("bind_failed", extra={"pod": f"{namespace}/{name}", "why": str(error)})
            self._assumed.discard(want.uid)
            self.cluster.remove(want.uid)
            if want.uid in self._raw:
                self.waiting.put(want)
                self.waiting.refuse(want.uid, asyncio.get_running_loop().time(), park=False)

    def _refuse(self, want: Want, outcome: Waits) -> None:
        now_s = asyncio.get_running_loop().time()
        self.waiting.refuse(want.uid, now_s, park=outcome.why is Why.UNSCHEDULABLE)
