"""Serve the extender's verbs over HTTP, and /healthz, /readyz, /metrics and /debug/view on a plain port.

`requests.py` makes the answers of the verbs. A request is refused before its body is read where its head is enough.
/debug/view shows names of the cluster. So it answers only callers on loopback that ask for loopback by name.

Source: docs/facts/extender.md 1.2 and 0.7; docs/facts/reliability.md 2, faults 10 and 11; CS-01; CS-21
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import hdrs, web

from turnout.kube.server.http_connection import Connection, ConnectionLimits, Server, refusal
from turnout.kube.server.probes import LIMITS, pages_server, probe_pages
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.requests import Dispatcher, ExtenderVerbs, Outcome, Reply, Verb, refuse
from turnout.scheduler_ext.wire.extender_v1 import MAX_BYTES

PATHS = {f"/{verb.value}": verb for verb in Verb}
WEBHOOK = {f"/{Verb.GATE.value}": Verb.GATE}  # for a program without verbs for a scheduler
_CLOSING = {Outcome.COMPRESSED, Outcome.TOO_LARGE, Outcome.TOO_SLOW, Outcome.BUSY, Outcome.GONE}


class _Refused(Exception):
    """Carries the reply to a request whose body cannot be read."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.outcome.value)
        self.reply = reply


@dataclass(slots=True)
class _Load:
    """The present load of the server."""

    waiting: int = 0  # requests that wait for a place
    held_bytes: int = 0  # bytes of the bodies in memory


class VerbHandler:
    """Handles every request of the verbs' port."""

    def __init__(
        self,
        extender: ExtenderVerbs,
        metrics: Metrics,
        limits: ConnectionLimits,
        clock: Callable[[], float] = time.perf_counter,
        paths: Mapping[str, Verb] = PATHS,
    ) -> None:
        """Prepare the handler; `server` makes the server. clock: seconds, for durations. paths: path -> verb that is
        served.
        """
        self._extender, self._metrics, self._limits, self._clock = extender, metrics, limits, clock
        self._paths = paths
        self._dispatcher = Dispatcher(extender, metrics, clock)
        self._places = asyncio.Semaphore(limits.max_in_flight)
        self._load = _Load()
        self._durations = {verb: metrics.duration.labels(verb.value) for verb in Verb}

    def server(self) -> Server:
        """Return a server of these verbs that does not listen yet.

        The gauge of open connections follows it from now on.
        """
        server = Server(self.handle, self._limits)
        self._metrics.connections.set_function(lambda: len(server.connections))
        return server

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, count its outcome, and observe its duration.

        Every path ends in one JSON body with its length.
        """
        start_s = self._clock()
        connection = request.protocol
        if isinstance(connection, Connection):
            connection.head_received()
        verb = self._paths.get(request.path)
        try:
            reply = self._refuse_by_head(request, verb) or await self._read_and_answer(
                request, verb or Verb.FILTER, start_s
            )
            if reply.pause_s:
                await asyncio.sleep(reply.pause_s)
        except _Refused as refused:
            reply = refused.reply
        finally:
            if isinstance(connection, Connection):
                connection.response_ready()
        self._metrics.requests.labels(verb.value if verb else "other", reply.outcome.value).inc()
        if verb and reply.status == 200:
            self._durations[verb].observe(self._clock() - start_s)
        return self._response(reply)

    def _refuse_by_head(self, request: web.BaseRequest, verb: Verb | None) -> Reply | None:
        """Return a refusal for a request that is refused by its head; None for other requests.

        verb: None for an unknown path. Refused are a wrong path (404) or method (405), a compressed body (415), a
        stated length above the limit (413), and every verb but the webhook's while the view is not ready (503).
        """
        if verb is None:
            return refuse(404, "no such verb", Outcome.NO_SUCH_VERB)
        if request.method != hdrs.METH_POST:
            return refuse(405, "only POST", Outcome.WRONG_METHOD)
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower() != "identity":
            return refuse(415, "a compressed body is not read", Outcome.COMPRESSED)
        if (request.content_length or 0) > self._max_body_bytes(verb):
            return refuse(413, f"a body holds at most {self._max_body_bytes(verb)} bytes", Outcome.TOO_LARGE)
        if verb is not Verb.GATE and (why := self._extender.unready_reason()) is not None:
            return refuse(503, f"not ready: {why}", Outcome.UNREADY)
        return None

    async def _read_and_answer(self, request: web.BaseRequest, verb: Verb, start_s: float) -> Reply:
        """Read the body within its bounds of time and bytes, and answer.

        start_s: when the request came, by the server's clock; a request older than the limit gets a neutral answer.
        Raises _Refused: 408 for a slow body, 400 for a body that broke off, 413, and 503 when busy. verb: decides the
        largest body.
        """
        await self._take_place()
        self._metrics.in_flight.inc()
        body_bytes = 0
        try:
            if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0  # the answer proper has not begun
            chunks: list[bytes] = []
            async with asyncio.timeout(self._limits.body_s):
                while chunk := await request.content.readany():
                    chunks.append(chunk)
                    body_bytes += len(chunk)
                    self._load.held_bytes += len(chunk)
                    self._check_size(body_bytes, self._max_body_bytes(verb))
            # Nothing waits from here to the answer: one request sees one state of the cluster.
            late = self._clock() - start_s > self._limits.max_age_s
            return self._dispatcher.answer(verb, b"".join(chunks), late)
        except TimeoutError:
            raise _Refused(refuse(408, "the body did not come in time", Outcome.TOO_SLOW)) from None
        except (web.RequestPayloadError, ConnectionError):
            raise _Refused(refuse(400, "the body broke off", Outcome.GONE)) from None
        finally:
            self._load.held_bytes -= body_bytes
            self._metrics.in_flight.dec()
            self._places.release()

    def _max_body_bytes(self, verb: Verb) -> int:
        """Return the bound on a body: only a scheduler's questions name every node of a cluster."""
        return min(self._limits.max_body_bytes, MAX_BYTES) if verb is Verb.GATE else self._limits.max_body_bytes

    def _check_size(self, body_bytes: int, max_bytes: int) -> None:
        """Raise _Refused: 413 if this body is larger than `max_bytes`, 503 if all bodies in memory exceed the server's
        limit.

        body_bytes: received so far.
        """
        if body_bytes > max_bytes:
            why = f"a body holds at most {max_bytes} bytes"
            raise _Refused(refuse(413, why, Outcome.TOO_LARGE))
        if self._load.held_bytes > self._limits.max_all_bodies_bytes:
            raise _Refused(refuse(503, "busy: too many bytes in hand", Outcome.BUSY))

    async def _take_place(self) -> None:
        """Wait up to `limits.wait_s` for a place among the requests in flight; the caller releases it.

        Raises _Refused (503) after that time, and at once if `limits.max_waiting` requests wait already.
        """
        if not self._places.locked():
            await self._places.acquire()
            return
        if self._load.waiting >= self._limits.max_waiting:
            raise _Refused(refuse(503, "busy", Outcome.BUSY))
        self._load.waiting += 1
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await self._places.acquire()
        except TimeoutError:
            raise _Refused(refuse(503, "busy", Outcome.BUSY)) from None
        finally:
            self._load.waiting -= 1

    @staticmethod
    def _response(reply: Reply) -> web.Response:
        """Convert a reply to an HTTP response. After an outcome of _CLOSING the connection is closed."""
        response = web.Response(body=reply.body, status=reply.status, content_type="application/json")
        if reply.status == 405:
            response.headers[hdrs.ALLOW] = hdrs.METH_POST
        if reply.outcome in _CLOSING:
            response.force_close()
        return response


