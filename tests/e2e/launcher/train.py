"""The training script of these tests: one collective a step, on CPU, until the test says that it is enough.

argv: the folder of the story. Each round leaves a file that names its world; `enough` ends it. Rank 0 is the last to be
done, a while after the others, and says so.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from turnout.launcher.elastic.steps import Steps

folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
saved = folder / "saved"
dist.init_process_group("gloo")
steps = Steps()
for step in steps.count(int(saved.read_text()) + 1 if saved.exists() else 0):
    votes = torch.tensor([1, int((folder / "enough").exists())])
    dist.all_reduce(votes)
    worker_count, enough = votes.tolist()
    if rank == 0:
        (folder / f"round-{os.environ['TURNOUT_ROUND']}-of-{worker_count}").touch()
    time.sleep(0.02)
    last = steps.done(step)
    if rank == 0 and (last or enough):
        saved.write_text(str(step))
        steps.saved(step)
    if last or enough:
        break
dist.destroy_process_group()
if rank == 0 and enough:
    time.sleep(1.0)
    (folder / "all-done").touch()
