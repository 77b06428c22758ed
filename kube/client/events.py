"""Kubernetes Events about objects: the same thing said twice is one Event with a count.

Telling never blocks who tells: what does not fit the queue, the rate or the RBAC is dropped and counted.
Namespaces have their turns one after another. When the queue is full, the one that fills it most makes room.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from turnout.kube.client.clock import Clock
from turnout.kube.client.rate_limiter import Pace
from turnout.kube.errors import CallError, Conflict, Forbidden, NotFound
from turnout.kube.reasons import WORDS, pointer
from turnout.kube.times import rfc3339

log = logging.getLogger(__name__)

MESSAGE_BYTES = 1024  # what events.k8s.io allows for a note
_REASON_CHARS = 128
_NAME_CHARS = 200  # an object name is up to 253, and the Event's own name adds to it
_REMEMBERED = 2048  # Events that can still be counted up
_SPAN_S = 3600.0  # of wall time, counted from 1970: a repetition in another span is a new Event, which the name says
_CALL_S = 5.0


class ObjectRef(NamedTuple):
    """The object of an Event. namespace: "" for cluster-wide objects; their Events live in `default`."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str


class _Topic(NamedTuple):
    """The fields in which two Events that are counted together agree."""

    ref: ObjectRef
    type_: str
    reason: str
    message: str


@dataclass(slots=True)
class _Told:
    """One Event on the server. count: as written there."""

    path: str  # "" for one that another replica has written, and counts up
    count: int
    first_s: float
    last_s: float


@dataclass(slots=True)
class _Waiting:
    times: int
    first_s: float
    last_s: float


class EventStore(Protocol):
    """The calls that a recorder needs of a Client."""

    async def create(self, path: str, body: dict[str, Any], *, deadline_s: float) -> bytes:
        """The Event as created."""

    async def patch(self, path: str, body: dict[str, Any], *, deadline_s: float) -> bytes:
        """The Event as patched. Raises NotFound when the server has let it expire."""


