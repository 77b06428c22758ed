"""Serves the page: its files, `/api/v1`, and the stream of changes. It answers GET, and POST for a session."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from math import inf
from typing import Any, Protocol

import msgspec
from aiohttp import web

from turnout.cli.page import answers, usage_rows
from turnout.cli.page.access import Access, Identity, NotLoggedIn, Sessions, Unavailable
from turnout.cli.page.answers import BadQuery, read_query
from turnout.cli.page.cluster_state import ClusterState, Rights, visible
from turnout.cli.page.history import WINDOWS, PastSizes
from turnout.cli.page.messages import (
    JobDetail,
    JobItem,
    JobSizes,
    JobTime,
    LandingAnswer,
    Problem,
    QueueHistory,
    QueueSample,
    SizeSample,
    Viewer,
)
from turnout.cli.page.open_api import document
from turnout.cli.page.past_queries import PastSamples
from turnout.cli.page.usage_rows import LogReading
from turnout.cli.verb_support.listing import CannotSee
from turnout.cli.views.usage import Usage
from turnout.kube.errors import KubeError

log = logging.getLogger("turnout.page")

COOKIE = "turnout-session"
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/notices.txt": ("notices.txt", "text/plain"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
AGE_S = 5.0  # between two events of a stream at most
WRITE_S = 10.0  # a viewer that does not read for so long is disconnected
MAX_STREAMS, MAX_ANSWERS = 500, 256
MAX_QUERY = 2_000  # characters of an address
SMALL = 1_000  # bytes, below which an answer is not compressed
MAX_BODY = 32_768  # bytes of a request's body


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The settings of the server."""

    cluster: str = ""  # the name that the page shows
    docs_url: str = ""  # the docs site, for runbooks and reasons
    grafana_url: str = ""
    allowed_hosts: frozenset[str] = frozenset()  # of the Host header, in lower case; empty for any
    user_header: str = ""  # the header in which an authenticating proxy names the user; "" for none
    group_header: str = ""  # and their groups, separated by commas
    secure_cookie: bool = False  # the browser speaks TLS to the page


class StateSource(Protocol):
    """Holds the state of the cluster, and signals its changes."""

    state: ClusterState
    changed: asyncio.Event  # set, and replaced, at each new version
    past: PastSizes

    @property
    def has_synced(self) -> bool:
        """True after the first observation of everything."""

    def unsynced_watches(self) -> list[str]:
        """Return what is watched and whose first list is not complete, each with its error if it has one."""

    def watch_interrupted_s(self) -> float:
        """Return the longest time since the last event of an interrupted watch, in seconds; 0 while none is."""

    def last_error(self) -> str:
        """Return the error of an interrupted watch; "" if all are open or those that are not have no error."""

    def reason_chain(self, job: str) -> tuple[tuple[str, str], ...]:
        """Return the causes of the state of KIND/NAMESPACE/NAME as (what it is about, text); () for an unknown job."""


class UsageSource(Protocol):
    """Returns the use of GPUs over time."""

    async def read(self, days: int) -> tuple[LogReading, Usage]:
        """Return (state of the reading, usage of `days` days, the last of which is today in UTC)."""


class PastSource(Protocol):
    """Returns the past of queues and jobs before the page started."""

    async def queue(self, name: str, window: str, end_s: float) -> PastSamples[QueueSample]:
        """Return the samples of a queue before `end_s` (since 1970), the oldest first. window: one of WINDOWS."""

    async def job(self, job: JobItem, end_s: float) -> PastSamples[SizeSample]:
        """Return the changes of a job's size before `end_s`, in seconds since 1970, the oldest first."""


Explain = Callable[[str, str], Awaitable[LandingAnswer]]
Goodput = Callable[[str], Awaitable[JobTime]]
NO_PROMETHEUS = "This page asks no Prometheus for the time before it started (--prometheus-url)."
NO_LOGS = "This page may not read the logs of pods. The command turnout goodput JOB reads them with your own rights."


