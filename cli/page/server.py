"""Serves the page: its files, `/api/v1`, and the stream of changes. It answers GET, and POST for a session.

`viewers.py` knows who sends a request, `job_routes.py` the answers about one job, `event_stream.py` the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from math import inf
from typing import Protocol

import msgspec
from aiohttp import web

from turnout.cli.page import answers, usage_rows
from turnout.cli.page.access import Access, NotLoggedIn, Sessions, Unavailable
from turnout.cli.page.answers import BadQuery, read_query
from turnout.cli.page.cluster_state import ClusterState
from turnout.cli.page.event_stream import EventStream
from turnout.cli.page.history import WINDOWS
from turnout.cli.page.job_routes import Goodput, JobRoutes, PastSource
from turnout.cli.page.messages import (
    LandingAnswer,
    QueueHistory,
    Viewer,
)
from turnout.cli.page.open_api import document
from turnout.cli.page.responses import (
    HEADERS,
    AnswerCache,
    answer_response,
    bytes_response,
    encode_answer,
    problem_response,
)
from turnout.cli.page.usage_rows import LogReading
from turnout.cli.page.viewers import PageSettings, SessionRoutes, StateSource, Viewers
from turnout.cli.verb_support.listing import CannotSee
from turnout.cli.views.usage import Usage
from turnout.kube.errors import KubeError

FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/notices.txt": ("notices.txt", "text/plain"),
}
MAX_QUERY = 2_000  # characters of an address
MAX_BODY = 32_768  # bytes of a request's body


class UsageSource(Protocol):
    """Returns the use of GPUs over time."""

    async def read(self, days: int) -> tuple[LogReading, Usage]:
        """Return (state of the reading, usage of `days` days, the last of which is today in UTC)."""


Explain = Callable[[str, str], Awaitable[LandingAnswer]]
_DEFAULT_SETTINGS = PageSettings()


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
        settings: PageSettings = _DEFAULT_SETTINGS,
        goodput: Goodput | None = None,
        usage_log: UsageSource | None = None,
        prometheus: PastSource | None = None,
    ) -> None:
        """Begin without stored answers and open streams. For the arguments see the class."""
        self._source, self._explain, self._settings = source, explain, settings
        self._usage_log, self._prometheus = usage_log, prometheus
        self._viewers = Viewers(source, access, sessions, settings)
        self._sessions = SessionRoutes(access, sessions, settings.secure_cookie)
        self._jobs = JobRoutes(source, self._viewers, goodput, prometheus)
        self._answers = AnswerCache()
        self.stream = EventStream(source, self._viewers)

    def application(self) -> web.Application:
        """Return the application with all routes, for aiohttp's runner."""
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY)
        for path in FILES:
            app.router.add_get(path, _send_file)
        app.router.add_post("/api/v1/session", self._sessions.begin)
        app.router.add_delete("/api/v1/session", self._sessions.end)
        app.router.add_get("/api/v1/stream", self.stream.respond)
        app.router.add_get("/api/v1/openapi.json", self._open_api)
        app.router.add_get("/api/v1/viewer", self._viewer)
        app.router.add_get("/api/v1/explain", self._explained)
        app.router.add_get("/api/v1/usage", self._usage)
        app.router.add_get("/api/v1/queues/{queue:.+}/history", self._queue_history)
        app.router.add_get("/api/v1/jobs/{kind}/{namespace}/{name}", self._jobs.detail)
        app.router.add_get("/api/v1/jobs/{kind}/{namespace}/{name}/goodput", self._jobs.time)
        app.router.add_get("/api/v1/jobs/{kind}/{namespace}/{name}/sizes", self._jobs.sizes)
        for path, make in _lists().items():
            app.router.add_get(f"/api/v1/{path}", self._list_handler(make))
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check the Host header, call the handler, and turn known errors into problem responses."""
        hosts = self._settings.allowed_hosts
        if hosts and request.host.lower() not in hosts:
            next_step = "open the address that it has printed"
            return problem_response(421, "this page does not answer to that host name", next_step)
        try:
            response = await handler(request)
        except BadQuery as error:
            return problem_response(400, str(error))
        except NotLoggedIn as error:
            return problem_response(401, str(error), "log in with a token that the API server accepts")
        except (Unavailable, CannotSee, KubeError) as error:
            return problem_response(503, str(error), "try again later")
        except web.HTTPException as error:
            return problem_response(error.status, error.reason)
        if not response.prepared:
            response.headers.update({name: text for name, text in HEADERS.items() if name not in response.headers})
        return response

    def _list_handler(
        self, make: Callable[[ClusterState, Mapping[str, str]], msgspec.Struct]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return a request handler that answers with the result of `make` as JSON.

        An answer is reused for the same address and the same rights until the state changes. make: gets the part of the
        state that the user may see, and the request's parameters; may raise BadQuery.
        """

        async def handle(request: web.Request) -> web.Response:
            """Return the answer for the user's rights and this address.

            Raises BadQuery if the address is too long or `make` does not accept a parameter, and what `Viewers.state`
            raises.
            """
            state, rights = await self._viewers.state(request)
            if len(request.path_qs) > MAX_QUERY:
                raise BadQuery(f"the address is longer than {MAX_QUERY} characters")
            key = request.path_qs, rights
            known = self._answers.get(key, state.version)
            if known is None:
                known = self._answers.put(key, encode_answer(make(state, dict(request.query)), state.version))
            return answer_response(request, known)

        return handle

    async def _usage(self, request: web.Request) -> web.Response:
        """Respond with a report on past GPU use; without a decision log it says so.

        Raises BadQuery if the address is too long or a parameter is unknown or invalid, and what `Viewers.state`
        raises.
        """
        state, rights = await self._viewers.state(request)
        if len(request.path_qs) > MAX_QUERY:
            raise BadQuery(f"the address is longer than {MAX_QUERY} characters")
        query = read_query(dict(request.query), usage_rows.FILTERS)
        if self._usage_log is None:
            return answer_response(request, encode_answer(usage_rows.without_log(state, query), state.version))
        reading, usage = await self._usage_log.read(usage_rows.window_of(query)[1])
        key = request.path_qs, rights
        known = self._answers.get(key, reading.number)
        if known is None:
            answer = await asyncio.to_thread(usage_rows.usage_list, usage, state, rights, query, reading)
            known = self._answers.put(key, encode_answer(answer, reading.number))
        return answer_response(request, known)

    async def _queue_history(self, request: web.Request) -> web.Response:
        """Respond with past amounts of a queue: those that this page measured, and before them those of Prometheus.

        Raises BadQuery for an unknown window, HTTPNotFound if the user sees no such queue, HTTPForbidden if the user
        may not see all of the queue's namespaces, and what `Viewers.state` raises.
        """
        state, _ = await self._viewers.state(request)
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
        return answer_response(request, encode_answer(answer, state.version))

    async def _explained(self, request: web.Request) -> web.Response:
        """Respond with the place of a gang that would arrive now.

        Raises HTTPForbidden unless the user may list nodes and pods of all namespaces, BadQuery if the parameters
        describe no gang, and CannotSee if the page itself may not list the cluster. Also raises what `Viewers.state`
        raises, and KubeError if the API server fails.
        """
        _, rights = await self._viewers.state(request)
        if not (rights.all_namespaces and rights.nodes):
            raise web.HTTPForbidden(reason="a landing names nodes and jobs of all namespaces: you may not list them")
        gang, namespace = request.query.get("gang", ""), request.query.get("namespace", "default")
        if len(gang) > 20 or len(namespace) > 63:
            raise BadQuery("gang is PODSxGPUS, as in 16x8")
        answer = await self._explain(gang, namespace)
        return answer_response(request, encode_answer(answer, answer.version))

    async def _viewer(self, request: web.Request) -> web.Response:
        """Respond with the user's name, rights, the name of the cluster and the links of the page.

        Works before the first observation, too. Raises NotLoggedIn if the request has no valid token, and Unavailable
        if the API server does not answer.
        """
        settings = self._settings
        identity, rights = await self._viewers.identity(request), await self._viewers.rights(request)
        viewer = Viewer(
            identity.user,
            rights.all_namespaces,
            settings.cluster,
            settings.docs_url,
            settings.grafana_url,
            rights.unknown_namespaces,
        )
        return answer_response(request, encode_answer(viewer, 0))

    async def _open_api(self, request: web.Request) -> web.Response:
        """Respond with the OpenAPI document to every user with a valid token.

        Raises NotLoggedIn without a valid token, and Unavailable if the API server does not answer.
        """
        await self._viewers.identity(request)
        return bytes_response(request, document(), "application/json")


def _lists() -> Mapping[str, Callable[[ClusterState, Mapping[str, str]], msgspec.Struct]]:
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


async def _send_file(request: web.Request) -> web.Response:
    """Respond with a file of the page."""
    name, kind = FILES[request.path]
    body = resources.files("turnout.cli.page").joinpath("static", name).read_bytes()
    return bytes_response(request, body, kind, cached=True)
