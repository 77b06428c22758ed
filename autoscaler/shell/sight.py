"""The lender's watches: nodes, pods, jobs of every kind, queues, the map; and how old what they show is."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from turnout.autoscaler.nodes.ward import Ward
from turnout.autoscaler.seeing import strays
from turnout.autoscaler.seeing.slim import slim
from turnout.autoscaler.view import View
from turnout.jobs.gang import POD_GROUP_PATHS, GangKey
from turnout.jobs.model import JobKind
from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.jobs.queues.model import Object, QueueSpec
from turnout.kube.feed import Key
from turnout.kube.objects import ConfigMap, Node, ObjectMeta, Pod, Struct
from turnout.kube.shell.clock import Clock
from turnout.kube.shell.configmap import ConfigMapFollower
from turnout.kube.shell.reflector import Reflector, Source
from turnout.topology.sources.accept import Drawn, MapInUse, MapOutcome, draw

log = logging.getLogger("turnout.autoscaler")

SYNC_LOOK_S = 0.05
_MAP_NOT_TAKEN = {MapOutcome.REJECTED: "map_rejected", MapOutcome.HELD: "map_held"}
_LOCAL_QUEUES = "/apis/kueue.x-k8s.io/v1beta2/localqueues"


# Where each dialect's queues are, and how one is read.
_QUEUES: dict[str, Callable[[Object], QueueSpec]] = {
    "/apis/scheduling.volcano.sh/v1beta1/queues": volcano.read,
    "/api/v1/resourcequotas": namespace.read,
    "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas": koordinator.read,
    "/apis/scheduling.x-k8s.io/v1alpha1/elasticquotas": namespace.read_elastic,
    "/apis/kueue.x-k8s.io/v1beta2/clusterqueues": kueue.read,
    "/apis/kueue.x-k8s.io/v1beta2/cohorts": kueue.read_cohort,
}


def _at(path: str, key: Key | ObjectMeta) -> str:
    """One object that speaks of a queue."""
    return f"{path} {key.namespace}/{key.name}"


class Class(Struct):
    """A PriorityClass."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    value: int = 0


