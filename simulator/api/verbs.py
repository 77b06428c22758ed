"""Resolve a path and apply its verb to the store, for HTTP (server/handlers.py) and for the local cluster's own parts.

Unknown requests are refused with 501 and a Status that says so.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from turnout.simulator.api.kinds.catalogue import Catalogue
from turnout.simulator.api.kinds.printer_columns import table
from turnout.simulator.api.model import ApiRefusal, ResourceKind, Unserved, invalid, refuse_malformed, success
from turnout.simulator.api.objects import Key, StorePage
from turnout.simulator.api.selectors import ObjectPredicate, object_predicate
from turnout.simulator.api.store import Store
from turnout.simulator.api.writes import patch
from turnout.simulator.api.writes.deletion import delete_options
from turnout.simulator.api.writes.patch import scale_of, with_replicas

_PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": patch.merge_patch,
    "application/strategic-merge-patch+json": patch.strategic_merge_patch,
    "application/json-patch+json": patch.json_patch,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str  # of HTTP, such as "GET"
    target: Target  # what its path names
    query: Mapping[str, str] = field(default_factory=dict)  # of the URL
    body: Any = None  # its JSON, None for none
    media_type: str = "application/json"  # its media type
    manager: str = "unknown"  # the name of the writer
    wants_table: bool = False  # True: the answer is to be a Table
    now_s: float = 0.0  # for the ages in tables; wall seconds


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """One answer: JSON and its HTTP status."""

    raw: bytes  # the JSON
    code: int = 200  # the HTTP status


def handle(store: Store, call: Call) -> ApiAnswer:
    """Carry out any request except watches and logs, and return its answer.

    Raises ApiRefusal: 501 for a dry run, 405 for a method that the path does not have, and the refusals of the verb
    (those of Store, of selectors and of patches).
    """
    if call.method != "GET" and call.query.get("dryRun"):
        raise ApiRefusal("NotImplemented", "the embedded API does not support dry runs")
    match call.method:
        case "GET":
            return _get(store, call)
        case "POST":
            return _post(store, call)
        case "PUT":
            _check_writable(call.target)
            return _store_update(store, call, call.body)
        case "PATCH":
            return _patch(store, call)
        case "DELETE":
            return _delete(store, call)
    raise ApiRefusal("MethodNotAllowed", f"{call.method} is not supported for {call.target.kind.resource}")


def selection_of(target: Target, query: Mapping[str, str]) -> ObjectPredicate:
    """Return the predicate of the objects that a list or a watch selects, by its selectors and its namespace.

    query: of the URL. Raises ApiRefusal (400) for a malformed selector. target: its namespace counts, its name does
    not.
    """
    selection = object_predicate(target.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    if not target.namespace:
        return selection
    return lambda obj: obj["metadata"].get("namespace") == target.namespace and selection(obj)


def _get(store: Store, call: Call) -> ApiAnswer:
    """Return an object, its scale, or a page of a list; a Table of the object or page if kubectl asks for one.

    For the subresource status it is the whole object. A limit that is no number counts as none. Raises ApiRefusal: 404
    for a missing object, or a scale that the kind does not have; 400 for a malformed selector or continue token; 410 if
    the version of a continued list is forgotten.
    """
    target, query = call.target, call.query
    kind = target.kind
    if target.name:
        stored = store.objects.get(kind, target.namespace, target.name)
        if target.subresource == "scale":
            return _json_answer(scale_of(kind, stored.obj))
        return (
            _json_answer(_as_table(call, StorePage((stored,), stored.version)))
            if call.wants_table
            else ApiAnswer(stored.raw)
        )
    selection = object_predicate(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    limit = int(query["limit"]) if query.get("limit", "").isdecimal() else 0
    version, after = _read_token(query["continue"]) if query.get("continue") else (0, None)
    page = store.objects.page(kind, target.namespace, selection, limit, after, version)
    return _json_answer(_as_table(call, page)) if call.wants_table else ApiAnswer(_as_list(kind, page))


def _post(store: Store, call: Call) -> ApiAnswer:
    """Create an object (201), or for the subresources binding and eviction bind or evict a pod (201).

    Raises ApiRefusal: 405 for a path with a name or another subresource, 400 without a namespace, 500 for a binding
    without a node, and the refusals of Store.create, bind and evict.
    """
    target, body = call.target, call.body
    where = (target.kind, target.namespace, target.name)
    match target.subresource:
        case "binding":
            node = (body.get("target") or {}).get("name")
            if not node:
                raise ApiRefusal("", "a binding needs target.name")
            store.bind(*where, node, call.manager)
            return _json_answer({**success(), "code": 201}, 201)
        case "eviction":
            store.evict(*where, delete_options(body.get("deleteOptions") or {}, {}))
            return _json_answer({**success(), "code": 201}, 201)
    if target.name:
        raise ApiRefusal("MethodNotAllowed", "the server does not allow this method on the requested resource")
    if target.kind.namespaced and not target.namespace:
        raise ApiRefusal("BadRequest", "an object is created in a namespace, not in all of them")
    return ApiAnswer(store.create(target.kind, target.namespace, body, call.manager).raw, 201)


def _patch(store: Store, call: Call) -> ApiAnswer:
    """Patch an object, its status or its scale, and return it.

    Raises ApiRefusal: 405 for a path that cannot be updated, 415 or 501 for an unsupported format, 404 for a missing
    object, 422 for a patch that does not fit the object, leaves no object or changes the uid, and the refusals of an
    update.
    """
    target = call.target
    _check_writable(target)
    apply = _PATCHES.get(call.media_type)
    if call.media_type.startswith("application/apply-patch"):
        raise ApiRefusal("NotImplemented", f"the embedded API does not support patches of {call.media_type}")
    if apply is None or (apply is patch.strategic_merge_patch and target.kind.custom):
        message = "the body of the request was in an unknown format - accepted media types include: "
        raise ApiRefusal("UnsupportedMediaType", message + "application/json-patch+json, application/merge-patch+json")
    old = store.objects.get(target.kind, target.namespace, target.name).obj
    with refuse_malformed(target.kind.kind, target.name):
        new = apply(scale_of(target.kind, old) if target.subresource == "scale" else old, call.body)
    if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
        raise ApiRefusal("Invalid", "the patch leaves no object behind")
    if new["metadata"].get("uid") not in (None, old["metadata"]["uid"]):
        raise invalid(target.kind.kind, target.name, "metadata.uid: field is immutable")
    return _store_update(store, call, new)


def _store_update(store: Store, call: Call, new: Any) -> ApiAnswer:
    """Store an updated object, status or scale, and return the stored state as the answer; for a scale its Scale.

    call: the request. new: the new object, as decoded JSON; for the subresource scale a Scale. Raises ApiRefusal: those
    of Store.update, and for a scale 404 or 422 (with_replicas).
    """
    target = call.target
    where = (target.kind, target.namespace, target.name)
    if target.subresource == "scale":
        new = with_replicas(target.kind, store.objects.get(*where).obj, new)
        return _json_answer(scale_of(target.kind, store.update(*where, new, "scale", call.manager).obj))
    return ApiAnswer(store.update(*where, new, target.subresource, call.manager).raw)


def _delete(store: Store, call: Call) -> ApiAnswer:
    """Delete an object, or all objects that the selectors choose.

    Return the object if its kind is graceful or it is only marked for deletion, else a success; for several objects the
    list of their states before. Raises ApiRefusal: 405 for a subresource, those of delete_options() and Store.delete,
    and 400 for a malformed selector. Objects of a list before the one that is refused stay deleted.
    """
    target, query = call.target, call.query
    if target.subresource:
        raise ApiRefusal("MethodNotAllowed", "the server does not allow this method on the requested resource")
    options = delete_options(call.body or {}, dict(query))
    if target.name:
        deleted = store.delete(target.kind, target.namespace, target.name, options)
        meta = deleted.obj["metadata"]
        # It is shown while there is something to show.
        if target.kind.graceful or store.objects.owner_index.place(meta["uid"]):
            return ApiAnswer(deleted.raw)
        details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural, "uid": meta["uid"]}
        return _json_answer({**success(), "details": details})
    selection = object_predicate(target.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    found = store.objects.find(target.kind, target.namespace, selection)
    for stored in found:
        meta = stored.obj["metadata"]
        store.delete(target.kind, meta.get("namespace", ""), meta["name"], options)
    return ApiAnswer(_as_list(target.kind, StorePage(tuple(found), store.objects.version)))


def _check_writable(target: Target) -> None:
    """Raise ApiRefusal (405) for a path that cannot be updated: without a name, or of another subresource."""
    if not target.name or target.subresource not in ("", "status", "scale"):
        raise ApiRefusal("MethodNotAllowed", "the server does not allow this method on the requested resource")


def _as_table(call: Call, page: StorePage) -> dict[str, Any]:
    """Return a page of a list as a Table, as decoded JSON."""
    table_document = table(call.target.kind, [stored.obj for stored in page.items], str(page.version), call.now_s)
    return {**table_document, "metadata": _list_metadata(page)}


def _json_answer(obj: Any, code: int = 200) -> ApiAnswer:
    """Return an answer with an object as JSON. code: HTTP status."""
    return ApiAnswer(msgspec.json.encode(obj), code)


def row_of(kind: ResourceKind, obj: dict[str, Any], version: int, now_s: float) -> bytes:
    """Return one object as the JSON of a Table with one row, for a watch of Tables.

    version: resourceVersion of the object. now_s: seconds since 1970, for ages.
    """
    return msgspec.json.encode(table(kind, [obj], str(version), now_s))


def _as_list(kind: ResourceKind, page: StorePage) -> bytes:
    """Return a page of a list as the JSON of a List."""
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": _list_metadata(page)}
    # The API server leaves the kind out of the items of its own lists; every object here begins with it.
    head_of_each = 0 if kind.custom else len(_list_item_head(kind))
    start = b"{" if head_of_each else b""
    shown = b",".join(start + stored.raw[head_of_each:] for stored in page.items)
    return json.dumps(head).encode()[:-1] + b',"items":[' + shown + b"]}"


def _list_item_head(kind: ResourceKind) -> bytes:
    """Return the beginning of an object's JSON: its kind and apiVersion, up to the comma behind them."""
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}",'.encode()


