"""Trains data-parallel under torch.distributed.run: fits a line to points. argv: options of the guide's script.

It works in no folder of its own: FOLDER names that where rank 0 leaves its losses and the size of the world.
"""

import json
import os
from pathlib import Path

import torch.distributed as dist
from line import fit

dist.init_process_group("gloo")
losses = fit()
world = dist.get_world_size()
dist.barrier()
if dist.get_rank() == 0:
    (Path(os.environ["FOLDER"]) / f"trained-of-{world}").write_text(json.dumps([losses[0], losses[-1]]))
dist.destroy_process_group()
