"""Bound sockets, and limits on the open files and connections of a process."""

from __future__ import annotations

import resource
import socket
from dataclasses import replace

from turnout.kube.server.http_connection import ConnectionLimits

FILES = 65_536  # open files that a process requests as its limit
OTHER_FILES = 256  # of these for other uses than connections: the plain port, watches, certificates, libraries


def allow_files() -> int:
    """Raise the limit of open files of this process to FILES, or as far as the system allows. Return the limit.

    A limit that is higher already stays; FILES is returned for no limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return files


def limit_connections(limits: ConnectionLimits, files: int) -> ConnectionLimits:
    """Return the limits with so few connections, at least 1, that the process has files for all of them.

    files: the limit of open files of this process.
    """
    return replace(limits, max_connections=max(1, min(limits.max_connections, files - OTHER_FILES)))


def bind(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket that does not listen yet. host: an IP address. port: 0 for any. Raises OSError."""
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