class EventRecorder:
    """Writes Events in the background. dropped: how many were never written."""

    def __init__(
        self,
        client: EventStore,
        component: str,
        instance: str,
        *,
        clock: Clock,
        capacity: int = 1000,
        per_s: float = 5.0,
        burst: float = 25.0,
        docs: str = "",
    ) -> None:
        """component: who tells, such as turnout-extender. instance: which of them, the pod's name.

        docs: the address of the docs site, to which Events with a reason of ours link; "" names a command instead.
        """
        self._docs = docs
        self._client, self._component, self._instance = client, component, instance
        self._pace = Pace(clock, per_s, burst)
        self._capacity = capacity
        self._waiting: OrderedDict[str, OrderedDict[_Topic, _Waiting]] = OrderedDict()  # by namespace, in their turns
        self._count = 0
        self._told: OrderedDict[_Topic, _Told] = OrderedDict()
        self._something = asyncio.Event()
        self._forbidden = False
        self.dropped = 0

    def emit(self, ref: ObjectRef, type_: str, reason: str, message: str, now: float) -> None:
        """Tell, soon. type_: Normal or Warning. now: wall seconds. Raises nothing.

        message: cut at MESSAGE_BYTES, the place where the reason is explained included.
        """
        where = f" ({pointer(reason, self._docs)})" if reason in WORDS else ""
        topic = _Topic(ref, type_, reason[:_REASON_CHARS], _cut(message, MESSAGE_BYTES - len(where)) + where)
        mine = self._waiting.get(ref.namespace) or OrderedDict[_Topic, _Waiting]()
        waiting = mine.get(topic)
        if waiting is not None:
            waiting.times += 1
            waiting.last_s = max(waiting.last_s, now)
        elif self._count >= self._capacity and not self._made_room(len(mine)):
            self.dropped += 1
        else:
            self._waiting.setdefault(ref.namespace, OrderedDict())[topic] = _Waiting(1, now, now)
            self._count += 1
            self._something.set()

    def _made_room(self, mine: int) -> bool:
        """Drop the last Event of the namespace that has most waiting, if it has more than this one would have."""
        most = max(self._waiting.values(), key=len, default=None)
        if most is None or len(most) <= mine + 1:
            return False
        self.dropped += most.popitem()[1].times
        self._count -= 1
        return True

    def _next(self) -> tuple[_Topic, _Waiting]:
        """Take the oldest Event of the namespace whose turn it is."""
        namespace, mine = self._waiting.popitem(last=False)
        found = mine.popitem(last=False)
        self._count -= 1
        if mine:
            self._waiting[namespace] = mine
        return found

    async def run(self) -> None:
        """Write what waits, a namespace after another, of each the oldest first, until cancelled."""
        while True:
            await self._something.wait()
            await self.flush()
            self._something.clear()

    async def flush(self) -> None:
        """Write what waits, and return."""
        while self._waiting:
            await self._pace.turn()
            topic, waiting = self._next()
            try:
                await self._write(topic, waiting)
            except CallError as error:
                self.dropped += waiting.times
                self._complain(error)

    def _complain(self, error: CallError) -> None:
        """Once for a refusal that only an admin can lift; each time for what passes."""
        if isinstance(error, Forbidden):
            if self._forbidden:
                return
            self._forbidden = True
        log.warning("event_not_written", extra={"why": str(error)})

    async def _write(self, topic: _Topic, waiting: _Waiting) -> None:
        told = self._told.pop(topic, None)
        if told is not None and _span(waiting.first_s) == _span(told.first_s):
            if not told.path:
                self._remember(topic, told)
                return
            told.count += waiting.times
            told.last_s = waiting.last_s
            body = {"count": told.count, "lastTimestamp": rfc3339(told.last_s)}
            try:
                await self._client.patch(told.path, body, deadline_s=_CALL_S)
            except NotFound:
                log.debug("event_expired", extra={"path": told.path})
            else:
                self._remember(topic, told)
                return
        name = self._name(topic, waiting)
        path = f"/api/v1/namespaces/{topic.ref.namespace or 'default'}/events"
        written = f"{path}/{name}"
        try:
            await self._client.create(path, self._body(topic, waiting, name), deadline_s=_CALL_S)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            written = ""
        self._forbidden = False
        self._remember(topic, _Told(written, waiting.times, waiting.first_s, waiting.last_s))

    def _remember(self, topic: _Topic, told: _Told) -> None:
        self._told[topic] = told
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    def _name(self, topic: _Topic, waiting: _Waiting) -> str:
        """Name an Event by its topic, program and span, so that only one of two replicas can create it."""
        seed = "\0".join((*topic.ref, *topic[1:], self._component, str(_span(waiting.first_s))))
        return f"{topic.ref.name[:_NAME_CHARS].rstrip('.-')}.{hashlib.sha256(seed.encode()).hexdigest()[:16]}"

    def _body(self, topic: _Topic, waiting: _Waiting, name: str) -> dict[str, Any]:
        ref, namespace = topic.ref, topic.ref.namespace or "default"
        about = {"kind": ref.kind, "apiVersion": ref.api_version, "name": ref.name, "uid": ref.uid}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {**about, **({"namespace": ref.namespace} if ref.namespace else {})},
            "type": topic.type_,
            "reason": topic.reason,
            "message": topic.message,
            "count": waiting.times,
            "firstTimestamp": rfc3339(waiting.first_s),
            "lastTimestamp": rfc3339(waiting.last_s),
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance[:_REASON_CHARS],
        }


def _span(wall_s: float) -> int:
    """Number the span of _SPAN_S seconds that a moment lies in."""
    return int(wall_s // _SPAN_S)


def _cut(message: str, most_bytes: int) -> str:
    """At most so many bytes of UTF-8, no letter cut in half, with a mark where something is missing."""
    raw = message.encode("utf-8", "replace")
    if len(raw) <= most_bytes:
        return raw.decode()
    return raw[: most_bytes - 3].decode("utf-8", "ignore") + "..."
