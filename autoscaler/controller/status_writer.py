"""Write the status of each queue, and annotations on pods. Neither delays a decision."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from turnout.autoscaler.controller.scale_writer import FIELD_MANAGER
from turnout.autoscaler.reporting.queue_status import LABEL, PodAnnotations, configmap_name
from turnout.kube.client.apply import MERGE, apply_object
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, NotFound

log = logging.getLogger("turnout.autoscaler")

ROUND_S = 10.0  # between two rounds
MAX_ANNOTATED_PODS = 200  # pods that are annotated in one round
TOGETHER = 8  # writes that run at the same time


class StatusWriter:
    """The writer of queue statuses and pod annotations.

    namespace: of the ConfigMaps. configmap_data: returns the data of each queue's ConfigMap, by queue.
    missing_annotations: returns the annotations that pods lack. leads: returns True while this replica leads; only a
    leader writes.
    """

    def __init__(
        self,
        store: Calls,
        namespace: str,
        clock: Clock,
        configmap_data: Callable[[], Mapping[str, Mapping[str, str]]],
        missing_annotations: Callable[[], Iterable[PodAnnotations]],
        leads: Callable[[], bool],
    ) -> None:
        """Prepare the writer; `run` starts it. The class docstring explains the arguments."""
        self._store, self._namespace, self._clock = store, namespace, clock
        self._configmap_data, self._missing_annotations, self._leads = configmap_data, missing_annotations, leads
        self._last_data: dict[str, Mapping[str, str]] = {}  # as written, by queue

    async def run(self) -> None:
        """Write what has changed, every ROUND_S, while this replica leads, until cancelled. The first write comes after
        ROUND_S.

        A failed write is retried next time.
        """
        while True:
            await self._clock.sleep(ROUND_S)
            if self._leads():
                await self.write_changes()
            else:
                self._last_data.clear()  # another leader writes them now

    async def write_changes(self) -> None:
        """Write the queue statuses that have changed since the last call, and annotations that pods lack. Delete the
        statuses of old queues.

        At most MAX_ANNOTATED_PODS pods are annotated. Failures are logged only, and a later call retries.
        """
        configmap_data = self._configmap_data()
        for queue in self._last_data.keys() - configmap_data.keys():
            await self._drop(queue)
        changed = [(queue, data) for queue, data in configmap_data.items() if self._last_data.get(queue) != data]
        missing_annotations = [
            annotations for annotations, _ in zip(self._missing_annotations(), range(MAX_ANNOTATED_PODS), strict=False)
        ]
        work = [self._write(queue, data) for queue, data in changed] + [
            self._annotate_pod(annotations) for annotations in missing_annotations
        ]
        for at in range(0, len(work), TOGETHER):
            await asyncio.gather(*work[at : at + TOGETHER])

    async def _write(self, queue: str, data: Mapping[str, str]) -> None:
        """Write the ConfigMap of a queue. data: of the ConfigMap. A failure is logged, and the next call of
        write_changes() retries.
        """
        name = configmap_name(queue)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {LABEL: "true", "app.kubernetes.io/part-of": "turnout"}},
            "data": dict(data),
        }
        try:
            await apply_object(self._store, self._path(name), body, FIELD_MANAGER)
        except CallError as error:
            log.info("status_not_written", extra={"queue": queue, "why": str(error)})
        else:
            self._last_data[queue] = data

    async def _drop(self, queue: str) -> None:
        """Delete the ConfigMap of a queue that no longer exists. A failure is logged, and the next call of
        write_changes() retries.
        """
        try:
            await self._store.delete(self._path(configmap_name(queue)))
        except NotFound:
            pass
        except CallError as error:
            log.info("status_not_removed", extra={"queue": queue, "why": str(error)})
            return
        del self._last_data[queue]

    async def _annotate_pod(self, missing: PodAnnotations) -> None:
        """Write the annotations that one pod lacks, or has with another value. A failure is logged; a deleted pod is
        ignored.
        """
        path = f"/api/v1/namespaces/{missing.namespace}/pods/{missing.name}"
        body = {"metadata": {"annotations": dict(missing.annotations)}}
        try:
            await self._store.patch(path, body, MERGE, FIELD_MANAGER)
        except NotFound:
            return  # deleted before it was annotated
        except CallError as error:
            log.info("pod_not_marked", extra={"pod": f"{missing.namespace}/{missing.name}", "why": str(error)})

    def _path(self, name: str) -> str:
        """Return the path of a ConfigMap by its name."""
        return f"/api/v1/namespaces/{self._namespace}/configmaps/{name}"
