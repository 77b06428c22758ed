"""A real training loop of torch over gloo: each step sums over all ranks, and rank 0 tells how far it is.

Torch is imported by the agent's warm parent, or afresh. Arguments: the crew's folder.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
name = os.environ.get("CREW_NAME", "")
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
began_s, step, ends = time.monotonic(), 0, torch.zeros(1)
note = folder / "lives" / f"{name}-{os.getpid()}"
alive = os.open(note.with_suffix(".alive"), os.O_WRONLY | os.O_CREAT, 0o600)
while not ends.item():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world
    ends = torch.tensor([float(rank == 0 and (folder / "finish").exists())])
    dist.all_reduce(ends)
    os.pwrite(alive, b"%020.6f" % time.monotonic(), 0)
    step += 1
    if step == 1:
        restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        record = {"name": name, "round": int(os.environ.get("TURNOUT_ROUND", restarts)), "rank": rank, "world": world}
        record |= {"pid": os.getpid(), "began_s": began_s, "restarts": restarts, "env": {}}
        part = note.with_suffix(".part")
        part.write_text(json.dumps(record))
        part.rename(note.with_suffix(".json"))
dist.destroy_process_group()