def _list_metadata(page: StorePage) -> dict[str, Any]:
    """Return the metadata of a page: its version, and unless it is the last page where to continue and how many are
    left.
    """
    meta: dict[str, Any] = {"resourceVersion": str(page.version)}
    if page.rest is not None:
        meta["continue"] = base64.urlsafe_b64encode(json.dumps([page.version, *page.rest]).encode()).decode()
        meta["remainingItemCount"] = page.left
    return meta


def _read_token(text: str) -> tuple[int, Key]:
    """Return (version of the list, key after which the list continues) of a continue token. Raises ApiRefusal (400).

    text: as _list_metadata() writes it.
    """
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(text))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ApiRefusal("BadRequest", f"continue key is not valid: {error}") from error


_OF_PODS = ("binding", "eviction", "log")


@dataclass(frozen=True, slots=True)
class Target:
    """The meaning of a path."""

    kind: ResourceKind
    namespace: str = ""  # "" for all namespaces, or for a kind without one
    name: str = ""  # "" for a whole collection
    subresource: str = ""  # such as "status", "" for the object itself


def target(catalogue: Catalogue, path: str) -> Target:
    """Return what a resource path names: kind, namespace, name and subresource.

    path: without the query. Raises ApiRefusal: 404 for a subresource that a CRD does not have, 501 for any path that
    only the embedded API lacks. Raises Unserved for a group, version or kind of a CRD that is not served, and
    for an alpha or beta version of Kubernetes itself.
    """
    steps = [step for step in path.split("/") if step]
    if steps[:1] == ["api"] and len(steps) > 2:
        group, version, rest = "", steps[1], steps[2:]
    elif steps[:1] == ["apis"] and len(steps) > 3:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        raise ApiRefusal("NotImplemented", f"the embedded API does not serve {path}")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    kind = catalogue.find(group, version, rest[0])
    if kind is None or (namespace and not kind.namespaced):
        raise not_served_error(group, version, path)
    if len(rest) > 3:
        raise ApiRefusal("NotImplemented", f"the embedded API does not serve {path}")
    parsed = Target(kind, namespace, *rest[1:])
    if parsed.subresource:
        _check_subresource(parsed)
    return parsed


