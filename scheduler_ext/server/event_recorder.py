"""Notices become Events and log lines, with the same word in both."""

from __future__ import annotations

import logging

from turnout.kube.client.clock import Clock
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.scheduler_ext.model import Notice, Word

log = logging.getLogger("turnout.extender")

_GOOD_NEWS = {Word.MAP_APPLIED}


class DecisionEvents:
    """Tells pods' owners and the admin. configmap: namespace/name, what notices without a pod are about."""

    def __init__(self, events: EventRecorder, configmap: str, clock: Clock) -> None:
        namespace, _, name = configmap.partition("/")
        self._map = ObjectRef("ConfigMap", "v1", namespace, name, "")
        self._events, self._clock = events, clock

    def tell(self, notice: Notice) -> None:
        """Write it down; never waits."""
        about = self._map
        if notice.uid:
            about = ObjectRef("Pod", "v1", notice.namespace, notice.name, notice.uid)
        kind = "Normal" if notice.word in _GOOD_NEWS else "Warning"
        self._events.emit(about, kind, notice.word.value, f"{notice.word.value}: {notice.detail}", self._clock.wall())
        where = f"{about.namespace}/{about.name}"
        log.debug("told", extra={"reason": notice.word.value, "about": where, "detail": notice.detail})
