"""The watches of the job controllers: jobs of each kind and the objects that they own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from turnout.controllers.children import collection_path, path_prefixes
from turnout.controllers.model import ControlledKind, GangSettings
from turnout.controllers.runtime import scale_plans
from turnout.controllers.runtime.owned_objects import NODES_PATH, ChildCache, JobObject, OfferingNode, Owned, OwnedPod
from turnout.controllers.runtime.scale_plans import ScalePlans
from turnout.kube.client.clock import Clock
from turnout.kube.client.informer_factory import CallbackSink, InformerFactory
from turnout.kube.client.reflector import ListerWatcher
from turnout.kube.watch_events import Key

CHECK_S = 10.0  # between two checks whether pods can be read
PODS_UNREADABLE_AFTER_S = 60.0  # time without a working watch after which pods count as unread
_NODES = "nodes"
_UNLABELLED = ("PodGroup", "HorizontalPodAutoscaler")  # watched without a selector: few, and ours have no label


class ControllerInformers(InformerFactory):
    """The watches of the job controllers. kinds: by the path of their group, as in a JobKey.

    A kind without a CRD is retried every UNSERVED_RETRY_S of a Reflector. Pods, Services and ConfigMaps are watched
    only with the labels of jobs, so the other objects of a large cluster cost nothing.
    """

    def __init__(
        self,
        cache: ChildCache,
        source: ListerWatcher,
        kinds: Mapping[str, ControlledKind],
        gang_settings: GangSettings,
        clock: Clock,
        rng: random.Random,
        namespace: str = "",
    ) -> None:
        """Register all watches; they start with `run`.

        kinds: by the path of their group, as in a JobKey. namespace: the only one that is watched, "" for all.
        """
        super().__init__(source, clock, rng)
        self._cache, self._namespace = cache, namespace
        self.watch(_NODES, NODES_PATH, OfferingNode, cache.nodes)
        self._loops.append(self._check_pod_watches)
        for api, kind in kinds.items():
            self._watch_jobs(api, kind)
        for name, prefix in path_prefixes(gang_settings).items():
            path = collection_path(prefix, namespace)
            if name in _UNLABELLED:
                self._watch_children(name, name, path, {})
                continue
            for label in sorted(
                {kind.children.label_keys.job for kind in kinds.values() if name in kind.children.owns}
            ):
                self._watch_children(f"{name}/{label}", name, path, {"labelSelector": label})

    async def _check_pod_watches(self) -> None:
        """Every CHECK_S, until cancelled, tell the cache whether pods can be read.

        They cannot once some watch of pods has been down for PODS_UNREADABLE_AFTER_S.
        """
        read_s = self._clock.monotonic()
        while True:
            await self._clock.sleep(CHECK_S)
            pods = [each for name, each in self.reflectors.items() if name.startswith("Pod/")]
            if all(each.watching_since_s is not None for each in pods):
                read_s = self._clock.monotonic()
            self._cache.set_pods_readable(readable=self._clock.monotonic() - read_s < PODS_UNREADABLE_AFTER_S)

    def unsynced_watches(self) -> list[str]:
        """Return the names of the watches that have not delivered their list yet.

        Nodes are left out after a failed request for them: an account that may not list nodes still controls jobs.
        """
        refused = bool(self.reflectors[_NODES].last_error)
        return [name for name in super().unsynced_watches() if name != _NODES or not refused]

    def _watch_jobs(self, api: str, kind: ControlledKind) -> None:
        """Watch the jobs of one kind. api: the path of its group, /apis/GROUP/VERSION."""
        cache = self._cache

        def put(obj: JobObject) -> None:
            cache.put_job(api, kind.kind, obj)

        def drop(key: Key) -> None:
            cache.drop_job(api, key)

        path = collection_path((api, kind.plural), self._namespace)
        self.watch(f"{api}/{kind.plural}", path, JobObject, CallbackSink(put, drop), optional=True)

    def watch_plans(self, plans: ScalePlans) -> None:
        """Watch ScalePlans, too, and pass them to `plans`."""
        path = collection_path((scale_plans.PATH, scale_plans.PLURAL), self._namespace)
        self.watch(scale_plans.PLURAL, path, JobObject, CallbackSink(plans.store_plan, plans.drop_plan), optional=True)

    def _watch_children(self, name: str, kind: str, path: str, params: Mapping[str, str]) -> None:
        """Watch one kind of objects that jobs own, and pass them to the cache.

        name: of the watch in metrics. kind: of the objects. path: of their list. params: the query, such as a label
        selector.
        """
        cache = self._cache

        def put(obj: Any) -> None:
            """Store an observed child in the cache."""
            if kind == "Pod":
                cache.put_pod(obj)
            else:
                cache.put_other(kind, obj)

        def drop(key: Key) -> None:
            cache.drop_child(kind, key)

        def drop_unlisted(version: str) -> None:
            cache.drop_unlisted(kind, params.get("labelSelector", ""), version)

        type_ = OwnedPod if kind == "Pod" else Owned
        handlers = CallbackSink(put, drop, on_list=drop_unlisted)
        self.watch(name, path, type_, handlers, params=params, optional=kind in _UNLABELLED)
