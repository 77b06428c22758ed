"""Serve the embedded API over HTTP: check the caller's token, turn a request into a call of verbs.py, serve watches."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from turnout.simulator.api import verbs
from turnout.simulator.api.fault_injection import FaultRules
from turnout.simulator.api.garbage_collector import collect
from turnout.simulator.api.kinds.catalogue import NAMESPACES, Catalogue
from turnout.simulator.api.kinds.printer_columns import prefers_table
from turnout.simulator.api.kubeconfig import prefix
from turnout.simulator.api.model import ApiRefusal, ResourceKind, Unserved, success
from turnout.simulator.api.objects import Stored, raw
from turnout.simulator.api.server import logs
from turnout.simulator.api.server.watch import WatchServer
from turnout.simulator.api.store import Store
from turnout.simulator.api.verbs import Call, Target, handle, row_of, selection_of
from turnout.simulator.api.writes.patch import manager_of

_HEALTH = ("/healthz", "/livez", "/readyz")
FAULTS = "/turnout/faults"


def application(
    store: Store, watches: WatchServer, faults: FaultRules, token: str, pod_logs: logs.Logs | None = None
) -> web.Application:
    """Return the aiohttp application that serves a store.

    token: callers send it as a Bearer token, or as the first part of the path (require_token). Requests of web pages
    are refused, also with the token. pod_logs: the output of pods; None for none. watches: serves the watches. faults:
    the faults to inject.
    """
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[refusals_as_status, require_token(token)])
    app.router.add_route("*", "/{path:.*}", Handlers(store, watches, faults, pod_logs).answer)
    return app


class Handlers:
    """Answers requests."""

    def __init__(self, store: Store, watches: WatchServer, faults: FaultRules, pod_logs: logs.Logs | None) -> None:
        self._store, self._watches, self._faults, self._logs = store, watches, faults, pod_logs

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for any path: health, injected faults, discovery, a log, a watch, or a call of verbs.py.

        An injected fault for its verb and kind delays or refuses the last three. Garbage collection runs soon after a
        call of verbs.py. Raises ApiRefusal, Unserved for a group that is not served, and the errors of body_of().
        """
        if request.path in _HEALTH:
            return web.Response(text="ok")
        if request.path == FAULTS:
            return await self._change_faults(request)
        if request.method == "GET" and request.path == "/openapi/v2":
            return web.Response(body=OPENAPI_V2, content_type=OPENAPI_V2_TYPE)
        if request.method == "GET" and (document := discovery(self._store.catalogue, request.path)) is not None:
            return as_json(document)
        target = verbs.target(self._store.catalogue, request.path)
        await self._inject_fault(request, target)
        if request.method == "GET" and target.subresource == "log":
            pod = self._store.objects.get(target.kind, target.namespace, target.name).obj
            return await logs.answer(request, pod, self._logs)
        if _verb(request, target) == "watch":
            return await self._watch(request, target)
        try:
            answer = handle(self._store, await self._call(request, target))
            return as_raw(answer.raw, answer.code)
        finally:
            if self._store.objects.owner_index.to_check:
                asyncio.get_running_loop().call_soon(collect, self._store)

    async def _call(self, request: web.Request, target: Target) -> Call:
        """Return a request as a call of verbs.py. Reads the body. Raises the errors of body_of()."""
        body: Any = None
        form = request.content_type
        if request.method == "PATCH":
            body = None if form.startswith("application/apply-patch") else await body_of(request, any_json=True)
        elif request.method in ("POST", "PUT") or (request.method == "DELETE" and request.can_read_body):
            body = await body_of(request)
        manager = manager_of(request.query.get("fieldManager", ""), request.headers.get("User-Agent", ""))
        wants_table = prefers_table(request.headers.get("Accept", ""))
        return Call(request.method, target, request.query, body, form, manager, wants_table, time.time())

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Answer a watch request, with table rows if kubectl asks for them.

        Raises ApiRefusal for a malformed selector, and for a version that is malformed or too old.
        """
        show = _as_row(target.kind) if prefers_table(request.headers.get("Accept", "")) else raw
        return await self._watches.serve(request, target.kind, selection_of(target, request.query), show)

    # FaultRules.

    async def _change_faults(self, request: web.Request) -> web.Response:
        """Inject the fault in the body of a POST, or remove all faults for a DELETE.

        Raises ApiRefusal for another method or body. A fault with `drop` ends all watches at once.
        """
        if request.method == "DELETE":
            self._faults.clear()
            return as_json(success())
        if request.method != "POST":
            raise ApiRefusal("MethodNotAllowed", f"POST a fault to {FAULTS}, or DELETE them all")
        document = await body_of(request)
        self._faults.add_rule(document)
        if document.get("drop"):
            self._watches.drop()
        return as_json(success(), 201)

    async def _inject_fault(self, request: web.Request, target: Target) -> None:
        """Delay a request, then raise ApiRefusal, as the injected fault for its verb and kind says; nothing without
        one.
        """
        fault = self._faults.next(_verb(request, target), target.kind.plural)
        if fault is None:
            return
        if fault.slow_s:
            await asyncio.sleep(fault.slow_s)
        if (refusal := fault.refusal()) is not None:
            raise refusal


def _verb(request: web.Request, target: Target) -> str:
    """Return the API verb of a request, such as list or watch; "" for an unknown method.

    A GET of a path with a name is `get`, also with the query watch=1.
    """
    if request.method == "GET":
        watched = request.query.get("watch") in ("1", "true")
        return "get" if target.name else "watch" if watched else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(request.method, "")


def _as_row(kind: ResourceKind) -> Callable[[Stored], bytes]:
    """Return the function that encodes an object as a table row."""

    def show(stored: Stored) -> bytes:
        return row_of(kind, stored.obj, stored.version, time.time())

    return show


def first_namespaces(store: Store) -> None:
    """Create the four namespaces that every cluster has.

    Raises ApiRefusal (409) for the first that the store has already; those after it are not created.
    """
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        store.create(NAMESPACES, "", {"metadata": {"name": name}})


MAX_BODY_BYTES = 3 * 2**20  # as etcd and the API server together allow
JSON = "application/json"


@web.middleware
async def refusals_as_status(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a request by its handler, and turn every refusal into a Status, Unserved into a plain 404. An aiohttp
    middleware.
    """
    try:
        return await handler(request)
    except ApiRefusal as refusal:
        answer = as_json(refusal.status(), refusal.code)
        if refusal.retry_after_s:
            answer.headers["Retry-After"] = str(refusal.retry_after_s)
        return answer
    except Unserved:
        return web.Response(text="404 page not found\n", status=404)
    except web.HTTPRequestEntityTooLarge as error:
        too_large = ApiRefusal("RequestEntityTooLarge", str(error))
        return as_json(too_large.status(), too_large.code)


