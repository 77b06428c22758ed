"""Serve probes, metrics and a view for a person, on a plain port beside the verbs.

/debug/view shows names of the cluster. So it answers only callers on loopback that ask for loopback by name. Source:
CS-21; docs/facts/reliability.md 2
"""

from __future__ import annotations

import ipaddress

import msgspec
from aiohttp import hdrs, web

from turnout.kube.server.http_connection import Limits, Server, refusal
from turnout.kube.server.probes import LIMITS, pages_server, probe_pages
from turnout.scheduler_ext.server.dispatcher import ExtenderVerbs
from turnout.scheduler_ext.server.metrics import Metrics

_LOCAL_NAMES = {"localhost", "127.0.0.1", "[::1]"}


class HealthPages:
    """Has the pages of the plain port."""

    def __init__(self, extender: ExtenderVerbs, metrics: Metrics, limits: Limits = LIMITS) -> None:
        self._extender, self._limits = extender, limits
        self._leaving = False
        self._pages = {**probe_pages(self._unready, metrics.page), "/debug/view": self._view}

    def server(self) -> Server:
        """Return a server of these pages that does not listen yet."""
        return pages_server(self._pages, self._limits)

    def leave(self) -> None:
        """Report "not ready" from now on, so that new callers go elsewhere. Requests that come are still answered."""
        self._leaving = True

    def _unready(self) -> str | None:
        return "leaving" if self._leaving else self._extender.unready()

    def _view(self, request: web.BaseRequest) -> web.Response:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        if not is_local(peer[0] if peer else "", request.headers.get(hdrs.HOST, "")):
            return refusal(404, "no such page")
        return web.Response(body=msgspec.json.encode(self._extender.describe()), content_type="application/json")


def is_local(peer: str, host: str) -> bool:
    """True if the caller is on loopback and asks by a local name.

    peer: the caller's address, "" if it has none. host: the Host header. A page in a browser reaches loopback, too, but
    under its own name.
    """
    name = host[: host.rindex("]") + 1] if "]" in host else host.partition(":")[0]
    return bool(peer) and _is_loopback(peer) and name.lower() in _LOCAL_NAMES


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback  # a caller by IPv4 on a socket for both
    return address.is_loopback
