"""Write the status of each queue, and annotations on pods. Neither delays a decision."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from turnout.autoscaler.controller.scale_writer import FIELD_MANAGER
from turnout.autoscaler.reporting.queue_status import LABEL, Mark, configmap_name
from turnout.kube.client.apply import MERGE, apply_object
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, NotFound

log = logging.getLogger("turnout.autoscaler")

ROUND_S = 10.0  # between two rounds
MAX_MARKS = 200  # pods that are annotated in one round
TOGETHER = 8  # writes that run at the same time


class StatusWriter:
    """The writer of queue statuses and pod annotations.

    namespace: of the ConfigMaps. pages: returns the data of each queue's ConfigMap, by queue. marks: returns the
    annotations that pods lack. leads: returns True while this replica leads; only a leader writes.
    """

    def __init__(
        self,
        store: Calls,
        namespace: str,
        clock: Clock,
        pages: Callable[[], Mapping[str, Mapping[str, str]]],
        marks: Callable[[], Iterable[Mark]],
        leads: Callable[[], bool],
    ) -> None:
        """Prepare the writer; `run` starts it. The class docstring explains the arguments."""
        self._store, self._namespace, self._clock = store, namespace, clock
        self._pages, self._marks, self._leads = pages, marks, leads
        self._last_pages: dict[str, Mapping[str, str]] = {}  # as written, by queue

    async def run(self) -> None:
        """Write a round every ROUND_S until cancelled, while this replica leads.

        A failed write is retried next time.
        """
        while True:
            await self._clock.sleep(ROUND_S)
            if self._leads():
                await self.round()
            else:
                self._last_pages.clear()  # another leader writes them now

    async def round(self) -> None:
        """Write the statuses and annotations that have changed since the last round, and delete those of old queues.

        At most MAX_MARKS pods are annotated. Failures are logged only.
        """
        pages = self._pages()
        for queue in self._last_pages.keys() - pages.keys():
            await self._drop(queue)
        changed = [(queue, data) for queue, data in pages.items() if self._last_pages.get(queue) != data]
        marks = [mark for mark, _ in zip(self._marks(), range(MAX_MARKS), strict=False)]
        work = [self._write(queue, data) for queue, data in changed] + [self._annotate_pod(mark) for mark in marks]
        for at in range(0, len(work), TOGETHER):
            await asyncio.gather(*work[at : at + TOGETHER])

    async def _write(self, queue: str, data: Mapping[str, str]) -> None:
        """Write the ConfigMap of a queue. data: of the ConfigMap. A failure is logged, and the next round retries."""
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
            self._last_pages[queue] = data

    async def _drop(self, queue: str) -> None:
        """Delete the ConfigMap of a queue that no longer exists. A failure is logged, and the next round retries."""
        try:
            await self._store.delete(self._path(configmap_name(queue)))
        except NotFound:
            pass
        except CallError as error:
            log.info("status_not_removed", extra={"queue": queue, "why": str(error)})
            return
        del self._last_pages[queue]

    async def _annotate_pod(self, mark: Mark) -> None:
        """Write the annotations that one pod lacks. A failure is logged; a deleted pod is ignored."""
        path = f"/api/v1/namespaces/{mark.namespace}/pods/{mark.name}"
        body = {"metadata": {"annotations": dict(mark.notes)}}
        try:
            await self._store.patch(path, body, MERGE, FIELD_MANAGER)
        except NotFound:
            return  # deleted before it was annotated
        except CallError as error:
            log.info("pod_not_marked", extra={"pod": f"{mark.namespace}/{mark.name}", "why": str(error)})

    def _path(self, name: str) -> str:
        """Return the path of a ConfigMap by its name."""
        return f"/api/v1/namespaces/{self._namespace}/configmaps/{name}"
