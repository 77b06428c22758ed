"""Bound sockets, and how many files and connections a process may have open."""

from __future__ import annotations

import resource
import socket
from dataclasses import replace

from turnout.kube.server.http_connection import Limits

FILES = 65_536  # open files that this process asks for, where the system lets it
OTHER_FILES = 256  # of them for the plain port, watches, certificates and libraries


def allow_files() -> int:
    """Raise the number of files that this process may open, as far as the system lets it. Returns the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def within(limits: Limits, files: int) -> Limits:
    """Return limits with no more connections than there are files for, since no further caller could be accepted."""
    return replace(limits, connections=max(1, min(limits.connections, files - OTHER_FILES)))


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICHOST
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
