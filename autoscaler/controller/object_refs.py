"""References to the objects that Events and pod annotations are about, as the cache knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.model import Step
from turnout.jobs.model import JobKey
from turnout.kube.client.events import ObjectRef


class Refs:
    """Jobs and pods of a view."""

    def __init__(self, view: Cache) -> None:
        self._view = view

    def job(self, key: JobKey) -> ObjectRef | None:
        """A job; None for one that is gone."""
        found = self._view.about(key)
        if found is None:
            return None
        kind, version, uid = found
        return ObjectRef(kind, version, key.namespace, key.name, uid)

    def leaving(self, step: Step) -> Iterator[ObjectRef]:
        """The pods that a step tells to go."""
        for pod in self._view.leaving(step.key, step.target):
            meta = pod.metadata
            yield ObjectRef("Pod", "v1", meta.namespace, meta.name, meta.uid)

    def notes(self, key: JobKey) -> Mapping[str, Mapping[str, str]]:
        """The annotations of a job's pods, by name."""
        return {pod.metadata.name: pod.metadata.annotations or {} for pod in self._view.pods_of(key)}
