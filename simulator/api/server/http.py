"""Read JSON bodies and write JSON or a Status. handlers.py has the verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from turnout.simulator.api.errors import ApiRefusal, Unserved

MOST_BODY_BYTES = 3 * 2**20  # as etcd and the API server together allow
JSON = "application/json"


@web.middleware
async def refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every refusal into a Status."""
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
    """Return the JSON of a body.

    anything: also accept JSON that is no object.

    Raises ApiRefusal: 501 for protobuf and other types, 400 for a body that is not JSON, or no object where one is
    needed.
    """
    if not anything and request.content_type not in (JSON, "application/octet-stream"):
        raise ApiRefusal("NotImplemented", f"the embedded API reads no bodies of {request.content_type}: send JSON")
    try:
        body = msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiRefusal("BadRequest", f"the body is no JSON: {error}") from error
    if not anything and not isinstance(body, dict):
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
