"""Watch nodes, pods, PodGroups, owners and the map, and pass changes to the extender."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from functools import partial

from turnout.jobs.gang import COMPOSITE_GROUP_PATH, POD_GROUP_PATHS, Dialect, GangKey
from turnout.jobs.queues import kueue, registry
from turnout.jobs.queues.model import Object
from turnout.jobs.queues.registry import QueueOrder
from turnout.jobs.reservation import CONFIGMAP, Reservation, read_reservations
from turnout.kube.client.clock import Clock
from turnout.kube.client.informer_factory import CallbackSink, ConfigMapFollower, InformerFactory
from turnout.kube.client.reflector import ListerWatcher
from turnout.kube.objects import FullObject, Node, ObjectMeta, Owner, Pod, PodGroup
from turnout.kube.watch_events import Key
from turnout.scheduler_ext.cluster.request_hints import PodGroupState, PodGroupWaits
from turnout.scheduler_ext.model import EventReason, Notice
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.topology.map_update import MapDraft, MapInUse, MapOutcome, draft_map

log = logging.getLogger("turnout.extender")

OWNERS = {"Job": "/apis/batch/v1/jobs", "StatefulSet": "/apis/apps/v1/statefulsets"}
COMPOSITES = "compositepodgroups"
UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
CAUGHT_UP_S = 2.0  # after a reconnect a watch has shown all missed changes by then
ROOM = ("nodes", "pods")  # the kinds that a scheduler watches, too; it asks again when they change


def _ignore(_: object) -> None:
    """Do nothing: the default of a follower."""


class WatchState:
    """The pods that the watches show, and how current the view is.

    This class is always current: for a program that feeds the view itself. `Watches` feeds it from an API server.
    """

    def __init__(self, plans: Plans, clock: Clock) -> None:
        """Start without pods. plans: updated by each change that is put. clock: for waits and reservations."""
        self.plans = plans
        self._clock = clock
        self._pod_followers: list[tuple[Callable[[Pod], None], Callable[[str], None]]] = []
        self._pod_group_waits = PodGroupWaits()
        self.published_reservations: dict[str, Reservation] = {}  # by the key in the ConfigMap
        self._reservation_faults: dict[str, str] = {}  # why keys cannot be read, as it was logged

    def put_reservations(self, data: Mapping[str, str]) -> None:
        """Reserve nodes as the ConfigMap states, and release the reservations that it stated before and states no
        longer.

        A reservation of this process that is not published yet stays. A key that cannot be read is logged once. data:
        of the ConfigMap; {} if it does not exist. Reservations whose time is over are not used.
        """
        wall_s = self._clock.wall()
        reservations, faults = read_reservations(data, wall_s)
        for key, fault in faults.items():
            if self._reservation_faults.get(key) != fault:
                log.warning("bad_reservation", extra={"key": key[:253], "why": fault})
        self._reservation_faults = faults
        for key in self.published_reservations.keys() - reservations.keys():
            self.plans.reservations.release(self.published_reservations[key].holder)
        self.published_reservations = reservations
        for reservation in reservations.values():
            if reservation.until_s > wall_s:
                self.plans.reserve(reservation)

    def follow_pods(self, put: Callable[[Pod], None] = _ignore, drop: Callable[[str], None] = _ignore) -> None:
        """Call `put` with each pod that is shown and `drop` with the uid of each deleted pod, after the view has it."""
        self._pod_followers.append((put, drop))

    def put_pod(self, pod: Pod) -> None:
        """Add or update a pod in the view, then call the followers, also for a pod that cannot be read.

        The view removes such a pod and counts it; the error is not reported here.
        """
        self.plans.view.put_pod(pod)
        for put, _ in self._pod_followers:
            put(pod)

    def drop_pod(self, uid: str) -> None:
        """Remove a pod from the view, then call the followers with its uid."""
        self.plans.view.drop_pod(uid)
        for _, drop in self._pod_followers:
            drop(uid)

    def missing(self) -> str | None:
        """Return what must still be shown before an answer can be trusted; None when nothing is missing."""
        return None

    def may_be_old(self) -> bool:
        """Return True if room may have come or gone unseen."""
        return False

    def may_show_group(self, dialect: str) -> bool:
        """Return True if the API server serves a dialect's PodGroups, so that one may exist that is not shown yet."""
        return False

    def may_show_parents(self) -> bool:
        """Return True if the API server serves CompositePodGroups, so that one may exist that is not shown yet."""
        return False

    def pod_group_state(self, key: GangKey) -> PodGroupState:
        """Return KNOWN, AWAITED or NEVER_CAME for a gang's PodGroup and the CompositePodGroups above it.

        KNOWN also for an unknown gang, and if the API server serves no such objects. The first call that finds one
        missing starts the wait.
        """
        gang = self.plans.view.gangs.get(key)
        if gang is None:
            return PodGroupState.KNOWN
        if gang.names_missing_pod_group:  # a dialect without PodGroups has none that is missing
            may_come = self.may_show_group(key.dialect) if gang.sizing is None else self.may_show_parents()
            if not may_come:
                return PodGroupState.KNOWN
        return self._pod_group_waits.state_of(gang, self._clock.monotonic())

    def pod_group_wait_s(self, key: GangKey) -> float:
        """Return the seconds since the wait for a gang's PodGroup began, also after the wait; 0 if it never began."""
        return self._pod_group_waits.waits_s(key, self._clock.monotonic())

    def forget_deleted_gangs(self) -> None:
        """Forget the waits for PodGroups of gangs that are deleted."""
        self._pod_group_waits.retain(self.plans.view.gangs, self._clock.monotonic())


