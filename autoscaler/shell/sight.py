"""The lender's watches: nodes, pods, jobs of every kind, queues; and how old what they show is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from autoscaler.view import View
from jobs.model import JobKind
from jobs.queues import koordinator, kueue, namespace, volcano
from jobs.queues.model import NAMESPACE, Object, QueueSpec
from kube.feed import Key
from kube.objects import Node, ObjectMeta, Pod, Struct
from kube.shell.clock import Clock
from kube.shell.reflector import Reflector, Source

SYNC_LOOK_S = 0.05
_LOCAL_QUEUES = "/apis/kueue.x-k8s.io/v1beta2/localqueues"


def _by_name(key: Key) -> str:
    return key.name


def _by_namespace(key: Key) -> str:
    return NAMESPACE + key.namespace


# Where each dialect's queues are, how one is read, and by what name it is known.
_QUEUES: tuple[tuple[str, Callable[[Object], QueueSpec], Callable[[Key], str]], ...] = (
    ("/apis/scheduling.volcano.sh/v1beta1/queues", volcano.read, _by_name),
    ("/api/v1/resourcequotas", namespace.read, _by_namespace),
    ("/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas", koordinator.read, _by_name),
    ("/apis/kueue.x-k8s.io/v1beta2/clusterqueues", kueue.read, _by_name),
)


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
        self._put(obj)
        self._news()

    def drop(self, key: Key) -> None:
        self._drop(key)
        self._news()

    def synced(self) -> None:
        self._news()


class Sight:
    """Every watch of the lender. kinds: those whose jobs are resized."""

    def __init__(
        self, view: View, source: Source, kinds: Mapping[str, JobKind], clock: Clock, rng: random.Random
    ) -> None:
        self._clock = clock
        self.news = asyncio.Event()

        def watch(path: str, kind: type[Any], put: Any, drop: Any, **options: Any) -> Reflector[Any]:
            return Reflector(source, path, kind, _Sink(put, drop, self.news.set), clock=clock, rng=rng, **options)

        self.reflectors: dict[str, Reflector[Any]] = {
            "nodes": watch("/api/v1/nodes", Node, view.put_node, lambda key: view.drop_node(key.name)),
            "pods": watch("/api/v1/pods", Pod, view.put_pod, lambda key: view.drop_pod(key.uid)),
        }
        for path, read, name in _QUEUES:
            self.reflectors[path] = watch(
                path,
                Whole,
                lambda obj, read=read: view.put_queue(read(obj.raw())),
                lambda key, name=name: view.drop_queue(name(key)),
                optional=True,
            )
        self.reflectors[_LOCAL_QUEUES] = watch(
            _LOCAL_QUEUES,
            Whole,
            lambda obj: view.put_local_queue(*kueue.local_queue(obj.raw())),
            lambda key: view.put_local_queue(f"{key.namespace}/{key.name}", ""),
            optional=True,
        )
        for kind in kinds.values():
            self.reflectors[kind.kind] = watch(
                kind.path,
                Whole,
                lambda obj, name=kind.kind: view.put_job(name, obj.raw()),
                lambda key: view.drop_job(key.uid),
                optional=True,
            )

    async def run(self) -> None:
        """Watch until cancelled. A watch ends only by a fault of ours, which ends the program."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors.values():
                tasks.create_task(reflector.run())

    async def synced(self) -> None:
        """Wait until every list has been seen once."""
        while not self.whole:
            await self._clock.sleep(SYNC_LOOK_S)

    @property
    def whole(self) -> bool:
        """Has every list been seen?"""
        return all(reflector.has_synced for reflector in self.reflectors.values())

    def age_s(self) -> float:
        """How long ago nodes or pods last told anything; a watch that lives does it once a minute at least."""
        return max(self._clock.monotonic() - self.reflectors[name].last_event_s for name in ("nodes", "pods"))