async def body_of(request: web.Request, any_json: bool = False) -> Any:
    """Return the JSON of a request's body.

    any_json: True to accept JSON that is no object, and any media type. Raises ApiRefusal: 501 for protobuf and other
    types, 400 for a body that is not JSON, for no object where one is needed, and for `metadata` that is no object.
    Raises web.HTTPRequestEntityTooLarge for more than MAX_BODY_BYTES.
    """
    if not any_json and request.content_type not in (JSON, "application/octet-stream"):
        raise ApiRefusal("NotImplemented", f"the embedded API reads no bodies of {request.content_type}: send JSON")
    try:
        body = msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiRefusal("BadRequest", f"the body is no JSON: {error}") from error
    if not any_json and not isinstance(body, dict):
        raise ApiRefusal("BadRequest", "the body is no object")
    if isinstance(body, dict) and body.get("metadata") is not None and not isinstance(body["metadata"], dict):
        raise ApiRefusal("BadRequest", "metadata is no object")
    return body


def as_json(obj: Any, status: int = 200) -> web.Response:
    """Return a response with values encoded as JSON."""
    return as_raw(msgspec.json.encode(obj), status)


def as_raw(raw: bytes, status: int = 200) -> web.Response:
    """Return a response with JSON that is encoded already."""
    return web.Response(body=raw, status=status, content_type=JSON)


_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_WRITES = ["get", "patch", "update"]
_VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.4+turnout-local",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "embedded",
}


# kubectl asks for this one, as protobuf alone, where the objects of a `kind: List` are applied. A document that knows
# no schema (field 1, the version) makes it send them as they are.
OPENAPI_V2 = b"\x0a\x032.0"
OPENAPI_V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def discovery(catalogue: Catalogue, path: str) -> dict[str, Any] | None:
    """Return the answer of a discovery path as JSON values; None for other paths and for groups that are not served."""
    groups = catalogue.groups()
    match [step for step in path.split("/") if step]:
        case ["version"]:
            return _VERSION
        case ["api"]:
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}]
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
        case ["apis"]:
            group_list = [_group(name, versions) for name, versions in groups.items()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": group_list}
        case ["apis", name] if name in groups:
            return {**_group(name, groups[name]), "kind": "APIGroup", "apiVersion": "v1"}
        case ["api", version]:
            return _resources(catalogue, "", version)
        case ["apis", name, version]:
            return _resources(catalogue, name, version)
        case ["openapi", "v3"]:
            paths = ["api/v1", *(f"apis/{name}/{version}" for name, vs in groups.items() for version in vs)]
            return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}?hash=0"} for each in paths}}
        case ["openapi", "v3", "api", version]:
            return _openapi(catalogue, "", version)
        case ["openapi", "v3", "apis", name, version]:
            return _openapi(catalogue, name, version)
    return None


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    """Return an API group as discovery has it. versions: at least one; the first is the preferred one."""
    group_versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": group_versions, "preferredVersion": group_versions[0]}


