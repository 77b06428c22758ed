"""Kubernetes Events about objects: repetitions of one message are one Event with a count.

The count goes on after a restart of the program in its pod. Emitting an Event never blocks. Events that exceed the
queue, the rate or our RBAC are dropped and counted. Namespaces take turns. When the queue is full, the namespace with
the most queued Events loses its newest.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from turnout.kube.client.clock import Clock
from turnout.kube.client.rate_limiter import RateLimiter
from turnout.kube.errors import CallError, Conflict, Forbidden, NotFound, ServerFault, Unreachable
from turnout.kube.reasons import WORDS, pointer
from turnout.kube.status import decode_answer
from turnout.kube.times import rfc3339

log = logging.getLogger(__name__)

MESSAGE_BYTES = 1024  # of a message, as events.k8s.io allows for a note
_REASON_CHARS = 128  # of a reason, as the API server allows
_NAME_CHARS = 200  # of the object's name in the Event's name, which has at most 253
_MAX_WRITTEN_EVENTS = 2048  # written Events that are remembered, so that repetitions increase their count
_SPAN_S = 3600.0  # wall time is divided into spans from 1970 on: a repetition in another span is a new Event
_CALL_S = 5.0  # the deadline of one write


class ObjectRef(NamedTuple):
    """The object of an Event."""

    kind: str  # the kind of the object
    api_version: str  # GROUP/VERSION, or v1
    namespace: str  # "" for cluster-wide objects, whose Events are in `default`
    name: str  # the name of the object
    uid: str  # the uid of the object


class _EventKey(NamedTuple):
    """The fields that equal Events share: such Events are counted together."""

    ref: ObjectRef  # the object
    type_: str  # Normal or Warning
    reason: str  # truncated to _REASON_CHARS
    message: str  # with the pointer to the explanation of the reason


@dataclass(slots=True)
class _WrittenEvent:
    """An Event that is on the server, or may be there."""

    path: str  # "" if another replica wrote the Event and counts its repetitions
    count: int  # repetitions that the server has, >= 1; unknown before the Event is confirmed
    first_s: float  # the time of the first repetition, wall-clock seconds
    last_s: float  # the time of the last repetition, wall-clock seconds
    # False if the answer to its creation was lost, or if it existed before: another replica may have created it
    is_confirmed: bool = True


class _StoredEvent(msgspec.Struct, rename="camel"):
    """The author and the count of an Event, as the API server answers them."""

    reporting_instance: str = ""  # the name of the pod
    count: int | None = None  # its repetitions; None if it has no count


_stored_event_decoder = msgspec.json.Decoder(_StoredEvent)


@dataclass(slots=True)
class _QueuedEvent:
    """An Event that is not written yet."""

    times: int  # repetitions, >= 1
    first_s: float  # the time of the first repetition, wall-clock seconds
    last_s: float  # the time of the last repetition, wall-clock seconds


class EventStore(Protocol):
    """The calls of a Client that an EventRecorder needs."""

    async def create(self, path: str, body: dict[str, Any], *, deadline_s: float) -> bytes:
        """Return the created Event."""

    async def patch(self, path: str, body: dict[str, Any], *, deadline_s: float) -> bytes:
        """Return the patched Event. Raises NotFound if the Event has expired on the server."""


class EventRecorder:
    """A writer of Events in the background."""

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
        """Make a recorder with an empty queue.

        component: the reporting program, such as turnout-extender. instance: the name of its pod. capacity: Events in
        the queue, >= 1. per_s: the rate of writes, Events a second. burst: writes that may leave at once. docs: the URL
        of the docs site, to which Events with one of our reasons link; "" to name a command instead.
        """
        self._docs = docs
        self._client, self._component, self._instance = client, component, instance
        self._rate_limiter = RateLimiter(clock, per_s, burst)
        self._capacity = capacity
        # By namespace, in the order of their turns.
        self._queues: OrderedDict[str, OrderedDict[_EventKey, _QueuedEvent]] = OrderedDict()
        self._queued_count = 0
        self._written_events: OrderedDict[_EventKey, _WrittenEvent] = OrderedDict()
        self._has_work = asyncio.Event()
        self._forbidden_logged = False
        self.dropped = 0  # Events whose write failed, or that exceeded the queue

    def emit(self, ref: ObjectRef, type_: str, reason: str, message: str, now: float) -> None:
        """Queue an Event; `run` or `flush` writes it. Raises nothing, and does not wait.

        An equal Event in the queue only gets a higher count. If the queue is full, an Event is dropped and counted in
        `dropped`. type_: Normal or Warning. now: wall-clock seconds. message: the pointer to the explanation of the
        reason is appended if the reason is one of ours. The message is truncated so that both have at most
        MESSAGE_BYTES.
        """
        pointer_text = f" ({pointer(reason, self._docs)})" if reason in WORDS else ""
        key = _EventKey(
            ref, type_, reason[:_REASON_CHARS], _truncate(message, MESSAGE_BYTES - len(pointer_text)) + pointer_text
        )
        queue = self._queues.get(ref.namespace) or OrderedDict[_EventKey, _QueuedEvent]()
        queued = queue.get(key)
        if queued is not None:
            queued.times += 1
            queued.last_s = max(queued.last_s, now)
        elif self._queued_count >= self._capacity and not self._drop_from_longest_queue(len(queue)):
            self.dropped += 1
        else:
            self._queues.setdefault(ref.namespace, OrderedDict())[key] = _QueuedEvent(1, now, now)
            self._queued_count += 1
            self._has_work.set()

    def _drop_from_longest_queue(self, queue_length: int) -> bool:
        """Drop the newest Event of the longest queue, so that a namespace can add an Event, and return True.

        Return False, and drop nothing, if the namespace's queue with the new Event would be at least as long.
        queue_length: Events that the namespace has in the queue now.
        """
        longest_queue = max(self._queues.values(), key=len, default=None)
        if longest_queue is None or len(longest_queue) <= queue_length + 1:
            return False
        self.dropped += longest_queue.popitem()[1].times
        self._queued_count -= 1
        return True

    def _pop_next(self) -> tuple[_EventKey, _QueuedEvent]:
        """Remove and return the oldest queued Event of the namespace whose turn it is.

        The next turn is another namespace's. The queue must not be empty.
        """
        namespace, queue = self._queues.popitem(last=False)
        entry = queue.popitem(last=False)
        self._queued_count -= 1
        if queue:
            self._queues[namespace] = queue
        return entry

    async def run(self) -> None:
        """Write queued Events until cancelled: the namespaces in turn, the oldest Event of each first."""
        while True:
            await self._has_work.wait()
            await self.flush()
            self._has_work.clear()

    async def flush(self) -> None:
        """Write all queued Events at the allowed rate, then return.

        If a write fails with a CallError, it is logged, and its Event is dropped and counted in `dropped`.
        """
        while self._queues:
            await self._rate_limiter.acquire()
            key, queued = self._pop_next()
            try:
                await self._write(key, queued)
            except CallError as error:
                self.dropped += queued.times
                self._log_failure(error)

    def _log_failure(self, error: CallError) -> None:
        """Log a failed write.

        Of writes that RBAC forbids only the first is logged, until the next Event is created, because only an admin can
        change it.
        """
        if isinstance(error, Forbidden):
            if self._forbidden_logged:
                return
            self._forbidden_logged = True
        log.warning("event_not_written", extra={"why": str(error)})

    async def _write(self, key: _EventKey, queued: _QueuedEvent) -> None:
        """Write an Event. If an equal Event was written in the same span of time, increase its count instead.

        If that Event has expired on the server, a new Event is written. Write nothing if another replica has written
        the same Event, because that replica counts it. Raises CallError.
        """
        written_event = self._written_events.get(key)
        if written_event is not None and _span(queued.first_s) == _span(written_event.first_s):
            self._written_events.move_to_end(key)
            try:
                await self._increase_count(written_event, queued)
            except NotFound:
                log.debug("event_expired", extra={"path": written_event.path})
            else:
                return
        await self._create(key, queued)

    async def _increase_count(self, written_event: _WrittenEvent, queued: _QueuedEvent) -> None:
        """Add repetitions to the count of an Event on the server. Do nothing if another replica counts it.

        Raises CallError; it is NotFound if the Event has expired on the server. Then its count stays.
        """
        if not written_event.is_confirmed:
            # An empty patch returns the Event; RBAC does not allow us to get it.
            answer = await self._client.patch(written_event.path, {}, deadline_s=_CALL_S)
            stored_event = decode_answer(_stored_event_decoder, "PATCH", written_event.path, answer)
            written_event.count = stored_event.count or 1
            if stored_event.reporting_instance != self._instance[:_REASON_CHARS]:
                written_event.path = ""
            written_event.is_confirmed = True
        if not written_event.path:
            return
        count = written_event.count + queued.times
        body = {"count": count, "lastTimestamp": rfc3339(queued.last_s)}
        await self._client.patch(written_event.path, body, deadline_s=_CALL_S)
        written_event.count, written_event.last_s = count, queued.last_s

    async def _create(self, key: _EventKey, queued: _QueuedEvent) -> None:
        """Create an Event, and remember it. Raises CallError.

        If it exists and another replica has written it, remember that this replica counts it. If our pod has written
        it, as before a restart of this process or before the Event was forgotten, increase its count.
        """
        name = _event_name(self._component, key, queued)
        path = f"/api/v1/namespaces/{key.ref.namespace or 'default'}/events"
        written_event = _WrittenEvent(f"{path}/{name}", queued.times, queued.first_s, queued.last_s)
        try:
            await self._client.create(path, self._body(key, queued, name), deadline_s=_CALL_S)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            written_event.is_confirmed = False
            self._remember(key, written_event)
            await self._increase_count(written_event, queued)
            return
        except (Unreachable, ServerFault):  # the server may have created it
            written_event.is_confirmed = False
            self._remember(key, written_event)
            raise
        self._forbidden_logged = False
        self._remember(key, written_event)

    def _remember(self, key: _EventKey, written_event: _WrittenEvent) -> None:
        """Remember a written Event. Above _MAX_WRITTEN_EVENTS, forget the Event that was written least recently."""
        self._written_events[key] = written_event
        if len(self._written_events) > _MAX_WRITTEN_EVENTS:
            self._written_events.popitem(last=False)

    def _body(self, key: _EventKey, queued: _QueuedEvent, name: str) -> dict[str, Any]:
        """Return the Event as a JSON object for the API server. name: of the Event."""
        ref, namespace = key.ref, key.ref.namespace or "default"
        involved_object = {"kind": ref.kind, "apiVersion": ref.api_version, "name": ref.name, "uid": ref.uid}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {**involved_object, **({"namespace": ref.namespace} if ref.namespace else {})},
            "type": key.type_,
            "reason": key.reason,
            "message": key.message,
            "count": queued.times,
            "firstTimestamp": rfc3339(queued.first_s),
            "lastTimestamp": rfc3339(queued.last_s),
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance[:_REASON_CHARS],
        }


def _event_name(component: str, key: _EventKey, queued: _QueuedEvent) -> str:
    """Return the Event's name, made of its key, the program and the time span. component: the reporting program.

    Two replicas compute the same name, so that only one of them can create the Event.
    """
    seed = "\0".join((*key.ref, *key[1:], component, str(_span(queued.first_s))))
    return f"{key.ref.name[:_NAME_CHARS].rstrip('.-')}.{hashlib.sha256(seed.encode()).hexdigest()[:16]}"


def _span(wall_s: float) -> int:
    """Return the number of the span of _SPAN_S seconds that contains a time."""
    return int(wall_s // _SPAN_S)


def _truncate(message: str, max_bytes: int) -> str:
    """Return at most `max_bytes` of UTF-8 without a broken character. A truncated message ends with "..."."""
    raw = message.encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return raw.decode()
    return raw[: max_bytes - 3].decode("utf-8", "ignore") + "..."