class Watches(InformerFactory, WatchState):
    """All watches of an extender or a nominator.

    configmap: namespace/name of the map. notify: receives the notices about the map. hold_large: True if a large change
    of the map waits for the admin. read_queues: also watch queues, for their order. reservations: namespace/name of the
    ConfigMap by which the nominator reserves nodes.
    """

    def __init__(
        self,
        plans: Plans,
        source: ListerWatcher,
        configmap: str,
        clock: Clock,
        rng: random.Random,
        metrics: Metrics,
        notify: Callable[[Notice], None],
        hold_large: bool = False,
        read_queues: bool = False,
        reservations: str = CONFIGMAP,
    ) -> None:
        """Register all watches; they start with `run`. source: the API server.

        The class docstring explains the other arguments.
        """
        InformerFactory.__init__(self, source, clock, rng)
        WatchState.__init__(self, plans, clock)
        self._metrics, self._notify = metrics, notify
        self._map, self._follower = MapInUse(hold_large), ConfigMapFollower(draft_map, self._take_map)
        view = plans.view
        layout, groups = view.layout, view.groups
        nodes = CallbackSink(layout.put_node, lambda key: layout.drop_node(key.name))
        self.watch("nodes", "/api/v1/nodes", Node, nodes)
        pods = CallbackSink(self.put_pod, lambda key: self.drop_pod(key.uid))
        self.watch("pods", "/api/v1/pods", Pod, pods, params={"fieldSelector": UNFINISHED})
        self.follow_configmap("configmap", configmap, self._follower)
        for dialect, path in POD_GROUP_PATHS.items():
            self._watch_groups(dialect, path)
        handlers = CallbackSink(groups.put_composite, lambda key: groups.drop_composite(key.namespace, key.name))
        self.watch(COMPOSITES, COMPOSITE_GROUP_PATH, PodGroup, handlers, optional=True)
        for kind, path in OWNERS.items():
            self._watch_owners(kind, path)
        sink = CallbackSink(lambda obj: self.put_reservations(obj.data or {}), lambda _: self.put_reservations({}))
        self.watch_configmap("reservations", reservations, sink)
        if read_queues:
            self._watch_queues()

    def _watch_groups(self, dialect: Dialect, path: str) -> None:
        """Watch the PodGroups of a dialect, if the cluster serves them. path: of their list."""
        view = self.plans.view
        put, name = partial(view.groups.put_group, dialect), f"podgroups.{dialect.value}"
        handlers = CallbackSink(put, lambda key: view.groups.drop_group(dialect, key.namespace, key.name))
        self.watch(name, path, PodGroup, handlers, optional=True)

    def _watch_owners(self, kind: str, path: str) -> None:
        """Watch the objects of a kind that own pods, if the cluster serves them. path: of their list."""
        view = self.plans.view
        put, name = partial(view.groups.put_owner, kind), path.rsplit("/", 1)[1]
        handlers = CallbackSink(put, lambda key: view.groups.drop_owner(kind, key.namespace, key.name))
        self.watch(name, path, Owner, handlers, optional=True)

    def _watch_queues(self) -> None:
        """Watch queues, to learn which are of strict order. When that changes, all plans are forgotten."""
        strict, local = self.plans.strict_order.queues, registry.LOCAL_QUEUES
        for path, read in registry.QUEUE_ORDER_READERS.items():
            handlers = CallbackSink(
                partial(self._put_queue, path, read),
                partial(self._drop_queue, path),
            )
            self.watch(path, path, FullObject, handlers, optional=True)
        handlers = CallbackSink(
            lambda obj: self._forget_plans_if(strict.set_cluster_queue(*kueue.local_queue(obj.raw()))),
            lambda key: self._forget_plans_if(strict.set_cluster_queue(f"{key.namespace}/{key.name}", "")),
        )
        self.watch(local, local, FullObject, handlers, optional=True)

    def _put_queue(self, path: str, read: Callable[[Object], QueueOrder | None], queue: FullObject) -> None:
        strict = self.plans.strict_order.queues
        self._forget_plans_if(strict.put(_queue_id(path, queue.metadata), read(queue.raw())))

    def _drop_queue(self, path: str, key: Key) -> None:
        self._forget_plans_if(self.plans.strict_order.queues.put(_queue_id(path, key), None))

    def _forget_plans_if(self, changed: bool) -> None:
        if changed:
            self.plans.forget_plans()

    def missing(self) -> str | None:
        """Return what must still be shown before an answer can be trusted; None when nothing is missing."""
        if missing := self.unsynced_watches():
            return f"waiting for the first list of {', '.join(missing)}"
        return None if self.has_synced else "the map is being read"

    def may_be_old(self) -> bool:
        """Return True if room may have come or gone unseen: a watch of nodes or pods is down or came back CAUGHT_UP_S
        ago or less.
        """
        caught_up_s = self._clock.monotonic() - CAUGHT_UP_S
        watching = (self.reflectors[kind].watching_since_s for kind in ROOM)
        return any(since_s is None or since_s > caught_up_s for since_s in watching)

    def may_show_group(self, dialect: str) -> bool:
        """Return True if the API server serves a dialect's PodGroups, so that one may exist that is not shown yet."""
        return not self.reflectors[f"podgroups.{dialect}"].is_unserved

    def may_show_parents(self) -> bool:
        """Return True if the API server serves CompositePodGroups, so that one may exist that is not shown yet."""
        return not self.reflectors[COMPOSITES].is_unserved

    def _take_map(self, draft: MapDraft | None, annotations: Mapping[str, str]) -> None:
        """Use a new map if it is accepted, and count, log and report the outcome.

        draft: the map read from the ConfigMap; None if the ConfigMap is deleted. annotations: of the ConfigMap. A map
        that is accepted at the first read is not reported.
        """
        first = not self._follower.has_synced
        verdict = self._map.update(draft, annotations)
        if verdict is None:
            return
        metrics, outcome = self._metrics, verdict.outcome
        metrics.reloads.labels(outcome.value).inc()
        metrics.map_errors.set(verdict.faults)
        if verdict.fabric is not None:
            self.plans.view.layout.set_map(verdict.fabric)
            metrics.hosts.set(verdict.fabric.mapped_count)
            metrics.last_reload.set(self._clock.wall())
        log.info("map_looked_at", extra={"reason": outcome.value, "detail": verdict.detail})
        if not (first and outcome is MapOutcome.APPLIED):
            self._notify(Notice(EventReason(outcome.value), detail=verdict.detail))


def _queue_id(path: str, key: Key | ObjectMeta) -> str:
    """Return the identifier of one queue object."""
    return f"{path} {key.namespace}/{key.name}"