class PageServer:
    """Answers the requests of viewers.

    source: of the cluster's state. access: tells who sends a request, and what that user may see. sessions: those of
    browsers. explain: plans a gang, given PODSxGPUS and a namespace; raises BadQuery if the text is no gang. goodput:
    reads what the time of a job was spent on, given KIND/NAMESPACE/NAME; None if the page may not read logs. usage_log:
    None if there is no decision log to read. prometheus: None if the past is only what this page has observed.
    """

    def __init__(
        self,
        source: StateSource,
        access: Access,
        sessions: Sessions,
        explain: Explain,
        settings: PageSettings = PageSettings(),
        goodput: Goodput | None = None,
        usage_log: UsageSource | None = None,
        prometheus: PastSource | None = None,
    ) -> None:
        """Begin without stored answers and open streams. For the arguments see the class."""
        self._source, self._access, self._sessions, self._explain = source, access, sessions, explain
        self._settings, self._goodput, self._usage_log, self._prometheus = settings, goodput, usage_log, prometheus
        self._answers: OrderedDict[tuple[str, Rights], _Encoded] = OrderedDict()
        self._visible_states: tuple[int, dict[Rights, ClusterState]] = (0, {})
        self._namespaces: tuple[int, tuple[str, ...]] = (0, ())  # of a version of the state: those with jobs
        self._streams = 0

    @property
    def viewers(self) -> int:
        """The number of open streams."""
        return self._streams

    def application(self) -> web.Application:
        """Return the application with all routes, for aiohttp's runner."""
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY)
        for path in FILES:
            app.router.add_get(path, self._file)
        app.router.add_post("/api/v1/session", self._begin_session)
        app.router.add_delete("/api/v1/session", self._end_session)
        app.router.add_get("/api/v1/stream", self._stream)
        app.router.add_get("/api/v1/openapi.json", self._open_api)
        app.router.add_get("/api/v1/viewer", self._viewer)
        app.router.add_get("/api/v1/explain", self._explained)
        app.router.add_get("/api/v1/usage", self._usage)
        app.router.add_get("/api/v1/queues/{queue:.+}/history", self._queue_history)
        app.router.add_get("/api/v1/jobs/{kind}/{namespace}/{name}", self._job)
        app.router.add_get("/api/v1/jobs/{kind}/{namespace}/{name}/goodput", self._job_time)
        app.router.add_get("/api/v1/jobs/{kind}/{namespace}/{name}/sizes", self._job_sizes)
        for path, make in self._lists().items():
            app.router.add_get(f"/api/v1/{path}", self._list_handler(make))
        return app

    def _lists(self) -> Mapping[str, Callable[[ClusterState, Mapping[str, str]], msgspec.Struct]]:
        """Return path -> function that makes its answer of the visible state and the request's parameters."""
        return {
            "summary": lambda state, _: answers.summary(state),
            "fabric/tree": lambda state, _: answers.fabric_tree(state),
            "fabric/gpus": lambda state, query: answers.gpu_cells(state, query.get("under", "")),
            "fabric/largest": lambda state, _: answers.largest_gangs(state),
            "queues": lambda state, query: answers.queue_list(state, read_query(query, answers.QUEUE_FILTERS)),
            "jobs": lambda state, query: answers.job_list(state, read_query(query, answers.JOB_FILTERS)),
            "decisions": lambda state, query: answers.decision_list(state, read_query(query, answers.DECISION_FILTERS)),
            "nodes": lambda state, query: answers.node_list(state, read_query(query, answers.NODE_FILTERS)),
        }

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check the Host header, call the handler, and turn known errors into problem responses."""
        hosts = self._settings.allowed_hosts
        if hosts and request.host.lower() not in hosts:
            return _problem(421, "this page does not answer to that host name", "open the address that it has printed")
        try:
            response = await handler(request)
        except BadQuery as error:
            return _problem(400, str(error))
        except NotLoggedIn as error:
            return _problem(401, str(error), "log in with a token that the API server accepts")
        except (Unavailable, CannotSee, KubeError) as error:
            return _problem(503, str(error), "try again later")
        except web.HTTPException as error:
            return _problem(error.status, error.reason)
        if not response.prepared:
            response.headers.update({name: text for name, text in HEADERS.items() if name not in response.headers})
        return response

    async def _file(self, request: web.Request) -> web.Response:
        name, kind = FILES[request.path]
        body = resources.files("turnout.cli.page").joinpath("static", name).read_bytes()
        return _bytes_response(request, body, kind, cached=True)

    async def _identity(self, request: web.Request) -> Identity:
        """Return the user who sent the request, by a proxy's header, a bearer token or a session cookie.

        The first of them that the request has counts. A proxy's header is not checked. Raises NotLoggedIn if there is
        none, or if the token is not accepted, and Unavailable if the API server does not answer.
        """
        settings = self._settings
        if settings.user_header and (user := request.headers.get(settings.user_header)):
            groups = request.headers.get(settings.group_header, "") if settings.group_header else ""
            return Identity(user, "", tuple(each.strip() for each in groups.split(",") if each.strip()))
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            token = self._sessions.token_of(request.cookies.get(COOKIE, ""))
        return await self._access.identity_of(token.strip())

    async def _rights(self, request: web.Request) -> Rights:
        """Return what the user may see of the namespaces in the current state.

        Raises NotLoggedIn if the request has no valid token, Unavailable if the API server does not answer.
        """
        identity, state = await self._identity(request), self._source.state
        if self._namespaces[0] != state.version:
            names = {job.namespace for job in state.jobs}.union(*state.queue_namespaces.values())
            self._namespaces = state.version, tuple(sorted(names))
        return await self._access.rights_of(identity, self._namespaces[1])

    async def _state(self, request: web.Request) -> tuple[ClusterState, Rights]:
        """Return the state that this user may see, and the rights.

        Raises Unavailable before the first observation or if the API server does not answer, and NotLoggedIn if the
        request has no valid token.
        """
        rights = await self._rights(request)
        state = self._source.state
        if not state.version:
            missing = ", ".join(self._source.unsynced_watches()[:5])
            raise Unavailable(f"the cluster is still being listed: {missing}")
        if self._visible_states[0] != state.version:
            self._visible_states = state.version, {}
        states = self._visible_states[1]
        if rights not in states:
            states[rights] = visible(state, rights)
        return states[rights], rights

    def _list_handler(
        self, make: Callable[[ClusterState, Mapping[str, str]], msgspec.Struct]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return a request handler that answers with the result of `make` as JSON.

        An answer is reused for the same address and the same rights until the state changes. make: gets the part of the
        state that the user may see, and the request's parameters; may raise BadQuery.
        """

        async def handle(request: web.Request) -> web.Response:
            """Return the answer for the user's rights and this address.

            Raises BadQuery if the address is too long or `make` does not accept a parameter, and what `_state` raises.
            """
            state, rights = await self._state(request)
            if len(request.path_qs) > MAX_QUERY:
                raise BadQuery(f"the address is longer than {MAX_QUERY} characters")
            key = request.path_qs, rights
            known = self._answers.get(key)
            if known is None or known.version != state.version:
                known = self._remember(key, _encoded(make(state, dict(request.query)), state.version))
            return _encoded_response(request, known)

        return handle

    def _remember(self, key: tuple[str, Rights], answer: _Encoded) -> _Encoded:
        """Store an answer and return it. Beyond MAX_ANSWERS the ones stored first are removed.

        key: (path and query of the request, rights of the user).
        """
        self._answers[key] = answer
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    async def _usage(self, request: web.Request) -> web.Response:
        """Respond with a report on past GPU use; without a decision log it says so.

        Raises BadQuery if the address is too long or a parameter is unknown or invalid, and what `_state` raises.
        """
        state, rights = await self._state(request)
        if len(request.path_qs) > MAX_QUERY:
            raise BadQuery(f"the address is longer than {MAX_QUERY} characters")
        query = read_query(dict(request.query), usage_rows.FILTERS)
        if self._usage_log is None:
            return _encoded_response(request, _encoded(usage_rows.without_log(state, query), state.version))
        reading, usage = await self._usage_log.read(usage_rows.window_of(query)[1])
        key = request.path_qs, rights
        known = self._answers.get(key)
        if known is None or known.version != reading.number:
            answer = await asyncio.to_thread(usage_rows.usage_list, usage, state, rights, query, reading)
            known = self._remember(key, _encoded(answer, reading.number))
        return _encoded_response(request, known)

    async def _queue_history(self, request: web.Request) -> web.Response:
        """Respond with past amounts of a queue: those that this page measured, and before them those of Prometheus.

        Raises BadQuery for an unknown window, HTTPNotFound if the user sees no such queue, HTTPForbidden if the user
        may not see all of the queue's namespaces, and what `_state` raises.
        """
        state, _ = await self._state(request)
        queue, window = request.match_info["queue"], request.query.get("window", "1h")
        if window not in WINDOWS:
            raise BadQuery(f"window is one of {', '.join(WINDOWS)}, not {window[:20]!r}")
        item = next((each for each in state.queues if each.queue == queue), None)
        if item is None:
            raise web.HTTPNotFound(reason="there is no such queue")
        if item.hidden:
            raise web.HTTPForbidden(reason="you may not list the pods of a namespace of this queue")
        samples = self._source.past.queue(queue, window)
        own_since_s, note = samples[0].at_s if samples else None, ""
        if self._prometheus is not None:
            past = await self._prometheus.queue(queue, window, own_since_s or state.observed_at_s)
            samples, note = (*(each for each in past.samples if each.at_s < (own_since_s or inf)), *samples), past.note
        answer = QueueHistory(
            observed_at_s=state.observed_at_s,
            version=state.version,
            queue=queue,
            samples=samples,
            own_since_at_s=own_since_s,
            note=note,
        )
        return _encoded_response(request, _encoded(answer, state.version))

    async def _job_sizes(self, request: web.Request) -> web.Response:
        """Respond with the sizes of a job that Prometheus has from before the first size that this page measured.

        Without Prometheus there are none, and a note says so. Raises what `_job_item` raises.
        """
        state, item = await self._job_item(request)
        own = self._source.past.job(item.job)
        past: PastSamples[SizeSample] = PastSamples()
        note = NO_PROMETHEUS
        if self._prometheus is not None:
            past = await self._prometheus.job(item, own[0].at_s if own else state.observed_at_s)
            note = past.note
        sizes = tuple(each for each in past.samples if not own or each.at_s < own[0].at_s)
        answer = JobSizes(
            observed_at_s=state.observed_at_s, version=state.version, job=item.job, sizes=sizes, note=note
        )
        return _encoded_response(request, _encoded(answer, state.version))

    async def _job_item(self, request: web.Request) -> tuple[ClusterState, JobItem]:
        """Return the visible state, and the job that the address names.

        Raises HTTPNotFound if there is no such job or the user cannot see it, NotLoggedIn without a valid token, and
        Unavailable before the first observation or if the API server does not answer.
        """
        state, _ = await self._state(request)
        name = "/".join(request.match_info[part] for part in ("kind", "namespace", "name"))
        item = next((each for each in state.jobs if each.job == name), None)
        if item is None:
            raise web.HTTPNotFound(reason="there is no such job, or you may not list the pods of its namespace")
        return state, item

    async def _job_time(self, request: web.Request) -> web.Response:
        """Respond with the job's time by kind, from its pods' logs. If the page may not read logs, the response says
        so.

        Raises what `_job_item` raises, and KubeError if the API server refuses the logs or fails.
        """
        state, item = await self._job_item(request)
        if self._goodput is None:
            answer = JobTime(observed_at_s=state.observed_at_s, version=state.version, job=item.job, missing=NO_LOGS)
        else:
            answer = await self._goodput(item.job)
        return _encoded_response(request, _encoded(answer, answer.version))

    async def _job(self, request: web.Request) -> web.Response:
        """Respond with all details of one job, with at most 100 decisions. Raises what `_job_item` raises."""
        state, item = await self._job_item(request)
        name = item.job
        decisions = tuple(each for each in state.decisions if each.object == name)[:100]
        answer = JobDetail(
            observed_at_s=state.observed_at_s,
            version=state.version,
            item=item,
            sentence=answers.sentence_of(item),
            why=self._source.reason_chain(name),
            ring=answers.ring_of(state, name),
            ranks=answers.rank_rows(state, name),
            sizes=self._source.past.job(name),
            decisions=decisions,
        )
        return _encoded_response(request, _encoded(answer, state.version))

    async def _explained(self, request: web.Request) -> web.Response:
        """Respond with the place of a gang that would arrive now.

        Raises HTTPForbidden unless the user may list nodes and pods of all namespaces, BadQuery if the parameters
        describe no gang, and CannotSee if the page itself may not list the cluster. Also raises what `_state` raises,
        and KubeError if the API server fails.
        """
        _, rights = await self._state(request)
        if not (rights.all_namespaces and rights.nodes):
            raise web.HTTPForbidden(reason="a landing names nodes and jobs of all namespaces: you may not list them")
        gang, namespace = request.query.get("gang", ""), request.query.get("namespace", "default")
        if len(gang) > 20 or len(namespace) > 63:
            raise BadQuery("gang is PODSxGPUS, as in 16x8")
        answer = await self._explain(gang, namespace)
        return _encoded_response(request, _encoded(answer, answer.version))

    async def _viewer(self, request: web.Request) -> web.Response:
        """Respond with the user's name, rights, the name of the cluster and the links of the page.

        Works before the first observation, too. Raises NotLoggedIn if the request has no valid token, and Unavailable
        if the API server does not answer.
        """
        identity, rights, settings = await self._identity(request), await self._rights(request), self._settings
        viewer = Viewer(
            identity.user,
            rights.all_namespaces,
            settings.cluster,
            settings.docs_url,
            settings.grafana_url,
            rights.unknown_namespaces,
        )
        return _encoded_response(request, _encoded(viewer, 0))

    async def _open_api(self, request: web.Request) -> web.Response:
        """Respond with the OpenAPI document to every user with a valid token.

        Raises NotLoggedIn without a valid token, and Unavailable if the API server does not answer.
        """
        await self._identity(request)
        return _bytes_response(request, document(), "application/json")

    async def _begin_session(self, request: web.Request) -> web.Response:
        """Begin a session for the token in the body, `{"token": "..."}`; respond with 204 and the session's cookie.

        Raises HTTPForbidden for a request that may come from another site: its content type is not JSON, or its header
        Sec-Fetch-Site is not same-origin (it may be missing). Raises BadQuery for another body, NotLoggedIn for a token
        that is not accepted, and Unavailable if the API server does not answer.
        """
        if (
            request.content_type != "application/json"
            or request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin"
        ):
            raise web.HTTPForbidden(reason="a session is begun by the page itself")
        try:
            token = msgspec.json.decode(await request.read(), type=dict[str, str])["token"].strip()
        except (msgspec.DecodeError, KeyError):
            raise BadQuery('the body is {"token": "..."}') from None
        await self._access.identity_of(token)
        response = web.Response(status=204)
        response.set_cookie(
            COOKIE,
            self._sessions.begin(token),
            httponly=True,
            samesite="Strict",
            secure=self._settings.secure_cookie,
            path="/",
        )
        return response

    async def _end_session(self, request: web.Request) -> web.Response:
        """End the browser's session and delete its cookie. Does nothing without a session."""
        self._sessions.end(request.cookies.get(COOKIE, ""))
        response = web.Response(status=204)
        response.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict", secure=self._settings.secure_cookie)
        return response

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send an event at each new version of the state and every AGE_S seconds, after which the browser reads what it
        shows.

        Only the newest version is sent: a slow viewer misses versions, but no facts. Ends when the viewer leaves or the
        session expires. Raises NotLoggedIn if the request has no valid token, Unavailable if the API server does not
        answer, and HTTPServiceUnavailable if MAX_STREAMS viewers are connected already.
        """
        await self._rights(request)
        if self._streams >= MAX_STREAMS:
            raise web.HTTPServiceUnavailable(reason=f"{MAX_STREAMS} viewers are connected already")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self._streams += 1
        try:
            await response.prepare(request)
            await self._send_events(request, response)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams -= 1
        return response

    async def _send_events(self, request: web.Request, response: web.StreamResponse) -> None:
        """Write an event at each new version, and at least every AGE_S seconds, until the session expires.

        Raises ConnectionError if the browser has gone, and TimeoutError if it does not read.
        """
        source, unknown = self._source, 0
        while True:
            changed = source.changed
            try:
                unknown = (await self._rights(request)).unknown_namespaces
            except NotLoggedIn as error:
                await _write(response, "expired", {"error": str(error)}, source.state.version)
                return
            except Unavailable:
                pass  # the stream tells how old the data is
            data = {
                "version": source.state.version,
                "observed_at_s": source.state.observed_at_s,
                "silent_s": round(source.watch_interrupted_s(), 1),
                "error": source.last_error(),
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


@dataclass(frozen=True, slots=True)
class _Encoded:
    version: int
    body: bytes
    packed: bytes  # the same with gzip; empty for a small body
    tag: str  # for If-None-Match


def _encoded(answer: msgspec.Struct, version: int) -> _Encoded:
    body = msgspec.json.encode(answer)
    packed = gzip.compress(body, 6, mtime=0) if len(body) > SMALL else b""
    return _Encoded(version, body, packed, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _encoded_response(request: web.Request, encoded: _Encoded) -> web.Response:
    """Return the answer as a response, compressed if the browser accepts gzip.

    Status 304 if it has this version already.
    """
    headers = {
        "ETag": encoded.tag,
        "Cache-Control": "private, no-cache",
        "Vary": "Accept-Encoding, Cookie, Authorization",
    }
    if request.headers.get("If-None-Match") == encoded.tag:
        return web.Response(status=304, headers=headers)
    body = encoded.body
    if encoded.packed and "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = encoded.packed, "gzip"
    return web.Response(body=body, headers=headers, content_type="application/json", charset="utf-8")


def _bytes_response(request: web.Request, body: bytes, kind: str, cached: bool = False) -> web.Response:
    """Return bytes as a response. kind: its content type, as in "text/html".

    cached: the browser may keep it, but has to ask each time (ETag with no-cache); unchanged bytes are answered with
    304.
    """
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"} if cached else {}
    if cached and request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers, content_type=kind, charset="utf-8")


def _problem(status: int, error: str, next_step: str = "") -> web.Response:
    """Return an error as a JSON response. status: of HTTP. next_step: what the user can do; "" if nothing."""
    body = msgspec.json.encode(Problem(error, next_step))
    return web.Response(status=status, body=body, headers=HEADERS, content_type="application/json", charset="utf-8")
