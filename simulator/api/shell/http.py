"""The HTTP rim of the embedded API: what comes in as JSON and goes out as JSON or a Status. Verbs are in rim.py."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from simulator.api.errors import ApiRefusal, Unserved
from simulator.api.journal import Key, Page
from simulator.api.model import Kind

MOST_BODY_BYTES = 3 * 2**20  # as etcd and the API server together allow
JSON = "application/json"


@web.middleware
async def refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every refusal leaves as a Status."""
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


async def body_of(request: web.Request, anything: bool = False) -> Any:
    """The JSON of a body. Raises ApiRefusal: 501 for protobuf and the like, 400 for what is no JSON object."""
    if not anything and request.content_type not in (JSON, "application/octet-stream"):
        raise ApiRefusal("NotImplemented", f"the embedded API reads no bodies of {request.content_type}: send JSON")
    try:
        body = msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiRefusal("BadRequest", f"the body is no JSON: {error}") from error
    if not anything and not isinstance(body, dict):
        raise ApiRefusal("BadRequest", "the body is no object")
    if isinstance(body, dict) and body.get("metadata") is not None and not isinstance(body["metadata"], dict):
        raise ApiRefusal("BadRequest", "metadata is no object")
    return body


def as_list(kind: Kind, page: Page) -> bytes:
    """A page as a List."""
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": list_metadata(page)}
    # The API server leaves the kind out of the items of its own lists; every object here begins with it.
    head_of_each = 0 if kind.custom else len(_named(kind))
    start = b"{" if head_of_each else b""
    shown = b",".join(start + stored.raw[head_of_each:] for stored in page.items)
    return json.dumps(head).encode()[:-1] + b',"items":[' + shown + b"]}"


def _named(kind: Kind) -> bytes:
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}",'.encode()


def list_metadata(page: Page) -> dict[str, Any]:
    """The metadata of a page: its version, and how to go on."""
    meta: dict[str, Any] = {"resourceVersion": str(page.version)}
    if page.rest is not None:
        meta["continue"] = base64.urlsafe_b64encode(json.dumps([page.version, *page.rest]).encode()).decode()
        meta["remainingItemCount"] = page.left
    return meta


def read_token(text: str) -> tuple[int, Key]:
    """Version and key after which a list goes on. Raises ApiRefusal (400)."""
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(text))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError) as error:
        raise ApiRefusal("BadRequest", f"continue key is not valid: {error}") from error


def as_json(obj: Any, status: int = 200) -> web.Response:
    """Answer with values."""
    return as_raw(msgspec.json.encode(obj), status)


def as_raw(raw: bytes, status: int = 200) -> web.Response:
    """Answer with JSON that is ready."""
    return web.Response(body=raw, status=status, content_type=JSON)
