"""Admit who shows the token of this API; refuse web pages.

The API knows no accounts, and pods may be processes of this machine. So whoever can create a pod can run commands. A
port on loopback excludes other machines and nobody else. The token is in the kubeconfig, which only its owner can read.
Pages in a browser may post to loopback, but their requests always name their origin.

A caller shows the token as bearer, or in the path before everything else, as the kubeconfig's server has it: client-go,
and so kubectl, sends no bearer token to a server without TLS.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from turnout.simulator.api.errors import ApiRefusal
from turnout.simulator.api.kubeconfig import prefix

_NAMES = ("127.0.0.1", "localhost")
_BEARER = "Bearer "


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)


def only_with(token: str) -> Middleware:
    """Return a middleware that refuses web pages with 403, and callers without the token with 401."""
    before = prefix(token)

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        host = request.host.rpartition(":")[0] if ":" in request.host else request.host
        if "Origin" in request.headers or host not in _NAMES:
            raise ApiRefusal("Forbidden", "this API is not for web pages: they have no business here")
        shown = request.rel_url.raw_path[: len(before) + 1]
        if _equal(shown, f"{before}/"):
            rest = request.rel_url.with_path(request.rel_url.raw_path[len(before) :], encoded=True, keep_query=True)
            return await handler(request.clone(rel_url=rest))
        header = request.headers.get(hdrs.AUTHORIZATION, "")
        if header.startswith(_BEARER) and _equal(header.removeprefix(_BEARER).strip(), token):
            return await handler(request)
        raise ApiRefusal("Unauthorized", "this API wants the token that is in its kubeconfig")

    return check


def _equal(shown: str, expected: str) -> bool:
    return secrets.compare_digest(shown.encode("utf-8", "replace"), expected.encode())
