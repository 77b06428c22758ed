"""Write a small checkpoint of each format, as today's code does.

`python -m tests.launcher.checkpoint.engine.golden.writes TO`. formats/ has what was written so once, in folders
named after format and version. A format that changes gets a new version, and the command, with that folder, adds what
is missing there. What is there is never written again: it is what users' storage holds. `arena-1-before-owners` was
written by commit dc08380, before arenas told for whom they keep.
"""

import os
import random
import shutil
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.dcp import metadata
from turnout.launcher.checkpoint.dcp.reader import memories
from turnout.launcher.checkpoint.dcp.writer import FlashStorageWriter
from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer
from turnout.launcher.checkpoint.engine.save_plan import SavePlanner
from turnout.launcher.checkpoint.engine.state_dict import NAMES, tensor_over
from turnout.launcher.checkpoint.format import arena_layout, manifest
from turnout.launcher.checkpoint.format.arena_layout import Identity, offset_of, table_at
from turnout.launcher.checkpoint.format.shard_file import sums_of
from turnout.launcher.flash_checkpoint import DdpCheckpointer
from turnout.launcher.flash_checkpoint.named_parts import Parts

SEED, STEP = 7, 3
OWNER = Identity("golden", "w0", 0, "boot", 1)
GENERATION = "generation-0"


def state():
    """Each type of tensor, and each kind of plain value."""
    weight = torch.arange(6.0).reshape(2, 3)
    octets = torch.arange(16, dtype=torch.uint8) % 2
    return {
        "model": OrderedDict(weight=weight, tied=weight, scalar=torch.tensor(0.5), empty=torch.zeros(0, 2)),
        "dtypes": {name: octets.view(dtype).clone() for dtype, name in NAMES.items()},
        "plain": {"none": None, "yes": True, "text": "ä/~#", "bytes": b"\0\xff", "large": 1 << 70, "inf": -np.inf},
        2: [(0.9, 0.95), torch.Size([2, 3]), torch.bfloat16, torch.device("cpu"), np.float32(1.5), np.arange(3)],
        (1, None): {"step": STEP},
    }


def sharded():
    """Build a state with values sharded by rows, whole ones and plain ones; of one process where there is one."""
    rows = torch.arange(15.0).reshape(5, 3)
    if dist.is_initialized():
        rows = distribute_tensor(rows, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])
    return {
        "model": {"rows": rows, "whole": torch.arange(4, dtype=torch.bfloat16)},
        "optim": {"state": {"0": {"step": torch.tensor(3.0)}}, "betas": (0.9, 0.95)},
        "list": [0.5, None, "ä"],
    }


def parts():
    """Build the state of a trainer that others wrote: parts by name."""
    return {"model": {"weight": torch.ones(2)}, "random": torch.arange(8, dtype=torch.uint8), "trainer": '{"step":3}'}


def in_storage(folder, environ):
    for dice in (torch.manual_seed, random.seed, np.random.seed):
        dice(SEED)
    checkpoints = Checkpointer(folder, environ=environ)
    checkpoints.save(STEP, state())
    checkpoints.wait(60)
    checkpoints.close()


def by_ranks(folder, environ):
    """Two processes over gloo."""
    children = []
    for rank in range(2):
        if child := os.fork():
            children.append(child)
            continue
        dist.init_process_group("gloo", f"file://{environ['TURNOUT_MEMORY_DIR']}/store", rank=rank, world_size=2)
        writer = FlashStorageWriter(folder, step=STEP, environ=environ)
        dcp.save(sharded(), storage_writer=writer)
        writer.wait(60)
        memories.close()
        dist.barrier()
        os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


def by_name(folder, environ):
    saver = Parts(folder, environ=environ)
    saver.save(STEP, parts(), disk=True)
    saver.wait(60)
    memories.close()


def in_torch_files(folder, environ):
    checkpoints = DdpCheckpointer(folder, environ=environ)
    checkpoints.save_checkpoint(STEP, state())
    checkpoints.wait_latest_checkpoint(60)
    checkpoints.close()


def in_memory(folder, environ):
    """An arena's pages, and its one generation, which begins a terabyte further on."""
    laid = SavePlanner(0, 1)(state())
    record = laid.record(STEP, 1, (0, 1))
    arena = Arena.make(environ["TURNOUT_MEMORY_DIR"], OWNER)
    generation = arena.begin(record)
    view = arena.map(generation, record.shard_bytes)
    view[: record.head_bytes] = laid.head
    for entry, tensor in zip(laid.layout.entries, laid.tensors, strict=True):
        tensor_over(view, entry, record.head_bytes).copy_(tensor)
    arena.seal(generation, record)
    assert arena.pin(generation)
    arena.set_hashed(generation, sums_of(view))
    arena.unpin(generation)
    folder.mkdir()
    (folder / "pages").write_bytes(os.pread(arena.file, table_at(1), 0))
    (folder / GENERATION).write_bytes(os.pread(arena.file, record.region_bytes, offset_of(generation)))
    arena.remove()


# Files of torch and parts have no version in them: their number is raised here.
WRITERS = {
    f"dcp-{metadata.VERSION}": by_ranks,  # the first: it forks, and the others start threads
    f"storage-{manifest.VERSION}": in_storage,
    "parts-1": by_name,
    "torch-1": in_torch_files,
    f"arena-{arena_layout.VERSION}": in_memory,
}


def main(folder):
    """Add each format that has no folder there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in WRITERS.items():
        if not (folder / name).exists():
            with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as memory:
                variables = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
                making = Path(memory, "made")
                write(making, variables | {"TURNOUT_MEMORY_DIR": memory})
                shutil.copytree(making, folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
