"""What no replica can be faster than: the same bytes over a socket of the loopback, from warm memory into warm memory.

One connection of TCP, one process at each end, nothing looked at on the way.
"""

from __future__ import annotations

import mmap
import multiprocessing
import socket

from hack.bench.saving.plan import Places, Plan, Seen

LOOPBACK = "floor: loopback socket"
_PIECE_BYTES = 4 << 20
_BUFFER_BYTES = 4 << 20
_LIMIT_S = 60.0


def sent(plan: Plan, places: Places) -> Seen:
    """Send them so often; the time is that until the receiver says that it has all."""
    seen = Seen(plan.sent_bytes)
    with socket.create_server(("127.0.0.1", 0)) as server, mmap.mmap(-1, plan.sent_bytes) as memory:
        _touch(memory)
        receiver = multiprocessing.get_context("fork").Process(
            target=_receive, args=(server.getsockname()[1], plan.sent_bytes, plan.sockets + 1), daemon=True
        )
        receiver.start()
        server.settimeout(_LIMIT_S)
        connection, _ = server.accept()
        with connection, memoryview(memory) as view:
            connection.settimeout(_LIMIT_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

            def send() -> None:
                connection.sendall(view)
                if connection.recv(1) != b"!":
                    raise ConnectionError("the receiver ended")

            send()
            for _ in range(plan.sockets):
                seen.timed(LOOPBACK, send)
        receiver.join(_LIMIT_S)
    return seen


def _receive(port: int, size_bytes: int, times: int) -> None:
    with mmap.mmap(-1, size_bytes) as memory, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        _touch(memory)
        with memoryview(memory) as view:
            for _ in range(times):
                at = 0
                while at < size_bytes:
                    with view[at : at + _PIECE_BYTES] as piece:
                        got = connection.recv_into(piece)
                    if not got:
                        return
                    at += got
                connection.sendall(b"!")


def _touch(memory: mmap.mmap) -> None:
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1
