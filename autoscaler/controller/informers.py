"""The watches of the autoscaler: nodes, pods, jobs of every kind, queues and the map of switches."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.node_faults.cache import FaultReportCache
from turnout.autoscaler.observe import unmanaged_gangs
from turnout.autoscaler.observe.job_pods import drop_unused_fields
from turnout.autoscaler.settings import WatchedConfigMaps
from turnout.jobs.gang import POD_GROUP_PATHS, Dialect, GangKey
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.jobs.queues.model import Object, QueueSpec
from turnout.kube.client.clock import Clock
from turnout.kube.client.informer_factory import CallbackSink, ConfigMapFollower, InformerFactory
from turnout.kube.client.reflector import ListerWatcher
from turnout.kube.objects import FullObject, Node, ObjectMeta, Pod, Struct
from turnout.kube.watch_events import Key
from turnout.topology.fabric import Fabric
from turnout.topology.map_update import MapDraft, MapInUse, MapOutcome, draft_map

log = logging.getLogger("turnout.autoscaler")

# Log events of a new map that is not used.
_MAP_NOT_TAKEN = {MapOutcome.REJECTED: "map_rejected", MapOutcome.HELD: "map_held"}
_HPAS = "/apis/autoscaling/v2/horizontalpodautoscalers"
_LOCAL_QUEUES = "/apis/kueue.x-k8s.io/v1beta2/localqueues"


# Path of the queues of each dialect -> reader of one object.
_QUEUES: dict[str, Callable[[Object], QueueSpec]] = {
    "/apis/scheduling.volcano.sh/v1beta1/queues": volcano.read,
    "/api/v1/resourcequotas": namespace.read,
    "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas": koordinator.read,
    "/apis/scheduling.x-k8s.io/v1alpha1/elasticquotas": namespace.read_elastic,
    "/apis/kueue.x-k8s.io/v1beta2/clusterqueues": kueue.read,
    "/apis/kueue.x-k8s.io/v1beta2/cohorts": kueue.read_cohort,
}


def _object_key(path: str, key: Key | ObjectMeta) -> str:
    """Return a key for one object that describes a queue. path: of its kind."""
    return f"{path} {key.namespace}/{key.name}"


class PriorityClass(Struct):
    """A PriorityClass."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    value: int = 0


class ScaleReference(Struct):
    """The object that a HorizontalPodAutoscaler resizes."""

    api_version: str = ""
    kind: str = ""
    name: str = ""


class HpaSpec(Struct):
    """The part of a HorizontalPodAutoscaler's spec that says what it resizes."""

    scale_target_ref: ScaleReference = msgspec.field(default_factory=ScaleReference)


