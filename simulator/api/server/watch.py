"""Serve watches: one response each, fed from a kind's history until its time is up or either side ends it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable

from aiohttp import web

from turnout.simulator.api.model import ApiRefusal, ResourceKind
from turnout.simulator.api.objects import Stored, event, line, raw
from turnout.simulator.api.selectors import ObjectPredicate
from turnout.simulator.api.store import Store

_LONGEST_S = 3600.0


class WatchServer:
    """All watches of a store."""

    def __init__(self, store: Store, bookmark_s: float = 60.0) -> None:
        """Make a server without watches. bookmark_s: seconds between the bookmarks of a watch that asked for them."""
        self._store, self._bookmark_s = store, bookmark_s
        self._running: set[asyncio.Task[None]] = set()

    async def serve(
        self,
        request: web.Request,
        kind: ResourceKind,
        selection: ObjectPredicate,
        show: Callable[[Stored], bytes] = raw,
    ) -> web.StreamResponse:
        """Answer one watch request until its time is over, the client ends it, or drop() ends it. Return the response.

        selection: chooses the objects. show: encodes an object. The query may ask for bookmarks, initial events, a
        version and a time. If it asks for initial events, or has no version or version 0, every existing object is sent
        as ADDED first. A version from the future, too large for this server, is not refused: the watch begins with the
        next change. Raises ApiRefusal: 410 if the version is too old to continue from, 500 for a version that is no
        number.
        """
        query = request.query
        bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        version = _version(query.get("resourceVersion", ""))
        sends_initial_events = query.get("sendInitialEvents") == "true"
        initial = sends_initial_events or version == 0
        journal = self._store.objects.journal(kind)
        # The position is taken before the first await: nothing written from here on is missed.
        position = journal.end() if initial else journal.after(version)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        opening = self._opening(kind, selection, show, sends_initial_events) if initial else b""
        response.enable_chunked_encoding()
        await response.prepare(request)
        task = asyncio.ensure_future(self._feed(response, kind, selection, show, position, opening, bookmarks))
        self._running.add(task)
        try:
            await asyncio.wait_for(task, _time_s(query.get("timeoutSeconds", "")))
        except (TimeoutError, ConnectionError):
            pass  # its time is up, or the client left: both end a watch without a word
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
        finally:
            self._running.discard(task)
        return response

    def _opening(
        self,
        kind: ResourceKind,
        selection: ObjectPredicate,
        show: Callable[[Stored], bytes],
        sends_initial_events: bool,
    ) -> bytes:
        """Return the first lines of a watch: an ADDED event for each existing object, and the bookmark that ends them.

        selection: chooses the objects. show: encodes an object. sends_initial_events: the client asked for that
        bookmark.
        """
        lines = [line("ADDED", show(stored)) for stored in self._store.objects.find(kind, "", selection)]
        if sends_initial_events:
            lines.append(_bookmark(kind, self._store.objects.version, {"k8s.io/initial-events-end": "true"}))
        return b"".join(lines)

    async def _feed(
        self,
        response: web.StreamResponse,
        kind: ResourceKind,
        selection: ObjectPredicate,
        show: Callable[[Stored], bytes],
        position: int,
        opening: bytes,
        bookmarks: bool,
    ) -> None:
        """Send `opening`, then the changes since a position in the history, and bookmarks, until the watch is
        cancelled.

        selection: chooses the objects. show: encodes an object. position: of the first change to send. bookmarks: True
        if the client asked for them; one is sent after each quiet `bookmark_s`. A client that is so slow that changes
        were forgotten gets an ERROR line, and the watch ends.
        """
        journal = self._store.objects.journal(kind)
        changed = asyncio.Event()
        journal.wake_callbacks.add(changed.set)
        try:
            if opening:
                await response.write(opening)
            while True:
                changed.clear()
                try:
                    news = journal.since(position)
                except ApiRefusal as late:
                    await response.write(line("ERROR", json.dumps(late.status()).encode()))
                    return
                position += len(news)
                lines = [shown for change in news if (shown := event(change, selection, show)) is not None]
                if lines:
                    await response.write(b"".join(lines))
                if changed.is_set():
                    continue
                try:
                    async with asyncio.timeout(self._bookmark_s):
                        await changed.wait()
                except TimeoutError:
                    # Only past what was read: a write between the two lines above must not be skipped over.
                    if bookmarks and position == journal.end():
                        await response.write(_bookmark(kind, self._store.objects.version, {}))
        finally:
            journal.wake_callbacks.discard(changed.set)

    def drop(self) -> None:
        """End every watch, as a broken connection does."""
        for task in self._running:
            task.cancel()

    async def stop(self) -> None:
        """End every watch and wait for it, so that a server can close at once."""
        self.drop()
        await asyncio.gather(*self._running, return_exceptions=True)


def _bookmark(kind: ResourceKind, version: int, annotations: dict[str, str]) -> bytes:
    """Return the line of a BOOKMARK event. version: resourceVersion of the store.

    annotations: of its object; {} for none.
    """
    meta: dict[str, object] = {"resourceVersion": str(version)}
    if annotations:
        meta["annotations"] = annotations
    return line("BOOKMARK", json.dumps({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}).encode())


def _version(text: str) -> int:
    """Return a resourceVersion as a number, 0 for "". Raises ApiRefusal (500) for a text that is no number."""
    if text and not text.isdecimal():
        raise ApiRefusal("", f"resourceVersion {text!r} is not a number")
    return int(text or 0)


def _time_s(text: str) -> float:
    """Return how long a watch lasts, in seconds: the number in a text if it is above 0, else a random time of 30 to 60
    minutes.
    """
    return float(text) if text.isdecimal() and int(text) > 0 else random.uniform(_LONGEST_S / 2, _LONGEST_S)
