"""Admit only programs of the user who runs this API, and of root; refuse web pages.

The API knows no accounts, and pods may be processes of this machine. So whoever can create a pod can run commands. A
port on loopback excludes other machines. Other users of this machine are excluded by the owner of the caller's socket,
as Linux shows it. Pages in a browser may post to loopback, but their requests always name their origin.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import struct
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from turnout.simulator.api.errors import ApiRefusal

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_NAMES = ("127.0.0.1", "localhost")


def only_our_own() -> Middleware:
    """Return a middleware that refuses all other callers with 403."""
    known: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
    welcome = {0, os.getuid()}

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        host = request.host.rpartition(":")[0] if ":" in request.host else request.host
        if "Origin" in request.headers or host not in _NAMES:
            raise ApiRefusal("Forbidden", "this API is not for web pages: they have no business here")
        if request.transport is not None and request.transport not in known:
            if _TABLES[0].exists() and _owner(request.transport) not in welcome:
                raise ApiRefusal("Forbidden", "this API is only for the user who runs it")
            known.add(request.transport)
        return await handler(request)

    return check


def _owner(transport: asyncio.BaseTransport) -> int | None:
    """Return the user id of the socket at the other end; None when no table has it."""
    there, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if there is None or here is None:
        return None
    for table in _TABLES:
        try:
            found = owner_in(table.read_text(), there[:2], here[:2])
        except OSError:
            continue
        if found is not None:
            return found
    return None


def owner_in(table: str, local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Return the user id that owns a connection, from a table like /proc/net/tcp; None when it is not in it."""
    for line in table.splitlines()[1:]:
        cells = line.split()
        if len(cells) > 7 and _address(cells[1]) == local and _address(cells[2]) == remote:
            return int(cells[7])
    return None


def _address(cell: str) -> tuple[str, int]:
    """Return address and port of a cell: 32-bit words in this machine's byte order. Mapped IPv4 becomes IPv4."""
    digits, _, port = cell.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    raw = b"".join(struct.pack("=I", word) for word in words)
    found = ipaddress.ip_address(raw)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found), int(port, 16)
