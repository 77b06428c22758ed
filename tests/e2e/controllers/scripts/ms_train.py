"""Trains data-parallel with what an MSJob's pods are told, torch in MindSpore's place: the Scheduler serves the store.

Arguments: a folder, where worker 0 leaves the loss of the first and the last step, and what it was told; without one,
the folder it works in. Options are those of the guide's script, and change nothing.
"""

import json
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

from line import fit
from torch import distributed

HOST, PORT = os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])
WORLD = int(os.environ["MS_WORKER_NUM"])
LIMIT = timedelta(minutes=30)  # as gloo has: pods may start a minute apart, and the test has a limit of its own


def serve():
    """Be the Scheduler: keep the store at the pod's own address until all workers have ended."""
    listener = socket.create_server((HOST, PORT))
    fd = {"master_listen_fd": listener.detach(), "use_libuv": False}
    store = distributed.TCPStore(HOST, PORT, is_master=True, wait_for_workers=False, timeout=LIMIT, **fd)
    store.wait([f"ended-{rank}" for rank in range(WORLD)], LIMIT)


def train(folder):
    """Be a worker: fit a line to points of its own, gradients averaged over all."""
    rank = int(os.environ["MS_NODE_ID"].rpartition("-")[2])
    store = distributed.TCPStore(HOST, PORT, is_master=False, timeout=LIMIT)
    distributed.init_process_group("gloo", store=distributed.PrefixStore("job", store), rank=rank, world_size=WORLD)
    losses = fit()
    if rank == 0:
        report = {"first": losses[0], "last": losses[-1], "world": distributed.get_world_size(), "host": HOST}
        (folder / "trained").write_text(json.dumps(report))
    distributed.barrier()
    store.set(f"ended-{rank}", "1")


if os.environ["MS_ROLE"] == "MS_SCHED":
    serve()
else:
    train(Path(next((each for each in sys.argv[1:] if not each.startswith("--")), ".")))