class Whole(Struct):
    """An object of which more is needed than any partial struct has."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None

    def raw(self) -> dict[str, Any]:
        """As plain values."""
        made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return made


class _Sink:
    """Hands objects to a view and says that something is new."""

    def __init__(self, put: Callable[[Any], None], drop: Callable[[Key], None], news: Callable[[], None]) -> None:
        self._put, self._drop, self._news = put, drop, news

    def put(self, obj: Any) -> None:
        obj.metadata.managed_fields = (
            None  # who wrote which field: nobody asks, and it holds all bytes that came with it
        )
        self._put(obj)
        self._news()

    def drop(self, key: Key) -> None:
        self._drop(key)
        self._news()

    def synced(self) -> None:
        self._news()


class Sight:
    """Every watch of the lender. kinds: those whose jobs are resized.

    configmaps: namespace/name of the topology map, and of what an admin says of all jobs. ward: of nodes that pods have
    proven faulty, None where none is tainted. hold_large: a map that moves many hosts waits for the admin's word.
    """

    def __init__(
        self,
        view: View,
        source: Source,
        kinds: Mapping[str, JobKind],
        clock: Clock,
        rng: random.Random,
        configmaps: tuple[str, str],
        ward: Ward | None = None,
        hold_large: bool = False,
    ) -> None:
        self._ward = ward
        self._clock, self._view, self._source, self._rng = clock, view, source, rng
        self.news = asyncio.Event()
        self.reflectors: dict[str, Reflector[Any]] = {}
        self._watch("nodes", "/api/v1/nodes", Node, self._put_node, self._drop_node)
        self._watch("pods", "/api/v1/pods", Pod, self._put_pod, self._drop_pod)
        self._watch(
            "priorityclasses",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            Class,
            lambda obj: view.put_class(obj.metadata.name, obj.value),
            lambda key: view.put_class(key.name, None),
        )
        self._map, self._follower = MapInUse(hold_large), ConfigMapFollower(draw, self._take_map)
        self._watch_configmap(configmaps[0], self._follower)
        orders = _Sink(lambda obj: view.put_standing(obj.data or {}), lambda _: view.put_standing({}), self.news.set)
        self._watch_configmap(configmaps[1], orders)
        self._watch_groups()
        self._watch_queues()
        for kind in kinds.values():
            self._watch_kind(kind)

    def _watch(self, name: str, path: str, kind: type[Any], put: Any, drop: Any, **options: Any) -> None:
        self._tell(name, path, kind, _Sink(put, drop, self.news.set), **options)

    def _tell(self, name: str, path: str, kind: type[Any], sink: Any, **options: Any) -> None:
        self.reflectors[name] = Reflector(self._source, path, kind, sink, clock=self._clock, rng=self._rng, **options)

    def _watch_configmap(self, configmap: str, sink: Any) -> None:
        namespace, _, only = configmap.partition("/")
        path, fields = f"/api/v1/namespaces/{namespace}/configmaps", {"fieldSelector": f"metadata.name={only}"}
        self._tell(configmap, path, ConfigMap, sink, params=fields)

    def _watch_groups(self) -> None:
        groups = self._view.strays
        for dialect, path in POD_GROUP_PATHS.items():
            self._watch(
                path,
                path,
                Whole,
                lambda obj, dialect=dialect: groups.put_group(strays.read(dialect, obj.raw())),
                lambda key, dialect=dialect: groups.drop_group(GangKey(key.namespace, key.name, dialect.value)),
                optional=True,
            )

    def _watch_queues(self) -> None:
        view = self._view
        for path, read in _QUEUES.items():
            self._watch(
                path,
                path,
                Whole,
                lambda obj, read=read, path=path: view.put_queue(read(obj.raw()), _at(path, obj.metadata)),
                lambda key, path=path: view.drop_queue(_at(path, key)),
                optional=True,
            )
        self._watch(
            _LOCAL_QUEUES,
            _LOCAL_QUEUES,
            Whole,
            lambda obj: view.put_local_queue(*kueue.local_queue(obj.raw()), kueue.goes_on(obj.raw())),
            lambda key: view.put_local_queue(f"{key.namespace}/{key.name}", ""),
            optional=True,
        )

    def _watch_kind(self, kind: JobKind) -> None:
        view = self._view
        self._watch(
            kind.kind,
            kind.path,
            Whole,
            lambda obj: view.put_job(kind.kind, obj.raw()),
            lambda key: view.drop_job(key.uid),
            optional=True,
        )

    async def run(self) -> None:
        """Watch until cancelled. A watch ends only by a fault of ours, which ends the program."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors.values():
                tasks.create_task(reflector.run())
            tasks.create_task(self._follower.run())

    async def synced(self) -> None:
        """Wait until every list has been seen once."""
        while not self.whole:
            await self._clock.sleep(SYNC_LOOK_S)

    @property
    def whole(self) -> bool:
        """Has every list been seen, and the map read?"""
        return self.map_looked_at and all(reflector.has_synced for reflector in self.reflectors.values())

    @property
    def map_looked_at(self) -> bool:
        """True if the map, or that there is none, has been seen."""
        return self._map.looked

    def age_s(self) -> float:
        """How long ago the quietest watch told anything; one that lives does it once a minute at least."""
        return self._clock.monotonic() - min(each.last_event_s for each in self.reflectors.values())

    def _put_node(self, node: Node) -> None:
        if self._ward is not None:
            self._ward.put_node(node)
        self._view.put_node(node)

    def _drop_node(self, key: Key) -> None:
        if self._ward is not None:
            self._ward.drop_node(key.name)
        self._view.drop_node(key.name)

    def _put_pod(self, pod: Pod) -> None:
        if self._ward is not None:
            self._ward.put_pod(pod)
        self._view.put_pod(slim(pod))

    def _drop_pod(self, key: Key) -> None:
        if self._ward is not None:
            self._ward.drop_pod(key.uid)
        self._view.drop_pod(key.uid)

    def _take_map(self, drawn: Drawn | None, annotations: Mapping[str, str]) -> None:
        verdict = self._map.take(drawn, annotations)
        if verdict is None:
            return
        if verdict.fabric is not None:
            self._view.use_map(verdict.fabric)
        if (word := _MAP_NOT_TAKEN.get(verdict.outcome)) is not None:
            log.warning(word, extra={"why": verdict.detail})
        self.news.set()
