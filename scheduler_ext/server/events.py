"""Turn notices into Events and log lines with the same word. Every namespace gets an equal share of the rate."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from turnout.kube.client.clock import Clock
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.client.rate_limiter import RateLimiter
from turnout.scheduler_ext.model import EventReason, Notice

log = logging.getLogger("turnout.extender")

_GOOD_NEWS = {EventReason.MAP_APPLIED, EventReason.PLACED}


PER_S, BURST = 5.0, 25.0  # the rate of the recorder, so that notices wait here and not there
MAX_NOTICES_PER_NAMESPACE = 50  # waiting notices of one namespace; further notices are dropped and counted
MAX_NAMESPACES = 500


class DecisionEvents:
    """The Events about the extender's decisions, for the owners of pods and the admin, written while `run` runs.

    configmap: namespace/name, the object of notices without a pod.
    """

    def __init__(self, events: EventRecorder, configmap: str, clock: Clock) -> None:
        """Prepare the queue; nothing is written before `run`. events: the recorder that sends them. configmap:
        namespace/name.
        """
        namespace, _, name = configmap.partition("/")
        self._map = ObjectRef("ConfigMap", "v1", namespace, name, "")
        self._events, self._clock = events, clock
        self._pace = RateLimiter(clock, PER_S, BURST)
        self._waiting: OrderedDict[str, OrderedDict[Notice, int]] = OrderedDict()  # namespace -> notice -> times
        self._wake = asyncio.Event()
        self.dropped = 0

    def notify(self, notice: Notice) -> None:
        """Queue a notice; an equal notice that waits is counted once more. Never waits.

        Another notice is dropped, and counted in `dropped`, if MAX_NOTICES_PER_NAMESPACE notices of its namespace wait,
        or if none waits and MAX_NAMESPACES other namespaces have notices.
        """
        about = self._about(notice)
        where = f"{about.namespace}/{about.name}"
        log.debug("told", extra={"reason": notice.reason.value, "about": where, "detail": notice.detail})
        waiting = self._waiting.get(about.namespace)
        if waiting is None:
            if len(self._waiting) >= MAX_NAMESPACES:
                self.dropped += 1
                return
            waiting = self._waiting[about.namespace] = OrderedDict()
        if notice not in waiting and len(waiting) >= MAX_NOTICES_PER_NAMESPACE:
            self.dropped += 1
            return
        waiting[notice] = waiting.get(notice, 0) + 1
        self._wake.set()

    async def run(self) -> None:
        """Hand the queued notices to the recorder, at most PER_S a second and one of each namespace in turn, until
        cancelled.
        """
        while True:
            await self._wake.wait()
            while self._waiting:
                await self._pace.acquire()
                namespace, waiting = self._waiting.popitem(last=False)
                notice, times = waiting.popitem(last=False)
                if waiting:
                    self._waiting[namespace] = waiting  # to the end of the queue
                self._emit(notice, times)
            self._wake.clear()

    def _emit(self, notice: Notice, times: int) -> None:
        """Hand a notice to the recorder `times` times, at most MAX_NOTICES_PER_NAMESPACE times.

        The Event's type is Normal for a reason in _GOOD_NEWS, else Warning.
        """
        about = self._about(notice)
        kind = "Normal" if notice.reason in _GOOD_NEWS else "Warning"
        text = f"{notice.reason.value}: {notice.detail}"
        for _ in range(min(times, MAX_NOTICES_PER_NAMESPACE)):
            self._events.emit(about, kind, notice.reason.value, text, self._clock.wall())

    def _about(self, notice: Notice) -> ObjectRef:
        if not notice.uid:
            return self._map
        return ObjectRef(notice.kind, notice.api_version, notice.namespace, notice.name, notice.uid)
