"""Addresses and ports of this machine: resolve a name, find the address towards a peer, find a free port."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from contextlib import suppress

RESOLVE_S = 5.0  # seconds to wait for a name server


async def resolve_host(host: str, within_s: float = RESOLVE_S) -> str | None:
    """Return the first IP address of a host; `host` itself if it is an IP address.

    None if the name is unknown or the name server does not answer within `within_s` seconds. The lookup runs in a
    daemon thread, so that a silent name server does not delay the exit of this process.
    """
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    if host == "localhost":
        return "127.0.0.1"
    loop = asyncio.get_running_loop()
    first_address: asyncio.Future[str | None] = loop.create_future()

    def set_address(answer: str) -> None:
        """Set the result, None for "", unless the time is already up."""
        if not first_address.done():
            first_address.set_result(answer or None)

    def resolve_in_thread() -> None:
        """Resolve the host name in this thread, and pass the first address to the event loop.

        The address is "" if the name cannot be resolved.
        """
        try:
            answer = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError):
            answer = ""
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
            loop.call_soon_threadsafe(set_address, answer)

    threading.Thread(target=resolve_in_thread, name="resolve", daemon=True).start()
    try:
        return await asyncio.wait_for(first_address, within_s)
    except TimeoutError:
        return None


def is_own_address(address: str) -> bool:
    """Return True if this IP address belongs to this machine, so that it can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
    return True


def own_address(towards: str | None) -> str:
    """Return this machine's address that a peer sees. Sends nothing.

    towards: the peer's IP address; None for no peer. Returns 127.0.0.1 for no peer and if there is no route.
    """
    if towards is None or ipaddress.ip_address(towards).is_loopback:
        return "127.0.0.1"
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((towards, 9))
        except OSError:
            return "127.0.0.1"
        return str(sock.getsockname()[0])


def free_port(address: str) -> int:
    """Return a TCP port of this machine's IP address on which nobody listens now.

    Another program may still take it before the caller does. Raises OSError if the address is not of this machine, or
    no port is free.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])
