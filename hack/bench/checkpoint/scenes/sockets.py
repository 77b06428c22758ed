"""The throughput of shard copies into a peer's memory, compared with a plain socket, and their effect on a loop.

The floor is one TCP connection of the loopback: sendfile from tmpfs, recv_into mapped memory that is warm; no byte is
read on the way. Ours sends from one arena into another. Each chunk is hashed as it arrives, and an authenticated
digest, which both ends compute, proves that all bytes arrived. Both ends are processes of this machine with the
niceness of daemons; each of a job's machines has one of them at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hack.bench.checkpoint.plan import BenchmarkFolders, CheckpointPlan, SceneResult, took_s
from hack.bench.checkpoint.scenes.overlap import PLAIN, TrainingLoop, cores
from hack.bench.checkpoint.scenes.stalls import run_or_record_fault
from hack.bench.checkpoint.state import make
from turnout.launcher.checkpoint.replication import peer_connection

LOOPBACK, REPLICA = "floor: loopback socket", "ours, replica"
PACED, UNPACED = "a step while copies are sent, paced", "a step while copies are sent as fast as it goes"
PACE = 0.125  # of the floor
_FLOOR, _SHARD, _TAKEN = b"f", b"s", b"!"
_PIECE_BYTES = _BUFFER_BYTES = 4 << 20
_HEAD_BYTES = 4_096
_NICE = 10
_LIMIT_S = 60.0


def measure_sending(plan: CheckpointPlan, places: BenchmarkFolders) -> SceneResult:
    """Time sending a shard to another process over loopback, by Turnout's replication and by sendfile(2).

    Each time ends when the receiver has all bytes. Also time a training loop meanwhile.
    """
    result = SceneResult(plan.sent_bytes)
    context = multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as ends:
        orders, ordered = context.Pipe()
        port = server.getsockname()[1]
        for work in (partial(_receive, server), partial(_send, port, ordered)):
            process = context.Process(target=_run_end, args=(work, orders, places.memory, plan.sent_bytes), daemon=True)
            process.start()
            ends.callback(process.join, _LIMIT_S)
        ends.callback(orders.close)  # the sender ends then, and the receiver with it
        ordered.close()

        def send(name: str, timed: bool) -> None:
            took = _request_send(orders, name)
            if timed:
                result.keep(name, took)

        for turn in range(-1, plan.sockets):
            send(LOOPBACK, turn >= 0)
            run_or_record_fault(REPLICA, result, partial(send, REPLICA, turn >= 0))
        run_or_record_fault(REPLICA, result, partial(_time_loop_during_sends, plan, orders, result))
    return result


def _time_loop_during_sends(plan: CheckpointPlan, orders: Connection, result: SceneResult) -> None:
    """Time a training loop on one core, alone and while the sender sends, with and without a rate limit.

    orders: pipe to the sender. Raises RuntimeError with the sender's error.
    """
    loop = TrainingLoop(make(plan.small))
    os.sched_setaffinity(0, cores()[0])
    bytes_s = PACE * plan.sent_bytes / result.best_s(LOOPBACK)
    for _ in range(plan.loops):
        for name, pace in ((PACED, bytes_s), (UNPACED, 0.0)):
            steps, alone_s = loop.steps(plan.loop_s)
            result.keep(PLAIN, alone_s / steps)
            orders.send((REPLICA, pace))
            steps, passed_s = loop.steps(0, lambda: not orders.poll())
            seconds_of(orders.recv())
            result.keep(name, passed_s / steps)


def _request_send(orders: Connection, name: str) -> float:
    """Order the sender to send the shard once, and return the seconds that it needed.

    name: LOOPBACK or REPLICA. Raises RuntimeError with the sender's error.
    """
    orders.send((name, 0.0))
    return seconds_of(orders.recv())


def seconds_of(answer: float | str) -> float:
    """Return the seconds that the sender has answered. Raises RuntimeError if the answer is the text of an error."""
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return float(answer)


def _run_end(work: Callable[[Any, Any], None], not_mine: Connection, memory: Path, size_bytes: int) -> None:
    """Run one end of the connection in its process: call `work(arena, record)`, with an arena that is removed
    afterwards.

    not_mine: the other end of the pipe, which is closed here. memory: folder of the arena. size_bytes: of the shard.
    """
    not_mine.close()  # a copy of it: the sender sees the end of orders when nobody has it
    os.nice(_NICE)
    with ExitStack() as ends:
        arena, record = _arena(memory, size_bytes)
        ends.callback(arena.close)
        ends.callback(arena.remove)
        work(arena, record)


def _arena(memory: Path, size_bytes: int) -> Any:
    """Return (arena with two allocated generations, record of a shard of `size_bytes`). memory: folder of the arena."""
    from turnout.launcher.checkpoint.arena.arena import Arena
    from turnout.launcher.checkpoint.arena.arena_files import boot_id
    from turnout.launcher.checkpoint.format.arena_layout import Identity, ShardRecord

    record = ShardRecord(0, 1, 0, 0, 1, _HEAD_BYTES, size_bytes - _HEAD_BYTES)
    arena = Arena.make(memory, Identity("bench", str(os.getpid()), 0, boot_id(), 2))
    for generation in range(2):
        arena.populate(generation, record.region_bytes)
    return arena, record


def _send(port: int, orders: Connection, arena: Any, record: Any) -> None:
    """Connect to the receiver, then send the shard on each request, until the pipe is closed or a transfer fails.

    A request is (LOOPBACK or REPLICA, rate limit in bytes a second, 0 for none). The answer is the seconds, or an
    error's text. orders: the pipe of requests. arena, record: the shard is the arena's generation 0.
    """
    from turnout.launcher.checkpoint.format.arena_layout import offset_of
    from turnout.launcher.checkpoint.format.shard_file import sum_of, sums_of
    from turnout.launcher.checkpoint.storage.shard_writer import RateLimit, RateLimiter

    shard = arena.map(0, record.region_bytes)[: record.shard_bytes]
    sums = tuple(sums_of(shard))
    total = sum_of(b"".join(each.to_bytes(8, "little") for each in sums))
    auth = _auth(listens=False)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

        def send(name: str, bytes_s: float) -> None:
            """Send the shard, and wait until the receiver has it.

            name: LOOPBACK for sendfile alone, else our sender. bytes_s: its limit, 0 for none. Raises ConnectionError.
            """
            if name == LOOPBACK:
                connection.settimeout(None)  # ours has one
                connection.sendall(_FLOOR)
                at, past = offset_of(0), offset_of(0) + record.shard_bytes
                while at < past:
                    at += os.sendfile(connection.fileno(), arena.file, at, past - at)
            else:
                connection.sendall(_SHARD + total.to_bytes(8, "little"))
                rate_limiter = RateLimiter(RateLimit(bytes_s)) if bytes_s else None
                peer_connection.send(connection, auth, sums, shard, rate_limiter)
            if connection.recv(1) != _TAKEN:
                raise ConnectionError("the receiver ended")

        while True:
            try:
                request = orders.recv()
            except EOFError:
                return
            try:
                orders.send(took_s(partial(send, *request)))
            except Exception as error:
                orders.send(f"{type(error).__name__}: {error}")
                return


def _auth(*, listens: bool) -> Any:
    """Return the authentication of one end. listens: True for the receiver."""
    from turnout.launcher.framing import FrameAuth

    return FrameAuth(b"token", "bench", b"of the caller", b"of the listener", listens=listens)


def _receive(server: socket.socket, arena: Any, record: Any) -> None:
    """Accept one connection, and serve it until the sender closes it.

    After each marker byte, it receives a shard (`_SHARD`) or plain bytes (`_FLOOR`) into the arena, and answers
    `_TAKEN`. server: listens. record: of the shard. Raises TimeoutError after _LIMIT_S seconds without a byte.
    """
    server.settimeout(_LIMIT_S)
    connection, _ = server.accept()
    auth = _auth(listens=True)
    connection.settimeout(_LIMIT_S)
    with connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        while kind := connection.recv(1):
            if kind == _SHARD:
                total = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
                generation = arena.begin(record)
                region = arena.map(generation, record.region_bytes)
                sums = peer_connection.receive(connection, auth, record, total, region)
                arena.seal(generation, record)
                arena.set_hashed(generation, sums)
            else:
                with arena.map(0, record.shard_bytes) as view:
                    _fill(connection, view)
            connection.sendall(_TAKEN)


def _fill(connection: socket.socket, view: memoryview) -> None:
    """Receive bytes until the view is full. Raises ConnectionResetError if the sender closes the connection before."""
    at = 0
    while at < view.nbytes:
        with view[at : at + _PIECE_BYTES] as piece:
            count = connection.recv_into(piece)
        if not count:
            raise ConnectionResetError("the sender ended")
        at += count
