"""Trains data-parallel under torch.distributed.run: fits a line to points. argv: options of the guide's script.

It works in no folder of its own: FOLDER names that where rank 0 leaves its losses and the size of the world.
"""

import json
import os
import threading
from pathlib import Path

import torch.distributed as dist
from line import fit

NEVER = threading.Event()
dist.init_process_group("gloo")
world = dist.get_world_size()
losses = fit()
while world < 2:  # the guide's min is one worker: this world trains until its agent starts it anew with the other one
    NEVER.wait(0.2)
dist.barrier()
if dist.get_rank() == 0:
    (Path(os.environ["FOLDER"]) / f"trained-of-{world}").write_text(json.dumps([losses[0], losses[-1]]))
dist.destroy_process_group()