def _kinds(catalogue: Catalogue, group: str, version: str) -> list[ResourceKind]:
    """Return the served kinds of an API group and version, in the order of the catalogue.

    group: "" for the core group.
    """
    return [kind for kind in catalogue.kinds() if (kind.group, kind.version) == (group, version)]


def _resources(catalogue: Catalogue, group: str, version: str) -> dict[str, Any] | None:
    """Return the APIResourceList of a version; None for a version without kinds. group: "" for the core group."""
    kinds = _kinds(catalogue, group, version)
    if not kinds:
        return None
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        singular = kind.singular or kind.kind.lower()
        row = {"name": kind.plural, "singularName": singular, "namespaced": kind.namespaced, "kind": kind.kind}
        categories = {"categories": ["all"]} if kind.workload else {}
        rows.append({**row, "verbs": _VERBS, "shortNames": list(kind.short), **categories})
        part = {"singularName": "", "namespaced": kind.namespaced}
        if kind.status:
            rows.append({**part, "name": f"{kind.plural}/status", "kind": kind.kind, "verbs": _WRITES})
        if kind.scaling:
            scale = {"group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": _WRITES}
            rows.append({**part, "name": f"{kind.plural}/scale", **scale})
    if not group:
        of_pods = {"singularName": "", "namespaced": True}
        rows += [
            {**of_pods, "name": "pods/binding", "kind": "Binding", "verbs": ["create"]},
            {**of_pods, "name": "pods/log", "kind": "Pod", "verbs": ["get"]},
            {**of_pods, "name": "pods/eviction", "group": "policy", "version": "v1", "kind": "Eviction"}
            | {"verbs": ["create"]},
        ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": kinds[0].api_version, "resources": rows}


def _openapi(catalogue: Catalogue, group: str, version: str) -> dict[str, Any] | None:
    """Return an OpenAPI document with paths and verbs of a version, without schemas; None for a version without kinds.

    group: "" for the core group.
    """
    kinds = _kinds(catalogue, group, version)
    if not kinds:
        return None
    start = f"/apis/{group}/{version}" if group else f"/api/{version}"
    paths: dict[str, Any] = {}
    for kind in kinds:
        where = f"{start}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{start}/{kind.plural}"
        named = {"group": group, "version": version, "kind": kind.kind}
        verbs = {
            verb: {
                "x-kubernetes-group-version-kind": named,
                "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                "responses": {},
            }
            for verb in ("post", "put", "patch")
        }
        paths[where] = {"post": verbs["post"]}
        paths[f"{where}/{{name}}"] = {"put": verbs["put"], "patch": verbs["patch"]}
    return {"openapi": "3.0.0", "info": {"title": "Turnout's local cluster", "version": "v1"}, "paths": paths}


_NAMES = ("127.0.0.1", "localhost")
_BEARER = "Bearer "


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)


def require_token(token: str) -> Middleware:
    """Return a middleware that refuses requests of web pages with 403, and callers without the token with 401.

    A request counts as one of a web page if it has an Origin header, or asks for another host than 127.0.0.1 or
    localhost.
    """
    before = prefix(token)

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Pass on a request that has the token in its path or header; the path is passed on without it.

        Raises ApiRefusal (401, 403).
        """
        host = request.host.rpartition(":")[0] if ":" in request.host else request.host
        if "Origin" in request.headers or host not in _NAMES:
            raise ApiRefusal(
                "Forbidden",
                "requests of web pages are refused: they have an Origin header, or a host other than localhost",
            )
        shown = request.rel_url.raw_path[: len(before) + 1]
        if _equal(shown, f"{before}/"):
            rest = request.rel_url.with_path(request.rel_url.raw_path[len(before) :], encoded=True, keep_query=True)
            return await handler(request.clone(rel_url=rest))
        header = request.headers.get(hdrs.AUTHORIZATION, "")
        if header.startswith(_BEARER) and _equal(header.removeprefix(_BEARER).strip(), token):
            return await handler(request)
        raise ApiRefusal("Unauthorized", "send the token of the kubeconfig")

    return check


def _equal(shown: str, expected: str) -> bool:
    """Return True if two tokens are equal, in a time that does not depend on their content."""
    return secrets.compare_digest(shown.encode("utf-8", "replace"), expected.encode())
