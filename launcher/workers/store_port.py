"""Delays training processes until rank 0 listens on the store port, so that they connect at the first try.

A refused torch client tries again after 0.25 to 0.75 s (torch/csrc/distributed/c10d/Backoff.hpp), ten times the rest of
a restart. Ranks run the same program, so a short delay is enough. It guarantees nothing: a program may do anything
before it connects.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Mapping

MOST_S = 0.03
_LOOK_S = 0.001
_LISTENS = "0A"  # the kernel's code of a listening socket
_SOCK_DIAG, _BY_FAMILY, _DONE, _REQUEST, _DUMP = 4, 20, 3, 0x1, 0x300  # linux/netlink.h, linux/sock_diag.h
_ANSWER_BYTES = 1 << 13


def before_first(env: Mapping[str, str], most_s: float = MOST_S) -> None:
    """Wait a moment before the first process of a worker without rank 0, so that rank 0 is likely to listen
    elsewhere.
    """
    if env.get("RANK", "0") != "0":
        time.sleep(most_s)


def after(env: Mapping[str, str], most_s: float = MOST_S) -> None:
    """Wait after starting rank 0 until it listens, at most `most_s` seconds. Returns at once for other ranks."""
    port = env.get("MASTER_PORT", "")
    if env.get("RANK") != "0" or not port.isdecimal():
        return
    until_s = time.monotonic() + most_s
    while time.monotonic() < until_s and not listens(int(port)):
        time.sleep(_LOOK_S)


def listens(port: int) -> bool:
    """True if a socket of this host listens on this TCP port."""
    try:
        return any(_told_by_kernel(family, port) for family in (socket.AF_INET, socket.AF_INET6))
    except OSError:  # a kernel without sock_diag, as in a sandbox
        return _found_in_tables(port)


def _told_by_kernel(family: int, port: int) -> bool:
    """Ask the kernel through sock_diag(7), which only looks at listening sockets. A busy host has tens of thousands of
    others.
    """
    body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << int(_LISTENS, 16))
    body += struct.pack("!HH", port, 0) + bytes(44)  # of idiag_sockid only the port is asked for
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(MOST_S)
        kernel.send(struct.pack("=IHHII", 16 + len(body), _BY_FAMILY, _REQUEST | _DUMP, 1, 0) + body)
        answer = kernel.recv(_ANSWER_BYTES)
    kind: int = struct.unpack_from("=IH", answer)[1]
    if kind not in (_BY_FAMILY, _DONE):
        raise OSError(errno.ENOTSUP, "no sock_diag")
    return kind == _BY_FAMILY


def _found_in_tables(port: int) -> bool:
    local = f":{port:04X}"
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table) as lines:
                for line in lines:
                    fields = line.split(None, 4)
                    if fields[1].endswith(local) and fields[3] == _LISTENS:
                        return True
        except OSError:
            continue
    return False
