"""The stream of the page: an event at each new version of the state, for as long as a viewer listens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from turnout.cli.page.access import NotLoggedIn, Unavailable
from turnout.cli.page.responses import HEADERS
from turnout.cli.page.viewers import StateSource, Viewers

AGE_S = 5.0  # between two events of a stream at most
WRITE_S = 10.0  # a viewer that does not read for so long is disconnected
MAX_STREAMS = 500


class EventStream:
    """Sends the events of new versions to all viewers."""

    def __init__(self, source: StateSource, viewers: Viewers) -> None:
        """Begin without open streams."""
        self._source, self._viewers = source, viewers
        self.open_streams = 0

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Send an event at each new version of the state and every AGE_S seconds, after which the browser reads what it
        shows.

        Only the newest version is sent: a slow viewer misses versions, but no facts. Ends when the viewer leaves or the
        session expires. Raises NotLoggedIn if the request has no valid token, Unavailable if the API server does not
        answer, and HTTPServiceUnavailable if MAX_STREAMS viewers are connected already.
        """
        await self._viewers.rights(request)
        if self.open_streams >= MAX_STREAMS:
            raise web.HTTPServiceUnavailable(reason=f"{MAX_STREAMS} viewers are connected already")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self.open_streams += 1
        try:
            await response.prepare(request)
            await self._send_events(request, response)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.open_streams -= 1
        return response

    async def _send_events(self, request: web.Request, response: web.StreamResponse) -> None:
        """Write an event at each new version, and at least every AGE_S seconds, until the session expires.

        Raises ConnectionError if the browser has gone, and TimeoutError if it does not read.
        """
        source, unknown = self._source, 0
        while True:
            changed = source.changed
            try:
                unknown = (await self._viewers.rights(request)).unknown_namespaces
            except NotLoggedIn as error:
                await _write(response, "expired", {"error": str(error)}, source.state.version)
                return
            except Unavailable:
                pass  # the stream tells how old the data is
            data = {
                "version": source.state.version,
                "observed_at_s": source.state.observed_at_s,
                "silent_s": round(source.watches.interrupted_s(), 1),
                "error": source.watches.last_error(),
                "unknown_namespaces": unknown,
            }
            await _write(response, "version", data, source.state.version)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGE_S):
                    await changed.wait()


async def _write(response: web.StreamResponse, event: str, data: Mapping[str, Any], number: int) -> None:
    """Write one server-sent event. event: its name. data: sent as JSON. number: its ID.

    Raises TimeoutError if the browser does not read for WRITE_S seconds, ConnectionError if it has gone.
    """
    text = f"event: {event}\nid: {number}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
    async with asyncio.timeout(WRITE_S):
        await response.write(text)