def not_served_error(group: str, version: str, path: str) -> Exception:
    """Return, do not raise, the error for a kind that is not in the catalogue: an ApiRefusal (501), or Unserved (404).

    A stable version of a group of Kubernetes itself gets 501, since a real server has it: of the core group, of a group
    without a dot (apps, batch), and of a group *.k8s.io. Alpha and beta versions are off there by default, so they are
    not found. Any other group, also *.sigs.k8s.io, belongs to a CRD that is not applied or is deleted. group: "" for
    the core group. path: for the message.
    """
    from_kubernetes = "." not in group or (group.endswith(".k8s.io") and not group.endswith(".sigs.k8s.io"))
    if from_kubernetes and re.fullmatch(r"v[0-9]+", version):
        return ApiRefusal("NotImplemented", f"the embedded API does not serve {path}")
    return Unserved()


def _check_subresource(requested: Target) -> None:
    """Check that a kind has this subresource. Raises ApiRefusal: 404, or 501 if only the embedded API lacks it."""
    part, kind = requested.subresource, requested.kind
    if (
        (part == "status" and kind.status)
        or (part == "scale" and kind.scaling)
        or (part in _OF_PODS and kind.is_named("pods"))
    ):
        return
    if kind.custom and part in ("status", "scale"):
        raise ApiRefusal("NotFound", "the server could not find the requested resource")
    raise ApiRefusal("NotImplemented", f"the embedded API does not support {kind.resource}/{part}")
