"""The watches: nodes, pods, PodGroups, owners and the map, told to the view as they change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any

from turnout.jobs.gang import POD_GROUP_PATHS, Dialect
from turnout.kube.feed import Key
from turnout.kube.objects import ConfigMap, Node, Owner, Pod, PodGroup
from turnout.kube.shell.clock import Clock
from turnout.kube.shell.configmap import ConfigMapFollower
from turnout.kube.shell.reflector import Reflector, Source
from turnout.scheduler_ext.model import Notice, Word
from turnout.scheduler_ext.shell.view import View
from turnout.topology.sources.accept import Drawn, MapInUse, MapOutcome, draw

log = logging.getLogger("turnout.extender")

OWNERS = {"Job": "/apis/batch/v1/jobs", "StatefulSet": "/apis/apps/v1/statefulsets"}
UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
TIDY_S = 5.0
SYNC_LOOK_S = 0.1
CAUGHT_UP_S = 2.0  # after which a watch that came back has told what it had missed
ROOM = ("nodes", "pods")  # what a scheduler knows as we do, and asks anew when it changes


class _Nodes:
    def __init__(self, view: View) -> None:
        self._view = view

    def put(self, obj: Node) -> None:
        self._view.gangs.put_node(obj)

    def drop(self, key: Key) -> None:
        self._view.gangs.drop_node(key.name)

    def synced(self) -> None:
        pass


class _Pods:
    def __init__(self, view: View) -> None:
        self._view = view

    def put(self, obj: Pod) -> None:
        self._view.put_pod(obj)

    def drop(self, key: Key) -> None:
        self._view.drop_pod(key.uid)

    def synced(self) -> None:
        pass


class _Groups:
    def __init__(self, view: View, dialect: Dialect) -> None:
        self._view, self._dialect = view, dialect

    def put(self, obj: PodGroup) -> None:
        self._view.gangs.put_group(self._dialect, obj)

    def drop(self, key: Key) -> None:
        self._view.gangs.drop_group(self._dialect, key.namespace, key.name)

    def synced(self) -> None:
        pass


class _Owners:
    def __init__(self, view: View, kind: str) -> None:
        self._view, self._kind = view, kind

    def put(self, obj: Owner) -> None:
        self._view.gangs.put_owner(self._kind, obj)

    def drop(self, key: Key) -> None:
        self._view.gangs.drop_owner(self._kind, key.namespace, key.name)

    def synced(self) -> None:
        pass


class Sight:
    """Every watch of an extender or nominator. configmap: namespace/name of the map."""

    def __init__(
        self,
        view: View,
        source: Source,
        configmap: str,
        clock: Clock,
        rng: random.Random,
        hold_large: bool = False,
    ) -> None:
        namespace, _, name = configmap.partition("/")
        self._map, self._follower = MapInUse(hold_large), ConfigMapFollower(draw, self._take_map)
        self._view, self._clock = view, clock

        def watch(path: str, kind: type[Any], sink: Any, **options: Any) -> Reflector[Any]:
            return Reflector(source, path, kind, sink, clock=clock, rng=rng, **options)

        self.reflectors: dict[str, Reflector[Any]] = {
            "nodes": watch("/api/v1/nodes", Node, _Nodes(view)),
            "pods": watch("/api/v1/pods", Pod, _Pods(view), params={"fieldSelector": UNFINISHED}),
            "configmap": watch(
                f"/api/v1/namespaces/{namespace}/configmaps",
                ConfigMap,
                self._follower,
                params={"fieldSelector": f"metadata.name={name}"},
            ),
        }
        for dialect, path in POD_GROUP_PATHS.items():
            self.reflectors[f"podgroups.{dialect.value}"] = watch(path, PodGroup, _Groups(view, dialect), optional=True)
        for kind, path in OWNERS.items():
            self.reflectors[path.rsplit("/", 1)[1]] = watch(path, Owner, _Owners(view, kind), optional=True)
        view.waiting_for = self.waiting_for
        view.may_be_old = self.may_be_old

    def waiting_for(self) -> str | None:
        """What is still to be seen before an answer can be trusted."""
        missing = [kind for kind, reflector in self.reflectors.items() if not reflector.has_synced]
        if missing:
            return f"no whole list yet of {', '.join(missing)}"
        return None if self._map.looked else "the map is being read"

    def may_be_old(self) -> bool:
        """Whether room may have come or gone unseen: a watch is down, or has not caught up yet."""
        caught_up_s = self._clock.monotonic() - CAUGHT_UP_S
        watching = (self.reflectors[kind].watching_since_s for kind in ROOM)
        return any(since_s is None or since_s > caught_up_s for since_s in watching)

    async def synced(self) -> None:
        """Wait until nothing is missing."""
        while self.waiting_for() is not None:
            await self._clock.sleep(SYNC_LOOK_S)

    async def run(self) -> None:
        """Watch until cancelled. A watch ends only by a fault of ours, which ends the program."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors.values():
                tasks.create_task(reflector.run())
            tasks.create_task(self._follower.run())
            tasks.create_task(self._tidy())

    def _take_map(self, drawn: Drawn | None, annotations: Mapping[str, str]) -> None:
        first = not self._map.looked
        verdict = self._map.take(drawn, annotations)
        if verdict is None:
            return
        metrics, outcome = self._view.metrics, verdict.outcome
        metrics.reloads.labels(outcome.value).inc()
        metrics.faults.set(verdict.faults)
        if verdict.fabric is not None:
            self._view.use_map(verdict.fabric)
        log.info("map_looked_at", extra={"reason": outcome.value, "detail": verdict.detail})
        if not (first and outcome is MapOutcome.APPLIED):
            self._view.tell(Notice(Word(outcome.value), detail=verdict.detail))

    async def _tidy(self) -> None:
        while True:
            await self._clock.sleep(TIDY_S)
            self._view.tidy()
