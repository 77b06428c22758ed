"""Watch nodes, pods, PodGroups, owners and the map, and pass changes to the extender."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from functools import partial

from turnout.jobs.gang import POD_GROUP_PATHS, Dialect
from turnout.jobs.queues import kueue, strict_order
from turnout.jobs.queues.model import Object
from turnout.jobs.queues.strict_order import StrictQueue
from turnout.kube.client.clock import Clock
from turnout.kube.client.informer_factory import CallbackSink, ConfigMapFollower, InformerFactory
from turnout.kube.client.reflector import Source
from turnout.kube.objects import FullObject, Node, ObjectMeta, Owner, Pod, PodGroup
from turnout.kube.watch_events import Key
from turnout.scheduler_ext.model import EventReason, Notice
from turnout.scheduler_ext.server.extender import Extender
from turnout.topology.map_update import MapDraft, MapInUse, MapOutcome, draft_map

log = logging.getLogger("turnout.extender")

OWNERS = {"Job": "/apis/batch/v1/jobs", "StatefulSet": "/apis/apps/v1/statefulsets"}
UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
CLEAN_UP_S = 5.0
PLANNING_PAUSE_S = 0.02  # between two turns of planning
MAX_PLANNING_ROUNDS = 250  # before the rest of tidying is done, whatever is left to plan
CAUGHT_UP_S = 2.0  # after which a watch that came back has told what it had missed
ROOM = ("nodes", "pods")  # what a scheduler knows as we do, and asks anew when it changes


class Informers(InformerFactory):
    """All watches of an extender or a nominator.

    configmap: namespace/name of the map. read_queues: also watch queues, for their order.
    """

    def __init__(
        self,
        view: Extender,
        source: Source,
        configmap: str,
        clock: Clock,
        rng: random.Random,
        hold_large: bool = False,
        read_queues: bool = False,
    ) -> None:
        super().__init__(source, clock, rng)
        self._map, self._follower = MapInUse(hold_large), ConfigMapFollower(draft_map, self._take_map)
        self._view, gangs = view, view.view
        self.watch("nodes", "/api/v1/nodes", Node, CallbackSink(gangs.put_node, lambda key: gangs.drop_node(key.name)))
        pods = CallbackSink(view.put_pod, lambda key: view.drop_pod(key.uid))
        self.watch("pods", "/api/v1/pods", Pod, pods, params={"fieldSelector": UNFINISHED})
        self.follow_configmap("configmap", configmap, self._follower)
        for dialect, path in POD_GROUP_PATHS.items():
            self._watch_groups(dialect, path)
        for kind, path in OWNERS.items():
            self._watch_owners(kind, path)
        if read_queues:
            self._watch_queues()
        self._loops.append(self._clean_up)
        view.waiting_for = self.waiting_for
        view.may_be_old = self.may_be_old
        view.may_show_group = self.may_show_group

    def _watch_groups(self, dialect: Dialect, path: str) -> None:
        gangs = self._view.view
        put, name = partial(gangs.put_group, dialect), f"podgroups.{dialect.value}"
        handlers = CallbackSink(put, lambda key: gangs.drop_group(dialect, key.namespace, key.name))
        self.watch(name, path, PodGroup, handlers, optional=True)

    def _watch_owners(self, kind: str, path: str) -> None:
        gangs = self._view.view
        put, name = partial(gangs.put_owner, kind), path.rsplit("/", 1)[1]
        handlers = CallbackSink(put, lambda key: gangs.drop_owner(kind, key.namespace, key.name))
        self.watch(name, path, Owner, handlers, optional=True)

    def _watch_queues(self) -> None:
        """Learn from the queues themselves which are of strict order."""
        strict, local = self._view.plans.strict_order.queues, strict_order.LOCAL_QUEUES
        for path, read in strict_order.QUEUES.items():
            handlers = CallbackSink(
                partial(self._put_queue, path, read),
                partial(self._drop_queue, path),
            )
            self.watch(path, path, FullObject, handlers, optional=True)
        handlers = CallbackSink(
            lambda obj: self._forget_plans_if(strict.lead(*kueue.local_queue(obj.raw()))),
            lambda key: self._forget_plans_if(strict.lead(f"{key.namespace}/{key.name}", "")),
        )
        self.watch(local, local, FullObject, handlers, optional=True)

    def _put_queue(self, path: str, read: Callable[[Object], StrictQueue | None], queue: FullObject) -> None:
        strict = self._view.plans.strict_order.queues
        self._forget_plans_if(strict.put(_queue_id(path, queue.metadata), read(queue.raw())))

    def _drop_queue(self, path: str, key: Key) -> None:
        self._forget_plans_if(self._view.plans.strict_order.queues.put(_queue_id(path, key), None))

    def _forget_plans_if(self, changed: bool) -> None:
        if changed:
            self._view.plans.forget_plans()

    def waiting_for(self) -> str | None:
        """Say what must still be seen before an answer can be trusted; None when nothing is missing."""
        if missing := self.unsynced_kinds():
            return f"no whole list yet of {', '.join(missing)}"
        return None if self.has_synced else "the map is being read"

    def may_be_old(self) -> bool:
        """True if room may have come or gone unseen: a watch is down, or has not caught up yet."""
        caught_up_s = self._clock.monotonic() - CAUGHT_UP_S
        watching = (self.reflectors[kind].watching_since_s for kind in ROOM)
        return any(since_s is None or since_s > caught_up_s for since_s in watching)

    def may_show_group(self, dialect: str) -> bool:
        """True if the API server serves the PodGroups of a dialect, so that one may exist which is not shown yet."""
        return not self.reflectors[f"podgroups.{dialect}"].is_unserved

    def _take_map(self, drawn: MapDraft | None, annotations: Mapping[str, str]) -> None:
        first = not self._follower.has_synced
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
            self._view.notify(Notice(EventReason(outcome.value), detail=verdict.detail))

    async def _clean_up(self) -> None:
        while True:
            await self._clock.sleep(CLEAN_UP_S)
            for _ in range(MAX_PLANNING_ROUNDS):
                if not self._view.plan_some():
                    break
                await self._clock.sleep(PLANNING_PAUSE_S)  # others are answered meanwhile
            self._view.clean_up()


def _queue_id(path: str, key: Key | ObjectMeta) -> str:
    """Name the place of one object."""
    return f"{path} {key.namespace}/{key.name}"
