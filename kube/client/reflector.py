"""List, then watch, for ever: keeps a receiver true to one kind of object on the API server.

What a page or a line means is settled in watch_events.py, how long to wait in backoff.py; here is the order of calls.
Source: docs/facts/ecosystem.md 1.6
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Generic, Protocol, cast

from turnout.kube.backoff import Backoff
from turnout.kube.client.clock import Clock
from turnout.kube.errors import BadAnswer, CallError, Gone, NotFound, Unreachable
from turnout.kube.status import Status, fault
from turnout.kube.watch_events import UNREADABLE, Feed, KnownObjects, Sink, T, WatchAction

log = logging.getLogger(__name__)

PAGE_ITEMS = 500
WATCH_S = (240.0, 300.0)  # drawn anew for each watch, so that a fleet's watches do not end together
SLACK_S = 30.0  # past its own end a watch without bookmarks counts as dead
SILENCE_S = 120.0  # twice the pace of bookmarks, from a server that has shown some
HEALTHY_S = 60.0  # a watch that lived so long clears the failures before it
WAKE_S = 1.0  # within which the watches of one program come back once one of them was answered
ABSENT_S = 30.0  # how often a kind that is not served is asked for
_LINES_A_TURN = 32  # then others get the event loop: about a millisecond's work


class Source(Protocol):
    """The calls that a reflector needs of a Client."""

    def pages(self, path: str, params: Mapping[str, Any] | None = None, *, limit: int = 500) -> AsyncIterator[bytes]:
        """Each page of a list."""

    def watch(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """An empty line once the server has taken the watch, then each line of it."""


class Outage:
    """A server that is away, as the watches of one program see it: the first that is answered wakes the others."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    def end(self) -> None:
        """Somebody was answered."""
        self._over.set()
        self._over = asyncio.Event()

    async def over(self) -> None:
        """Wait until somebody is."""
        await self._over.wait()


