"""Runs the checkpoint daemon: `python -m turnout.launcher.checkpoint.daemon`, on inherited sockets and at low priority.

The agent writes to the daemon's stdin. When stdin ends, the daemon finishes the saves in flight and exits.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from turnout.launcher.checkpoint.daemon.daemon import CheckpointDaemon
from turnout.launcher.checkpoint.format.daemon_messages import MAX_BYTES, End, Message, Trust, read_at_daemon
from turnout.launcher.errors import BadFrame
from turnout.launcher.event_log import EventLog, log_to
from turnout.launcher.rendezvous.transport.frame_connection import Acceptor, ReadToEndProtocol, next_frame

# Environment variables with the limits in bytes per second of writes to storage and of replication, 0 for none.
PERSIST_BYTES_S = "TURNOUT_PERSIST_BYTES_S"
REPLICATE_BYTES_S = "TURNOUT_REPLICATE_BYTES_S"
THREADS = 64  # hanging storage blocks one thread for each local rank, and hashing needs some threads, too
log = logging.getLogger("turnout.checkpoint_daemon")


async def _next_message(reader: asyncio.StreamReader) -> Message | None:
    """Read the next message of the agent. None if the agent has ended or its message is invalid."""
    try:
        return read_at_daemon(await next_frame(reader, MAX_BYTES))
    except (OSError, asyncio.IncompleteReadError, BadFrame):
        return None


async def _serve_until_end(listener: socket.socket, endpoint: socket.socket | None, daemon: CheckpointDaemon) -> None:
    """Serve training processes until the agent closes its pipe or sends End, then end the daemon.

    listener: of training processes. endpoint: listens for other workers' daemons; None for no replicas. The arenas are
    removed only if the agent's last message says that the job is done.
    """
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    if endpoint is not None and isinstance(trust := await _next_message(reader), Trust):
        daemon.replicator.peers.listen(endpoint, trust.token)
        if trust.restore_place is not None:
            await daemon.replicator.begin_round(trust.step, trust.restore_place)

    acceptor = Acceptor(listener, lambda: ReadToEndProtocol(daemon.connections.serve))
    last = await _next_message(reader)  # says whether the job is done
    acceptor.close()
    listener.close()
    await daemon.end(isinstance(last, End) and last.done)


async def _start_daemon(
    listener: socket.socket, endpoint: socket.socket | None, options: argparse.Namespace, log_event: EventLog
) -> None:
    """Create the daemon from the command line's options, and serve both sockets until the agent ends.

    listener: the socket for training processes. endpoint: the socket for other daemons, None for none.
    """
    of_worker, limits = (options.folder, options.run, options.worker), (options.bytes_s, options.copied_s)
    daemon = CheckpointDaemon(*of_worker, log_event, *limits, options.reports)
    await _serve_until_end(listener, endpoint, daemon)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until its agent ends; return 0. argv: None for the arguments of this process. Logs to stderr."""
    parser = argparse.ArgumentParser(
        prog="turnout-checkpoint-daemon", description="Keeps the checkpoints of one worker in memory."
    )
    parser.add_argument("--listen", type=int, required=True, metavar="FD", help="listens for training processes")
    parser.add_argument("--peer-listen", type=int, metavar="FD", help="listens for the daemons of other workers")
    parser.add_argument("--reports", type=int, metavar="FD", help="a pipe on which the ends of saves are reported")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the arenas")
    parser.add_argument("--run", required=True, help="the job's id")
    parser.add_argument("--worker", required=True, help="the worker's name")
    parser.add_argument("--nice", type=int, default=10, help="niceness, 0 to 19; training has 0 (default: 10)")
    rate = os.environ.get(PERSIST_BYTES_S) or "0"
    parser.add_argument(
        "--bytes-s", type=float, default=rate, help=f"bytes/s to storage, 0: no limit; default: {PERSIST_BYTES_S}"
    )
    rate = os.environ.get(REPLICATE_BYTES_S) or "0"
    parser.add_argument(
        "--copied-s", type=float, default=rate, help=f"bytes/s to others, 0: no limit; default: {REPLICATE_BYTES_S}"
    )
    options = parser.parse_args(argv)
    handler = logging.StreamHandler(sys.stderr)
    from turnout.kube.client.logs import PlainFormatter

    handler.setFormatter(PlainFormatter())
    log.addHandler(handler)
    log.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
    log.propagate = False
    os.nice(max(0, min(options.nice, 19)))
    listener = socket.socket(fileno=options.listen)
    listener.setblocking(False)
    log_event = log_to(log, quiet=["persisted", "checkpoint_committed"])
    endpoint = socket.socket(fileno=options.peer_listen) if options.peer_listen is not None else None
    asyncio.run(_start_daemon(listener, endpoint, options, log_event))
    return 0


if __name__ == "__main__":
    sys.exit(main())
