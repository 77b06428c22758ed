"""Scripts of hung worlds: all ranks wait in one line of Python, and only the numbers of their calls differ."""

HANGS = """
import os
import sys
import time
import torch
import torch.distributed as dist
from turnout.launcher.elastic.steps import Steps

dist.init_process_group("gloo")
world, rank, steps = dist.group.WORLD, dist.get_rank(), Steps()
pair = dist.new_group([2, 3], group_desc="pair")
dist.all_reduce(torch.ones(4), group=pair) if rank >= 2 else None
ones = [torch.ones(4)]

def behind():
    time.sleep(3_600) if rank == 2 else world.allreduce(ones).wait()

def crossed():
    (pair if rank == 2 else world).allreduce(ones).wait()

def differs():
    (world.barrier() if rank == 2 else world.allreduce(ones)).wait()

def holds_the_lock():
    sum(range(1 << 62)) if rank == 2 else world.allreduce(ones).wait()

for step in steps.count():
    if step == 30:
        globals()[sys.argv[1]]()
    dist.all_reduce(torch.ones(4))
    steps.done(step)
"""