class Reflector(Generic[T]):
    """Tells `sink` of every object under `path`, each change, and each one that went while nobody looked.

    has_synced: a whole list has been told. absent: the server does not serve the kind. last_event_s: of `clock`,
    when anything last came. relists, reconnects: lists and watches after the first. skipped: objects and lines that
    could not be read or used. watching_since_s: of `clock`, when the server took the watch in hand; None while
    there is none, and things change unseen.
    """

    def __init__(
        self,
        client: Source,
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
        """params: label or field selectors. optional: a server that does not serve the kind has none of it.

        outage: shared by the watches of one server; None for a watch alone.
        """
        self._client, self.path, self._params = client, path, dict(params or {})
        self._clock, self._rng, self._optional = clock, rng, optional
        self._backoff, self._outage = backoff or Backoff(), outage or Outage()
        self._away = self._answered = False  # the last round had no good answer; this one has had one
        self._woken_s = -math.inf
        self._feed, self._known = Feed(kind), KnownObjects(sink)
        self._version = ""
        self._bookmarked = False
        self._failures = 0
        self._expired = False
        self._lists = self._watches = self._unread = 0
        self.has_synced = self.absent = False
        self.last_event_s = clock.monotonic()
        self.watching_since_s: float | None = None
        self.last_error = ""

    @property
    def relists(self) -> int:
        return max(self._lists - 1, 0)

    @property
    def reconnects(self) -> int:
        return max(self._watches - 1, 0)

    @property
    def skipped(self) -> int:
        return self._unread + self._known.refused

    @property
    def objects(self) -> int:
        """How many objects the receiver has."""
        return len(self._known)

    async def run(self) -> None:
        """Until cancelled. Whatever the server does, the next try comes later, never sooner."""
        while True:
            await self._pause(await self._round())

    async def _pause(self, wait_s: float) -> None:
        """Wait so long; while the server is away only until another watch is answered, and a moment that is drawn.

        That happens once in the longest pause at most, so that watches which come and go do not keep each other busy.
        """
        if not self._away or self._clock.monotonic() - self._woken_s < self._backoff.most_s:
            await self._clock.sleep(wait_s)
            return
        sleeping = asyncio.create_task(self._clock.sleep(wait_s))
        waking = asyncio.create_task(self._outage.over())
        try:
            await asyncio.wait((sleeping, waking), return_when=asyncio.FIRST_COMPLETED)
            slept = sleeping.done()
        finally:
            sleeping.cancel()
            waking.cancel()
            await asyncio.wait((sleeping, waking))
        if not slept:
            self._failures, self._woken_s = 0, self._clock.monotonic()
            await self._clock.sleep(min(wait_s, self._rng.random() * WAKE_S))

    def _note_answer(self) -> None:
        self._answered = True
        if self._away:
            self._away = False
            self._outage.end()

    async def _round(self) -> float:
        """List if need be and watch until that ends. Returns how long to wait before the next round, seconds."""
        began_s = self._clock.monotonic()
        error: CallError | None = None
        self._answered = False
        try:
            if not self._version:
                await self._list()
            began_s = self._clock.monotonic()
            await self._follow()
        except CallError as caught:
            error = caught
            if isinstance(error, NotFound) and self._optional:
                self._version, self._away = "", False
                self._absent()
                return ABSENT_S
            self._note(error)
        healthy = self._clock.monotonic() - began_s >= HEALTHY_S
        if healthy:
            self._failures = 0
            if error is None:
                return 0.0
        expired, self._expired = self._expired, isinstance(error, Gone)
        if self._expired and not expired:
            self._failures = 0  # the server is back and asks for a list: what an outage has added up is over
        self._failures += 1
        return self._backoff.wait_s(self._failures, self._rng.random(), error.retry_after_s if error else 0.0)

    def _note(self, error: CallError) -> None:
        """Forget the version where the server has; keep it through everything else."""
        self.last_error = str(error)
        self._away = not self._answered and not error.retry_after_s
        log.info("watch_broken", extra={"path": self.path, "why": str(error), "failures": self._failures})
        # "Too large" is a version from the future: the server was put back to an older state.
        if isinstance(error, Gone | NotFound) or "Too large resource version" in error.message:
            self._version = ""

    def _absent(self) -> None:
        """Nobody serves the kind: so there are no objects of it."""
        self.absent = True
        self._failures = 0
        self.last_event_s = self._clock.monotonic()
        if len(self._known) or not self.has_synced:
            self.has_synced = True
            self._known.begin()
            self._known.end()

    async def _list(self) -> None:
        try:
            version = await self._tell_pages(PAGE_ITEMS)
        except Gone:  # the pages outlived their version: take it in one piece, which cannot
            version = await self._tell_pages(0)
        if not version:
            raise BadAnswer("GET", self.path, 200, "a list without a resourceVersion")
        self._version = version
        self._lists += 1
        self.has_synced, self.absent = True, False
        self._known.end(version)

    async def _tell_pages(self, limit: int) -> str:
        """Tell page by page. Returns the list's version."""
        version = ""
        self._known.begin()
        async for raw in self._client.pages(self.path, self._params, limit=limit):
            try:
                page = self._feed.page(raw)
            except UNREADABLE as error:
                raise BadAnswer("GET", self.path, 200, f"not a list: {error}") from error
            self._unread += page.skipped
            self._known.page(page)
            version = page.version
            self.last_event_s = self._clock.monotonic()
            self._note_answer()
            await asyncio.sleep(0)
        return version

    async def _follow(self) -> None:
        """One watch, until the server ends it. Raises CallError for any other end."""
        watch_s = round(self._rng.uniform(*WATCH_S))
        self._watches += 1
        self.last_event_s = self._clock.monotonic()
        reading = asyncio.create_task(self._read(watch_s))
        silence = asyncio.create_task(self._silence(watch_s))
        try:
            await asyncio.wait({reading, silence}, return_when=asyncio.FIRST_COMPLETED)
            ended = reading.done()
        finally:
            self.watching_since_s = None
            reading.cancel()
            silence.cancel()
            await asyncio.wait({reading, silence})
            if not reading.cancelled():
                reading.exception()  # looked at, so that asyncio does not call it lost
        if not ended:
            raise Unreachable("GET", self.path, 0, "the watch fell silent")
        reading.result()

    async def _silence(self, watch_s: float) -> None:
        """Return when nothing has come for too long."""
        while True:
            bound_s = SILENCE_S if self._bookmarked else watch_s + SLACK_S
            left_s = self.last_event_s + bound_s - self._clock.monotonic()
            if left_s <= 0:
                return
            await self._clock.sleep(min(left_s, SILENCE_S))  # a first bookmark may have shortened the bound

    async def _read(self, watch_s: int) -> None:
        params = {
            **self._params,
            "resourceVersion": self._version,
            "allowWatchBookmarks": True,
            "timeoutSeconds": watch_s,
        }
        lines = cast(AsyncGenerator[bytes, None], self._client.watch(self.path, params))
        async with aclosing(lines):
            taken = 0
            async for raw in lines:
                if not raw:
                    self.watching_since_s = self._clock.monotonic()
                    self._note_answer()
                    continue
                self._take(raw)
                taken += 1
                if taken % _LINES_A_TURN == 0:
                    await asyncio.sleep(0)

    def _take(self, raw: bytes) -> None:
        self.last_event_s = self._clock.monotonic()
        line = self._feed.line(raw)
        if line.word is WatchAction.PUT and line.obj is not None:
            self._known.put(line.obj)
        elif line.word is WatchAction.DROP and line.key is not None:
            self._known.drop(line.key)
        elif line.word is WatchAction.FAULT:
            raise fault("GET", self.path, line.status or Status())
        elif line.word is WatchAction.MARK:
            self._bookmarked = True
        else:
            self._unread += 1
        self._version = line.version or self._version
