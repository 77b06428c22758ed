"""The decisions that components of Turnout reported in Events, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnout.autoscaler.model import Reason
from turnout.cli.page.messages import DecisionItem
from turnout.cli.views.cluster_events import ClusterEvent, read_event
from turnout.cli.views.history import OURS
from turnout.jobs.kinds.registry import KINDS
from turnout.kube.reasons import without_pointer

MAX_DECISIONS, MAX_OF_NAMESPACE = 2_000, 200
MAX_NAME, MAX_MESSAGE = 253, 1_000  # characters
_KINDS = {(kind.group, kind.object_kind or kind.kind): kind.kind for kind in KINDS.values()}
_GROWS = frozenset([Reason.IDLE_ROOM.value, Reason.RETURNED.value])
_SHRINKS = frozenset([Reason.MAKES_ROOM.value, Reason.ROOM_TAKEN.value])
_HOLDS = frozenset(reason.value for reason in Reason) - _GROWS - _SHRINKS


class DecisionStore:
    """The newest decisions: MAX_OF_NAMESPACE of each namespace, MAX_DECISIONS in all.

    Anybody who may create Events in a namespace can write one in the name of a component. It counts only in that
    namespace, and it cannot push out the decisions of others. A decision stays when the API server deletes its Event.
    """

    def __init__(self) -> None:
        # By namespace and uid: the Event, and whether it is a warning. The least recently written comes first.
        self._events: dict[str, dict[str, tuple[ClusterEvent, bool]]] = {}
        self._count = 0

    def put(self, uid: str, namespace: str, raw: Mapping[str, Any], now_s: float) -> None:
        """Store an Event, or replace its older state. An Event of another component is ignored.

        Above MAX_OF_NAMESPACE the Event of the namespace that was written least recently is removed, and above
        MAX_DECISIONS that of the namespace with the most Events. uid: of the Event. namespace: its own. raw: the Event.
        now_s: since 1970; a later time in the Event is replaced by it.
        """
        event = read_event(raw)
        if event.component not in OURS:
            return
        own_events = self._events.setdefault(namespace, {})
        if own_events.pop(uid, None) is None:
            self._count += 1
        own_events[uid] = _bounded(event, now_s), raw.get("type") == "Warning"
        if len(own_events) > MAX_OF_NAMESPACE:
            self._drop_oldest(namespace)
        if self._count > MAX_DECISIONS:
            self._drop_oldest(max(self._events, key=lambda each: len(self._events[each])))

    def _drop_oldest(self, namespace: str) -> None:
        """Remove the decision of a namespace that was written least recently. The namespace has at least one."""
        own_events = self._events[namespace]
        del own_events[next(iter(own_events))]
        self._count -= 1
        if not own_events:
            del self._events[namespace]

    def items(self, queues: Mapping[str, str]) -> tuple[DecisionItem, ...]:
        """Return the stored decisions, the newest first. queues: KIND/NAMESPACE/NAME of a job -> its queue."""
        items = []
        for namespace, own_events in self._events.items():
            for event, warns in own_events.values():
                name = f"{_kind(event)}/{namespace}/{event.name}"
                items.append(_item(event, warns, namespace, name, queues.get(name, "")))
        return tuple(sorted(items, key=lambda each: (-each.at_s, each.object, each.reason)))


def _kind(event: ClusterEvent) -> str:
    """Return the kind of the object as the page names it: jobs of several groups share the kind in their objects."""
    group = event.api_version.rpartition("/")[0]
    return _KINDS.get((group, event.kind), event.kind)


def _bounded(event: ClusterEvent, now_s: float) -> ClusterEvent:
    """Return the Event with its texts cut to a maximum, and with no time after `now_s`."""
    return replace(
        event,
        kind=event.kind[:MAX_NAME],
        api_version=event.api_version[:MAX_NAME],
        name=event.name[:MAX_NAME],
        reason=event.reason[:MAX_NAME],
        message=event.message[:MAX_MESSAGE],
        last_s=min(event.last_s or 0.0, now_s),
    )


def _item(event: ClusterEvent, warns: bool, namespace: str, name: str, queue: str) -> DecisionItem:
    """Return an Event as the page shows it. warns: its type is Warning. name: KIND/NAMESPACE/NAME of the object.

    queue: of the job, "" if unknown.
    """
    return DecisionItem(
        at_s=event.last_s or 0.0,
        times=event.count,
        component=event.component,
        reason=event.reason,
        glyph=glyph_of(event.reason, warns),
        object=name,
        namespace=namespace,
        queue=queue,
        sentence=without_pointer(event.message, event.reason),
    )


def glyph_of(reason: str, warns: bool) -> str:
    """Return the name of a decision's symbol: grow, shrink, hold, fault or other.

    warns: the Event's type is Warning.
    """
    if reason in _GROWS:
        return "grow"
    if reason in _SHRINKS:
        return "shrink"
    if warns:
        return "fault"
    return "hold" if reason in _HOLDS else "other"
