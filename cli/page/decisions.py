"""The decisions that components of Turnout have told in Events, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.autoscaler.model import Reason
from turnout.cli.page.messages import DecisionItem
from turnout.cli.views.cluster_events import ClusterEvent, read_event
from turnout.cli.views.history import OURS
from turnout.kube.reasons import without_pointer

MOST_DECISIONS = 2_000
_GROWS = frozenset([Reason.IDLE_ROOM.value, Reason.RETURNED.value])
_SHRINKS = frozenset([Reason.MAKES_ROOM.value, Reason.ROOM_TAKEN.value])
_HOLDS = frozenset(reason.value for reason in Reason) - _GROWS - _SHRINKS


class DecisionStore:
    """The newest decisions, at most MOST_DECISIONS. One stays when the API server deletes its Event after an hour."""

    def __init__(self) -> None:
        self._events: dict[str, tuple[str, ClusterEvent, bool]] = {}  # by uid: namespace, Event, is a warning

    def put(self, uid: str, namespace: str, raw: Mapping[str, Any]) -> None:
        """Add an Event, or the newer state of one. An Event of another component is left out."""
        event = read_event(raw)
        if event.component not in OURS:
            return
        self._events.pop(uid, None)
        self._events[uid] = namespace, event, raw.get("type") == "Warning"
        if len(self._events) > MOST_DECISIONS:
            oldest = min(self._events, key=lambda each: self._events[each][1].last_s or 0.0)
            del self._events[oldest]

    def items(self, queues: Mapping[str, str]) -> tuple[DecisionItem, ...]:
        """Return the decisions, the newest first. queues: the queue of each known job, by KIND/NAMESPACE/NAME."""
        found = []
        for namespace, event, warns in self._events.values():
            name = f"{event.kind}/{namespace}/{event.name}"
            found.append(
                DecisionItem(
                    at_s=event.last_s or 0.0,
                    times=event.count,
                    component=event.component,
                    reason=event.reason,
                    glyph=glyph_of(event.reason, warns),
                    object=name,
                    namespace=namespace,
                    queue=queues.get(name, ""),
                    sentence=without_pointer(event.message, event.reason),
                )
            )
        return tuple(sorted(found, key=lambda each: (-each.at_s, each.object, each.reason)))


def glyph_of(reason: str, warns: bool) -> str:
    """Return the word of the glyph: grow, shrink, hold, fault or other."""
    if reason in _GROWS:
        return "grow"
    if reason in _SHRINKS:
        return "shrink"
    if warns:
        return "fault"
    return "hold" if reason in _HOLDS else "other"