_LOCAL_NAMES = {"localhost", "127.0.0.1", "[::1]"}


class HealthPages:
    """Has the pages of the plain port."""

    def __init__(self, extender: ExtenderVerbs, metrics: Metrics, limits: ConnectionLimits = LIMITS) -> None:
        self._extender, self._limits = extender, limits
        self._leaving = False
        self._pages = {**probe_pages(self._unready, metrics.page), "/debug/view": self._view}

    def server(self) -> Server:
        """Return a server of these pages that does not listen yet."""
        return pages_server(self._pages, self._limits)

    def leave(self) -> None:
        """Report "not ready" from now on, so that new callers go elsewhere. Requests that come are still answered."""
        self._leaving = True

    def _unready(self) -> str | None:
        return "leaving" if self._leaving else self._extender.unready_reason()

    def _view(self, request: web.BaseRequest) -> web.Response:
        """Return the page that describes the extender's state as JSON. 404 unless the caller is local (`is_local`)."""
        peer = request.transport.get_extra_info("peername") if request.transport else None
        if not is_local(peer[0] if peer else "", request.headers.get(hdrs.HOST, "")):
            return refusal(404, "no such page")
        return web.Response(body=msgspec.json.encode(self._extender.describe()), content_type="application/json")


def is_local(peer: str, host: str) -> bool:
    """Return True if the caller is on loopback and asks by a local name.

    peer: the caller's address, "" if it has none. host: the Host header. A page in a browser reaches loopback, too, but
    by its own name.
    """
    name = host[: host.rindex("]") + 1] if "]" in host else host.partition(":")[0]
    return bool(peer) and _is_loopback(peer) and name.lower() in _LOCAL_NAMES


def _is_loopback(text: str) -> bool:
    """Return True for a loopback address. Raises ValueError for text that is no IP address."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback  # an IPv4 caller on a socket for both protocols
    return address.is_loopback
