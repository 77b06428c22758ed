"""One method per HTTP verb of the embedded API. What a write means is in store.py.

Whatever is not known here is refused with 501 and a Status that says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from simulator.api import route
from simulator.api.discovery import discovery
from simulator.api.errors import ApiRefusal, invalid, success
from simulator.api.faults import Faults
from simulator.api.journal import Page, Stored, raw
from simulator.api.kinds.rows import NAMESPACES
from simulator.api.kinds.table import asked_for, table
from simulator.api.model import Kind
from simulator.api.owners import collect
from simulator.api.route import Target
from simulator.api.select import Question, selected
from simulator.api.shell import logs
from simulator.api.shell.callers import only_our_own
from simulator.api.shell.http import (
    MOST_BODY_BYTES,
    as_json,
    as_list,
    as_raw,
    body_of,
    list_metadata,
    read_token,
    refusals,
)
from simulator.api.shell.watch import Watches
from simulator.api.store import Store
from simulator.api.writes import patch
from simulator.api.writes.deletion import wish_of
from simulator.api.writes.managed import manager_of
from simulator.api.writes.scale import scale_of, scaled

_PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": patch.merge,
    "application/strategic-merge-patch+json": patch.strategic,
    "application/json-patch+json": patch.json_patch,
}
_HEALTH = ("/healthz", "/livez", "/readyz")
FAULTS = "/yard/faults"


def application(store: Store, watches: Watches, faults: Faults, kept: logs.Logs | None = None) -> web.Application:
    """The aiohttp application over a store."""
    app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[refusals, only_our_own()])
    app.router.add_route("*", "/{path:.*}", Rim(store, watches, faults, kept).answer)
    return app


class Rim:
    """Answers requests."""

    def __init__(self, store: Store, watches: Watches, faults: Faults, kept: logs.Logs | None) -> None:
        self._store, self._watches, self._faults, self._logs = store, watches, faults, kept

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.path in _HEALTH:
            return web.Response(text="ok")
        if request.path == FAULTS:
            return await self._ask_for_fault(request)
        if request.method == "GET" and (told := discovery(self._store.catalogue, request.path)) is not None:
            return as_json(told)
        target = route.target(self._store.catalogue, request.path)
        await self._suffer(request, target)
        if request.method != "GET" and request.query.get("dryRun"):
            raise ApiRefusal("NotImplemented", "the embedded API does not do dry runs")
        try:
            match request.method:
                case "GET":
                    return await self._get(request, target)
                case "POST":
                    return await self._post(request, target)
                case "PUT":
                    return await self._put(request, target)
                case "PATCH":
                    return await self._patch(request, target)
                case "DELETE":
                    return await self._delete(request, target)
            raise ApiRefusal("MethodNotAllowed", f"{request.method} is not done on {request.path}")
        finally:
            if self._store.ties.doubtful:
                asyncio.get_running_loop().call_soon(collect, self._store)

    # Verbs.

    async def _get(self, request: web.Request, target: Target) -> web.StreamResponse:
        store, kind = self._store, target.kind
        tabled = asked_for(request.headers.get("Accept", ""))
        if target.name:
            if target.subresource == "log":
                pod = store.get(kind, target.namespace, target.name).obj
                return await logs.answer(request, pod, self._logs)
            stored = store.get(kind, target.namespace, target.name)
            if target.subresource == "scale":
                return as_json(scale_of(kind, stored.obj))
            return as_json(_tabled(kind, Page((stored,), stored.version))) if tabled else as_raw(stored.raw)
        query = request.query
        wanted = selected(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if query.get("watch") in ("1", "true"):
            show = _as_row(kind) if tabled else raw
            return await self._watches.serve(request, kind, _within(target.namespace, wanted), show)
        limit = int(query["limit"]) if query.get("limit", "").isdigit() else 0
        version, after = read_token(query["continue"]) if query.get("continue") else (0, None)
        page = store.page(kind, target.namespace, wanted, limit, after, version)
        return as_json(_tabled(kind, page)) if tabled else as_raw(as_list(kind, page))

    async def _post(self, request: web.Request, target: Target) -> web.StreamResponse:
        body, store = await body_of(request), self._store
        where = (target.kind, target.namespace, target.name)
        match target.subresource:
            case "binding":
                node = (body.get("target") or {}).get("name")
                if not node:
                    raise ApiRefusal("", "a binding needs target.name")
                store.bind(*where, node, _manager(request))
                return as_json({**success(), "code": 201}, 201)
            case "eviction":
                store.evict(*where, wish_of(body.get("deleteOptions") or {}, {}))
                return as_json({**success(), "code": 201}, 201)
        if target.name:
            raise ApiRefusal("MethodNotAllowed", "the server does not allow this method on the requested resource")
        if target.kind.namespaced and not target.namespace:
            raise ApiRefusal("BadRequest", "an object is created in a namespace, not in all of them")
        return as_raw(store.create(target.kind, target.namespace, body, _manager(request)).raw, 201)

    async def _put(self, request: web.Request, target: Target) -> web.StreamResponse:
        _check_writable(target)
        return self._written(request, target, await body_of(request))

    async def _patch(self, request: web.Request, target: Target) -> web.StreamResponse:
        _check_writable(target)
        apply = _PATCHES.get(request.content_type)
        if request.content_type.startswith("application/apply-patch"):
            raise ApiRefusal("NotImplemented", f"the embedded API does not do patches of {request.content_type}")
        if apply is None or (apply is patch.strategic and target.kind.custom):
            told = "the body of the request was in an unknown format - accepted media types include: "
            raise ApiRefusal("UnsupportedMediaType", told + "application/json-patch+json, application/merge-patch+json")
        wish = await body_of(request, anything=True)
        old = self._store.get(target.kind, target.namespace, target.name).obj
        new = apply(scale_of(target.kind, old) if target.subresource == "scale" else old, wish)
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise ApiRefusal("Invalid", "the patch leaves no object behind")
        if new["metadata"].get("uid") not in (None, old["metadata"]["uid"]):
            raise invalid(target.kind.kind, target.name, "metadata.uid: field is immutable")
        return self._written(request, target, new)

    def _written(self, request: web.Request, target: Target, new: Any) -> web.StreamResponse:
        store, where = self._store, (target.kind, target.namespace, target.name)
        if target.subresource == "scale":
            new = scaled(target.kind, store.get(*where).obj, new)
            return as_json(scale_of(target.kind, store.update(*where, new, "scale", _manager(request)).obj))
        return as_raw(store.update(*where, new, target.subresource, _manager(request)).raw)

    async def _delete(self, request: web.Request, target: Target) -> web.StreamResponse:
        store, query = self._store, request.query
        wish = wish_of(await body_of(request) if request.can_read_body else {}, dict(query))
        if target.name:
            gone = store.delete(target.kind, target.namespace, target.name, wish)
            meta = gone.obj["metadata"]
            if target.kind.graceful or store.ties.place(meta["uid"]):  # it is shown while there is something to show
                return as_raw(gone.raw)
            details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural, "uid": meta["uid"]}
            return as_json({**success(), "details": details})
        wanted = selected(target.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        found = store.find(target.kind, target.namespace, wanted)
        for stored in found:
            meta = stored.obj["metadata"]
            store.delete(target.kind, meta.get("namespace", ""), meta["name"], wish)
        return as_raw(as_list(target.kind, Page(tuple(found), store.version)))

    # Faults.

    async def _ask_for_fault(self, request: web.Request) -> web.Response:
        if request.method == "DELETE":
            self._faults.clear()
            return as_json(success())
        if request.method != "POST":
            raise ApiRefusal("MethodNotAllowed", f"POST a fault to {FAULTS}, or DELETE them all")
        told = await body_of(request)
        self._faults.ask_for(told)
        if told.get("drop"):
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


def _manager(request: web.Request) -> str:
    return manager_of(request.query.get("fieldManager", ""), request.headers.get("User-Agent", ""))


def _within(namespace: str, wanted: Question) -> Question:
    if not namespace:
        return wanted
    return lambda obj: obj["metadata"].get("namespace") == namespace and wanted(obj)


def _check_writable(target: Target) -> None:
    if not target.name or target.subresource not in ("", "status", "scale"):
        raise ApiRefusal("MethodNotAllowed", "the server does not allow this method on the requested resource")


def _tabled(kind: Kind, page: Page) -> dict[str, Any]:
    told = table(kind, [stored.obj for stored in page.items], str(page.version), time.time())
    return {**told, "metadata": list_metadata(page)}


def _as_row(kind: Kind) -> Callable[[Stored], bytes]:
    def show(stored: Stored) -> bytes:
        return msgspec.json.encode(table(kind, [stored.obj], str(stored.version), time.time()))

    return show


def first_namespaces(store: Store) -> None:
    """The namespaces that every cluster has."""
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        store.create(NAMESPACES, "", {"metadata": {"name": name}})
