"""Serve the embedded API over HTTP: turn a request into a call of verbs.py, and serve watches, logs and faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from turnout.simulator.api import route
from turnout.simulator.api.discovery import OPENAPI_V2, OPENAPI_V2_TYPE, discovery
from turnout.simulator.api.errors import ApiRefusal, success
from turnout.simulator.api.fault_injection import Faults
from turnout.simulator.api.garbage_collector import collect
from turnout.simulator.api.kinds.builtin_kinds import NAMESPACES
from turnout.simulator.api.kinds.table import asked_for
from turnout.simulator.api.model import Kind
from turnout.simulator.api.route import Target
from turnout.simulator.api.server import logs
from turnout.simulator.api.server.http import MOST_BODY_BYTES, as_json, as_raw, body_of, refusals
from turnout.simulator.api.server.peer_auth import only_with
from turnout.simulator.api.server.watch import Watches
from turnout.simulator.api.store import Store
from turnout.simulator.api.verbs import Call, do, question, row_of
from turnout.simulator.api.watch_history import Stored, raw
from turnout.simulator.api.writes.managed_fields import manager_of

_HEALTH = ("/healthz", "/livez", "/readyz")
FAULTS = "/turnout/faults"


def application(
    store: Store, watches: Watches, faults: Faults, token: str, pod_logs: logs.Logs | None = None
) -> web.Application:
    """Return the aiohttp application over a store. token: that every caller has to show."""
    app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[refusals, only_with(token)])
    app.router.add_route("*", "/{path:.*}", Handlers(store, watches, faults, pod_logs).answer)
    return app


class Handlers:
    """Answers requests."""

    def __init__(self, store: Store, watches: Watches, faults: Faults, pod_logs: logs.Logs | None) -> None:
        self._store, self._watches, self._faults, self._logs = store, watches, faults, pod_logs

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.path in _HEALTH:
            return web.Response(text="ok")
        if request.path == FAULTS:
            return await self._ask_for_fault(request)
        if request.method == "GET" and request.path == "/openapi/v2":
            return web.Response(body=OPENAPI_V2, content_type=OPENAPI_V2_TYPE)
        if request.method == "GET" and (document := discovery(self._store.catalogue, request.path)) is not None:
            return as_json(document)
        target = route.target(self._store.catalogue, request.path)
        await self._suffer(request, target)
        if request.method == "GET" and target.subresource == "log":
            pod = self._store.get(target.kind, target.namespace, target.name).obj
            return await logs.answer(request, pod, self._logs)
        if _verb(request, target) == "watch":
            return await self._watch(request, target)
        try:
            answer = do(self._store, await self._call(request, target))
            return as_raw(answer.raw, answer.code)
        finally:
            if self._store.ties.doubtful:
                asyncio.get_running_loop().call_soon(collect, self._store)

    async def _call(self, request: web.Request, target: Target) -> Call:
        body: Any = None
        form = request.content_type
        if request.method == "PATCH":
            body = None if form.startswith("application/apply-patch") else await body_of(request, anything=True)
        elif request.method in ("POST", "PUT") or (request.method == "DELETE" and request.can_read_body):
            body = await body_of(request)
        manager = manager_of(request.query.get("fieldManager", ""), request.headers.get("User-Agent", ""))
        tabled = asked_for(request.headers.get("Accept", ""))
        return Call(request.method, target, request.query, body, form, manager, tabled, time.time())

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        show = _as_row(target.kind) if asked_for(request.headers.get("Accept", "")) else raw
        return await self._watches.serve(request, target.kind, question(target, request.query), show)

    # Faults.

    async def _ask_for_fault(self, request: web.Request) -> web.Response:
        if request.method == "DELETE":
            self._faults.clear()
            return as_json(success())
        if request.method != "POST":
            raise ApiRefusal("MethodNotAllowed", f"POST a fault to {FAULTS}, or DELETE them all")
        document = await body_of(request)
        self._faults.ask_for(document)
        if document.get("drop"):
            self._watches.drop()
        return as_json(success(), 201)

    async def _suffer(self, request: web.Request, target: Target) -> None:
        fault = self._faults.next(_verb(request, target), target.kind.plural)
        if fault is None:
            return
        if fault.slow_s:
            await asyncio.sleep(fault.slow_s)
        if (refusal := fault.refusal()) is not None:
            raise refusal


def _verb(request: web.Request, target: Target) -> str:
    if request.method == "GET":
        watched = request.query.get("watch") in ("1", "true")
        return "get" if target.name else "watch" if watched else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(request.method, "")


def _as_row(kind: Kind) -> Callable[[Stored], bytes]:
    def show(stored: Stored) -> bytes:
        return row_of(kind, stored.obj, stored.version, time.time())

    return show


def first_namespaces(store: Store) -> None:
    """Create the namespaces that every cluster has."""
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        store.create(NAMESPACES, "", {"metadata": {"name": name}})
