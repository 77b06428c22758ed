"""Bound sockets, and limits on the open files and connections of a process."""

from __future__ import annotations

import resource
import socket
from dataclasses import replace

from turnout.kube.server.http_connection import ConnectionLimits

FILES = 65_536  # open files that this process asks for, where the system lets it
OTHER_FILES = 256  # of them for the plain port, watches, certificates and libraries


def allow_files() -> int:
    """Raise the limit of open files of this process as far as the system allows. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return files


def limit_connections(limits: ConnectionLimits, files: int) -> ConnectionLimits:
    """Return limits with at most as many connections as there are files for."""
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