class Hpa(Struct):
    """A HorizontalPodAutoscaler. Its status, which changes each 15 seconds, is left out."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: HpaSpec = msgspec.field(default_factory=HpaSpec)


class SwitchMap:
    """The map of switches that is in use.

    follower: reads each version of its ConfigMap. use_map: called with each map that is to be used. changed: called
    after each version. hold_large: a map that moves many hosts needs an admin's confirmation. fault: why the newest map
    is not in use, "" if it is.
    """

    def __init__(
        self, use_map: Callable[[Fabric], None], changed: Callable[[], None], hold_large: bool = False
    ) -> None:
        """Start without a map. The class docstring explains the arguments."""
        self._use_map, self._changed, self._in_use = use_map, changed, MapInUse(hold_large)
        self.follower = ConfigMapFollower(draft_map, self._take)
        self.fault = ""

    def _take(self, draft: MapDraft | None, annotations: Mapping[str, str]) -> None:
        """Use a new map, or log why it is held back or refused. Sets `fault`.

        draft: the map that was read; None if the ConfigMap is deleted. annotations: of the ConfigMap.
        """
        verdict = self._in_use.update(draft, annotations)
        if verdict is None:
            return
        if verdict.fabric is not None:
            self._use_map(verdict.fabric)
        event = _MAP_NOT_TAKEN.get(verdict.outcome)
        self.fault = verdict.detail if event is not None else ""
        if event is not None:
            log.warning(event, extra={"why": verdict.detail})
        self._changed()


class AutoscalerInformers(InformerFactory):
    """All watches of the autoscaler.

    view: the cache that the watches fill. kinds: by name, those whose jobs are resized. configmaps: namespace/name of
    each. fault_reports: also filled; None if no node is tainted. hold_large: a map that moves many hosts needs an
    admin's confirmation. news: set after each change.
    """

    def __init__(
        self,
        view: Cache,
        source: ListerWatcher,
        kinds: Mapping[str, JobKind],
        clock: Clock,
        rng: random.Random,
        configmaps: WatchedConfigMaps,
        fault_reports: FaultReportCache | None = None,
        hold_large: bool = False,
    ) -> None:
        """Register all watches; they start with `run`. The class docstring explains the arguments."""
        super().__init__(source, clock, rng)
        self._view, self._fault_reports = view, fault_reports
        self.news = asyncio.Event()
        self._watch("nodes", "/api/v1/nodes", Node, self._put_node, self._drop_node)
        self._watch("pods", "/api/v1/pods", Pod, self._put_pod, self._drop_pod)
        self._watch(
            "priorityclasses",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            PriorityClass,
            lambda obj: view.states.put_class(obj.metadata.name, obj.value),
            lambda key: view.states.put_class(key.name, None),
        )
        self.map = SwitchMap(view.nodes.use_map, self.news.set, hold_large)
        self.follow_configmap(configmaps.topology, configmaps.topology, self.map.follower)
        self._watch_data(configmaps.orders, view.override.put)
        self._watch_data(configmaps.reservations, lambda data: view.reservations.put(data, clock.wall()))
        self._watch_groups()
        self._watch_queues()
        handlers = CallbackSink(self._put_hpa, lambda key: view.others.drop(key.namespace, key.name))
        self.watch(_HPAS, _HPAS, Hpa, handlers, optional=True)
        for kind in kinds.values():
            self._watch(
                kind.kind,
                kind.path,
                FullObject,
                lambda obj, kind=kind: view.put_job(kind.kind, obj.raw()),
                lambda key: view.drop_job(key.uid),
                optional=True,
            )

    def _watch(self, name: str, path: str, kind: type[Any], put: Any, drop: Any, **options: Any) -> None:
        """Watch the objects of a kind at a path, and set `news` after each change.

        name: of the watch in metrics. put: called with each new or changed object, without its managedFields. drop:
        called with the key of each deleted one. options: of `InformerFactory.watch`.
        """

        def put_trimmed(obj: Any) -> None:
            # managedFields are never read, and they keep all bytes of the message in memory.
            obj.metadata.managed_fields = None
            put(obj)

        self.watch(name, path, kind, CallbackSink(put_trimmed, drop, self.news.set), **options)

    def _watch_data(self, configmap: str, put: Callable[[Mapping[str, str]], None]) -> None:
        """Watch one ConfigMap, namespace/name, and call `put` with its data, {} if it does not exist.

        Also sets `news`.
        """
        sink = CallbackSink(lambda obj: put(obj.data or {}), lambda _: put({}), self.news.set)
        self.watch_configmap(configmap, configmap, sink)

    def _watch_groups(self) -> None:
        """Watch the PodGroups of each dialect that the API server serves."""
        for dialect, path in POD_GROUP_PATHS.items():
            self._watch(
                path,
                path,
                FullObject,
                lambda obj, dialect=dialect: self._put_group(dialect, obj.raw()),
                lambda key, dialect=dialect: self._drop_group(dialect, key),
                optional=True,
            )

    def _put_group(self, dialect: Dialect, raw: Object) -> None:
        """Store a PodGroup of a dialect; a native one also with its minCount."""
        self._view.unmanaged.put_group(unmanaged_gangs.read_pod_group(dialect, raw))
        if dialect is Dialect.NATIVE:
            self._view.native.put_group(raw)

    def _drop_group(self, dialect: Dialect, key: Key) -> None:
        """Drop a deleted PodGroup of a dialect."""
        self._view.unmanaged.drop_group(GangKey(key.namespace, key.name, dialect.value))
        if dialect is Dialect.NATIVE:
            self._view.native.drop_group(key.namespace, key.name)

    def _watch_queues(self) -> None:
        """Watch the queues of each dialect that the API server serves, and Kueue's LocalQueues."""
        view = self._view
        for path, read in _QUEUES.items():
            self._watch(
                path,
                path,
                FullObject,
                lambda obj, read=read, path=path: view.queues.put(read(obj.raw()), _object_key(path, obj.metadata)),
                lambda key, path=path: view.queues.drop(_object_key(path, key)),
                optional=True,
            )
        self._watch(
            _LOCAL_QUEUES,
            _LOCAL_QUEUES,
            FullObject,
            lambda obj: view.usage.put_local_queue(*kueue.local_queue(obj.raw()), kueue.accepts_workloads(obj.raw())),
            lambda key: view.usage.put_local_queue(f"{key.namespace}/{key.name}", ""),
            optional=True,
        )

    def _put_hpa(self, obj: Hpa) -> None:
        """Store the job that a HorizontalPodAutoscaler resizes."""
        target = obj.spec.scale_target_ref
        self._view.others.put(obj.metadata.namespace, obj.metadata.name, target.api_version, target.kind, target.name)

    def _put_node(self, node: Node) -> None:
        """Store a node, and the fault record on it."""
        if self._fault_reports is not None:
            self._fault_reports.put_node(node)
        self._view.put_node(node)

    def _drop_node(self, key: Key) -> None:
        """Drop a deleted node."""
        if self._fault_reports is not None:
            self._fault_reports.drop_node(key.name)
        self._view.drop_node(key.name)

    def _put_pod(self, pod: Pod) -> None:
        """Store a pod without unused fields, and its report on its node."""
        if self._fault_reports is not None:
            self._fault_reports.put_pod(pod)
        self._view.put_pod(drop_unused_fields(pod))

    def _drop_pod(self, key: Key) -> None:
        """Drop a deleted pod."""
        if self._fault_reports is not None:
            self._fault_reports.drop_pod(key.uid)
        self._view.drop_pod(key.uid)
