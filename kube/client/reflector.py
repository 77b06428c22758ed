"""List, then watch, without end: keeps a sink up to date with one kind of object.

watch_events.py decodes pages and lines, backoff.py computes the waits; this module decides the order of the calls.
Source: docs/facts/ecosystem.md 1.6
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic, Protocol, cast

from turnout.kube.backoff import Backoff
from turnout.kube.client.clock import Clock
from turnout.kube.errors import BadResponse, CallError, Gone, NotFound, Unreachable
from turnout.kube.status import UNREADABLE, Status, error_of_status
from turnout.kube.watch_events import KindDecoder, KnownObjects, Sink, T, WatchAction

log = logging.getLogger(__name__)

PAGE_ITEMS = 500  # objects of one page of a list
WATCH_RANGE_S = (240.0, 300.0)  # the length of each watch is random, so that the watches do not end together
LATE_END_S = 30.0  # without bookmarks, a watch has failed if it is silent this long after the end that it requested
SILENCE_S = 120.0  # with bookmarks, a watch has failed if it is silent this long: twice the interval of bookmarks
HEALTHY_S = 60.0  # a watch that lasted this long resets the failure count
MAX_WAKE_DELAY_S = 1.0  # after one watch of a program is answered, the others retry within this time
UNSERVED_RETRY_S = 30.0  # the interval of retries for a kind that is not served
_LINES_PER_YIELD = 32  # lines that are decoded before other tasks run: about a millisecond of work


class ListerWatcher(Protocol):
    """The calls of a Client that a Reflector needs."""

    def pages(self, path: str, params: Mapping[str, Any] | None = None, *, limit: int = 500) -> AsyncIterator[bytes]:
        """Yield each page of a list."""

    def watch(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Yield an empty line when the server has accepted the watch, then each line."""


class Outage:
    """An unreachable server, shared by the watches of one program.

    The first watch that gets an answer wakes the others.
    """

    def __init__(self) -> None:
        self._end_event = asyncio.Event()

    def end(self) -> None:
        """Wake the watches that wait, because the server has answered."""
        self._end_event.set()
        self._end_event = asyncio.Event()

    async def wait_for_end(self) -> None:
        """Wait until another watch gets an answer."""
        await self._end_event.wait()


class ServerContact:
    """The answers of a server to one watch: whether it is unreachable, and the wait between two rounds.

    outage: shared by the watches of one server. is_unreachable: the last round got no answer.
    """

    def __init__(self, clock: Clock, rng: random.Random, outage: Outage) -> None:
        """Start as reachable, before the first round. The class docstring explains the arguments."""
        self._clock, self._rng, self._outage = clock, rng, outage
        self.is_unreachable = False
        self._has_response = False  # True if this round got an answer
        self._last_wake_s = -math.inf

    def begin_round(self) -> None:
        """Begin a round without an answer."""
        self._has_response = False

    def note_response(self) -> None:
        """Note that the server has answered. If it was unreachable, wake the other watches of this server."""
        self._has_response = True
        if self.is_unreachable:
            self.is_unreachable = False
            self._outage.end()

    def note_error(self, error: CallError) -> None:
        """Note the error that ended a round: the server is unreachable if the round got no answer."""
        self.is_unreachable = not self._has_response and not error.retry_after_s

    async def wait(self, wait_s: float, max_s: float) -> bool:
        """Wait `wait_s` seconds, or less if the server is unreachable and then answers another watch.

        Return True in the latter case. The wait then ends after a random delay of at most MAX_WAKE_DELAY_S seconds.
        This happens at most once in `max_s` seconds, so that watches that succeed only briefly do not keep waking each
        other.
        """
        if not self.is_unreachable or self._clock.monotonic() - self._last_wake_s < max_s:
            await self._clock.sleep(wait_s)
            return False
        sleep_task = asyncio.create_task(self._clock.sleep(wait_s))
        outage_task = asyncio.create_task(self._outage.wait_for_end())
        try:
            await asyncio.wait((sleep_task, outage_task), return_when=asyncio.FIRST_COMPLETED)
            sleep_ended = sleep_task.done()
        finally:
            sleep_task.cancel()
            outage_task.cancel()
            await asyncio.wait((sleep_task, outage_task))
        if not sleep_ended:
            self._last_wake_s = self._clock.monotonic()
            await self._clock.sleep(min(wait_s, self._rng.random() * MAX_WAKE_DELAY_S))
        return not sleep_ended


