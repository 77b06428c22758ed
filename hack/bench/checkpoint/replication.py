"""Time one generation from a daemon to a replica holder over loopback: both are the processes beside real agents.

What is timed is what a rank sees: from the moment its daemon hears of the save, which is hashed first, until the
replica holder has every byte, hashed and sealed. `python -m hack.bench.checkpoint.replication [MIB]` prints GB/s.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import private_folder, socket_in
from turnout.launcher.checkpoint.daemon.trainer_client import TrainerClient
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import Hello, Save, Trust, encode
from turnout.launcher.coordinator_messages import DaemonEndpoint, ReplicaGroup, RestorePlace
from turnout.launcher.env import DAEMON

WITHIN_S = 60.0
_OWN = 4  # generations of who sends: 3, and one for the copies
_RUN, _TOKEN, _LOOK_S = "bench", b"sixteen bytes of it", 0.002


@contextmanager
def _daemon(
    worker: str, memory: Path, sends_to: DaemonEndpoint | None, bytes_s: float = 0.0
) -> Iterator[tuple[Path, DaemonEndpoint]]:
    """Run a daemon, in round 1. Gives the path of its socket, and its endpoint for other daemons."""
    folder = memory / worker
    folder.mkdir()
    with (
        private_folder(folder) as sockets,
        socket.socket(socket.AF_UNIX) as listens,
        socket.create_server(("127.0.0.1", 0)) as endpoint,
    ):
        path = socket_in(sockets)
        listens.bind(str(path))
        listens.listen()
        here = DaemonEndpoint(worker, worker, *endpoint.getsockname())
        flags = {
            "--listen": str(listens.fileno()),
            "--peer-listen": str(endpoint.fileno()),
            "--folder": str(folder),
            "--run": _RUN,
            "--worker": worker,
            "--copied-s": str(bytes_s),
        }
        module = "turnout.launcher.checkpoint.daemon"
        command = [sys.executable, "-m", module, *(word for flag in flags.items() for word in flag)]
        fds = [listens.fileno(), endpoint.fileno()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=fds, start_new_session=True) as process:
            assert process.stdin is not None
            replica_group = ReplicaGroup(here, 1, ((sends_to,),)) if sends_to is not None else None
            process.stdin.write(
                encode(Trust(_TOKEN, -1, RestorePlace(1, 0 if replica_group else 1, 1, 2, replica_group=replica_group)))
            )
            process.stdin.flush()
            try:
                yield path, here
            finally:
                process.kill()


def copied(size_bytes: int, times: int, memory: Path, bytes_s: float = 0.0) -> list[float]:
    """Time several copies in seconds, after others that allocate and map all pages.

    memory: an empty folder in tmpfs. bytes_s: the pace, 0 for none. Raises TimeoutError.
    """
    with ExitStack() as stack:
        _, buddy = stack.enter_context(_daemon("w1", memory, None))
        path, _ = stack.enter_context(_daemon("w0", memory, buddy, bytes_s))
        hello = Hello(_RUN, "w0", 0, 0, 2, 1, replicas=1)
        client = TrainerClient(hello, os.environ | {DAEMON: str(path)}, memory, lambda message: None)
        stack.callback(client.close)
        record = ShardRecord(0, 0, 1, 0, 2, PAGE_BYTES, size_bytes - PAGE_BYTES)
        arena = Arena.open(client.reserve(record.region_bytes, _OWN))
        stack.callback(arena.close)
        return [_timed(client, arena, step, size_bytes) for step in range(times + _OWN)][_OWN:]


def _timed(client: TrainerClient, arena: Arena, step: int, size_bytes: int) -> float:
    record = ShardRecord(0, step, 1, 0, 2, PAGE_BYTES, size_bytes - PAGE_BYTES)
    generation = arena.begin(record)
    assert generation is not None, "all are pinned"
    np.frombuffer(arena.map(generation, size_bytes), np.uint8)[:] = step % 251
    sealed = arena.seal(generation, record)
    client.wait_pinned()
    began_s = time.perf_counter()
    client.announce_save(Save(generation, sealed.epoch, step))
    while client.stats().replicated < step:
        if time.perf_counter() - began_s > WITHIN_S:
            raise TimeoutError(f"no copy within {WITHIN_S:g} s")
        time.sleep(_LOOK_S)
    return time.perf_counter() - began_s


def main() -> None:
    """Measure the throughput three times."""
    size_bytes = int(sys.argv[1] if len(sys.argv) > 1 else 512) << 20
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        print(", ".join(f"{size_bytes / took_s / 1e9:.2f} GB/s" for took_s in copied(size_bytes, 5, Path(folder))))


if __name__ == "__main__":
    main()
