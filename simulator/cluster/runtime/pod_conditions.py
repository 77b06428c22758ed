"""Write the condition PodScheduled and an Event on pods that wait, as kube-scheduler does."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import aiohttp

from turnout.kube.times import rfc3339
from turnout.simulator.cluster.runtime.clients import ApiClient, ApiError
from turnout.simulator.cluster.scheduler import Waits

log = logging.getLogger(__name__)

_STRATEGIC = "application/strategic-merge-patch+json"


class Complaints:
    """Reasons of waiting pods, each written once until it changes. They are written one by one, beside scheduling."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._last_written: dict[str, str] = {}  # uid -> what was said last
        self._due: dict[str, tuple[str, str, Waits]] = {}
        self._news = asyncio.Event()

    def put(self, uid: str, namespace: str, name: str, outcome: Waits) -> None:
        """Queue the reason why a pod waits."""
        if self._last_written.get(uid) != outcome.message:
            self._last_written[uid] = outcome.message
            self._due[uid] = (namespace, name, outcome)
            self._news.set()

    def drop(self, uid: str) -> None:
        """Forget a pod that waits no longer."""
        self._last_written.pop(uid, None)
        self._due.pop(uid, None)

    async def run(self) -> None:
        """Write queued reasons until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._due:
                uid = next(iter(self._due))
                try:
                    await self._say(uid, *self._due.pop(uid))
                except ApiError as error:
                    if error.code not in (404, 409):
                        log.warning("pod_not_told", extra={"why": str(error)})
                except (aiohttp.ClientError, TimeoutError) as error:
                    log.warning("pod_not_told", extra={"why": str(error)})

    async def _say(self, uid: str, namespace: str, name: str, outcome: Waits) -> None:
        at = rfc3339(time.time())
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": at,
            "reason": outcome.why.value,
            "message": outcome.message,
        }
        body: dict[str, Any] = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        place = f"/api/v1/namespaces/{namespace}"
        await self._api.call("PATCH", f"{place}/pods/{name}/status", body, _STRATEGIC)
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        event = {
            "metadata": {"generateName": f"{name[:200]}.", "namespace": namespace},
            "involvedObject": about,
            "reason": "FailedScheduling",
            "message": outcome.message[:1024],
            "type": "Warning",
            "source": {"component": "turnout-local-scheduler"},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        await self._api.call("POST", f"{place}/events", event)
