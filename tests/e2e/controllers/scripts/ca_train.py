"""Trains data-parallel under `colossalai run`, which starts torchrun on each worker: fits a line to points.

Arguments: a folder, where rank 0 leaves the loss of the first and the last step, and what all ranks were told.
"""

import json
import os
import sys
from pathlib import Path

from line import fit
from torch import distributed

TOLD = ("DIRECT", "SECRET", "HARD", "LOCAL_WORLD_SIZE", "GROUP_RANK")

distributed.init_process_group("gloo")
rank, world = distributed.get_rank(), distributed.get_world_size()
losses = fit()
ranks = [None] * world
distributed.all_gather_object(ranks, {name: os.environ.get(name) for name in TOLD} | {"host": os.uname().nodename})
if rank == 0:
    (Path(sys.argv[1]) / "trained").write_text(json.dumps({"first": losses[0], "last": losses[-1], "ranks": ranks}))
distributed.barrier()
distributed.destroy_process_group()
