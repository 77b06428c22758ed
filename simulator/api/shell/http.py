"""The HTTP rim of the embedded API: paths and bodies in, objects and Statuses out. What they mean is in store.py.

Whatever is not known here is refused with 501 and a Status that says so.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from simulator.api import patch, route
from simulator.api.errors import ApiRefusal, success
from simulator.api.model import KINDS, Kind
from simulator.api.route import Target
from simulator.api.select import Question, selected
from simulator.api.shell.watch import Watches
from simulator.api.store import Key, Page, Store

_MOST_BODY_BYTES = 3 * 2**20  # as etcd and the API server together allow
_JSON = "application/json"
_PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": patch.merge,
    "application/strategic-merge-patch+json": patch.strategic,
    "application/json-patch+json": patch.json_patch,
}
_HEALTH = ("/healthz", "/livez", "/readyz")


def application(store: Store, watches: Watches) -> web.Application:
    """The aiohttp application over a store."""
    app = web.Application(client_max_size=_MOST_BODY_BYTES, middlewares=[_refusals])
    rim = Rim(store, watches)
    app.router.add_route("*", "/{path:.*}", rim.answer)
    return app


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every refusal leaves as a Status."""
    try:
        return await handler(request)
    except ApiRefusal as refusal:
        return _json(refusal.status(), refusal.code)
    except web.HTTPRequestEntityTooLarge as error:
        too_large = ApiRefusal("RequestEntityTooLarge", str(error))
        return _json(too_large.status(), too_large.code)


class Rim:
    """One method per HTTP verb."""

    def __init__(self, store: Store, watches: Watches) -> None:
        self._store, self._watches = store, watches

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.path in _HEALTH:
            return web.Response(text="ok")
        if request.method == "GET" and (told := route.discovery(request.path)) is not None:
            return _json(told)
        target = route.target(request.path)
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

    async def _get(self, request: web.Request, target: Target) -> web.StreamResponse:
        if target.name:
            if target.subresource not in ("", "status"):
                raise _no_subresource(target)
            return _raw(self._store.get(target.kind, target.namespace, target.name).raw)
        query = request.query
        wanted = selected(target.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if query.get("watch") in ("1", "true"):
            return await self._watches.serve(request, target.kind, _within(target.namespace, wanted))
        limit = int(query["limit"]) if query.get("limit", "").isdigit() else 0
        version, after = _read_token(query["continue"]) if query.get("continue") else (0, None)
        page = self._store.page(target.kind, target.namespace, wanted, limit, after)
        return _raw(_list(target.kind, page, version or page.version))

    async def _post(self, request: web.Request, target: Target) -> web.StreamResponse:
        body = await _body(request)
        if target.subresource == "binding" and target.kind.plural == "pods":
            node = (body.get("target") or {}).get("name")
            if not node:
                raise ApiRefusal("BadRequest", "a binding needs target.name")
            self._store.bind(target.kind, target.namespace, target.name, node)
            return _json({**success(), "code": 201}, 201)
        if target.name:
            raise _no_subresource(target)
        if target.kind.namespaced and not target.namespace:
            raise ApiRefusal("BadRequest", "an object is created in a namespace, not in all of them")
        return _raw(self._store.create(target.kind, target.namespace, body).raw, 201)

    async def _put(self, request: web.Request, target: Target) -> web.StreamResponse:
        _check_writable(target)
        body = await _body(request)
        written = self._store.update(target.kind, target.namespace, target.name, body, target.subresource)
        return _raw(written.raw)

    async def _patch(self, request: web.Request, target: Target) -> web.StreamResponse:
        _check_writable(target)
        apply = _PATCHES.get(request.content_type)
        if apply is None or (apply is patch.strategic and target.kind.custom):
            raise ApiRefusal(
                "UnsupportedMediaType", f"patches of {request.content_type} are not done on {target.kind.resource}"
            )
        wish = await _body(request, anything=True)
        old = self._store.get(target.kind, target.namespace, target.name)
        new = apply(old.obj, wish)
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise ApiRefusal("Invalid", "the patch leaves no object behind")
        written = self._store.update(target.kind, target.namespace, target.name, new, target.subresource)
        return _raw(written.raw)

    async def _delete(self, request: web.Request, target: Target) -> web.StreamResponse:
        if target.subresource:
            raise _no_subresource(target)
        options = await _body(request) if request.can_read_body else {}
        preconditions = options.get("preconditions")
        if target.name:
            gone = self._store.delete(target.kind, target.namespace, target.name, preconditions)
            return _raw(gone.raw)
        query = request.query
        wanted = selected(target.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        found = self._store.find(target.kind, target.namespace, wanted)
        for stored in found:
            meta = stored.obj["metadata"]
            self._store.delete(target.kind, meta.get("namespace", ""), meta["name"])
        return _raw(_list(target.kind, Page(tuple(found), self._store.version), self._store.version))


def _within(namespace: str, wanted: Question) -> Question:
    if not namespace:
        return wanted
    return lambda obj: obj["metadata"].get("namespace") == namespace and wanted(obj)


def _check_writable(target: Target) -> None:
    if not target.name:
        raise ApiRefusal("MethodNotAllowed", "a collection is neither replaced nor patched")
    if target.subresource not in ("", "status") or (target.subresource and not target.kind.status):
        raise _no_subresource(target)


def _no_subresource(target: Target) -> ApiRefusal:
    what = f"{target.kind.resource}/{target.subresource}" if target.subresource else f"this verb on {target.name}"
    return ApiRefusal("NotImplemented", f"the embedded API does not do {what}")


async def _body(request: web.Request, anything: bool = False) -> Any:
    """The JSON of a body. Raises ApiRefusal: 415 for protobuf and the like, 400 for what is no JSON object."""
    if not anything and request.content_type not in (_JSON, "application/octet-stream"):
        raise ApiRefusal("UnsupportedMediaType", f"bodies of {request.content_type} are not read here, send JSON")
    try:
        body = msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiRefusal("BadRequest", f"the body is no JSON: {error}") from error
    if not anything and not isinstance(body, dict):
        raise ApiRefusal("BadRequest", "the body is no object")
    if isinstance(body, dict) and body.get("metadata") is not None and not isinstance(body["metadata"], dict):
        raise ApiRefusal("BadRequest", "metadata is no object")
    return body


def _list(kind: Kind, page: Page, version: int) -> bytes:
    meta: dict[str, Any] = {"resourceVersion": str(version)}
    if page.rest is not None:
        meta["continue"] = base64.urlsafe_b64encode(json.dumps([version, *page.rest]).encode()).decode()
    head = json.dumps({"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta}).encode()
    return head[:-1] + b',"items":[' + b",".join(stored.raw for stored in page.items) + b"]}"


def _read_token(text: str) -> tuple[int, Key]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(text))
        return int(version), (str(namespace), str(name))
    except ValueError as error:
        raise ApiRefusal("BadRequest", f"continue key is not valid: {error}") from error


def _json(obj: Any, status: int = 200) -> web.Response:
    return _raw(msgspec.json.encode(obj), status)


def _raw(raw: bytes, status: int = 200) -> web.Response:
    return web.Response(body=raw, status=status, content_type=_JSON)


def first_namespaces(store: Store) -> None:
    """The namespaces that every cluster has."""
    kind = next(k for k in KINDS if k.plural == "namespaces")
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        store.create(kind, "", {"metadata": {"name": name}, "status": {"phase": "Active"}})
