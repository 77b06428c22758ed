"""Serve the extender's verbs over HTTP: what is refused before its body is read, and how a body is read.

dispatcher.py makes the answers; health.py serves probes and metrics on another port.

Source: docs/facts/extender.md 1.2 and 0.7; docs/facts/reliability.md 2, faults 10 and 11; CS-01
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import hdrs, web

from turnout.kube.server.http_connection import Connection, Limits, Server
from turnout.scheduler_ext.server.dispatcher import Dispatcher, ExtenderVerbs, Outcome, Reply, Verb, refuse
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.wire.extender_v1 import MAX_BYTES

PATHS = {f"/{verb.value}": verb for verb in Verb}
WEBHOOK = {f"/{Verb.GATE.value}": Verb.GATE}  # of a program that answers no scheduler
_CLOSING = {Outcome.COMPRESSED, Outcome.TOO_LARGE, Outcome.TOO_SLOW, Outcome.BUSY, Outcome.GONE}


class _Refused(Exception):
    """Carries the reply to a request whose body cannot be had."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.outcome.value)
        self.reply = reply


@dataclass(slots=True)
class _Load:
    """The present load of the server."""

    waiting: int = 0
    held_bytes: int = 0


class VerbHandler:
    """Handles every request of the verbs' port."""

    def __init__(
        self,
        extender: ExtenderVerbs,
        metrics: Metrics,
        limits: Limits,
        clock: Callable[[], float] = time.perf_counter,
        paths: Mapping[str, Verb] = PATHS,
    ) -> None:
        self._extender, self._metrics, self._limits, self._clock = extender, metrics, limits, clock
        self._paths = paths
        self._dispatcher = Dispatcher(extender, metrics, clock)
        self._places = asyncio.Semaphore(limits.in_flight)
        self._load = _Load()
        self._durations = {verb: metrics.duration.labels(verb.value) for verb in Verb}

    def server(self) -> Server:
        """Return a server of these verbs that does not listen yet."""
        server = Server(self.handle, self._limits)
        self._metrics.connections.set_function(lambda: len(server.connections))
        return server

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. Every path ends in one JSON body with its length."""
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
                connection.answer_ready()
        self._metrics.requests.labels(verb.value if verb else "other", reply.outcome.value).inc()
        if verb and reply.status == 200:
            self._durations[verb].observe(self._clock() - start_s)
        return self._response(reply)

    def _refuse_by_head(self, request: web.BaseRequest, verb: Verb | None) -> Reply | None:
        """Return a refusal for a request whose head is enough to refuse it; None for others."""
        if verb is None:
            return refuse(404, "no such verb", Outcome.NO_SUCH_VERB)
        if request.method != hdrs.METH_POST:
            return refuse(405, "only POST", Outcome.WRONG_METHOD)
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower() != "identity":
            return refuse(415, "a compressed body is not read", Outcome.COMPRESSED)
        if (request.content_length or 0) > self._max_body_bytes(verb):
            return refuse(413, f"a body holds at most {self._max_body_bytes(verb)} bytes", Outcome.TOO_LARGE)
        if verb is not Verb.GATE and (why := self._extender.unready()) is not None:
            return refuse(503, f"not ready: {why}", Outcome.UNREADY)
        return None

    async def _read_and_answer(self, request: web.BaseRequest, verb: Verb, start_s: float) -> Reply:
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
            # From here to the answer nothing waits: one request sees one world.
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
        return min(self._limits.body_bytes, MAX_BYTES) if verb is Verb.GATE else self._limits.body_bytes

    def _check_size(self, body_bytes: int, max_bytes: int) -> None:
        if body_bytes > max_bytes:
            why = f"a body holds at most {max_bytes} bytes"
            raise _Refused(refuse(413, why, Outcome.TOO_LARGE))
        if self._load.held_bytes > self._limits.all_bodies_bytes:
            raise _Refused(refuse(503, "busy: too many bytes in hand", Outcome.BUSY))

    async def _take_place(self) -> None:
        """Wait a short time for a place in flight. Callers who would wait behind too many are refused."""
        if not self._places.locked():
            await self._places.acquire()
            return
        if self._load.waiting >= self._limits.waiting:
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
        response = web.Response(body=reply.body, status=reply.status, content_type="application/json")
        if reply.status == 405:
            response.headers[hdrs.ALLOW] = hdrs.METH_POST
        if reply.outcome in _CLOSING:
            response.force_close()
        return response
