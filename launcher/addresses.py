"""Addresses and ports of this machine: resolve a name, find the address towards a peer, find a free port."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from contextlib import suppress

RESOLVE_S = 5.0


async def resolved(host: str, within_s: float = RESOLVE_S) -> str | None:
    """Resolve a host to an IP address, at once if it is one. None if the name server does not answer in time.

    It runs in a daemon thread, so that a silent name server does not delay the exit.
    """
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    if host == "localhost":
        return "127.0.0.1"
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str | None] = loop.create_future()

    def tell(answer: str) -> None:
        if not found.done():
            found.set_result(answer or None)

    def look() -> None:
        """Resolve the host name in this thread, and pass the first address to the event loop.

        The address is "" if the name cannot be resolved.
        """
        try:
            answer = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError):
            answer = ""
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
            loop.call_soon_threadsafe(tell, answer)

    threading.Thread(target=look, name="resolve", daemon=True).start()
    try:
        return await asyncio.wait_for(found, within_s)
    except TimeoutError:
        return None


def is_own(address: str) -> bool:
    """Return True if this IP address belongs to this machine, so that it can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
    return True


def own_address(towards: str | None) -> str:
    """Return our address from which the peer is reached, or loopback without a peer. Sends nothing."""
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
    """Return a port on which nobody listens here now. A training process uses it a moment later."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])