class Reflector(Generic[T]):
    """A list and watch of one kind. Its sink receives each object under `path`, each change and each deletion.

    Deletions that happened while no watch was open are reported too.
    """

    def __init__(
        self,
        client: ListerWatcher,
        path: str,
        kind: type[T],
        sink: Sink[T],
        *,
        clock: Clock,
        rng: random.Random,
        params: Mapping[str, Any] | None = None,
        optional: bool = False,
        backoff: Backoff | None = None,
        outage: Outage | None = None,
    ) -> None:
        """Make a reflector that does not run yet.

        client: the calls. path: of the list. kind: the struct of the objects. sink: receives the changes. params: label
        or field selectors. optional: treat a kind that the server does not serve as an empty list. backoff: between
        retries; None for the default. outage: shared by the watches of one server; None for a single watch.
        """
        self._client, self.path, self._params = client, path, dict(params or {})
        self._clock, self._rng, self._optional = clock, rng, optional
        self._backoff, self._contact = backoff or Backoff(), ServerContact(clock, rng, outage or Outage())
        self._decoder, self._known_objects = KindDecoder(kind), KnownObjects(sink)
        self._version = ""
        self._has_bookmarks = False  # True if the server has sent a bookmark
        self._failures = 0  # consecutive failures
        self._expired = False  # True if the last round ended with Gone
        self._unreadable_count = 0
        self._has_listed = self._has_watched = False  # True after the first list, and the first watch
        self.relist_count = self.reconnect_count = 0  # the number of lists, and of watches, after the first
        self.has_synced = False  # True if a list is complete
        self.is_unserved = False  # True if the server does not serve the kind
        self.last_event_s = clock.monotonic()  # the time of the last event, list or accepted watch
        self.watching_since_s: float | None = None  # the time at which the server accepted the watch; None without one
        self.last_error = ""  # the text of the last failure, "" before the first

    @property
    def skipped_count(self) -> int:
        """Return the number of objects and lines that could not be decoded or used."""
        return self._unreadable_count + self._known_objects.refused_count

    @property
    def object_count(self) -> int:
        """Return the number of objects that the sink has."""
        return len(self._known_objects)

    async def run(self) -> None:
        """List and watch until cancelled. After each failure the next retry waits longer."""
        while True:
            if await self._contact.wait(await self._list_and_watch(), self._backoff.max_s):
                self._failures = 0

    async def _list_and_watch(self) -> float:
        """List if the version is unknown, then watch until the watch ends.

        Return the wait before the next round, in seconds. An error of a call is recorded and not raised. The failures
        are counted from 0 again after a watch that lasted for HEALTHY_S, and at a Gone that follows no other Gone.
        """
        start_s = self._clock.monotonic()
        error: CallError | None = None
        self._contact.begin_round()
        try:
            if not self._version:
                await self._list()
            start_s = self._clock.monotonic()
            await self._watch()
        except CallError as call_error:
            error = call_error
            if isinstance(error, NotFound) and self._optional:
                self._version, self._contact.is_unreachable = "", False
                self._mark_unserved()
                return UNSERVED_RETRY_S
            self._record_error(error)
        healthy = self._clock.monotonic() - start_s >= HEALTHY_S
        if healthy:
            self._failures = 0
            if error is None:
                return 0.0
        expired, self._expired = self._expired, isinstance(error, Gone)
        if self._expired and not expired:
            self._failures = 0  # the server answers again and requires a list, so the outage has ended
        self._failures += 1
        return self._backoff.wait_s(self._failures, self._rng.random(), error.retry_after_s if error else 0.0)

    def _record_error(self, error: CallError) -> None:
        """Log an error, keep its text in last_error, and note whether the server is unreachable.

        Forget the resourceVersion, so that the next round lists again, if the server cannot continue from it: 410, 404,
        or a version that it has not reached.
        """
        self.last_error = str(error)
        self._contact.note_error(error)
        log.info("watch_broken", extra={"path": self.path, "why": str(error), "failures": self._failures})
        # "Too large" is a version that the server has not reached: it was restored from a backup.
        if isinstance(error, Gone | NotFound) or "Too large resource version" in error.message:
            self._version = ""

    def _mark_unserved(self) -> None:
        """Note that the server does not serve the kind, and report an empty list to the sink unless it has one
        already.
        """
        self.is_unserved = True
        self._failures = 0
        self.last_event_s = self._clock.monotonic()
        if len(self._known_objects) or not self.has_synced:
            self.has_synced = True
            self._known_objects.begin_list()
            self._known_objects.end_list()

    async def _list(self) -> None:
        """List all objects into the sink, and drop from the sink those that the list does not contain.

        Raises CallError; it is BadResponse if the list has no resourceVersion.
        """
        try:
            version = await self._list_pages(PAGE_ITEMS)
        except Gone:  # the version expired between two pages: list again as one page, which cannot expire
            version = await self._list_pages(0)
        if not version:
            raise BadResponse("GET", self.path, 200, "a list without a resourceVersion")
        self._version = version
        self.relist_count += self._has_listed
        self._has_listed = True
        self.has_synced, self.is_unserved = True, False
        self._known_objects.end_list(version)

    async def _list_pages(self, limit: int) -> str:
        """Pass a list to the sink page by page, and return the version of the list, "" if it has none.

        limit: objects of one page, 0 for a single page. Raises CallError.
        """
        version = ""
        self._known_objects.begin_list()
        async for raw in self._client.pages(self.path, self._params, limit=limit):
            try:
                page = self._decoder.page(raw)
            except UNREADABLE as error:
                raise BadResponse("GET", self.path, 200, f"not a list: {error}") from error
            self._unreadable_count += page.skipped_count
            self._known_objects.put_page(page)
            version = page.version
            self.last_event_s = self._clock.monotonic()
            self._contact.note_response()
            await asyncio.sleep(0)
        return version

    async def _watch(self) -> None:
        """Run one watch until the server ends it. Raises CallError; it is Unreachable if the watch is silent for too
        long: SILENCE_S with bookmarks, else LATE_END_S after the end of the watch.
        """
        watch_s = round(self._rng.uniform(*WATCH_RANGE_S))
        self.reconnect_count += self._has_watched
        self._has_watched = True
        requested_s = self._clock.monotonic()
        reading = asyncio.create_task(self._read_lines(watch_s))
        silence = asyncio.create_task(
            _wait_for_silence(
                self._clock,
                lambda: max(self.last_event_s, requested_s),
                lambda: SILENCE_S if self._has_bookmarks else watch_s + LATE_END_S,
            )
        )
        try:
            await asyncio.wait({reading, silence}, return_when=asyncio.FIRST_COMPLETED)
            reading_ended = reading.done()
        finally:
            self.watching_since_s = None
            reading.cancel()
            silence.cancel()
            await asyncio.wait({reading, silence})
            if not reading.cancelled():
                reading.exception()  # retrieved, so that asyncio does not log it as never retrieved
        if not reading_ended:
            raise Unreachable("GET", self.path, 0, "the watch fell silent")
        reading.result()

    async def _read_lines(self, watch_s: int) -> None:
        """Watch from the newest version and apply each line until the server ends the watch. Raises CallError.

        watch_s: the duration of the watch that is requested, in seconds.
        """
        params = {
            **self._params,
            "resourceVersion": self._version,
            "allowWatchBookmarks": True,
            "timeoutSeconds": watch_s,
        }
        lines = cast(AsyncGenerator[bytes, None], self._client.watch(self.path, params))
        async with aclosing(lines):
            line_count = 0
            async for raw in lines:
                if not raw:  # the server has accepted the watch, so no event since our version is lost
                    self.watching_since_s = self.last_event_s = self._clock.monotonic()
                    self._contact.note_response()
                    continue
                self._apply_line(raw)
                line_count += 1
                if line_count % _LINES_PER_YIELD == 0:
                    await asyncio.sleep(0)

    def _apply_line(self, raw: bytes) -> None:
        """Apply one line of a watch to the sink, and note its version.

        A line that cannot be read is counted and skipped. Raises CallError for an ERROR line.
        """
        self.last_event_s = self._clock.monotonic()
        line = self._decoder.line(raw)
        if line.action is WatchAction.PUT and line.obj is not None:
            self._known_objects.put(line.obj)
        elif line.action is WatchAction.DROP and line.key is not None:
            self._known_objects.drop(line.key)
        elif line.action is WatchAction.ERROR:
            raise error_of_status("GET", self.path, line.status or Status())
        elif line.action is WatchAction.BOOKMARK:
            self._has_bookmarks = True
        else:
            self._unreadable_count += 1
        self._version = line.version or self._version


async def _wait_for_silence(clock: Clock, last_s: Callable[[], float], bound_s: Callable[[], float]) -> None:
    """Return when nothing has arrived for too long.

    last_s: returns when something arrived last, by the monotonic clock. bound_s: returns the longest silence in
    seconds; a first bookmark may shorten it.
    """
    while (left_s := last_s() + bound_s() - clock.monotonic()) > 0:
        await clock.sleep(min(left_s, SILENCE_S))
